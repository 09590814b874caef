"""Background jobs: a few threads, a bounded queue, progress reports and cancellation."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypedDict, TypeVar

from ..protocol import Translated

RUNNING, WAITING = 2, 32
MAX_JOBS = 256
"""Jobs whose progress can be read; those that have ended are dropped first."""

Message = str | Translated
"""A text by language, or one that needs no translation."""
Result = TypeVar("Result")


class JobFields(TypedDict):
    """The progress of a job as pages receive it."""

    id: str
    state: str
    done: int
    total: int
    words: Message


class Cancelled(Exception):
    """The client has disconnected or has cancelled the job."""


class QueueFull(Exception):
    """The queue takes no more jobs."""


class Job:
    """The progress of one task, `done` of `total`, and whether it is cancelled."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.state = "waiting"
        self.done, self.total = 0, 0
        self.message: Message = ""
        self.cancelled = threading.Event()
        self.withdrawn = False  # cancelled before its request came

    def report(self, done: int, total: int, message: Message = "") -> None:
        """Set the progress; raises `Cancelled` when the job is cancelled."""
        self.check_cancelled()
        self.done, self.total, self.message = done, total, message

    def check_cancelled(self) -> None:
        """Raise `Cancelled` when the job is cancelled."""
        if self.cancelled.is_set():
            raise Cancelled

    def cancel(self) -> None:
        self.cancelled.set()

    @contextmanager
    def hold(self, lock: threading.Lock) -> Iterator[None]:
        """Hold the lock; waiting for it ends when the job is cancelled."""
        while not lock.acquire(timeout=0.05):
            self.check_cancelled()
        try:
            self.check_cancelled()
            yield
        finally:
            lock.release()

    def as_dict(self) -> JobFields:
        return {"id": self.name, "state": self.state, "done": self.done, "total": self.total, "words": self.message}


class JobQueue:
    """At most `running` jobs at once and `waiting` behind them; one more raises `QueueFull`."""

    def __init__(self, running: int = RUNNING, waiting: int = WAITING) -> None:
        self.running, self.capacity = running, running + waiting
        self.pool = ThreadPoolExecutor(running, thread_name_prefix="lab")
        self.lock = threading.Lock()
        self.jobs: OrderedDict[str, Job] = OrderedDict()
        self.pending = 0

    def submit(self, job: Job, call: Callable[[Job], Result]) -> Future[Result]:
        """The future result of `call(job)`."""
        with self.lock:
            if self.pending >= self.capacity:
                raise QueueFull(
                    f"{self.pending} requests are running or waiting, which is the limit. "
                    "Try again when some have finished."
                )
            self.pending += 1
            early = self.jobs.get(job.name)
            if early is not None and early.withdrawn:
                job.cancel()
            if job.name:
                self.record(job)
        future = self.pool.submit(self.run, job, call)
        future.add_done_callback(self.count_down)
        return future

    def record(self, job: Job) -> None:
        """Make a job known by its name. Of more than `MAX_JOBS` the oldest that have ended are dropped."""
        self.jobs[job.name] = job
        ended = [name for name, job in self.jobs.items() if job.state not in ("waiting", "running")]
        for name in ended[: max(0, len(self.jobs) - MAX_JOBS)]:
            del self.jobs[name]

    def withdraw(self, name: str) -> Job:
        """Cancel the job of that name, or the one that is to come under it: a cancellation may overtake its request."""
        with self.lock:
            job = self.jobs.get(name)
            if job is None:
                job = Job(name)
                job.state, job.withdrawn = "cancelled", True
                self.record(job)
        job.cancel()
        return job

    def run(self, job: Job, call: Callable[[Job], Result]) -> Result:
        """The result of the call; sets the job's state on the way."""
        try:
            job.check_cancelled()
            job.state = "running"
            result = call(job)
        except Cancelled:
            job.state = "cancelled"
            raise
        except BaseException:
            job.state = "failed"
            raise
        job.state = "done"
        return result

    def count_down(self, future: Future) -> None:
        with self.lock:
            self.pending -= 1

    def find(self, name: str) -> Job | None:
        return self.jobs.get(name)

    def close(self) -> None:
        """Cancel the jobs and take no more."""
        for job in list(self.jobs.values()):
            job.cancel()
        self.pool.shutdown(wait=False, cancel_futures=True)
