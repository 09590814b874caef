"""Predictions for many inputs: texts, files, rows of tables, lines of a stream; written as JSON lines or as a table.

An input that cannot be read has an error instead of a prediction, and the others are predicted all the same.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from ..data.files import file_format, read_file_lines
from ..data.listing import file_extension
from ..data.reading import MalformedData, ReadingBuilder
from ..data.tables import TABLES, ColumnSpec, as_text, find_columns, read_table
from ..data.text import SOURCE_NAMES, TEXT_NAMES
from ..errors import BadInput, RegardError
from ..tasks.task import Task

CHUNK = 256
"""Inputs that are read before they are predicted."""
OUTPUT_FORMATS = ("csv", "tsv", "jsonl", "json")


@dataclass(frozen=True)
class InputRow:
    """An input of `predict`, and the cells of the row that it stands in, if it comes from a table."""

    input: str
    cells: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PredictedRow:
    """An input with its prediction, as the task's `predict` returns it, or with the reason why there is none."""

    row: InputRow
    prediction: Any = None
    error: str = ""

    def as_dict(self) -> Any:
        """The prediction as JSON has it."""
        return {"input": self.row.input, "error": self.error} if self.error else self.prediction


def read_inputs(task: Task[Any], given: Iterable[str]) -> Iterator[InputRow]:
    """The inputs that texts and paths stand for.

    A task that reads texts takes every row of a table and every line of another file. A task that reads files takes
    every file of its type in a folder.
    """
    for text in given:
        path = Path(text) if text.strip("./ ") and len(text) < 4096 and "\n" not in text else None
        if path is not None and task.input_files and path.is_dir():
            yield from files_in_folder(path, task.input_files)
        elif path is not None and not task.input_files and path.is_dir():
            raise BadInput(f"{text} is a folder, and this model reads texts. Give a file of texts, or a text.")
        elif path is not None and not task.input_files and path.is_file():
            yield from rows_of_file(path, task.input_column)
        else:
            yield InputRow(text)


def files_in_folder(folder: Path, extensions: Sequence[str]) -> list[InputRow]:
    """The files with one of these extensions in a folder and its subfolders, by name."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and file_extension(path) in extensions]
    if not files:
        raise BadInput(f"{folder} has no file that this model reads: .{', .'.join(extensions)}.")
    return [InputRow(str(path)) for path in files]


def rows_of_file(path: Path, column: str | None) -> list[InputRow]:
    """The texts of a table's rows, or the lines of another file."""
    try:
        if file_format(path) not in TABLES:
            return [InputRow(line.strip()) for line in read_file_lines(path) if line.strip()]
        spec = ColumnSpec("text", column, (*TEXT_NAMES, *SOURCE_NAMES), "input", "text")
        table = read_table(path, [spec])
        name = find_columns(table, [spec], ReadingBuilder[Any]())["text"]
    except MalformedData as error:
        raise BadInput(" ".join(map(str, error.faults))) from None
    if table.faults:
        raise BadInput(" ".join(map(str, table.faults[:5])))
    cells = [dict(zip(table.names, (as_text(cell) or "" for cell in row.cells), strict=True)) for row in table.rows]
    return [InputRow(row[name], row) for row in cells]


def split_chunks(rows: Iterable[InputRow]) -> Iterator[list[InputRow]]:
    """The inputs in lists of `CHUNK`."""
    stream = iter(rows)
    while chunk := list(islice(stream, CHUNK)):
        yield chunk


def predict_rows(task: Task[Any], model: nn.Module, chunks: Iterable[list[InputRow]]) -> Iterator[PredictedRow]:
    """The prediction of each input, in order, as soon as its chunk is read."""
    if task.compares_inputs:
        chosen = [row for chunk in chunks for row in chunk]
        predictions = task.predict(model, [row.input for row in chosen])
        yield from (PredictedRow(InputRow(""), prediction) for prediction in predictions)
        return
    for chunk in chunks:
        try:
            predictions = task.predict(model, [row.input for row in chunk])
            if len(predictions) != len(chunk):  # a graph has a prediction for each of its nodes
                yield from (PredictedRow(InputRow(""), prediction) for prediction in predictions)
                continue
            yield from map(PredictedRow, chunk, predictions)
        except (RegardError, MalformedData):
            yield from (predicted for row in chunk for predicted in predict_alone(task, model, row))


def predict_alone(task: Task[Any], model: nn.Module, row: InputRow) -> list[PredictedRow]:
    """The predictions of one input, or its error."""
    try:
        return [PredictedRow(row, prediction) for prediction in task.predict(model, [row.input])]
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


def record_of(row: PredictedRow) -> dict[str, Any]:
    """The cells of the input's row and the prediction; a name that both have is the prediction's with `predicted_`."""
    prediction = row.as_dict()
    fields = prediction if isinstance(prediction, dict) else {"input": row.row.input, "prediction": prediction}
    cells = dict(row.row.cells)
    if cells:
        fields = {name: value for name, value in fields.items() if name != "input"}
    return cells | {f"predicted_{name}" if name in cells else name: value for name, value in fields.items()}


def flatten(record: dict[str, Any]) -> dict[str, Any]:
    """The record with a column for each probability, and lists as JSON."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if name.endswith("probabilities") and isinstance(value, dict):
            flat |= {f"p({label})": p for label, p in value.items()}
        else:
            flat[name] = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
    return flat
