"""The algebra of masks: `&`, `|`, `~` over pairs, over tiles, and over `causal`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import regard as rg
from regard.attention.parts.mask import ALL, MIXED, NONE, PairGrid, Tiling

from .strategies import masks

grids = st.builds(PairGrid, st.integers(1, 13), st.integers(7, 13))


def pairs(mask: rg.Mask, grid: PairGrid) -> Tensor:
    return mask.permits(*grid.indices(), grid).expand(grid.queries, grid.keys)


@given(masks, masks, grids)
def test_operators_are_those_of_the_pairs(a: rg.Mask, b: rg.Mask, grid: PairGrid) -> None:
    left, right = pairs(a, grid), pairs(b, grid)
    assert torch.equal(pairs(a & b, grid), left & right)
    assert torch.equal(pairs(a | b, grid), left | right)
    assert torch.equal(pairs(~a, grid), ~left)


@given(masks, masks, grids)
def test_de_morgan(a: rg.Mask, b: rg.Mask, grid: PairGrid) -> None:
    assert torch.equal(pairs(~(a & b), grid), pairs(~a | ~b, grid))
    assert torch.equal(pairs(~(a | b), grid), pairs(~a & ~b, grid))
    tiling = Tiling(grid, 3, 4)
    assert torch.equal((~(a & b)).tiles(tiling), (~a | ~b).tiles(tiling))
    assert torch.equal((~(a | b)).tiles(tiling), (~a & ~b).tiles(tiling))
    assert (~(a & b)).causal == (~a | ~b).causal and (~(a | b)).causal == (~a & ~b).causal


@given(masks, grids, st.integers(1, 7), st.integers(1, 7))
def test_tiles_agree_with_the_predicate(mask: rg.Mask, grid: PairGrid, rows: int, columns: int) -> None:
    allowed = pairs(mask, grid)
    tiles = mask.tiles(Tiling(grid, rows, columns))[0, 0]
    for r, strip in enumerate(allowed.split(rows, 0)):
        for c, tile in enumerate(strip.split(columns, 1)):
            answer = int(tiles[r, c])
            assert answer == MIXED or bool(tile.all() if answer == ALL else (answer == NONE and not tile.any()))


@given(masks, grids)
def test_a_causal_mask_allows_no_later_key(mask: rg.Mask, grid: PairGrid) -> None:
    i, j = grid.indices()
    if mask.causal:
        assert not bool((pairs(mask, grid) & (j > i)).any())
    if mask.allows_future:
        assert bool((pairs(mask, grid) | (j <= i)).all())


@pytest.mark.parametrize(
    "mask, causal",
    [
        (rg.Everything(), False),
        (rg.Causal(), True),
        (rg.Window(before=3), True),
        (rg.Window(3, after=1), False),
        (rg.Dilated(3, 0, 2), True),
        (rg.Dilated(3, 1, 2), False),
        (rg.Global(1), False),
        (rg.Lengths(torch.tensor([2])), False),
        (rg.Pairs(torch.ones(3, 3, dtype=torch.bool).tril()), False),
        (rg.Causal() & rg.Global(1), True),
        (rg.Causal() | rg.Global(1), False),
        (rg.Causal() | rg.Window(3), True),
        (~rg.Causal(), False),
        (~~rg.Causal(), True),
        (~rg.Everything(), True),
        (~(~rg.Causal() | rg.Global(1)), True),
        (rg.longformer(8, causal=True), True),
        (rg.longformer(8), False),
        (rg.bigbird(4), False),
    ],
    ids=str,
)
def test_causal(mask: rg.Mask, causal: bool) -> None:
    assert mask.causal is causal


def test_a_mask_of_your_own_is_not_known_to_be_causal() -> None:
    class Backward(rg.Mask):
        def allow(self, i: Tensor, j: Tensor) -> Tensor:
            return j < i

    assert not Backward().causal and (Backward() & rg.Causal()).causal
