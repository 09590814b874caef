"""Sharded attention in three processes beside one."""

from __future__ import annotations

import pytest

from .random_shards import run_ranks

RANKS = 3
CASES = 16


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run_ranks(RANKS, tmp_path_factory.mktemp("ranks"), 0, CASES)


def test_outputs_and_gradients_are_those_of_one_process(results):
    for rank in results:
        for one in rank["calls"]:
            assert one["error"] < 1e-9, one
            assert one["same bits"], one


def test_views_are_those_of_one_process(results):
    assert all(one["view error"] < 1e-9 for rank in results for one in rank["calls"])


def test_the_plan_counts_the_bytes_on_the_wire(results):
    for rank in results:
        for mask, (received, planned) in rank["bytes"].items():
            assert received == planned, mask
    assert any(received for received, _ in results[1]["bytes"].values())


def test_graphs_are_those_of_one_process(results):
    for rank in results:
        assert len(rank["graphs"]) == 4
        assert all(error < 1e-12 for error in rank["graphs"].values()), rank["graphs"]


def test_ranks_that_differ_all_refuse(results):
    for number, rank in enumerate(results):
        assert "different calls" in rank["refusals"]["masks"]
        assert ("holds 10 tokens" if number == 1 else "Rank 1 refused") in rank["refusals"]["shapes"]
        assert "only Exact() runs sharded" in rank["refusals"]["method"]


def test_nothing_keeps_the_group_alive(results):
    """Threads of a group that outlive `destroy_process_group` abort the process when the interpreter ends."""
    assert [rank["group references"] for rank in results] == [0] * RANKS
