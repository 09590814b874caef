"""The page Runs: training runs, also while they are running, and the experiments with their verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ...experiments import (
    LANGUAGES,
    VERDICT_LABELS,
    VERDICT_SIGNS,
    Language,
    figure_path,
    find_experiment,
    find_results_folder,
    list_experiments,
    read_results,
)
from ..lab import Lab, read_seed
from ..library import NotFound
from ..records import read_curves, read_samples, read_settings, summarize_run
from ..server.experiment_process import run_in_subprocess
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


def experiments(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """Every claim, with the verdict where it was tested; texts in both languages."""
    claims = {experiment.CLAIM.name: asdict(experiment.CLAIM) for experiment in list_experiments()}
    results = {name: without_numbers(document) for name, (document, _) in saved_results(lab).items()}
    rows = [results.get(name) or {"name": name, "claim": claim, "verdict": None} for name, claim in claims.items()]
    rows += [result for name, result in results.items() if name not in claims]
    kinds = {verdict: asdict(label) | {"sign": VERDICT_SIGNS[verdict]} for verdict, label in VERDICT_LABELS.items()}
    return {"experiments": sorted(rows, key=lambda row: row["claim"]["number"]), "kinds": kinds}


def without_numbers(document: Mapping[str, Any]) -> dict[str, Any]:
    """A result without the numbers behind its figure."""
    return {name: value for name, value in document.items() if name != "numbers"}


def saved_results(lab: Lab) -> dict[str, tuple[Mapping[str, Any], Path]]:
    """The results of the lab's folders and of the default folder by name, the first of each, with their folders."""
    folders = [path for folder in lab.library.folders for path in (folder, folder / "experiments")]
    default = find_results_folder()
    results: dict[str, tuple[Mapping[str, Any], Path]] = {}
    for folder in [*folders, *([default] if default else [])]:
        for document in read_results(folder):
            results.setdefault(document["name"], (document, folder))
    return results


def figure(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The figure of a result, as the bytes of a PNG."""
    name = request.get("name")
    language: Language | None = next((known for known in LANGUAGES if known == request.get("language")), None)
    results = saved_results(lab)
    if name not in results or language is None:
        wanted = request.get("language")
        raise NotFound(f"There is no saved figure of {name!r:.60} in {wanted!r:.20}. Run the experiment first.")
    document, folder = results[name]
    path = figure_path(folder, document["name"], language)
    if not path.is_file():
        raise NotFound(f"{path.name} does not exist. `regard experiment run {name}` creates it.")
    return {"png": torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)}


def try_experiment(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """A small run of an experiment, now: its result, and its figure in both languages."""
    name, seed = find_experiment(str(request.get("name"))).CLAIM.name, read_seed(request)
    answer = lab.cached_answer("runs/try", {"name": name, "seed": seed}, lambda: run_in_subprocess(name, seed, job))
    return {"result": without_numbers(answer["result"]), "figures": answer["figures"]}


CALLS = {
    "list": list_runs,
    "curves": curves,
    "about": about,
    "samples": samples,
    "experiments": experiments,
    "figure": figure,
    "try": try_experiment,
}
