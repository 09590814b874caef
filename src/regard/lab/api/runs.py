"""The page Runs: training runs, also while they are running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..lab import Lab
from ..library import NotFound
from ..records import read_curves, read_samples, read_settings, summarize_run
from ..server.jobs import Job
from .request import read_count


def list_runs(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The runs in the lab's folders, the newest first."""
    runs: list[dict[str, Any]] = [{"name": name} | summarize_run(path) for name, path in lab.library.runs().items()]
    return {"runs": sorted(runs, key=lambda run: run["updated"] or 0.0, reverse=True)}


def find_run(lab: Lab, name: Any) -> Path:
    runs = lab.library.runs()
    if not isinstance(name, str) or name not in runs:
        raise NotFound(f"There is no run {name!r:.80} in the lab's folders. There are: {', '.join(runs) or 'none'}.")
    return runs[name]


def curves(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The curves of a run after its log's first `after` lines: see `records.read_curves`."""
    return read_curves(find_run(lab, request.get("run")), read_count(request, "after", 0))


def about(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """A run's summary and its settings."""
    path = find_run(lab, request.get("run"))
    return summarize_run(path) | {"settings": read_settings(path)}


def samples(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """Predictions of the best model so far for validation examples."""
    start, count = read_count(request, "start", 0), min(read_count(request, "count", 20), 200)
    return read_samples(find_run(lab, request.get("run")), start, count)


CALLS = {
    "list": list_runs,
    "curves": curves,
    "about": about,
    "samples": samples,
}
