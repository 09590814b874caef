"""What it costs to keep NaN and infinity of masked keys out: calls of `attend` with and without the look at contents.

    python benchmarks/nonfinite.py --out benchmarks/results/nonfinite.json

Processor time of one thread; the two take turns, and the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard as rg
from regard.attention import attend as module

CALLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "causal, 128 tokens": ((1, 8, 128, 64), {"mask": rg.Causal()}),
    "causal, 1,024 tokens": ((1, 8, 1024, 64), {"mask": rg.Causal()}),
    "causal, 32 sentences of 128 tokens": ((32, 8, 128, 64), {"mask": rg.Causal()}),
    "padding, 32 sentences of 128 tokens": ((32, 8, 128, 64), {"mask": rg.Lengths(torch.arange(97, 129))}),
    "window of 128, 2,048 tokens": ((1, 8, 2048, 64), {"mask": rg.Causal() & rg.Window(127)}),
    "ALiBi, causal, 512 tokens": ((1, 8, 512, 64), {"mask": rg.Causal(), "position": rg.Alibi()}),
}
SECONDS = 0.02
"""Of a turn, at least."""


def turn(call: Callable[[], object], repeats: int) -> float:
    """Processor seconds of one call."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def compare(call: Callable[[], object], turns: int) -> tuple[float, float]:
    """Median seconds of a call, and of one that does not look at what is in tensors."""
    checked = module.is_finite_or_unchecked
    call(), call()
    repeats = max(1, round(SECONDS / max(turn(call, 3), 1e-6)))
    times: dict[bool, list[float]] = {True: [], False: []}
    try:
        for n in range(2 * turns):
            looks = n % 2 == 0
            module.is_finite_or_unchecked = checked if looks else lambda q, k, v, output: True
            times[looks].append(turn(call, repeats))
    finally:
        module.is_finite_or_unchecked = checked
    return statistics.median(times[True]), statistics.median(times[False])


def make_call(size: tuple[int, ...], options: dict[str, Any], trains: bool) -> Callable[[], object]:
    """A call of `attend`, with its backward pass if it trains."""
    q, k, v = (torch.randn(size).requires_grad_(trains) for _ in range(3))
    flow = torch.randn(size)

    def forward() -> Tensor:
        return rg.attend(q, k, v, **options)

    return (lambda: torch.autograd.grad(forward(), (q, k, v), flow)) if trains else forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for name, (size, options) in CALLS.items():
        row: dict[str, Any] = {"call": name}
        for trains in (False, True):
            looks, blind = compare(make_call(size, options, trains), given.turns)
            row["with backward" if trains else "forward"] = {
                "us": round(looks * 1e6, 1),
                "cost": round(looks / blind - 1, 4),
            }
        rows.append(row)
        print(row, flush=True)
    if given.out is not None:
        command = f"python benchmarks/nonfinite.py --turns {given.turns}"
        given.out.write_text(
            json.dumps({"command": command, "torch": torch.__version__, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
