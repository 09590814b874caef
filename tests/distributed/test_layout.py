"""Layouts, what they make ranks exchange, and the simulator; no processes."""

from __future__ import annotations

import pytest
import torch

import regard as rg
from regard.attention.parts.mask import ALL, NONE, PairGrid, Tiling
from regard.distributed import shard_graph
from regard.distributed.assignment import STRATEGIES, merge_tiles
from regard.distributed.region import Region
from regard.distributed.simulate import simulate, table

TOKENS, RANKS = 262_144, 16


def documents(tokens: int) -> rg.Mask:
    starts = torch.rand(1, tokens, generator=torch.Generator().manual_seed(0)) < 1 / 8000
    return rg.Documents(starts.long().cumsum(1)) & rg.Causal()


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("tiles", [4, 7, 64])
def test_every_rank_has_a_tile(name, tiles):
    work = torch.arange(1, tiles + 1).double()
    for weights in (work, torch.zeros(tiles), work**8):
        owner = STRATEGIES[name](weights, 4)
        assert owner.shape == (tiles,) and set(owner.tolist()) == set(range(4))


def test_runs_of_tiles():
    assert merge_tiles(torch.tensor([0, 1, 4]), 4, 18) == ((0, 8), (16, 18))


def test_split_and_rows_cover_the_sequence():
    layout = rg.shard(rg.Causal(), 37, 4, strategy="zigzag")
    covered = torch.cat([layout.places(rank) for rank in range(4)])
    assert sorted(covered.tolist()) == list(range(37))
    x = torch.arange(37.0)[:, None]
    assert layout.split(x)[:, 0].tolist() == layout.places().tolist()


@pytest.mark.parametrize("mask", [rg.Causal(), rg.longformer(6), rg.bigbird(4), rg.Window(3, 2) & ~rg.Global(1)])
def test_regions_are_parts_of_the_mask(mask):
    whole = mask.dense(40, 46)
    for row, column, queries, keys in ((0, 0, 8, 8), (5, 9, 20, 30), (33, 1, 7, 45)):
        region = Region(mask, 40, 46, row, column)
        grid = PairGrid(queries, keys)
        pairs = region.permits(*grid.indices(), grid)
        expected = whole[row : row + queries, column : column + keys]
        assert torch.equal(pairs.expand(queries, keys), expected)
        states = region.tiles(Tiling(grid, 4, 4))[0, 0]
        for a in range(states.shape[0]):
            for b in range(states.shape[1]):
                cell = expected[4 * a : 4 * a + 4, 4 * b : 4 * b + 4]
                assert states[a, b] != NONE or not cell.any()
                assert states[a, b] != ALL or cell.all()


def test_a_window_moves_fifty_times_less_than_an_all_gather():
    mask = rg.Causal() & rg.Window(4095)
    layout = rg.shard(mask, TOKENS, RANKS)
    x = torch.zeros(1, 8, 1, 64)
    planned = rg.plan(x, x, x, mask=mask, layout=layout)
    assert planned.reduction > 50 and planned.balance < 1.1
    assert str(planned).count("\n") == RANKS + 2


def test_documents_and_global_rows_are_balanced():
    x = torch.zeros(1, 8, 1, 64)
    for mask, least in ((documents(TOKENS), 12), (rg.longformer(512), 12)):
        planned = rg.plan(x, x, x, mask=mask, layout=rg.shard(mask, TOKENS, RANKS))
        assert planned.reduction > least and planned.balance < 1.1, mask


def test_the_simulator_prefers_zigzag_for_causal_masks():
    predictions = simulate(rg.Causal(), 65_536, 8)
    assert predictions[0].method == "zigzag"
    by_name = {one.method: one for one in predictions}
    assert by_name["equal runs"].balance > 1.8 > 1.1 > by_name["zigzag"].balance
    assert by_name["all-gather"].received > by_name["zigzag"].received
    assert table(predictions).count("\n") == len(predictions)


def test_the_plan_is_drawn():
    mask = rg.longformer(64)
    x = torch.zeros(1, 2, 1, 8)
    figure = rg.plan(x, x, x, mask=mask, layout=rg.shard(mask, 4096, 4)).plot()
    assert len(figure.axes) == 3


def test_every_edge_of_a_graph_is_on_one_rank():
    edges = torch.randint(0, 40, (2, 150), generator=torch.Generator().manual_seed(0))
    found = set()
    for rank in range(4):
        layout = shard_graph(edges, 40, 4, rank=rank, self_loops=False)
        names = torch.cat([layout.own, layout.halo])
        source, target = layout.mask.edge_index
        found |= set(zip(names[source].tolist(), layout.own[target].tolist(), strict=True))
        assert not (layout.owner[layout.halo] == rank).any() and len(set(names.tolist())) == len(names)
    assert found == set(zip(*edges.tolist(), strict=True))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rg.shard(rg.Causal(), 3, 4), "3 tokens cannot be shared out among 4 ranks"),
        (lambda: rg.shard(rg.Causal(), 64, 0), "at least 1"),
        (lambda: rg.shard(rg.Causal(), 64), "torchrun"),
        (lambda: rg.shard("causal", 64, 4), "must be a Mask"),
        (lambda: rg.shard(rg.Causal(), 64, 4, strategy="best"), "zigzag"),
        (lambda: rg.shard(rg.Causal(), 64, 4, tile=32), "give a smaller tile"),
        (lambda: rg.shard(rg.Causal(), 64, 4, link="pigeon"), "infiniband"),
        (lambda: rg.shard(rg.Causal(), 64, 4).split(torch.zeros(60, 2)), "the whole sequence, 64 tokens"),
        (lambda: attend_without_processes(), "has no processes"),
        (lambda: shard_graph(torch.zeros(2, 1).long(), 3, 4), "3 nodes cannot be shared out"),
        (lambda: shard_graph(torch.zeros(3, 1).long(), 9, 4), "sources, then targets"),
        (lambda: shard_graph(torch.zeros(2, 1).long(), 9, 4, owner=torch.full((9,), 4)), "ranks 0 … 3"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(rg.BadInput, match=words):
        call()


def attend_without_processes():
    layout = rg.shard(rg.Causal(), 64, 4)
    x = layout.split(torch.zeros(1, 1, 64, 4))
    return rg.attend(x, x, x, layout=layout)
