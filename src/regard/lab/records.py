"""The files of a training run, also while it is running: a summary, its curves, samples of its predictions."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, TypeGuard

import torch
from torch import Tensor

from ..train.run_folder import RunFolder
from .protocol import Json, JsonObject

SILENCE = 120.0
"""Seconds without a log line after which a run counts as abandoned."""
MAX_POINTS = 4000
"""Points of a curve that are sent; of a longer one, evenly spaced points with the first and the last."""

FEW_POINTS = 300
"""Points of a curve beside those of other runs."""
CUT = 500
"""Characters of an example that are sent."""


class RunSummary(TypedDict):
    """A run's row in the list: task, model, progress, and its main score; fields of its files as they stand there."""

    task: Json
    data: list[str]
    model: Json
    sizes: JsonObject
    seed: Json
    main: Json
    value: Json
    step: Json
    epoch: Json
    seconds: float
    updated: float | None
    state: str
    lines: int


class Curve(TypedDict):
    """The points of a curve, `[points]` each."""

    steps: Tensor
    values: Tensor


class RunCurves(TypedDict):
    """Curves by name, of training steps and of validation scores. See `read_curves`."""

    lines: int
    anew: bool
    state: str
    step: dict[str, Curve]
    score: dict[str, Curve]


class Sample(TypedDict):
    """The prediction for a validation example; input and gold are None where the run has not saved them."""

    number: int
    input: str | None
    gold: str | None
    prediction: str


class RunSamples(TypedDict):
    """Predictions for validation examples: `total` that were asked for, `wrong` ones of `all` where gold is known."""

    total: int
    start: int
    samples: list[Sample]
    wrong: int | None
    all: int


def summarize_run(path: Path, now: float | None = None) -> RunSummary:
    """A run's row in the list."""
    folder = RunFolder(path)
    run, scores, lines = read_or_empty(folder, "run.json"), read_or_empty(folder, "scores.json"), folder.read_log()
    main = scores.get("main")
    last: JsonObject = lines[-1] if lines else {}
    architecture, metrics = read_section(run, "architecture"), read_section(scores, "metrics")
    return {
        "task": run.get("task"),
        "data": data_names(run),
        "model": architecture.get("model"),
        "sizes": {name: architecture.get(name) for name in ("layers", "heads", "dim") if name in architecture},
        "seed": read_section(run, "training").get("seed"),
        "main": main,
        "value": metrics.get(main) if isinstance(main, str) else None,
        "step": last.get("step"),
        "epoch": last.get("epoch"),
        "seconds": read_time(last) - read_time(lines[0]) if lines else 0,
        "updated": read_time(last) if "time" in last else None,
        "state": "finished" if scores and not lines else run_state(lines, time.time() if now is None else now),
        "lines": len(lines),
    }


def data_names(run: JsonObject) -> list[str]:
    """The names of the files that a run was trained on: scores of runs on the same data can be compared."""
    files = read_section(run, "data").get("train")
    return sorted(Path(str(file)).name for file in files) if isinstance(files, list) else []


def read_section(document: JsonObject, name: str) -> JsonObject:
    """An object inside a document; empty where it is missing or something else."""
    section = document.get(name)
    return section if isinstance(section, dict) else {}


