"""Backward pass with relative vectors: ds is computed once, stored, and read by the kernels that need it.

The kernel over columns of tiles computes dk and dv and leaves every tile's ds in scratch memory. A tile has two blocks
of distances: on and above its diagonal, and below. Two more kernels rotate ds so that its columns are distances:

    dq = scale · Σ_j ds·k,   d rel_q = scale · Σ_x ds[x]·rel_vectors[x],   d rel_vectors[x] = scale · Σ_i ds[x]ᵀ·rel_q

and, where keys have vectors of their own, d key_vectors[x] = scale · Σ_j ds[x]ᵀ·k.
The scratch memory has a fixed size. What does not fit is done in chunks: of heads, then of rows of the batch, then of
columns of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...parts.mask import Mask
from ..launch import TileShape
from ..tile_lists import TileLists, renumber, split_ranges, tile_lists
from .kernels import d_key_vectors_kernel, d_rel_vectors_kernel, dkdv_kernel, dq_relative_kernel
from .placed import add_placed_vectors, order_by_entry
from .schedule import DotConfig, TileSchedule, split_limit

if TYPE_CHECKING:
    from .passes import DotInputs, OutputGrad

SCRATCH = 1 << 29  # bytes
NO_LIMIT = 1 << 30


class OrderedTiles(NamedTuple):
    """The listed tiles in lists by row or by diagonal, ascending by column.

    `ds_index` is a tile's index in the lists by column, in whose order ds is stored. `key` is (group · lists + list) ·
    columns + column, ascending.
    """

    tile: Tensor  # its column, or its row in lists by diagonal
    ds_index: Tensor
    key: Tensor
    lists: int
    columns: int

    def between(self, groups: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Where the tiles of columns first … last − 1 begin and end in each list."""
        lists = groups[:, None] * self.lists + torch.arange(self.lists, device=groups.device)
        begin, end = (torch.searchsorted(self.key, lists * self.columns + x) for x in (first, last))
        return begin, end

    def arguments(self) -> dict[str, Tensor]:
        return {"p_tile": self.tile, "p_ds_index": self.ds_index}


def order_tiles(by_row: TileLists, columns: int) -> tuple[OrderedTiles, OrderedTiles]:
    """The tiles by row, and by diagonal (column − row + rows − 1)."""
    rows, count, owner = by_row.lists, len(by_row.tile), by_row.owners()
    group, row, column = owner // rows, owner % rows, by_row.tile.long()
    index = torch.empty_like(owner)
    index[torch.sort(group * columns + column, stable=True).indices] = torch.arange(count, device=owner.device)
    diagonals = rows + columns - 1
    key, order = torch.sort((group * diagonals + column - row + rows - 1) * columns + column)
    return (
        OrderedTiles(by_row.tile, index.int(), owner * columns + column, rows, columns),
        OrderedTiles(row[order].int(), index[order].int(), key, diagonals, columns),
    )


class Chunk(NamedTuple):
    """Some heads of some rows of the batch, and of those some columns of tiles."""

    head: int
    heads: int
    row: int
    rows: int
    first: int
    last: int

    def pairs(self) -> list[tuple[int, int]]:
        """(batch row, head) of all, head by head."""
        heads, rows = range(self.head, self.head + self.heads), range(self.row, self.row + self.rows)
        return [(b, h) for h in heads for b in rows]


def make_chunks(bytes_of: list[list[list[int]]]) -> Iterator[Chunk]:
    """Chunks that fit the scratch memory: heads if one fits, or batch rows of one head, or columns of one of those.

    `bytes_of[b][h]` has the bytes that each column of tiles needs.
    """
    batch, heads, columns = len(bytes_of), len(bytes_of[0]), len(bytes_of[0][0])
    totals = [[sum(column) for column in row] for row in bytes_of]
    largest_head, largest = max(sum(row[h] for row in totals) for h in range(heads)), max(map(max, totals))
    if largest_head <= SCRATCH:
        step = SCRATCH // max(largest_head, 1)
        yield from (Chunk(h, min(step, heads - h), 0, batch, 0, columns) for h in range(0, heads, step))
    elif largest <= SCRATCH:
        step = SCRATCH // largest
        yield from (
            Chunk(h, 1, b, min(step, batch - b), 0, columns) for h in range(heads) for b in range(0, batch, step)
        )
    else:
        for h in range(heads):
            for b in range(batch):
                for first, last in column_ranges(bytes_of[b][h]):
                    yield Chunk(h, 1, b, 1, first, last)


