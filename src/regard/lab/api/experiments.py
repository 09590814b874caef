"""The page Experiments: every claim with its verdicts, its figure, its parameters, and runs with other values."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, TypedDict

import torch

from ...errors import BadInput
from ...experiments import (
    LANGUAGES,
    RULE,
    VERDICT_LABELS,
    VERDICT_SIGNS,
    Experiment,
    Language,
    ResultDocument,
    Size,
    figure_path,
    find_experiment,
    find_results_folder,
    list_experiments,
    read_results,
)
from ...experiments.parameters import resolve_settings
from ...experiments.results import PUBLISHED_FOLDER, read_full_size_results
from ...experiments.runner import save_experiment_figure
from ...experiments.sweeps import published_sweep, read_sweep
from ..lab import Lab, read_seed
from ..library import NotFound
from ..protocol import JsonObject, Request, Translated
from ..server.experiment_process import ExperimentRun, run_in_subprocess
from ..server.jobs import Job

LIVE_SIZES: tuple[Size, ...] = ("toy", "usual")
"""The sizes that a page may run: seconds, or a minute or two."""


class SavedResult(NamedTuple):
    document: ResultDocument
    folder: Path


class ClaimList(TypedDict):
    """Every claim with its result, the texts and signs of the kinds of verdicts, and the rule of the verdicts."""

    experiments: list[ResultDocument]
    kinds: dict[str, Translated]
    rule: Translated


class FigureBytes(TypedDict):
    png: torch.Tensor


class SweepAnswer(TypedDict):
    sweep: ResultDocument | None


class TurnPoint(TypedDict):
    value: float
    holds: bool


class SubclaimTurn(TypedDict):
    """The measured value of one sub-claim at each of the `values` of a parameter."""

    name: str
    parameter: str
    values: list[float]
    points: list[TurnPoint]


def list_claims(lab: Lab, request: Request, job: Job) -> ClaimList:
    """Every claim, with the verdict where it was tested and its parameters; texts in both languages."""
    results, full_size = saved_results(lab), read_full_size_results(PUBLISHED_FOLDER)
    rows = [describe_experiment(experiment, results, full_size) for experiment in list_experiments()]
    known = {row["name"] for row in rows}
    rows += [without_numbers(result.document) for name, result in results.items() if name not in known]
    kinds = {verdict: asdict(label) | {"sign": VERDICT_SIGNS[verdict]} for verdict, label in VERDICT_LABELS.items()}
    claims = sorted(rows, key=lambda row: row["claim"]["number"])
    return {"experiments": claims, "kinds": kinds, "rule": asdict(RULE)}


def describe_experiment(
    experiment: Experiment, results: Mapping[str, SavedResult], full_size: Mapping[str, ResultDocument]
) -> ResultDocument:
    """A claim with its saved result, its parameters, and how it was judged at full size."""
    name = experiment.CLAIM.name
    row: ResultDocument = {"name": name, "claim": asdict(experiment.CLAIM), "verdict": None}
    if name in results:
        row = without_numbers(results[name].document)
    full = full_size[name]["verdict"]["kind"] if name in full_size else None
    parameters = [asdict(parameter) for parameter in experiment.PARAMETERS]
    return row | {"parameters": parameters, "full": full, "turn": find_turn(experiment)}


def find_turn(experiment: Experiment) -> SubclaimTurn | None:
    """The sub-claim that the picture of a claim shows over the swept parameter; None if no sweep was measured.

    The first one that holds at some values and not at others, core ones before the others; else the first core one.
    """
    swept = find_sweep(experiment.CLAIM.name)
    if swept is None:
        return None
    criteria = experiment.CLAIM.criteria

    def rank(n: int) -> tuple[bool, bool]:
        return len({point["subclaims"][n]["holds"] for point in swept["points"]}) < 2, not criteria[n].core

    n = min(range(len(criteria)), key=rank)
    points = [point["subclaims"][n] for point in swept["points"]]
    return {
        "name": criteria[n].name,
        "parameter": swept["parameter"],
        "values": swept["values"],
        "points": [{"value": point["value"], "holds": point["holds"]} for point in points],
    }


def without_numbers(document: ResultDocument) -> ResultDocument:
    """A result without the numbers behind its figure."""
    return {name: value for name, value in document.items() if name not in ("numbers", "versions")}


def saved_results(lab: Lab) -> dict[str, SavedResult]:
    """The results of the lab's folders, of the default folder and of the package by name, the first of each."""
    folders = [path for folder in lab.library.folders for path in (folder, folder / "experiments")]
    default = find_results_folder()
    results: dict[str, SavedResult] = {}
    for folder in [*folders, *([default] if default else []), PUBLISHED_FOLDER]:
        for document in read_results(folder):
            results.setdefault(document["name"], SavedResult(document, folder))
    return results


