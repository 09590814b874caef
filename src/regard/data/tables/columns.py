"""Which column of a table has which role: given by name or number, or found by usual names or by its values."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NoReturn

from ..reading import FaultCollector, MalformedData, raise_fault
from .column_profiles import SAMPLE, ColumnProfile, profile_values, words_of_name
from .label_types import LabelType, infer_label_type
from .table import ColumnSpec, Row, Table, as_text, find_split_column


def profile_column(table: Table, name: str) -> ColumnProfile:
    """The profile of a column over its first rows."""
    number = table.names.index(name)
    values = [as_text(row.cells[number]) for row in table.rows[:SAMPLE]]
    return profile_values(name, [value for value in values if value])


def column_label_type(table: Table, name: str, target: LabelType | Literal["auto"]) -> LabelType:
    """What the labels of a column are: as `target` says, or if it is "auto" by the labels."""
    if target != "auto":
        return target
    values = [table.value(row, name) for row in table.rows]
    if any(isinstance(value, list) for value in values):
        return "labels"
    return infer_label_type([as_text(value) or "" for value in values])


def label_text(table: Table, row: Row, name: str, empty: bool) -> str:
    """The label of a row; a list of labels as JSON text. An empty cell is a fault unless `empty` is allowed."""
    value = table.value(row, name)
    if isinstance(value, list) and (value or empty):
        return json.dumps(value, ensure_ascii=False)
    if empty and (value is None or value == ""):
        return ""
    return table.cell(row, name, "label")


FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


def with_label_sets(table: Table, label: ColumnSpec) -> Table:
    """The table with a column of label sets where several columns of 0 and 1 are given, `label="toxic,obscene"`: the
    labels of a row are the names of the columns that have 1."""
    given = str(label.given)
    if label.given is None or "," not in given or given in table.names:
        return table
    names = [given_column(table, replace(label, given=name.strip())) for name in given.split(",") if name.strip()]
    rows, faults = [], []
    for row in table.rows:
        try:
            rows.append(Row(row.line, [*row.cells, [name for name in names if read_flag(table, row, name)]]))
        except MalformedData as fault:
            faults.extend(fault.faults)
    return replace(table, names=(*table.names, given), rows=rows, faults=[*table.faults, *faults])


def read_flag(table: Table, row: Row, name: str) -> bool:
    """Whether a cell says that the row has the label of its column."""
    text = as_text(table.value(row, name))
    if text is None or text.casefold() not in FLAGS:
        table.raise_fault(row, name, f"the label (column {name!r}) is {text!r:.40}; wanted 0 or 1 in each column.")
    return FLAGS[text.casefold()]


def note_empty_labels(table: Table, name: str, builder: FaultCollector) -> None:
    """A note of the rows of a column of label sets that are empty: these examples have none of the labels."""
    empty = sum(table.value(row, name) in (None, "", []) for row in table.rows)
    if empty:
        builder.note(f"{table.path.name}: {empty:,} rows have no label in {name!r}: none of the labels")


def find_columns(table: Table, wanted: Sequence[ColumnSpec], builder: FaultCollector) -> dict[str, str]:
    """The column of each role: the given one, or found by its usual names, or by its values. A note reports guesses.

    Roles without a column by name get the columns that are left over: by their values where the roles say what these
    are (`ColumnSpec.content`), otherwise in order, if there are as many.
    """
    columns = {spec.role: given_column(table, spec) for spec in wanted if spec.given is not None}
    for spec in wanted:
        free = [name for name in table.names if name not in columns.values()]
        match = next((name for usual in spec.names for name in free if name.casefold() == usual), None)
        if spec.role not in columns and match is not None:
            columns[spec.role] = match
    split_column = find_split_column(table)
    free = [name for name in table.names if name not in columns.values() and name != split_column]
    missing = [spec for spec in wanted if spec.role not in columns]
    if missing and all(spec.content for spec in missing):
        in_order = sum(spec.content == "text" for spec in wanted) > 1
        columns |= choose_by_values(table, missing, free, in_order)
    else:
        if len(free) < len(missing) or (len(free) > len(missing) > 0):
            raise_ambiguous_column(table, missing[0])
        columns.update(zip((spec.role for spec in missing), free, strict=False))
    if table.header:
        builder.columns |= {role: name for role, name in columns.items() if role not in builder.columns}
    if guesses := {spec.role: columns[spec.role] for spec in wanted if spec.given is None}:
        order = sorted(guesses, key=lambda role: table.names.index(guesses[role]))
        text = ", ".join(f"{role} = column {guesses[role]!r}" for role in order)
        builder.note(f"{table.path.name}: {text}{'' if table.header else ' (there is no header)'}")
    return columns


def choose_by_values(
    table: Table, missing: Sequence[ColumnSpec], free: Sequence[str], in_order: bool
) -> dict[str, str]:
    """A column for each missing role: labels where values repeat, texts otherwise; raises where several would do.

    If `in_order`, the first of several columns of texts is taken.
    """
    profiles = [profile_column(table, name) for name in free]
    useful = [profile for profile in profiles if not profile.is_id] or profiles
    columns: dict[str, str] = {}
    for spec in sorted(missing, key=lambda spec: spec.content == "text"):
        left = [profile for profile in useful if profile.name not in columns.values()]
        chosen = choose_column(left, spec, len(missing) - len(columns), in_order)
        if chosen is None:
            raise_ambiguous_column(table, spec if any(profile.is_text for profile in left) else missing[0])
        columns[spec.role] = chosen.name
    return columns


def choose_column(
    profiles: Sequence[ColumnProfile], spec: ColumnSpec, wanted: int, in_order: bool
) -> ColumnProfile | None:
    """The column with the content of a role, None if none or several would do. `wanted` roles are still without one.

    Of several that would do, one whose name has a usual name as a word is taken.
    """
    if len(profiles) < wanted:
        return None
    if spec.content == "label":
        labels = [profile for profile in profiles if profile.is_label]
        labels = [profile for profile in labels if profile.distinct > 1 and profile.codes < 0.5] or labels
        if len(profiles) == wanted == 2:  # the label is a number beside words, or has fewer or shorter values
            return min(profiles, key=lambda profile: (profile.numeric < 0.5, profile.distinct, profile.length))
        return only(labels, spec) or (profiles[0] if len(profiles) == 1 else None)
    texts = [profile for profile in profiles if profile.is_text]
    texts = texts if len(texts) >= wanted else list(profiles)
    return texts[0] if in_order else only(texts, spec) or longest_by_far(texts)


def only(profiles: Sequence[ColumnProfile], spec: ColumnSpec) -> ColumnProfile | None:
    """The only column, or the only one whose name has a usual name of the role as a word."""
    if len(profiles) == 1:
        return profiles[0]
    named = [profile for profile in profiles if words_of_name(profile.name) & set(spec.names)]
    return named[0] if len(named) == 1 else None


def longest_by_far(profiles: Sequence[ColumnProfile]) -> ColumnProfile | None:
    """The column whose values are at least three times as long as any other's."""
    if len(profiles) < 2:
        return None
    first, second = sorted(profiles, key=lambda profile: -profile.length)[:2]
    return first if first.length >= 3 * second.length else None


