"""Two processes give what one gives: the same losses and weights, to rounding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

from regard.train.checkpoints import CheckpointStore, read_tensors
from regard.train.trainer import Trainer

from .test_trainer import HOW
from .toy import Toy, examples, model

HERE = Path(__file__).parents[2]
TRAINING = replace(HOW, steps=6, accumulate=4, evaluate_every=3, save_every=3)


def losses(folder: Path) -> list[float]:
    """The loss of each step of a run without dropout; also written where the first process can be read from."""
    found: list[float] = []
    made = model(dropout=0.0)
    Trainer(
        Toy(), made, examples(70), examples(30, 1), TRAINING, folder, lambda m, s: None,
        lambda event: found.append(event.values["loss"]) if event.name == "step" else None,
    ).fit()  # fmt: skip
    if found:
        (folder / "losses.json").write_text(json.dumps(found))
    return found


def test_two_processes_equal_one(tmp_path: Path) -> None:
    one = losses(tmp_path / "one")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from tests.train.test_processes import losses; losses(Path(sys.argv[2]))"
    )
    (tmp_path / "two.py").write_text(code)
    launched = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    done = subprocess.run(
        [*launched, str(tmp_path / "two.py"), str(HERE), str(tmp_path / "two")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    two = json.loads((tmp_path / "two" / "losses.json").read_text())
    torch.testing.assert_close(torch.tensor(two), torch.tensor(one), rtol=1e-5, atol=1e-6)
    a, b = (CheckpointStore(tmp_path / name / "checkpoints").latest() for name in ("one", "two"))
    assert a is not None and b is not None and a[0]["step"] == b[0]["step"] == 6
    for name, x in read_tensors(a[1] / "model.safetensors").items():
        # Adam divides a gradient by its size: the rounding of one that should be zero becomes a part of a step (1e-3).
        torch.testing.assert_close(read_tensors(b[1] / "model.safetensors")[name], x, rtol=1e-4, atol=2e-4)
