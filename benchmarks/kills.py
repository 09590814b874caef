"""Kills training at every file operation and at random moments, sends signals, flips bits: no bit may be lost.

    python benchmarks/kills.py --kills 200 --out benchmarks/results/kills.json

A small tagger is trained in processes that are forked from this one. Each is killed (`kill -9`) before one of the
operations that change the run's folder (open to write, rename, remove, make or remove a folder, change a mode, flush,
half of a file of tensors), or at a random moment; then the run is resumed. The model's folder must open or not be
there, and at the end all tensors of the model and the last checkpoint must be those of an undisturbed run, bit for bit,
with no half-written file left. After a signal the run must end within ten seconds with a checkpoint of its last step. A
flipped bit in a checkpoint must make the run resume from the one before, and one in the model must be refused.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import regard as rg
from regard.train.checkpoints import CheckpointStore
from regard.train.commands import train_from_files
from regard.train.run import RunConfig
from restarts import count_steps, half_written, read_bits, write_data

SETTINGS = {"dim": 16, "layers": 1, "heads": 2, "batch_tokens": 90, "warmup": 5, "save_every": 3, "evaluate_every": 5}
STEPS = 12
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
MAX_SIGNAL_SECONDS = 10.0
EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}
"""What Python reports before it changes files, beside `open`."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def fork(work: Callable[[], object]) -> int:
    """The number of a new process that does this work, silently, and ends with 0; with 1 after an error."""
    if (child := os.fork()) != 0:
        return child
    status = 1
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        if not os.environ.get("KILLS_DEBUG"):
            os.dup2(silence, 2)
        work()
        status = 0
    finally:
        os._exit(status)


def wait(child: int) -> int:
    """How a process ended: its status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def train(data: Path, out: Path) -> None:
    """Train, or resume."""
    changes = {**SETTINGS, "steps": STEPS, "device": "cpu"}
    train_from_files(RunConfig.from_changes("tag", changes, train=[data]), out)


class Operations:
    """Counts the operations that change files below a folder, and kills the process before one of them."""

    def __init__(self, folder: Path, kill_before: int | None) -> None:
        self.folder, self.kill_before, self.count = str(folder), kill_before, 0

    def watch(self) -> None:
        """Begin, for the rest of the process."""
        import safetensors.torch

        sys.addaudithook(self.audit)
        flush, save_file = os.fsync, safetensors.torch.save_file

        def counted_flush(descriptor: int) -> None:
            self.add()
            flush(descriptor)

        def cut_off(tensors: object, file: str | Path, *rest: object, **more: object) -> None:
            save_file(tensors, file, *rest, **more)  # type: ignore[arg-type]
            if self.count + 1 == self.kill_before:
                os.truncate(file, Path(file).stat().st_size // 2)
            self.add()

        os.fsync, safetensors.torch.save_file = counted_flush, cut_off

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in EVENTS and not (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES):
            return
        path = arguments[0]
        if isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(self.folder):
            self.add()

    def add(self) -> None:
        self.count += 1
        if self.count == self.kill_before:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Result:
    """What came of it."""

    operations: int = 0
    operations_same_bits: int = 0
    random_kills: int = 0
    random_jobs: int = 0
    random_same_bits: int = 0
    half_written_files: int = 0
    models_that_do_not_open: int = 0
    signals: int = 0
    signals_saved: int = 0
    longest_signal_seconds: float = 0.0
    flips: int = 0
    flips_noticed: int = 0
    model_flips: int = 0
    model_flips_noticed: int = 0
    seconds: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing was lost."""
        pairs = [
            (self.operations, self.operations_same_bits),
            (self.random_jobs, self.random_same_bits),
            (self.signals, self.signals_saved),
            (self.flips, self.flips_noticed),
            (self.model_flips, self.model_flips_noticed),
        ]
        clean = not self.half_written_files and not self.models_that_do_not_open
        return clean and all(a == b for a, b in pairs) and self.longest_signal_seconds <= MAX_SIGNAL_SECONDS


