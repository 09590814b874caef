"""Rows of numbers and categories with a target: what a model of tables is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..files import Paths, resolve_paths
from ..reading import Reading, ReadingBuilder
from .columns import column_label_type, given_column
from .label_types import LabelType
from .read import read_table
from .table import ColumnSpec, Table, as_text, find_split_column, split_in_row

TARGET_NAMES = ("target", "label", "class", "y", "outcome", "diagnosis", "survived", "churn", "price", "目标", "标签")
MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-", "--", "#n/a", "缺失")
"""Texts that stand for a missing value, in lower case."""


@dataclass(frozen=True, eq=False)
class FeatureRow:
    """A row of a table: the values of its columns as text, None where they are missing, and its label."""

    values: Mapping[str, str | None]
    label: str
    split: str = ""


def plain_cell(value: object) -> str | None:
    """A cell as text, None where it is missing.

    >>> [plain_cell(value) for value in (" 3.50 ", 2.0, "N/A", None, "red")]
    ['3.50', '2', None, None, 'red']
    """
    text = as_text(value)
    return None if text is None or text.casefold() in MISSING else text


def read_feature_rows(
    paths: Paths, *, label: str | int | None = None, target: LabelType | Literal["auto"] = "auto"
) -> Reading[FeatureRow]:
    """The rows of tables. The label is the given column, one with a usual name, or the last column."""
    builder = ReadingBuilder[FeatureRow]()
    for path in resolve_paths(paths):
        with builder.reading(path):
            spec = ColumnSpec("label", label, TARGET_NAMES)
            table = read_table(path, [spec])
            builder.faults.extend(table.faults)
            name = find_label(table, spec, builder)
            split, numbers = find_split_column(table), column_label_type(table, name, target) == "number"
            features = [n for n, column in enumerate(table.names) if column not in (name, split)]
            for row in table.rows:
                with builder.catching(row):
                    text = table.cell(row, name, "label")
                    if numbers:
                        table.number(row, name, "label")
                    values = {table.names[n]: plain_cell(row.cells[n]) for n in features}
                    builder.examples.append(FeatureRow(values, text, split_in_row(table, row, split)))
    return builder.build()


def find_label(table: Table, spec: ColumnSpec, builder: ReadingBuilder[FeatureRow]) -> str:
    """The column of the label; a note reports a guess."""
    if spec.given is not None:
        return given_column(table, spec)
    named = next((name for usual in spec.names for name in table.names if name.casefold() == usual), None)
    split = find_split_column(table)
    name = named or next(name for name in reversed(table.names) if name != split)
    reason = "" if named else ", the last one"
    builder.note(f"{table.path.name}: label = column {name!r}{reason}; label= names another")
    return name
