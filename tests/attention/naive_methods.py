"""Naive formulas of the approximate methods, random tensors for them, and comparisons of results."""

import math

import torch
from torch import Tensor

from regard.attention.backends.approximate.performer import draw_directions


def tensors(
    queries: int, keys: int, *, batch: int = 2, heads: int = 4, kv_heads: int = 4, dim: int = 8, value_dim: int = 6
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v in float64 that require gradients."""
    shapes = (batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, value_dim)
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return q, k, v


def projections(projected: int, keys: int, *front: int) -> tuple[Tensor, Tensor]:
    e, f = (torch.randn(*front, projected, keys, dtype=torch.float64) / math.sqrt(keys) for _ in range(2))
    return e.requires_grad_(), f.requires_grad_()


def assert_close(actual: Tensor, want: Tensor, within: float = 1e-9) -> None:
    assert actual.shape == want.shape
    assert actual.isfinite().all()
    off = (actual - want).norm() / want.norm().clamp(min=1.0)  # some gradients are zero
    assert off <= within, f"relative error {float(off):.2e}"


def assert_same(actual: Tensor, want: Tensor, wrt: tuple[Tensor, ...], within: float = 1e-9) -> None:
    """Outputs and every gradient agree."""
    assert_close(actual, want, within)
    weight = torch.randn_like(actual)
    mine, theirs = (torch.autograd.grad((y * weight).sum(), wrt, retain_graph=True) for y in (actual, want))
    for a, b in zip(mine, theirs, strict=True):
        assert_close(a, b, within)


def each_head(x: Tensor, q: Tensor) -> Tensor:
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def plain_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def plain_nystrom(q: Tensor, k: Tensor, v: Tensor, landmarks: int, iterations: int = 6) -> Tensor:
    """The paper's formula; segments by their first and last token."""
    q, k, v = q / q.shape[-1] ** 0.5, each_head(k, q), each_head(v, q)
    q_marks, k_marks = (
        torch.stack(
            [
                x[:, :, r * x.shape[2] // landmarks : (r + 1) * x.shape[2] // landmarks].mean(2)
                for r in range(landmarks)
            ],
            dim=2,
        )
        for x in (q, k)
    )
    a = (q_marks @ k_marks.mT).softmax(-1)
    eye = torch.eye(landmarks, dtype=a.dtype, device=a.device)
    z = a.mT / a.sum(-2).amax(-1)[..., None, None]
    for _ in range(iterations):
        z = z @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z))) / 4
    return (q @ k_marks.mT).softmax(-1) @ z @ (q_marks @ k.mT).softmax(-1) @ v


def plain_performer(
    q: Tensor, k: Tensor, v: Tensor, features: int, seed: int = 0, allowed: Tensor | None = None
) -> Tensor:
    """φ(q)·φ(k) of every pair, nothing taken out of the exponents."""
    k, v = each_head(k, q), each_head(v, q)
    directions = draw_directions(features, q.shape[-1], seed).mT.to(q)
    q, k = (
        (x @ directions - x.square().sum(-1, keepdim=True) / 2).exp()
        for x in (q / q.shape[-1] ** 0.25, k / k.shape[-1] ** 0.25)
    )
    pairs = q @ k.mT
    pairs = pairs if allowed is None else pairs * allowed
    total = pairs.sum(-1, keepdim=True)
    return pairs @ v / torch.where(total > 0, total, 1.0)
