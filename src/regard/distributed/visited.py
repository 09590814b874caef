"""The tiles of a mask that have allowed pairs, as runs along the rows of tiles: memory proportional to the runs.

A row of a causal mask, of a window or of packed documents is one run, whatever the length; so ten million tokens are
planned with in tiles of 512.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.execution import mask_cache
from ..attention.parts.mask import NONE, Mask, PairGrid, Tiling
from ..attention.parts.tiles import tile_states

COARSE = 16  # tiles in each direction whose states are looked at together first
TILES = 1 << 22  # tiles whose states are looked at together
BLOCKS = 64  # of rows of a tile that are looked at together when its heavy rows are searched
HEAVY = 4.0  # times the tiles of the median row, which a row must visit to count as heavy; such rows are few
HEAVY_SHARE = 1 / 8  # of all columns, which it must visit too


@dataclass(frozen=True, eq=False)
class TileRuns:
    """Visited tiles: of row `row[n]` the columns `first[n] … last[n] − 1`; sorted by row, then by column."""

    rows: int
    columns: int
    row: Tensor
    first: Tensor
    last: Tensor

    @property
    def runs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.row, self.first, self.last

    def counts(self) -> Tensor:
        """Visited tiles of each row, `[rows]`."""
        return self.row.new_zeros(self.rows).index_add_(0, self.row, self.last - self.first)

    def column_counts(self) -> Tensor:
        """Rows that visit each column, `[columns]`."""
        one = torch.ones_like(self.first)
        edges = self.first.new_zeros(self.columns + 1).index_add_(0, self.first, one).index_add_(0, self.last, -one)
        return edges.cumsum(0)[:-1]

    def visited_by(self, owner: Tensor, ranks: int) -> Tensor:
        """Whether a row of each rank visits each column, `[ranks, columns]`; `owner [rows]` has the ranks."""
        width = self.columns + 1
        line, one = owner[self.row] * width, torch.ones_like(self.first, dtype=torch.int32)
        edges = torch.zeros(ranks * width, dtype=torch.int32)
        edges.index_add_(0, line + self.first, one).index_add_(0, line + self.last, -one)
        return edges.view(ranks, width).cumsum(1, dtype=torch.int32)[:, :-1] > 0

    def rows_visiting(self, columns: Tensor) -> Tensor:
        """Whether each row visits one of the columns, `[rows]`; `columns [columns]` is boolean."""
        before = torch.nn.functional.pad(columns.long().cumsum(0), (1, 0))
        inside = before[self.last] > before[self.first]
        return torch.zeros(self.rows, dtype=torch.bool).index_fill_(0, self.row[inside], True)

    def drop(self, rows: Tensor) -> TileRuns:
        """The same without some rows, `[rows]` boolean."""
        keep = ~rows[self.row]
        return TileRuns(self.rows, self.columns, self.row[keep], self.first[keep], self.last[keep])

    def append(self, other: TileRuns) -> TileRuns:
        """These rows, then those of another."""
        row, first, last = (torch.cat(pair) for pair in zip(self.runs, other.runs, strict=True))
        row[len(self.row) :] += self.rows
        return TileRuns(self.rows + other.rows, self.columns, row, first, last)

    def dense(self) -> Tensor:
        """Whether each tile is visited, `[rows, columns]`."""
        return self.visited_by(torch.arange(self.rows), self.rows)


@dataclass(frozen=True, eq=False)
class Visited:
    """The visited tiles of a mask, twice: all of them, and without the heavy rows.

    `heavy` are the numbers of queries that visit far more than others (global tokens), `heavy_runs` their tiles, a row
    for each; `light` the tiles of all others. `tiles` are those of all queries.
    """

    tiles: TileRuns
    light: TileRuns
    heavy: Tensor
    heavy_runs: TileRuns


def find_visited(mask: Mask, grid: PairGrid, tile: int) -> Visited:
    """The visited tiles of a mask, cached with it."""
    key = (Visited, grid.queries, grid.keys, tile)
    return mask_cache(mask).get(key, lambda: make_visited(mask, grid, tile))


def make_visited(mask: Mask, grid: PairGrid, tile: int) -> Visited:
    tiles = visited_runs(mask, grid, tile, tile)
    none = TileRuns(0, tiles.columns, *[tiles.row[:0]] * 3)
    plain = Visited(tiles, tiles, tiles.row[:0], none)
    counts = tiles.counts()
    limit = max(HEAVY * float(counts.double().median()), tiles.columns * HEAVY_SHARE) if len(counts) else 0.0
    irregular = counts > limit
    if tile == 1 or not 0 < int(irregular.sum()) * HEAVY <= tiles.rows:
        return plain
    height = math.gcd(tile, max(tile // BLOCKS, 1))
    blocks = split(irregular.nonzero()[:, 0], tile // height, -(-grid.queries // height))
    by_block = visited_runs(mask, grid, height, tile, blocks)  # a row for each of `blocks`
    mixed = by_block.counts() > limit
    rows = split(blocks[mixed], height, grid.queries)
    by_row = visited_runs(mask, grid, 1, tile, rows)
    heavy = by_row.counts() > limit
    if not bool(heavy.any()):
        return plain
    others = by_block.drop(mixed).append(by_row.drop(heavy))
    light = unite_rows(others, torch.cat([blocks * height, rows]) // tile, tiles.rows)
    regular = tiles.drop(irregular)
    row, first, last = (torch.cat(pair) for pair in zip(light.runs, regular.runs, strict=True))
    order = torch.argsort(row, stable=True)
    number, chosen = heavy.cumsum(0) - 1, heavy[by_row.row]
    return Visited(
        tiles,
        TileRuns(tiles.rows, tiles.columns, row[order], first[order], last[order]),
        rows[heavy],
        TileRuns(
            int(heavy.sum()), tiles.columns, number[by_row.row[chosen]], by_row.first[chosen], by_row.last[chosen]
        ),
    )


def split(numbers: Tensor, parts: int, count: int) -> Tensor:
    """The numbers of the parts of some blocks, each of so many parts, of which there are `count` in all."""
    within = (numbers[:, None] * parts + torch.arange(parts)).flatten()
    return within[within < count]


def unite_rows(runs: TileRuns, group: Tensor, groups: int) -> TileRuns:
    """The columns that any row of each group visits; `group [rows]` has the group of each."""
    here = group.unique()
    visited = runs.visited_by(torch.searchsorted(here, group), len(here))
    row, first, last = find_runs(visited, torch.arange(runs.columns))
    return TileRuns(groups, runs.columns, here[row], first, last)


def find_runs(visited: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(row, first, last + 1) of the runs in `visited [rows, columns]`; `columns` are the numbers of the columns."""
    gap = torch.ones(len(columns) + 1, dtype=torch.bool)
    gap[1:-1] = columns.diff() != 1
    before = torch.nn.functional.pad(visited, (1, 1))
    row, start = (visited & (~before[:, :-2] | gap[:-1])).nonzero().unbind(1)
    _, end = (visited & (~before[:, 2:] | gap[1:])).nonzero().unbind(1)
    return row, columns[start], columns[end] + 1


