"""Tables in Parquet and Arrow files (Feather too), also those of the Hugging Face Hub with names of their classes."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Protocol

from ...errors import Missing
from ...limits import JSON_BYTES, TABLE_CELLS, TABLE_COLUMNS, expansion_excess
from ..json_values import ParsedObject
from ..reading import raise_fault
from .arrow_sizes import unpacked_size
from .json_rows import flatten_object
from .table import Cell, Row, Table, plain_value

BATCH = 1024
INDEX_PREFIX = "__index_level_"
"""Columns in which pandas saves its row numbers."""
MAX_THRIFT = 64 * 2**20
MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow", b"FEA1": "feather"}


@dataclass(frozen=True)
class RowGroups:
    """Cells by row, counted from 1, and by row group where there are several; `ends` are the groups' last rows."""

    ends: tuple[int, ...]

    @property
    def first_line(self) -> tuple[int | None, str]:
        return None, ""

    def position(self, row: Row, number: int, name: str) -> tuple[int | None, int | None, str]:
        group = bisect_right(self.ends, row.line - 1)
        groups = f"row group {group}, " if len(self.ends) > 1 else ""
        return row.line, None, f"{groups}row {row.line}, column {name!r}"


class Schema(Protocol):
    """The part of pyarrow's schema that is read; pyarrow has no types."""

    names: list[str]
    metadata: Mapping[bytes, bytes] | None


class Column(Protocol):
    """The part of pyarrow's array that is read."""

    def to_pylist(self) -> list[object]: ...


class RecordBatch(Protocol):
    """The part of pyarrow's record batch that is read."""

    num_rows: int
    schema: Schema

    def validate(self, *, full: bool) -> None: ...
    def column(self, number: int, /) -> Column: ...


def import_pyarrow() -> ModuleType:
    """The module pyarrow; `Missing` if it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise Missing('Reading Parquet and Arrow files needs pyarrow: pip install "regard[files]".') from None
    return pyarrow


def columnar_table(path: Path) -> Table:
    """The table of a Parquet, Arrow or Feather file."""
    arrow = import_pyarrow()
    with path.open("rb") as file:
        start = file.read(6)
    parquet = start[:4] == b"PAR1"
    if start[:4] == b"FEA1":
        raise_fault(path, "is a Feather file of version 1. Save it as version 2, or as Parquet.")
    try:
        ends, batches = parquet_batches(path) if parquet else arrow_batches(path, start)
        rows = [Row(n, cells) for n, cells in enumerate(read_rows(path, batches), 1)]
    except (arrow.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        kind = "Parquet" if parquet else "Arrow"
        reason = str(error).split("\n")[0]
        raise_fault(path, f"is no {kind} file that can be read ({reason:.200}). Get the whole file again.")
    if not rows:
        raise_fault(path, "has no rows.")
    names, rows = map(str, rows[0].cells), rows[1:]
    return Table(path, tuple(names), True, [Row(row.line - 1, row.cells) for row in rows], RowGroups(ends))


def parquet_batches(path: Path) -> tuple[tuple[int, ...], Iterator[RecordBatch]]:
    """The last row of each row group, and the record batches."""
    from pyarrow import parquet

    file = parquet.ParquetFile(
        path,
        thrift_string_size_limit=MAX_THRIFT,
        thrift_container_size_limit=1_000_000,
        page_checksum_verification=True,
    )
    metadata = file.metadata
    rows, columns = metadata.num_rows, metadata.num_columns
    message = TABLE_COLUMNS.excess(columns) or TABLE_CELLS.excess(rows * columns)
    if message := message or expansion_excess(path.stat().st_size, 0, rows=rows):
        raise_fault(path, message)
    ends = accumulate(metadata.row_group(n).num_rows for n in range(metadata.num_row_groups))
    return tuple(ends), file.iter_batches(BATCH, use_threads=False)


def arrow_batches(path: Path, start: bytes) -> tuple[tuple[int, ...], Iterator[RecordBatch]]:
    """No row groups, and the record batches of an Arrow file (which Feather is) or an Arrow stream."""
    arrow = import_pyarrow()
    source = arrow.memory_map(str(path))
    if start == b"ARROW1":
        reader = arrow.ipc.open_file(source)
        return (), (reader.get_batch(n) for n in range(reader.num_record_batches))
    return (), iter(arrow.ipc.open_stream(source))


def read_rows(path: Path, batches: Iterator[RecordBatch]) -> Iterator[list[Cell]]:
    """The names of the columns, then the values of each row; `MalformedData` as soon as they are too many."""
    size, cells, rows, packed = 0, 0, 0, path.stat().st_size
    names: list[str] | None = None
    rename: Callable[[str, Cell], Cell] | None = None
    for batch in batches:
        batch.validate(full=True)
        chosen = {
            name: batch.column(n) for n, name in enumerate(batch.schema.names) if not name.startswith(INDEX_PREFIX)
        }
        rows, cells = rows + batch.num_rows, cells + batch.num_rows * len(chosen)
        size += sum(map(unpacked_size, chosen.values()))
        message = TABLE_COLUMNS.excess(len(chosen)) or TABLE_CELLS.excess(cells)
        if message := message or expansion_excess(packed, size, rows=rows):
            raise_fault(path, message)
        rename = rename or class_names(path, batch.schema)
        columns = [
            [rename(name, plain_value(value)) for value in plain_column(column).to_pylist()]
            for name, column in chosen.items()
        ]
        objects = [flatten_object(dict(zip(chosen, row, strict=True))) for row in zip(*columns, strict=True)]
        if names is None and objects:
            names = list(objects[0])
            yield [*names]
        yield from ([value.get(name) for name in names or []] for value in objects)


def plain_column(column: Column) -> Column:
    """The column with the values of a dictionary instead of indices into it, which is faster than one by one."""
    decode = getattr(column, "dictionary_decode", None)
    return column if decode is None else decode()


def class_names(path: Path, schema: Schema) -> Callable[[str, Cell], Cell]:
    """A function that gives a column's class numbers the names that Hugging Face's `ClassLabel` has for them."""
    features = hub_features(path, schema)
    labels = {name: names for name, feature in features.items() if (names := find_names(feature))}

    def rename(column: str, value: Cell) -> Cell:
        names = labels.get(column)
        if names is None:
            return value
        if isinstance(value, list):
            return [rename(column, item) for item in value]
        return names[value] if isinstance(value, int) and 0 <= value < len(names) else value

    return rename


def hub_features(path: Path, schema: Schema) -> ParsedObject:
    """The features of a Hugging Face data set, from the file itself or from `dataset_info.json` beside it."""
    text = (schema.metadata or {}).get(b"huggingface")
    beside = path.parent / "dataset_info.json"
    try:
        if text is not None:
            features = json.loads(text)["info"]["features"]
        else:
            small = beside.is_file() and not JSON_BYTES.excess(beside.stat().st_size)
            features = json.loads(beside.read_text("utf-8"))["features"] if small else {}
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def find_names(feature: object) -> list[str]:
    """The names of a `ClassLabel`, or of a list of them."""
    if isinstance(feature, list) and feature:
        return find_names(feature[0])
    if not isinstance(feature, dict):
        return []
    if feature.get("_type") in ("Sequence", "List", "LargeList"):
        return find_names(feature.get("feature"))
    names = feature.get("names")
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []
