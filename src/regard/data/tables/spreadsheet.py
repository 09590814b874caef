"""Tables in Excel workbooks (.xlsx): one sheet, its cells as text, numbers and dates."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import Missing
from ...limits import TABLE_CELLS, expansion_excess
from ..files import split_sheet
from ..reading import Fault, add_note, is_foreign, raise_fault
from .column_profiles import looks_like_header
from .delimited import has_header, header_names, number_columns
from .table import Cell, ColumnSpec, Row, Table, as_text, plain_value

FREE_BYTES = 2**25
"""Bytes that a workbook may unpack to however small it is."""
CELL_BYTES, FREE_CELL_BYTES = 256, 2**24
"""What a cell counts for, as reading XML takes long, and how much cells may count for however small the workbook is."""


@dataclass(frozen=True)
class Sheet:
    """Cells of a sheet, named as Excel names them: sheet 'May', cell C5."""

    name: str

    @property
    def first_line(self) -> tuple[int | None, str]:
        return None, ""

    def position(self, row: Row, number: int, name: str) -> tuple[int | None, int | None, str]:
        return row.line, number + 1, f"sheet {self.name!r}, cell {column_letters(number + 1)}{row.line}"


def column_letters(number: int) -> str:
    """Excel's name of a column.

    >>> column_letters(3), column_letters(28)
    ('C', 'AB')
    """
    letters = ""
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def spreadsheet_table(path: Path, wanted: Sequence[ColumnSpec], header: bool | None, min_matches: int) -> Table:
    """The table of a sheet: the one that the path names after a `#`, or the first that has cells."""
    try:
        import openpyxl
    except ImportError:
        raise Missing('Reading Excel files needs openpyxl: pip install "regard[files]".') from None
    file, sheet = split_sheet(path)
    check_workbook(file)
    try:
        with file.open("rb") as stream:
            name, names, records = choose_sheet(path, openpyxl.load_workbook(stream, read_only=True, data_only=True))
    except Exception as error:  # openpyxl lets errors of ZIP, of XML and of its own classes through
        if not is_foreign(error):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise_fault(path, f"is no Excel workbook that can be read ({reason}). Save it as .xlsx again, or as CSV.")
    if sheet is None and len(names) > 1:
        add_note(f"{path.name}: the sheet {name!r} of {len(names)} is read; {path.name}#{names[-1]} names another")
    return table_of_sheet(path, name, records, wanted, header, min_matches)


def choose_sheet(path: Path, book: Any) -> tuple[str, list[str], list[tuple[int, list[Cell]]]]:
    """The name of the sheet that the path names or of the first with cells, the names of all sheets, and its rows."""
    file, sheet = split_sheet(path)
    names = [worksheet.title for worksheet in book.worksheets]
    if sheet is not None and sheet not in names:
        raise_fault(path, f"has no sheet {sheet!r:.80}. There are {', '.join(map(repr, names[:20]))}.")
    for name in names if sheet is None else [sheet]:
        if records := read_sheet(path, book[name], file.stat().st_size):
            return name, names, records
    raise_fault(path, "has no sheet with cells." if sheet is None else f"the sheet {sheet!r} is empty.")


def check_workbook(path: Path) -> None:
    """`MalformedData` unless the file is a ZIP archive of a sensible size without document types in its XML."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            if message := expansion_excess(path.stat().st_size, size, FREE_BYTES):
                raise_fault(path, message)
            for member in members:
                with archive.open(member) as stream:
                    if b"<!DOCTYPE" in stream.read(4096):
                        raise_fault(path, f"{member.filename!r:.80} declares a document type, which is not read.")
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError) as error:
        raise_fault(path, f"is no Excel workbook that can be read ({error}). Save it as .xlsx again, or as CSV.")


def read_sheet(path: Path, worksheet: Any, packed: int) -> list[tuple[int, list[Cell]]]:
    """(row number, values) of the rows that are not empty, without the empty cells at their end."""
    worksheet.reset_dimensions()  # what a file says of its size may be wrong
    records, cells = [], 0
    for number, values in enumerate(worksheet.iter_rows(values_only=True), 1):
        row = [plain_value(value) for value in values]
        while row and row[-1] in (None, ""):
            row.pop()
        cells += len(row) + 1
        size = CELL_BYTES * cells
        if message := TABLE_CELLS.excess(cells) or expansion_excess(packed, size, FREE_CELL_BYTES, rows=number):
            raise_fault(path, message, number, place=f"sheet {worksheet.title!r}, row {number}")
        if row:
            records.append((number, row))
    return records


def table_of_sheet(
    path: Path,
    sheet: str,
    records: list[tuple[int, list[Cell]]],
    wanted: Sequence[ColumnSpec],
    header: bool | None,
    min_matches: int,
) -> Table:
    """The table of a sheet's rows; rows that are shorter than the first end in empty cells."""
    line, first = records[0]
    texts = [[as_text(value) or "" for value in row] for _, row in records]
    if header is None:
        width = len(first)
        below = [row + [""] * (width - len(row)) for row in texts[1:]]
        header = has_header(texts[0], wanted, min_matches) or looks_like_header(texts[0], below)
        header = header or (all(isinstance(value, str) for value in first) and len(records) > 1 and has_types(records))
    place = f"sheet {sheet!r}, row {line}"
    count = len(first) if header else max(len(row) for _, row in records)
    names = header_names(path, line, texts[0], place) if header else number_columns(count)
    rows, faults = [], []
    for number, row in records[1:] if header else records:
        if len(row) <= count:
            rows.append(Row(number, row + [None] * (count - len(row))))
        else:
            message = f"has {len(row)} columns; wanted {count} ({', '.join(names[:20])})."
            faults.append(Fault(str(path), number, None, message, f"sheet {sheet!r}, row {number}"))
    return Table(path, names, header, rows, Sheet(sheet), faults)


def has_types(records: list[tuple[int, list[Cell]]]) -> bool:
    """Whether the rows below the first have numbers, which a first row of texts then names."""
    return any(isinstance(value, int | float) for _, row in records[1:] for value in row)
