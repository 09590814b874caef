"""A survey on a GPU in minutes: many processes prepare the calls, and one at a time measures.

Compilation takes most of the time, and every call of FlexAttention is compiled for its own sizes. So several processes
compile the calls, in the order in which they were drawn, and compare their results. When the share of time for this is
over, or all are prepared, each process times its own calls while the others wait. A call that ends its process is
recorded as failed, and so is one that was never prepared.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from time import perf_counter, sleep
from typing import Any

import torch

from regard.bench.survey.survey import BUDGETS, Prepared, SurveyCall, SurveyRow, explain, prepare_call, time_prepared

PROCESSES = 13  # that prepare calls at once, at most
PREPARE_SHARE = 0.6  # of the time there is, at most
CALL_SECONDS = 20.0  # of the timing of a call, at most
FINISH_SECONDS = 12.0  # that processes may go on with a call when the time to prepare is over
ATTEMPTS = 3  # at a call that finds too little memory beside those of the other processes
PAUSE = 2.0  # seconds between them
HELD_BYTES = 1 << 27  # of a call's tensors that are held until it is timed; larger ones are made again
SPAWN = multiprocessing.get_context("spawn")  # a forked process could not use the GPU

Result = SurveyRow | str


def measure_in_processes(
    calls: list[SurveyCall], device: str, end: float, report: Callable[[str], None]
) -> Iterator[tuple[SurveyCall, Result]]:
    """Every call with its row, or with the reason why it has none, until the time is over."""
    start = perf_counter()
    workers = [Worker(device) for _ in range(min(PROCESSES, max((os.cpu_count() or 1) - 1, 1), len(calls)))]
    try:
        prepared, failed = prepare_calls(calls, workers, start + (end - start) * PREPARE_SHARE)
        seconds = perf_counter() - start
        report(f"{len(prepared)} of {len(calls)} calls prepared in {seconds:.0f} s, {len(failed)} failed")
        yield from failed.items()
        for call, worker in prepared.items():
            if perf_counter() > end:
                return
            yield call, worker.time(call, CALL_SECONDS)
    finally:
        for worker in workers:
            worker.stop()


def fill_caches(calls: list[SurveyCall], device: str, seconds: float, processes: int = PROCESSES) -> int:
    """Prepare calls and forget them: a survey of the same calls finds their kernels on the disk. How many were."""
    end = perf_counter() + seconds - FINISH_SECONDS
    workers = [Worker(device) for _ in range(processes)]
    try:
        return len(prepare_calls(calls, workers, end)[0])
    finally:
        for worker in workers:
            worker.stop()


def prepare_calls(
    calls: list[SurveyCall], workers: list["Worker"], end: float
) -> tuple[dict[SurveyCall, "Worker"], dict[SurveyCall, Result]]:
    """The calls that are prepared until the time is over, with their processes, in order; and those that failed."""
    left = list(reversed(calls))
    prepared: dict[SurveyCall, Worker] = {}
    failed: dict[SurveyCall, Result] = {}
    for worker in workers:
        if left:
            worker.prepare(left.pop())
    busy = [worker for worker in workers if worker.call is not None]
    while busy and perf_counter() < end + FINISH_SECONDS:
        ready = wait([worker.connection for worker in busy], timeout=0.5)
        for worker in [worker for worker in busy if worker.connection in ready]:
            call, answer = worker.call, worker.receive()
            if answer is None:
                prepared[call] = worker  # type: ignore[index]
            else:
                failed[call] = answer  # type: ignore[index]
            if worker.alive and left and perf_counter() < end:
                worker.prepare(left.pop())
        busy = [worker for worker in busy if worker.call is not None]
    for worker in busy:  # too slow
        worker.stop()
    return {call: prepared[call] for call in calls if call in prepared and prepared[call].alive}, failed


class Worker:
    """A process that prepares and times the calls it is sent, one after another."""

    def __init__(self, device: str) -> None:
        self.connection, other = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve_calls, args=(other, device), daemon=True)
        self.process.start()
        self.call: SurveyCall | None = None  # that it is preparing
        self.alive = True
        other.close()

    def prepare(self, call: SurveyCall) -> None:
        self.call = call
        with suppress(OSError):
            self.connection.send(("prepare", call))

    def receive(self) -> str | None:
        """Why the call that it was preparing failed; None where it is prepared."""
        self.call = None
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.stop()
            return "ended its process"

    def time(self, call: SurveyCall, seconds: float) -> Result:
        """The row of a prepared call, or why it has none."""
        if not self.alive:
            return "its process was ended by another call"
        try:
            self.connection.send(("time", call))
            if self.connection.poll(seconds):
                return self.connection.recv()
            problem = f"was not timed in {seconds:.0f} s"
        except (EOFError, OSError):
            problem = "ended its process"
        self.stop()
        return problem

    def stop(self) -> None:
        self.alive, self.call = False, None
        self.process.kill()
        self.process.join()
        self.connection.close()


def serve_calls(connection: Connection, device: str) -> None:
    """Prepare and time the calls that come, until the other side is gone."""
    from torch._inductor import config

    config.compile_threads = 1
    prepared: dict[SurveyCall, Prepared] = {}
    with suppress(EOFError, OSError):
        while True:
            task, call = connection.recv()
            connection.send(prepare(prepared, call, device) if task == "prepare" else time_one(prepared, call, device))
            if device == "cuda":
                torch.cuda.empty_cache()


def prepare(prepared: dict[SurveyCall, Prepared], call: SurveyCall, device: str) -> str | None:
    """Why a call cannot be prepared; None where it is."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            made = prepare_call(call, device, compiled=True)
        except torch.OutOfMemoryError as error:
            if attempt == ATTEMPTS:
                return explain(error)
        except Exception as error:  # the process goes on with the next
            return explain(error)
        else:
            if attempt == ATTEMPTS or not any("OutOfMemory" in reason for reason in made.left_out.values()):
                if made.bytes > HELD_BYTES:
                    made.release()
                prepared[call] = made
                return None
        torch.cuda.empty_cache()
        sleep(PAUSE)
    return None  # the last attempt has returned


def time_one(prepared: dict[SurveyCall, Prepared], call: SurveyCall, device: str) -> Any:
    """The row of a prepared call, or why it has none."""
    try:
        return time_prepared(prepared.pop(call), device, BUDGETS[device])
    except Exception as error:
        return explain(error)
