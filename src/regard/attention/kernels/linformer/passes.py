"""Linformer's projections in fused kernels: one of all heads' keys and values, which are read as they lie.

    keys[x] = E k[x],  values[x] = E v[x],      dE = Σ_x d keys[x] k[x]ᵀ + d values[x] v[x]ᵀ

for x the heads of all rows of the batch. The sum over tokens is long and has few results, so it is cut into pieces for
as many programs as the GPU runs at once; they are added up in order, and the same call gives the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...backends import triton as backend
from ...call import LoweredCall
from ...parts.masks import Everything
from ..launch import Launch, align, compile_together
from ..performer.passes import cut, rows

PRECISION = tl.constexpr("tf32x3")  # of float32's products; those of half types have no choice
FLAT = 1024  # numbers that a program of `add_kernel` adds up


class Shape(NamedTuple):
    """Projected keys × tokens of a tile, and how a program runs."""

    projected: int
    tokens: int
    warps: int
    stages: int

    def settings(self) -> dict[str, int]:
        return {"BM": self.projected, "BN": self.tokens, "num_warps": self.warps, "num_stages": self.stages}


# By bytes of a number and padded head_dim.
FORWARD = {
    2: {64: Shape(256, 64, 8, 4), 128: Shape(128, 64, 8, 3)},
    4: {64: Shape(64, 32, 4, 2), 128: Shape(64, 32, 8, 2)},
}
BACKWARD = {
    2: {64: Shape(256, 128, 8, 3), 128: Shape(128, 128, 8, 2)},
    4: {64: Shape(64, 64, 4, 1), 128: Shape(64, 32, 4, 1)},
}
WANTED = (True, True, True, False, False, False, False)  # gradients of the attention
EVERYTHING = Everything()


@triton.jit
def leave(p_x, row, m_r, x, D: tl.constexpr, BD: tl.constexpr):
    """Writes x `[rows, BD]` to lines `row` of p_x `[n, D]`."""
    o_d = tl.arange(0, BD)
    tl.store(p_x + row[:, None] * D + o_d[None, :], x, mask=m_r[:, None] & (o_d < D)[None, :])


@triton.jit(do_not_specialize=["heads", "projected", "copies"])
def project_kernel(
    p_e, p_k, p_v, p_parts, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    heads, tokens, projected, size, copies,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """BM projected keys and values of one head over one piece of the tokens; keys of all heads come first in a part."""
    i_p, i_x = tl.program_id(1), tl.program_id(2)
    i_b, i_h = (i_x // heads).to(tl.int64), (i_x % heads).to(tl.int64)
    p_k += i_b * stride_kb + i_h * stride_kh
    p_v += i_b * stride_vb + i_h * stride_vh
    o_m = tl.program_id(0) * BM + tl.arange(0, BM)
    m_m = o_m < projected
    p_rows = p_e + o_m.to(tl.int64)[:, None] * tokens
    of_k = tl.zeros([BM, BD], tl.float32)
    of_v = tl.zeros([BM, BDV], tl.float32)
    for n in range(i_p * size, tl.minimum((i_p + 1) * size, tokens), BN):
        o_n = n + tl.arange(0, BN)
        e = tl.load(p_rows + o_n[None, :], mask=m_m[:, None] & (o_n < tokens)[None, :], other=0.0)
        of_k = tl.dot(e, rows(p_k, o_n, o_n < tokens, stride_kn, D, BD), of_k, input_precision=PRECISION)
        of_v = tl.dot(e, rows(p_v, o_n, o_n < tokens, stride_vn, DV, BDV), of_v, input_precision=PRECISION)
    p_parts += i_p.to(tl.int64) * copies * projected * (D + DV)
    row = i_x.to(tl.int64) * projected + o_m
    leave(p_parts, row, m_m, of_k, D, BD)
    leave(p_parts + copies.to(tl.int64) * projected * D, row, m_m, of_v, DV, BDV)


@triton.jit(do_not_specialize=["count", "pieces"])
def add_kernel(p_parts, p_out, count, pieces, BN: tl.constexpr):
    """The parts `[pieces, count]` added up in order."""
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    total = tl.zeros([BN], tl.float32)
    for _ in range(0, pieces):
        total += tl.load(p_parts + o_n, mask=o_n < count, other=0.0)
        p_parts += count
    tl.store(p_out + o_n, total.to(p_out.dtype.element_ty), mask=o_n < count)


@triton.jit
def add_products(
    acc, p_grad, p_x, o_m, m_m, o_n, m_n, stride_b, stride_h, stride_n, batch, heads, projected,
    D: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """acc + Σ_x grad[x] x[x]ᵀ, `[projected, tokens]`."""
    for i_x in range(0, batch * heads):
        i_b, i_h = (i_x // heads).to(tl.int64), (i_x % heads).to(tl.int64)
        g = rows(p_grad, o_m, m_m, D, D, BD)
        x = rows(p_x + i_b * stride_b + i_h * stride_h, o_n, m_n, stride_n, D, BD)
        acc = tl.dot(g, tl.trans(x), acc, input_precision=PRECISION)
        p_grad += projected * D
    return acc


@triton.jit(do_not_specialize=["batch", "heads", "projected"])
def learn_kernel(
    p_dkeys, p_dvalues, p_k, p_v, p_de, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    batch, heads, tokens, projected,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dE of BM projected keys × BN tokens, all heads added up in order."""
    o_m = tl.program_id(1) * BM + tl.arange(0, BM)
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    m_m, m_n = o_m < projected, o_n < tokens
    acc = tl.zeros([BM, BN], tl.float32)
    acc = add_products(
        acc, p_dkeys, p_k, o_m, m_m, o_n, m_n, stride_kb, stride_kh, stride_kn, batch, heads, projected, D, BD
    )
    acc = add_products(
        acc, p_dvalues, p_v, o_m, m_m, o_n, m_n, stride_vb, stride_vh, stride_vn, batch, heads, projected, DV, BDV
    )
    p = p_de + o_m.to(tl.int64)[:, None] * tokens + o_n[None, :]
    tl.store(p, acc.to(p_de.dtype.element_ty), mask=m_m[:, None] & m_n[None, :])


