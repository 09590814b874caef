"""The mathematics of the approximate methods: Linformer's projection, Nyström's landmarks, Performer's sums.

Everything is a formula in torch, linear in the tokens, differentiable, and the same on every device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 128  # tokens compared pair by pair; the sums between chunks then take no more than the features themselves


class Projected(torch.autograd.Function):
    """projection `[projected, n]` over x `[batch, kv_heads, n, d]`, differentiable once in both.

    A product for each head reads x as it lies; left to itself torch would turn it first, or in backward write the
    projection's gradient once a head to add these up.
    """

    @staticmethod
    def forward(ctx: Any, projection: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(projection, x)
        return projection.expand(*x.shape[:2], -1, -1) @ x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        (grad,) = grad_outputs
        projection, x = ctx.saved_tensors
        of_projection, of_x = ctx.needs_input_grad
        d_projection = torch.einsum("bhpd,bhnd->pn", grad, x) if of_projection else None
        return d_projection, projection.mT.expand(*x.shape[:2], -1, -1) @ grad if of_x else None


def segments(x: Tensor, count: Tensor | None, landmarks: int) -> Tensor:
    """Whether token t of x is in segment r of its row, boolean `[batch or 1, 1, landmarks, tokens]`."""
    tokens = x.shape[2]
    count = torch.full((1,), tokens, device=x.device) if count is None else count
    edges = count[:, None, None] * torch.arange(landmarks + 1, device=x.device)[:, None] // landmarks
    t = torch.arange(tokens, device=x.device)
    return ((t >= edges[:, :-1]) & (t < edges[:, 1:]))[:, None]


def landmarks_of(x: Tensor, count: Tensor | None, landmarks: int) -> Tensor:
    """The means of x over the segments of each row's tokens, those within `count [batch]`, float32 at least.

    Segments of one size are read once instead of multiplied.
    """
    if count is not None or torch.compiler.is_compiling() or x.shape[2] % landmarks:  # a compiled graph serves all
        return means(segments(x, count, landmarks), blank(x, count))
    return x.unflatten(2, (landmarks, -1)).mean(3, dtype=torch.promote_types(x.dtype, torch.float32))


def means(parts: Tensor, x: Tensor) -> Tensor:
    """The mean of x over each of its segments, zero for empty ones, `[batch, heads, landmarks, d]`."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return (parts.to(x.dtype) / parts.sum(-1, keepdim=True).clamp(min=1)) @ x


def few(count: Tensor, landmarks: int) -> Tensor:
    """Whether each row has a landmark for every token, `[batch, 1, 1, 1]`."""
    return (count <= landmarks)[:, None, None, None]


def pseudo_inverse(a: Tensor, iterations: int) -> Tensor:
    """≈ a⁺, by Z ← ¼ Z (13 − aZ (15 − aZ (7 − aZ))) from Z = aᵀ / (‖a‖₁ ‖a‖∞); a's rows sum to one, so ‖a‖∞ = 1."""
    front, a = a.shape[:2], a.flatten(0, 1)
    z = a.mT / a.sum(-2).amax(-1).clamp(min=1.0)[..., None, None]  # below 1 only for a row of the batch without keys
    if not torch.compiler.is_compiling():
        return Refined.apply(a, z, iterations).unflatten(0, front)
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        az = a @ z
        z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
    return z.unflatten(0, front)


