"""Processes that each hold a part of the weights: the same losses as one process, and folders of the same form."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.models.model import Output
from regard.settings import Training
from regard.train.checkpoints import CheckpointStore, read_tensors
from regard.train.processes import fsdp
from regard.train.run import is_main_process
from regard.train.trainer import Trainer, TrainEvent

from .test_run import conllu
from .test_trainer import HOW
from .toy import Toy, examples, model

HERE = Path(__file__).parents[2]
HOW = replace(HOW, steps=6, accumulate=4, evaluate_every=3, save_every=3, ema=0.9)
ON_GPU = replace(HOW, device="cuda")
PARTED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
WRAPPED = {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block"}
TAG = ["train", "tag", "--epochs", "2", "--device", "cpu", "--json"]
SMALL = {"dim": 16, "layers": 1, "heads": 2, "batch_tokens": 60, "learning_rate": 1e-2, "warmup": 2} | {
    "accumulate": 2,
    "ema": 0.5,
}


def run(folder: Path, how: Training = HOW, dropout: float = 0.0, stop: int | None = None) -> None:
    """Train the toy model; the first process writes its losses, and whether weights were in parts.

    After step `stop` someone presses Ctrl-C, and only the first process hears of it.
    """
    losses: list[float] = []

    def tell(event: TrainEvent) -> None:
        if event.name == "step":
            losses.append(event.values["loss"])
        if event.name == "step" and event.state.step == stop:
            os.kill(os.getpid(), signal.SIGINT)

    made = model(dropout=dropout)
    made.register_buffer("seen", torch.ones(3))  # as a batch norm has: it is in no parts, unlike the weights
    Trainer(Toy(), made, examples(70), examples(30, 1), how, folder, lambda m, s: None, tell).fit()
    if losses:
        parted = all(fsdp.is_sharded(x) for x in made.parameters())
        (folder / "told.json").write_text(json.dumps({"losses": losses, "parted": parted}))


def read_report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "told.json").read_text())


def files(folder: Path, step: int = 6) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of a checkpoint, by file."""
    found = CheckpointStore(folder / "checkpoints").latest()
    assert found is not None and found[0]["step"] == step
    return {path.name: read_tensors(path) for path in found[1].glob("*.safetensors") if "random" not in path.name}


def assert_alike(folder: Path, other: Path, **near: float) -> None:
    """Two checkpoints have the same files of the same whole tensors, near one another or equal to the bit."""
    a, b = files(folder), files(other)
    assert a.keys() == b.keys() and {"model.safetensors", "optimizer.safetensors", "ema.safetensors"} <= a.keys()
    for name, tensors in a.items():
        assert tensors.keys() == b[name].keys()
        for key, x in tensors.items():
            torch.testing.assert_close(b[name][key], x, rtol=near.get("rtol", 0), atol=near.get("atol", 0), msg=key)


def every_case(folder: Path) -> None:
    """What two processes do here, in one launch."""
    run(folder / "two")
    run(folder / "one-two")  # goes on from what one process has left there
    lively = replace(HOW, average_checkpoints=2, ema=0.0)
    run(folder / "whole", lively, dropout=0.2)
    run(folder / "halves", lively, dropout=0.2, stop=4)
    run(folder / "halves", lively, dropout=0.2)
    done = CliRunner().invoke(app, tagging(folder), catch_exceptions=False)
    assert done.exit_code == 0 and bool(done.stdout) == is_main_process(), "one process speaks for all"


def half_of(folder: Path, other: Path) -> None:
    """A copy of a run as it was after three steps."""
    shutil.copytree(folder, other)
    shutil.rmtree(other / "checkpoints" / "step-00000006")


