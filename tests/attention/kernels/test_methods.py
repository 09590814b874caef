"""The approximations in kernels: they err as their formulas do, repeat to the bit, and start wherever tensors lie."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.attention.naive_methods import (
    assert_close,
    each_head,
    plain_nystrom,
    plain_performer,
    plain_softmax,
    projections,
    tensors,
)
from tests.attention.oracle import ULPS
from torch import Tensor

from regard.attention.attend import attend, resolve
from regard.attention.backends.approximate import linformer, nystrom, performer
from regard.attention.backends.triton import unsupported_device
from regard.attention.parts.masks import Lengths
from regard.attention.parts.methods import Linformer, Method, Nystrom, Performer
from regard.attention.parts.parts import Parts

METHODS = ["linformer", "nystrom", "performer"]
FUSED = [((53, 53), 4, 21, None), ((7, 131), 2, 40, [131, 70]), ((150, 3), 1, 8, [3, 0]), ((1, 64), 4, 64, None)]


def errs_like_the_formula(
    formula: Callable[..., Tensor], method: Method, exact: tuple[Tensor, ...], dtype: torch.dtype, counts: list | None
) -> None:
    """Output and gradients of a method in `dtype` err at most twice what its formula does in that type, and repeat.

    To that comes what `oracle` allows every backend: one rounding, and sums of float32 in another order.
    `exact` are q, k, v in float64, on the device; errors are against the formula of them.
    """
    exact = tuple(x.detach().to(dtype).double().requires_grad_() for x in exact)
    given = tuple(x.detach().to(dtype).requires_grad_() for x in exact)
    device = given[0].device
    mask = None if counts is None else Lengths(torch.tensor(counts, device=device))
    allowed = None if mask is None else mask.dense(exact[0].shape[2], exact[1].shape[2])
    expected, plain = formula(*exact, allowed), formula(*given, allowed)
    actual, again = (attend(*given, mask=mask, method=method) for _ in range(2))
    upstream = torch.randn_like(expected).to(dtype)
    truth = (expected, *torch.autograd.grad(expected, exact, upstream.double()))
    own, mine, repeated = ((y, *torch.autograd.grad(y, given, upstream)) for y in (plain, actual, again))
    for name, a, b, other, true in zip("oqkv", mine, repeated, own, truth, strict=True):
        assert a.dtype == dtype and torch.equal(a, b), name
        off, own_off = ((x.double() - true).norm() for x in (a, other))
        rounding = torch.finfo(dtype).eps / 2 + ULPS * torch.finfo(torch.float32).eps
        limit = 2 * own_off.nan_to_num(0.0) + rounding * true.norm()
        assert off <= limit, (
            f"{name} is off by {float(off):.2e} of {float(true.norm()):.2e}, allowed {float(limit):.2e}"
        )


@pytest.mark.parametrize(("sizes", "kv_heads", "features", "counts"), FUSED)
def test_performer_in_kernels(sizes: tuple[int, int], kv_heads: int, features: int, counts: list[int] | None) -> None:
    assert unsupported_device(torch.device("cpu")) is None
    formula = lambda q, k, v, allowed: plain_performer(q, k, v, features, 5, allowed)  # noqa: E731
    exact = tensors(*sizes, kv_heads=kv_heads)
    assert runs_in_kernels(Performer(features), *(x.detach().float() for x in exact))
    errs_like_the_formula(formula, Performer(features, seed=5), exact, torch.float32, counts)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("sizes", "kv_heads", "features", "counts"), [*FUSED, ((3000, 2500), 2, 100, [2500, 1])])
def test_performer_in_kernels_on_the_gpu(
    sizes: tuple[int, int], kv_heads: int, features: int, counts: list[int] | None, dtype: torch.dtype
) -> None:
    formula = lambda q, k, v, allowed: plain_performer(q, k, v, features, 5, allowed)  # noqa: E731
    exact = tuple(x.cuda() for x in tensors(*sizes, kv_heads=kv_heads, dim=32, value_dim=40))
    errs_like_the_formula(formula, Performer(features, seed=5), exact, dtype, counts)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["linformer", "nystrom"])
def test_types_on_the_gpu(name: str, dtype: torch.dtype) -> None:
    exact = tuple(x.cuda() for x in tensors(640, 640, dim=64, value_dim=64))
    e = (torch.randn(64, 640, dtype=torch.float64) / math.sqrt(640)).to(dtype).double().cuda()

    def linformer(q: Tensor, k: Tensor, v: Tensor, _: None) -> Tensor:
        return plain_softmax(q, e.to(q) @ k, e.to(q) @ v)

    def nystrom(q: Tensor, k: Tensor, v: Tensor, _: None) -> Tensor:
        return plain_nystrom(q, k, v, 64)

    method = {"linformer": Linformer(e.to(dtype)), "nystrom": Nystrom(64)}[name]
    errs_like_the_formula({"linformer": linformer, "nystrom": nystrom}[name], method, exact, dtype, None)


@pytest.mark.parametrize(("tokens", "kv_heads", "projected"), [(53, 4, 5), (131, 2, 70), (3, 1, 2)])
def test_linformer_in_kernels(tokens: int, kv_heads: int, projected: int) -> None:
    """Keys and values projected by one kernel, in pieces, and the projection's gradient by another."""
    q, k, v = (x.detach().float().requires_grad_() for x in tensors(7, tokens, kv_heads=kv_heads))
    e = projections(projected, tokens)[0].detach().float().requires_grad_()
    assert runs_in_kernels(Linformer(e), q, k, v)
    exact = tuple(x.detach().double().requires_grad_() for x in (q, k, v, e))
    expected = plain_softmax(exact[0], *(each_head(exact[3] @ x, exact[0]) for x in exact[1:3]))
    actual, again = (attend(q, k, v, method=Linformer(e)) for _ in range(2))
    mine, other = (torch.autograd.grad(x.sin().sum(), (q, k, v, e)) for x in (actual, again))
    truth = torch.autograd.grad(expected.sin().sum(), exact)
    for got, repeated, want in zip((actual, *mine), (again, *other), (expected, *truth), strict=True):
        assert torch.equal(got, repeated)
        assert_close(got.double(), want, 1e-6)