def visited_runs(mask: Mask, grid: PairGrid, height: int, width: int, chosen: Tensor | None = None) -> TileRuns:
    """The visited tiles of `height` × `width` pairs, of all rows of tiles or of the chosen ones, in their order.

    Large grids are looked at in coarse tiles first.
    """
    down, across = -(-grid.queries // height), -(-grid.keys // width)
    numbers = torch.arange(down) if chosen is None else chosen
    coarse = None
    if mask.has_tiles and len(numbers) * across > TILES and across > COARSE:
        size = width * COARSE
        coarse = states_visited(mask, Tiling(grid, max(size, height), size))
    parts, at = [], 0
    while at < len(numbers):
        count, columns = next_rows(numbers[at:], height, width, across, coarse)
        rows = numbers[at : at + count]
        states = states_visited(mask, Tiling(grid, height, width, *(x.to(grid.device) for x in (rows, columns))))
        row, first, last = find_runs(states, columns)
        parts.append((row + at, first, last))
        at += count
    parts = parts or [(torch.empty(0, dtype=torch.long),) * 3]
    row, first, last = (torch.cat(x) for x in zip(*parts, strict=True))
    return TileRuns(len(numbers), across, row, first, last)


def next_rows(rows: Tensor, height: int, width: int, across: int, coarse: Tensor | None) -> tuple[int, Tensor]:
    """How many of the rows are looked at together, and the columns that they may visit."""
    if coarse is None:
        return max(1, TILES // max(across, 1)), torch.arange(across)
    line = rows * height // max(width * COARSE, height)
    count = min(len(rows), COARSE)
    while True:
        wide = coarse[line[:count].unique()].any(0).nonzero()[:, 0]
        columns = (wide[:, None] * COARSE + torch.arange(COARSE)).flatten()
        columns = columns[columns < across]
        more = min(2 * count, len(rows))
        if more == count or 2 * count * len(columns) > TILES:
            return count, columns
        count = more


def states_visited(mask: Mask, tiling: Tiling) -> Tensor:
    """Which tiles have allowed pairs in some row of the batch and some head, on the CPU."""
    return (tile_states(mask, tiling) != NONE).flatten(0, 1).any(0).cpu()
