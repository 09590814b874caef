"""Tile lists beside the mask itself, pair by pair, and the work items that the lists are cut into."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import regard as rg
from regard.attention.kernels.tile_lists import TileLists, by_diagonal, split_ranges, tile_lists
from regard.attention.parts.mask import PairGrid

from .test_dot import MASKS


def listed_pairs(tiles: TileLists, grid: PairGrid, corner: Any) -> Tensor:
    """Every pair's answer from the lists; `corner(line, tile)` is the (row, column) of a listed tile."""
    pairs = torch.zeros(grid.batch, grid.heads, grid.queries + tiles.rows, grid.keys + tiles.columns, dtype=torch.bool)
    for b in range(grid.batch):
        for h in range(grid.heads):
            starts = tiles.starts[b * tiles.batch_stride + h * tiles.head_stride].tolist()
            for line, (first, last) in enumerate(itertools.pairwise(starts)):
                for tile, bits in zip(tiles.tile[first:last].tolist(), tiles.bits[first:last].tolist(), strict=True):
                    row, column = (x * y for x, y in zip(corner(line, tile), (tiles.rows, tiles.columns), strict=True))
                    words = tiles.packed[bits].long()[..., None] if bits >= 0 else torch.tensor(-1)
                    answers = ((words >> torch.arange(32)) & 1).bool().expand(tiles.rows, -1, 32).flatten(1)
                    pairs[b, h, row : row + tiles.rows, column : column + tiles.columns] = answers.expand(
                        -1, tiles.columns
                    )
    assert not pairs[:, :, grid.queries :].any()
    assert not pairs[..., grid.keys :].any()
    return pairs[:, :, : grid.queries, : grid.keys]


@pytest.mark.parametrize("name", MASKS)
def test_lists_agree_with_the_mask(name: str) -> None:
    mask, grid = MASKS[name](), PairGrid(21, 37, 2, 2)
    want = mask.permits(*grid.indices(), grid).expand(2, 2, 21, 37)
    by_row, by_column = tile_lists(mask, grid, 32, 32), tile_lists(mask, grid, 32, 32, transposed=True)
    assert torch.equal(listed_pairs(by_row, grid, lambda line, tile: (line, tile)), want)
    assert torch.equal(listed_pairs(by_column, grid, lambda line, tile: (tile, line)), want)
    assert torch.equal(listed_pairs(by_diagonal(by_row, grid), grid, lambda line, tile: (tile, tile + line)), want)
    assert tile_lists(mask, grid, 32, 32) is by_row


def test_lists_change_when_a_tensor_of_the_mask_is_written_to() -> None:
    lengths, grid = torch.tensor([3, 5]), PairGrid(8, 8, 2, 1)
    before = tile_lists(rg.Lengths(lengths), grid, 16, 32)
    assert tile_lists(rg.Lengths(lengths), grid, 16, 32) is before
    lengths[0] = 0
    assert len(tile_lists(rg.Lengths(lengths), grid, 16, 32).tile) < len(before.tile)


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_work_items_cover_every_list_once(limit: int) -> None:
    tiles = tile_lists(rg.Causal() | rg.Global(1), PairGrid(100, 130), 16, 32)
    items = split_ranges(tiles.starts[:, :-1].long(), tiles.starts[:, 1:].long(), limit)
    sizes = items.last - items.first
    assert sizes.max() <= limit
    assert (sizes.diff() <= 0).all()
    assert sorted(x for a, b in zip(items.first, items.last, strict=True) for x in range(a, b)) == list(
        range(len(tiles.tile))
    )
    assert items.splits == (items.slot >= 0).sum() == (items.split_rows[:, 3] - items.split_rows[:, 2]).sum()