@pytest.mark.parametrize(
    ("sizes", "heads", "landmarks", "iterations"), [((24, 36), 2, 4, 3), ((14, 21), 3, 7, 1), ((140, 210), 1, 70, 1)]
)
def test_nystrom_in_kernels(sizes: tuple[int, int], heads: int, landmarks: int, iterations: int) -> None:
    """All of it as one function with a backward pass of its own, where segments are of one size."""
    method, exact = Nystrom(landmarks, iterations), tensors(*sizes, batch=1, heads=heads, kv_heads=heads)
    assert runs_in_kernels(method, *(x.detach().float() for x in exact))
    formula = lambda q, k, v, _: plain_nystrom(q, k, v, landmarks, iterations)  # noqa: E731
    errs_like_the_formula(formula, method, exact, torch.float32, None)
    with torch.no_grad():
        single = tuple(x.float() for x in exact)
        assert_close(attend(*single, method=method).double(), formula(*exact, None), 2e-6)


def start_anywhere(name: str, device: str, dtype: torch.dtype) -> None:
    """Launches are made for the first call's layout; later tensors are not aligned, or have other strides."""
    q, k, v = (x.detach().to(device, dtype) for x in tensors(20, 30, heads=2, kv_heads=2))
    projection = projections(5, 30)[0].detach().to(device, dtype)
    method = {"linformer": Linformer(projection), "nystrom": Nystrom(5, 2), "performer": Performer(24)}[name]
    assert runs_in_kernels(method, q, k, v)

    def shift(x: Tensor) -> Tensor:
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x)

    def between(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    def attend_from(*places: Callable[[Tensor], Tensor]) -> list[Tensor]:
        given = [place(x).requires_grad_() for place, x in zip(places, (q, k, v), strict=True)]
        out = attend(*given, method=method)
        with torch.no_grad():
            inference = attend(*given, method=method)
        return [inference, out, *torch.autograd.grad(out, given, places[0](upstream))]

    upstream = torch.randn_like(q @ k.mT @ v)
    first = attend_from(torch.clone, torch.clone, torch.clone)
    limit = 1e-4 if dtype == torch.float32 else 0.05  # sums come in another order, and are rounded
    for places in ((shift,) * 3, (between,) * 3, (torch.clone, shift, between)):
        for got, want in zip(attend_from(*places), first, strict=True):
            assert (got - want).double().norm() <= limit * want.double().norm()
    assert all(torch.equal(x, y) for x, y in zip(attend_from(*(torch.clone,) * 3), first, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_kernels_start_wherever_tensors_lie(name: str) -> None:
    start_anywhere(name, "cpu", torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_start_wherever_tensors_lie_on_the_gpu(name: str, dtype: torch.dtype) -> None:
    start_anywhere(name, "cuda", dtype)


def runs_in_kernels(method: Linformer | Nystrom | Performer, q: Tensor, k: Tensor, v: Tensor) -> bool:
    module = {Linformer: linformer, Nystrom: nystrom, Performer: performer}[type(method)]
    return module.find_kernel(method, resolve(q, k, v, Parts(method=method))) is not None
