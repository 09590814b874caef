"""A table of edges in parts, `edges-00.csv` and so on: nodes are whole numbers, and a part is read in blocks."""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import add
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, NoReturn, cast

import torch
from torch import Tensor

from ...limits import LINE_BYTES, expansion_excess
from ..files import file_format
from ..reading import FaultCollector, count_noun, raise_fault
from ..tables.columnar import MAX_THRIFT, import_pyarrow
from .edge_tables import SOURCE_NAMES, TARGET_NAMES, find_first

if TYPE_CHECKING:
    import numpy as np

CHUNK = 1 << 22
"""Bytes of text that are parsed together."""
EDGE_BYTES = 64
"""What an edge takes in memory while it is read, its line included."""
ROWS = 1 << 18
"""Rows of Parquet that are read together."""

Block = tuple[Callable[[int], int], "np.ndarray"]
"""The line of each row, and int64 `[rows, 2]`: sources and targets."""


def read_edge_parts(
    paths: Sequence[Path], nodes: int, builder: FaultCollector, rank: int = 0, ranks: int = 1
) -> Tensor:
    """int64 `[2, edges]` of the parts that are a rank's: every `ranks`-th.

    Source and target are found by their names or are the first two columns. An edge of which an end is no node is a
    fault, and is left out.
    """
    tensors = []
    for path in paths[rank::ranks]:
        with builder.reading(path):
            for line_of, rows in read_blocks(path):
                edges = torch.from_numpy(rows).mT
                outside = ((edges < 0) | (edges >= nodes)).any(0)
                if bool(outside.any()):
                    report_outside(path, line_of, edges, outside, nodes, builder)
                    edges = edges[:, ~outside]
                tensors.append(edges)
    return torch.cat(tensors, dim=1) if tensors else torch.empty(2, 0, dtype=torch.int64)


def report_outside(
    path: Path, line_of: Callable[[int], int], edges: Tensor, outside: Tensor, nodes: int, builder: FaultCollector
) -> None:
    """A fault for the first edge of a block with an end that is no node, with the number of such edges."""
    n, count = int(outside.nonzero()[0]), int(outside.sum())
    source, target = edges[:, n].tolist()
    more = f" ({count_noun(count - 1, 'edge')} after it too)" if count > 1 else ""
    with builder.catching():
        raise_fault(path, f"an edge goes from {source} to {target}{more}; the nodes are 0 to {nodes - 1}.", line_of(n))


def read_blocks(path: Path) -> Iterator[Block]:
    """The edges of a part, in blocks of bounded size."""
    yield from read_parquet_blocks(path) if file_format(path) == "parquet" else read_text_blocks(path)


def read_parquet_blocks(path: Path) -> Iterator[Block]:
    pyarrow = import_pyarrow()
    try:
        yield from parquet_blocks(path, pyarrow)
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        reason = str(error).split("\n")[0]
        raise_fault(path, f"is no Parquet file that can be read ({reason:.200}). Get the whole file again.")


def parquet_blocks(path: Path, pyarrow: ModuleType) -> Iterator[Block]:
    import numpy
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    with parquet.ParquetFile(path, thrift_string_size_limit=MAX_THRIFT, thrift_container_size_limit=1_000_000) as file:
        schema, packed, line = file.schema_arrow, path.stat().st_size, 1
        names = schema.names
        if len(names) < 2:
            raise_fault(path, f"has the columns {', '.join(names)[:200]}; wanted a source and a target.")
        columns = find_ends(names)
        for n in columns:
            if not pyarrow.types.is_integer(kind := schema.types[n]):
                raise_fault(path, f"the column {names[n]!r:.80} has {kind}; wanted whole numbers, the nodes.")
        for batch in file.iter_batches(ROWS, columns=[names[n] for n in columns]):
            if message := expansion_excess(packed, EDGE_BYTES * (line + batch.num_rows)):
                raise_fault(path, message, line)
            ends = [batch.column(names[n]) for n in columns]
            for n, end in zip(columns, ends, strict=True):
                if end.null_count:
                    raise_fault(path, f"the column {names[n]!r:.80} has empty cells; wanted the nodes.", line)
            yield partial(add, line), numpy.stack([end.to_numpy().astype("int64") for end in ends], axis=1)
            line += batch.num_rows


