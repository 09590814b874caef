"""Comparisons on a CPU: workloads, sizes, peers and goals."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec

import torch

from regard import machine
from regard.bench import translation, workloads
from regard.bench.measure import Call, check_close, median_times, peak_memory
from regard.bench.result import BenchmarkResult, BenchmarkRow

GIGABYTE = 1e9


@dataclass(frozen=True)
class CpuComparison:
    """A workload at one size, with the peers whose time and memory are compared and the goal for each ratio.

    At `small_sizes` our result is checked against `oracle` in float64; a quick run uses the same sizes. `max_growth` is
    the largest allowed ratio of the time at four times the tokens. `tolerance` is for the check against peers at full
    size.
    """

    workload: str
    make_calls: Callable[..., workloads.Calls]
    sizes: dict[str, int]
    small_sizes: dict[str, int]
    time_goals: dict[str, float | None] = field(default_factory=dict)
    memory_goals: dict[str, float | None] = field(default_factory=dict)
    memory_limit: float | None = None
    max_growth: float | None = None
    oracle: str = "eager"
    tolerance: float = 1e-4
    timed: bool = False
    package: str | None = None


HEADS8 = {"heads": 8, "tokens": 2048, "dim": 64}
SMALL = {"heads": 2, "tokens": 256, "dim": 16}
WINDOW = {"heads": 8, "tokens": 8192, "dim": 64, "before": 255}

COMPARISONS = (
    CpuComparison("plain", workloads.plain, HEADS8, SMALL, time_goals={"SDPA": 0.95}),
    CpuComparison("causal", workloads.causal, HEADS8, SMALL, time_goals={"SDPA": 0.95}),
    CpuComparison(
        "causal window of 255 back",
        workloads.window,
        WINDOW,
        SMALL | {"tokens": 512, "before": 255},
        time_goals={"eager": 10, "SDPA": 4},
    ),
    CpuComparison(
        "causal window of 255 back",
        workloads.window,
        WINDOW | {"tokens": 32768},
        SMALL | {"tokens": 1024, "before": 255},
        max_growth=4.5,
    ),
    CpuComparison(
        "causal with ALiBi", workloads.alibi, {"heads": 4, "tokens": 8192, "dim": 64}, SMALL, memory_goals={"eager": 20}
    ),
    CpuComparison(
        "causal with ALiBi", workloads.alibi, {"heads": 4, "tokens": 16384, "dim": 64}, SMALL, memory_limit=1 * GIGABYTE
    ),
    CpuComparison(
        "additive (tanh)",
        workloads.additive,
        {"heads": 1, "tokens": 2048, "dim": 64},
        SMALL | {"tokens": 64},
        time_goals={"eager": 3},
        memory_goals={"eager": 20},
    ),
    CpuComparison(
        "GAT layer, 8 × 16",
        workloads.graph,
        {"nodes": 100_000, "edges": 2_000_000},
        {"nodes": 200, "edges": 2000},
        time_goals={"PyG": 1.5, "regard, first call": None},
        memory_goals={"PyG": 2},
        oracle="PyG",
        # Over two million edges PyG's own gradient of att_dst, a sum that nearly cancels, is 2e-4 from float64.
        tolerance=1e-3,
        package="torch_geometric",
    ),
    CpuComparison(
        "look: top 8, map 256 × 256",
        workloads.look,
        {"heads": 2, "tokens": 32768, "dim": 64, "cells": 256},
        SMALL | {"cells": 16},
        memory_limit=2 * GIGABYTE,
        timed=True,
    ),
    CpuComparison(
        "training a translator, one batch",
        translation.train_step,
        {"pairs": 256, "words": 8000, "width": 128},
        {"pairs": 5, "words": 37, "width": 16},
        time_goals={"nn.Transformer": 1.5},
        oracle="nn.Transformer",
    ),
)


def run(quick: bool = False, budget: float = 15.0, report: Callable[[str], None] = lambda _: None) -> BenchmarkResult:
    """Run every comparison whose packages are installed; `report` receives the name of each when it starts.

    Raises `WrongNumbers` if a result differs from those of the peers.
    """
    rows, notes = [], []
    for comparison in COMPARISONS:
        if comparison.package and find_spec(comparison.package) is None:
            notes.append(f"Left out: {comparison.workload}, because {comparison.package} is not installed.")
            continue
        sizes = comparison.small_sizes if quick else comparison.sizes
        report(f"{comparison.workload}, {format_shape(sizes)}")
        verify(comparison)
        measured = measure_rows(comparison, sizes, 0.0 if quick else budget)
        # A goal is for the full size.
        rows += [replace(row, goal=None) for row in measured] if quick else measured
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return BenchmarkResult(
        machine.processor(), now, torch.get_num_threads(), quick, machine.versions(), tuple(rows), tuple(notes)
    )


def verify(comparison: CpuComparison) -> None:
    """Raise `WrongNumbers` unless our float32 result at small sizes agrees with the oracle in float64."""
    ours = comparison.make_calls(**comparison.small_sizes)["regard"]()
    exact = comparison.make_calls(**comparison.small_sizes, dtype=torch.float64)[comparison.oracle]()
    check_close(f"{comparison.workload}, small", ours, exact)


def measure_rows(comparison: CpuComparison, sizes: dict[str, int], budget: float) -> Iterator[BenchmarkRow]:
    """The rows of a comparison."""
    if comparison.time_goals or comparison.timed:
        yield from time_rows(comparison, sizes, budget)
    if comparison.max_growth:
        yield growth_row(comparison, sizes, comparison.max_growth, budget)
    if comparison.memory_goals or comparison.memory_limit:
        yield from memory_rows(comparison, sizes)


def time_rows(comparison: CpuComparison, sizes: dict[str, int], budget: float) -> Iterator[BenchmarkRow]:
    """Our time beside each peer's, after a check that the results agree."""
    every_call = comparison.make_calls(**sizes)
    calls = {name: every_call[name] for name in ("regard", *comparison.time_goals)}
    check_agreement(comparison.workload, calls, comparison.tolerance)
    seconds = median_times(calls, budget)
    row = partial(BenchmarkRow, comparison.workload, format_shape(sizes), "time", seconds["regard"])
    yield from (row(peer, seconds[peer], goal) for peer, goal in comparison.time_goals.items())
    if not comparison.time_goals:
        yield row()


