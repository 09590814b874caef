"""Tables: CSV, TSV and JSON lines; rows with their lines, columns found by name, by number or by a stated guess."""

from __future__ import annotations

import csv
import difflib
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from .files import file_format, read_file_lines
from .reading import Fault, MalformedData, ReadingBuilder, raise_fault

TABLES = ("csv", "tsv", "tab", "jsonl", "ndjson")

HALF = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""Half of a pair of JSON escapes that only together are a character, such as an emoji's."""

PARTS = {
    "train": ("train", "training", "训练", "训练集"),
    "dev": ("dev", "development", "val", "valid", "validation", "验证", "验证集", "开发集"),
    "test": ("test", "testing", "测试", "测试集"),
}
PART_NAMES = ("split", "part", "partition", "subset", "is_test", "is_dev", "is_val", "is_train", "划分")


@dataclass(frozen=True)
class ColumnSpec:
    """A column that a task needs: what it is called, the name or number given for it, names to guess it by,
    and the setting that names it where that is called otherwise."""

    role: str
    given: str | int | None
    names: tuple[str, ...]
    setting: str = ""


class Row(NamedTuple):
    """A row's cells and the line it begins on."""

    line: int
    cells: list[Any]


@dataclass(frozen=True)
class Table:
    """Rows by column name; without a header the names are '1', '2', …"""

    path: Path
    lines: list[str]
    names: tuple[str, ...]
    delimiter: str
    header: bool
    rows: list[Row]
    faults: list[Fault] = field(default_factory=list)

    def value(self, row: Row, name: str) -> Any:
        """What a cell holds: text, or in JSON lines anything; None if there is none."""
        return row.cells[self.names.index(name)]

    def column(self, row: Row, name: str) -> int | None:
        """The column, in characters from 1, where a row's cell begins; None if it is on a later line."""
        text = self.lines[row.line - 1]
        if self.delimiter == "{":
            place = text.find(f'"{name}"')
            return place + 1 if place >= 0 else 1
        starts = list(cell_starts(text, self.delimiter))
        number = self.names.index(name)
        return starts[number] if number < len(starts) else None

    def raise_fault(self, row: Row, name: str, message: str) -> NoReturn:
        """Raise `MalformedData` for a cell."""
        raise_fault(self.path, message, row.line, self.column(row, name))

    def cell(self, row: Row, name: str, what: str) -> str:
        """A cell as text without blanks around it; `MalformedData` when there is nothing in it."""
        value = self.value(row, name)
        if value is None and self.delimiter == "{":
            raise_fault(self.path, f"has no {name!r}; wanted the {what} there.", row.line, 1)
        text = as_text(value)
        if text is None:
            self.raise_fault(row, name, f"the {what} is {value!r:.60}; wanted text or a number.")
        if not text:
            self.raise_fault(row, name, f"the {what} (column {name!r}) is empty.")
        return text

    def number(self, row: Row, name: str, what: str) -> float:
        """A cell as a finite number."""
        text = self.cell(row, name, what)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.raise_fault(row, name, f"the {what} (column {name!r}) is {text!r:.40}; wanted a number.")
        return value


def as_text(value: Any) -> str | None:
    """A cell's value as text: numbers as they are written, whole ones without a point; None for lists and the like.

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
    """The columns, from 1, where a line's cells begin."""
    yield 1
    quoted = False
    for n, letter in enumerate(text):
        if letter == '"' and delimiter != "\t":
            quoted = not quoted
        elif letter == delimiter and not quoted:
            yield n + 2


def read_table(path: Path, wanted: Sequence[ColumnSpec], header: bool | None = None, known: int = 1) -> Table:
    """The table in a file. `header` is guessed unless given: some column was asked for by name, or `known` cells of the
    first line are among the names that columns have."""
    lines = read_file_lines(path)
    if file_format(path) in ("jsonl", "ndjson") or (
        file_format(path) not in TABLES and lines[0].lstrip().startswith("{")
    ):
        table = json_table(path, lines)
    else:
        table = delimited_table(path, lines, wanted, header, known)
    if not table.names:
        raise MalformedData(*table.faults)
    if not table.rows and not table.faults:
        raise_fault(path, f"has a header ({', '.join(table.names)}) and no rows.", 1)
    return table


def json_table(path: Path, lines: list[str]) -> Table:
    """One JSON object a line."""
    objects, faults, names = [], [], {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            objects.append((number, json_object(path, number, line)))
            names.update(dict.fromkeys(objects[-1][1]))
        except MalformedData as refused:
            faults.extend(refused.faults)
    rows = [Row(number, [found.get(name) for name in names]) for number, found in objects]
    return Table(path, lines, tuple(names), "{", True, rows, faults)


def json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    """The object on a line."""
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
    path: Path, lines: list[str], wanted: Sequence[ColumnSpec], header: bool | None, known: int
) -> Table:
    """CSV, whose cells may be quoted, or TSV, whose cells never are."""
    delimiter, faults = detect_delimiter(path, lines), []
    records = list(tab_records(lines) if delimiter == "\t" else quoted_records(path, lines, delimiter, faults))
    if not records:
        return Table(path, lines, (), delimiter, False, [], faults)
    first = [cell.strip() for cell in records[0][1]]
    header = has_header(first, wanted, known) if header is None else header
    names = header_names(path, records[0][0], first) if header else tuple(str(n + 1) for n in range(len(first)))
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
    found = f"has {len(cells)} columns" if len(cells) != 1 else "has 1 column"
    return Fault(str(path), line, None, f"{found}; wanted {len(names)} ({', '.join(names)}).{advice}")


