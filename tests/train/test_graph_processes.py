"""`regard train nodes` in two processes: each has its nodes, and losses and weights are those of one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.cli import app
from regard.tasks.inputs import graph_batches
from regard.train.checkpoints import CheckpointStore, read_tensors
from regard.train.commands import report_faults
from regard.train.run import RunConfig

RUNS = {
    "edge features": ["model=gat"],
    "consistency": ["model=gatv2", "consistency=1", "edge_features=false"],
    "dot": ["model=transformer", "structure=degree"],
    "neighbours": ["neighbours=2,3", "batch_size=7", "accumulate=3"],
    "sent": ["model=gatv2"],
    "parts": ["model=gatv2", "edge_features=false"],
}
CALM = ["dropout=0", "attention_dropout=0", "dim=16", "heads=2", "evaluate_every=4", "save_every=4"]


def train(graph: Path, out: Path, *settings: str, steps: int = 8) -> None:
    """One run of the command line in this process."""
    words = [word for setting in [*CALM, *settings] for word in ("--set", setting)]
    given = ["--train", str(graph), "--out", str(out), "--steps", str(steps), "--device", "cpu"]
    app(["train", "nodes", *given, *words], standalone_mode=False)


def train_each(data: Path, folder: Path) -> None:
    """All runs; the first is stopped after four steps.

    In "sent" each process reads a part of the edges as of a large graph, in "parts" a part of the tables.
    """
    metis = graph_batches.METIS_EDGES
    for n, (name, settings) in enumerate(RUNS.items()):
        graph_batches.METIS_EDGES = 0 if name == "sent" else metis
        train(data / ("parts" if name == "parts" else "graph.npz"), folder / name, *settings, steps=4 if n == 0 else 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one process in `one`, of two in `two`."""
    folder = tmp_path_factory.mktemp("processes")
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 53)
    x = draw.random((53, 7)).astype("float32") + np.eye(3, 7, dtype="float32")[y]
    edges = draw.integers(0, 52, (2, 300))  # the last node has no edges
    np.savez(folder / "graph.npz", x=x, y=y, edge_index=edges, edge_attr=draw.random((300, 2)).astype("float32"))
    (folder / "parts").mkdir()
    np.save(folder / "parts" / "features.npy", x)
    np.save(folder / "parts" / "labels.npy", y)
    for n, part in enumerate(np.array_split(edges, 3, axis=1)):
        np.savetxt(folder / "parts" / f"edges-{n}.csv", part.T, "%d", ",")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from tests.train.test_graph_processes import train_each; train_each(Path(sys.argv[2]), Path(sys.argv[3]))"
    )
    (folder / "two.py").write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launched = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}"]
    given = [Path(__file__).parents[2], folder, folder / "two"]
    done = subprocess.run(
        [*launched, str(folder / "two.py"), *map(str, given)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, settings in RUNS.items():
        train(folder / "graph.npz", folder / "one" / name, *settings)
    return folder


def step_losses(run: Path) -> torch.Tensor:
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return torch.tensor([event["loss"] for event in events if event["kind"] == "step"])


@pytest.mark.parametrize("name", RUNS)
def test_losses_and_predictions_are_those_of_one_process(folder: Path, name: str) -> None:
    one, two = folder / "one" / name, folder / "two" / name
    count = len(step_losses(two))
    torch.testing.assert_close(step_losses(two), step_losses(one)[:count], rtol=2e-5, atol=2e-6)
    if count == 8:
        assert (two / "hypotheses.jsonl").read_text() == (one / "hypotheses.jsonl").read_text()
        scores = [json.loads((run / "scores.json").read_text())["metrics"] for run in (one, two)]
        assert scores[0]["accuracy"] == scores[1]["accuracy"]
        assert scores[0]["loss"] == pytest.approx(scores[1]["loss"], rel=1e-4)


def test_one_process_resumes_what_two_began(folder: Path) -> None:
    name, settings = next(iter(RUNS.items()))
    run = folder / "two" / name
    assert len(step_losses(run)) == 4
    train(folder / "graph.npz", run, *settings)
    torch.testing.assert_close(step_losses(run), step_losses(folder / "one" / name), rtol=2e-5, atol=2e-6)
    weights = []
    for one in (run, folder / "one" / name):
        latest = CheckpointStore(one / "checkpoints").latest()
        assert latest is not None and latest[0]["step"] == 8
        weights.append(read_tensors(latest[1] / "model.safetensors"))
    for key, x in weights[0].items():
        torch.testing.assert_close(x, weights[1][key], rtol=1e-3, atol=1e-3)  # Adam: see test_processes.py


def test_each_process_reports_the_faults_of_its_own_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "features.npy", np.eye(6, dtype="float32"))
    np.save(tmp_path / "labels.npy", np.arange(6) % 2)
    (tmp_path / "edges-0.csv").write_text("0,1\n1,2\n")
    (tmp_path / "edges-1.csv").write_text("2,3\n4,five\n")
    monkeypatch.setenv("RANK", "1")
    for processes, reported in (("1", False), ("2", True)):
        monkeypatch.setenv("WORLD_SIZE", processes)
        config = RunConfig.from_changes("nodes", {"neighbours": None}, train=[tmp_path])
        faults = list(config.task.read(config.train, config.settings).faults)
        report_faults(faults, tmp_path, config.task.reads_parts(config.settings))
        said = capsys.readouterr().err
        assert ("edges-1.csv:2" in said and "1 malformed line was skipped." in said) == reported, said
