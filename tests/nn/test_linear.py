"""The linear layer equals torch's, whoever multiplies."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from regard.nn import linear as module
from regard.nn.linear import Linear, few_rows, linear

SIZES = (521, 547)  # more weights than stay with torch's own product


@pytest.mark.parametrize("shape", [(1, 1), (3,), (2, 7), (), (1, 17), (0, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch(shape: tuple[int, ...], bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, SIZES[1], generator=generator)
    weight = torch.randn(SIZES, generator=generator)
    added = torch.randn(SIZES[0], generator=generator) if bias else None
    with torch.no_grad():
        found = linear(x, weight, added)
    wanted = functional.linear(x.double(), weight.double(), None if added is None else added.double())
    assert found.shape == wanted.shape and found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)


def test_who_multiplies() -> None:
    row, weight = torch.randn(1, SIZES[1]), torch.randn(SIZES)
    assert not few_rows(row, weight)  # gradients are on
    with torch.no_grad():
        assert few_rows(row, weight)
        assert not few_rows(row.expand(17, -1), weight)
        assert not few_rows(row.double(), weight.double())
        assert not few_rows(row, weight.t().contiguous().t())
        assert not few_rows(row[:, :8], weight[:, :8].contiguous())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not few_rows(row, weight)
            assert linear(row, weight).dtype == torch.bfloat16


def test_gradients_and_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Linear(SIZES[1], SIZES[0]), torch.randn(1, SIZES[1])
    layer(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.expand(SIZES))
    with torch.no_grad():
        found = layer(x)
        monkeypatch.setattr(module, "READY", False)
        torch.testing.assert_close(layer(x), found, rtol=1e-5, atol=1e-5)
