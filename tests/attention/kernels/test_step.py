"""Repeated calls of the dot kernels, without the steps that a first call takes, run in Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

import regard as rg
from regard.attention.backends import triton
from regard.attention.call import make_call
from regard.attention.kernels.dot.step import DotStep

from .test_dot import small_tiles  # noqa: F401, a fixture of every test here

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(layout: Callable[[Tensor], Tensor], requires_grad: bool) -> list[Tensor]:
    """q with four heads, k and v with two."""
    sizes = [(2, 4, 40, 16), (2, 2, 40, 16), (2, 2, 40, 16)]
    return [layout(torch.randn(size, device=DEVICE)).detach().requires_grad_(requires_grad) for size in sizes]


def by_token(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def by_feature(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


@pytest.mark.parametrize("position", [None, rg.Alibi()], ids=["plain", "alibi"])
@pytest.mark.parametrize("trains", [False, True], ids=["forward", "training"])
def test_a_step_is_the_general_call(trains: bool, position: rg.Position | None) -> None:
    """The first call of a layout, and the second, which starts the kernels at once."""
    mask = rg.Causal() & rg.Window(20)
    with torch.set_grad_enabled(trains):
        step = triton.prepare(make_call(*draw(by_token, trains), mask=mask, position=position))
        assert isinstance(step, DotStep)
        for layout in (by_token, by_token, torch.Tensor.contiguous, by_feature):
            tensors = draw(layout, trains)
            want = rg.attend(*tensors, mask=mask, position=position, backend="reference")
            output = step(*tensors)
            torch.testing.assert_close(output, want, atol=1e-5, rtol=1e-4)
            if trains:
                grad = torch.randn_like(want)
                found, expected = (torch.autograd.grad(x, tensors, grad) for x in (output, want))
                for x, y in zip(found, expected, strict=True):
                    torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-4)
    assert len(step.plans) == 2  # what kernels cannot read as it is takes the general way each time


@pytest.mark.parametrize(
    "parts",
    [
        {"mask": rg.Lengths(torch.tensor([30, 40], device=DEVICE))},
        {"position": rg.Alibi(torch.rand(4, device=DEVICE).requires_grad_())},
        {"position": rg.Bias(torch.rand(4, 9, device=DEVICE), 4)},
        {"sink": rg.Sink()},
        {"score": rg.Dot(cap=5.0)},
        {"score": rg.Dot(-1.0)},
    ],
    ids=["a mask with tensors", "learned slopes", "a table", "a sink", "a cap", "a negative scale"],
)
def test_calls_that_read_more_are_no_steps(parts: dict) -> None:
    assert triton.prepare(make_call(*draw(by_token, True), **parts)) is None
