"""The fused kernels on the pieces of sharded calls: outputs and gradients of the formula."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ..processes import run_processes

pytest.importorskip("triton")
pytestmark = pytest.mark.xdist_group("processes")


def test_fused_kernels_compute_the_pieces(tmp_path: Path) -> None:
    """Calls of different kinds with one mask, too, which must not share what kernels worked out."""
    environment = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    run_processes("tests.distributed.fused_shards", "check", 2, tmp_path, environment=environment)
    for rank in range(2):
        errors = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert all(error < 2e-5 for error in errors.values()), errors
