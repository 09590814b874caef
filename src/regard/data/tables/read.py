"""Reading a table of any format: delimited text, JSON, fastText's lines, Excel, Parquet, Arrow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..dataset_folders import split_of_file
from ..files import file_format, read_text, split_lines, split_sheet
from ..reading import MalformedData, add_note, raise_fault
from .columnar import MAGIC, columnar_table
from .delimited import DELIMITERS, LABEL_PREFIX, delimited_table, labelled_lines
from .json_rows import json_array_table, json_columns_table, json_table
from .spreadsheet import spreadsheet_table
from .table import Cell, ColumnSpec, Table, as_text, find_split_column, parse_split_name

JSON_LINES = ("jsonl", "ndjson")
SPREADSHEETS = ("xlsx", "xlsm")
COLUMNAR = ("parquet", "pq", "arrow", "feather", "ipc")
TABLES = (*DELIMITERS, *JSON_LINES, "json", *COLUMNAR, *SPREADSHEETS)
"""Extensions of files that are tables."""
SCALAR = r'(?:"(?:[^"\\\n]|\\.)*"|[-+.\w]+|\{[^{}\[\]]*\})'
CONTAINERS = "data|rows|records|examples|items|instances|samples|entries|documents|dataset|results"
ARRAY = re.compile(
    rf'\s*(?:\{{\s*(?:"[^"\n]*"\s*:\s*|(?:"[^"\n]*"\s*:\s*{SCALAR}\s*,\s*)+"(?:{CONTAINERS})"\s*:\s*))?\[\s*(\{{|\[\s*")'
)
"""The beginning of an array of objects, or of lists of a text and its annotations; also as an object's first value, or
after others under a name that says that it holds the rows."""


def read_table(path: Path, wanted: Sequence[ColumnSpec], header: bool | None = None, min_matches: int = 1) -> Table:
    """The table in a file.

    By default the first line is a header if a column is given by name, if at least `min_matches` of its cells are
    usual names of the columns wanted, or if the values below it differ from it (`looks_like_header`). A file whose
    path says its split, such as `train-00000-of-00001.parquet`, has a column `split`.
    """
    binary = binary_format(path)
    if binary == "xlsx":
        table = spreadsheet_table(path, wanted, header, min_matches)
    else:
        table = columnar_table(path) if binary else text_table(path, wanted, header, min_matches)
    if not table.names and table.faults:
        raise MalformedData(*table.faults)
    if not table.rows and not table.faults:
        raise_fault(path, f"has a header ({', '.join(table.names[:20])}) and no rows.", 1)
    split = split_of_file(path)
    if not split or find_split_column(table) is not None:
        return table
    if parse_split_name("split", split) is None:
        add_note(f"{path.name}: its split {split!r} is neither train, dev nor test")
        return table
    return table.with_column("split", split)


def binary_format(path: Path) -> str:
    """'xlsx', 'parquet', 'arrow' or 'feather' by the extension or by the first bytes; '' for text."""
    extension = file_format(path)
    if extension in SPREADSHEETS:
        return "xlsx"
    if extension in COLUMNAR:
        return "arrow"
    try:
        with split_sheet(path)[0].open("rb") as file:
            start = file.read(6)
    except OSError as error:
        raise_fault(path, f"cannot be opened: {error.strerror}.")
    return next((name for magic, name in MAGIC.items() if start.startswith(magic)), "")


def text_table(path: Path, wanted: Sequence[ColumnSpec], header: bool | None, min_matches: int) -> Table:
    """The table of a text file."""
    text, extension = read_text(path), file_format(path)
    lines = split_lines(text)
    first = next(line for line in lines if line.strip()).lstrip()
    if (array := ARRAY.match(text)) and extension not in (*JSON_LINES, *DELIMITERS):
        start = text.rindex("[", 0, array.start(1))
        if first.startswith("{"):
            add_note(f"{path.name}: the rows are the objects in {text[:start].split(chr(34))[-2]!r}")
        return json_array_table(path, text, lines, start)
    if extension in (*JSON_LINES, "json") or (extension not in DELIMITERS and first.startswith("{")):
        return (json_columns_table(path, text) if extension == "json" else None) or json_table(path, lines)
    if extension not in DELIMITERS and first.startswith(LABEL_PREFIX):
        return labelled_lines(path, lines)
    return delimited_table(path, lines, wanted, header, min_matches)


def sample_cells(path: Path, count: int = 20) -> list[list[Cell]]:
    """The first rows of a table, the header left out if there is one; none for a file that is no table."""
    try:
        table = read_table(path, [])
    except MalformedData:
        return []
    return [list(row.cells) for row in table.rows[:count]]


def sample_rows(path: Path, count: int = 20) -> list[list[str]]:
    """`sample_cells` as texts."""
    return [[as_text(cell) or "" for cell in row] for row in sample_cells(path, count)]
