"""Tables of JSON objects: one object a line, or an array of objects over any number of lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ...limits import JSON_DEPTH, json_depth
from ..reading import Fault, MalformedData, add_note, raise_fault
from .delimited import TextLines
from .table import Cell, Row, RowNumbers, Table

HALF = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""Half of a surrogate pair of JSON escapes, without the other half."""
NESTED = ("translation",)
"""Columns whose objects have the columns in them: `{"translation": {"en": …, "zh": …}}`."""
LISTS = ("words", "tokens", "forms", "词", "词语")
"""Columns whose cells are lists, so that an object of lists with such a name is one row."""
DECODER = json.JSONDecoder()
BLANK = re.compile(r"[\s,]*")


def json_document(path: Path, text: str) -> Any:
    """The value of a file that is one JSON document; `MalformedData` if it is none, or nests too deeply."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise_fault(path, f"is no JSON: {error.msg}.", error.lineno, error.colno)
    except (ValueError, RecursionError) as error:
        raise_fault(path, f"is JSON that cannot be read ({error}). Shorten the number, or nest less.")
    if text.count("{") + text.count("[") > JSON_DEPTH.value and (message := JSON_DEPTH.excess(json_depth(value))):
        raise_fault(path, f"is JSON that cannot be read: {message}")
    return value


def json_table(path: Path, lines: list[str]) -> Table:
    """The table of a file with one JSON object per line."""
    objects, faults = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            objects.append((number, json_object(path, number, line)))
        except MalformedData as refused:
            faults.extend(refused.faults)
    return table_of_objects(path, lines, objects, faults)


def table_of_objects(
    path: Path, lines: list[str], objects: list[tuple[int, dict[str, Cell]]], faults: list[Fault]
) -> Table:
    """The table of objects and the lines on which they begin; the columns are the names of all of them."""
    flat = [(number, flatten_object(value)) for number, value in objects]
    names = list(dict.fromkeys(name for _, value in flat for name in value))
    rows = [Row(number, [value.get(name) for name in names]) for number, value in flat]
    return Table(path, tuple(names), True, rows, TextLines(lines, None), faults)


def flatten_object(value: dict[str, Cell]) -> dict[str, Cell]:
    """The object with the columns of a nested translation as its own.

    >>> flatten_object({"id": 3, "translation": {"en": "one", "zh": "一"}})
    {'id': 3, 'en': 'one', 'zh': '一'}
    """
    flat: dict[str, Cell] = {}
    for name, item in value.items():
        flat |= item if name in NESTED and isinstance(item, dict) else {name: item}
    return flat


def json_columns_table(path: Path, text: str) -> Table | None:
    """The table of one JSON object of columns, each a list or an object of the cells (as pandas writes them); None if
    the file is something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    columns = list(value.values()) if isinstance(value, dict) else []
    keys = {tuple(column) if isinstance(column, dict) else len(column) for column in columns if is_column(column)}
    if len(columns) < 2 or len(keys) > 1 or not all(map(is_column, columns)) or set(LISTS) & set(value):
        return None
    check_object(path, 1, text, value)
    cells = [list(column.values()) if isinstance(column, dict) else column for column in columns]
    rows = [Row(number, list(row)) for number, row in enumerate(zip(*cells, strict=True), 1)]
    add_note(f"{path.name}: read as columns of {len(rows):,} values")
    return Table(path, tuple(value), True, rows, RowNumbers())


def is_column(value: Cell) -> bool:
    """Whether a JSON value holds the cells of a column: texts and numbers, several, in a list or by their rows."""
    items = list(value.values()) if isinstance(value, dict) else value
    return isinstance(items, list) and len(items) > 1 and all(isinstance(x, str | int | float | None) for x in items)


def annotated_text(value: Cell) -> Cell:
    """The object of a text with its annotations, as spaCy's training data has them; other values as they are.

    >>> annotated_text(["Ada wrote", {"entities": [[0, 3, "PER"]]}])
    {'text': 'Ada wrote', 'entities': [[0, 3, 'PER']]}
    """
    if not isinstance(value, list) or len(value) != 2:
        return value
    text, annotations = value
    return {"text": text, **annotations} if isinstance(text, str) and isinstance(annotations, dict) else value


def json_object(path: Path, number: int, line: str) -> dict[str, Cell]:
    """The JSON object of a line; `MalformedData` if it is none."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise_fault(path, f"is no JSON: {error.msg}. Wanted one object a line.", number, error.colno)
    except (ValueError, RecursionError) as error:
        raise_fault(path, f"is JSON that cannot be read ({error}). Shorten the number, or nest less.", number, 1)
    value = annotated_text(value)
    if not isinstance(value, dict):
        raise_fault(path, f"is {line.strip():.40}; wanted a JSON object, such as {{…}}, on each line.", number, 1)
    check_object(path, number, line, value)
    return value


def check_object(path: Path, number: int, text: str, value: dict[str, Cell]) -> None:
    """`MalformedData` if an object nests too deeply or has half a character. It begins on the line `number`."""
    if text.count("{") + text.count("[") > JSON_DEPTH.value and (message := JSON_DEPTH.excess(json_depth(value))):
        raise_fault(path, f"is JSON that cannot be read: {message}", number, 1)
    if (half := HALF.search(text)) and not encodable(value):
        message = f"has half a character, {half[0]}; wanted both halves of its pair. Was the text cut there?"
        before = text[: half.start()]
        raise_fault(path, message, number + before.count("\n"), half.start() - before.rfind("\n"))


def encodable(value: Cell) -> bool:
    """Whether all texts in a JSON value can be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def json_array_table(path: Path, text: str, lines: list[str], start: int) -> Table:
    """The table of a JSON array of objects that begins at `start`.

    After a fault, reading goes on with the next object that begins a line as the first one does.
    """
    objects, faults = [], []
    place, number, counted = next_object(text, start + 1), 1, 0
    again = re.compile(r"\n" + re.escape(text[text.rfind("\n", 0, place or 0) + 1 : (place or 0) + 1]))
    while place is not None:
        number, counted = number + text.count("\n", counted, place), place
        try:
            value, end = array_object(path, text, place, number)
            objects.append((number, value))
            place = next_object(text, end)
        except MalformedData as refused:
            faults.extend(refused.faults)
            following = again.search(text, place + 1)
            place = None if following is None else following.end() - 1
    return table_of_objects(path, lines, objects, faults)


def next_object(text: str, start: int) -> int | None:
    """Where the next item of an array begins; None after its last one."""
    blank = BLANK.match(text, start)
    place = blank.end() if blank else start
    return None if text[place : place + 1] in ("]", "") else place


def array_object(path: Path, text: str, place: int, number: int) -> tuple[dict[str, Cell], int]:
    """The object at `place`, and where it ends."""
    try:
        value, end = DECODER.raw_decode(text, place)
    except json.JSONDecodeError as error:
        raise_fault(path, f"is no JSON: {error.msg}. Wanted objects in an array.", error.lineno, error.colno)
    except (ValueError, RecursionError) as error:
        raise_fault(path, f"is JSON that cannot be read ({error}). Shorten the number, or nest less.", number)
    value = annotated_text(value)
    if not isinstance(value, dict):
        column = place - text.rfind("\n", 0, place)
        raise_fault(
            path, f"is {text[place:end]:.40}; wanted an array of objects, such as [{{…}}, {{…}}].", number, column
        )
    check_object(path, number, text[place:end], value)
    return value, end
