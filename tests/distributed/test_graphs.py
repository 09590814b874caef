"""Graphs shared out among processes."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import regard as rg
from regard.distributed import shard_graph
from regard.distributed.partition import partition_edges, partition_runs

from .random_graphs import run_ranks

pytestmark = pytest.mark.xdist_group("processes")
CASES = 18


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("ranks"), 0, CASES)


def test_outputs_and_gradients_are_those_of_one_process(results):
    calls = [call for rank in results for call in rank["calls"]]
    assert len(calls) == CASES * 3
    for call in calls:
        assert call["error"] < 1e-12, call
        assert call["same bits"] and call["gathered"], call
    assert any(call["own"] == 0 for call in calls)


def test_ranks_that_differ_all_refuse(results):
    for number, rank in enumerate(results):
        messages = rank["refusals"]
        assert "different graphs: [1] differ" in messages["edges"]
        assert ("there are 0 … 7" if number == 2 else "Rank 2 refused") in messages["range"]
        assert "different graphs: [1, 3]" in messages["owner"]
        assert "different tensors to exchange: [3]" in messages["width"]
        assert messages["known"] == "nothing"
        for name in ("rows", "known rows"):
            assert ("this rank's" if number == 1 else "Rank 1 refused") in messages[name]
        assert "different tensors to exchange: [2]" in messages["gathered"]


def test_runs_have_equal_work_and_none_is_empty():
    work = torch.randint(0, 9, (400,), generator=torch.Generator().manual_seed(0))
    owner = partition_runs(work, 7)
    assert bool((owner.diff() >= 0).all())
    shares = torch.zeros(7).index_add(0, owner, work.float() + 1)
    assert float(shares.max() / shares.mean()) < 1.1
    heavy = torch.tensor([1000, 0, 0, 0, 0])
    assert sorted(set(partition_runs(heavy, 4).tolist())) == [0, 1, 2, 3]


def test_metis_gets_each_pair_once_both_ways_and_the_work(monkeypatch):
    given = {}

    def part_graph(parts, **graph):
        given.update(graph)
        return 0, [1, 0, 1, 0]

    monkeypatch.setitem(sys.modules, "pymetis", types.SimpleNamespace(part_graph=part_graph))
    edges = torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 2, 1]])
    assert partition_edges(edges, 4, 2).tolist() == [1, 0, 1, 0]
    wanted = {"xadj": [0, 1, 3, 4, 4], "adjncy": [1, 0, 2, 1], "vweights": [2, 3, 3, 1]}
    assert {name: x.tolist() for name, x in given.items()} == wanted


def test_metis_cuts_fewer_edges_than_runs():
    pytest.importorskip("pymetis", reason="pymetis is not installed")
    g = torch.Generator().manual_seed(0)
    community = torch.randperm(400, generator=g) % 4
    pairs = torch.randint(0, 400, (2, 40_000), generator=g)
    edges = pairs[:, community[pairs[0]] == community[pairs[1]]]
    owner = partition_edges(edges, 400, 4)
    cut = (owner[edges[0]] != owner[edges[1]]).float().mean()
    assert float(cut) < 0.05


def test_layouts_without_processes_say_what_each_rank_sends():
    g = torch.Generator().manual_seed(1)
    edges = torch.randint(0, 30, (2, 90), generator=g)
    owner = torch.randint(0, 3, (30,), generator=g)
    layouts = [shard_graph(edges, 30, 3, owner=owner, rank=rank) for rank in range(3)]
    for layout in layouts:
        arriving = [other.own[other.sends[layout.rank]] for other in layouts]
        assert torch.equal(torch.cat(arriving), layout.halo)
        assert [len(rows) for rows in arriving] == list(layout.receives)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: shard_graph(torch.tensor([[0], [9]]), 9, 4), "there are 0 … 8"),
        (lambda: shard_graph(torch.zeros(2, 3).long(), 9, 4, features=torch.zeros(2, 1)), r"\[3, n\]"),
        (lambda: shard_graph(torch.zeros(2, 3).long(), 9, 4).exchange(torch.zeros(2, 1)), "this rank's"),
        (lambda: shard_graph(torch.zeros(2, 3).long(), 9, 1).exchange(torch.zeros(9, 1)), "has no processes"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(rg.BadInput, match=words):
        call()
