"""All implementations of a comparison compute the same function; otherwise it is refused."""

from functools import partial

import pytest
import torch

from regard.bench import workloads
from regard.bench.cpu import COMPARISONS, CpuComparison, format_shape, measure_rows, verify
from regard.bench.measure import WrongNumbers


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda c: f"{c.workload}, {format_shape(c.sizes)}")
def test_ours_agrees_with_float64(comparison: CpuComparison) -> None:
    verify(comparison)


@pytest.mark.parametrize(
    "comparison", [c for c in COMPARISONS if c.time_goals or c.max_growth], ids=lambda c: c.workload
)
def test_times_are_rows(comparison: CpuComparison) -> None:
    timed = CpuComparison(
        comparison.workload,
        comparison.make_calls,
        {},
        {},
        time_goals=comparison.time_goals,
        max_growth=comparison.max_growth,
    )
    rows = list(measure_rows(timed, comparison.small_sizes, budget=0.0))
    assert [row.against for row in rows] == [
        *comparison.time_goals,
        *(["4.5 × own time at N/4"] if timed.max_growth else []),
    ]
    assert all(row.ours > 0 and row.theirs for row in rows)


def off(who: str, dtype: torch.dtype = torch.float32, **sizes: int) -> workloads.Calls:
    calls = workloads.plain(**sizes, dtype=dtype)
    right = calls[who]
    return calls | {who: lambda: tuple(1.01 * x for x in right())}


def test_wrong_result_of_ours_is_refused() -> None:
    with pytest.raises(WrongNumbers, match="plain, small"):
        verify(CpuComparison("plain", partial(off, "regard"), {}, {"heads": 1, "tokens": 7, "dim": 3}))


def test_peer_that_computes_something_else_is_refused() -> None:
    sizes = {"heads": 1, "tokens": 7, "dim": 3}
    with pytest.raises(WrongNumbers, match="plain, beside SDPA"):
        list(
            measure_rows(
                CpuComparison("plain", partial(off, "SDPA"), sizes, sizes, time_goals={"SDPA": 1.0}), sizes, budget=0.0
            )
        )


def test_edges_are_distinct() -> None:
    edges = workloads.random_edges(nodes=50, edges=500)
    assert edges.shape == (2, 500)
    assert len(edges.unique(dim=1).T) == 500
