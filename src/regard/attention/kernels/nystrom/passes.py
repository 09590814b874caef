"""Nyström's attention as one function with a backward pass of its own, for rows whose segments are all of one size.

    q̃, k̃ = means of segments,   a = softmax(scale · q̃ k̃ᵀ),   Z ≈ a⁺ (`inverse.py`)
    seen = softmax(scale · q̃ kᵀ) v,   output = softmax(scale · q k̃ᵀ) (Z seen)

The two attentions are the dot family's; what is left are many small steps, of which autograd and the start of each
operation would cost more than the work. The inverse starts from Z = aᵀ / c with c = max_j Σ_i a_ij, so backward has

    da_ij += dZ_ji / c − [j is the largest] Σ dZ ∘ Z / c,      d scores = a ∘ (da − Σ_j da ∘ a)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...backends import triton as backend
from ...call import LoweredCall
from ..launch import Launch, align, compile_together
from ..linformer.passes import EVERYTHING, WANTED
from .inverse import Sums

ROWS = 64  # tokens that are summed at once
CELLS = 8192  # of a matrix that are held at once


@triton.jit(do_not_specialize=["heads", "size"])
def mean_kernel(
    p_x, p_mean, p_rounded, stride_b, stride_h, stride_n, heads, size,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The mean of one segment's `size` tokens, in float32 and rounded."""
    i_r, i_x = tl.program_id(0), tl.program_id(1)
    o_d = tl.arange(0, BD)
    p_x += (i_x // heads).to(tl.int64) * stride_b + (i_x % heads).to(tl.int64) * stride_h
    p_x += i_r.to(tl.int64) * size * stride_n
    total = tl.zeros([BD], tl.float32)
    for n in range(0, size, BN):
        o_n = n + tl.arange(0, BN)
        m = (o_n < size)[:, None] & (o_d < D)[None, :]
        total += tl.sum(tl.load(p_x + o_n[:, None] * stride_n + o_d[None, :], mask=m, other=0.0).to(tl.float32), 0)
    to = (i_x * tl.num_programs(0) + i_r).to(tl.int64) * D + o_d
    mean = total / size
    tl.store(p_mean + to, mean, mask=o_d < D)
    tl.store(p_rounded + to, mean.to(p_rounded.dtype.element_ty), mask=o_d < D)


@triton.jit(do_not_specialize=["size"])
def spread_kernel(p_dx, p_one, p_other, size, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr):
    """Adds the gradient of a mean, which came from two sides, to that of its tokens."""
    i_r, i_x = tl.program_id(0), tl.program_id(1)
    o_d = tl.arange(0, BD)
    row = (i_x * tl.num_programs(0) + i_r).to(tl.int64)
    p_from = row * D + o_d
    one = tl.load(p_one + p_from, mask=o_d < D, other=0.0)
    share = (one + tl.load(p_other + p_from, mask=o_d < D, other=0.0).to(tl.float32)) / size
    p_dx += row * size * D
    for n in range(0, size, BN):
        o_n = n + tl.arange(0, BN)
        m = (o_n < size)[:, None] & (o_d < D)[None, :]
        p = p_dx + o_n[:, None] * D + o_d[None, :]
        dx = tl.load(p, mask=m, other=0.0).to(tl.float32) + share[None, :]
        tl.store(p, dx.to(p_dx.dtype.element_ty), mask=m)


@triton.jit
def begin_kernel(p_scores, p_a, p_z, p_total, size, plane, BR: tl.constexpr, BC: tl.constexpr):
    """a = softmax of one matrix of scores, Z = aᵀ / c, both with their transposes, and the sums of a's columns."""
    start = tl.program_id(0).to(tl.int64) * size * size
    o_c = tl.arange(0, BC)
    total = tl.zeros([BC], tl.float32)
    for r in range(0, size, BR):
        o_r = r + tl.arange(0, BR)
        m = (o_r < size)[:, None] & (o_c < size)[None, :]
        o = start + o_r[:, None] * size + o_c[None, :]
        s = tl.load(p_scores + o, mask=m, other=-float("inf"))
        s = tl.where((o_r < size)[:, None], s, 0.0)
        e = tl.exp(s - tl.max(s, 1)[:, None])
        a = tl.where(m, e / tl.sum(e, 1)[:, None], 0.0)
        tl.store(p_a + o, a, mask=m)
        tl.store(p_a + plane + start + o_c[None, :] * size + o_r[:, None], a, mask=m)
        total += tl.sum(a, 0)
    tl.store(p_total + tl.program_id(0) * size + o_c, total, mask=o_c < size)
    c = tl.maximum(tl.max(total, 0), 1.0)
    tl.debug_barrier()  # what one thread wrote another reads
    for r in range(0, size, BR):
        o_r = r + tl.arange(0, BR)
        m = (o_r < size)[:, None] & (o_c < size)[None, :]
        o = start + o_r[:, None] * size + o_c[None, :]
        a = tl.load(p_a + o, mask=m, other=0.0) / c
        tl.store(p_z + plane + o, a, mask=m)
        tl.store(p_z + start + o_c[None, :] * size + o_r[:, None], a, mask=m)


@triton.jit(do_not_specialize=["scale"])
def end_kernel(p_a, p_da, p_dz, p_z, p_total, p_ds, size, plane, scale, BR: tl.constexpr, BC: tl.constexpr):
    """scale · d scores of one matrix, from da and the gradient of the Z that it began with."""
    start = tl.program_id(0).to(tl.int64) * size * size
    o_c = tl.arange(0, BC)
    pull = tl.zeros([BC], tl.float32)
    for r in range(0, size, BR):
        o_r = r + tl.arange(0, BR)
        m = (o_r < size)[:, None] & (o_c < size)[None, :]
        o = start + o_r[:, None] * size + o_c[None, :]
        pull += tl.sum(tl.load(p_dz + o, mask=m, other=0.0) * tl.load(p_z + o, mask=m, other=0.0), 0)
    total = tl.load(p_total + tl.program_id(0) * size + o_c, mask=o_c < size, other=0.0)
    c = tl.maximum(tl.max(total, 0), 1.0)
    largest = tl.where((total == c) & (o_c < size), 1.0, 0.0)  # all that are, as torch shares it out
    largest = largest / tl.maximum(tl.sum(largest, 0), 1.0) * (tl.sum(pull, 0) / c)
    for r in range(0, size, BR):
        o_r = r + tl.arange(0, BR)
        m = (o_r < size)[:, None] & (o_c < size)[None, :]
        o = start + o_r[:, None] * size + o_c[None, :]
        a = tl.load(p_a + o, mask=m, other=0.0)
        dz = tl.load(p_dz + plane + o, mask=m, other=0.0)
        g = tl.load(p_da + o, mask=m, other=0.0) + dz / c - largest[None, :]
        tl.store(p_ds + o, scale * a * (g - tl.sum(g * a, 1)[:, None]), mask=m)


class Way:
    """How calls of one kind are run, `[batch, heads, tokens, d]` with as many heads of keys as of queries."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, landmarks: int, iterations: int, scale: float):
        self.batch, self.heads, self.queries, self.dim = q.shape
        self.keys, self.value_dim = v.shape[2:]
        self.landmarks, self.iterations, self.scale = landmarks, iterations, scale
        self.copies = self.batch * self.heads
        self.marks = (self.batch, self.heads, landmarks, self.dim)
        self.sums = Sums(self.copies, landmarks, "tf32" if q.itemsize == 2 else "tf32x3")
        columns = triton.next_power_of_2(landmarks)
        tile = {
            "size": landmarks,
            "plane": self.sums.plane,
            "BR": max(CELLS // columns, 1),
            "BC": columns,
            "num_warps": 8,
        }
        self.begin = Launch(begin_kernel, self.copies, **tile)
        self.end = Launch(end_kernel, self.copies, scale=scale, **tile)
        self.means: dict[tuple[int, ...], Launch] = {}
        self.spreads = [self.over_tokens(spread_kernel, tokens) for tokens in (self.queries, self.keys)]
        self.memos: tuple[dict, dict] = {}, {}  # of the two attentions

    def over_tokens(self, kernel: Any, tokens: int, *strides: int) -> Launch:
        sizes = {"D": self.dim, "BD": max(triton.next_power_of_2(self.dim), 16), "BN": ROWS}
        names = dict(zip(("stride_b", "stride_h", "stride_n"), strides, strict=False))
        more = {"heads": self.heads, "size": tokens // self.landmarks, "num_warps": 4}
        return Launch(kernel, self.landmarks, self.copies, **names, **more, **sizes)

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The means of x's segments in float32, and in its own type."""
        key = (x.shape[2], *x.stride())
        launch = self.means.get(key)
        if launch is None:
            launch = self.means[key] = self.over_tokens(mean_kernel, x.shape[2], *x.stride()[:3])
        exact = x.new_empty(self.marks, dtype=torch.float32)
        rounded = exact if x.dtype == torch.float32 else x.new_empty(self.marks)
        launch(x, exact, rounded)
        return exact, rounded

    def few_queries(self, q_marks: Tensor, k: Tensor, v: Tensor) -> LoweredCall:
        return LoweredCall(q_marks, k, v, EVERYTHING, self.scale, needs_grad=WANTED, memo=self.memos[0])

    def few_keys(self, q: Tensor, k_marks: Tensor, mixed: Tensor) -> LoweredCall:
        return LoweredCall(q, k_marks, mixed, EVERYTHING, self.scale, needs_grad=WANTED, memo=self.memos[1])

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        graded = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        q, k, v = align(q), align(k), align(v)
        compile_together((Way, q.device, q.dtype, self.dim, self.value_dim, graded), lambda: self.rehearse(q, k, v))
        return Mix.apply(self, q, k, v) if graded else self.forward(q, k, v, False)[0]

    def rehearse(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Everything of this file once, for its kernels to be compiled; the attentions see to theirs."""
        exact, rounded = self.mean(q)
        self.mean(k)
        a, z = self.sums.room(exact, 2)
        total = a.new_empty(self.copies, self.landmarks)
        self.begin(a, a, z, total)
        self.sums.rehearse(a)
        self.end(a, a, z, z, total, a)
        for spread, x in zip(self.spreads, (q, k), strict=True):
            spread(torch.empty_like(x, memory_format=torch.contiguous_format), exact, rounded)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, graded: bool) -> tuple[Tensor, ...]:
        """The output, and what backward needs where it is wanted."""
        (q_exact, q_marks), (k_exact, k_marks) = self.mean(q), self.mean(k)
        one, other = q_exact.flatten(0, 1), k_exact.flatten(0, 1)
        scores = one.new_empty(self.copies, self.landmarks, self.landmarks)
        scores = torch.baddbmm(scores, one, other.mT, beta=0, alpha=self.scale)
        (a,), steps = self.sums.room(one, 1), self.sums.steps(one, self.iterations + 1 if graded else 2)
        total = one.new_empty(self.copies, self.landmarks)
        self.begin(scores, a, steps[0][0], total)
        inverse = self.sums.matrix(self.sums.forward(a, steps, self.iterations))
        seen, seen_lse = backend.forward(self.few_queries(q_marks, k, v))
        mixed = torch.bmm(inverse, seen.flatten(0, 1).float()).to(v.dtype).view_as(seen)
        if not graded and self.dim == self.value_dim:
            return (scaled_dot_product_attention(q, k_marks, mixed, scale=self.scale),)
        output, lse = backend.forward(self.few_keys(q, k_marks, mixed))
        kept = [x for step in steps[: self.iterations] for x in step]
        return output, lse, q_exact, k_exact, q_marks, k_marks, a, total, inverse, seen, seen_lse, mixed, *kept

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """dq, dk and dv."""
        output, lse, q_exact, k_exact, q_marks, k_marks, a, total, inverse, seen, seen_lse, mixed, *kept = found
        dq, dk_marks, d_mixed, *_ = backend.backward(self.few_keys(q, k_marks, mixed), grad, output, lse)
        d_mixed = d_mixed.flatten(0, 1).float()
        (d_inverse,), exact = self.sums.room(a, 1), seen.flatten(0, 1).float()
        torch.bmm(d_mixed, exact.mT, out=self.sums.matrix(d_inverse))
        torch.bmm(exact, d_mixed.mT, out=self.sums.matrix(d_inverse, turned=True))
        d_seen = torch.bmm(inverse.mT, d_mixed).to(v.dtype).view_as(seen)
        steps = [kept[i : i + 4] for i in range(0, len(kept), 4)]
        da, dz = self.sums.backward(a, steps, d_inverse)
        ds = a.new_empty(self.copies, self.landmarks, self.landmarks)
        self.end(a, da, dz, steps[0][0], total, ds)
        dq_marks, dk, dv, *_ = backend.backward(self.few_queries(q_marks, k, v), d_seen, seen, seen_lse)
        one, other = q_exact.flatten(0, 1), k_exact.flatten(0, 1)
        dq, dk = dq.contiguous(), dk.contiguous()
        self.spreads[0](dq, torch.bmm(ds, other), dq_marks.contiguous())
        self.spreads[1](dk, torch.bmm(ds.mT, one), dk_marks.contiguous())
        return dq, dk, dv


class Mix(torch.autograd.Function):
    """A way's output, differentiable once in q, k and v."""

    @staticmethod
    def forward(ctx: Any, way: Way, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = way.forward(q, k, v, True)
        ctx.way = way
        ctx.save_for_backward(q, k, v, *found)
        return found[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *found = ctx.saved_tensors
        return None, *ctx.way.backward(align(grad.contiguous()), q, k, v, found)
