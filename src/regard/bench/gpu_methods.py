"""The approximate methods on a GPU, beside their published formulas compiled by torch.

A formula runs in the type of q, k and v, with the inverse of Nyström's small matrices in float32 (in bfloat16 it would
be wrong); and once more with everything in float32.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

import regard as rg
from regard.attention.parts.methods import draw_directions
from regard.bench.gpu_works import At, Work, compiled, products, qkv

Formula = Callable[..., Tensor]


def method_work(at: At, x: tuple[Tensor, ...], method: Callable[[], rg.Method], formula: Formula, size: int) -> Work:
    """One method over q, k, v and what it learned; two products forward with as many keys as `size`."""
    exact = torch.promote_types(at.dtype, torch.float32)

    def with_care(*given: Tensor) -> Tensor:
        return formula(*(y.to(exact) for y in given)).to(at.dtype)

    ways = {
        "regard": lambda: lambda: rg.attend(*x[:3], method=method()),
        "compiled": lambda: compiled(formula, *x),
        "compiled, in float32": lambda: compiled(with_care, *x),
        "eager": lambda: lambda: with_care(*x),
    }
    batch, heads, tokens, dim = x[0].shape
    return Work(x, ways, products(batch * heads * tokens * size, dim, forward=4, backward=8))


def linformer(at: At, batch: int, heads: int, tokens: int, dim: int, projected: int) -> Work:
    """softmax(q (E k)ᵀ) (E v)."""
    projection = at.learned(projected, tokens, seed=3, size=tokens**-0.5)
    x = (*qkv(at, batch, heads, tokens, dim), projection)

    def formula(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> Tensor:
        return (q @ (e @ k).mT / math.sqrt(dim)).softmax(-1) @ (e @ v)

    return method_work(at, x, lambda: rg.Linformer(projection), formula, projected)


def nystrom(at: At, batch: int, heads: int, tokens: int, dim: int, landmarks: int) -> Work:
    """softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ) v with the means of as many segments as landmarks."""
    x = qkv(at, batch, heads, tokens, dim)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q / math.sqrt(dim)
        q_marks, k_marks = (y.unflatten(2, (landmarks, -1)).mean(3) for y in (q, k))
        near, between, seen = ((a @ b.mT).softmax(-1) for a, b in ((q, k_marks), (q_marks, k_marks), (q_marks, k)))
        exact = torch.promote_types(q.dtype, torch.float32)
        return near @ (inverse(between.to(exact)).to(q.dtype) @ (seen @ v))

    def inverse(a: Tensor) -> Tensor:
        eye = torch.eye(landmarks, device=a.device, dtype=a.dtype)
        z = a.mT / a.sum(-2).amax(-1)[..., None, None]
        for _ in range(6):
            az = a @ z
            z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
        return z

    return method_work(at, x, lambda: rg.Nystrom(landmarks), formula, landmarks)


def performer(at: At, batch: int, heads: int, tokens: int, dim: int, features: int) -> Work:
    """φ(q) (φ(k)ᵀ v) / φ(q) (φ(k)ᵀ 1), φ(x) = exp(ω x − ‖x‖²/2)."""
    x = qkv(at, batch, heads, tokens, dim)
    directions = draw_directions(features, dim, 0).to(at.device)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        omega, root = directions.to(q.dtype), dim**-0.25
        asked, held = (q * root) @ omega.mT, (k * root) @ omega.mT - (k * root).square().sum(-1, keepdim=True) / 2
        asked = (asked - asked.amax(-1, keepdim=True).detach()).exp()
        held = (held - held.amax((-2, -1), keepdim=True).detach()).exp()
        return asked @ (held.mT @ v) / (asked @ held.sum(-2)[..., None])

    return method_work(at, x, lambda: rg.Performer(features), formula, features)