def growth_row(comparison: CpuComparison, sizes: dict[str, int], max_growth: float, budget: float) -> BenchmarkRow:
    """Our time beside `max_growth` times our time at a quarter of the tokens."""
    shorter = sizes | {"tokens": sizes["tokens"] // 4}
    seconds = median_times(
        {"long": comparison.make_calls(**sizes)["regard"], "short": comparison.make_calls(**shorter)["regard"]}, budget
    )
    name = f"{max_growth:g} × own time at N/4"
    return BenchmarkRow(
        comparison.workload, format_shape(sizes), "time", seconds["long"], name, max_growth * seconds["short"], 1.0
    )


def memory_rows(comparison: CpuComparison, sizes: dict[str, int]) -> Iterator[BenchmarkRow]:
    """Our peak memory beside each peer's and beside the limit."""
    ours = measure_peak(comparison, sizes, "regard")
    row = partial(BenchmarkRow, comparison.workload, format_shape(sizes), "memory", ours)
    yield from (
        row(peer, measure_peak(comparison, sizes, peer), goal) for peer, goal in comparison.memory_goals.items()
    )
    if comparison.memory_limit:
        yield row("limit", comparison.memory_limit, 1.0)


def measure_peak(comparison: CpuComparison, sizes: dict[str, int], name: str) -> float:
    """Peak bytes of one implementation."""
    return float(peak_memory(partial(prepare_call, comparison.make_calls, comparison.small_sizes, sizes, name)))


def prepare_call(
    make_calls: Callable[..., workloads.Calls], small_sizes: dict[str, int], sizes: dict[str, int], name: str
) -> Call:
    """One implementation's call, after a small call that loads its libraries."""
    make_calls(**small_sizes)[name]()
    return make_calls(**sizes)[name]


def check_agreement(workload: str, calls: workloads.Calls, tolerance: float) -> None:
    """Raise `WrongNumbers` unless every peer's result agrees with ours."""
    ours = calls["regard"]()
    for peer, call in calls.items():
        if peer != "regard":
            check_close(f"{workload}, beside {peer}", ours, call(), tolerance)


def format_shape(sizes: dict[str, int]) -> str:
    """Sizes as text for tables.

    >>> format_shape({"heads": 8, "tokens": 2048, "dim": 64})
    'H8 N2048 D64'
    """
    letters = {"heads": "H", "tokens": "N", "dim": "D"}
    parts = [f"{letters[name]}{size}" for name, size in sizes.items() if name in letters]
    return " ".join(parts) or ", ".join(f"{size:,} {name}" for name, size in sizes.items())
