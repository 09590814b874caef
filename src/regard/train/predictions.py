"""Predictions for many inputs: texts, files, rows of tables, lines of a stream; written as JSON lines or as a table.

An input that cannot be read has an error instead of a prediction, and the others are predicted all the same.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from ..data.annotations.answers import squad_rows
from ..data.files import file_format, read_file_lines
from ..data.graphs.mapped import is_graph_folder
from ..data.images import IMAGE_NAMES
from ..data.json_values import JsonObject
from ..data.listing import embedded_file, file_extension, file_name
from ..data.reading import FaultCollector, MalformedData
from ..data.sound import SOUND_NAMES
from ..data.tables import TABLES, ColumnSpec, Row, Table, as_text, find_columns, read_table
from ..data.text import SOURCE_NAMES, TEXT_NAMES
from ..errors import BadInput, RegardError
from ..models.model import Model
from ..tasks.results import Result
from ..tasks.task import AnyTask

CHUNK = 256
"""Inputs that are read before they are predicted."""
OUTPUT_FORMATS = ("csv", "tsv", "jsonl", "json")
FILE_ENDINGS = (*TABLES, "txt", "conllu", "npz", "gz")
"""Endings by which a word that names no file is taken for a file's misspelt name."""


@dataclass(frozen=True)
class InputRow:
    """An input of `predict`, and the cells of the row that it stands in, if it comes from a table.

    `words` are those of a sentence that was divided before, `data` the bytes of a file that stands in the table.
    """

    input: str
    cells: Mapping[str, str] = field(default_factory=dict)
    words: Sequence[str] | None = None
    data: bytes | None = None

    @property
    def content(self) -> object:
        """What the task reads: the words, the bytes of an encoded image or recording, or the text."""
        if self.data is not None:
            return {"path": self.input, "image": self.data, "sound": self.data}
        return self.input if self.words is None else {"words": self.words}


@dataclass(frozen=True)
class PredictedRow:
    """An input with its result, or with the reason why there is none."""

    row: InputRow
    result: Result | None = None
    error: str = ""

    def to_dict(self) -> JsonObject:
        """The result as JSON has it."""
        return {"input": self.row.input, "error": self.error} if self.result is None else self.result.to_dict()


def read_inputs(task: AnyTask, given: Iterable[str]) -> Iterator[InputRow]:
    """The inputs that texts and paths stand for.

    A task that reads texts takes every row of a table and every line of another file. A task that reads files takes
    every file of its type in a folder.
    """
    for text in given:
        path = Path(text) if text.strip("./ ") and len(text) < 4096 and "\n" not in text else None
        if path is not None and task.input_files and path.is_dir() and not is_graph_folder(path):
            yield from files_in_folder(path, task.input_files)
        elif path is not None and task.input_files and lists_files(path, task.input_files):
            yield from rows_of_files(path, task)
        elif path is not None and not task.input_files and path.is_dir():
            raise BadInput(f"{text} is a folder, and this model reads texts. Give a file of texts, or a text.")
        elif path is not None and not task.input_files and path.is_file():
            sentences = task.sentences_of(path)
            if sentences is not None:
                yield from (InputRow(" ".join(words), words=words) for words in sentences)
            else:
                yield from (
                    rows_of_table(path, row_columns(task))
                    if task.reads_rows
                    else rows_of_file(path, task.input_column, trained_names(task, "text", "source"))
                )
        elif path is not None and not task.input_files and len(text.split()) == 1 and named_as_file(path):
            raise BadInput(f"There is no file {text}. Look at its spelling; give such a text on stdin (-).")
        else:
            yield InputRow(text)


def named_as_file(path: Path) -> bool:
    """Whether a text is the name of a file of data rather than a text to predict."""
    return bool(path.stem) and file_extension(path) in FILE_ENDINGS


