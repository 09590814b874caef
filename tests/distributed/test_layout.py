"""Layouts, what they make ranks exchange, and the simulator; no processes."""

from __future__ import annotations

import pytest
import torch

import regard as rg
from regard.attention.parts.mask import ALL, NONE, PairGrid, Tiling
from regard.distributed import Link, shard_graph, visited
from regard.distributed.assignment import STRATEGIES, equal_work, merge_tiles
from regard.distributed.attention.selection import MaskSelection
from regard.distributed.exchange import digest_mask
from regard.distributed.simulate import simulate, table
from regard.distributed.traffic import rank_seconds
from regard.distributed.visited import make_visited

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


def test_runs_of_equal_work_are_the_best_runs():
    g = torch.Generator().manual_seed(0)
    for tiles, ranks in ((7, 3), (12, 5), (20, 4)):
        work = torch.randint(0, 9, (tiles,), generator=g).double() ** 2
        greatest = float(torch.zeros(ranks).double().index_add_(0, equal_work(work, ranks), work).max())
        best = [0.0] + [float("inf")] * tiles  # of the first n tiles over the ranks so far
        for _ in range(ranks):
            best = [float("inf")] + [
                min(max(best[start], float(work[start:end].sum())) for start in range(end))
                for end in range(1, tiles + 1)
            ]
        assert greatest == best[tiles]


