"""A survey on a GPU in minutes: many processes compile, and one, which can be replaced, measures.

Compilation takes most of the time, and every call of FlexAttention is compiled for its own sizes. So several processes
run each call once, in any order, which leaves its kernels in the caches of torch and Triton on the disk. Then a single
process times one call after another while nothing else runs. A call that ends that process, or takes too long, is
recorded as failed, and a new process goes on with the next.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Empty
from time import perf_counter, sleep
from typing import Any

import torch

from regard.bench.survey import (
    SurveyCall,
    SurveyRow,
    alternatives,
    first_line,
    make_arguments,
    make_step,
    measure_call,
    run_ours,
)

PROCESSES = 12  # that compile at once, at most
COMPILE_SHARE = 0.5  # of the time there is, at most
CALL_SECONDS = 45.0  # of a call that is measured, its process's start and its compilation included, at most
COMPILED = ("FlexAttention", "formula, compiled")
GPU_SHARE = 0.07  # of the GPU's memory for each process that compiles
SPAWN = multiprocessing.get_context("spawn")  # a forked process could not use the GPU


def measure_in_processes(
    calls: list[SurveyCall], device: str, end: float, report: Callable[[str], None]
) -> Iterator[tuple[SurveyCall, SurveyRow | str]]:
    """Every call with its row, or with the reason why it has none, until the time is over."""
    start = perf_counter()
    compiled = compile_calls(calls, device, start + (end - start) * COMPILE_SHARE)
    report(f"{compiled} of {len(calls)} calls compiled beforehand in {perf_counter() - start:.0f} s")
    worker: Worker | None = None
    try:
        for call in calls:
            if perf_counter() > end:
                return
            worker = worker or Worker(device)
            result = worker.measure(call, CALL_SECONDS)
            if result is None:
                yield call, f"ended its process, or took more than {CALL_SECONDS:.0f} s"
            else:
                yield call, result
            if not worker.alive:
                worker.stop()
                worker = None
    finally:
        if worker is not None:
            worker.stop()


class Worker:
    """A process that measures the calls it is sent."""

    def __init__(self, device: str) -> None:
        self.connection, other = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve_calls, args=(other, device), daemon=True)
        self.process.start()
        other.close()

    def measure(self, call: SurveyCall, seconds: float) -> SurveyRow | str | None:
        """The row of a call or why it has none; None where the process ends or takes longer, and it is then ended."""
        try:
            self.connection.send(call)
            if self.connection.poll(seconds):
                return self.connection.recv()
        except (EOFError, OSError):
            pass
        self.stop()
        return None

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def stop(self) -> None:
        stop_process(self.process)
        self.connection.close()


def stop_process(process: BaseProcess) -> None:
    process.kill()
    process.join()


def serve_calls(connection: Connection, device: str) -> None:
    """Measure the calls that come, until the other side is gone; end after an error that leaves the GPU unusable."""
    compile_alone()
    with suppress(EOFError, OSError):
        while True:
            connection.send(measure_call(connection.recv(), device, compiled=True))
            if device == "cuda":
                try:
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
                except RuntimeError:
                    return


def compile_alone() -> None:
    """Make torch compile in this process, without more of its own."""
    from torch._inductor import config

    config.compile_threads = 1


def compile_calls(calls: list[SurveyCall], device: str, end: float) -> int:
    """Run each call once in several processes, until the time is over; the number that were run."""
    queue, done = SPAWN.Queue(), SPAWN.Value("i", 0)
    for call in sorted(calls, key=lambda call: call.trains, reverse=True):  # those with two passes take longest
        queue.put(call)
    count = min(PROCESSES, max((os.cpu_count() or 1) - 1, 1), len(calls))
    processes = [SPAWN.Process(target=compile_queue, args=(queue, done, device), daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    while perf_counter() < end and any(process.is_alive() for process in processes):
        sleep(0.2)
    for process in processes:
        stop_process(process)
    queue.cancel_join_thread()
    return done.value


def compile_queue(queue: Any, done: Any, device: str) -> None:
    """Run the calls of a queue once each until it is empty."""
    compile_alone()
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(GPU_SHARE)
    with suppress(Empty):
        while True:
            compile_call(queue.get(timeout=1.0), device)
            with done.get_lock():
                done.value += 1
            if device == "cuda":
                torch.cuda.empty_cache()
            torch.compiler.reset()


def compile_call(call: SurveyCall, device: str) -> str:
    """Run a call and its compiled alternatives once; what failed is found again when it is measured."""
    try:
        a = make_arguments(call, device)
        grad = torch.randn_like(a.q[..., : a.v.shape[-1]])
        functions = [lambda: run_ours(a)]
        with suppress(RuntimeError, NotImplementedError):
            for name, function in alternatives(a, device, compiled=True):
                functions += [function] if name in COMPILED else []
        for function in functions:
            with suppress(RuntimeError, NotImplementedError):
                make_step(function, a, grad)()
    except Exception as error:  # a process that compiles must go on
        return first_line(error)
    return ""