def files_in_folder(folder: Path, extensions: Sequence[str]) -> list[InputRow]:
    """The files with one of these extensions in a folder and its subfolders, by name."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and file_extension(path) in extensions]
    if not files:
        raise BadInput(f"{folder} has no file that this model reads: .{', .'.join(extensions)}.")
    return [InputRow(str(path)) for path in files]


def trained_names(task: AnyTask, *roles: str) -> list[str]:
    """The names that the columns of these roles had in the training data."""
    return [task.columns[role].casefold() for role in roles if role in task.columns]


def lists_files(path: Path, extensions: Sequence[str]) -> bool:
    """Whether a file is a table that lists files with these extensions, and not one of them."""
    return file_format(path) in TABLES and file_format(path) not in extensions and path.is_file()


def rows_of_files(path: Path, task: AnyTask) -> Iterator[InputRow]:
    """The files that a table lists, relative to its folder, or whose bytes stand in its rows."""
    try:
        names = (*trained_names(task, "image", "sound"), *IMAGE_NAMES, *SOUND_NAMES)
        spec = ColumnSpec("file", task.input_column, tuple(dict.fromkeys(names)), "input")
        table = read_table(path, [spec])
        column = find_columns(table, [spec], FaultCollector())["file"]
    except MalformedData as error:
        raise BadInput(" ".join(map(str, error.faults))) from None
    number = table.names.index(column)
    files = [row.cells[number] for row in table.rows]
    names = [as_text(file_name(cell)) or f"row {row.line}" for cell, row in zip(files, table.rows, strict=True)]
    rows = [[*row.cells[:number], name, *row.cells[number + 1 :]] for name, row in zip(names, table.rows, strict=True)]
    cells = cells_of_table(replace(table, rows=[Row(n, row) for n, row in enumerate(rows)]))
    for name, cell, own in zip(names, files, cells, strict=True):
        yield InputRow(str(path.parent / name), own, data=embedded_file(cell))


def rows_of_file(path: Path, column: str | None, first: Sequence[str] = ()) -> list[InputRow]:
    """The texts of a table's rows, or the lines of another file. The column is given, or found, `first` by these
    names."""
    try:
        if file_format(path) not in TABLES:
            return [InputRow(line.strip()) for line in read_file_lines(path) if line.strip()]
        spec = ColumnSpec("text", column, (*first, *TEXT_NAMES, *SOURCE_NAMES), "input", "text")
        table = read_table(path, [spec])
        name = find_columns(table, [spec], FaultCollector())["text"]
    except MalformedData as error:
        raise BadInput(" ".join(map(str, error.faults))) from None
    return [InputRow(row[name], row) for row in cells_of_table(table)]


def cells_of_table(table: Table) -> list[dict[str, str]]:
    """The cells of each row as text, lists as JSON."""
    if table.faults:
        raise BadInput(" ".join(map(str, table.faults[:5])))
    return [dict(zip(table.names, map(cell_text, row.cells), strict=True)) for row in table.rows]


def cell_text(cell: object) -> str:
    text = as_text(cell)
    return json.dumps(cell, ensure_ascii=False) if text is None else text


def row_columns(task: AnyTask) -> list[ColumnSpec]:
    """The columns of a row that the task reads, first under the names that they had in the training data."""
    return [replace(spec, names=(*trained_names(task, spec.role), *spec.names)) for spec in task.row_columns]


def rows_of_table(path: Path, wanted: Sequence[ColumnSpec] = ()) -> list[InputRow]:
    """The rows of a table or the questions of SQuAD's JSON, each as JSON text; the lines of another file.

    Of a row the columns `wanted` are read, found as in training; without them all, and the table has a header.
    """
    try:
        if (questions := squad_rows(path)) is not None:
            return [InputRow(json.dumps(row, ensure_ascii=False), row) for row in questions]
        if file_format(path) not in TABLES:
            return [InputRow(line.strip()) for line in read_file_lines(path) if line.strip()]
        table = read_table(path, wanted, None if wanted else True, min_matches=2)
        lists = any(isinstance(cell, list) for row in table.rows[:1] for cell in row.cells)
        columns = {} if lists else find_columns(table, wanted, FaultCollector())
        cells = cells_of_table(table)
    except MalformedData as error:
        raise BadInput(" ".join(map(str, error.faults))) from None
    names = {str(spec.given or spec.setting): columns[spec.role] for spec in wanted if columns}
    picked = [{key: row[name] for key, name in names.items()} or row for row in cells]
    return [InputRow(json.dumps(own, ensure_ascii=False), row) for own, row in zip(picked, cells, strict=True)]


def split_chunks(rows: Iterable[InputRow]) -> Iterator[list[InputRow]]:
    """The inputs in lists of `CHUNK`."""
    stream = iter(rows)
    while chunk := list(islice(stream, CHUNK)):
        yield chunk


def predict_rows(task: AnyTask, model: Model, chunks: Iterable[list[InputRow]]) -> Iterator[PredictedRow]:
    """The prediction of each input, in order, as soon as its chunk is read."""
    if task.compares_inputs:
        chosen = [row for chunk in chunks for row in chunk]
        results = task.predict(model, [row.content for row in chosen])
        yield from (PredictedRow(InputRow(""), result) for result in results)
        return
    for chunk in chunks:
        try:
            results = task.predict(model, [row.content for row in chunk])
            for row, result in zip(chunk, results, strict=True):
                yield from (PredictedRow(row, record) for record in result.records())
        except (RegardError, MalformedData):
            yield from (predicted for row in chunk for predicted in predict_alone(task, model, row))


def predict_alone(task: AnyTask, model: Model, row: InputRow) -> list[PredictedRow]:
    """The predictions of one input, or its error."""
    try:
        return [PredictedRow(row, record) for record in task.predict(model, [row.content])[0].records()]
    except (RegardError, MalformedData) as error:
        return [PredictedRow(row, error=" ".join(str(error).split()))]


def write_predictions(path: Path, rows: Sequence[PredictedRow]) -> None:
    """Write a table (CSV, TSV) or JSON; the cells of an input's own row come first."""
    extension = file_extension(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [record_of(row) for row in rows]
    with path.open("w", encoding="utf8", newline="" if extension == "csv" else "\n") as file:
        if extension == "json":
            json.dump(records, file, ensure_ascii=False, indent=1)
        elif extension == "jsonl":
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        else:
            flat = [flatten(record) for record in records]
            names = list(dict.fromkeys(name for record in flat for name in record))
            table = csv.DictWriter(file, names, delimiter="\t" if extension == "tsv" else ",", lineterminator="\n")
            table.writeheader()
            table.writerows(flat)


def record_of(row: PredictedRow) -> JsonObject:
    """The cells of the input's row and the prediction; a name that both have is the prediction's with `predicted_`."""
    fields, cells = row.to_dict(), dict(row.row.cells)
    if cells:
        fields = {name: value for name, value in fields.items() if name != "input"}
    return cells | {f"predicted_{name}" if name in cells else name: value for name, value in fields.items()}


def flatten(record: JsonObject) -> JsonObject:
    """The record with a column for each probability, and lists as JSON."""
    flat: JsonObject = {}
    for name, value in record.items():
        if name.endswith("probabilities") and isinstance(value, dict):
            flat |= {f"p({label})": p for label, p in value.items()}
        else:
            flat[name] = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
    return flat
