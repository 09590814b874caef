"""Experiments compute as they do for a user: without a GPU no kernel is interpreted, which would take minutes."""

import pytest
import torch


@pytest.fixture(autouse=True)
def by_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setattr("regard.attention.parts.methods.fits_kernels", lambda call: False)