def tagging(folder: Path) -> list[str]:
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    return [*TAG, "--train", str(folder / "train.conllu"), "--out", str(folder / "tagger"), *settings]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that two processes have left."""
    folder = tmp_path_factory.mktemp("parts")
    run(folder / "one")
    half_of(folder / "one", folder / "one-two")
    conllu(folder / "train.conllu", 40)
    launch("every_case", folder, 2, {**PARTED, **WRAPPED, "ACCELERATE_USE_CPU": "true"})
    return folder


def launch(function: str, folder: Path, processes: int, environment: dict[str, str]) -> None:
    """Have so many processes call a function of this file with the folder."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        f"from tests.train.test_fsdp import {function}; {function}(Path(sys.argv[2]))"
    )
    (folder / "launched.py").write_text(code)
    launched = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--standalone"]
    done = subprocess.run(
        [*launched, str(folder / "launched.py"), str(HERE), str(folder)],
        env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_losses_and_checkpoints_are_those_of_one_process(two: Path) -> None:
    assert read_report(two / "two")["parted"] and not read_report(two / "one")["parted"]
    torch.testing.assert_close(
        read_report(two / "two")["losses"], read_report(two / "one")["losses"], rtol=1e-5, atol=1e-6
    )
    # Adam divides a gradient by its size: the rounding of one that should be zero becomes a part of a step (1e-3).
    assert_alike(two / "one", two / "two", rtol=1e-4, atol=2e-4)


def test_stopped_and_resumed_to_the_same_bits(two: Path) -> None:
    """With dropout, and the mean of the last evaluations."""
    a, b = files(two / "whole"), files(two / "halves")
    assert a.keys() == b.keys() >= {"model.safetensors", "optimizer.safetensors", "average-1.safetensors"}
    for name, tensors in a.items():
        for key, x in tensors.items():
            assert torch.equal(b[name][key], x), (name, key)
    assert read_report(two / "halves")["losses"] == read_report(two / "whole")["losses"][4:]


def test_two_go_on_with_what_one_began(two: Path) -> None:
    torch.testing.assert_close(
        read_report(two / "one-two")["losses"], read_report(two / "one")["losses"][3:], rtol=1e-5, atol=1e-6
    )
    assert_alike(two / "one", two / "one-two", rtol=1e-4, atol=2e-4)


def test_one_goes_on_with_what_two_began(two: Path, tmp_path: Path) -> None:
    half_of(two / "two", tmp_path / "two-one")
    run(tmp_path / "two-one")
    torch.testing.assert_close(
        read_report(tmp_path / "two-one")["losses"], read_report(two / "one")["losses"][3:], rtol=1e-5, atol=1e-6
    )
    assert_alike(two / "one", tmp_path / "two-one", rtol=1e-4, atol=2e-4)


def test_the_folder_of_a_run_is_whole(two: Path) -> None:
    """What two processes wrote, any command reads."""
    found = rg.load(two / "tagger")
    assert not any(fsdp.is_sharded(x) for x in found.parameters())
    scored = CliRunner().invoke(app, ["evaluate", str(two / "tagger"), "--data", str(two / "train.conllu"), "--json"])
    assert scored.exit_code == 0, scored.output
    kept = json.loads((two / "tagger" / "scores.json").read_text("utf8"))["metrics"]["accuracy"]
    assert kept > 0.5 and json.loads(scored.stdout)["metrics"]["accuracy"] == pytest.approx(kept, abs=0.2)


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"FSDP_VERSION": "1"}, "--fsdp_version 2"),
        ({"FSDP_ACTIVATION_CHECKPOINTING": "true"}, "activation_checkpointing"),
        ({"FSDP_OFFLOAD_PARAMS": "true"}, "offload_params"),
    ],
)
def test_what_does_not_go_together_is_refused(monkeypatch: pytest.MonkeyPatch, asked: dict, hint: str) -> None:
    for name, value in (PARTED | asked).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(rg.BadInput, match=hint):
        fsdp.fsdp_plugin()


def test_a_plain_tensor_is_whole() -> None:
    x = torch.randn(3, 5)
    assert fsdp.full_tensor(x) is x and torch.equal(fsdp.shard_like(x, torch.zeros(3, 5)), x)


def test_torch_finds_the_tensors_of_an_answer() -> None:
    """Else a model in parts that answers with an `Output` would not learn."""
    fsdp.register_output()
    x = torch.ones(2)
    leaves, form = tree_flatten(Output(logits=x))
    assert any(leaf is x for leaf in leaves) and tree_unflatten(leaves, form).logits is x


def plainly_on_gpu(folder: Path) -> None:
    run(folder / "plain", ON_GPU)


def on_gpu(folder: Path) -> None:
    run(folder / "parted", ON_GPU)
    run(folder / "begun", ON_GPU)


def in_bf16_on_gpu(folder: Path) -> None:
    run(folder / "half", replace(ON_GPU, precision="bf16"))


@pytest.mark.gpu
@pytest.mark.parametrize("wrapped", [{}, WRAPPED], ids=["whole", "blocks"])
def test_on_a_gpu(tmp_path: Path, wrapped: dict[str, str]) -> None:
    """One process that shares with nobody gives what a plain one gives, and goes on with what that began."""
    launch("plainly_on_gpu", tmp_path, 1, {})
    half_of(tmp_path / "plain", tmp_path / "begun")
    for function in ("on_gpu", "in_bf16_on_gpu"):  # a process has one precision
        launch(function, tmp_path, 1, PARTED | wrapped)
    expected = read_report(tmp_path / "plain")["losses"]
    assert read_report(tmp_path / "parted")["parted"]
    torch.testing.assert_close(read_report(tmp_path / "parted")["losses"], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(read_report(tmp_path / "begun")["losses"], expected[3:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(read_report(tmp_path / "half")["losses"], expected, rtol=0.05, atol=0.02)
    assert_alike(tmp_path / "plain", tmp_path / "parted", rtol=1e-3, atol=5e-4)
    assert_alike(tmp_path / "plain", tmp_path / "begun", rtol=1e-3, atol=5e-4)
