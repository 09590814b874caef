"""What the folder of a training run says, also while the run goes on: a summary, its curves, samples of its answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..train.run import RunFolder

QUIET = 120.0
"""Seconds after which a run that has written nothing is taken to have been left."""
MOST_POINTS = 4000
"""Points of a curve that are sent; of more, evenly chosen ones, first and last among them."""


def summary(path: Path, now: float | None = None) -> dict[str, Any]:
    """A run's line in the list: task, model, how far it is, its deciding score."""
    folder = RunFolder(path)
    run, scores, lines = described(folder, "run.json"), described(folder, "scores.json"), folder.lines()
    main = scores.get("main")
    last = lines[-1] if lines else {}
    architecture = run.get("architecture") or {}
    return {
        "task": run.get("task"),
        "model": architecture.get("model"),
        "sizes": {name: architecture.get(name) for name in ("layers", "heads", "dim") if name in architecture},
        "seed": (run.get("training") or {}).get("seed"),
        "main": main,
        "value": (scores.get("metrics") or {}).get(main),
        "step": last.get("step"),
        "epoch": last.get("epoch"),
        "seconds": lines[-1].get("time", 0) - lines[0].get("time", 0) if lines else 0,
        "updated": last.get("time"),
        "state": "finished" if scores and not lines else state_of(lines, time.time() if now is None else now),
        "lines": len(lines),
    }


def described(folder: RunFolder, name: str) -> dict[str, Any]:
    """A file of the folder, or nothing where it is not there yet or half written."""
    try:
        found = folder.read(name)
    except (ValueError, OSError):  # BadInput is a ValueError
        return {}
    return found if isinstance(found, dict) else {}


def state_of(lines: list[dict[str, Any]], now: float) -> str:
    """ "finished", "stopped" (by a person or the clock), "running", or "left": silent for long without an end."""
    if lines and lines[-1].get("kind") in ("finished", "stopped"):
        return lines[-1]["kind"]
    last = max((line.get("time", 0.0) for line in lines[-1:]), default=0.0)
    return "running" if now - last < QUIET else "left"


def curves(path: Path, after: int = 0) -> dict[str, Any]:
    """The numbers of the log after its first `after` lines: by kind ("step", "score") and name, steps and values.

    `lines` is how many there are now: the next question's `after`. Where the log has become shorter (a run that went on
    from an earlier checkpoint) all of it is sent, and `anew` says so.
    """
    lines = RunFolder(path).lines()
    anew = after > len(lines) or after == 0
    found: dict[str, dict[str, tuple[list[int], list[float]]]] = {"step": {}, "score": {}}
    for line in lines[0 if anew else after :]:
        for name, value in line.items() if line.get("kind") in found else ():
            if name in ("kind", "step", "epoch", "time") or not isinstance(value, int | float):
                continue
            steps, values = found[line["kind"]].setdefault(name, ([], []))
            steps.append(line["step"])
            values.append(float(value))
    return {
        "lines": len(lines),
        "anew": anew,
        "state": state_of(lines, time.time()),
        **{kind: {name: thinned(*pair) for name, pair in names.items()} for kind, names in found.items()},
    }


def thinned(steps: list[int], values: list[float]) -> dict[str, Tensor]:
    """At most `MOST_POINTS` of the points."""
    keep = torch.arange(len(steps))
    if len(steps) > MOST_POINTS:
        keep = torch.linspace(0, len(steps) - 1, MOST_POINTS).round().long()
    return {"steps": torch.tensor(steps, dtype=torch.int32)[keep], "values": torch.tensor(values)[keep]}


def samples(path: Path, start: int = 0, count: int = 20) -> dict[str, Any]:
    """What the model said of `count` dev examples from `start` on, and how many there are."""
    file = path / "hypotheses.txt"
    said = file.read_text("utf8", errors="replace").splitlines() if file.is_file() else []
    return {"total": len(said), "start": start, "said": [line[:500] for line in said[start : start + count]]}


def settings(path: Path) -> dict[str, Any]:
    """What a run was begun with, flat: "training.rate" → 0.001."""
    run = described(RunFolder(path), "run.json")
    found = {}
    for part in ("settings", "architecture", "training", "data", "versions"):
        for name, value in (run.get(part) or {}).items():
            found[f"{part}.{name}"] = value
    return found
