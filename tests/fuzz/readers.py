"""Feeds mutated files to every reader of data and of models: what left it, how long it took, how much memory it needed.

    python tests/fuzz/readers.py --inputs 20000 --out build/fuzz.json          (make fuzz)
    python tests/fuzz/readers.py --only Parquet --first 1234 --inputs 1        one input again

An input is a function of its family and number. Inputs run in subprocesses, so that a crash of a library is counted.
A run that was stopped continues where the file of its results ends.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import annotation_samples
import graph_samples
import record_samples
import samples
from model_samples import model_families
from samples import Family

from regard.errors import RegardError


@cache
def families() -> dict[str, Family]:
    """Every family of files, of data and of models; made once, before subprocesses are forked."""
    data = samples.families() | annotation_samples.families() | graph_samples.families()
    return data | model_families() | record_samples.families()


SLOW, LARGE = 5.0, 1024.0
"""Seconds of the processor for an input, and MiB of memory that a family may take beyond its start."""
BATCH, PART = 1000, 500
"""Inputs of a subprocess, and inputs after which the results are written."""
ADDRESSES = 8 << 30
"""Bytes that a subprocess may ask for: an input that asks for more is over the limit, and the machine goes on."""
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A file system in memory, where there is one: most of a small input's time is otherwise its file."""


@dataclass
class Report:
    """What became of the inputs of a family.

    `foreign` are exceptions that left a reader and are not ours; `guarded` those that only the guard around all readers
    turned into faults.
    """

    inputs: int = 0
    read: int = 0
    faults: int = 0
    refused: int = 0
    foreign: Counter[str] = field(default_factory=Counter)
    guarded: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    slow: int = 0
    seconds: float = 0.0
    max_seconds: float = 0.0
    max_mib: float = 0.0
    examples: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return vars(self) | {"max_seconds": round(self.max_seconds, 2), "max_mib": round(self.max_mib, 2)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        return cls(**data | {"foreign": Counter(data["foreign"]), "guarded": Counter(data["guarded"])})

    @property
    def over_limits(self) -> bool:
        """Whether something left a reader that should not, or nothing was read: then nothing was tested either."""
        unread = self.inputs >= BATCH and not self.read
        return bool(unread or self.foreign or self.guarded or self.crashes or self.slow or self.max_mib > LARGE)

    def add(self, other: Report) -> None:
        for name in ("inputs", "read", "faults", "refused", "crashes", "slow", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.foreign += other.foreign
        self.guarded += other.guarded
        self.max_seconds, self.max_mib = max(self.max_seconds, other.max_seconds), max(self.max_mib, other.max_mib)
        self.examples = other.examples | self.examples


def run_input(family: Family, name: str, number: int, folder: Path, report: Report) -> None:
    """Mutate one of the files, which all lie in the folder, read them with all readers of the family, and mend it."""
    rng = Random(f"{name} {number}")
    chosen = rng.choice(family.mutated)
    (folder / chosen).write_bytes(family.mutate(chosen, family.files[chosen], rng))
    start = time.process_time()
    for read in family.reads:
        try:
            reading = read(family.folder(folder, chosen))
            report.read += bool(reading.examples)
            report.faults += bool(reading.faults)
            for fault in reading.faults:
                if fault.cause:
                    report.guarded[fault.cause] += 1
                    report.examples.setdefault(f"guarded {fault.cause}", f"{number}: {fault}"[:300])
        except RegardError:
            report.refused += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            cause = f"{type(error).__module__}.{type(error).__name__}"
            report.foreign[cause] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            report.examples.setdefault(f"foreign {cause}", f"{number}: {where.filename}:{where.lineno} {error}"[:300])
    seconds = time.process_time() - start
    report.inputs += 1
    report.seconds += seconds
    if seconds > SLOW:
        report.slow += 1
        report.examples.setdefault("slow", f"{number}: {seconds:.1f} s")
    report.max_seconds = max(report.max_seconds, seconds)
    (folder / chosen).write_bytes(family.files[chosen])


def warm_up(family: Family, folder: Path) -> None:
    """Write the files and read them as they are, so that packages are imported before anything is timed."""
    for file, data in family.files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(data)
    for place in {family.folder(folder, name) for name in family.mutated}:
        for read in family.reads:
            with suppress(RegardError):  # not every reader of a family takes each of its samples
                read(place)


def run_inputs(name: str, first: int, count: int) -> Report:
    """The report of inputs `first`, `first` + 1, … in this process."""
    family, report = families()[name], Report()
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        warm_up(family, Path(folder))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(first, first + count):
            run_input(family, name, number, Path(folder), report)
    report.max_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return report


def run_worker(name: str, first: int, count: int, connection: Any, progress: Any) -> None:
    """`run_inputs` in a subprocess; `progress` is the number of the input that is read."""
    os.environ["OMP_NUM_THREADS"] = "1"
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    family, report = families()[name], Report()
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, open(os.devnull, "w") as silence:
        warm_up(family, Path(folder))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        os.dup2(silence.fileno(), 2)  # libraries write their warnings there
        for number in range(first, first + count):
            progress.value = number
            run_input(family, name, number, Path(folder), report)
    report.max_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    connection.send(report)


def run_family(name: str, first: int, count: int) -> Report:
    """The report of a family; after a crash the inputs behind the one that crashed follow."""
    context, report, end = multiprocessing.get_context("fork"), Report(), first + count
    while first < end:
        size = min(BATCH, end - first)
        receiver, sender = context.Pipe(duplex=False)
        progress = context.Value("q", first)
        worker = context.Process(target=run_worker, args=(name, first, size, sender, progress))
        worker.start()
        sender.close()
        try:
            report.add(receiver.recv())
            first += size
        except EOFError:
            number = int(progress.value)
            report.crashes += 1
            report.examples.setdefault("crash", f"{number}: the process died")
            report.add(run_family(name, first, number - first) if number > first else Report())
            report.inputs += 1
            first = number + 1
        worker.join()
    return report


def format_row(name: str, report: Report) -> str:
    foreign, guarded = report.foreign.total(), report.guarded.total()
    return (
        f"{name:24}{report.inputs:9,}{report.read:9,}{report.faults:9,}{foreign:9,}{guarded:9,}{report.crashes:9,}"
        f"{report.slow:7,}{report.max_seconds:9.2f}{report.max_mib:9.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="inputs of each family")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so many minutes; 0 is no limit")
    parser.add_argument("--processes", type=int, default=1, help="inputs that are read at the same time")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--only", action="append", help="a family; can be repeated")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz.json"))
    given = parser.parse_args()
    made = list(families())  # in this process, and shared by the subprocesses
    names = given.only or made
    earlier = json.loads(given.out.read_text())["families"] if given.out.is_file() and not given.first else {}
    reports = {name: Report.from_dict(earlier[name]) if name in earlier else Report() for name in names}
    run_parts(reports, given)
    heads = ("inputs", "read", "faults", "foreign", "guarded", "crashes")
    print(f"{'family':24}" + "".join(f"{head:>9}" for head in heads) + f"{'slow':>7}{'max s':>9}{'MiB':>9}", flush=True)
    for name, report in reports.items():
        print(format_row(name, report), flush=True)
        for kind, example in report.examples.items():
            print(f"    {kind}: input {example}", flush=True)
    bad = [name for name, report in reports.items() if report.over_limits]
    sys.exit(f"over the limits: {', '.join(bad)}" if bad else 0)


