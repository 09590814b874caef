"""Finds experiments, runs them, and keeps what they found: `<name>.json` and a figure in each language."""

from __future__ import annotations

import difflib
import json
import os
import pkgutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast, get_args

from ..errors import BadInput, RegardError
from . import claims
from .experiment import Claim, Experiment, Language, Size, Tell
from .results import LANGUAGES, figure_path, read, save

SIZES: tuple[Size, ...] = get_args(Size)
MOST_COLOURS = 255
"""Colours of a saved figure: each is within a few levels of what was drawn, and the file is a third as large."""


def found() -> list[Experiment]:
    """Every experiment, by number; raises `BadInput` that names one which is broken."""
    modules = [load(module) for module in module_names()]
    known = sorted((one for one in modules if hasattr(one, "CLAIM")), key=lambda one: one.CLAIM.number)
    for first, second in pairwise(known):
        if first.CLAIM.number == second.CLAIM.number:
            raise BadInput(f"{first.CLAIM.name} and {second.CLAIM.name} both have the number {first.CLAIM.number}.")
    return known


def find(name: str) -> Experiment:
    """The experiment of that name, without a look at the others; raises `BadInput` that names the nearest."""
    module = name.replace("-", "_")
    if module not in module_names() or not hasattr(load(module), "CLAIM"):
        names = [one.replace("_", "-") for one in module_names()]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise BadInput(f"There is no experiment {name!r}. {hint}regard experiment list names them.")
    return load(module)


def module_names() -> list[str]:
    """The modules of this folder that may be experiments."""
    return [one.name for one in pkgutil.iter_modules(claims.__path__)]


def load(module: str) -> Experiment:
    """The module, whole: one with a CLAIM has all else that an experiment must have."""
    try:
        one = cast(Any, import_module(f"{claims.__name__}.{module}"))
    except Exception as error:
        raise BadInput(f"The experiment {module} cannot be read: {type(error).__name__}: {error}.") from error
    if hasattr(one, "CLAIM"):
        need_whole(module, one)
    return one


def need_whole(module: str, one: Any) -> None:
    """Raise unless the module keeps the contract of `experiment.py`."""
    if not isinstance(one.CLAIM, Claim):
        raise BadInput(f"The experiment {module} has a CLAIM that is a {type(one.CLAIM).__name__}, not a Claim.")
    if one.CLAIM.name != module.replace("_", "-"):
        raise BadInput(f"The experiment in {module}.py is called {one.CLAIM.name!r}: file and name must agree.")
    for function in ("measure", "verdict", "draw"):
        if not callable(getattr(one, function, None)):
            raise BadInput(f"The experiment {module} has no {function}().")


def run(
    one: Experiment, out: Path, *, size: Size, seed: int, tell: Tell, again: bool = False, device: str = "cpu"
) -> dict[str, Any]:
    """What the experiment found, measured now or (unless `again`) kept from an equal run; figures drawn."""
    kept = None if again else kept_document(one, out, size, seed, device)
    document = kept or measured(one, size, seed, tell, device)
    save(document, out)
    for language in LANGUAGES:
        path = figure_path(out, one.CLAIM.name, language)
        if kept is None or not path.exists():
            draw(one, document["numbers"], language, path)
    return document


