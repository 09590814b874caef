"""The comparisons on a CPU: which works, at which sizes, beside whom, and what counts as good."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec

import torch

from regard import machine
from regard.bench import training, works
from regard.bench.measure import Call, check, extra_memory, times
from regard.bench.result import Result, Row

GIGABYTE = 1e9


@dataclass(frozen=True)
class Comparison:
    """One work at one size: whose time and memory to set beside ours, each with its goal in times better.

    `small` are the sizes at which ours is first compared with `oracle` in float64, and those of a quick run;
    `growth` is how many times longer four times the tokens may take; `tolerance` is for full size, beside the peers.
    """

    work: str
    make: Callable[..., works.Calls]
    sizes: dict[str, int]
    small: dict[str, int]
    faster: dict[str, float | None] = field(default_factory=dict)
    leaner: dict[str, float | None] = field(default_factory=dict)
    memory_limit: float | None = None
    growth: float | None = None
    oracle: str = "eager"
    tolerance: float = 1e-4
    timed: bool = False
    needs: str | None = None


HEADS8 = {"heads": 8, "tokens": 2048, "dim": 64}
SMALL = {"heads": 2, "tokens": 256, "dim": 16}
WINDOW = {"heads": 8, "tokens": 8192, "dim": 64, "before": 255}

COMPARISONS = (
    Comparison("plain", works.plain, HEADS8, SMALL, faster={"SDPA": 0.95}),
    Comparison("causal", works.causal, HEADS8, SMALL, faster={"SDPA": 0.95}),
    Comparison(
        "causal window of 255 back",
        works.window,
        WINDOW,
        SMALL | {"tokens": 512, "before": 255},
        faster={"eager": 10, "SDPA": 4},
    ),
    Comparison(
        "causal window of 255 back",
        works.window,
        WINDOW | {"tokens": 32768},
        SMALL | {"tokens": 1024, "before": 255},
        growth=4.5,
    ),
    Comparison("causal with ALiBi", works.alibi, {"heads": 4, "tokens": 8192, "dim": 64}, SMALL, leaner={"eager": 20}),
    Comparison(
        "causal with ALiBi", works.alibi, {"heads": 4, "tokens": 16384, "dim": 64}, SMALL, memory_limit=1 * GIGABYTE
    ),
    Comparison(
        "additive (tanh)",
        works.additive,
        {"heads": 1, "tokens": 2048, "dim": 64},
        SMALL | {"tokens": 64},
        faster={"eager": 3},
        leaner={"eager": 20},
    ),
    Comparison(
        "GAT layer, 8 × 16",
        works.graph,
        {"nodes": 100_000, "edges": 2_000_000},
        {"nodes": 200, "edges": 2000},
        faster={"PyG": 1.5, "regard, first call": None},
        leaner={"PyG": 2},
        oracle="PyG",
        # Over two million edges PyG's own gradient of att_dst, a sum that nearly cancels, is 2e-4 from float64.
        tolerance=1e-3,
        needs="torch_geometric",
    ),
    Comparison(
        "look: top 8, map 256 × 256",
        works.look,
        {"heads": 2, "tokens": 32768, "dim": 64, "cells": 256},
        SMALL | {"cells": 16},
        memory_limit=2 * GIGABYTE,
        timed=True,
    ),
    Comparison(
        "training a translator, one batch",
        training.step,
        {"pairs": 256, "words": 8000, "width": 128},
        {"pairs": 5, "words": 37, "width": 16},
        faster={"nn.Transformer": 1.5},
        oracle="nn.Transformer",
    ),
)


def run(quick: bool = False, budget: float = 15.0, tell: Callable[[str], None] = lambda _: None) -> Result:
    """Every comparison that this machine has the packages for; `tell` hears of each as it begins.

    Raises `WrongNumbers` as soon as one of them computes something else than its peers.
    """
    rows, notes = [], []
    for comparison in COMPARISONS:
        if comparison.needs and find_spec(comparison.needs) is None:
            notes.append(f"Left out: {comparison.work}, because {comparison.needs} is not installed.")
            continue
        sizes = comparison.small if quick else comparison.sizes
        tell(f"{comparison.work}, {shape(sizes)}")
        verify(comparison)
        found = measure(comparison, sizes, 0.0 if quick else budget)
        # A goal is for the full size.
        rows += [replace(row, goal=None) for row in found] if quick else found
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Result(
        machine.processor(), now, torch.get_num_threads(), quick, machine.versions(), tuple(rows), tuple(notes)
    )


def verify(comparison: Comparison) -> None:
    """Raises `WrongNumbers` unless ours, in float32 and small, agrees with the oracle in float64."""
    ours = comparison.make(**comparison.small)["regard"]()
    wanted = comparison.make(**comparison.small, dtype=torch.float64)[comparison.oracle]()
    check(f"{comparison.work}, small", ours, wanted)


def measure(comparison: Comparison, sizes: dict[str, int], budget: float) -> Iterator[Row]:
    """The rows of a comparison."""
    if comparison.faster or comparison.timed:
        yield from time_rows(comparison, sizes, budget)
    if comparison.growth:
        yield growth_row(comparison, sizes, comparison.growth, budget)
    if comparison.leaner or comparison.memory_limit:
        yield from memory_rows(comparison, sizes)


def time_rows(comparison: Comparison, sizes: dict[str, int], budget: float) -> Iterator[Row]:
    """Ours beside each peer's time, at full size compared with their results first."""
    calls = only(comparison.make(**sizes), comparison.faster)
    agree(comparison.work, calls, comparison.tolerance)
    took = times(calls, budget)
    row = partial(Row, comparison.work, shape(sizes), "time", took["regard"])
    yield from (row(peer, took[peer], goal) for peer, goal in comparison.faster.items())
    if not comparison.faster:
        yield row()


