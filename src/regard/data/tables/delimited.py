"""Tables with a delimiter: CSV with any of its delimiters and ways of quoting, TSV, and fastText's labelled lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...limits import CELL_LETTERS, TABLE_COLUMNS
from ..files import file_format
from ..reading import Fault, add_note, raise_fault
from .column_profiles import looks_like_header
from .table import ColumnSpec, Row, Table

DELIMITERS = {"csv": ",;\t|", "tsv": "\t", "tab": "\t", "psv": "|"}
"""The delimiters of a file by its extension, the usual one first."""
SAMPLE = 200
"""Lines by which a delimiter is chosen."""
LABEL_PREFIX = "__label__"

Record = tuple[int, list[str]]
"""The line on which a record begins, and its cells."""


@dataclass(frozen=True)
class Dialect:
    """How cells are separated and quoted; `quote` is '' where quotes belong to the text."""

    delimiter: str
    quote: str = '"'
    escape: str | None = None


@dataclass(frozen=True)
class TextLines:
    """Cells in lines of text. `dialect` is None where a row is a JSON object."""

    lines: list[str]
    dialect: Dialect | None

    @property
    def first_line(self) -> tuple[int | None, str]:
        number = next(n for n, text in enumerate(self.lines, 1) if text.strip())
        return number, self.lines[number - 1]

    def position(self, row: Row, number: int, name: str) -> tuple[int | None, int | None, str]:
        text = self.lines[row.line - 1]
        if self.dialect is None:
            return row.line, max(text.find(f'"{name}"'), 0) + 1, ""
        starts = list(cell_starts(text, self.dialect))
        return row.line, starts[number] if number < len(starts) else None, ""


def cell_starts(text: str, dialect: Dialect) -> Iterator[int]:
    """The characters, from 1, at which the cells of a line begin."""
    yield 1
    quoted = False
    for n, letter in enumerate(text):
        if letter == dialect.quote and not (dialect.escape and text[n - 1 : n] == dialect.escape):
            quoted = not quoted
        elif letter == dialect.delimiter and not quoted:
            yield n + 2


def delimited_table(
    path: Path, lines: list[str], wanted: Sequence[ColumnSpec], header: bool | None, min_matches: int
) -> Table:
    """The table of a CSV or TSV file. Delimiter and quoting are those that give rows of equal length."""
    longest = max(range(len(lines)), key=lambda n: len(lines[n]))
    if message := CELL_LETTERS.excess(len(lines[longest])):  # of cells over several lines in `quoted_records`
        raise_fault(path, message, longest + 1)
    dialect, records, faults = read_records(path, lines)
    layout = TextLines(lines, dialect)
    return table_of_records(path, records, wanted, header, min_matches, layout, faults)


def table_of_records(
    path: Path,
    records: list[Record],
    wanted: Sequence[ColumnSpec],
    header: bool | None,
    min_matches: int,
    layout: TextLines,
    faults: list[Fault],
) -> Table:
    """The table of the records, of which the first may be a header; records of another length are faults."""
    if not records:
        return Table(path, (), False, [], layout, faults)
    cells = [cell.strip() for cell in records[0][1]]
    if message := TABLE_COLUMNS.excess(len(cells)):
        raise_fault(path, message, records[0][0])
    if header is None:
        header = has_header(cells, wanted, min_matches) or looks_like_header(cells, [row for _, row in records[1:]])
    names = header_names(path, records[0][0], cells) if header else number_columns(len(cells))
    rows = []
    for line, cells in records[1:] if header else records:
        if len(cells) == len(names):
            rows.append(Row(line, cells))
        else:
            faults.append(uneven_row_fault(path, line, cells, names, layout.dialect))
    return Table(path, names, header, rows, layout, faults)


def number_columns(count: int) -> tuple[str, ...]:
    """Names of columns without a header: '1', '2', …"""
    return tuple(str(n + 1) for n in range(count))


def uneven_row_fault(path: Path, line: int, cells: list[str], names: tuple[str, ...], dialect: Dialect | None) -> Fault:
    quotable = dialect is not None and dialect.delimiter != "\t" and len(cells) > len(names)
    advice = f' Put text that has "{dialect.delimiter}" in it in quotes.' if quotable and dialect else ""
    count = f"has {len(cells)} columns" if len(cells) != 1 else "has 1 column"
    listed = ", ".join(names[:20]) + ", …" * (len(names) > 20)
    return Fault(str(path), line, None, f"{count}; wanted {len(names)} ({listed}).{advice}")


def read_records(path: Path, lines: list[str]) -> tuple[Dialect, list[Record], list[Fault]]:
    """The records of a file in the dialect with the fewest faults; the usual dialect wins ties."""
    delimiter = choose_delimiter(path, lines)
    if delimiter == "\t":
        plain = [(number, line.split("\t")) for number, line in enumerate(lines, 1) if line.strip()]
        choices = [(Dialect("\t", quote=""), plain, list[Fault]())]
        others = [Dialect("\t")] if any('"' in line for line in lines) else []
    else:
        choices = [parse_dialect(path, lines, Dialect(delimiter))]
        others = [Dialect(delimiter, escape="\\")] if any('\\"' in line for line in lines) else []
        others += [Dialect(delimiter, quote="'")] if any(line.lstrip().startswith("'") for line in lines) else []
    every_quoted = delimiter == "\t" and all_quoted(choices[0][1])
    if others and (every_quoted or count_bad_records(*choices[0]) > 0):
        choices += [parse_dialect(path, lines, dialect) for dialect in others]
    best = min(range(len(choices)), key=lambda n: (count_bad_records(*choices[n]), -n if every_quoted else n))
    if best > 0:
        dialect = choices[best][0]
        escape = ", a quote inside a cell is written \\" + dialect.quote if dialect.escape else ""
        add_note(f"{path.name}: cells are quoted with {dialect.quote}{escape}")
    return choices[best]


def all_quoted(records: list[Record]) -> bool:
    """Whether every cell stands in quotes, such as those of a TSV that a spreadsheet wrote."""
    cells = [cell.strip() for _, record in records for cell in record]
    return all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells)


def count_bad_records(dialect: Dialect, records: list[Record], faults: list[Fault]) -> int:
    """Faults, and records of another length than the first one's."""
    return len(faults) + sum(len(cells) != len(records[0][1]) for _, cells in records)


