"""Tables: CSV, TSV and JSON lines. Columns are given by name or number, or guessed; a note reports each guess."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from ..files import file_format, read_file_lines
from ..reading import Fault, MalformedData, raise_fault
from .column_profiles import looks_like_header

TABLES = ("csv", "tsv", "tab", "jsonl", "ndjson")

HALF = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""Half of a surrogate pair of JSON escapes, without the other half."""

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


class Row(NamedTuple):
    """The cells of a row, and the line on which it begins."""

    line: int
    cells: list[Any]


@dataclass(frozen=True)
class Table:
    """Rows with named columns. Without a header the names are '1', '2', …; the delimiter of JSON lines is '{'."""

    path: Path
    lines: list[str]
    names: tuple[str, ...]
    delimiter: str
    header: bool
    rows: list[Row]
    faults: list[Fault] = field(default_factory=list)

    def value(self, row: Row, name: str) -> Any:
        """The value of a cell: text, or any JSON value in JSON lines; None if there is none."""
        return row.cells[self.names.index(name)]

    def column(self, row: Row, name: str) -> int | None:
        """The character, from 1, at which a cell begins in the first line of its row; None if it is on a later line."""
        text = self.lines[row.line - 1]
        if self.delimiter == "{":
            return max(text.find(f'"{name}"'), 0) + 1
        starts = list(cell_starts(text, self.delimiter))
        number = self.names.index(name)
        return starts[number] if number < len(starts) else None

    def raise_fault(self, row: Row, name: str, message: str) -> NoReturn:
        """Raise `MalformedData` for a cell."""
        raise_fault(self.path, message, row.line, self.column(row, name))

    def cell(self, row: Row, name: str, role: str) -> str:
        """A cell as text, stripped; `MalformedData` if it is empty. `role` is for the error message."""
        value = self.value(row, name)
        if value is None and self.delimiter == "{":
            raise_fault(self.path, f"has no {name!r}; wanted the {role} there.", row.line, 1)
        text = as_text(value)
        if text is None:
            self.raise_fault(row, name, f"the {role} is {value!r:.60}; wanted text or a number.")
        if not text:
            self.raise_fault(row, name, f"the {role} (column {name!r}) is empty.")
        return text

    def number(self, row: Row, name: str, role: str) -> float:
        """A cell as a finite number; `MalformedData` if it is none."""
        text = self.cell(row, name, role)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.raise_fault(row, name, f"the {role} (column {name!r}) is {text!r:.40}; wanted a number.")
        return value


def as_text(value: Any) -> str | None:
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
        return str(int(value)) if value.is_integer() else str(value)
    return "" if value is None else None


def cell_starts(text: str, delimiter: str) -> Iterator[int]:
    """The characters, from 1, at which the cells of a line begin."""
    yield 1
    quoted = False
    for n, letter in enumerate(text):
        if letter == '"' and delimiter != "\t":
            quoted = not quoted
        elif letter == delimiter and not quoted:
            yield n + 2


def read_table(path: Path, wanted: Sequence[ColumnSpec], header: bool | None = None, min_matches: int = 1) -> Table:
    """The table in a file.

    By default the first line is a header if a column is given by name, if at least `min_matches` of its cells are
    usual names of the columns wanted, or if the values below it differ from it (`looks_like_header`).
    """
    lines = read_file_lines(path)
    if file_format(path) in ("jsonl", "ndjson") or (
        file_format(path) not in TABLES and lines[0].lstrip().startswith("{")
    ):
        table = json_table(path, lines)
    else:
        table = delimited_table(path, lines, wanted, header, min_matches)
    if not table.names:
        raise MalformedData(*table.faults)
    if not table.rows and not table.faults:
        raise_fault(path, f"has a header ({', '.join(table.names)}) and no rows.", 1)
    return table


