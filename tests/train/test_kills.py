"""Training that is killed, told to stop or damaged goes on to the same bits: benchmarks/kills.py, small.

`python benchmarks/kills.py` kills before every operation on files, and 200 times at random moments.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
EVERY = 36
"""Of the operations of a run, each of so many is killed."""


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("kills", FOLDER / "kills.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["kills"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module.Killer(tmp_path_factory.mktemp("kills"))


def test_killed_before_operations_on_files(killer: Any) -> None:
    operations = killer.count_operations()
    for n in range(5, operations + 1, EVERY):
        killer.kill_before(n)
    assert operations > 150 and killer.result.operations > 3
    assert killer.result.complete, killer.result.failures


def test_killed_at_a_random_moment(killer: Any) -> None:
    killer.kill_at_random(2)
    assert killer.result.complete, killer.result.failures


def test_told_to_stop(killer: Any) -> None:
    killer.send_signal("SIGUSR1")
    assert killer.result.signals == 1 and killer.result.complete, killer.result.failures


def test_a_flipped_bit(killer: Any) -> None:
    killer.flip_in_checkpoint()
    killer.flip_in_model()
    assert killer.result.flips == killer.result.model_flips == 1
    assert killer.result.complete, killer.result.failures


def test_a_loss_is_counted(killer: Any) -> None:
    killer.result.operations += 1
    assert not killer.result.complete
    killer.result.operations -= 1