MASKS = [
    rg.Causal(),
    rg.longformer(6),
    rg.longformer(6, (3, 29)),
    rg.bigbird(4),
    rg.Window(3, 2) & ~rg.Global(1),
    rg.Documents(torch.arange(46)[None] // 9) & rg.Causal(),
]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_selections_are_parts_of_the_mask(mask):
    whole = mask.dense(40, 46).reshape(40, 46)
    cases = [
        (torch.arange(8), torch.arange(46), 8),
        (
            torch.cat([torch.arange(16, 24), torch.arange(32, 40)]),
            torch.cat([torch.arange(8, 16), torch.arange(40, 46)]),
            8,
        ),
        (torch.tensor([5, 6, 31]), torch.arange(24), 1),
    ]
    for rows, columns, row_tile in cases:
        hidden = rows == 5
        selection = MaskSelection(mask, (40, 46), rows, columns, 8, row_tile, hidden)
        grid = PairGrid(len(rows), len(columns))
        expected = whole[rows][:, columns] & ~hidden[:, None]
        pairs = selection.permits(*grid.indices(), grid).reshape(-1, *expected.shape)[0]
        assert torch.equal(pairs, expected)
        for height, width in ((4, 4), (16, 2), (3, 8)):
            states = selection.tiles(Tiling(grid, height, width))[0, 0]
            for a in range(states.shape[0]):
                for b in range(states.shape[1]):
                    cell = expected[height * a : height * a + height, width * b : width * b + width]
                    assert states[a, b] != NONE or not cell.any()
                    assert states[a, b] != ALL or cell.all()


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("together", [1 << 22, 16], ids=["at once", "coarse tiles first"])
def test_visited_tiles_are_those_with_pairs(mask, together, monkeypatch):
    monkeypatch.setattr(visited, "TILES", together)
    monkeypatch.setattr(visited, "COARSE", 3)
    pairs = torch.nn.functional.pad(mask.dense(46, 46).reshape(46, 46), (0, 2, 0, 2))
    cells = pairs.unflatten(1, (-1, 2)).unflatten(0, (-1, 2)).any(3).any(1)
    found = make_visited(mask, PairGrid(46, 46), 2)
    tiles = found.tiles.dense()
    assert torch.equal(tiles, cells[: tiles.shape[0], : tiles.shape[1]])
    assert torch.equal(found.tiles.counts(), tiles.sum(1)) and torch.equal(found.tiles.column_counts(), tiles.sum(0))
    rows = pairs.clone()
    rows[found.heavy] = False
    light = rows.unflatten(1, (-1, 2)).unflatten(0, (-1, 2)).any(3).any(1)[: tiles.shape[0], : tiles.shape[1]]
    assert torch.equal(found.light.dense(), light)
    heavy = pairs[found.heavy].unflatten(1, (-1, 2)).any(2)[:, : tiles.shape[1]]
    assert torch.equal(found.heavy_runs.dense(), heavy)


def test_global_tokens_are_heavy_rows_one_by_one():
    assert make_visited(rg.longformer(64, (7, 900)), PairGrid(2048, 2048), 32).heavy.tolist() == [7, 900]
    assert make_visited(rg.bigbird(16, random=1), PairGrid(4096, 4096), 64).heavy.tolist() == list(range(16))
    assert not len(make_visited(rg.Causal(), PairGrid(2048, 2048), 64).heavy)


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


def test_a_layout_is_chosen_for_all_masks_together():
    """A window alone keeps equal runs; beside a causal layer, which wants balance, the sum of both decides."""
    window = rg.Causal() & rg.Window(1023)
    sizes = {"tokens": 65_536, "mesh": 8, "link": "nvlink"}
    assert rg.shard(window, **sizes).strategy == "equal runs"

    def seconds(strategy):
        layout = rg.shard([window, rg.Causal()], **sizes, strategy=strategy)
        times = [rank_seconds(layout.traffic(mask), layout.sizes, layout.link) for mask in layout.masks]
        return float(torch.stack(times).sum(0).max())

    assert seconds("auto") <= 1.01 * min(seconds(name) for name in STRATEGIES) < 0.7 * seconds("equal runs")


def test_a_model_that_costs_much_per_token_gets_runs_of_equal_length():
    mask = documents(65_536)
    uneven, even = (rg.shard(mask, 65_536, 8, strategy="equal work", pairs_per_token=n) for n in (0.0, 1e6))
    tokens = [[sum(b - a for a, b in layout.rows(rank)) for rank in range(8)] for layout in (uneven, even)]
    assert max(tokens[0]) > 1.2 * 8192 and max(tokens[1]) < 1.02 * 8192


def test_small_pieces_are_not_worth_a_little_balance():
    """Where every run of tokens costs time, tiles are not scattered for a few percent of balance."""
    mask = rg.Causal() & rg.Window(1023)
    links = [Link("test", 1e-6, 1e12, 1e9, piece) for piece in (0.0, 1.0)]
    chosen = [rg.shard(mask, 16_000, 3, link=link, tile=500).strategy for link in links]
    assert chosen == ["longest first", "equal work"]


def test_a_million_tokens_are_planned_in_balance():
    for mask in (rg.Causal() & rg.Window(4095), documents(1_000_000), rg.longformer(512)):
        best, *_ = simulate(mask, 1_000_000, 64)
        assert best.balance < 1.1, (mask, best)


def test_the_simulator_prefers_zigzag_for_causal_masks():
    predictions = simulate(rg.Causal(), 65_536, 8)
    assert predictions[0].method == "zigzag"
    by_name = {one.method: one for one in predictions}
    assert by_name["equal runs"].balance > 1.8 > 1.1 > by_name["zigzag"].balance
    assert by_name["all-gather"].received > by_name["zigzag"].received
    assert table(predictions).count("\n") == len(predictions)


def test_masks_are_compared_by_contents_in_any_strides():
    column = torch.tensor([[3, 9]]).T[:1]
    assert column.stride(-1) == 2  # of a size of 1, for which torch calls it contiguous
    assert digest_mask(rg.Documents(column)) == digest_mask(rg.Documents(torch.tensor([[3]])))
    assert digest_mask(rg.Documents(column)) != digest_mask(rg.Documents(torch.tensor([[9]])))


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
        (lambda: rg.shard(rg.Causal(), 64, 4, tile=-2), "tile is -2"),
        (lambda: rg.shard(rg.Causal(), 64, 4, tile=0), "tile is 0"),
        (lambda: rg.shard(rg.Causal(), 10.5, 4), "tokens is 10.5"),
        (lambda: rg.shard("causal", 64, 4), "masks is 'causal'"),
        (lambda: rg.shard(rg.Causal(), 64, 4, link="wifi"), "no link 'wifi'"),
        (lambda: rg.shard(rg.Causal(), 64, "sequence"), "mesh is 'sequence'"),
        (lambda: rg.shard(rg.Documents(torch.zeros(2, 9).long()), 64, 4), r"ids are \[2, 9\].*= \[2, 64\]"),
        (lambda: rg.shard(rg.Pairs(torch.ones(3, 8, 64, 60).bool()), 64, 4), r"broadcast to \[3, 8, 64, 64\]"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(rg.BadInput, match=words):
        call()


def attend_without_processes():
    layout = rg.shard(rg.Causal(), 64, 4)
    x = layout.split(torch.zeros(1, 1, 64, 4))
    return rg.attend(x, x, x, layout=layout)


@pytest.mark.parametrize("function", [rg.attend, rg.look, rg.plan])
def test_a_layout_is_what_shard_makes(function):
    q = torch.zeros(1, 1, 8, 4)
    with pytest.raises(rg.BadInput, match=r"layout is 3; it must be a layout, which regard.shard"):
        function(q, q, q, layout=3)
