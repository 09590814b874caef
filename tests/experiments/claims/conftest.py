"""Numbers of claims at toy size, measured once for all tests."""

import copy
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from regard.experiments.progress import ignore_progress
from regard.experiments.runner import single_thread


@pytest.fixture(autouse=True)
def use_single_thread() -> Iterator[None]:
    """Claims compute on one thread, as the runner has it."""
    with single_thread():
        yield


@pytest.fixture(scope="session")
def toy() -> Callable[[ModuleType], dict[str, Any]]:
    """A function of a claim's module that returns a copy of its toy numbers for seed 0."""
    measured: dict[ModuleType, dict[str, Any]] = {}

    def numbers(module: ModuleType) -> dict[str, Any]:
        if module not in measured:
            measured[module] = module.measure("toy", 0, ignore_progress)
        return copy.deepcopy(measured[module])

    return numbers
