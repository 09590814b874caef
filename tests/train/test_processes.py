"""Two processes give what one gives, also after one was killed: the same losses and weights, to rounding."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

from regard.train.checkpoints import CheckpointStore, read_tensors
from regard.train.trainer import Trainer, TrainEvent

from .test_trainer import HOW
from .toy import Toy, examples, model

HERE = Path(__file__).parents[2]
TRAINING = replace(HOW, steps=6, accumulate=4, evaluate_every=3, save_every=3)


def losses(folder: Path, kill_at: int = 0) -> list[float]:
    """The loss of each step of a run without dropout; also written where the first process can be read from.

    At the first start the first process kills itself after step `kill_at`.
    """
    found: list[float] = []
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

    def on_event(event: TrainEvent) -> None:
        if event.name == "step":
            found.append(event.values["loss"])
            (folder / f"losses-{restarts}.json").write_text(json.dumps(found))
            if event.state.step == kill_at and restarts == "0":
                os.kill(os.getpid(), signal.SIGKILL)

    folder.mkdir(exist_ok=True)
    made = model(dropout=0.0)
    Trainer(Toy(), made, examples(70), examples(30, 1), TRAINING, folder, lambda m, s: None, on_event).fit()
    return found


def test_two_processes_equal_one_also_after_a_restart(tmp_path: Path) -> None:
    one = losses(tmp_path / "one")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from tests.train.test_processes import losses; losses(Path(sys.argv[2]), kill_at=4)"
    )
    (tmp_path / "two.py").write_text(code)
    # A fixed port: the processes of the second start meet the store that those of the first have used.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launched = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--max-restarts=1"]
    done = subprocess.run(
        [*launched, f"--master_port={port}", str(tmp_path / "two.py"), str(HERE), str(tmp_path / "two")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    before, after = (json.loads((tmp_path / "two" / f"losses-{n}.json").read_text()) for n in (0, 1))
    assert len(before) == 4 and len(after) == 3  # the checkpoint is of step 3
    torch.testing.assert_close(torch.tensor([*before[:3], *after]), torch.tensor(one), rtol=1e-5, atol=1e-6)
    a, b = (CheckpointStore(tmp_path / name / "checkpoints").latest() for name in ("one", "two"))
    assert a is not None and b is not None and a[0]["step"] == b[0]["step"] == 6
    for name, x in read_tensors(a[1] / "model.safetensors").items():
        # Adam divides a gradient by its size: the rounding of one that should be zero becomes a part of a step (1e-3).
        torch.testing.assert_close(read_tensors(b[1] / "model.safetensors")[name], x, rtol=1e-4, atol=2e-4)
