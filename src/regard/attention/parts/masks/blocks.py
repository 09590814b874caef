"""Masks by blocks of tokens: a given layout, neighbouring blocks, random ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ....errors import BadInput
from ...execution import mask_cache
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


MANY_BLOCKS = 1 << 14
"""Blocks beyond which the drawn ones alone get a number, and not every pair of blocks."""


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
        drawn = self.drawn_blocks(grid)[i // self.block - self.first_block(grid)]  # [..., count]
        return (drawn == (j // self.block)[..., None]).any(-1)

    def first_block(self, grid: PairGrid) -> int:
        """The first block of queries."""
        first = grid.offset if grid.places is None else min(int(grid.places[0].min()), 0)
        return first // self.block

    def drawn_blocks(self, grid: PairGrid) -> Tensor:
        """The blocks of keys that each block of queries attends to, `[query blocks, count]`, drawn once for a grid."""
        end = grid.keys if grid.places is None else max(int(x.max()) for x in grid.places) + 1
        rows, columns, device = self.first_block(grid), -(-end // self.block), grid.device
        if torch.compiler.is_compiling():
            return self.draw_blocks(rows, columns, device)
        return mask_cache(self).get(
            ("drawn", rows, columns, str(device)), lambda: self.draw_blocks(rows, columns, device)
        )

    def draw_blocks(self, first: int, blocks: int, device: torch.device | str) -> Tensor:
        rows, columns = torch.arange(first, blocks, device=device), torch.arange(blocks, device=device)
        seeds = hash_index(hash_index(torch.full_like(rows, self.seed)) ^ rows)
        drawn = columns.new_empty(len(rows), min(self.count, len(columns)))
        if blocks > MANY_BLOCKS:
            return draw_distinct(seeds, blocks, drawn)
        step = max(1, (1 << 24) // max(1, len(columns)))  # rows at once: a number for each pair of blocks takes memory
        for at in range(0, len(rows), step):
            numbers = hash_index(seeds[at : at + step, None] ^ columns) * len(columns) + columns
            drawn[at : at + step] = numbers.topk(drawn.shape[1], dim=1).indices
        return drawn

    def tiles(self, tiling: Tiling) -> Tensor:
        if tiling.grid.places is not None:  # rows of a tile need not be neighbours
            return super().tiles(tiling)
        drawn, start = self.drawn_blocks(tiling.grid), self.first_block(tiling.grid)
        (top, bottom), (left, right) = ((x // self.block for x in ends) for ends in (tiling.queries(), tiling.keys()))
        steps = (tiling.rows - 2) // self.block + 2 if tiling.rows > 1 else 1  # blocks that a tile may meet
        row = top + torch.arange(steps, device=top.device)  # [tile rows, steps]
        blocks = drawn[(row - start).clamp(max=len(drawn) - 1)].flatten(1)
        inside = (row <= bottom).int().repeat_interleave(drawn.shape[1], 1)
        count = count_in_ranges(blocks, inside, left[0], right[0])
        return states_from(count == (bottom - top + 1) * (right - left + 1), count == 0)


def draw_distinct(seeds: Tensor, blocks: int, drawn: Tensor) -> Tensor:
    """`drawn [rows, count]` filled with distinct numbers below `blocks` for each of `seeds` (Floyd's algorithm)."""
    for n in range(drawn.shape[1]):
        last = blocks - drawn.shape[1] + n
        number = hash_index(seeds ^ (n + 1)) % (last + 1)
        taken = (drawn[:, :n] == number[:, None]).any(1)
        drawn[:, n] = torch.where(taken, last, number)
    return drawn


def count_in_ranges(values: Tensor, weight: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """The weight of the values `[rows, values]` from `first` to `last [ranges]`, which both ascend if one does.

    `[rows, ranges]`, in time proportional to values and ranges, not to their product.
    """
    order = (first + last).argsort()
    first, last = first[order], last[order]
    change = weight.new_zeros(len(values), len(first) + 1)
    change.scatter_add_(1, torch.searchsorted(last, values), weight)
    change.scatter_add_(1, torch.searchsorted(first, values, right=True), -weight)
    return change.cumsum(1, dtype=weight.dtype)[:, order.argsort()]


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
