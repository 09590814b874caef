"""Masks by blocks of tokens: a given layout, neighbouring blocks, random ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ....errors import BadInput
from ..mask import Mask, PairGrid, Tiling
from ..part import check_count
from .tile_states import add_batch_heads, check_batch_heads, check_boolean, states_from


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Mask):
    """By blocks of row numbers: layout[row // block, j // block]; `layout` is boolean `[..., rows, columns]`."""

    layout: Tensor
    block: int
    formula = "layout[row(i) // block, j // block]"

    @property
    def by_rows(self) -> bool:
        return True

    def __post_init__(self) -> None:
        check_count(self.block, "Blocks' block", 1)
        check_boolean(
            self.layout,
            "Blocks' layout",
            (2, 3, 4),
            "boolean [rows, columns], with heads and batch in front if they matter",
        )

    def check(self, grid: PairGrid) -> None:
        expected = [-(-grid.queries // self.block), -(-grid.keys // self.block)]
        if list(self.layout.shape[-2:]) != expected:
            raise BadInput(
                f"Blocks' layout is {list(self.layout.shape)}; {grid.queries} queries and {grid.keys} keys in blocks "
                f"of {self.block} make [..., {expected[0]}, {expected[1]}]."
            )
        check_batch_heads("Blocks' layout", self.layout, grid)

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.permits(i, j, PairGrid(0, 0))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        return add_batch_heads(self.layout)[..., (i - grid.offset) // self.block, j // self.block]

    def tiles(self, tiling: Tiling) -> Tensor:
        return block_tiles(add_batch_heads(self.layout), self.block, tiling.row_numbers(), tiling.keys())


@dataclass(frozen=True, eq=False, repr=False)
class NearBlocks(Mask):
    """A window of whole blocks: the block of j is at most `reach` blocks from that of i."""

    block: int
    reach: int
    formula = "|i // block − j // block| ≤ reach"

    def __post_init__(self) -> None:
        check_count(self.block, "NearBlocks' block", 1)
        check_count(self.reach, "NearBlocks' reach")

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return (i // self.block - j // self.block).abs() <= self.reach

    def tiles(self, tiling: Tiling) -> Tensor:
        (i_first, i_last), (j_first, j_last) = tiling.place_ranges()
        least = i_first // self.block - j_last // self.block
        most = i_last // self.block - j_first // self.block
        return states_from((least >= -self.reach) & (most <= self.reach), (most < -self.reach) | (least > self.reach))


@dataclass(frozen=True, eq=False, repr=False)
class RandomBlocks(Mask):
    """Each block of queries attends to `count` blocks of keys, drawn by the seed: the same on every device."""

    block: int
    count: int
    seed: int = 0
    formula = "j's block is one of the count drawn for i's block"

    def __post_init__(self) -> None:
        check_count(self.block, "RandomBlocks' block", 1)
        check_count(self.count, "RandomBlocks' count")
        check_count(self.seed, "RandomBlocks' seed")

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        keys = max(int(i.max()), int(j.max())) + 1
        return self.permits(i, j, PairGrid(keys, keys, device=i.device))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        i, j = grid.at_places(i, j)
        return self.layout(grid)[i // self.block - self.first_block(grid), j // self.block]

    def first_block(self, grid: PairGrid) -> int:
        """The first block of queries."""
        first = grid.offset if grid.places is None else min(int(grid.places[0].min()), 0)
        return first // self.block

    def layout(self, grid: PairGrid) -> Tensor:
        """The blocks of keys that each block of queries attends to, boolean `[query blocks, key blocks]`."""
        end = grid.keys if grid.places is None else max(int(x.max()) for x in grid.places) + 1
        rows = torch.arange(self.first_block(grid), -(-end // self.block), device=grid.device)
        columns = torch.arange(-(-end // self.block), device=grid.device)
        layout = torch.zeros(len(rows), len(columns), dtype=torch.bool, device=grid.device)
        seeds = hash_index(hash_index(torch.full_like(rows, self.seed)) ^ rows)
        step = max(1, (1 << 24) // max(1, len(columns)))  # rows at once: a number for each pair of blocks takes memory
        for first in range(0, len(rows), step):
            drawn = hash_index(seeds[first : first + step, None] ^ columns)
            chosen = (drawn * len(columns) + columns).topk(min(self.count, len(columns)), dim=1).indices
            layout[first : first + step].scatter_(1, chosen, True)
        return layout

    def tiles(self, tiling: Tiling) -> Tensor:
        if tiling.grid.places is not None:  # rows of a tile need not be neighbours
            return super().tiles(tiling)
        start = tiling.grid.offset // self.block * self.block
        first, last = tiling.queries()
        return block_tiles(
            add_batch_heads(self.layout(tiling.grid)), self.block, (first - start, last - start), tiling.keys()
        )


def block_tiles(layout: Tensor, block: int, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor]) -> Tensor:
    """States of tiles, given by first and last rows and columns, from a layout of blocks: sums over rectangles."""
    exact = torch.int32 if layout[0, 0].numel() < 1 << 31 else torch.int64
    sums = pad(layout.cumsum(-1, dtype=exact).cumsum(-2, dtype=exact), (1, 0, 1, 0))
    (r_first, r_last), (c_first, c_last) = rows, columns
    top, bottom, left, right = r_first // block, r_last // block + 1, c_first // block, c_last // block + 1
    count = sums[..., bottom, right] - sums[..., top, right] - sums[..., bottom, left] + sums[..., top, left]
    return states_from(count == (bottom - top) * (right - left), count == 0)


def hash_index(x: Tensor) -> Tensor:
    """A 31-bit hash of each 64-bit number, the same on every device."""
    x = (x ^ (x >> 16)) * 0x45D9F3B & 0x7FFFFFFF
    x = (x ^ (x >> 15)) * 0x2C1B3C6D & 0x7FFFFFFF
    return x ^ (x >> 16)
