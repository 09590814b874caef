"""Models of transformers on a sequence that two processes share: losses and gradients of one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")


def test_losses_and_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    program = Path(__file__).with_name("sharded_llama.py")
    processes = [
        subprocess.Popen([sys.executable, str(program), str(rank), "2", str(tmp_path)], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=240)[1].decode()[-3000:] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        for name in ("llama", "mistral"):
            assert all(value < 1e-10 for value in found[name].values()), found
    assert "position_ids are not those of rank 1" in found["refusal"]
