"""The page Runs: training runs, also while they are running."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from ..lab import Lab
from ..library import NotFound
from ..protocol import Json, JsonObject, Request
from ..records import (
    Curve,
    RunCurves,
    RunSamples,
    RunSummary,
    overview_curves,
    read_curves,
    read_samples,
    read_settings,
    summarize_run,
)
from ..server.jobs import Job
from .request import read_count


class NamedRun(RunSummary):
    name: str


class RunList(TypedDict):
    runs: list[NamedRun]


class Overview(TypedDict):
    """The curves of every run that has a log, by run and curve."""

    curves: dict[str, dict[str, Curve]]


class RunDetails(RunSummary):
    settings: JsonObject


def list_runs(lab: Lab, request: Request, job: Job) -> RunList:
    """The runs in the lab's folders, the newest first."""
    runs: list[NamedRun] = [{"name": name, **summarize_run(path)} for name, path in lab.library.runs().items()]
    return {"runs": sorted(runs, key=lambda run: run["updated"] or 0.0, reverse=True)}


def overview(lab: Lab, request: Request, job: Job) -> Overview:
    """The training loss and the main score of every run that has a log, by run and curve."""
    curves: dict[str, dict[str, Curve]] = {}
    paths = lab.library.runs()
    for n, (name, path) in enumerate(paths.items()):
        job.report(n, len(paths), {"en": "logs read", "zh": "已读的日志"})
        main = summarize_run(path)["main"]
        drawn = overview_curves(path, main if isinstance(main, str) else None)
        if drawn:
            curves[name] = drawn
    return {"curves": curves}


def find_run(lab: Lab, name: Json) -> Path:
    runs = lab.library.runs()
    if not isinstance(name, str) or name not in runs:
        raise NotFound(f"There is no run {name!r:.80} in the lab's folders. There are: {', '.join(runs) or 'none'}.")
    return runs[name]


def curves(lab: Lab, request: Request, job: Job) -> RunCurves:
    """The curves of a run after its log's first `after` lines: see `records.read_curves`."""
    return read_curves(find_run(lab, request.get("run")), read_count(request, "after", 0))


def about(lab: Lab, request: Request, job: Job) -> RunDetails:
    """A run's summary and its settings."""
    path = find_run(lab, request.get("run"))
    return {**summarize_run(path), "settings": read_settings(path)}


def samples(lab: Lab, request: Request, job: Job) -> RunSamples:
    """Predictions of the best model so far for validation examples; with `errors` only the wrong ones."""
    start, count = read_count(request, "start", 0), min(read_count(request, "count", 20), 200)
    return read_samples(find_run(lab, request.get("run")), start, count, request.get("errors") is True)


CALLS = {
    "list": list_runs,
    "overview": overview,
    "curves": curves,
    "about": about,
    "samples": samples,
}
