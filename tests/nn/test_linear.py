"""The linear layer equals torch's, whoever multiplies."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from regard.nn import linear as module
from regard.nn.linear import Linear, fused_linear, linear, suits_onednn

SIZES = (521, 547)  # more weights than stay with torch's own product


@pytest.mark.parametrize("shape", [(1, 1), (3,), (2, 7), (), (1, 17), (0, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch(shape: tuple[int, ...], bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, SIZES[1], generator=generator)
    weight = torch.randn(SIZES, generator=generator)
    added = torch.randn(SIZES[0], generator=generator) if bias else None
    with torch.no_grad():
        actual = linear(x, weight, added)
    wanted = functional.linear(x.double(), weight.double(), None if added is None else added.double())
    assert actual.shape == wanted.shape and actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), wanted, rtol=1e-5, atol=1e-4)


def test_who_multiplies() -> None:
    row, weight = torch.randn(1, SIZES[1]), torch.randn(SIZES)
    assert not suits_onednn(row, weight)  # gradients are on
    with torch.no_grad():
        assert suits_onednn(row, weight)
        assert not suits_onednn(row.expand(17, -1), weight)
        assert not suits_onednn(row.double(), weight.double())
        assert not suits_onednn(row, weight.t().contiguous().t())
        assert not suits_onednn(row[:, :8], weight[:, :8].contiguous())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not suits_onednn(row, weight)
            assert linear(row, weight).dtype == torch.bfloat16


def test_gradients_and_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Linear(SIZES[1], SIZES[0]), torch.randn(1, SIZES[1])
    layer(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.expand(SIZES))
    with torch.no_grad():
        actual = layer(x)
        monkeypatch.setattr(module, "HAS_ONEDNN", False)
        torch.testing.assert_close(layer(x), actual, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 100])  # fewer and more than the layers have outputs
def test_joint_layers_are_each_their_own(tokens: int, bias: bool) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(7, out, bias).double() for out in (5, 3, 11)]
    weights = [weight for layer in layers for weight in layer.parameters()]
    x = torch.randn(2, tokens, 7, dtype=torch.float64, requires_grad=True)
    wave = lambda actual: torch.cat(actual, -1).sin().sum()  # noqa: E731
    actual, wanted = fused_linear(x, *layers), [layer(x) for layer in layers]
    for got, want in zip(actual, wanted, strict=True):
        torch.testing.assert_close(got, want)
    for got, want in zip(*(torch.autograd.grad(wave(y), [x, *weights]) for y in (actual, wanted)), strict=True):
        torch.testing.assert_close(got, want)


def test_a_layer_with_a_hook_is_called() -> None:
    layers, called = [nn.Linear(3, 2), nn.Linear(3, 2)], []
    layers[1].register_forward_hook(lambda *given: called.append(1))
    fused_linear(torch.randn(50, 3), *layers)
    assert called
