"""Which column of a table has which role: given by name or number, or found by usual names or by its values."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from ..reading import ReadingBuilder, raise_fault
from .column_profiles import SAMPLE, ColumnProfile, profile_values
from .table import ColumnSpec, Table, as_text, find_split_column


def profile_column(table: Table, name: str) -> ColumnProfile:
    """The profile of a column over its first rows."""
    number = table.names.index(name)
    values = [as_text(row.cells[number]) for row in table.rows[:SAMPLE]]
    return profile_values(name, [value for value in values if value])


def find_columns(table: Table, wanted: Sequence[ColumnSpec], builder: ReadingBuilder[Any]) -> dict[str, str]:
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
        columns |= choose_by_values(table, missing, free, all(spec.content == "text" for spec in wanted))
    else:
        if len(free) < len(missing) or (len(free) > len(missing) > 0):
            raise_ambiguous_column(table, missing[0])
        columns.update(zip((spec.role for spec in missing), free, strict=False))
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
        chosen = choose_column(left, spec.content, len(missing) - len(columns), in_order)
        if chosen is None:
            raise_ambiguous_column(table, spec if any(profile.is_text for profile in left) else missing[0])
        columns[spec.role] = chosen.name
    return columns


def choose_column(
    profiles: Sequence[ColumnProfile], content: Literal["", "text", "label"], wanted: int, in_order: bool
) -> ColumnProfile | None:
    """The column with this content, None if none or several would do. `wanted` roles are still without a column."""
    if len(profiles) < wanted:
        return None
    if content == "label":
        labels = [profile for profile in profiles if profile.is_label]
        if len(profiles) == wanted == 2:  # the label has fewer different values, or shorter ones
            return min(profiles, key=lambda profile: (profile.distinct, profile.length))
        return labels[0] if len(labels) == 1 else profiles[0] if len(profiles) == 1 else None
    texts = [profile for profile in profiles if profile.is_text]
    texts = texts if len(texts) >= wanted else list(profiles)
    return texts[0] if len(texts) == 1 or in_order else longest_by_far(texts)


def longest_by_far(profiles: Sequence[ColumnProfile]) -> ColumnProfile | None:
    """The column whose values are at least three times as long as any other's."""
    first, second = sorted(profiles, key=lambda profile: -profile.length)[:2]
    return first if first.length >= 3 * second.length else None


def raise_ambiguous_column(table: Table, spec: ColumnSpec) -> NoReturn:
    """Raise `MalformedData` for a role that several columns, or none, could have."""
    names = ", ".join(map(repr, table.names))
    line = next(n for n, text in enumerate(table.lines, 1) if text.strip())
    first = "" if table.header else f" (line {line} is {table.lines[line - 1]!r:.80})"
    setting = spec.setting or spec.role
    message = f"which column is the {spec.role}? There are {names}{first}. Say it with {setting}=, by name or number."
    raise_fault(table.path, message, line)


def given_column(table: Table, spec: ColumnSpec) -> str:
    """The name of the column that is given by name or number."""
    given = str(spec.given)
    if given in table.names:
        return given
    if given.isdecimal() and 1 <= int(given) <= len(table.names):
        return table.names[int(given) - 1]
    near = difflib.get_close_matches(given, table.names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(map(repr, table.names))}."
    raise_fault(table.path, f"has no column {given!r} for the {spec.role}. {hint}", 1)
