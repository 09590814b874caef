"""How things are measured: times in turn, memory in a fresh process, and numbers compared before either counts."""

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
    """What was to be measured does not compute what it should."""


def times(calls: Mapping[str, Call], budget: float = 10.0, least: int = 3) -> dict[str, float]:
    """Median seconds of each call.

    The calls take turns, so that what disturbs the machine disturbs all of them alike. Rounds go on until `budget`
    seconds are spent, and there are at least `least` of them, after one that does not count.

    >>> sorted(times({"a": lambda: None, "b": lambda: None}, budget=0.0))
    ['a', 'b']
    """
    for call in calls.values():
        call()
    spent: dict[str, list[float]] = {name: [] for name in calls}
    start, rounds = time.perf_counter(), 0
    while rounds < least or time.perf_counter() - start < budget:
        for name, call in calls.items():
            spent[name].append(seconds(call))
        rounds += 1
    return {name: median(values) for name, values in spent.items()}


def seconds(call: Call) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def gpu_times(calls: Mapping[str, Call], budget: float = 0.3, rounds: int = 2) -> dict[str, float]:
    """Median seconds of each call on the GPU, by its own clock, with its cache emptied before each.

    Each call runs for `budget` seconds in all, in `rounds` stretches that take turns, so that what disturbs the machine
    disturbs all of them alike; a stretch begins with calls that do not count. One that runs out of memory is left out.
    """
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            with suppress(torch.OutOfMemoryError):
                spent[name] += stretch(call, budget / rounds)
    return {name: median(values) for name, values in spent.items() if values}


def stretch(call: Call, budget: float, least: int = 3, most: int = 200) -> list[float]:
    """Seconds of each of as many calls as the budget allows."""
    torch.cuda.empty_cache()
    filler = torch.empty(256_000_000, dtype=torch.int8, device="cuda")  # larger than any cache
    call()
    sample = clocked(call, filler, 2)
    if sum(sample) >= budget:
        return sample
    once = max(sample[-1], 1e-6)
    clocked(call, filler, min(int(budget / 5 / once), most))
    return clocked(call, filler, min(max(int(budget / once), least), most))


def clocked(call: Call, filler: Tensor, count: int) -> list[float]:
    """Seconds of each of `count` calls, queued without waiting for one another."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for start, end in events:
        filler.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in events]


def gpu_memory(call: Call) -> int:
    """Peak bytes on the GPU that a call takes beyond what stood before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def extra_memory(make: Callable[[], Call]) -> int:
    """Peak bytes that a call takes beyond what stood before it.

    `make` prepares the call in a fresh process, which no other measurement has warmed or filled; it must be
    importable there (a function of a module, or a partial of one).
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(peak_of, make, torch.get_num_threads()).result()


def peak_of(make: Callable[[], Call], threads: int) -> int:
    """What `extra_memory` does, in the process where it happens; a page is the least that can be told."""
    torch.set_num_threads(threads)
    call = make()
    if not forget_peak():
        before = highest()
        call()
        return max(highest() - before, resource.getpagesize())
    before = status("VmRSS")
    call()
    return max(status("VmHWM") - before, resource.getpagesize())


def forget_peak() -> bool:
    """Whether the system agreed to start this process's peak anew (Linux does)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def status(field: str) -> int:
    """Bytes that Linux reports of this process under a name."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def highest() -> int:
    """Peak bytes since this process began; macOS counts them in bytes, others in kilobytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def error(got: Tensor, wanted: Tensor) -> float:
    """‖got − wanted‖ / ‖wanted‖, in float64."""
    got, wanted = got.double(), wanted.double()
    return float((got - wanted).norm() / wanted.norm().clamp_min(torch.finfo(torch.float32).tiny))


def check(name: str, got: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float = 1e-4) -> None:
    """Raises `WrongNumbers` unless every tensor is within a relative error of the one wanted."""
    for place, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        if ours.shape != theirs.shape:
            raise WrongNumbers(f"{name}: result {place} has shape {list(ours.shape)}, not {list(theirs.shape)}.")
        # Written so that NaN fails too.
        if not (off := error(ours, theirs)) <= tolerance:
            raise WrongNumbers(
                f"{name}: result {place} is off by {off:.1e}, more than {tolerance:.0e}; it is not measured."
            )
