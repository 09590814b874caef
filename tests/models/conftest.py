"""Tests that compile do not depend on what was compiled before them in the same process."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def forget_compiled_graphs(request: pytest.FixtureRequest) -> Iterator[None]:
    """All models share `forward`, of which torch compiles at most eight variants in a process."""
    yield
    if "compile" in request.node.name:
        torch._dynamo.reset()
