"""The files of a training run, also while it is running: a summary, its curves, samples of its predictions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..train.run_folder import RunFolder

SILENCE = 120.0
"""Seconds without a log line after which a run counts as abandoned."""
MAX_POINTS = 4000
"""Points of a curve that are sent; of a longer one, evenly spaced points with the first and the last."""


def summarize_run(path: Path, now: float | None = None) -> dict[str, Any]:
    """A run's row in the list: task, model, progress, and its main score."""
    folder = RunFolder(path)
    run, scores, lines = read_or_empty(folder, "run.json"), read_or_empty(folder, "scores.json"), folder.read_log()
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
        "state": "finished" if scores and not lines else run_state(lines, time.time() if now is None else now),
        "lines": len(lines),
    }


def read_or_empty(folder: RunFolder, name: str) -> dict[str, Any]:
    """A JSON file of the folder; empty where it is missing or not yet complete."""
    try:
        content = folder.read(name)
    except (ValueError, OSError):  # BadInput is a ValueError
        return {}
    return content if isinstance(content, dict) else {}


def run_state(lines: list[dict[str, Any]], now: float) -> str:
    """ "finished", "stopped" (by a user or the clock), "running", or "left": no log line for long and no end."""
    if lines and lines[-1].get("kind") in ("finished", "stopped"):
        return lines[-1]["kind"]
    last = max((line.get("time", 0.0) for line in lines[-1:]), default=0.0)
    return "running" if now - last < SILENCE else "left"


def read_curves(path: Path, after: int = 0) -> dict[str, Any]:
    """The numbers of the log after its first `after` lines: by kind ("step", "score") and name, steps and values.

    `lines` is the length of the log, to be given as `after` next time. When the log is shorter than `after` (a run that
    was resumed from an earlier checkpoint) all of it is sent, and `anew` is True.
    """
    lines = RunFolder(path).read_log()
    anew = after > len(lines) or after == 0
    curves: dict[str, dict[str, tuple[list[int], list[float]]]] = {"step": {}, "score": {}}
    for line in lines[0 if anew else after :]:
        for name, value in line.items() if line.get("kind") in curves else ():
            if name in ("kind", "step", "epoch", "time") or not isinstance(value, int | float):
                continue
            steps, values = curves[line["kind"]].setdefault(name, ([], []))
            steps.append(line["step"])
            values.append(float(value))
    return {
        "lines": len(lines),
        "anew": anew,
        "state": run_state(lines, time.time()),
        **{kind: {name: downsample(*points) for name, points in named.items()} for kind, named in curves.items()},
    }


def downsample(steps: list[int], values: list[float]) -> dict[str, Tensor]:
    """At most `MAX_POINTS` of the points."""
    keep = torch.arange(len(steps))
    if len(steps) > MAX_POINTS:
        keep = torch.linspace(0, len(steps) - 1, MAX_POINTS).round().long()
    return {"steps": torch.tensor(steps, dtype=torch.int32)[keep], "values": torch.tensor(values)[keep]}


def read_samples(path: Path, start: int = 0, count: int = 20) -> dict[str, Any]:
    """The predictions for `count` validation examples from `start` on, and how many there are."""
    file = path / "hypotheses.txt"
    predictions = file.read_text("utf8", errors="replace").splitlines() if file.is_file() else []
    shown = [line[:500] for line in predictions[start : start + count]]
    return {"total": len(predictions), "start": start, "said": shown}


def read_settings(path: Path) -> dict[str, Any]:
    """A run's settings, flat: "training.rate" → 0.001."""
    run = read_or_empty(RunFolder(path), "run.json")
    return {
        f"{section}.{name}": value
        for section in ("settings", "architecture", "training", "data", "versions")
        for name, value in (run.get(section) or {}).items()
    }
