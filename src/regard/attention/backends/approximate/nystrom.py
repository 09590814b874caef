"""Nyström attention: weights through landmarks, softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ) v."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...call import Call, device_guard, lower, without_autocast
from ..reference import per_query_head, softmax
from .exact_steps import attend_exactly, attend_softmax, lower_real, real_mask, zero_padding
from .requirements import check_dot_product, count_real, fits_kernels, plain_dot_product

if TYPE_CHECKING:
    from ...parts.methods import Nystrom


def run(method: Nystrom, call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    kernel = find_kernel(method, call)
    if kernel is not None:
        with device_guard(call.q), without_autocast(call.q.device):
            return kernel(call.q, call.k, call.v)
    keys, queries = count_real(method, call, "a landmark is a mean over its segment, early and late tokens alike")
    check_dot_product(method, call, "a landmark is a mean of many positions and has none of its own")
    if min(call.grid.queries, call.grid.keys) <= method.landmarks:
        return attend_exactly(
            call
        )  # every token is its own landmark, and the weights are no larger than the landmarks'
    with without_autocast(call.q.device):
        output = attend_through_landmarks(method, call, keys, queries)
        return zero_padding(output, queries).to(call.v.dtype)


def find_kernel(method: Nystrom, call: Call) -> Callable[..., Tensor] | None:
    """The kernels that run the call, cached in its plan; None where they do not."""

    def make() -> Callable[..., Tensor] | None:
        tokens = call.grid.queries, call.grid.keys
        equal_segments = not any(n % method.landmarks for n in tokens) and min(tokens) > method.landmarks
        same_heads = call.q.shape[1] == call.k.shape[1]
        if not equal_segments or not same_heads or not plain_dot_product(call) or not fits_kernels(call):
            return None
        from ...kernels.nystrom.passes import NystromKernels

        return NystromKernels(call.q, call.k, call.v, method.landmarks, method.iterations, lower(call).scale)

    return call.plan.get(("nystrom", method.landmarks, method.iterations), make)


def attend_through_landmarks(method: Nystrom, call: Call, keys: Tensor | None, queries: Tensor | None) -> Tensor:
    """The output for rows with the real `keys` and `queries`, `[batch]` each, or None where all are real."""
    q, k, v, scale = lower_real(call, keys)
    same_tokens = queries is None and q.shape[2] == k.shape[2]
    q_marks = segment_means(q, keys if same_tokens else queries, method.landmarks)
    k_marks = per_query_head(segment_means(k, keys, method.landmarks), call)
    k_segments = None if keys is None else segment_mask(k, keys, method.landmarks)
    used = None if k_segments is None else k_segments.any(-1).unsqueeze(-2)  # [batch, 1, 1, landmarks]
    scores = scale * (q_marks @ k_marks.mT)
    between = scores.softmax(-1) if used is None else softmax(scores.masked_fill(~used, -torch.inf))
    # Few queries over many keys, and many over few: both are exact attentions.
    seen = attend_softmax(q_marks.to(q.dtype), k, v, scale, None if keys is None else real_mask(keys, k.shape[2]), call)
    mixed = pseudo_inverse(between, method.iterations) @ seen.to(between.dtype)
    if keys is not None and k_segments is not None:  # few keys: k̃ are the keys, and the weights on them the exact ones
        mixed = torch.where(at_most(keys, method.landmarks), per_query_head(masked_means(k_segments, v), call), mixed)
    output = attend_softmax(q, k_marks.to(q.dtype), mixed.to(v.dtype), scale, used, call)
    if queries is not None:  # few queries: q̃ are the queries themselves, so `seen` are the exact outputs
        q_segments = segment_mask(q, queries, method.landmarks)
        output = torch.where(at_most(queries, method.landmarks), q_segments.mT.to(seen.dtype) @ seen, output)
    return output


def segment_mask(x: Tensor, count: Tensor | None, landmarks: int) -> Tensor:
    """Whether token t of x is in segment r of its row, boolean `[batch or 1, 1, landmarks, tokens]`."""
    tokens = x.shape[2]
    count = torch.full((1,), tokens, device=x.device) if count is None else count
    edges = count[:, None, None] * torch.arange(landmarks + 1, device=x.device)[:, None] // landmarks
    t = torch.arange(tokens, device=x.device)
    return ((t >= edges[:, :-1]) & (t < edges[:, 1:]))[:, None]


def segment_means(x: Tensor, count: Tensor | None, landmarks: int) -> Tensor:
    """The means of x over the segments of each row's tokens, those within `count [batch]`, float32 at least.

    Segments of one size are read once instead of multiplied.
    """
    if count is not None or torch.compiler.is_compiling() or x.shape[2] % landmarks:  # a compiled graph serves all
        return masked_means(segment_mask(x, count, landmarks), zero_padding(x, count))
    return x.unflatten(2, (landmarks, -1)).mean(3, dtype=torch.promote_types(x.dtype, torch.float32))


def masked_means(segments: Tensor, x: Tensor) -> Tensor:
    """The mean of x over each of its segments, zero for empty ones, `[batch, heads, landmarks, d]`."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return (segments.to(x.dtype) / segments.sum(-1, keepdim=True).clamp(min=1)) @ x


