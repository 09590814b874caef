"""Finds experiments, runs them, and keeps what they found: `<name>.json` and a figure in each language."""

from __future__ import annotations

import difflib
import json
import pkgutil
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, cast, get_args

from .. import experiments
from ..attention.errors import BadInput, RegardError
from .experiment import Claim, Experiment, Language, Size, Tell

FRAME = ("experiment", "learning", "runner", "report", "commands")
"""Modules of this folder that are no experiments."""
LANGUAGES: tuple[Language, ...] = get_args(Language)
SIZES: tuple[Size, ...] = get_args(Size)


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
    return [one.name for one in pkgutil.iter_modules(experiments.__path__) if one.name not in FRAME]


def load(module: str) -> Experiment:
    """The module, whole: one with a CLAIM has all else that an experiment must have."""
    try:
        one = cast(Any, import_module(f"{experiments.__name__}.{module}"))
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


def run(one: Experiment, out: Path, *, size: Size, seed: int, tell: Tell, again: bool = False) -> dict[str, Any]:
    """What the experiment found, measured now or (unless `again`) kept from an equal run; figures drawn."""
    kept = None if again else kept_document(one, out, size, seed)
    document = kept or measured(one, size, seed, tell)
    save(document, out)
    for language in LANGUAGES:
        path = figure_path(out, one.CLAIM.name, language)
        if kept is None or not path.exists():
            draw(one, document["numbers"], language, path)
    return document


def measured(one: Experiment, size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """Measure, judge, and write down all that a reader of the result must know."""
    from ..machine import devices, versions

    began = time.monotonic()
    numbers = plain(one.measure(size, seed, tell), one.CLAIM.name)
    return {
        "name": one.CLAIM.name,
        "claim": asdict(one.CLAIM),
        "numbers": numbers,
        "verdict": asdict(one.verdict(numbers)),
        "seed": seed,
        "size": size,
        "versions": versions(),
        "devices": devices(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 2),
    }


def plain(numbers: dict[str, Any], name: str) -> dict[str, Any]:
    """The numbers as a reader of the file will see them: the verdict is then the same today and from the file."""
    try:
        return json.loads(json.dumps(numbers, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadInput(f"The numbers of {name} cannot be written as JSON: {error}.") from None


def kept_document(one: Experiment, out: Path, size: Size, seed: int) -> dict[str, Any] | None:
    """An earlier result of this claim, size and seed, judged anew; None if there is none that can be judged."""
    document = read(out / f"{one.CLAIM.name}.json")
    wanted = {"claim": asdict(one.CLAIM), "size": size, "seed": seed}
    if document is None or any(document.get(key) != value for key, value in wanted.items()):
        return None
    try:
        return document | {"verdict": asdict(one.verdict(document["numbers"]))}
    except LookupError:  # an earlier version measured other numbers
        return None


def read(path: Path) -> dict[str, Any] | None:
    """A kept result; None where there is none, or none that can be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and {"claim", "numbers", "verdict"} <= set(document) else None


def save(document: dict[str, Any], out: Path) -> None:
    """Write the result whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{document['name']}.json"
    unfinished = path.with_suffix(".json.part")
    unfinished.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def draw(one: Experiment, numbers: dict[str, Any], language: Language, path: Path) -> None:
    """The figure of one language, as a file."""
    from ..lab.draw import save_figure

    save_figure(one.draw(numbers, language), path)


def figure_path(out: Path, name: str, language: Language) -> Path:
    return out / f"{name}.{language}.png"


class Progress:
    """A `Tell` that writes to stderr: a line that is rewritten at a terminal, now and then one elsewhere."""

    def __init__(self, name: str, every: float = 10.0) -> None:
        self.name, self.live = name, sys.stderr.isatty()
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


def run_all(
    chosen: list[Experiment], out: Path, *, size: Size, seed: int, again: bool = False
) -> tuple[list[dict[str, Any]], dict[str, RegardError]]:
    """The results of the experiments, and the errors of those that this machine cannot run, by name."""
    documents, refused = [], {}
    for one in chosen:
        progress = Progress(one.CLAIM.name)
        try:
            documents.append(run(one, out, size=size, seed=seed, tell=progress, again=again))
        except RegardError as error:
            refused[one.CLAIM.name] = error
        finally:
            progress.end()
    return documents, refused
