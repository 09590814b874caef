"""Which process of a run is gone or hangs: each writes a sign of life to the store that the processes met at.

A process that is killed makes the others wait, on some networks for as long as their timeout; one that hangs does so
everywhere, and no message says which it is. Here a thread of each process writes every second where its main thread
is. The first process reads those of all, the others that of the first. Who finds one silent or hanging prints which,
and ends its process, so that the launcher can start all of them again.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, replace
from types import FrameType

import torch.distributed as dist

INTERVAL = 1.0  # seconds between two signs of life
SILENCE = 30.0  # seconds after which a process without them is gone
PATIENCE = 8.0  # seconds in which one that made the others fail is looked for
LOST = ("connection", "peer", "nccl", "timed out", "timeout", "socket", "broken pipe")
"""Words of errors that another process has caused."""
WAITS = (
    "torch/distributed/",
    "torch/autograd/graph.py",
    "regard/distributed/exchange.py",
    "accelerate/utils/operations",
)
"""Files whose functions wait for other processes; a backward pass waits inside autograd."""


@dataclass(frozen=True)
class Sign:
    """What a process says of itself: `beat` counts its signs, `waiting` the seconds that it has waited for others.

    `place` is where its main thread is; `ended` why it ended, empty while it runs.
    """

    rank: int
    host: str
    pid: int
    beat: int = 0
    waiting: float = 0.0
    place: str = ""
    ended: str = ""

    def __str__(self) -> str:
        return f"process {self.rank} (pid {self.pid} on {self.host})"


class Liveness:
    """While open, this process gives signs of life and watches those of others; `advance` says that it works.

    `hang_seconds` is how long processes may wait for one that does not; None for ever.
    """

    def __init__(self, rank: int, processes: int, hang_seconds: float | None) -> None:
        store = dist.distributed_c10d._get_default_store()
        # a client of its own, since a call of another thread may block; clone is not among torch's type hints
        self.store: dist.Store = store.clone()  # pyright: ignore[reportAttributeAccessIssue]
        self.rank, self.processes, self.hang_seconds = rank, processes, hang_seconds
        self.main, self.steps, self.stopped = threading.get_ident(), 0, threading.Event()
        self.sign = Sign(rank, socket.gethostname(), os.getpid())
        self.heard: dict[int, tuple[int, float]] = {}
        self.progress = (-1, "", time.monotonic())
        self.thread = threading.Thread(target=self.run, name="liveness", daemon=True)

    def __enter__(self) -> Liveness:
        self.write()
        self.thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stopped.set()
        self.thread.join(2 * INTERVAL)
        text = "" if error is None else f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        self.sign = replace(self.sign, ended=text or "finished")
        self.write()

    def advance(self) -> None:
        """Say that the main thread has done a piece of work."""
        self.steps += 1

    def run(self) -> None:
        """The thread: give a sign, look at the others."""
        while not self.stopped.wait(INTERVAL):
            try:
                self.sign = replace(self.sign, beat=self.sign.beat + 1, **self.locate())
                self.write()
                verdict = self.judge()
            except Exception as error:  # the store is gone, and with it the process that had it
                verdict = f"The store of the processes does not answer ({error}): the process that had it has ended."
                if self.stopped.wait(PATIENCE):
                    return
            if verdict and not self.stopped.is_set():
                print(f"Error: {verdict}", file=sys.stderr, flush=True)
                os._exit(1)

    def locate(self) -> dict[str, str | float]:
        """Where the main thread is, and how long it has waited for others there."""
        frame = sys._current_frames().get(self.main)
        place, waits = describe_frame(frame)
        now = time.monotonic()
        steps, before, since = self.progress
        if steps != self.steps or not waits or before != place:
            self.progress = (self.steps, place if waits else "", now)
        since = self.progress[2]
        return {"place": place, "waiting": now - since if waits else 0.0}

    def judge(self) -> str | None:
        """What ends this process: the verdict of the first, or what this one finds; None if all is well."""
        if self.rank == 0:
            verdict = self.find_silent(self.read()) or self.find_hanging(self.read())
            if verdict:
                self.store.set("liveness/verdict", verdict)
            return verdict
        if self.store.check(["liveness/verdict"]):
            return self.store.get("liveness/verdict").decode()
        return self.find_silent(self.read([0]))

    def find_silent(self, signs: list[Sign]) -> str | None:
        """The processes that give no sign any more, in words."""
        now, silent = time.monotonic(), []
        for sign in signs:
            beat, since = self.heard.get(sign.rank, (-1, now))
            if beat != sign.beat:
                self.heard[sign.rank] = (sign.beat, now)
            elif now - since > SILENCE and not sign.ended:
                silent.append(sign)
        return None if not silent else self.describe_gone(silent)

    def describe_gone(self, signs: list[Sign]) -> str:
        names = ", ".join(str(sign) for sign in signs)
        return (
            f"Of {self.processes} processes {names} is gone: it was killed, or its machine is down. The run ends; the "
            "same command resumes it from its last checkpoint."
        )

    def find_hanging(self, signs: list[Sign]) -> str | None:
        """The processes that others wait for, in words, where one has waited too long."""
        limit = self.hang_seconds
        working = [sign for sign in signs if not sign.waiting and not sign.ended]
        if limit is None or not working or max(sign.waiting for sign in signs) < limit:
            return None
        names = ", ".join(f"{sign}, which is at {sign.place}" if sign.place else str(sign) for sign in working)
        return (
            f"The other processes have waited {limit:g} s for {names}. The run ends; the same command resumes it from "
            "its last checkpoint. Set hang_minutes higher if that step is only slow."
        )

    def explain(self, error: Exception) -> str | None:
        """Which process made an exchange between processes fail, in words; None where it was this one."""
        if not any(word in str(error).lower() for word in LOST):
            return None
        end = time.monotonic() + PATIENCE
        first = {sign.rank: sign for sign in self.read()}
        while time.monotonic() < end:
            time.sleep(INTERVAL / 2)
            signs = [sign for sign in self.read() if sign.rank != self.rank]
            failed = [sign for sign in signs if sign.ended and "is gone" not in sign.ended and sign.ended != "finished"]
            gone = [sign for sign in signs if not sign.ended and self.has_died(sign, first)]
            if gone:
                return self.describe_gone(gone)
            if failed:
                return f"Of {self.processes} processes {failed[0]} has ended with an error: {failed[0].ended}"
        return None

    def has_died(self, sign: Sign, first: dict[int, Sign]) -> bool:
        """Whether a process is gone: by its number on this machine, by its silence on another."""
        if sign.host != self.sign.host:
            beat, since = self.heard.get(sign.rank, (-1, 0.0))
            return first[sign.rank].beat == sign.beat and beat == sign.beat and time.monotonic() - since > 4 * INTERVAL
        try:
            os.kill(sign.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return is_zombie(sign.pid)

    def write(self) -> None:
        self.store.set(f"liveness/{self.rank}", json.dumps(asdict(self.sign)))

    def read(self, ranks: list[int] | None = None) -> list[Sign]:
        """The signs of these processes, of all by default; empty until all have given one."""
        keys = [f"liveness/{rank}" for rank in ranks or range(self.processes)]
        if not self.store.check(keys):
            return []
        return [Sign(**json.loads(value)) for value in self.store.multi_get(keys)]


def describe_frame(frame: FrameType | None) -> tuple[str, bool]:
    """(function and line of a frame, whether it waits for other processes)."""
    if frame is None:
        return "its end", False
    calls = traceback.extract_stack(frame, limit=12)
    waits = any(part in call.filename.replace(os.sep, "/") for call in calls for part in WAITS)
    last = calls[-1]
    return f"{last.name} ({os.path.basename(last.filename)}:{last.lineno})", waits


def is_zombie(pid: int) -> bool:
    """Whether a process has ended and its parent has not noticed, where the system says so."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False
