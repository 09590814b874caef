"""Sharded attention in three processes beside one."""

from __future__ import annotations

import pytest

from .random_shards import run_ranks

pytestmark = pytest.mark.xdist_group("processes")
RANKS = 3
CASES = 30


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run_ranks(RANKS, tmp_path_factory.mktemp("ranks"), 0, CASES)


def test_outputs_and_gradients_are_those_of_one_process(results):
    for rank in results:
        assert len(rank["calls"]) == CASES
        for one in rank["calls"]:
            assert one["error"] < 1e-9, one
            assert one["same bits"], one


def test_views_are_those_of_one_process(results):
    assert all(one["view error"] < 1e-9 for rank in results for one in rank["calls"])
    assert all(rank["graph view"] < 1e-12 for rank in results)


def test_the_plan_counts_the_bytes_on_the_wire(results):
    for rank in results:
        for call, (received, planned) in rank["bytes"].items():
            assert received == planned, call
        for one in rank["calls"]:
            assert one["bytes"][0] == one["bytes"][1], one
    assert all(received for received, _ in results[1]["bytes"].values())


def test_what_is_not_finite_reaches_those_who_may_see_it(results):
    assert all(same for rank in results for same in rank["nonfinite"].values()), results[0]["nonfinite"]


def test_ranks_that_differ_all_refuse(results):
    for number, rank in enumerate(results):
        said = rank["refusals"]
        assert "different calls" in said["masks"] and "different calls" in said["known masks"]
        assert ("rank 1 holds" if number == 1 else "Rank 1 refused") in said["shapes"]
        assert "only Exact() runs sharded" in said["method"]
        assert "different tokens, masks or options of a layout: [1, 2]" in said["tokens"]
        assert ("2 tokens cannot be shared out" if number == 1 else "Rank 1 refused") in said["few"]
        assert "options of a layout: [1, 2]" in said["layout masks"]
        assert "different calls: [1, 2]" in said["places"]
        assert "broadcast to [1, 1, 2]" in said["edges"]
        assert "different tensors to gather: [1] differ" in said["gather"]
        assert ("this rank's" if number == 2 else "Rank 2 refused") in said["gathered rows"]
        assert "different tensors to sum: [1] differ" in said["summed"]
        assert "different calls: [1, 2] differ from rank 0 in function" in said["look options"]
        assert "different calls: [2] differ from rank 0 in function" in said["functions"]


def test_nothing_keeps_the_group_alive(results):
    """Threads of a group that outlive `destroy_process_group` abort the process when the interpreter ends."""
    assert [rank["group references"] for rank in results] == [0] * RANKS