def growth_row(comparison: Comparison, sizes: dict[str, int], factor: float, budget: float) -> Row:
    """Our time beside a multiple of our time at a quarter of the tokens."""
    shorter = sizes | {"tokens": sizes["tokens"] // 4}
    took = times({"long": comparison.make(**sizes)["regard"], "short": comparison.make(**shorter)["regard"]}, budget)
    name = f"{factor:g} × own time at N/4"
    return Row(comparison.work, shape(sizes), "time", took["long"], name, factor * took["short"], 1.0)


def memory_rows(comparison: Comparison, sizes: dict[str, int]) -> Iterator[Row]:
    """Our peak beside each peer's, and beside the limit."""
    ours = peak(comparison, sizes, "regard")
    row = partial(Row, comparison.work, shape(sizes), "memory", ours)
    yield from (row(peer, peak(comparison, sizes, peer), goal) for peer, goal in comparison.leaner.items())
    if comparison.memory_limit:
        yield row("limit", comparison.memory_limit, 1.0)


def peak(comparison: Comparison, sizes: dict[str, int], who: str) -> float:
    """Extra bytes of one of the calls."""
    return float(extra_memory(partial(prepare, comparison.make, comparison.small, sizes, who)))


def prepare(make: Callable[..., works.Calls], small: dict[str, int], sizes: dict[str, int], who: str) -> Call:
    """One of the calls, after a small one that loads the libraries which every call needs."""
    make(**small)[who]()
    return make(**sizes)[who]


def only(calls: works.Calls, peers: Iterable[str]) -> works.Calls:
    """Ours and those peers', in that order."""
    return {name: calls[name] for name in ("regard", *peers)}


def agree(work: str, calls: works.Calls, tolerance: float) -> None:
    """Raises `WrongNumbers` unless every peer computes what we do."""
    ours = calls["regard"]()
    for peer, call in calls.items():
        if peer != "regard":
            check(f"{work}, beside {peer}", ours, call(), tolerance)


def shape(sizes: dict[str, int]) -> str:
    """Sizes as they are written in tables.

    >>> shape({"heads": 8, "tokens": 2048, "dim": 64})
    'H8 N2048 D64'
    """
    letters = {"heads": "H", "tokens": "N", "dim": "D"}
    known = [f"{letters[name]}{size}" for name, size in sizes.items() if name in letters]
    return " ".join(known) or ", ".join(f"{size:,} {name}" for name, size in sizes.items())