class Way:
    """How calls of one kind are run: exact attention over keys and values that are projected first."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, projected: int, scale: float):
        self.projected, self.scale = projected, scale
        self.grouped = q.shape[1] != k.shape[1]
        self.runs: dict[Any, Run] = {}  # by strides
        self.memo: dict[Any, Any] = {}  # of the attention

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> Tensor:
        k, v, e = align(k), align(v), align(e.contiguous())
        steps = k.stride(), v.stride()
        run = self.runs.get(steps)
        if run is None:
            run = self.runs[steps] = Run(k.shape, k.stride(), v.shape[3], v.stride(), self.projected, k.dtype, k.device)
            compile_together((Way, k.device, k.dtype, k.shape[3], v.shape[3]), lambda: run.all(e, k, v))
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or e.requires_grad):
            return Mix.apply(self, run, q, k, v, e)
        keys, values = run.project(e, k, v)
        if q.shape[3] == v.shape[3]:
            return scaled_dot_product_attention(q, keys, values, scale=self.scale, enable_gqa=self.grouped)
        return backend.forward(self.few_keys(q, keys, values))[0]

    def few_keys(self, q: Tensor, keys: Tensor, values: Tensor) -> LoweredCall:
        return LoweredCall(q, keys, values, EVERYTHING, self.scale, needs_grad=WANTED, memo=self.memo)


class Mix(torch.autograd.Function):
    """A way's output, differentiable once in q, k, v and E."""

    @staticmethod
    def forward(ctx: Any, way: Way, run: Run, q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> Tensor:
        keys, values = run.project(e, k, v)
        output, lse = backend.forward(way.few_keys(q, keys, values))
        ctx.way, ctx.run = way, run
        ctx.save_for_backward(q, k, v, e, keys, values, output, lse)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, e, keys, values, output, lse = ctx.saved_tensors
        *_, of_k, of_v, of_e = ctx.needs_input_grad
        found = backend.backward(ctx.way.few_keys(q, keys, values), grad.contiguous(), output, lse)
        dq, d_keys, d_values = found[0], align(found[1].contiguous()), align(found[2].contiguous())
        turned = e.mT.expand(*k.shape[:2], -1, -1)
        return (
            None,
            None,
            dq,
            turned @ d_keys if of_k else None,
            turned @ d_values if of_v else None,
            ctx.run.learn(d_keys, d_values, k, v) if of_e else None,
        )


class Run:
    """The kernels for calls of one kind, told all but their tensors: those are where loads of 16 bytes can be."""

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        value_dim: int,
        value_strides: tuple[int, ...],
        projected: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        batch, heads, tokens, dim = shape
        wide, wide_v = (max(triton.next_power_of_2(x), 16) for x in (dim, value_dim))
        there, back = (shapes[dtype.itemsize][max(wide, wide_v, 64)] for shapes in (FORWARD, BACKWARD))
        copies, blocks = batch * heads, -(-projected // there.projected)
        self.pieces, size = cut(tokens, there.tokens, copies * blocks, 1, device)
        self.count, self.split = copies * projected * (dim + value_dim), copies * projected * dim
        self.keys, self.values = (batch, heads, projected, dim), (batch, heads, projected, value_dim)
        self.learned = (projected, tokens)
        common = {"batch": batch, "heads": heads, "tokens": tokens, "projected": projected, "size": size}
        common |= {"copies": copies, "D": dim, "BD": wide, "DV": value_dim, "BDV": wide_v}
        common |= dict(zip(("stride_kb", "stride_kh", "stride_kn"), strides, strict=False))
        common |= dict(zip(("stride_vb", "stride_vh", "stride_vn"), value_strides, strict=False))
        self.sum_pieces = Launch(project_kernel, blocks, self.pieces, copies, **common, **there.settings())
        self.add = Launch(add_kernel, -(-self.count // FLAT), count=self.count, pieces=self.pieces, BN=FLAT)
        tiles = -(-tokens // back.tokens), -(-projected // back.projected)
        self.sum_heads = Launch(learn_kernel, *tiles, **common, **back.settings())

    def project(self, e: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """E k and E v, `[batch, kv_heads, projected, d]`."""
        parts, found = k.new_empty(self.pieces, self.count, dtype=torch.float32), k.new_empty(self.count)
        self.sum_pieces(e, k, v, parts)
        self.add(parts, found)
        return found[: self.split].view(self.keys), found[self.split :].view(self.values)

    def learn(self, d_keys: Tensor, d_values: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """dE, from contiguous gradients of E k and E v."""
        found = k.new_empty(self.learned)
        self.sum_heads(d_keys, d_values, k, v, found)
        return found

    def all(self, e: Tensor, k: Tensor, v: Tensor) -> None:
        """Everything once, for its kernels to be compiled."""
        self.learn(*self.project(e, k, v), k, v)
