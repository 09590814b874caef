"""Approximate methods on a GPU beside their published formulas, compiled by torch.

A formula runs in the dtype of q, k and v, with the inverse of Nyström's small matrices in float32 (bfloat16 is not
accurate enough), and a second time with everything in float32.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

import regard as rg
from regard.attention.backends.approximate.performer import draw_directions
from regard.bench.gpu_workloads import TensorFactory, Workload, compile_forward, matmul_need, random_qkv

Formula = Callable[..., Tensor]


def method_workload(
    tensors: TensorFactory, x: tuple[Tensor, ...], method: Callable[[], rg.Method], formula: Formula, size: int
) -> Workload:
    """A method over q, k, v and its parameters; two matrix products forward with `size` keys."""
    exact = torch.promote_types(tensors.dtype, torch.float32)

    def in_float32(*inputs: Tensor) -> Tensor:
        return formula(*(y.to(exact) for y in inputs)).to(tensors.dtype)

    implementations = {
        "regard": lambda: lambda: rg.attend(*x[:3], method=method()),
        "compiled": lambda: compile_forward(formula, *x),
        "compiled, in float32": lambda: compile_forward(in_float32, *x),
        "eager": lambda: lambda: in_float32(*x),
    }
    batch, heads, tokens, dim = x[0].shape
    return Workload(x, implementations, matmul_need(batch * heads * tokens * size, dim, forward=4, backward=8))


def linformer(tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int, projected: int) -> Workload:
    """softmax(q (E k)ᵀ) (E v)."""
    projection = tensors.parameter(projected, tokens, seed=3, size=tokens**-0.5)
    x = (*random_qkv(tensors, batch, heads, tokens, dim), projection)

    def formula(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> Tensor:
        return (q @ (e @ k).mT / math.sqrt(dim)).softmax(-1) @ (e @ v)

    return method_workload(tensors, x, lambda: rg.Linformer(projection), formula, projected)


def nystrom(tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int, landmarks: int) -> Workload:
    """softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ) v with the means of as many segments as landmarks."""
    x = random_qkv(tensors, batch, heads, tokens, dim)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q / math.sqrt(dim)
        q_marks, k_marks = (y.unflatten(2, (landmarks, -1)).mean(3) for y in (q, k))
        from_queries, between, from_landmarks = (
            (a @ b.mT).softmax(-1) for a, b in ((q, k_marks), (q_marks, k_marks), (q_marks, k))
        )
        exact = torch.promote_types(q.dtype, torch.float32)
        return from_queries @ (inverse(between.to(exact)).to(q.dtype) @ (from_landmarks @ v))

    def inverse(a: Tensor) -> Tensor:
        eye = torch.eye(landmarks, device=a.device, dtype=a.dtype)
        z = a.mT / a.sum(-2).amax(-1)[..., None, None]
        for _ in range(6):
            az = a @ z
            z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
        return z

    return method_workload(tensors, x, lambda: rg.Nystrom(landmarks), formula, landmarks)


def performer(tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int, features: int) -> Workload:
    """φ(q) (φ(k)ᵀ v) / φ(q) (φ(k)ᵀ 1), φ(x) = exp(ω x − ‖x‖²/2)."""
    x = random_qkv(tensors, batch, heads, tokens, dim)
    directions = draw_directions(features, dim, 0).to(tensors.device)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        omega, root = directions.to(q.dtype), dim**-0.25
        query_features, key_features = (
            (q * root) @ omega.mT,
            (k * root) @ omega.mT - (k * root).square().sum(-1, keepdim=True) / 2,
        )
        query_features = (query_features - query_features.amax(-1, keepdim=True).detach()).exp()
        key_features = (key_features - key_features.amax((-2, -1), keepdim=True).detach()).exp()
        return query_features @ (key_features.mT @ v) / (query_features @ key_features.sum(-2)[..., None])

    return method_workload(tensors, x, lambda: rg.Performer(features), formula, features)
