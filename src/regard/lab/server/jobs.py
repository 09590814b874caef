"""Work in the background: a few threads, a bounded queue, and jobs that tell how far they are and can be stopped."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

RUNNING, WAITING = 2, 32
REMEMBERED = 256
"""Jobs whose progress can still be asked for; ended ones go first."""


Words = str | dict[str, str]
"""A text by language, or one that needs no language."""


class Cancelled(Exception):
    """Whoever asked has gone away, or said stop."""


class Busy(Exception):
    """More is asked than is worked on."""


class Job:
    """One piece of work: how far it is, in `done` of `total`, and whether it is still wanted."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.state = "waiting"
        self.done, self.total = 0, 0
        self.words: Words = ""
        self.stopped = threading.Event()

    def tell(self, done: int, total: int, words: Words = "") -> None:
        """Say how far the work is and, in both languages, what is done; end it if nobody waits for it."""
        self.check()
        self.done, self.total, self.words = done, total, words

    def check(self) -> None:
        """Raise `Cancelled` when nobody waits for the work."""
        if self.stopped.is_set():
            raise Cancelled

    def cancel(self) -> None:
        self.stopped.set()

    @contextmanager
    def holding(self, lock: threading.Lock):
        """The lock, waited for as long as the work is wanted."""
        while not lock.acquire(timeout=0.05):
            self.check()
        try:
            self.check()
            yield
        finally:
            lock.release()

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.name, "state": self.state, "done": self.done, "total": self.total, "words": self.words}


class Work:
    """At most `running` jobs at once and `waiting` behind them; one more is `Busy`."""

    def __init__(self, running: int = RUNNING, waiting: int = WAITING) -> None:
        self.running, self.most = running, running + waiting
        self.pool = ThreadPoolExecutor(running, thread_name_prefix="lab")
        self.lock = threading.Lock()
        self.jobs: OrderedDict[str, Job] = OrderedDict()
        self.under_way = 0

    def start(self, job: Job, call: Callable[[Job], Any]) -> Future:
        """The future answer of `call(job)`."""
        with self.lock:
            if self.under_way >= self.most:
                raise Busy(
                    f"{self.under_way} requests are being worked on or wait, which is as many as the lab takes. "
                    "Ask again when some have been answered."
                )
            self.under_way += 1
            if job.name:
                self.jobs[job.name] = job
                self.forget()
        future = self.pool.submit(self.run, job, call)
        future.add_done_callback(lambda _: self.leave())
        return future

    def run(self, job: Job, call: Callable[[Job], Any]) -> Any:
        try:
            job.check()
            job.state = "running"
            answer = call(job)
        except Cancelled:
            job.state = "cancelled"
            raise
        except BaseException:
            job.state = "failed"
            raise
        job.state = "done"
        return answer

    def leave(self) -> None:
        with self.lock:
            self.under_way -= 1

    def forget(self) -> None:
        """Let go of the oldest jobs that have ended."""
        ended = [name for name, job in self.jobs.items() if job.state not in ("waiting", "running")]
        for name in ended[: max(0, len(self.jobs) - REMEMBERED)]:
            del self.jobs[name]

    def find(self, name: str) -> Job | None:
        return self.jobs.get(name)

    def close(self) -> None:
        """Stop what is under way and take no more."""
        for job in list(self.jobs.values()):
            job.cancel()
        self.pool.shutdown(wait=False, cancel_futures=True)
