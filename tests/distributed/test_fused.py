"""The fused kernels on the pieces of sharded calls: outputs and gradients of the formula."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ..processes import run_processes

pytest.importorskip("triton")
pytestmark = pytest.mark.xdist_group("processes")


def read_errors(folder: Path, ranks: int) -> list[dict[str, float]]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def test_fused_kernels_compute_the_pieces(tmp_path: Path) -> None:
    """Calls of different kinds with one mask, too, which must not share what kernels worked out."""
    environment = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    run_processes("tests.distributed.fused_shards", "check", 2, tmp_path, environment=environment)
    for errors in read_errors(tmp_path, 2):
        assert not {name: error for name, error in errors.items() if not error < 2e-5}


@pytest.mark.gpu
def test_layouts_over_nccl(tmp_path: Path) -> None:
    """A rank for each GPU; with one GPU hashes, seeds and gathered tensors still pass through NCCL."""
    ranks = torch.cuda.device_count()
    run_processes("tests.distributed.fused_shards", "check", ranks, tmp_path, "nccl")
    for errors in read_errors(tmp_path, ranks):
        assert not {name: error for name, error in errors.items() if not error < 2e-5}