class Refined(torch.autograd.Function):
    """Z after the steps Z ← ¼ Z (13 + 15 n + 7 n² + n³), n = −aZ, of `pseudo_inverse`; differentiable once in a and Z.

    On a GPU the matrices are small and each operation's start is what it costs, so sums are part of the products here,
    forward and backward.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, z: Tensor, iterations: int) -> Tensor:
        less, kept = -a, []
        for _ in range(iterations):
            n = torch.bmm(less, z)
            square = torch.bmm(n, n)
            w = torch.add(n, square, alpha=7 / 15).baddbmm_(n, square, alpha=1 / 15)  # (15 n + 7 n² + n³) / 15
            kept += [z, n, square, w]
            z = torch.baddbmm(z, z, w, beta=13 / 4, alpha=15 / 4)
        ctx.save_for_backward(less, *kept)
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        (dz,) = grad_outputs
        less, *kept = ctx.saved_tensors
        d_less = torch.zeros_like(less)
        while kept:
            *kept, z, n, square, w = kept
            dw = torch.baddbmm(less, z.mT, dz, beta=0, alpha=15 / 4)
            dz = torch.baddbmm(dz, dz, w.mT, beta=13 / 4, alpha=15 / 4)
            d_square = torch.baddbmm(dw, n.mT, dw, beta=7 / 15, alpha=1 / 15)
            dn = torch.baddbmm(dw, dw, square.mT, alpha=1 / 15).baddbmm_(d_square, n.mT).baddbmm_(n.mT, d_square)
            d_less.baddbmm_(dn, z.mT)
            dz.baddbmm_(less.mT, dn)
        return -d_less, dz, None


def sum_all(asked: Tensor, held: Tensor, v: Tensor) -> Tensor:
    """Σ_j φ(q_i)·φ(k_j) v_j up to a factor a query, from the logarithms of φ, `[batch, heads, queries, value dim]`."""
    level = held.detach().amax(-2, keepdim=True)
    return shares(asked + level)[0] @ ((held - finite(level)).exp().mT @ v)


def sum_in_order(asked: Tensor, held: Tensor, v: Tensor) -> Tensor:
    """`sum_all` over j ≤ i alone, the last query beside the last key.

    Tokens are cut into chunks: within a chunk pairs are compared, and what came before it is one matrix of features ×
    value dim.
    """
    queries, tokens = asked.shape[2], max(asked.shape[2], held.shape[2])
    asked, held, v = chunked(asked, queries), chunked(held, tokens, -torch.inf), chunked(v, tokens)
    last = slice(-asked.shape[2], None)
    before, level = sums_before(held, v)
    share, far = shares(asked + level[:, :, last])
    inside, near = sum_inside(asked, held[:, :, last], v[:, :, last])
    top = finite(torch.maximum(far, near))
    found = (share @ before[:, :, last]) * (far - top).exp() + inside * (near - top).exp()
    return found.flatten(2, 3)[:, :, -queries:]


def sums_before(held: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(sums, level): e^level · sums is Σ φ(k_j) v_j over the chunks before each, with nothing of later ones in either.

    sums `[batch, heads, chunks, features, value dim]`, level `[batch, heads, chunks, 1, features]`.
    """
    level = held.detach().amax(-2, keepdim=True).cummax(2).values
    sums = (held - finite(level)).exp().mT @ v
    # In float64 even chunks whose levels are e^700 apart stand in one sum.
    fade = (finite(level) - finite(level[:, :, -1:])).mT.double().clamp(-700.0, 0.0).exp()
    sums = ((sums.double() * fade).cumsum(2) / fade).to(sums.dtype)
    later = (0, 0, 0, 0, 1, 0)
    return pad(sums[:, :, :-1], later), pad(level[:, :, :-1], later, value=-torch.inf)


def sum_inside(asked: Tensor, held: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(sums, top): e^top · sums is Σ φ(q_i)·φ(k_j) v_j over j ≤ i of the same chunk, at a level of each query's own.

    sums `[batch, heads, chunks, CHUNK, value dim]`, top `[batch, heads, chunks, CHUNK, 1]`.
    """
    each = held.detach().amax(-1, keepdim=True)
    so_far = each.cummax(-2).values
    share, top = shares(asked)
    pairs = share @ (held - finite(each)).exp().mT
    fade = (each.mT - finite(so_far)).clamp(max=0.0).exp().tril()
    return (pairs * fade) @ v, top + so_far


def shares(logs: Tensor) -> tuple[Tensor, Tensor]:
    """(e^(logs − top), top): features of which each query's largest is 1."""
    top = logs.detach().amax(-1, keepdim=True)  # it divides out, and so would its gradient
    return (logs - finite(top)).exp(), top


def finite(level: Tensor) -> Tensor:
    """The level, and 0 where there is no key and it is −∞."""
    return level.masked_fill(level == -torch.inf, 0.0)


def chunked(x: Tensor, tokens: int, value: float = 0.0) -> Tensor:
    """x `[batch, heads, n, d]` as the last of `tokens` in `[batch, heads, chunks, CHUNK, d]`; `value` before it."""
    missing = -(-tokens // CHUNK) * CHUNK - x.shape[2]
    return pad(x, (0, 0, missing, 0), value=value).unflatten(2, (-1, CHUNK))


def real(count: Tensor, tokens: int) -> Tensor:
    """Whether each token is real, `[batch, 1, 1, tokens]`."""
    return torch.arange(tokens, device=count.device) < count[:, None, None, None]


def blank(x: Tensor, count: Tensor | None) -> Tensor:
    """x `[batch, heads, tokens, d]` with zeros beyond the count."""
    return x if count is None else x.masked_fill(~real(count, x.shape[2]).mT, 0.0)