def raise_ambiguous_column(table: Table, spec: ColumnSpec) -> NoReturn:
    """Raise `MalformedData` for a role that several columns, or none, could have."""
    names = ", ".join(map(repr, table.names[:30])) + ", …" * (len(table.names) > 30)
    line, text = table.layout.first_line
    first = "" if table.header or line is None else f" (line {line} is {text!r:.80})"
    setting = spec.setting or spec.role
    flags = [name for name in table.names if spec.content == "label" and holds_flags(table, name)]
    several = f" Labels in columns of 0 and 1 are given together: {setting}={','.join(flags)}." * (len(flags) > 1)
    message = f"which column is the {spec.role}? There are {names}{first}. Say it with {setting}=, by name or number."
    message += several
    raise_fault(table.path, message, line)


def holds_flags(table: Table, name: str) -> bool:
    values = {as_text(table.value(row, name)) for row in table.rows[:SAMPLE]}
    return values == {"0", "1"}


def given_column(table: Table, spec: ColumnSpec) -> str:
    """The name of the column that is given by name or number."""
    given = str(spec.given)
    if given in table.names:
        return given
    if given.isdecimal() and len(given) < 9 and 1 <= int(given) <= len(table.names):
        return table.names[int(given) - 1]
    near = difflib.get_close_matches(given, table.names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(map(repr, table.names))}."
    raise_fault(table.path, f"has no column {given!r} for the {spec.role}. {hint}", 1)
