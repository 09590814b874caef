"""The formula in few operations: its products of half types, and as a backend of a GPU."""

from __future__ import annotations

import pytest
import torch

import regard as rg
from regard.attention.backends.dense import multiply

from ..oracle import Case, assert_agreement, compare_backends


@pytest.mark.parametrize("a_type", [torch.float16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_products_of_half_types_are_not_rounded_before_they_must_be(a_type: torch.dtype, dtype: torch.dtype) -> None:
    """The result and both gradients beside float64, on numbers that float16 has; only the result's type rounds."""
    a, b = (torch.randint(-40, 40, size).double() / 32 for size in ((3, 50, 70), (3, 70, 20)))
    grad = (torch.randint(-40, 40, (3, 50, 20)) / 32).double()
    exact = [x.clone().requires_grad_() for x in (a, b)]
    want = exact[0] @ exact[1]
    rounded = [a.to(a_type).requires_grad_(), b.half().requires_grad_()]
    found = multiply(*rounded, dtype)
    assert found.dtype == dtype
    found_grads = torch.autograd.grad(found, rounded, grad.to(dtype))
    assert [x.dtype for x in found_grads] == [a_type, torch.float16]
    pairs = zip((found, *found_grads), (want, *torch.autograd.grad(want, exact, grad)), strict=True)
    for x, y in pairs:
        tolerance = torch.finfo(x.dtype).eps
        assert ((x.double() - y).abs() <= tolerance * y.abs().clamp(min=1.0)).all()


GPU_PARTS = {
    "plain": {},
    "window": {"mask": rg.Window(9, 5)},
    "table": {"position": rg.Bias(torch.linspace(-2, 2, 4 * 9).double().view(4, 9), 4), "mask": rg.Causal()},
    "buckets": {"position": rg.T5Bias(torch.linspace(-2, 2, 4 * 32).double().view(4, 32))},
    "lengths": {"mask": rg.Lengths(torch.tensor([20, 0]))},
    "cap and sink": {"score": rg.Dot(cap=2.0), "sink": rg.Sink(torch.tensor([0.5, -1.0, 0.0, 2.0]).double())},
    "dropout": {"dropout": 0.3},
}


@pytest.mark.gpu
@pytest.mark.parametrize("parts", GPU_PARTS.values(), ids=GPU_PARTS)
@pytest.mark.parametrize("dim", [48, 320])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_products_on_a_gpu_beside_the_oracle(parts: dict, dim: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    sizes = ((2, 4, 33, dim), (2, 2, 57, dim), (2, 2, 57, dim))
    q, k, v = (torch.randn(size, dtype=torch.float64, generator=generator) for size in sizes)
    case = Case(q, k, v, **{"score": rg.Dot(), **parts}, dtype=dtype)
    assert_agreement(str(case), compare_backends(case, ["dense"], "cuda"))