def read_text_blocks(path: Path) -> Iterator[Block]:
    import numpy

    columns, delimiter = (0, 1), None
    for number, (line, lines) in enumerate(line_blocks(path)):
        if number == 0:
            line, lines, columns, delimiter = read_head(path, lines)
        if not lines:
            continue
        try:
            options = {"delimiter": delimiter, "comments": None, "usecols": columns, "ndmin": 2}
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)  # NumPy 1 reads 1e99 as a whole number of its own
                rows = numpy.loadtxt(lines, numpy.int64, encoding="utf-8", **options)
        except (ValueError, UnicodeDecodeError, DeprecationWarning):
            raise_first_fault(path, line, lines, columns, delimiter)
        yield partial(nth_line, lines, line), rows


def nth_line(lines: list[bytes], first: int, row: int) -> int:
    """The number of the line that a row is in, blank lines counted; the first line is number `first`."""
    return first + [n for n, line in enumerate(lines) if line.strip()][row]


def line_blocks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """(number of the first line, lines) of a text file, perhaps gzip; blank lines count and are left empty."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
        rest, line, size = b"", 1, 0
        while chunk := read_chunk(path, file):
            size += len(chunk)
            if packed and (message := expansion_excess(raw.tell(), size + EDGE_BYTES * line)):
                raise_fault(path, message, line)
            data = rest + chunk
            cut = data.rfind(b"\n") + 1
            rest = data[cut:]
            if message := LINE_BYTES.excess(len(rest)):
                raise_fault(path, message, line + data.count(b"\n"))
            if cut:
                lines = data[:cut].splitlines()
                yield line, lines
                line += len(lines)
        if rest.strip():
            yield line, [rest]
        elif line == 1:
            raise_fault(path, "the file is empty.")


def read_chunk(path: Path, file: BinaryIO) -> bytes:
    """The next bytes of a file, which may be packed."""
    try:
        return file.read(CHUNK)
    except (OSError, EOFError, zlib.error) as error:
        raise_fault(path, f"is a broken gzip file ({error}). Get the whole file again.")


def read_head(path: Path, lines: list[bytes]) -> tuple[int, list[bytes], tuple[int, int], str | None]:
    """(number of the first row, rows, columns of source and target, delimiter) of the first block of a part."""
    start = next((n for n, line in enumerate(lines) if line.strip() and line.lstrip()[:1] not in b"#%"), None)
    if start is None:
        raise_fault(path, "has no edges in its first lines.", 1)
    first = lines[start].decode("utf-8", "replace").removeprefix("\ufeff").strip()
    usual = {"csv": ",", "tsv": "\t"}.get(file_format(path))
    delimiter = usual or next((mark for mark in (",", "\t", ";") if mark in first), None)
    names = [cell.strip().strip('"') for cell in first.split(delimiter)]
    if len(names) < 2:
        raise_fault(path, f"has {first!r:.60} in its first row; wanted a source and a target.", start + 1)
    header = not all(is_whole(cell) for cell in names[:2])
    columns = find_ends(names) if header else (0, 1)
    start += header
    return start + 1, lines[start:], columns, delimiter


def find_ends(names: Sequence[str]) -> tuple[int, int]:
    """The columns of sources and of targets, by their names or the first two."""
    source = list(names).index(find_first(names, SOURCE_NAMES))
    others = [n for n in range(len(names)) if n != source]  # not by name: two columns may have the same
    target = find_first([names[n] for n in others], TARGET_NAMES)
    return source, next(n for n in others if names[n] == target)


def is_whole(cell: str) -> bool:
    return cell.strip().lstrip("+-").isdecimal()


def raise_first_fault(
    path: Path, line: int, lines: list[bytes], columns: tuple[int, int], delimiter: str | None
) -> NoReturn:
    """Raise `MalformedData` for the first row that is no edge."""
    for n, row in enumerate(lines):
        text = row.decode("utf-8", "replace").strip()
        if not text:
            continue
        cells = text.split(delimiter)
        if len(cells) <= max(columns):
            raise_fault(path, f"has {text!r:.60}; wanted a source and a target.", line + n)
        for column in columns:
            if not is_whole(cells[column]) or len(cells[column]) > 19:
                cell = cells[column].strip()
                raise_fault(path, f"{cell!r:.40} is no node; wanted a whole number.", line + n, column + 1)
    raise_fault(path, "has rows with other numbers of columns than the first.", line)