def detect_delimiter(path: Path, lines: list[str]) -> str:
    """Tab by the ending or where the first line has one; otherwise the commoner of comma and semicolon in it."""
    first = next(line for line in lines if line.strip())
    if file_format(path) in ("tsv", "tab") or (file_format(path) != "csv" and "\t" in first):
        return "\t"
    return max(",;\t", key=first.count)


def tab_records(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line.split("\t")


def quoted_records(
    path: Path, lines: list[str], delimiter: str, faults: list[Fault]
) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each record, which may reach over several lines."""
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


def has_header(cells: list[str], wanted: Sequence[ColumnSpec], known: int) -> bool:
    """Whether the first line names the columns."""
    if any(isinstance(one.given, str) and not one.given.isdecimal() for one in wanted):
        return True
    names = {name for one in wanted for name in one.names}
    return sum(cell.casefold() in names for cell in cells) >= known


def header_names(path: Path, line: int, cells: list[str]) -> tuple[str, ...]:
    """The header's names, a column's number where it has none."""
    names = tuple(cell or str(n) for n, cell in enumerate(cells, 1))
    twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if twice is not None:
        raise_fault(path, f"the header names the column {twice!r} twice. Rename one of them.", line)
    return names


def find_columns(table: Table, wanted: Sequence[ColumnSpec], notes: ReadingBuilder[Any]) -> dict[str, str]:
    """The column of each role: as given, by its name, or by what is left, the last two said in a note.

    With as many columns as roles, the roles that no name was found for take the columns left over in their order.
    """
    found = {one.role: given_column(table, one) for one in wanted if one.given is not None}
    for one in wanted:
        free = [name for name in table.names if name not in found.values()]
        match = next((name for known in one.names for name in free if name.casefold() == known), None)
        if one.role not in found and match is not None:
            found[one.role] = match
    part = find_split_column(table)
    free = [name for name in table.names if name not in found.values() and name != part]
    open_roles = [one for one in wanted if one.role not in found]
    if len(free) < len(open_roles) or (len(free) > len(open_roles) > 0):
        raise_ambiguous_column(table, open_roles[0])
    found.update(zip((one.role for one in open_roles), free, strict=False))
    if guessed := {one.role: found[one.role] for one in wanted if one.given is None}:
        order = sorted(guessed, key=lambda role: table.names.index(guessed[role]))
        columns = ", ".join(f"{role} = column {guessed[role]!r}" for role in order)
        notes.note(f"{table.path.name}: {columns}{'' if table.header else ' (there is no header)'}")
    return found


def raise_ambiguous_column(table: Table, one: ColumnSpec) -> NoReturn:
    there = ", ".join(map(repr, table.names))
    line = next(n for n, text in enumerate(table.lines, 1) if text.strip())
    first = "" if table.header else f" (line {line} is {table.lines[line - 1]!r:.80})"
    setting = one.setting or one.role
    message = f"which column is the {one.role}? There are {there}{first}. Say it with {setting}=, by name or number."
    raise_fault(table.path, message, line)


def given_column(table: Table, one: ColumnSpec) -> str:
    """The name of the column that was asked for by name or number."""
    given = str(one.given)
    if given in table.names:
        return given
    if given.isdecimal() and 1 <= int(given) <= len(table.names):
        return table.names[int(given) - 1]
    near = difflib.get_close_matches(given, table.names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(map(repr, table.names))}."
    raise_fault(table.path, f"has no column {given!r} for the {one.role}. {hint}", 1)


def find_split_column(table: Table) -> str | None:
    """The column that says to which part, train, dev or test, a row belongs."""
    return next((name for known in PART_NAMES for name in table.names if name.casefold() == known), None)


def split_in_row(table: Table, row: Row, column: str | None) -> str:
    """'train', 'dev' or 'test'; '' where the table does not say."""
    if column is None:
        return ""
    value = table.cell(row, column, "part")
    part = parse_split_name(column, value)
    if part is None:
        table.raise_fault(row, column, f"the part is {value!r}; wanted train, dev or test.")
    return part


def parse_split_name(column: str, value: str) -> str | None:
    """The part that a value means in a column of that name; None if none.

    >>> parse_split_name("split", "Validation"), parse_split_name("is_test", "1"), parse_split_name("is_test", "False")
    ('dev', 'test', 'train')
    """
    value, asked = value.casefold(), column.casefold().removeprefix("is_")
    if column.casefold().startswith("is_"):
        if value not in ("0", "1", "true", "false", "yes", "no"):
            return None
        yes = value in ("1", "true", "yes")
        value = asked if yes else ("test" if asked == "train" else "train")
    return next((part for part, names in PARTS.items() if value in names), None)