def figure(lab: Lab, request: Request, job: Job) -> FigureBytes:
    """The figure of a result, as the bytes of a PNG; drawn from the numbers where no file is saved."""
    name, language = str(request.get("name")), read_language(request)
    results = saved_results(lab)
    if name not in results:
        raise NotFound(f"There is no saved result of {name!r:.60}. Run the experiment first.")
    document, folder = results[name]
    path = figure_path(folder, document["name"], language)
    if path.is_file():
        return {"png": torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)}
    key = {"name": name, "language": language, "date": document["date"]}
    return lab.cached_answer("experiments/figure", key, lambda: draw_figure(document, language))


def draw_figure(document: ResultDocument, language: Language) -> FigureBytes:
    """The bytes of the figure of a result that has none saved; raises `NotFound` where it has no numbers either."""
    if not document["numbers"]:
        raise NotFound(f"The result of {document['name']} has no figure and no numbers. Run the experiment first.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.png"
        save_experiment_figure(find_experiment(document["name"]), document["numbers"], language, path)
        return {"png": torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)}


def read_language(request: Request) -> Language:
    for language in LANGUAGES:
        if language == request.get("language"):
            return language
    raise NotFound(f"There are no figures in {request.get('language')!r:.20}; wanted: {', '.join(LANGUAGES)}.")


def sweep(lab: Lab, request: Request, job: Job) -> SweepAnswer:
    """The sub-claims' values over one parameter, from the folder of results or the package; None if not measured."""
    return {"sweep": find_sweep(find_experiment(str(request.get("name"))).CLAIM.name)}


def find_sweep(name: str) -> ResultDocument | None:
    default = find_results_folder()
    return (read_sweep(default, name) if default else None) or published_sweep(name)


def run(lab: Lab, request: Request, job: Job) -> ExperimentRun:
    """A run of an experiment, now, with the given settings: its result, and its figure in both languages."""
    experiment, seed = find_experiment(str(request.get("name"))), read_seed(request)
    size: Size | None = next((known for known in LIVE_SIZES if known == request.get("size", "toy")), None)
    if size is None:
        raise BadInput(f"size is {request.get('size')!r:.20}; wanted: {' or '.join(LIVE_SIZES)}.")
    settings = request.get("settings") or {}
    if not isinstance(settings, dict):
        raise BadInput(f"settings is a {type(settings).__name__}; wanted: an object of names and numbers.")
    values: dict[str, float] = {}
    for name, value in settings.items():
        if not isinstance(value, int | float):
            raise BadInput(f"{name} is {value!r:.40}; wanted: a number.")
        values[name] = value
    resolve_settings(experiment.PARAMETERS, size, values)
    name = experiment.CLAIM.name
    key: JsonObject = {"name": name, "seed": seed, "size": size, "settings": settings}
    answer = lab.cached_answer("experiments/run", key, lambda: run_in_subprocess(name, seed, job, size, values))
    return {"result": without_numbers(answer["result"]), "figures": answer["figures"]}


CALLS = {"list": list_claims, "figure": figure, "sweep": sweep, "run": run}
