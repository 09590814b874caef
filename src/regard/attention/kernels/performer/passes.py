"""Performer in fused kernels: weights as sums of features, none of which is ever stored.

With the logarithms of features a_if = ω_f·x_i of queries and b_jf = ω_f·y_j − ‖y_j‖²/2 of keys, where x and y are the
queries and keys times √|scale|, the formula is two softmaxes:

    seen_f   = Σ_j softmax_j(b_jf) v_j,      level_f = log Σ_j e^b_jf         features attend to keys
    output_i = Σ_f softmax_f(a_if + level_f) seen_f                            queries attend to features

Backward, with p_if and r_jf for the two softmaxes:

    da = p (d_output·seen − δ_i),       d seen = Σ_i p d_output,    d level = Σ_i da,     δ_i = Σ output · d_output
    db = r (v·d seen − δ_f + d level),  dv = Σ_f r d seen,          δ_f = Σ seen · d seen

What belongs to features is summed over tokens in pieces, which are added up in order: the same call gives the same
bits. The types are float32, and bfloat16 with an ω of two parts, so that it counts as it was drawn.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, align, compile_together

LOG2E = tl.constexpr(1.4426950408889634)
PRECISION = tl.constexpr("tf32x3")  # of float32's products; those of bfloat16 have no choice
TILE = {2: (128, 64, 8, 2), 4: (64, 32, 4, 2)}  # (owned, walked, warps, stages) of a program, by bytes of a number
PROGRAMS = 4  # a multiprocessor, over which the sums of features are spread
RUNS = 256  # kinds of calls whose kernels are remembered


@triton.jit
def rows(p_x, o_n, m_n, stride_n, D: tl.constexpr, BD: tl.constexpr):
    """Rows o_n of x `[n, D]` as `[rows, BD]`, zeros beyond D and where m_n is false."""
    o_d = tl.arange(0, BD)
    p = p_x + o_n.to(tl.int64)[:, None] * stride_n + o_d[None, :]
    return tl.load(p, mask=m_n[:, None] & (o_d < D)[None, :], other=0.0)


@triton.jit
def directions(p_w, o_f, padded, D: tl.constexpr, BD: tl.constexpr, TWO: tl.constexpr):
    """ω `[features, BD]` of features o_f, and what was rounded off where it comes in two parts."""
    w = rows(p_w, o_f, o_f < padded, D, D, BD)
    if TWO:
        return w, rows(p_w + padded * D, o_f, o_f < padded, D, D, BD)
    else:
        return w, w


@triton.jit
def by_token(x, w, rest, TWO: tl.constexpr):
    """ω·x, `[tokens, features]`."""
    s = tl.dot(x, tl.trans(w), input_precision=PRECISION)
    if TWO:
        s = tl.dot(x, tl.trans(rest), s)
    return s


@triton.jit
def by_feature(x, w, rest, TWO: tl.constexpr):
    """ω·x, `[features, tokens]`."""
    s = tl.dot(w, tl.trans(x), input_precision=PRECISION)
    if TWO:
        s = tl.dot(rest, tl.trans(x), s)
    return s


@triton.jit
def half_square(x, root):
    """‖root · x‖²/2 of each token, in units of log 2."""
    wide = x.to(tl.float32)
    return tl.sum(wide * wide, 1) * (root * root * 0.5 * LOG2E)


@triton.jit(do_not_specialize=["heads", "tokens", "size", "root"])
def see_kernel(
    p_k, p_v, p_w, p_counts, p_seen, p_level, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    heads, tokens, padded, size, root,
    TWO: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """seen, and level in units of log 2, of BM features over one piece of the keys."""
    i_p, i_x = tl.program_id(1), tl.program_id(2)
    i_b, i_h = (i_x // heads).to(tl.int64), (i_x % heads).to(tl.int64)
    p_k += i_b * stride_kb + i_h * stride_kh
    p_v += i_b * stride_vb + i_h * stride_vh
    o_f = tl.program_id(0) * BM + tl.arange(0, BM)
    w, rest = directions(p_w, o_f, padded, D, BD, TWO)
    last = tl.minimum(tl.load(p_counts + i_b), tokens)
    top = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BDV], tl.float32)
    for n in range(i_p * size, tl.minimum((i_p + 1) * size, last), BN):
        o_n = n + tl.arange(0, BN)
        x = rows(p_k, o_n, o_n < last, stride_kn, D, BD)
        v = rows(p_v, o_n, o_n < last, stride_vn, DV, BDV)
        s = by_feature(x, w, rest, TWO) * (root * LOG2E) - half_square(x, root)[None, :]
        s = tl.where((o_n < last)[None, :], s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))  # finite: a piece begins with a real key
        p = tl.exp2(s - new[:, None])
        fade = tl.exp2(top - new)
        total = total * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision=PRECISION)
        top = new
    alive = total > 0
    total = tl.where(alive, total, 1.0)
    o_v = tl.arange(0, BDV)
    row = (i_p * tl.num_programs(2) + i_x).to(tl.int64) * padded + o_f
    m_f = o_f < padded
    tl.store(p_seen + row[:, None] * DV + o_v[None, :], acc / total[:, None], mask=m_f[:, None] & (o_v < DV)[None, :])
    tl.store(p_level + row, tl.where(alive, top + tl.log2(total), -float("inf")), mask=m_f)


@triton.jit(do_not_specialize=["features", "pieces"])
def merge_kernel(
    p_seen_parts, p_level_parts, p_seen, p_rounded, p_level, padded, features, pieces,
    DV: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """seen and level of BN features from those of the pieces: both softmaxes' sums, at the largest level."""
    i_x = tl.program_id(1)
    o_f = tl.program_id(0) * BN + tl.arange(0, BN)
    top = tl.full([BN], -float("inf"), tl.float32)
    total = tl.zeros([BN], tl.float32)
    acc = tl.zeros([BN, BDV], tl.float32)
    for i_p in range(0, pieces):
        row = (i_p * tl.num_programs(1) + i_x).to(tl.int64) * padded
        level = tl.load(p_level_parts + row + o_f)
        new = tl.maximum(top, level)
        safe = tl.where(new == -float("inf"), 0.0, new)
        fade, share = tl.exp2(top - safe), tl.exp2(level - safe)
        total = total * fade + share
        acc = acc * fade[:, None] + share[:, None] * rows(p_seen_parts + row * DV, o_f, o_f < padded, DV, DV, BDV)
        top = new
    alive = (total > 0) & (o_f < features)
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    row = i_x.to(tl.int64) * padded + o_f
    o_v = tl.arange(0, BDV)
    o = row[:, None] * DV + o_v[None, :]
    tl.store(p_seen + o, acc, mask=(o_v < DV)[None, :])
    tl.store(p_rounded + o, acc.to(p_rounded.dtype.element_ty), mask=(o_v < DV)[None, :])
    tl.store(p_level + row, tl.where(alive, top + tl.log2(tl.where(alive, total, 1.0)), -float("inf")))


