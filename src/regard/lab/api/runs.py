"""Runs: training runs while they go on and afterwards, and the experiments with their verdicts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from ...experiments import results
from ..lab import Lab, read_seed
from ..library import Unknown
from ..records import curves as curves_of
from ..records import samples as samples_of
from ..records import settings as settings_of
from ..records import summary
from ..server.jobs import Job
from ..server.subprocess import tried


def listed(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The runs in the lab's folders, the newest first."""
    runs: list[dict[str, Any]] = [{"name": name} | summary(path) for name, path in lab.library.runs().items()]
    return {"runs": sorted(runs, key=lambda run: run["updated"] or 0.0, reverse=True)}


def run_path(lab: Lab, name: Any) -> Path:
    found = lab.library.runs()
    if not isinstance(name, str) or name not in found:
        raise Unknown(f"There is no run {name!r:.80} in the lab's folders. There are: {', '.join(found) or 'none'}.")
    return found[name]


def curves(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The curves of a run after its log's first `after` lines: see `records.curves`."""
    return curves_of(run_path(lab, ask.get("run")), whole(ask, "after", 0))


def about(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """A run's summary and all that it was begun with."""
    path = run_path(lab, ask.get("run"))
    return summary(path) | {"settings": settings_of(path)}


def samples(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """What the best model so far said of the dev examples."""
    return samples_of(run_path(lab, ask.get("run")), whole(ask, "start", 0), min(whole(ask, "count", 20), 200))


def whole(ask: dict[str, Any], name: str, otherwise: int) -> int:
    value = ask.get(name, otherwise)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadInput(f"{name} is {value!r:.40}; it must be a whole number of at least 0.")
    return value


def experiments(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """Every claim, and of those that were tested the verdict; texts in both languages."""
    from ...experiments.runner import found

    claims = {one.CLAIM.name: asdict(one.CLAIM) for one in found()}
    kept = {name: plain(document) for name, (document, _) in kept_results(lab).items()}
    rows = [kept.get(name) or {"name": name, "claim": claim, "verdict": None} for name, claim in claims.items()]
    rows += [one for name, one in kept.items() if name not in claims]
    words = {kind: asdict(both) | {"sign": results.SIGNS[kind]} for kind, both in results.KINDS.items()}
    return {"experiments": sorted(rows, key=lambda row: row["claim"]["number"]), "kinds": words}


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """A result without the numbers that its figure was drawn from."""
    return {name: value for name, value in document.items() if name != "numbers"}


def kept_results(lab: Lab) -> dict[str, tuple[dict[str, Any], Path]]:
    """The results in the lab's folders, or else those that are shown unless a folder is named; with their folders."""
    inside = [one for folder in lab.library.folders for one in (folder, folder / "experiments")]
    usual = results.folder()
    found: dict[str, tuple[dict[str, Any], Path]] = {}
    for folder in [*inside, *([usual] if usual else [])]:
        for document in results.saved(folder):
            found.setdefault(document["name"], (document, folder))
    return found


def figure(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The figure of a result, as the bytes of a PNG."""
    name, language = ask.get("name"), ask.get("language")
    kept = kept_results(lab)
    if name not in kept or language not in results.LANGUAGES:
        raise Unknown(f"There is no kept figure of {name!r:.60} in {language!r:.20}. Run the experiment first.")
    path = results.figure_path(kept[name][1], kept[name][0]["name"], language)  # type: ignore[arg-type]
    if not path.is_file():
        raise Unknown(f"{path.name} is not there. `regard experiment run {name}` draws it.")
    return {"png": as_tensor(path.read_bytes())}


def as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def attempt(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """A small run of an experiment, here and now: its result, and its figure in both languages."""
    from ...experiments.runner import find

    name, seed = find(str(ask.get("name"))).CLAIM.name, read_seed(ask)
    found = lab.remembered("runs/try", {"name": name, "seed": seed}, lambda: tried(name, seed, job))
    return {"result": plain(found["result"]), "figures": found["figures"]}


CALLS = {
    "list": listed,
    "curves": curves,
    "about": about,
    "samples": samples,
    "experiments": experiments,
    "figure": figure,
    "try": attempt,
}