def is_number(value: Json) -> TypeGuard[float]:
    """Whether a value is a number that a float can hold; NaN and infinity are, which a run that diverges has."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def read_time(line: JsonObject) -> float:
    """When a line was logged, in seconds; 0 where it does not say."""
    time = line.get("time")
    return time if is_number(time) else 0


def read_or_empty(folder: RunFolder, name: str) -> JsonObject:
    """A JSON file of the folder; empty where it is missing or not yet complete."""
    try:
        content = folder.read(name)
    except (ValueError, OSError):  # BadInput is a ValueError
        return {}
    return content if isinstance(content, dict) else {}


def run_state(lines: Sequence[JsonObject], now: float) -> str:
    """How a run stands.

    "finished", "stopped" (by a user or the clock), "diverged" (its last loss is no number), "running", or "left": no
    log line for long and no end.
    """
    loss = next((line.get("loss") for line in reversed(lines) if line.get("kind") == "step"), None)
    if isinstance(loss, float) and not math.isfinite(loss):
        return "diverged"
    kind = lines[-1].get("kind") if lines else None
    if kind in ("finished", "stopped"):
        return str(kind)
    last = read_time(lines[-1]) if lines else 0.0
    return "running" if now - last < SILENCE else "left"


def read_curves(path: Path, after: int = 0) -> RunCurves:
    """The numbers of the log after its first `after` lines: by kind ("step", "score") and name, steps and values.

    `lines` is the length of the log, to be given as `after` next time. When the log is shorter than `after` (a run that
    was resumed from an earlier checkpoint) all of it is sent, and `anew` is True.
    """
    lines = RunFolder(path).read_log()
    anew = after > len(lines) or after == 0
    curves: dict[str, dict[str, tuple[list[int], list[float]]]] = {"step": {}, "score": {}}
    for line in lines[0 if anew else after :]:
        for name, value in line.items() if line.get("kind") in ("step", "score") else ():
            if name in ("kind", "step", "epoch", "time") or not is_number(value):
                continue
            steps, values = curves[line["kind"]].setdefault(name, ([], []))
            steps.append(line["step"])
            values.append(float(value))
    return {
        "lines": len(lines),
        "anew": anew,
        "state": run_state(lines, time.time()),
        "step": {name: downsample(*points) for name, points in curves["step"].items()},
        "score": {name: downsample(*points) for name, points in curves["score"].items()},
    }


def overview_curves(path: Path, main: str | None) -> dict[str, Curve]:
    """The training loss and the main validation score of a run, as few points as a chart of many runs needs."""
    lines = RunFolder(path).read_log()
    curves: dict[str, Curve] = {}
    for kind, name in (("step", "loss"), ("score", main)):
        rows = [line for line in lines if line.get("kind") == kind and is_number(line.get(name or ""))]
        points = [(line["step"], float(line[name or ""])) for line in rows]
        if points:
            steps, values = [step for step, _ in points], [value for _, value in points]
            curves[f"{kind}.{name}"] = downsample(steps, values, FEW_POINTS)
    return curves


def downsample(steps: list[int], values: list[float], most: int = MAX_POINTS) -> Curve:
    """At most `most` of the points."""
    keep = torch.arange(len(steps))
    if len(steps) > most:
        keep = torch.linspace(0, len(steps) - 1, most).round().long()
    return {"steps": torch.tensor(steps, dtype=torch.int32)[keep], "values": torch.tensor(values)[keep]}


def read_samples(path: Path, start: int = 0, count: int = 20, errors: bool = False) -> RunSamples:
    """The predictions for `count` validation examples from `start` on, or of those that are wrong, and how many."""
    samples = saved_samples(path)
    judged = [sample for sample in samples if sample["gold"] is not None]
    wrong = [sample for sample in judged if sample["gold"] != sample["prediction"]]
    listed = wrong if errors else samples
    shown: list[Sample] = [
        {**sample, "input": cut(sample["input"]), "gold": cut(sample["gold"]), "prediction": sample["prediction"][:CUT]}
        for sample in listed[start : start + count]
    ]
    return {
        "total": len(listed),
        "start": start,
        "samples": shown,
        "wrong": len(wrong) if judged else None,
        "all": len(samples),
    }


def saved_samples(path: Path) -> list[Sample]:
    """All predictions of a run with input and gold, from hypotheses.jsonl, or without them from hypotheses.txt."""
    with_gold, plain = path / "hypotheses.jsonl", path / "hypotheses.txt"
    try:
        rows = [json.loads(line) for line in with_gold.read_text("utf8", errors="replace").splitlines() if line.strip()]
        return [
            {
                "number": n,
                "input": as_text(row.get("input")),
                "gold": as_text(row.get("gold")),
                "prediction": as_text(row.get("prediction")) or "",
            }
            for n, row in enumerate(rows)
        ]
    except (OSError, ValueError, AttributeError):  # not there, or half-written
        lines = plain.read_text("utf8", errors="replace").splitlines() if plain.is_file() else []
        return [{"number": n, "input": None, "gold": None, "prediction": line} for n, line in enumerate(lines)]


def as_text(value: Json) -> str | None:
    return value if isinstance(value, str) or value is None else json.dumps(value, ensure_ascii=False)


def cut(text: str | None) -> str | None:
    return None if text is None else text[:CUT]


def read_settings(path: Path) -> JsonObject:
    """A run's settings, flat: "training.rate" → 0.001."""
    run = read_or_empty(RunFolder(path), "run.json")
    return {
        f"{section}.{name}": value
        for section in ("settings", "architecture", "training", "data", "versions")
        for name, value in read_section(run, section).items()
    }
