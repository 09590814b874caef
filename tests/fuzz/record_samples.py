"""Valid files that runs, searches and experiments leave behind: logs, checkpoints, vectors, frames, results."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from graph_samples import npy
from model_samples import SAVED_RUNS, Opened, family, files_of
from samples import Family

from regard.errors import BadInput
from regard.experiments.results import read_results
from regard.inference.vector_index import read_vectors
from regard.lab.library import ModelLibrary
from regard.lab.records import overview_curves, read_curves, read_samples, read_settings, summarize_run
from regard.tasks.inputs.audio_features import open_audio
from regard.train.checkpoints import CheckpointStore, read_tensors
from regard.train.recipes import read_recipe

STEPS = [{"kind": "step", "step": n, "epoch": 0, "time": 1.5 * n, "loss": 2.0 / (n + 1)} for n in range(4)]
LOG = [*STEPS, {"kind": "score", "step": 3, "epoch": 0, "time": 9.0, "accuracy": 0.5}]


def list_run(folder: Path) -> Opened:
    """What the lab shows of a run: its row in the list, curves, predictions and settings."""
    summary = summarize_run(folder)
    main = summary["main"]
    curves = read_curves(folder), overview_curves(folder, main if isinstance(main, str) else None)
    models = [entry.as_dict() for entry in ModelLibrary([folder], shipped=False).entries().values()]
    return Opened((summary, *curves, read_samples(folder), read_settings(folder), models))


def resume(folder: Path) -> Opened:
    """The state and tensors of the newest checkpoint that is whole; `BadInput` where there is none."""
    found = CheckpointStore(folder).latest()
    if found is None:
        raise BadInput("no checkpoint is whole")
    state, path = found
    return Opened((state, *(read_tensors(path / name) for name in state["sizes"])))


def checkpoint() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        tensors = {"model": {"weight": torch.ones(2, 3)}, "optimizer": {"0.step": torch.ones(())}}
        CheckpointStore(Path(folder)).save(200, {"step": 200, "epoch": 1, "order": [3, 1, 2]}, tensors)
        return files_of(Path(folder))


def families() -> dict[str, Family]:
    """Every family by its name."""
    run = files_of(SAVED_RUNS / "tagger", ("expected.json",))
    run = {name: data for name, data in run.items() if not name.endswith(".safetensors")}
    run["log.jsonl"] = b"".join(json.dumps(line).encode() + b"\n" for line in LOG)
    published = Path(__file__).parents[2] / "src" / "regard" / "experiments" / "published"
    results = {path.name: path.read_bytes() for path in sorted(published.glob("*.json"))[:2]}
    recipe = (SAVED_RUNS / "recipe.toml").read_bytes()
    return {
        "run folder, its records": family(run, list_run),
        "checkpoint of training": family(checkpoint(), resume),
        "vectors": family({"a.npy": npy(np.eye(3, dtype=np.float32))}, lambda f: Opened((read_vectors(f / "a.npy"),))),
        "frames": family({"a.npy": npy(np.ones((5, 3)))}, lambda folder: Opened((open_audio(folder / "a.npy"),))),
        "results of experiments": family(results, lambda folder: Opened((read_results(folder),))),
        "recipe": family({"a.toml": recipe}, lambda folder: Opened((read_recipe("a", decode(folder / "a.toml")),))),
    }


def decode(path: Path) -> Any:
    return path.read_text("utf8", errors="replace")