class Killer:
    """Jobs below a folder, each compared with one that nobody disturbed."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.rng, self.result = folder, random.Random(seed), Result()
        self.data, self.number = write_data(folder / "train.conllu"), 0
        self.whole = folder / "whole"
        self.import_modules()
        started = time.monotonic()
        self.train(self.whole)
        self.run_seconds = time.monotonic() - started
        self.expected = read_bits(self.whole)

    def import_modules(self) -> None:
        """Import what a run imports, once for all processes."""
        out, names = self.new_folder(), self.folder / "modules.txt"
        before = set(sys.modules)

        def work() -> None:
            train(self.data, out)
            names.write_text("\n".join(name for name in sys.modules if name not in before))

        if wait(fork(work)):
            raise RuntimeError("a run that nobody disturbed failed; KILLS_DEBUG=1 shows why")
        for name in names.read_text().split():
            with suppress(Exception):  # of modules that are attributes of others
                importlib.import_module(name)
        shutil.rmtree(out)

    def train(self, out: Path) -> None:
        if status := wait(fork(lambda: train(self.data, out))):
            raise RuntimeError(f"a run that nobody disturbed ended with {status}")

    def new_folder(self) -> Path:
        self.number += 1
        return self.folder / f"job-{self.number}"

    def count_operations(self) -> int:
        """How many operations a run makes."""
        counted, out = self.folder / "count.txt", self.new_folder()

        def work() -> None:
            operations = Operations(out, None)
            operations.watch()
            train(self.data, out)
            counted.write_text(str(operations.count))

        if wait(fork(work)):
            raise RuntimeError("a run that nobody disturbed failed")
        shutil.rmtree(out)
        return int(counted.read_text())

    def kill_before(self, operation: int) -> None:
        """Kill a run before this operation, and resume it."""
        out = self.new_folder()

        def work() -> None:
            Operations(out, operation).watch()
            train(self.data, out)

        status = wait(fork(work))
        if status != -signal.SIGKILL:
            self.result.failures.append(f"operation {operation}: the run ended with {status} instead of being killed")
        self.result.operations += 1
        self.result.operations_same_bits += self.finish(out, f"operation {operation}")

    def kill_at_random(self, kills: int) -> None:
        """Kill a run at random moments, up to so many times or until it ends, and let it end."""
        out = self.new_folder()
        for _ in range(kills):
            child = fork(lambda: train(self.data, out))
            time.sleep(self.rng.uniform(0, self.run_seconds))
            os.kill(child, signal.SIGKILL)
            if wait(child) != -signal.SIGKILL:
                break
            self.result.random_kills += 1
        self.result.random_jobs += 1
        self.result.random_same_bits += self.finish(out, f"random kills of {out.name}")

    def send_signal(self, name: str) -> None:
        """Send a signal to a run after a random step: it must end in time with a checkpoint of its last step."""
        out, step = self.new_folder(), self.rng.randint(1, STEPS - 2)
        child = fork(lambda: train(self.data, out))
        while count_steps(out) < step:
            time.sleep(0.002)
        sent = time.monotonic()
        os.kill(child, getattr(signal, name))
        status, seconds = wait(child), time.monotonic() - sent
        latest = CheckpointStore(out / "checkpoints").latest()
        saved = status == 0 and latest is not None and latest[0]["step"] >= count_steps(out)
        if not saved:
            self.result.failures.append(f"{name}: status {status}, {seconds:.1f} s, checkpoint {latest}")
        self.result.signals += 1
        self.result.longest_signal_seconds = max(self.result.longest_signal_seconds, round(seconds, 2))
        self.result.signals_saved += saved and self.finish(out, name)

    def flip_in_checkpoint(self) -> None:
        """Flip a bit of the newest checkpoint of a run that was stopped: it resumes from the one before."""
        out = self.new_folder()
        shutil.copytree(self.whole, out)
        newest, before = sorted((out / "checkpoints").glob("step-*"), reverse=True)[:2]
        flip_bit(self.rng.choice(sorted(newest.iterdir())), self.rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = CheckpointStore(out / "checkpoints").latest()
        noticed = found is not None and found[1] == before
        self.result.flips += 1
        self.result.flips_noticed += noticed and self.finish(out, "a flipped bit in a checkpoint")

    def flip_in_model(self) -> None:
        """Flip a bit of the model of a run: it is refused."""
        out = self.new_folder()
        shutil.copytree(self.whole, out)
        file = self.rng.choice(sorted((out / "model").iterdir()))
        flip_bit(file, self.rng)
        self.result.model_flips += 1
        try:
            rg.load(out)
            self.result.failures.append(f"a flipped bit in {file.name} was not noticed")
        except rg.BadInput:
            self.result.model_flips_noticed += 1
        shutil.rmtree(out)

    def finish(self, out: Path, what: str) -> bool:
        """Resume a run to its end; whether its tensors are the expected ones."""
        if (out / "model" / "regard.json").is_file():
            try:
                rg.load(out)
            except rg.RegardError as error:
                self.result.models_that_do_not_open += 1
                self.result.failures.append(f"{what}: {error}")
        status = wait(fork(lambda: train(self.data, out)))
        same = status == 0 and read_bits(out) == self.expected
        left = half_written(out)
        self.result.half_written_files += len(left)
        if not same or left:
            self.result.failures.append(f"{what}: status {status}, same bits: {same}, left: {left}")
        shutil.rmtree(out)
        return same


def flip_bit(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="kills at random moments")
    parser.add_argument("--each", type=int, default=4, help="kills of each of these jobs")
    parser.add_argument("--signals", type=int, default=20)
    parser.add_argument("--flips", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        killer = Killer(Path(folder), given.seed)
        operations = killer.count_operations()
        print(f"a run takes {killer.run_seconds:.2f} s and makes {operations} operations", flush=True)

        def report(number: int, of: int, what: str) -> None:
            killer.result.seconds = round(time.monotonic() - start)
            if number % 20 == 0 or number >= of:
                print(f"{what}: {number} of {of}, {killer.result.seconds} s, {killer.result.failures}", flush=True)
                if given.out is not None:
                    document = {"command": "python benchmarks/kills.py --kills N", **vars(killer.result)}
                    given.out.write_text(json.dumps(document, indent=1) + "\n")

        for n in range(given.flips):
            killer.flip_in_checkpoint()
            killer.flip_in_model()
            report(n + 1, given.flips, "flipped bits")
        for n in range(given.signals):
            killer.send_signal(SIGNALS[n % len(SIGNALS)])
            report(n + 1, given.signals, "signals")
        for n in range(operations):
            killer.kill_before(n + 1)
            report(n + 1, operations, "kills before an operation")
        while killer.result.random_kills < given.kills:
            killer.kill_at_random(given.each)
            report(killer.result.random_kills, given.kills, "kills at random")
    print(json.dumps(vars(killer.result), indent=1))
    sys.exit(not killer.result.complete)


if __name__ == "__main__":
    main()