def measured(one: Experiment, size: Size, seed: int, tell: Tell, device: str = "cpu") -> dict[str, Any]:
    """Measure, judge, and write down all that a reader of the result must know."""
    import torch

    from ..machine import devices, versions

    began = time.monotonic()
    with one_thread(), whole_float32(), torch.device(device):
        numbers = plain(one.measure(size, seed, tell), one.CLAIM.name)
    return {
        "name": one.CLAIM.name,
        "claim": asdict(one.CLAIM),
        "numbers": numbers,
        "verdict": asdict(one.verdict(numbers)),
        "seed": seed,
        "size": size,
        "device": device,
        "versions": versions(),
        "devices": devices(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 2),
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """While open, torch computes on one thread: sums are then in the same order on every machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def whole_float32() -> Iterator[None]:
    """While open, a GPU's convolutions too compute float32 in all its digits; unasked they drop more than half of them."""
    import torch

    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def plain(numbers: dict[str, Any], name: str) -> dict[str, Any]:
    """The numbers as a reader of the file will see them: the verdict is then the same today and from the file."""
    try:
        return json.loads(json.dumps(numbers, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadInput(f"The numbers of {name} cannot be written as JSON: {error}.") from None


def kept_document(one: Experiment, out: Path, size: Size, seed: int, device: str) -> dict[str, Any] | None:
    """An earlier result of this claim, size and seed, judged anew; None if there is none that can be judged."""
    document = read(out / f"{one.CLAIM.name}.json")
    wanted = {"claim": asdict(one.CLAIM), "size": size, "seed": seed}
    if document is None or document.get("device", "cpu") != device:
        return None
    if any(document.get(key) != value for key, value in wanted.items()):
        return None
    try:
        return document | {"verdict": asdict(one.verdict(document["numbers"]))}
    except LookupError:  # an earlier version measured other numbers
        return None


def draw(one: Experiment, numbers: dict[str, Any], language: Language, path: Path) -> None:
    """The figure of one language, as a small file."""
    from PIL import Image

    from ..plots.figures import save_figure

    save_figure(one.draw(numbers, language), path)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(MOST_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


class Progress:
    """A `Tell` that writes to stderr: a line that is rewritten at a terminal, now and then one elsewhere.

    `alone`: no other experiment writes there at the same time.
    """

    def __init__(self, name: str, every: float = 10.0, alone: bool = True) -> None:
        self.name, self.live = name, alone and sys.stderr.isatty()
        self.every = 0.2 if self.live else every
        self.began = self.shown = time.monotonic()

    def __call__(self, share: float, text: str) -> None:
        now = time.monotonic()
        if now - self.shown < self.every:
            return
        self.shown = now
        line = progress_line(self.name, share, text, now - self.began)
        print(f"\r{line:<100.100}" if self.live else line, end="" if self.live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Make room for what is printed next."""
        if self.live:
            print(f"\r{'':<100}\r", end="", file=sys.stderr, flush=True)


def progress_line(name: str, share: float, text: str, gone: float) -> str:
    """How far, what, time gone and left.

    >>> progress_line("order", 0.25, "rotary", 20.0)
    'order   25 %  0:20 gone, 1:00 left  rotary'
    """
    from ..train.progress import clock

    left = clock(gone * (1 - share) / share) if share > 0 else "?"
    return f"{name}  {share:4.0%}".replace("%", " %") + f"  {clock(gone)} gone, {left} left  {text}"


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    chosen: list[Experiment],
    out: Path,
    *,
    size: Size,
    seed: int,
    again: bool = False,
    jobs: int = 1,
    device: str = "cpu",
) -> tuple[list[dict[str, Any]], dict[str, RegardError]]:
    """The results of the experiments, and the errors of those that this machine cannot run, by name.

    `jobs` of them run side by side, each in a process of its own; first those whose claim is about time, one by one.
    """
    jobs = min(jobs, len(chosen))
    how = {"size": size, "seed": seed, "again": again, "device": device}
    documents: list[dict[str, Any]] = []
    refused: dict[str, RegardError] = {}

    def keep(name: str, found: dict[str, Any] | RegardError) -> None:
        if isinstance(found, RegardError):
            refused[name] = found
            return
        documents.append(found)
        done = f"{len(documents) + len(refused)} of {len(chosen)}"
        print(f"{name}: {found['verdict']['kind']}  {found['seconds']:.0f} s  {done}", file=sys.stderr, flush=True)

    apart = [one for one in chosen if jobs == 1 or getattr(one, "TIMED", False)]
    for one in apart:
        keep(one.CLAIM.name, attempt(one, out, **how))
    beside = [one.CLAIM.name for one in chosen if one not in apart]
    if beside:
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            running = {pool.submit(attempt_named, name, out, **how): name for name in beside}
            try:
                for done in as_completed(running):
                    keep(running[done], done.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)  # else those that wait would run before the error is seen
                raise
    order = [one.CLAIM.name for one in chosen]
    documents.sort(key=lambda document: order.index(document["name"]))
    return documents, {name: refused[name] for name in order if name in refused}


def attempt(
    one: Experiment, out: Path, *, size: Size, seed: int, again: bool, device: str = "cpu", alone: bool = True
) -> dict[str, Any] | RegardError:
    """The result, or the error of an experiment that cannot run here."""
    progress = Progress(one.CLAIM.name, alone=alone)
    try:
        return run(one, out, size=size, seed=seed, tell=progress, again=again, device=device)
    except RegardError as error:
        return error
    finally:
        progress.end()


def attempt_named(name: str, out: Path, **how: Any) -> dict[str, Any] | RegardError:
    """`attempt` in a process that has nothing but the experiment's name."""
    return attempt(find(name), out, alone=False, **how)
