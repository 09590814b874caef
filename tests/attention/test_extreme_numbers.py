"""Numbers at the edges of their types, and rows without keys: every backend answers as the formula does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from torch import Tensor

import regard as rg

TOKENS, CHANGED = 18, 7
BACKENDS = ("auto", "sdpa", "blockwise", "edges")
Result = tuple[Tensor, list[Tensor]]
PARTS = {
    "plain": {},
    "rotary": {"position": rg.Rotary()},
    "alibi": {"position": rg.Alibi()},
    "shaw": {"position": rg.Shaw(torch.linspace(-1, 1, 56).view(2, 7, 4), zero=3)},
    "additive": {"score": rg.Additive(torch.ones(2, 4))},
    "cosine": {"score": rg.Cosine(2.0)},
    "cap": {"score": rg.Dot(cap=3.0)},
    "sink": {"sink": rg.Sink()},
}
MASKS = {
    "everything": rg.Everything(),
    "causal": rg.Causal(),
    "window": rg.Window(3, 2),
    "no keys": rg.Lengths(torch.tensor([0, TOKENS])),
    "graph": rg.Edges(torch.randint(0, TOKENS, (2, 60), generator=torch.Generator().manual_seed(0))),
}
NUMBERS = {  # what is changed, into what, in which type
    "large values": ("v", 1e30, torch.float32),
    "large keys": ("k", 1e30, torch.float32),
    "large queries": ("q", -1e30, torch.float32),
    "negative zeros": ("qkv", -0.0, torch.float32),
    "denormal numbers": ("qkv", 1e-41, torch.float32),
    "the largest float16": ("v", 65504.0, torch.float16),
    "the smallest float16": ("qkv", 6e-8, torch.float16),
}


def run(inputs: list[Tensor], backend: str, options: dict[str, object]) -> Result:
    """The output and the gradients of q, k and v."""
    tensors = [x.clone().requires_grad_() for x in inputs]
    output = rg.attend(*tensors, backend=backend, **options)  # type: ignore[arg-type]
    g = torch.Generator().manual_seed(3)
    output.backward((torch.randint(-8, 9, output.shape, generator=g) / 8).to(output.dtype))
    return output.detach(), [x.grad for x in tensors if x.grad is not None]


def assert_close(found: Tensor, wanted: Tensor) -> None:
    """The same numbers up to roundings of the largest.

    In float16 the output is rounded, by 2⁻¹¹, and the gradients come from it by sums over 4 dims times numbers up to 2.
    """
    error = 2.0**-8 if found.dtype == torch.float16 else 2e-6
    atol = error * max(wanted.abs().max().item(), 1.0)
    torch.testing.assert_close(found.double(), wanted.to(found.dtype).double(), rtol=0.0, atol=atol)


def run_all(inputs: list[Tensor], backends: tuple[str, ...], options: dict[str, object]) -> Iterator[Result]:
    """The results of every backend that runs the call."""
    for backend in backends:
        with suppress(rg.Unsupported):
            yield run(inputs, backend, options)


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("mask", MASKS)
def test_every_backend_answers_as_the_formula(mask: str, parts: str, numbers: str) -> None:
    names, number, dtype = NUMBERS[numbers]
    g = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, heads, TOKENS, 4, generator=g).to(dtype) for heads in (2, 1, 1)]
    for x, name in zip(inputs, "qkv", strict=True):
        if name in names:
            x[:, :, CHANGED, 1:3] = number
    options = {"mask": MASKS[mask], **PARTS[parts]}
    exact = torch.float64 if dtype == torch.float16 else dtype
    expected, expected_grads = run([x.to(exact) for x in inputs], "reference", options)
    results = list(run_all(inputs, BACKENDS, options))
    assert len(results) >= 2
    for output, grads in results:
        assert_close(output, expected)
        assert mask != "no keys" or not (output[0].any() or any(x[0].any() for x in grads))
        for x, wanted in zip(grads, expected_grads, strict=True):
            assert torch.equal(x.isfinite(), wanted.to(dtype).isfinite())
            if abs(number) != 1e30:  # what cancels there is as large as they are
                assert_close(x, wanted)


@pytest.mark.parametrize("parts", PARTS)
def test_the_same_call_gives_the_same_bits(parts: str) -> None:
    g = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, 2, TOKENS, 4, generator=g) for _ in range(3)]
    for mask in (rg.Everything(), rg.Causal() & rg.Window(5), MASKS["graph"]):
        options = {"mask": mask, **PARTS[parts]}
        twice = (list(run_all(inputs, (*BACKENDS, "reference"), options)) for _ in range(2))
        for (output, grads), (again, again_grads) in zip(*twice, strict=True):
            assert torch.equal(output, again)
            assert all(torch.equal(x, y) for x, y in zip(grads, again_grads, strict=True))
