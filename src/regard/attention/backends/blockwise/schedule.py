"""The work of a mask: the spans of keys that each chunk of queries visits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...call import LoweredCall
from ...parts.mask import ALL, MIXED, NONE, Mask, PairGrid, Tiling
from ...parts.tiles import tile_states

ELEMENTS = 1 << 20  # scores held at once


class KeySpan(NamedTuple):
    """Keys `first … last − 1`, and the parts of them where the mask must be evaluated pair by pair."""

    first: int
    last: int
    mixed: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class QueryChunk:
    """Query rows `first … last − 1` of the batch rows in `batch`, and the spans of keys that they visit."""

    batch: slice
    first: int
    last: int
    spans: tuple[KeySpan, ...]


@dataclass(frozen=True)
class ChunkShape:
    """`rows` queries of `batch` rows of the batch in a chunk; keys in tiles of `columns`, at most `width` at once."""

    rows: int
    columns: int
    width: int
    batch: int


def chunk_shape(call: LoweredCall, elements: int | None = None) -> ChunkShape:
    """The shape of chunks of at most so many scores, by default `ELEMENTS`."""
    elements = ELEMENTS if elements is None else elements
    heads, queries, keys = call.q.shape[1], call.q.shape[2], call.k.shape[2]
    rows = 128 if queries > 128 else max(queries, 1)
    columns = 64
    width = max(elements // max(heads * rows, 1) // columns, 4) * columns
    width = min(width, 2048, -(-keys // columns) * columns)
    return ChunkShape(rows, columns, width, max(1, elements // max(heads * rows * width, 1)))


def plan_chunks(call: LoweredCall, shape: ChunkShape | None = None) -> list[QueryChunk]:
    """The chunks of a call, of a shape or by default that of `chunk_shape`, cached in its plan."""
    shape = shape or chunk_shape(call)
    return call.plan.get(("blockwise chunks", shape), lambda: make_chunks(call.mask, call.grid, shape))


def make_chunks(mask: Mask, grid: PairGrid, shape: ChunkShape) -> list[QueryChunk]:
    """All chunks in order. Rows of the batch whose tiles differ have chunks of their own."""
    states = merge_heads(mask, grid, shape.rows, shape.columns)
    separate = states.shape[0] > 1 and bool((states != states[:1]).any())
    step = 1 if separate else max(shape.batch, 1)
    tables = states.tolist() if separate else states[:1].tolist()
    spans = [[tuple(find_spans(row, grid.keys, shape)) for row in table] for table in tables]
    return [
        QueryChunk(slice(b, min(b + step, grid.batch)), first, min(first + shape.rows, grid.queries), row_spans)
        for b in range(0, grid.batch, step)
        for first, row_spans in zip(range(0, grid.queries, shape.rows), spans[b if separate else 0], strict=True)
    ]


def merge_heads(mask: Mask, grid: PairGrid, rows: int, columns: int) -> Tensor:
    """The mask's state of each tile over all heads, `[batch or 1, tile rows, tile columns]`."""
    states = tile_states(mask, Tiling(grid, rows, columns))
    if states.shape[1] == 1:
        return states[:, 0]
    least, most = states.amin(1), states.amax(1)
    return torch.where(most == NONE, NONE, torch.where(least == ALL, ALL, MIXED)).to(torch.int8)


def find_spans(row: list[int], keys: int, shape: ChunkShape) -> list[KeySpan]:
    """Runs of tiles that have allowed pairs, cut to the width."""
    spans: list[KeySpan] = []
    tiles = max(shape.width // shape.columns, 1)
    start = 0
    while start < len(row):
        if row[start] == NONE:
            start += 1
            continue
        end = start
        while end < len(row) and row[end] != NONE and end - start < tiles:
            end += 1
        whole, *mixed = (
            (first * shape.columns, min(last * shape.columns, keys))
            for first, last in [(start, end), *find_runs([tile for tile in range(start, end) if row[tile] != ALL])]
        )
        spans.append(KeySpan(*whole, tuple(mixed)))
        start = end
    return spans


def find_runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Consecutive numbers as (first, last + 1)."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs
