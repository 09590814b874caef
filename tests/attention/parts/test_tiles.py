"""Tiles of masks that only define `allow`."""

import pytest
import torch

import regard as rg
from regard.attention.backends.blockwise.schedule import merge_heads
from regard.attention.parts import tiles
from regard.attention.parts.mask import ALL, MIXED, NONE, PairGrid, Tiling
from regard.attention.parts.tiles import tile_states


class Prefix(rg.Mask):
    """A mask of a user's own: the first keys are visible to all, the others to later queries."""

    def __init__(self, tokens: int):
        self.tokens = tokens

    def allow(self, i, j):
        return (j <= i) | (j < self.tokens)


class ByHead(rg.Mask):
    """One that depends on batch and head."""

    def allow(self, i, j):
        return (i - j).abs() <= torch.arange(3)[None, :, None, None] * torch.tensor([2, 20])[:, None, None, None]


def states_of_pairs(mask: rg.Mask, queries: int, keys: int, rows: int, columns: int) -> torch.Tensor:
    pairs = mask.dense(queries, keys)
    pairs = pairs.reshape(*(1,) * (4 - pairs.dim()), *pairs.shape)
    rows_of_states = []
    for strip in pairs.split(rows, 2):
        tiles = [(x.any(-1).any(-1), x.all(-1).all(-1)) for x in strip.split(columns, 3)]
        states = [torch.where(every, ALL, torch.where(some, MIXED, NONE)) for some, every in tiles]
        rows_of_states.append(torch.stack(states, -1))
    return torch.stack(rows_of_states, -2)


@pytest.mark.parametrize("mask", [Prefix(7), Prefix(0), ~Prefix(7), Prefix(30) & rg.Window(9, 2), ByHead()], ids=repr)
@pytest.mark.parametrize(("queries", "keys"), [(37, 37), (5, 41), (41, 29)])
def test_states_of_a_users_mask_are_exact(mask, queries, keys, monkeypatch):
    monkeypatch.setattr(tiles, "PAIRS", 200)  # several pieces
    grid = PairGrid(queries, keys, 2, 3)
    got = tile_states(mask, Tiling(grid, 8, 16))
    expected = states_of_pairs(mask, queries, keys, 8, 16)
    assert torch.equal(got.long().expand_as(expected), expected)


def test_a_users_mask_skips_its_empty_tiles_and_evaluates_only_its_mixed_ones():
    states = merge_heads(Prefix(64), PairGrid(256, 256), 64, 64)[0].tolist()
    assert states == [
        [ALL, NONE, NONE, NONE],
        [ALL, MIXED, NONE, NONE],
        [ALL, ALL, MIXED, NONE],
        [ALL, ALL, ALL, MIXED],
    ]


def test_masks_that_know_their_tiles_are_not_evaluated(monkeypatch):
    monkeypatch.setattr(tiles, "evaluate_tiles", lambda *_: pytest.fail("the pairs were evaluated"))
    mask = (rg.Causal() & rg.Window(9)) | rg.Global(2)
    assert mask.has_tiles and not (mask & Prefix(3)).has_tiles and not (~Prefix(3)).has_tiles
    tiling = Tiling(PairGrid(100, 100), 16, 16)
    assert torch.equal(tile_states(mask, tiling), mask.tiles(tiling))


@pytest.mark.parametrize("backend", ["blockwise", "reference"])
def test_attention_with_a_users_mask(backend):
    q, k, v = (torch.randn(2, 3, 150, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = Prefix(70)
    output = rg.attend(q, k, v, mask=mask, backend=backend)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.dense(150, 150))
    torch.testing.assert_close(output, expected)
    for got, want in zip(
        torch.autograd.grad(output.square().sum(), (q, k, v)),
        torch.autograd.grad(expected.square().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(got, want)
