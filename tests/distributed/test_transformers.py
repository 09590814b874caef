"""Models of transformers on a sequence that two processes share: losses and gradients of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..processes import run_processes

pytest.importorskip("transformers")
pytestmark = pytest.mark.xdist_group("processes")


FAULTS = {
    "no positions": (1, "position_ids are not those of rank 1"),
    "positions": (1, "position_ids are not those of rank 1"),
    "padding": (0, "attention_mask has 60 tokens"),
    "tokens": (1, "rank 1 holds 30 of 61"),
    "tokens of ours": (0, "rank 0 holds 31 of 61"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    run_processes("tests.distributed.sharded_llama", "check", 2, folder)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_losses_and_gradients_are_those_of_one_process(results: list[dict]) -> None:
    for rank in results:
        for name in ("llama", "mistral"):
            assert all(value < 1e-10 for value in rank[name].values()), rank


@pytest.mark.parametrize("fault", FAULTS)
def test_what_one_rank_does_wrong_all_refuse(results: list[dict], fault: str) -> None:
    rank, message = FAULTS[fault]
    assert message in results[rank]["refusals"][fault]
    assert f"Rank {rank} refused the call" in results[1 - rank]["refusals"][fault]
