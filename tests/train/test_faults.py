"""A process that is killed or hangs ends the others with a message that names it; signals ask for another start."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor, nn
from typer.testing import CliRunner

from regard import cli
from regard.train.processes.liveness import Liveness, Sign, describe_frame, is_zombie
from regard.train.processes.rendezvous import STORES, key_prefix
from regard.train.progress import Progress
from regard.train.trainer import Trainer, TrainEvent

from ..processes import run_processes
from .test_run import conllu
from .test_trainer import HOW
from .toy import Toy, examples, model

HERE = Path(__file__).parents[2]
TRAINING = replace(HOW, steps=40, accumulate=2, evaluate_every=50, save_every=50, hang_minutes=0.05)


class FaultyToy(Toy):
    """In the third update the second process kills itself, or sleeps."""

    calls = 0

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        self.calls += 1
        if self.calls == 3 and os.environ["RANK"] == "1":
            if os.environ["FAULT"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return super().loss(model, batch, smoothing)


def train(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    Trainer(FaultyToy(), model(), examples(70), examples(30, 1), TRAINING, folder, lambda m, s: None).fit()


@pytest.mark.parametrize(
    ("fault", "hint"), [("kill", "is gone: it was killed"), ("hang", "which is at loss (test_faults.py")]
)
def test_the_process_at_fault_is_named(tmp_path: Path, fault: str, hint: str) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from tests.train.test_faults import train; train(Path(sys.argv[2]))"
    )
    (tmp_path / "launched.py").write_text(code)
    launched = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    done = subprocess.run(
        [*launched, str(tmp_path / "launched.py"), str(HERE), str(tmp_path / "run")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "FAULT": fault},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode != 0
    assert "process 1 (pid" in done.stderr and hint in done.stderr, done.stderr[-3000:]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_ends_the_command_with_a_status_that_asks_for_another_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    number, report = getattr(signal, name), Progress.__call__

    def signal_once(self: Progress, event: TrainEvent) -> None:
        report(self, event)
        if event.name == "step" and event.state.step == 2:
            os.kill(os.getpid(), number)

    conllu(tmp_path / "train.conllu", 20)
    monkeypatch.setattr(Progress, "__call__", signal_once)
    options = ["--train", str(tmp_path / "train.conllu"), "--out", str(tmp_path / "run"), "--device", "cpu"]
    sizes = ["--set", "dim=8", "--set", "layers=1", "--set", "heads=1", "--set", "batch_tokens=30", "--steps", "5"]
    done = CliRunner().invoke(cli.app, ["train", "tag", *options, *sizes])
    assert done.exit_code == 128 + number
    monkeypatch.setattr(Progress, "__call__", report)
    assert CliRunner().invoke(cli.app, ["train", "tag", *options, *sizes]).exit_code == 0


def train_until_signal(folder: Path) -> None:
    """Train with the command; the second process gets SIGUSR1 after the second update."""
    report = Trainer.report_step

    def signal_once(self: Trainer) -> None:
        report(self)
        if self.state.step == 2 and os.environ["RANK"] == "1" and not self.interrupt.signal:
            os.kill(os.getpid(), signal.SIGUSR1)

    Trainer.report_step = signal_once  # type: ignore[method-assign]
    options = [
        "--train",
        str(folder / "train.conllu"),
        "--out",
        str(folder / "run"),
        "--device",
        "cpu",
        "--steps",
        "50",
    ]
    sizes = ["dim=8", "layers=1", "heads=1", "batch_tokens=30", "accumulate=2"]
    done = CliRunner().invoke(cli.app, ["train", "tag", *options, *[x for size in sizes for x in ("--set", size)]])
    (folder / f"status-{os.environ['RANK']}").write_text(str(done.exit_code))
    dist.destroy_process_group()


def test_a_signal_in_one_process_ends_all_with_its_status(tmp_path: Path) -> None:
    conllu(tmp_path / "train.conllu", 20)
    run_processes("tests.train.test_faults", "train_until_signal", 2, tmp_path)
    assert [(tmp_path / f"status-{rank}").read_text() for rank in range(2)] == [str(128 + signal.SIGUSR1)] * 2
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    ("environment", "prefix"),
    [
        ({}, "restart-2-of-4"),
        ({STORES: "1", "TORCHELASTIC_RUN_ID": "none"}, "restart-2-of-4"),
        ({STORES: "1", "TORCHELASTIC_RUN_ID": "job"}, "of-4"),
    ],
)
def test_processes_of_one_start_have_the_same_keys(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], prefix: str
) -> None:
    for name, value in {"TORCHELASTIC_RESTART_COUNT": "2", **environment}.items():
        monkeypatch.setenv(name, value)
    assert key_prefix(4) == prefix


def test_a_place_says_function_and_line() -> None:
    place, waits = describe_frame(sys._getframe())
    assert place.startswith("test_a_place_says_function_and_line (test_faults.py:") and not waits
    assert describe_frame(None) == ("its end", False)


def test_a_process_that_stopped_before_it_said_where_it_is_is_named_too() -> None:
    watch = Liveness.__new__(Liveness)
    watch.hang_seconds = 10.0
    signs = [Sign(0, "node7", 11, waiting=12.0, place="wait (work.py:3)"), Sign(1, "node7", 12)]
    message = watch.find_hanging(signs)
    assert message is not None and "waited 10 s for process 1 (pid 12 on node7). The run ends" in message
    assert watch.find_hanging([replace(sign, waiting=9.0) for sign in signs]) is None


def test_a_process_that_has_ended_is_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    while not is_zombie(child.pid):
        time.sleep(0.01)
    assert not is_zombie(os.getpid()) and child.wait() == 0
    assert str(Sign(3, "node7", 12)) == "process 3 (pid 12 on node7)"


def leave(status: int, connection: Any) -> None:
    """End a command with this status, and say whether its process group is still there."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    cli.app = lambda: sys.exit(status)
    try:
        cli.main()
    finally:
        connection.send(dist.is_initialized())


@pytest.mark.parametrize(("status", "initialized"), [(0, False), (143, False), (1, None)])
def test_the_command_leaves_its_process_group(status: int, initialized: bool | None) -> None:
    """At its end, and after a signal; after an error it ends at once, without a farewell that may wait for ever."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=leave, args=(status, sender))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = None
    process.join(60)
    assert (process.exitcode, answer) == (status, initialized)