def at_most(count: Tensor, landmarks: int) -> Tensor:
    """Whether each row has a landmark for every token, `[batch, 1, 1, 1]`."""
    return (count <= landmarks)[:, None, None, None]


def pseudo_inverse(a: Tensor, iterations: int) -> Tensor:
    """≈ a⁺, by Z ← ¼ Z (13 − aZ (15 − aZ (7 − aZ))) from Z = aᵀ / (‖a‖₁ ‖a‖∞); a's rows sum to one, so ‖a‖∞ = 1."""
    front, a = a.shape[:2], a.flatten(0, 1)
    z = a.mT / a.sum(-2).amax(-1).clamp(min=1.0)[..., None, None]  # below 1 only for a row of the batch without keys
    if not torch.compiler.is_compiling():
        return IterativeInverse.apply(a, z, iterations).unflatten(0, front)
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        az = a @ z
        z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
    return z.unflatten(0, front)


class IterativeInverse(torch.autograd.Function):
    """Z after the steps Z ← ¼ Z (13 + 15 n + 7 n² + n³), n = −aZ, of `pseudo_inverse`; differentiable once in a and Z.

    On a GPU the matrices are small and each launch is what it costs, so additions are part of the products here,
    forward and backward.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, z: Tensor, iterations: int) -> Tensor:
        minus_a, saved = -a, []
        for _ in range(iterations):
            n = torch.bmm(minus_a, z)
            square = torch.bmm(n, n)
            w = torch.add(n, square, alpha=7 / 15).baddbmm_(n, square, alpha=1 / 15)  # (15 n + 7 n² + n³) / 15
            saved += [z, n, square, w]
            z = torch.baddbmm(z, z, w, beta=13 / 4, alpha=15 / 4)
        ctx.save_for_backward(minus_a, *saved)
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        (dz,) = grad_outputs
        minus_a, *saved = ctx.saved_tensors
        d_minus_a = torch.zeros_like(minus_a)
        while saved:
            *saved, z, n, square, w = saved
            dw = torch.baddbmm(minus_a, z.mT, dz, beta=0, alpha=15 / 4)
            dz = torch.baddbmm(dz, dz, w.mT, beta=13 / 4, alpha=15 / 4)
            d_square = torch.baddbmm(dw, n.mT, dw, beta=7 / 15, alpha=1 / 15)
            dn = torch.baddbmm(dw, dw, square.mT, alpha=1 / 15).baddbmm_(d_square, n.mT).baddbmm_(n.mT, d_square)
            d_minus_a.baddbmm_(dn, z.mT)
            dz.baddbmm_(minus_a.mT, dn)
        return -d_minus_a, dz, None
