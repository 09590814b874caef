"""Tables: rows with named columns, and the place of each cell in its file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, Protocol, TypeAlias

from ...limits import DIGITS
from ..reading import Fault, raise_fault

SPLITS = {
    "train": ("train", "training", "训练", "训练集"),
    "dev": ("dev", "development", "val", "valid", "validation", "验证", "验证集", "开发集"),
    "test": ("test", "testing", "测试", "测试集"),
}
SPLIT_COLUMNS = ("split", "part", "partition", "subset", "is_test", "is_dev", "is_val", "is_train", "划分")


@dataclass(frozen=True)
class ColumnSpec:
    """A column that a task needs: its role, the name or number that was given for it, the names that it usually has,
    and the setting that names it, if that differs from the role. With `content` it is also found by its values."""

    role: str
    given: str | int | None
    names: tuple[str, ...]
    setting: str = ""
    content: Literal["", "text", "label"] = ""


Cell: TypeAlias = "bool | int | float | str | bytes | Sequence[Cell] | Mapping[str, Cell] | None"
"""The value of a cell: text, or what a format with types has."""


class Row(NamedTuple):
    """The cells of a row, and the line on which it begins."""

    line: int
    cells: Sequence[Cell]


class FileLayout(Protocol):
    """Where the cells of a table stand in its file."""

    @property
    def first_line(self) -> tuple[int | None, str]:
        """The number and the text of the first line, for messages; (None, '') in files without lines."""
        ...

    def position(self, row: Row, number: int, name: str) -> tuple[int | None, int | None, str]:
        """The line, the column and the place in words of a cell (see `Fault`)."""
        ...


class RowNumbers:
    """Cells by the number of their row, counted from 1."""

    first_line = None, ""

    def position(self, row: Row, number: int, name: str) -> tuple[int | None, int | None, str]:
        return row.line, None, f"row {row.line}, column {name!r}"


@dataclass(frozen=True)
class Table:
    """Rows with named columns. Without a header the names are '1', '2', …"""

    path: Path
    names: tuple[str, ...]
    header: bool
    rows: list[Row]
    layout: FileLayout
    faults: list[Fault] = field(default_factory=list)

    def value(self, row: Row, name: str) -> Cell:
        """The value of a cell: text, or any JSON value in formats that have types; None if there is none."""
        return row.cells[self.names.index(name)]

    def column(self, row: Row, name: str) -> int | None:
        """The character or column, from 1, at which a cell begins; None if it is on a later line than its row."""
        return self.layout.position(row, self.names.index(name), name)[1]

    def raise_fault(self, row: Row, name: str, message: str) -> NoReturn:
        """Raise `MalformedData` for a cell."""
        line, column, place = self.layout.position(row, self.names.index(name), name)
        raise_fault(self.path, message, line, column, place)

    def with_column(self, name: str, value: str) -> Table:
        """The table with another column that has the same value in all rows."""
        rows = [Row(row.line, [*row.cells, value]) for row in self.rows]
        return replace(self, names=(*self.names, name), rows=rows)

    def cell(self, row: Row, name: str, role: str) -> str:
        """A cell as text, stripped; `MalformedData` if it is empty. `role` is for the error message."""
        value = self.value(row, name)
        if value is None:
            self.raise_fault(row, name, f"has no {name!r}; wanted the {role} there.")
        text = as_text(value)
        if text is None:
            self.raise_fault(row, name, f"the {role} is {value!r:.60}; wanted text or a number.")
        if not text:
            self.raise_fault(row, name, f"the {role} (column {name!r}) is empty.")
        return text

    def number(self, row: Row, name: str, role: str) -> float:
        """A cell as a finite number; `MalformedData` if it is none."""
        text = self.cell(row, name, role)
        if message := DIGITS.excess(len(text)):
            self.raise_fault(row, name, f"the {role} (column {name!r}) is no number: {message}")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.raise_fault(row, name, f"the {role} (column {name!r}) is {text!r:.40}; wanted a number.")
        return value


def as_text(value: object) -> str | None:
    """The value of a cell as text; whole numbers have no decimal point. None for lists and objects.

    >>> as_text(" 好 "), as_text(3), as_text(1.0), as_text(True), as_text([1])
    ('好', '3', '1', 'true', None)
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else str(value)
    return "" if value is None else None


def plain_value(value: object) -> Cell:
    """A value of a typed file as JSON has it: dates as text, decimals as numbers, bytes as they are.

    >>> from datetime import date
    >>> plain_value(date(2024, 5, 1)), plain_value({"x": (1, None)})
    ('2024-05-01', {'x': [1, None]})
    """
    if value is None or isinstance(value, str | bool | int | float | bytes):
        return value
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, dict):
        return {str(name): plain_value(item) for name, item in value.items()}
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat() if isinstance(value, date | time) else str(value)


def find_split_column(table: Table) -> str | None:
    """The name of the column that assigns rows to splits; None if there is none."""
    return next((name for usual in SPLIT_COLUMNS for name in table.names if name.casefold() == usual), None)


def split_in_row(table: Table, row: Row, column: str | None) -> str:
    """The split of a row: 'train', 'dev' or 'test'; '' if there is no column of splits."""
    if column is None:
        return ""
    value = table.cell(row, column, "split")
    split = parse_split_name(column, value)
    if split is None:
        table.raise_fault(row, column, f"the split is {value!r}; wanted train, dev or test.")
    return split


def parse_split_name(column: str, value: str) -> str | None:
    """The split that a value of this column means; None if it means none.

    >>> parse_split_name("split", "Validation"), parse_split_name("is_test", "1"), parse_split_name("is_test", "False")
    ('dev', 'test', 'train')
    """
    value, flag = value.casefold(), column.casefold().removeprefix("is_")
    if column.casefold().startswith("is_"):
        if value not in ("0", "1", "true", "false", "yes", "no"):
            return None
        other = "test" if flag == "train" else "train"
        value = flag if value in ("1", "true", "yes") else other
    return next((split for split, names in SPLITS.items() if value in names), None)
