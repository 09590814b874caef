"""Repeated calls of the dot kernels, without the steps that a first call takes, run in Triton's interpreter."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from dataclasses import replace

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
from regard.attention.tracing import cuda_graph_mode

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


LEARNED = {
    "entries": lambda: rg.Bias(torch.rand(4, 9, device=DEVICE).requires_grad_(), 4),
    "one side": lambda: rg.Bias(torch.rand(4, 30, device=DEVICE).requires_grad_(), 0),
    "buckets": lambda: rg.T5Bias(torch.rand(4, 8, device=DEVICE).requires_grad_(), max_distance=16),
    "by columns": lambda: rg.Bias(torch.rand(9, 4, device=DEVICE).requires_grad_().mT, 4),
}
MASKS = {
    "window": lambda: rg.Causal() & rg.Window(20),
    "everything": lambda: None,
    "lengths": lambda: rg.Lengths(torch.tensor([30, 40], device=DEVICE)),
}


@pytest.mark.parametrize(
    ("table", "mask"),
    [("entries", "window"), ("one side", "everything"), ("buckets", "lengths"), ("by columns", "everything")],
)
def test_a_learned_table_is_an_argument_of_its_step(table: str, mask: str) -> None:
    """Its contents differ from call to call."""
    position, mask = LEARNED[table], MASKS[mask]()
    first = position()
    call = make_call(*draw(by_token, True), mask=mask, position=first)
    step = triton.prepare_fixed(call)
    assert isinstance(step, DotStep) and step.learned is not None
    assert (triton.prepare(call) is None) == (mask is not None and bool(mask.tensors()))
    for _ in range(2):
        tensors, new = draw(by_token, True), position()
        table = new.table.detach().requires_grad_()
        want = rg.attend(*tensors, mask=mask, position=replace(new, table=table), backend="reference")
        output = step(*tensors, table)
        torch.testing.assert_close(output, want, atol=1e-5, rtol=1e-4)
        grad = torch.randn_like(want)
        found, expected = (torch.autograd.grad(x, [*tensors, table], grad) for x in (output, want))
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y, atol=2e-5, rtol=1e-4)
    assert len(step.plans) == 1


@pytest.mark.parametrize("trains", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_attention_with_a_table_is_warm(mask, trains: bool, monkeypatch) -> None:
    """The third call runs a step, with a table that is learned or one that stays; a change of either is seen."""
    mask, table = mask(), torch.rand(4, 9, device=DEVICE).requires_grad_(trains)
    steps: list[DotStep] = []
    run = DotStep.__call__
    monkeypatch.setattr(DotStep, "__call__", lambda self, *tensors: (steps.append(self), run(self, *tensors))[1])
    for number in range(4):
        steps.clear()
        tensors, position = draw(by_token, trains), rg.Bias(table, 4)
        output = rg.attend(*tensors, mask=mask, position=position, backend="triton")
        want = rg.attend(*tensors, mask=mask, position=position, backend="reference")
        torch.testing.assert_close(output, want, atol=1e-5, rtol=1e-4)
        prepared = trains and (mask is None or not mask.tensors())
        assert len(steps) == [prepared, 1, 1, trains][number]
        if trains:
            (found,) = torch.autograd.grad(output.sum(), table)
            (expected,) = torch.autograd.grad(want.sum(), table)
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
        if number == 2:
            with torch.no_grad():
                table.add_(1.0).mul_(3.0)


def test_a_graph_reads_a_table_that_stays_when_it_runs() -> None:
    """What a step made of its numbers beforehand would stay the same in it, whatever is written to the table."""
    tensors, learned = draw(by_token, True), torch.rand(4, 9, device=DEVICE).requires_grad_()
    calls = [make_call(*tensors, position=rg.Bias(table, 4)) for table in (learned.detach(), learned)]
    assert all(isinstance(triton.prepare_fixed(call), DotStep) for call in calls)
    with cuda_graph_mode():
        assert [triton.prepare_fixed(call) is None for call in calls] == [True, False]


def test_a_step_keeps_no_tensor_of_its_parts() -> None:
    ids, table = torch.zeros(2, 40, dtype=torch.long, device=DEVICE), torch.rand(4, 9, device=DEVICE)
    mask, position = rg.Documents(ids), rg.Bias(table, 4)
    tensors = [weakref.ref(x) for x in (ids, table)]
    call = make_call(*draw(by_token, True), mask=mask, position=position)
    step = triton.prepare_fixed(call)
    assert isinstance(step, DotStep)
    del call, mask, position, ids, table
    gc.collect()
    assert [x() for x in tensors] == [None, None]
    with pytest.raises(RuntimeError):  # on which `attend` takes the general way
        step(*draw(by_feature, True))


@pytest.mark.parametrize(
    "parts",
    [
        {"mask": rg.Lengths(torch.tensor([30, 40], device=DEVICE))},
        {"position": rg.Alibi(torch.rand(4, device=DEVICE).requires_grad_())},
        {"position": rg.Bias(torch.rand(4, 9, device=DEVICE), 4)},
        {"position": rg.Bias(torch.rand(4, 3000, device=DEVICE).requires_grad_(), 4)},
        {"sink": rg.Sink()},
        {"score": rg.Dot(cap=5.0)},
        {"score": rg.Dot(-1.0)},
    ],
    ids=["a mask with tensors", "learned slopes", "a table", "a large table", "a sink", "a cap", "a negative scale"],
)
def test_calls_that_read_more_are_no_steps(parts: dict) -> None:
    assert triton.prepare(make_call(*draw(by_token, True), **parts)) is None