def column_ranges(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of columns that fit the scratch memory together; a larger column is alone."""
    first, total = 0, 0
    for x, size in enumerate(sizes):
        if x > first and total + size > SCRATCH:
            yield first, x
            first, total = x, 0
        total += size
    yield first, len(sizes)


class ChunkSchedule(NamedTuple):
    """The kernels of a chunk, and the number of tiles whose ds it stores."""

    chunk: Chunk
    base: Tensor  # where the tiles of each batch row and head begin, less the index of their first
    tiles: int
    dkdv: TileSchedule
    dq: TileSchedule
    d_rel_vectors: TileSchedule
    d_key_vectors: TileSchedule | None


class RelativeSchedule(NamedTuple):
    """All chunks; they write `diagonals` of tiles with two halves of distances each, from `first` on."""

    chunks: list[ChunkSchedule]
    shape: TileShape
    diagonals: int
    first: int
    accumulates: bool  # whether a row of tiles is the sum of several chunks
    by_row: TileLists
    row_order: OrderedTiles


def relative_schedule(c: DotConfig, mask: Mask, shape: TileShape) -> RelativeSchedule:
    """The chunks of a problem's backward pass, with tiles of a (square) shape."""
    by_row, by_column = (tile_lists(mask, c.grid, shape.rows, shape.columns, transposed=x) for x in (False, True))
    row_order, diagonal_order = order_tiles(by_row, by_column.lists)
    starts = by_column.starts.tolist()
    group = lambda b, h: b * by_column.batch_stride + h * by_column.head_stride  # noqa: E731
    size = shape.rows * shape.columns * ds_dtype(c).itemsize
    counts = [[size * (last - first) for first, last in pairwise(x)] for x in starts]
    chunks = list(make_chunks([[counts[group(b, h)] for h in range(c.grid.heads)] for b in range(c.grid.batch)]))
    schedules = []
    for chunk in chunks:
        pairs = chunk.pairs()
        groups = torch.tensor([group(b, h) for b, h in pairs], device=by_column.starts.device)
        instances = torch.tensor([b * c.grid.heads + h for b, h in pairs], device=groups.device)
        base, total = [0] * c.instances, 0
        for b, h in pairs:
            first, last = (starts[group(b, h)][x] for x in (chunk.first, chunk.last))
            base[b * c.grid.heads + h] = total - first
            total += last - first
        adds = chunk.last - chunk.first < len(starts[0]) - 1
        bases = torch.tensor(base, device=groups.device)
        schedules.append(
            ChunkSchedule(
                chunk, bases, total,
                dkdv_schedule(c, shape, by_column, chunk, groups, instances),
                dq_schedule(c, shape, row_order, chunk, groups, instances, bases, adds),
                diagonal_schedule(c, d_rel_vectors_kernel, shape, diagonal_order, chunk, groups, instances, bases),
                diagonal_schedule(c, d_key_vectors_kernel, shape, diagonal_order, chunk, groups, instances, bases)
                if c.key_vectors else None,
            )
        )  # fmt: skip
    accumulates = any(chunk.first for chunk in chunks)
    first = c.origin - (by_row.lists - 1) * shape.rows
    return RelativeSchedule(schedules, shape, diagonal_order.lists, first, accumulates, by_row, row_order)


def ds_dtype(c: DotConfig) -> torch.dtype:
    """The type that ds is stored in."""
    return torch.float32 if c.exact_ds else c.dtype


def dkdv_schedule(
    c: DotConfig, shape: TileShape, tiles: TileLists, chunk: Chunk, groups: Tensor, instances: Tensor
) -> TileSchedule:
    starts = tiles.starts.long()[groups]
    begin, end = (starts[:, chunk.first + x : chunk.last + x] for x in (0, 1))
    items = split_ranges(begin, end, split_limit(c, len(tiles.tile) // tiles.groups * len(groups)))
    listed = {"p_tile": tiles.tile, "p_bits": tiles.bits, "p_packed": tiles.packed}
    return TileSchedule(c, dkdv_kernel, shape, renumber(items, instances, chunk.first), {"HEADS": 1, **listed})


def dq_schedule(
    c: DotConfig, shape: TileShape, order: OrderedTiles, chunk: Chunk, groups: Tensor, instances: Tensor,
    base: Tensor, adds: bool,
) -> TileSchedule:  # fmt: skip
    begin, end = order.between(groups, chunk.first, chunk.last)
    limit = NO_LIMIT if adds else 2 * split_limit(c, int((end - begin).sum()))
    items = renumber(split_ranges(begin, end, limit), instances)
    light = shape._replace(warps=4 if c.placed is None else 8, stages=2)  # little work: the kernel waits for memory
    return TileSchedule(c, dq_relative_kernel, light, items, {"p_ds_base": base, "ADD": adds, **order.arguments()})


def diagonal_schedule(
    c: DotConfig, kernel: Any, shape: TileShape, order: OrderedTiles, chunk: Chunk, groups: Tensor, instances: Tensor,
    base: Tensor,
) -> TileSchedule:  # fmt: skip
    """A kernel over diagonals of tiles, which writes two halves of distances for each."""
    items = split_ranges(*order.between(groups, chunk.first, chunk.last), NO_LIMIT)
    items = renumber(items, instances)._replace(slot=items.group * order.lists + items.row)
    light = shape._replace(warps=4, stages=2)
    rows = order.lists - order.columns + 1
    return TileSchedule(c, kernel, light, items, {"p_ds_base": base, "tile_rows": rows, **order.arguments()})


def relative_gradients(inputs: DotInputs, rows: OutputGrad, relative: RelativeSchedule) -> tuple[Tensor, ...]:
    """dq, dk and dv (for each query head), d rel_q, and d rel_vectors and d key_vectors along lines (at explicit places
    as tables), `[heads, length, d]` each; the last is empty without vectors for keys."""
    c, plan = inputs.config, inputs.plan
    empty = plan.empty if c.group_size == 1 else plan.empty32
    dk, dv = empty((*c.front, c.grid.keys, c.head_dim)), empty((*c.front, c.grid.keys, c.value_dim))
    zeros = lambda size: torch.zeros(size, dtype=torch.float32, device=plan.device)  # noqa: E731
    dq, drel_q = ((zeros if relative.accumulates else plan.empty)(plan.queries) for _ in range(2))
    line, key_line = (zeros((c.grid.heads, n, c.head_dim)) for n in (c.length, c.length if c.key_vectors else 0))
    size = relative.shape.rows
    tiles = max(x.tiles for x in relative.chunks)
    ds = torch.empty((tiles, size * size), dtype=ds_dtype(c), device=plan.device)
    tensors = (*inputs.operands(), inputs.seed, *rows)
    by_distance = sum_diagonals if c.placed is None else sum_entries
    add_vectors = by_distance(inputs, relative, ds, line, key_line)
    for x in relative.chunks:
        x.dkdv.sum_lists(tensors, (dk, dv), size, extra=(ds, x.base))
        x.dq.sum_lists((inputs.k, inputs.rel_vectors, ds, inputs.places), (dq, drel_q), size, c.scale)
        add_vectors(x)
    return dq, dk, dv, drel_q, line, key_line


def sum_diagonals(
    inputs: DotInputs, relative: RelativeSchedule, ds: Tensor, line: Tensor, key_line: Tensor
) -> Callable[[ChunkSchedule], None]:
    """What adds a chunk's gradients of the vectors, from its ds, to their lines: diagonal by diagonal of tiles."""
    count = relative.diagonals * relative.shape.rows
    most = max(x.chunk.heads * x.chunk.rows for x in relative.chunks)
    halves = inputs.plan.empty32((most, 2 * count * inputs.config.head_dim))

    def add(x: ChunkSchedule) -> None:
        x.d_rel_vectors.start(inputs.rel_q, ds, halves)
        add_halves(line, halves, x.chunk, relative)
        if x.d_key_vectors is not None:
            x.d_key_vectors.start(inputs.k, ds, halves)
            add_halves(key_line, halves, x.chunk, relative)

    return add


def sum_entries(
    inputs: DotInputs, relative: RelativeSchedule, ds: Tensor, table: Tensor, key_table: Tensor
) -> Callable[[ChunkSchedule], None]:
    """The same at explicit places: block by block of a table's entries."""
    tiles = order_by_entry(inputs, relative.by_row, relative.row_order, relative.shape.rows)

    def add(x: ChunkSchedule) -> None:
        add_placed_vectors(inputs, table, ds, x.base, x.chunk, tiles, relative, False)
        if inputs.config.key_vectors:
            add_placed_vectors(inputs, key_table, ds, x.base, x.chunk, tiles, relative, True)

    return add


def add_halves(line: Tensor, halves: Tensor, chunk: Chunk, relative: RelativeSchedule) -> None:
    """Add a chunk's sums by diagonal, low and high half of each one's distances, to the line `[heads, length, d]`."""
    size, head_dim = relative.shape.rows, line.shape[2]
    count = relative.diagonals * size
    parts = halves[: chunk.heads * chunk.rows].view(chunk.heads, chunk.rows, relative.diagonals, 2, size * head_dim)
    parts = parts[:, 0] if chunk.rows == 1 else parts.sum(1)
    for half, first in enumerate((relative.first - size, relative.first)):
        target = line[chunk.head : chunk.head + chunk.heads, first : first + count]
        target += parts[:, :, half].reshape(chunk.heads, count, head_dim)