@triton.jit(do_not_specialize=["heads", "group", "queries", "root"])
def ask_kernel(
    p_q, p_w, p_level, p_seen, p_out, p_lse, stride_qb, stride_qh, stride_qn, heads, group, queries, padded, root,
    TWO: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The output of BM queries, and their log-sum-exp over features in units of log 2 (0 where no key is real)."""
    i_x = tl.program_id(1)
    i_b, i_h = (i_x // heads).to(tl.int64), (i_x % heads).to(tl.int64)
    p_q += i_b * stride_qb + i_h * stride_qh
    p_level += (i_x // group) * padded
    p_seen += (i_x // group) * padded * DV
    o_i = tl.program_id(0) * BM + tl.arange(0, BM)
    x = rows(p_q, o_i, o_i < queries, stride_qn, D, BD)
    top = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BDV], tl.float32)
    for f in range(0, padded, BN):
        o_f = f + tl.arange(0, BN)
        w, rest = directions(p_w, o_f, padded, D, BD, TWO)
        s = by_token(x, w, rest, TWO) * (root * LOG2E) + tl.load(p_level + o_f)[None, :]
        new = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new == -float("inf"), 0.0, new)
        p = tl.exp2(s - safe[:, None])
        fade = tl.exp2(top - safe)
        total = total * fade + tl.sum(p, 1)
        seen = rows(p_seen, o_f, o_f < padded, DV, DV, BDV)
        acc = tl.dot(p.to(seen.dtype), seen, acc * fade[:, None], input_precision=PRECISION)
        top = new
    alive = total > 0
    total = tl.where(alive, total, 1.0)
    o_v = tl.arange(0, BDV)
    row = i_x.to(tl.int64) * queries + o_i
    m_i = o_i < queries
    out = (acc / total[:, None]).to(p_out.dtype.element_ty)
    tl.store(p_out + row[:, None] * DV + o_v[None, :], out, mask=m_i[:, None] & (o_v < DV)[None, :])
    tl.store(p_lse + row, tl.where(alive, top + tl.log2(total), 0.0), mask=m_i)


@triton.jit(do_not_specialize=["heads", "group", "queries", "root"])
def queries_kernel(
    p_q, p_w, p_level, p_seen, p_out, p_grad, p_lse, p_delta, p_dq,
    stride_qb, stride_qh, stride_qn, heads, group, queries, padded, root,
    TWO: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dq = root Σ_f da ω, and δ, of BM queries."""
    i_x = tl.program_id(1)
    i_b, i_h = (i_x // heads).to(tl.int64), (i_x % heads).to(tl.int64)
    p_q += i_b * stride_qb + i_h * stride_qh
    p_level += (i_x // group) * padded
    p_seen += (i_x // group) * padded * DV
    o_i = tl.program_id(0) * BM + tl.arange(0, BM)
    m_i = o_i < queries
    row = i_x.to(tl.int64) * queries
    x = rows(p_q, o_i, m_i, stride_qn, D, BD)
    g = rows(p_grad + row * DV, o_i, m_i, DV, DV, BDV)
    delta = tl.sum(g.to(tl.float32) * rows(p_out + row * DV, o_i, m_i, DV, DV, BDV).to(tl.float32), 1)
    lse = tl.load(p_lse + row + o_i, mask=m_i, other=0.0)
    acc = tl.zeros([BM, BD], tl.float32)
    for f in range(0, padded, BN):
        o_f = f + tl.arange(0, BN)
        w, rest = directions(p_w, o_f, padded, D, BD, TWO)
        s = by_token(x, w, rest, TWO) * (root * LOG2E) + tl.load(p_level + o_f)[None, :]
        p = tl.exp2(s - lse[:, None])
        seen = rows(p_seen, o_f, o_f < padded, DV, DV, BDV)
        d = p * (tl.dot(g, tl.trans(seen), input_precision=PRECISION) - delta[:, None])
        acc = tl.dot(d.to(w.dtype), w, acc, input_precision=PRECISION)
    o_d = tl.arange(0, BD)
    p_row = p_dq + (row + o_i)[:, None] * D + o_d[None, :]
    tl.store(p_row, (acc * root).to(p_dq.dtype.element_ty), mask=m_i[:, None] & (o_d < D)[None, :])
    tl.store(p_delta + row + o_i, delta, mask=m_i)


@triton.jit(do_not_specialize=["heads", "group", "queries", "size", "root"])
def features_kernel(
    p_q, p_w, p_level, p_seen, p_grad, p_lse, p_delta, p_dseen, p_dlevel,
    stride_qb, stride_qh, stride_qn, heads, group, queries, padded, size, root,
    TWO: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """d seen = Σ_i p d_output and d level = Σ_i da of BM features over one piece of the queries."""
    i_p, i_x = tl.program_id(1), tl.program_id(2)
    i_b, i_h = (i_x // heads).to(tl.int64), (i_x % heads).to(tl.int64)
    p_q += i_b * stride_qb + i_h * stride_qh
    o_f = tl.program_id(0) * BM + tl.arange(0, BM)
    m_f = o_f < padded
    w, rest = directions(p_w, o_f, padded, D, BD, TWO)
    seen = rows(p_seen + (i_x // group) * padded * DV, o_f, m_f, DV, DV, BDV)
    level = tl.load(p_level + (i_x // group) * padded + o_f, mask=m_f, other=-float("inf"))
    row = i_x.to(tl.int64) * queries
    acc = tl.zeros([BM, BDV], tl.float32)
    total = tl.zeros([BM], tl.float32)
    for n in range(i_p * size, tl.minimum((i_p + 1) * size, queries), BN):
        o_i = n + tl.arange(0, BN)
        m_i = o_i < queries
        x = rows(p_q, o_i, m_i, stride_qn, D, BD)
        g = rows(p_grad + row * DV, o_i, m_i, DV, DV, BDV)
        lse = tl.load(p_lse + row + o_i, mask=m_i, other=float("inf"))
        delta = tl.load(p_delta + row + o_i, mask=m_i, other=0.0)
        s = by_feature(x, w, rest, TWO) * (root * LOG2E) + level[:, None]
        p = tl.exp2(s - lse[None, :])
        acc = tl.dot(p.to(g.dtype), g, acc, input_precision=PRECISION)
        d = p * (tl.dot(seen, tl.trans(g), input_precision=PRECISION) - delta[None, :])
        total += tl.sum(d, 1)
    o_v = tl.arange(0, BDV)
    line = (i_p * tl.num_programs(2) + i_x).to(tl.int64) * padded + o_f
    tl.store(p_dseen + line[:, None] * DV + o_v[None, :], acc, mask=m_f[:, None] & (o_v < DV)[None, :])
    tl.store(p_dlevel + line, total, mask=m_f)


@triton.jit(do_not_specialize=["group", "pieces"])
def add_kernel(
    p_dseen_parts, p_dlevel_parts, p_seen, p_level, p_dseen, p_delta, p_fall, padded, group, pieces,
    DV: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """d seen of BN features, added up over pieces and over heads that share keys; δ_f − d level; −level."""
    i_x = tl.program_id(1)
    o_f = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros([BN], tl.float32)
    acc = tl.zeros([BN, BDV], tl.float32)
    for i in range(0, pieces * group):
        row = ((i // group * tl.num_programs(1) + i_x) * group + i % group).to(tl.int64) * padded
        total += tl.load(p_dlevel_parts + row + o_f)
        acc += rows(p_dseen_parts + row * DV, o_f, o_f < padded, DV, DV, BDV)
    row = i_x.to(tl.int64) * padded
    delta = tl.sum(acc * rows(p_seen + row * DV, o_f, o_f < padded, DV, DV, BDV), 1)
    o_v = tl.arange(0, BDV)
    o = (row + o_f)[:, None] * DV + o_v[None, :]
    tl.store(p_dseen + o, acc.to(p_dseen.dtype.element_ty), mask=(o_v < DV)[None, :])
    tl.store(p_delta + row + o_f, delta - total)
    level = tl.load(p_level + row + o_f)
    tl.store(p_fall + row + o_f, tl.where(level == -float("inf"), level, -level))


@triton.jit(do_not_specialize=["heads", "tokens", "root"])
def keys_kernel(
    p_k, p_v, p_w, p_counts, p_fall, p_dseen, p_delta, p_dk, p_dv,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, heads, tokens, padded, root,
    TWO: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dk = root Σ_f db (ω − root k) and dv = Σ_f r d seen of BM keys; p_fall is −level, p_delta δ_f − d level."""
    i_x = tl.program_id(1)
    i_b, i_h = (i_x // heads).to(tl.int64), (i_x % heads).to(tl.int64)
    o_n = tl.program_id(0) * BM + tl.arange(0, BM)
    m_n = o_n < tl.minimum(tl.load(p_counts + i_b), tokens)
    x = rows(p_k + i_b * stride_kb + i_h * stride_kh, o_n, m_n, stride_kn, D, BD)
    v = rows(p_v + i_b * stride_vb + i_h * stride_vh, o_n, m_n, stride_vn, DV, BDV)
    number = tl.where(m_n, -half_square(x, root), -float("inf"))
    row = i_x.to(tl.int64) * padded
    acc = tl.zeros([BM, BD], tl.float32)
    mixed = tl.zeros([BM, BDV], tl.float32)
    total = tl.zeros([BM], tl.float32)
    for f in range(0, padded, BN):
        o_f = f + tl.arange(0, BN)
        w, rest = directions(p_w, o_f, padded, D, BD, TWO)
        fall = tl.load(p_fall + row + o_f)
        r = tl.exp2(by_token(x, w, rest, TWO) * (root * LOG2E) + number[:, None] + fall[None, :])
        g = rows(p_dseen + row * DV, o_f, o_f < padded, DV, DV, BDV)
        mixed = tl.dot(r.to(g.dtype), g, mixed, input_precision=PRECISION)
        d = r * (tl.dot(v, tl.trans(g), input_precision=PRECISION) - tl.load(p_delta + row + o_f)[None, :])
        acc = tl.dot(d.to(w.dtype), w, acc, input_precision=PRECISION)
        total += tl.sum(d, 1)
    acc = root * (acc - root * total[:, None] * x.to(tl.float32))
    o_d, o_v = tl.arange(0, BD), tl.arange(0, BDV)
    line = (i_x.to(tl.int64) * tokens + o_n)[:, None]
    m_n = (o_n < tokens)[:, None]
    tl.store(p_dk + line * D + o_d[None, :], acc.to(p_dk.dtype.element_ty), mask=m_n & (o_d < D)[None, :])
    tl.store(p_dv + line * DV + o_v[None, :], mixed.to(p_dv.dtype.element_ty), mask=m_n & (o_v < DV)[None, :])


class There(NamedTuple):
    """What forward finds: of features, with level in units of log 2, and of queries."""

    level: Tensor
    seen: Tensor
    rounded: Tensor  # seen in the type of the call
    output: Tensor
    lse: Tensor


class Mix(torch.autograd.Function):
    """A run's output, differentiable once in q, k and v."""

    @staticmethod
    def forward(ctx: Any, run: Run, q: Tensor, k: Tensor, v: Tensor, omega: Tensor, counts: Tensor) -> Tensor:
        found = run.there(q, k, v, omega, counts)
        ctx.run = run
        ctx.save_for_backward(q, k, v, omega, counts, *found)
        return found.output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, omega, counts, *found = ctx.saved_tensors
        return None, *ctx.run.back(q, k, v, omega, counts, There(*found), align(grad.contiguous())), None, None


def mix(q: Tensor, k: Tensor, v: Tensor, omega: Tensor, features: int, counts: Tensor, scale: float) -> Tensor:
    """Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j), differentiable once in q, k and v.

    `omega` is `padded(directions, dtype)`, `counts [batch]` how many keys are real, in int32.
    """
    graded = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    q, k, v = align(q), align(k), align(v)
    layouts = tuple([(x.shape, x.stride()) for x in (q, k, v)])
    run = run_of(layouts, features, omega.shape[1], scale, v.dtype, v.device)
    kind = (Mix, v.device, v.dtype, q.shape[3], v.shape[3], graded)
    compile_together(kind, lambda: run.rehearse(q, k, v, omega, counts, graded))
    return Mix.apply(run, q, k, v, omega, counts) if graded else run.there(q, k, v, omega, counts).output


class Run:
    """The kernels for calls of one kind, told all but their tensors: those are where loads of 16 bytes can be.

    Tensors of features are `[batch, kv_heads, padded features, …]`; parts have more in front.
    """

    def __init__(
        self,
        layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...],
        features: int,
        padded: int,
        scale: float,
        dtype: torch.dtype,
        device: torch.device,
    ):
        (q, q_steps), (k, k_steps), (v, v_steps) = layouts
        batch, heads, queries, dim = q
        kv_heads, keys, dim_v = v[1:]
        owned, walked, warps, stages = TILE[dtype.itemsize]
        group, copies, kv_copies, blocks = heads // kv_heads, batch * heads, batch * kv_heads, -(-padded // owned)
        there, key_size = cut(keys, walked, blocks * kv_copies, PROGRAMS, device)
        back, query_size = cut(queries, walked, blocks * copies, PROGRAMS, device)
        self.dtype, self.shapes = dtype, (q, k, v)
        self.output, self.lse = (*q[:3], dim_v), q[:3]
        self.seen, self.level = (kv_copies, padded, dim_v), (kv_copies, padded)
        self.seen_parts, self.level_parts = (there, *self.seen), (there, *self.level)
        self.d_seen_parts, self.d_level_parts = (back, group, *self.seen), (back, group, *self.level)
        root = math.sqrt(abs(scale))
        flat = {"padded": padded, "DV": dim_v, "BDV": power(dim_v), "BN": walked}
        tile = {**flat, "D": dim, "BD": power(dim), "TWO": dtype.itemsize == 2, "BM": owned}
        tile |= {"num_warps": warps, "num_stages": stages}
        of_keys = {**tile, "heads": kv_heads, "tokens": keys, "size": key_size, "root": root}
        of_keys |= dict(zip(("stride_kb", "stride_kh", "stride_kn"), k_steps, strict=False))
        of_keys |= dict(zip(("stride_vb", "stride_vh", "stride_vn"), v_steps, strict=False))
        of_queries = {**tile, "heads": heads, "group": group, "queries": queries, "size": query_size}
        of_queries |= dict(zip(("stride_qb", "stride_qh", "stride_qn"), q_steps, strict=False))
        of_queries["root"] = math.copysign(root, scale)
        self.see = Launch(see_kernel, blocks, there, kv_copies, **of_keys)
        self.merge = Launch(merge_kernel, padded // walked, kv_copies, features=features, pieces=there, **flat)
        self.ask = Launch(ask_kernel, -(-queries // owned), copies, **of_queries)
        self.to_queries = Launch(queries_kernel, -(-queries // owned), copies, **of_queries)
        self.to_features = Launch(features_kernel, blocks, back, copies, **of_queries)
        self.add = Launch(add_kernel, padded // walked, kv_copies, group=group, pieces=back, **flat)
        self.to_keys = Launch(keys_kernel, -(-keys // owned), kv_copies, **of_keys)

    def there(self, q: Tensor, k: Tensor, v: Tensor, omega: Tensor, counts: Tensor) -> There:
        exact = functools.partial(v.new_empty, dtype=torch.float32)
        seen_parts, level_parts = exact(self.seen_parts), exact(self.level_parts)
        self.see(k, v, omega, counts, seen_parts, level_parts)
        seen, level = exact(self.seen), exact(self.level)
        rounded = seen if self.dtype == torch.float32 else v.new_empty(self.seen)
        self.merge(seen_parts, level_parts, seen, rounded, level)
        output, lse = v.new_empty(self.output), exact(self.lse)
        self.ask(q, omega, level, rounded, output, lse)
        return There(level, seen, rounded, output, lse)

    def back(
        self, q: Tensor, k: Tensor, v: Tensor, omega: Tensor, counts: Tensor, found: There, grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk and dv, from a contiguous gradient of the output."""
        exact = functools.partial(v.new_empty, dtype=torch.float32)
        level, seen, rounded, output, lse = found
        dq, dk, dv = map(v.new_empty, self.shapes)
        delta = exact(self.lse)
        self.to_queries(q, omega, level, rounded, output, grad, lse, delta, dq)
        d_seen_parts, d_level_parts = exact(self.d_seen_parts), exact(self.d_level_parts)
        self.to_features(q, omega, level, rounded, grad, lse, delta, d_seen_parts, d_level_parts)
        d_seen, fall, fall_delta = v.new_empty(self.seen), exact(self.level), exact(self.level)
        self.add(d_seen_parts, d_level_parts, seen, level, d_seen, fall_delta, fall)
        self.to_keys(k, v, omega, counts, fall, d_seen, fall_delta, dk, dv)
        return dq, dk, dv

    def rehearse(self, q: Tensor, k: Tensor, v: Tensor, omega: Tensor, counts: Tensor, graded: bool) -> None:
        """Everything once, for its kernels to be compiled."""
        found = self.there(q, k, v, omega, counts)
        if graded:
            self.back(q, k, v, omega, counts, found, found.output)


run_of = functools.lru_cache(maxsize=RUNS)(Run)
"""The run for calls of a kind, made once."""


def cut(tokens: int, step: int, blocks: int, programs: int, device: torch.device) -> tuple[int, int]:
    """(pieces, tokens of each) that a sum over tokens is cut into, each for `blocks` of `programs` a multiprocessor."""
    tiles = -(-tokens // step)
    many = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
    pieces = min(max(many * programs // blocks, 1), tiles)
    size = -(-tiles // pieces)
    return -(-tiles // size), size * step


def padded(omega: Tensor, dtype: torch.dtype) -> Tensor:
    """ω `[features, head_dim]` as kernels read it: `[parts, padded features, head_dim]` in the type.

    Its rounding is a second part, which float32 has no use for.
    """
    step = TILE[dtype.itemsize][1]
    omega = torch.nn.functional.pad(omega, (0, 0, 0, -omega.shape[0] % step))
    high = omega.to(dtype)
    return torch.stack([high, (omega - high.to(omega.dtype)).to(dtype)])


def power(n: int) -> int:
    """The least power of two that is not below n, and a size that tensor cores take."""
    return max(triton.next_power_of_2(n), 16)