def run_parts(reports: dict[str, Report], given: argparse.Namespace) -> None:
    """Add to each report until it has its inputs or the time is over, the shortest first, a part at a time.

    So a run that is stopped has about as many inputs of each family, and the next one continues behind them.
    """
    start, running = time.monotonic(), dict[Future[Report], str]()
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("fork")) as pool:
        while True:
            waiting = [name for name in set(reports) - set(running.values()) if reports[name].inputs < given.inputs]
            waiting = [] if given.minutes and time.monotonic() - start >= 60 * given.minutes else waiting
            waiting.sort(key=lambda name: reports[name].inputs)
            for name in waiting[: given.processes - len(running)]:
                first = given.first + reports[name].inputs
                part = min(PART, given.inputs - reports[name].inputs)
                running[pool.submit(run_family, name, first, part)] = name
            if not running:
                break
            for part in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(part)
                reports[name].add(part.result())
                print(f"{name}: {reports[name].inputs:,} of {given.inputs:,}", end="\r", file=sys.stderr, flush=True)
            write_reports(given.out, reports)


def write_reports(path: Path, reports: dict[str, Report]) -> None:
    """Write the reports so far."""
    document = {
        "command": "python tests/fuzz/readers.py --inputs N (N of each family below)",
        "families": {name: report.to_dict() for name, report in reports.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
