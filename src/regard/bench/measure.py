"""Measurement: calls timed in turn, peak memory in a fresh process, and results compared before they are timed."""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from regard import RegardError

Call = Callable[[], object]


class WrongNumbers(RegardError):
    """A call to be measured does not compute the expected result."""


def median_times(calls: Mapping[str, Call], budget: float = 10.0, min_rounds: int = 3) -> dict[str, float]:
    """Median seconds of each call.

    The calls take turns, so that other load on the machine affects all of them alike. After a warm-up round there are
    rounds until `budget` seconds are spent, and at least `min_rounds`.

    >>> sorted(median_times({"a": lambda: None, "b": lambda: None}, budget=0.0))
    ['a', 'b']
    """
    for call in calls.values():
        call()
    seconds_by_name: dict[str, list[float]] = {name: [] for name in calls}
    start, rounds = time.perf_counter(), 0
    while rounds < min_rounds or time.perf_counter() - start < budget:
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds_by_name[name].append(time.perf_counter() - began)
        rounds += 1
    return {name: median(values) for name, values in seconds_by_name.items()}


def gpu_median_times(calls: Mapping[str, Call], budget: float = 0.3, rounds: int = 2) -> dict[str, float]:
    """Median seconds of each call on the GPU by CUDA events, with the cache flushed before each.

    Each call runs for `budget` seconds in all, in `rounds` rounds that take turns, so that other load on the machine
    affects all of them alike; each round begins with a warm-up. A call that runs out of memory is left out.
    """
    seconds_by_name: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            with suppress(torch.OutOfMemoryError):
                seconds_by_name[name] += time_for_budget(call, budget / rounds)
    return {name: median(values) for name, values in seconds_by_name.items() if values}


def time_for_budget(call: Call, budget: float, min_rounds: int = 3, max_calls: int = 200) -> list[float]:
    """Seconds of each call, as many as the budget allows."""
    torch.cuda.empty_cache()
    filler = torch.empty(256_000_000, dtype=torch.int8, device="cuda")  # larger than any cache
    call()
    sample = time_calls(call, filler, 2)
    if sum(sample) >= budget:
        return sample
    seconds_per_call = max(sample[-1], 1e-6)
    time_calls(call, filler, min(int(budget / 5 / seconds_per_call), max_calls))
    return time_calls(call, filler, min(max(int(budget / seconds_per_call), min_rounds), max_calls))


def time_calls(call: Call, filler: Tensor, count: int) -> list[float]:
    """Seconds of each of `count` calls, queued without synchronization between them."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for start, end in events:
        filler.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in events]


def gpu_peak_memory(call: Call) -> int:
    """Peak bytes that a call allocates on the GPU."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def peak_memory(make: Callable[[], Call]) -> int:
    """Peak bytes that a call allocates, measured in a fresh process.

    `make` prepares the call there; it must be picklable (a function of a module, or a partial of one).
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure_peak_memory, make, torch.get_num_threads()).result()


def measure_peak_memory(make: Callable[[], Call], threads: int) -> int:
    """The part of `peak_memory` that runs in the new process; the resolution is one page."""
    torch.set_num_threads(threads)
    call = make()
    if not reset_peak_memory():
        before = max_resident_memory()
        call()
        return max(max_resident_memory() - before, resource.getpagesize())
    before = read_process_status("VmRSS")
    call()
    return max(read_process_status("VmHWM") - before, resource.getpagesize())


def reset_peak_memory() -> bool:
    """Reset this process's peak of resident memory; returns whether the system supports it (Linux does)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def read_process_status(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def max_resident_memory() -> int:
    """Peak resident bytes since this process started; macOS reports bytes, others kilobytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def relative_error(got: Tensor, expected: Tensor) -> float:
    """‖got − expected‖ / ‖expected‖, in float64."""
    got, expected = got.double(), expected.double()
    return float((got - expected).norm() / expected.norm().clamp_min(torch.finfo(torch.float32).tiny))


def check_close(name: str, got: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-4) -> None:
    """Raise `WrongNumbers` unless the relative error of every tensor is at most `tolerance`."""
    for index, (x, y) in enumerate(zip(got, expected, strict=True)):
        if x.shape != y.shape:
            raise WrongNumbers(f"{name}: result {index} has shape {list(x.shape)}, not {list(y.shape)}.")
        # Written so that NaN fails too.
        if not (difference := relative_error(x, y)) <= tolerance:
            raise WrongNumbers(
                f"{name}: result {index} is off by {difference:.1e}, more than {tolerance:.0e}; the call is not timed."
            )
