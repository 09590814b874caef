"""Time and memory of calls inside an experiment, which computes on one thread or on a GPU."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

Call = Callable[[], object]


def median_times(calls: Mapping[str, Call], budget: float, min_rounds: int = 3) -> dict[str, float]:
    """Median seconds of each call; the calls take turns until `budget` seconds are spent.

    On the CPU this is processor time, which other processes do not affect; on a GPU it is the time until the device is
    done.

    >>> sorted(median_times({"a": lambda: None, "b": lambda: None}, budget=0.0))
    ['a', 'b']
    """
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    start, rounds = read_clock(), 0
    while rounds < min_rounds or read_clock() - start < budget:
        for name, call in calls.items():
            began = read_clock()
            call()
            times[name].append(read_clock() - began)
        rounds += 1
    return {name: statistics.median(values) for name, values in times.items()}


def read_clock() -> float:
    """Seconds of processor time of this process or, on a GPU, wall-clock seconds after a synchronization."""
    if torch.get_default_device().type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def peak_bytes(call: Call) -> int:
    """The peak of the bytes that torch allocates during a call."""
    if torch.get_default_device().type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with silent_stderr(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    profiler: Any = profile.profiler
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    current = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak


@contextmanager
def silent_stderr() -> Iterator[None]:
    """While open, output of native code to stderr is dropped: torch's profiler logs its start there."""
    sys.stderr.flush()
    original = os.dup(2)
    try:
        with open(os.devnull, "wb") as devnull:
            os.dup2(devnull.fileno(), 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