def choose_delimiter(path: Path, lines: list[str]) -> str:
    """By the extension, a tab if the first line has one and the file is no CSV, or the delimiter that divides most
    lines into as many cells as the first one; the more frequent one in the first line wins ties."""
    first, extension = next(line for line in lines if line.strip()), file_format(path)
    candidates = DELIMITERS.get(extension, ",;\t|")
    if len(candidates) == 1:
        return candidates
    if extension != "csv" and "\t" in first:
        return "\t"
    sample = [line for line in lines[:SAMPLE] if line.strip()]

    def agreement(delimiter: str) -> tuple[float, int]:
        counts = [len(list(cell_starts(line, Dialect(delimiter)))) for line in sample]
        return sum(count == counts[0] for count in counts) / len(counts), first.count(delimiter)

    present = [delimiter for delimiter in candidates if delimiter in first]
    return max(present, key=agreement) if present else candidates[0]


def parse_dialect(path: Path, lines: list[str], dialect: Dialect) -> tuple[Dialect, list[Record], list[Fault]]:
    """The records in a dialect, and the faults of its quoting."""
    faults: list[Fault] = []
    return dialect, list(quoted_records(path, lines, dialect, faults)), faults


def quoted_records(path: Path, lines: list[str], dialect: Dialect, faults: list[Fault]) -> Iterator[Record]:
    """(line, cells) of each record, which may span several lines."""
    limit = csv.field_size_limit(CELL_LETTERS.value)
    try:
        reader = csv.reader(
            (line + "\n" for line in lines),
            delimiter=dialect.delimiter,
            quotechar=dialect.quote,
            escapechar=dialect.escape,
            doublequote=dialect.escape is None,
            strict=True,
        )
        while True:
            begins = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if message := CELL_LETTERS.excess(sum(len(line) + 1 for line in lines[begins - 1 : reader.line_num])):
                    raise_fault(path, message, begins)
                faults.append(quoting_fault(path, lines, begins, reader.line_num, str(error), dialect.delimiter))
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


def header_names(path: Path, line: int, cells: list[str], place: str = "") -> tuple[str, ...]:
    """The names of the header; a column without a name has its number."""
    names = tuple(cell or str(n) for n, cell in enumerate(cells, 1))
    if len(set(names)) < len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))
        raise_fault(path, f"the header names the column {twice!r:.80} twice. Rename one of them.", line, place=place)
    return names


def labelled_lines(path: Path, lines: list[str]) -> Table:
    """The table of fastText's lines: one or several words `__label__x` and a text. Several labels are a list."""
    rows, faults = [], []
    for number, line in enumerate(lines, 1):
        words = line.split()
        labels = [word.removeprefix(LABEL_PREFIX) for word in words if word.startswith(LABEL_PREFIX)]
        text = " ".join(word for word in words if not word.startswith(LABEL_PREFIX))
        if labels and all(labels) and text:
            rows.append(Row(number, [labels[0] if len(labels) == 1 else labels, text]))
        elif words:
            missing = "text" if labels and all(labels) else f"label, such as {LABEL_PREFIX}good"
            faults.append(Fault(str(path), number, 1, f"is {line.strip()!r:.60}; it has no {missing}."))
    add_note(f"{path.name}: read as fastText's lines, whose words {LABEL_PREFIX}… are the labels")
    return Table(path, ("label", "text"), True, rows, TextLines(lines, Dialect("\t", quote="")), faults)