def json_table(path: Path, lines: list[str]) -> Table:
    """The table of a file with one JSON object per line."""
    objects, faults, names = [], [], {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            objects.append((number, json_object(path, number, line)))
            names.update(dict.fromkeys(objects[-1][1]))
        except MalformedData as refused:
            faults.extend(refused.faults)
    rows = [Row(number, [value.get(name) for name in names]) for number, value in objects]
    return Table(path, lines, tuple(names), "{", True, rows, faults)


def json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    """The JSON object of a line; `MalformedData` if it is none."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise_fault(path, f"is no JSON: {error.msg}. Wanted one object a line.", number, error.colno)
    except (ValueError, RecursionError) as error:
        raise_fault(path, f"is JSON that cannot be read ({error}). Shorten the number, or nest less.", number, 1)
    if not isinstance(value, dict):
        raise_fault(path, f"is {line.strip():.40}; wanted a JSON object, such as {{…}}, on each line.", number, 1)
    if (half := HALF.search(line)) and not encodable(value):
        message = f"has half a character, {half[0]}; wanted both halves of its pair. Was the text cut there?"
        raise_fault(path, message, number, half.start() + 1)
    return value


def encodable(value: Any) -> bool:
    """Whether all texts in a JSON value can be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def delimited_table(
    path: Path, lines: list[str], wanted: Sequence[ColumnSpec], header: bool | None, min_matches: int
) -> Table:
    """The table of a CSV file, whose cells may be quoted, or of a TSV file, whose cells never are.

    The delimiter is a tab by the extension, or if the first line has one; otherwise the most frequent of comma,
    semicolon and tab in the first line.
    """
    first, extension, faults = next(line for line in lines if line.strip()), file_format(path), []
    tabs = extension in ("tsv", "tab") or (extension != "csv" and "\t" in first)
    delimiter = "\t" if tabs else max(",;\t", key=first.count)
    if delimiter == "\t":
        records = [(number, line.split("\t")) for number, line in enumerate(lines, 1) if line.strip()]
    else:
        records = list(quoted_records(path, lines, delimiter, faults))
    if not records:
        return Table(path, lines, (), delimiter, False, [], faults)
    cells = [cell.strip() for cell in records[0][1]]
    if header is None:
        header = has_header(cells, wanted, min_matches) or looks_like_header(cells, [row for _, row in records[1:]])
    names = header_names(path, records[0][0], cells) if header else tuple(str(n + 1) for n in range(len(cells)))
    rows = []
    for line, cells in records[1:] if header else records:
        if len(cells) == len(names):
            rows.append(Row(line, cells))
        else:
            faults.append(uneven_row_fault(path, line, cells, names, delimiter))
    return Table(path, lines, names, delimiter, header, rows, faults)


def uneven_row_fault(path: Path, line: int, cells: list[str], names: tuple[str, ...], delimiter: str) -> Fault:
    advice = (
        "" if len(cells) < len(names) or delimiter == "\t" else f' Put text that has "{delimiter}" in it in quotes.'
    )
    count = f"has {len(cells)} columns" if len(cells) != 1 else "has 1 column"
    return Fault(str(path), line, None, f"{count}; wanted {len(names)} ({', '.join(names)}).{advice}")


def quoted_records(
    path: Path, lines: list[str], delimiter: str, faults: list[Fault]
) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each record, which may span several lines."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=True)
        while True:
            begins = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                faults.append(quoting_fault(path, lines, begins, reader.line_num, str(error), delimiter))
                continue
            if cells and any(cell.strip() for cell in cells):
                yield begins, cells
    finally:
        csv.field_size_limit(limit)


def quoting_fault(path: Path, lines: list[str], line: int, last: int, error: str, delimiter: str) -> Fault:
    column, lost = lines[line - 1].find('"') + 1, f" Lines {line:,} to {last:,} were left out." * (last > line)
    if "end of data" in error:
        message = f'a quote " is opened here and never closed; the rest of the file is inside it.{lost}'
        return Fault(str(path), line, column, message)
    advice = f'Write a quote inside a quoted cell twice, "", and nothing between the closing one and "{delimiter}".'
    return Fault(str(path), line, column, f"is badly quoted ({error}). {advice}{lost}")


def has_header(cells: list[str], wanted: Sequence[ColumnSpec], min_matches: int) -> bool:
    """Whether the first line is a header (see `read_table`)."""
    if any(isinstance(spec.given, str) and not spec.given.isdecimal() for spec in wanted):
        return True
    names = {name for spec in wanted for name in spec.names}
    return sum(cell.casefold() in names for cell in cells) >= min_matches


def header_names(path: Path, line: int, cells: list[str]) -> tuple[str, ...]:
    """The names of the header; a column without a name has its number."""
    names = tuple(cell or str(n) for n, cell in enumerate(cells, 1))
    twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if twice is not None:
        raise_fault(path, f"the header names the column {twice!r} twice. Rename one of them.", line)
    return names


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
