"""Models of transformers on a sequence that two processes share: losses and gradients of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..processes import run_processes

pytest.importorskip("transformers")
pytestmark = pytest.mark.xdist_group("processes")


def test_losses_and_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    run_processes("tests.distributed.sharded_llama", "check", 2, tmp_path)
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for rank in found:
        for name in ("llama", "mistral"):
            assert all(value < 1e-10 for value in rank[name].values()), rank
    assert "position_ids are not those of rank 1" in found[1]["refusal"]
