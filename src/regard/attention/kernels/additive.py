"""Additive attention in fused kernels: score = Σ_d weight · act(q + k) with act = tanh or leaky ReLU.

The score is not a matrix product, so its cost is the activations, one for each (query, key, d). Three ideas keep them cheap:

- tanh(q + k) = 1 − 2r with r = 1 / (1 + e^2q · e^2k): the exponentials are taken once a token, and two reciprocals cost
  one, w₁/m₁ + w₂/m₂ = (w₁m₂ + w₂m₁) / (m₁m₂). Where a tile's numbers leave no room for that product, it takes
  r = 1 / (1 + e^2(q+k)) for each element.
- leaky(x) = (1+slope)/2 · x + (1−slope)/2 · |x|: the first part is a number a key and one a query.
- A thread owns a patch of queries × keys: tiles are `[RM, RN, TM, TN]` with threads on the last two axes and registers
  on the first two, so that a step in d loads RM + RN numbers for RM · RN elements.

Backward works through the listed tiles in parts. It leaves each tile's ds (and weights, for dv) in scratch memory of a
fixed size; then a program that owns rows (or columns) and a few d walks the tiles with its sums in registers.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..call import Problem
from ..dropout import kept_scale, threshold
from .lists import Lists, lists
from .score import allowed, kept, row_keys


class Patch(NamedTuple):
    """A tile of rm·tm queries × rn·tn keys; a thread has rm × rn of them."""

    rm: int
    rn: int
    tm: int
    tn: int
    warps: int

    @property
    def rows(self) -> int:
        return self.rm * self.tm

    @property
    def columns(self) -> int:
        return self.rn * self.tn


# The last three cut the same tiles: they read each other's scratch.
FORWARD = Patch(4, 8, 16, 16, 8)
SCORES = Patch(4, 8, 16, 16, 8)
BY_ROW = Patch(2, 16, 32, 8, 8)
BY_COLUMN = Patch(8, 4, 8, 32, 8)
PAIRS = 4  # pairs of d in one turn of the loop over d
OWNED = 8  # d that a program owns in backward
SCRATCH = 1 << 29  # bytes
LINES = 32  # programs that share a head's sums by distance
ROOM = tl.constexpr(21.5)  # max|q| + max|k| below which (1 + e^2(q+k))² is finite

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
PTX = tl.constexpr(not triton.knobs.runtime.interpret and torch.version.hip is None)


@triton.jit
def inverse(x):
    """1 / x to an ulp, without the care for denormals that a division takes."""
    if PTX:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        return 1.0 / x


@triton.jit
def halves(x):
    """The two float32 in an int64."""
    low = x.to(tl.int32).to(tl.float32, bitcast=True)
    high = (x >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return low, high


@triton.jit
def joined(low, high):
    """Two float32 in an int64."""
    low = low.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (high.to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def twice_exp(x):
    """e^2x, the rounding of 2x · log₂e made good; finite for any x."""
    x = tl.minimum(tl.maximum(x, -43.0), 43.0)
    whole = tl.floor(x * 2.8853900817779268 + 0.5)
    rest = tl.fma(x, 2.885390043258667, -whole) + x * 3.8519259822e-08
    return tl.exp2(rest) * tl.exp2(whole)


@triton.jit
def sigma(x):
    """1 / (1 + e^2x) for any x."""
    return inverse(1.0 + tl.exp2(x * 2.8853900817779268))


@triton.jit(do_not_specialize=["heads", "group", "tokens", "head_dim"])
def prepare_kernel(
    X, W, OUT, TOP, LINE, stride_b, stride_h, stride_n, heads, group, tokens, padded, head_dim, half,
    TANH: tl.constexpr, QUERY: tl.constexpr, DP: tl.constexpr, BT: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """x in float32 with tokens last and d in pairs; for tanh e^2x too; the largest |x| of a tile; what d does not enter.

    LINE, in units of log 2: Σ weight for tanh's queries, half · Σ_d weight · x for leaky ReLU (half = (1 + slope) / 2).
    """
    i_t = tl.program_id(0)
    i_x = tl.program_id(1).to(tl.int64)
    i_b, i_h = i_x // heads, i_x % heads
    HALF: tl.constexpr = DP // 2
    PLANES: tl.constexpr = 2 if TANH else 1
    o_n = i_t * BT + tl.arange(0, BT)
    p_x = X + i_b * stride_b + i_h * stride_h + o_n.to(tl.int64)[None, :] * stride_n
    p_out = OUT + i_x * PLANES * HALF * padded + o_n[None, :]
    top = tl.zeros([BT], tl.float32)
    for p in range(0, HALF, BP):
        o_p = p + tl.arange(0, BP)[:, None]
        m = o_n[None, :] < tokens
        even = tl.load(p_x + 2 * o_p, mask=m & (2 * o_p < head_dim), other=0.0).to(tl.float32)
        odd = tl.load(p_x + 2 * o_p + 1, mask=m & (2 * o_p + 1 < head_dim), other=0.0).to(tl.float32)
        top = tl.maximum(top, tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), 0))
        tl.store(p_out + o_p * padded, joined(even, odd), mask=o_p < HALF)
        if TANH:
            tl.store(p_out + (HALF + o_p) * padded, joined(twice_exp(even), twice_exp(odd)), mask=o_p < HALF)
    tl.store(TOP + i_x * tl.num_programs(0) + i_t, tl.max(top, 0))
    if QUERY or not TANH:
        for g in range(0, group):
            h = i_h * group + g
            total = tl.zeros([BT], tl.float32)
            for p in range(0, DP, BP):
                o_d = p + tl.arange(0, BP)[:, None]
                w = tl.load(W + h * DP + o_d, mask=o_d < DP, other=0.0)
                if TANH:
                    x = tl.full([BP, BT], 1.0, tl.float32)
                else:
                    m = (o_n[None, :] < tokens) & (o_d < head_dim)
                    x = half * tl.load(p_x + o_d, mask=m, other=0.0).to(tl.float32)
                total += tl.sum(w * x, 0)
            tl.store(LINE + (i_b * heads * group + h) * padded + o_n, total * LOG2E)


@triton.jit
def patch_scores(
    p_a, p_b, p_w, padded_q, padded_k, near, slope,
    TANH: tl.constexpr, DP: tl.constexpr, UP: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """Scores of a tile `[rows, columns]` in units of log 2, without what LINE has: −2 Σ w r, or (1−slope)/2 Σ w |x|."""
    HALF: tl.constexpr = DP // 2
    s = tl.zeros([RM, RN, TM, TN], tl.float32)
    if TANH:
        if near:
            for p in range(0, HALF, UP):
                for u in tl.static_range(UP):
                    a1, a2 = halves(tl.load(p_a + (HALF + p + u) * padded_q))
                    b1, b2 = halves(tl.load(p_b + (HALF + p + u) * padded_k))
                    w1, w2 = tl.load(p_w + 2 * (p + u)), tl.load(p_w + 2 * (p + u) + 1)
                    m1, m2 = tl.fma(a1, b1, 1.0), tl.fma(a2, b2, 1.0)
                    s += (w1 * m2 + w2 * m1) * inverse(m1 * m2)
        else:
            for p in range(0, HALF):
                a1, a2 = halves(tl.load(p_a + p * padded_q))
                b1, b2 = halves(tl.load(p_b + p * padded_k))
                w1, w2 = tl.load(p_w + 2 * p), tl.load(p_w + 2 * p + 1)
                s += w1 * sigma(a1 + b1) + w2 * sigma(a2 + b2)
        s *= -2.0 * LOG2E
    else:
        for p in range(0, HALF, UP):
            for u in tl.static_range(UP):
                a1, a2 = halves(tl.load(p_a + (p + u) * padded_q))
                b1, b2 = halves(tl.load(p_b + (p + u) * padded_k))
                w1, w2 = tl.load(p_w + 2 * (p + u)), tl.load(p_w + 2 * (p + u) + 1)
                s += w1 * tl.abs(a1 + b1)
                s += w2 * tl.abs(a2 + b2)
        s *= (0.5 - 0.5 * slope) * LOG2E
    return tl.reshape(tl.permute(s, (0, 2, 1, 3)), (RM * TM, RN * TN))


@triton.jit
def whole_scores(
    s, p_line, p_numbers, PACKED, bits, o_r, o_c, distance, last,
    TANH: tl.constexpr, NUMBERS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A tile's scores with what keys and distances add, −∞ where the mask forbids; `distance` is that of (0, 0) + zero."""
    if not TANH:
        s += tl.load(p_line + o_c)[None, :]
    if NUMBERS:
        o_t = tl.minimum(tl.maximum(distance + o_r[:, None] - o_c[None, :], 0), last)
        s += tl.load(p_numbers + o_t).to(tl.float32) * LOG2E
    if bits >= 0:
        s = tl.where(allowed(PACKED, bits, BM, BN, False), s, -float("inf"))
    return s


@triton.jit(do_not_specialize=["heads", "kv_heads", "queries", "keys", "tile_rows", "tile_columns", "group_b", "group_h",
                               "entries", "zero", "threshold"])  # fmt: skip
def forward_kernel(
    A, B, W, TOP_A, TOP_B, LINE_A, LINE_B, V, NUMBERS_, SEED, STARTS, TILE, BITS, PACKED, OUT, LSE,
    stride_vb, stride_vh, stride_vn, heads, kv_heads, queries, keys, padded_q, padded_k, tile_rows, tile_columns,
    group_b, group_h, entries, zero, threshold, scale, slope,
    DIM_V: tl.constexpr, TANH: tl.constexpr, NUMBERS: tl.constexpr, DROPOUT: tl.constexpr, DP: tl.constexpr, BV: tl.constexpr, UP: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """output = Σ_j p · v / l, lse = m + log l, over the tiles of one row of tiles, with a running maximum m and sum l."""
    BM: tl.constexpr = RM * TM
    BN: tl.constexpr = RN * TN
    PLANES: tl.constexpr = 2 if TANH else 1
    # Later rows first: under a causal mask theirs are the long lists.
    i_r = tile_rows - 1 - tl.program_id(0) % tile_rows
    i_x = tl.program_id(0) // tile_rows
    i_b, i_h = i_x // heads, i_x % heads
    i_kv = i_b * kv_heads + i_h // (heads // kv_heads)
    group = i_b * group_b + i_h * group_h

    o_r, o_c, o_v = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BV)
    r4 = tl.arange(0, RM)[:, None, None, None] * TM + tl.arange(0, TM)[None, None, :, None]
    c4 = tl.arange(0, RN)[None, :, None, None] * TN + tl.arange(0, TN)[None, None, None, :]
    p_a = A + i_x.to(tl.int64) * (PLANES * DP // 2) * padded_q + i_r * BM + r4
    p_b = B + i_kv.to(tl.int64) * (PLANES * DP // 2) * padded_k + c4
    p_v = V + i_b.to(tl.int64) * stride_vb + (i_h // (heads // kv_heads)).to(tl.int64) * stride_vh
    p_w = W + i_h * DP
    top_a = tl.load(TOP_A + i_x * tile_rows + i_r)
    if DROPOUT:
        b_keys = row_keys(SEED, i_b, i_h, i_r * BM + o_r + keys - queries)

    m = tl.full([BM], -float("inf"), tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BV], tl.float32)
    for e in range(
        tl.load(STARTS + group * (tile_rows + 1) + i_r), tl.load(STARTS + group * (tile_rows + 1) + i_r + 1)
    ):
        i_c = tl.load(TILE + e)
        bits = tl.load(BITS + e)
        near = top_a + tl.load(TOP_B + i_kv * tile_columns + i_c) < ROOM
        s = patch_scores(p_a, p_b + i_c * BN, p_w, padded_q, padded_k, near, slope, TANH, DP, UP, RM, RN, TM, TN)
        distance = i_r * BM + keys - queries - i_c * BN + zero
        p_line = LINE_B + i_x.to(tl.int64) * padded_k + i_c * BN
        s = whole_scores(s, p_line, NUMBERS_ + i_h * entries, PACKED, bits, o_r, o_c, distance, entries - 1,
                         TANH, NUMBERS, BM, BN)  # fmt: skip
        high = tl.maximum(m, tl.max(s, 1))
        safe = tl.where(high == -float("inf"), 0.0, high)
        p = tl.exp2(s - safe[:, None])
        fade = tl.exp2(m - safe)
        l = l * fade + tl.sum(p, 1)
        m = high
        if DROPOUT:
            p = tl.where(kept(b_keys, i_c * BN + o_c, threshold, False), p * scale, 0.0)
        o_j = i_c * BN + o_c
        v = tl.load(p_v + o_j.to(tl.int64)[:, None] * stride_vn + o_v[None, :],
                    mask=(o_j < keys)[:, None] & (o_v < DIM_V)[None, :], other=0.0)  # fmt: skip
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")

    alive = l > 0
    acc = acc / tl.where(alive, l, 1.0)[:, None]
    o_i = i_r * BM + o_r
    line = tl.load(LINE_A + i_x.to(tl.int64) * padded_q + o_i)
    lse = tl.where(alive, (m + tl.log2(tl.where(alive, l, 1.0)) + line) * LN2, -float("inf"))
    p_o = OUT + (i_x.to(tl.int64) * queries + o_i)[:, None] * DIM_V + o_v[None, :]
    tl.store(p_o, acc.to(OUT.dtype.element_ty), mask=(o_i < queries)[:, None] & (o_v < DIM_V)[None, :])
    tl.store(LSE + i_x.to(tl.int64) * queries + o_i, lse, mask=o_i < queries)


@triton.jit(do_not_specialize=["queries"])
def delta_kernel(GRAD, OUT, LSE, LINE, DELTA, LEVEL, queries, padded_q, DIM_V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr):
    """δ = Σ d_output · output, and the lse in units of log 2 less LINE (∞ for rows without keys)."""
    i_x = tl.program_id(1).to(tl.int64)
    o_i = tl.program_id(0) * BT + tl.arange(0, BT)
    total = tl.zeros([BT], tl.float32)
    for v in range(0, DIM_V, BV):
        o_v = v + tl.arange(0, BV)
        m = (o_i < queries)[:, None] & (o_v < DIM_V)[None, :]
        o = (i_x * queries + o_i)[:, None] * DIM_V + o_v[None, :]
        total += tl.sum(
            tl.load(GRAD + o, mask=m, other=0.0).to(tl.float32) * tl.load(OUT + o, mask=m, other=0.0).to(tl.float32), 1
        )
    lse = tl.load(LSE + i_x * queries + o_i, mask=o_i < queries, other=-float("inf"))
    level = lse * LOG2E - tl.load(LINE + i_x * padded_q + o_i)
    tl.store(DELTA + i_x * padded_q + o_i, total)
    tl.store(LEVEL + i_x * padded_q + o_i, tl.where(lse == -float("inf"), float("inf"), level))


@triton.jit(do_not_specialize=["heads", "kv_heads", "queries", "keys", "tile_rows", "tile_columns", "group_x", "copy_x",
                               "first_copy", "first_entry", "entries", "zero", "threshold"])  # fmt: skip
def scores_kernel(
    A, B, W, TOP_A, TOP_B, LINE_B, V, NUMBERS_, SEED, OWNER, TILE, BITS, PACKED, GRAD, DELTA, LEVEL, DS, P,
    stride_vb, stride_vh, stride_vn, heads, kv_heads, queries, keys, padded_q, padded_k, tile_rows, tile_columns,
    group_x, copy_x, first_copy, first_entry, entries, zero, threshold, scale, slope,
    DIM_V: tl.constexpr, TANH: tl.constexpr, NUMBERS: tl.constexpr, DROPOUT: tl.constexpr, DP: tl.constexpr, BV: tl.constexpr, UP: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """p = exp(s − lse) (dropped: p · kept) and ds = p · (kept · d_output vᵀ − δ) of one tile, to scratch."""
    BM: tl.constexpr = RM * TM
    BN: tl.constexpr = RN * TN
    PLANES: tl.constexpr = 2 if TANH else 1
    e = first_entry + tl.program_id(0)
    slot = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    owner = tl.load(OWNER + e)
    i_r = owner % tile_rows
    i_c = tl.load(TILE + e)
    i_x = owner // tile_rows * group_x + (first_copy + tl.program_id(1)) * copy_x
    i_b, i_h = i_x // heads, i_x % heads
    i_kv = i_b * kv_heads + i_h // (heads // kv_heads)

    o_r, o_c = tl.arange(0, BM), tl.arange(0, BN)
    r4 = tl.arange(0, RM)[:, None, None, None] * TM + tl.arange(0, TM)[None, None, :, None]
    c4 = tl.arange(0, RN)[None, :, None, None] * TN + tl.arange(0, TN)[None, None, None, :]
    p_a = A + i_x.to(tl.int64) * (PLANES * DP // 2) * padded_q + i_r * BM + r4
    p_b = B + i_kv.to(tl.int64) * (PLANES * DP // 2) * padded_k + i_c * BN + c4
    near = tl.load(TOP_A + i_x * tile_rows + i_r) + tl.load(TOP_B + i_kv * tile_columns + i_c) < ROOM
    s = patch_scores(p_a, p_b, W + i_h * DP, padded_q, padded_k, near, slope, TANH, DP, UP, RM, RN, TM, TN)
    distance = i_r * BM + keys - queries - i_c * BN + zero
    p_line = LINE_B + i_x.to(tl.int64) * padded_k + i_c * BN
    s = whole_scores(s, p_line, NUMBERS_ + i_h * entries, PACKED, tl.load(BITS + e), o_r, o_c, distance, entries - 1,
                     TANH, NUMBERS, BM, BN)  # fmt: skip
    o_i, o_j = i_r * BM + o_r, i_c * BN + o_c
    p = tl.exp2(s - tl.load(LEVEL + i_x.to(tl.int64) * padded_q + o_i)[:, None])

    d = tl.zeros([BM, BN], tl.float32)
    p_v = V + i_b.to(tl.int64) * stride_vb + (i_h // (heads // kv_heads)).to(tl.int64) * stride_vh
    p_g = GRAD + (i_x.to(tl.int64) * queries + o_i)[:, None] * DIM_V
    for c in range(0, DIM_V, BV):
        o_v = c + tl.arange(0, BV)
        g = tl.load(p_g + o_v[None, :], mask=(o_i < queries)[:, None] & (o_v < DIM_V)[None, :], other=0.0)
        v = tl.load(p_v + o_j.to(tl.int64)[None, :] * stride_vn + o_v[:, None],
                    mask=(o_j < keys)[None, :] & (o_v < DIM_V)[:, None], other=0.0)  # fmt: skip
        d = tl.dot(g, v, d, input_precision="ieee")
    dropped = p
    if DROPOUT:
        keep = kept(row_keys(SEED, i_b, i_h, o_i + keys - queries), o_j, threshold, False)
        dropped = tl.where(keep, p * scale, 0.0)
        d = tl.where(keep, d * scale, 0.0)
    d = p * (d - tl.load(DELTA + i_x.to(tl.int64) * padded_q + o_i)[:, None])
    o = slot * (BM * BN) + o_r[:, None] * BN + o_c[None, :]
    tl.store(DS + o, d)
    tl.store(P + o, dropped.to(P.dtype.element_ty))


@triton.jit
def pair(p_a, p_b, u, padded_q, padded_k, TANH: tl.constexpr, NEAR: tl.constexpr, HALF: tl.constexpr):
    """r of two d for tanh, q + k for leaky ReLU; `[RM, RN, TM, TN]` each."""
    if TANH and NEAR:
        a1, a2 = halves(tl.load(p_a + (HALF + u) * padded_q))
        b1, b2 = halves(tl.load(p_b + (HALF + u) * padded_k))
        m1, m2 = tl.fma(a1, b1, 1.0), tl.fma(a2, b2, 1.0)
        both = inverse(m1 * m2)
        return both * m2, both * m1
    else:
        a1, a2 = halves(tl.load(p_a + u * padded_q))
        b1, b2 = halves(tl.load(p_b + u * padded_k))
        x1, x2 = a1 + b1, a2 + b2
        if TANH:
            x1, x2 = sigma(x1), sigma(x2)
        return x1, x2


@triton.jit
def add_rows(
    t1, t2, d, p_a, p_b, padded_q, padded_k, slope, TANH: tl.constexpr, NEAR: tl.constexpr, HALF: tl.constexpr, DU: tl.constexpr
):
    """A tile's Σ_j ds · r and Σ_j ds · r² (leaky ReLU: ds · act and ds · act′) added to t1 and t2, for DU of the d."""
    n1, n2 = (), ()
    for u in tl.static_range(DU // 2):
        x1, x2 = pair(p_a, p_b, u, padded_q, padded_k, TANH, NEAR, HALF)
        if TANH:
            y1, y2 = d * x1, d * x2
            n1 = n1 + (t1[2 * u] + tl.sum(y1, 1), t1[2 * u + 1] + tl.sum(y2, 1))
            n2 = n2 + (t2[2 * u] + tl.sum(y1 * x1, 1), t2[2 * u + 1] + tl.sum(y2 * x2, 1))
        else:
            y1, y2 = tl.where(x1 > 0, d, d * slope), tl.where(x2 > 0, d, d * slope)
            n1 = n1 + (t1[2 * u] + tl.sum(y1 * x1, 1), t1[2 * u + 1] + tl.sum(y2 * x2, 1))
            n2 = n2 + (t2[2 * u] + tl.sum(y1, 1), t2[2 * u + 1] + tl.sum(y2, 1))
    return n1, n2


@triton.jit
def add_columns(
    t, d, p_a, p_b, padded_q, padded_k, slope, TANH: tl.constexpr, NEAR: tl.constexpr, HALF: tl.constexpr, DU: tl.constexpr
):
    """A tile's Σ_i ds · (r − r²) (leaky ReLU: ds · act′) added to t, for DU of the d."""
    n = ()
    for u in tl.static_range(DU // 2):
        x1, x2 = pair(p_a, p_b, u, padded_q, padded_k, TANH, NEAR, HALF)
        if TANH:
            y1, y2 = d * (x1 - x1 * x1), d * (x2 - x2 * x2)
        else:
            y1, y2 = tl.where(x1 > 0, d, d * slope), tl.where(x2 > 0, d, d * slope)
        n = n + (t[2 * u] + tl.sum(y1, 0), t[2 * u + 1] + tl.sum(y2, 0))
    return n


@triton.jit(do_not_specialize=["heads", "kv_heads", "tile_rows", "tile_columns", "group_x", "copy_x", "first_copy",
                               "first_entry", "last_entry"])  # fmt: skip
def rows_kernel(
    A, B, W, TOP_A, TOP_B, DS, STARTS, TILE, DQ, DW, heads, kv_heads, padded_q, padded_k, tile_rows, tile_columns,
    group_x, copy_x, first_copy, first_entry, last_entry, slope,
    TANH: tl.constexpr, DP: tl.constexpr, DU: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """dq = weight Σ_j ds · act′, dweight = Σ_ij ds · act, for the rows of one row of tiles and DU of the d.

    tanh: act = 1 − 2r and act′ = 4 (r − r²); Σ_j ds = 0, so dweight = −2 Σ ds · r.
    """
    BM: tl.constexpr = RM * TM
    BN: tl.constexpr = RN * TN
    PLANES: tl.constexpr = 2 if TANH else 1
    HALF: tl.constexpr = DP // 2
    PARTS: tl.constexpr = DP // DU
    i_d = tl.program_id(0) % PARTS
    i_r = tl.program_id(0) // PARTS % tile_rows
    group = tl.program_id(0) // PARTS // tile_rows
    i_x = group * group_x + (first_copy + tl.program_id(1)) * copy_x
    i_b, i_h = i_x // heads, i_x % heads
    i_kv = i_b * kv_heads + i_h // (heads // kv_heads)
    first = tl.maximum(tl.load(STARTS + group * (tile_rows + 1) + i_r), first_entry)
    last = tl.minimum(tl.load(STARTS + group * (tile_rows + 1) + i_r + 1), last_entry)

    r4 = tl.arange(0, RM)[:, None, None, None] * TM + tl.arange(0, TM)[None, None, :, None]
    c4 = tl.arange(0, RN)[None, :, None, None] * TN + tl.arange(0, TN)[None, None, None, :]
    p_a = A + (i_x.to(tl.int64) * PLANES * HALF + i_d * (DU // 2)) * padded_q + i_r * BM + r4
    p_b = B + (i_kv.to(tl.int64) * PLANES * HALF + i_d * (DU // 2)) * padded_k + c4
    slot = tl.program_id(1).to(tl.int64) * (last_entry - first_entry) - first_entry
    top_a = tl.load(TOP_A + i_x * tile_rows + i_r)
    t1, t2 = (), ()
    for _ in tl.static_range(DU):
        t1 = t1 + (tl.zeros([RM, TM, TN], tl.float32),)
        t2 = t2 + (tl.zeros([RM, TM, TN], tl.float32),)
    for e in range(first, last):
        i_c = tl.load(TILE + e)
        # Hints for threads on the last two axes with one number each: left alone the compiler gives a thread four
        # neighbours in TN, and every sum over a patch crosses threads.
        p_d = tl.max_contiguous(DS + (slot + e) * (BM * BN) + r4 * BN + c4, [1, 1, 2, 4])
        d = tl.load(tl.multiple_of(p_d, [4, 4, 4, 4]))
        near = top_a + tl.load(TOP_B + i_kv * tile_columns + i_c) < ROOM
        if near or not TANH:
            t1, t2 = add_rows(t1, t2, d, p_a, p_b + i_c * BN, padded_q, padded_k, slope, TANH, True, HALF, DU)
        else:
            t1, t2 = add_rows(t1, t2, d, p_a, p_b + i_c * BN, padded_q, padded_k, slope, TANH, False, HALF, DU)
    if first < last:
        r2d = i_r * BM + tl.arange(0, RM)[:, None] * TM + tl.arange(0, TM)[None, :]
        for u in tl.static_range(DU):
            i_u = i_d * DU + u
            x1, x2 = tl.sum(t1[u], 2), tl.sum(t2[u], 2)
            w = tl.load(W + i_h * DP + i_u)
            p_q = DQ + (i_x.to(tl.int64) * DP + i_u) * padded_q + r2d
            p_d = DW + (i_x.to(tl.int64) * tile_rows + i_r) * DP + i_u
            total = tl.sum(tl.sum(x1, 1), 0)
            if TANH:
                tl.store(p_q, tl.load(p_q) + 4.0 * w * (x1 - x2))
                tl.store(p_d, tl.load(p_d) - 2.0 * total)
            else:
                tl.store(p_q, tl.load(p_q) + w * x2)
                tl.store(p_d, tl.load(p_d) + total)


@triton.jit(do_not_specialize=["heads", "kv_heads", "tile_rows", "tile_columns", "group_x", "copy_x", "first_copy",
                               "first_entry", "last_entry"])  # fmt: skip
def columns_kernel(
    A, B, W, TOP_A, TOP_B, DS, FIRST, LAST, ORDER, OWNER, DK, heads, kv_heads, padded_q, padded_k, tile_rows, tile_columns,
    group_x, copy_x, first_copy, first_entry, last_entry, slope,
    TANH: tl.constexpr, DP: tl.constexpr, DU: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """dk = weight Σ_i ds · act′, for the keys of one column of tiles and DU of the d."""
    BM: tl.constexpr = RM * TM
    BN: tl.constexpr = RN * TN
    PLANES: tl.constexpr = 2 if TANH else 1
    HALF: tl.constexpr = DP // 2
    PARTS: tl.constexpr = DP // DU
    i_d = tl.program_id(0) % PARTS
    line = tl.program_id(0) // PARTS
    i_c = line % tile_columns
    i_x = line // tile_columns * group_x + (first_copy + tl.program_id(1)) * copy_x
    i_b, i_h = i_x // heads, i_x % heads
    i_kv = i_b * kv_heads + i_h // (heads // kv_heads)
    first, last = tl.load(FIRST + line), tl.load(LAST + line)

    r4 = tl.arange(0, RM)[:, None, None, None] * TM + tl.arange(0, TM)[None, None, :, None]
    c4 = tl.arange(0, RN)[None, :, None, None] * TN + tl.arange(0, TN)[None, None, None, :]
    p_a = A + (i_x.to(tl.int64) * PLANES * HALF + i_d * (DU // 2)) * padded_q + r4
    p_b = B + (i_kv.to(tl.int64) * PLANES * HALF + i_d * (DU // 2)) * padded_k + i_c * BN + c4
    slot = tl.program_id(1).to(tl.int64) * (last_entry - first_entry) - first_entry
    top_b = tl.load(TOP_B + i_kv * tile_columns + i_c)
    t = ()
    for _ in tl.static_range(DU):
        t = t + (tl.zeros([RN, TM, TN], tl.float32),)
    for x in range(first, last):
        e = tl.load(ORDER + x)
        i_r = tl.load(OWNER + e) % tile_rows
        # Hints for threads on the last two axes with one number each: left alone the compiler gives a thread four
        # neighbours in TN, and every sum over a patch crosses threads.
        p_d = tl.max_contiguous(DS + (slot + e) * (BM * BN) + r4 * BN + c4, [1, 1, 2, 4])
        d = tl.load(tl.multiple_of(p_d, [4, 4, 4, 4]))
        near = top_b + tl.load(TOP_A + i_x * tile_rows + i_r) < ROOM
        if near or not TANH:
            t = add_columns(t, d, p_a + i_r * BM, p_b, padded_q, padded_k, slope, TANH, True, HALF, DU)
        else:
            t = add_columns(t, d, p_a + i_r * BM, p_b, padded_q, padded_k, slope, TANH, False, HALF, DU)
    if first < last:
        c2d = i_c * BN + tl.arange(0, RN)[:, None] * TN + tl.arange(0, TN)[None, :]
        for u in tl.static_range(DU):
            i_u = i_d * DU + u
            w = tl.load(W + i_h * DP + i_u)
            if TANH:
                w *= 4.0
            p_k = DK + (i_x.to(tl.int64) * DP + i_u) * padded_k + c2d
            tl.store(p_k, tl.load(p_k) + w * tl.sum(t[u], 1))


@triton.jit(do_not_specialize=["queries", "keys", "tile_rows", "tile_columns", "group_x", "copy_x", "first_copy",
                               "first_entry", "last_entry"])  # fmt: skip
def values_kernel(
    P, GRAD, FIRST, LAST, ORDER, OWNER, DV, queries, keys, tile_rows, tile_columns,
    group_x, copy_x, first_copy, first_entry, last_entry,
    DIM_V: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dv = Σ_i p · d_output, for the keys of one column of tiles and BV of the value's numbers."""
    line = tl.program_id(0)
    i_c = line % tile_columns
    i_x = (line // tile_columns * group_x + (first_copy + tl.program_id(1)) * copy_x).to(tl.int64)
    slot = tl.program_id(1).to(tl.int64) * (last_entry - first_entry) - first_entry
    o_r, o_c, o_v = tl.arange(0, BM), tl.arange(0, BN), tl.program_id(2) * BV + tl.arange(0, BV)
    first, last = tl.load(FIRST + line), tl.load(LAST + line)
    acc = tl.zeros([BN, BV], tl.float32)
    for x in range(first, last):
        e = tl.load(ORDER + x)
        o_i = tl.load(OWNER + e) % tile_rows * BM + o_r
        p = tl.load(P + (slot + e) * (BM * BN) + o_r[None, :] * BN + o_c[:, None])
        g = tl.load(GRAD + (i_x * queries + o_i)[:, None] * DIM_V + o_v[None, :],
                    mask=(o_i < queries)[:, None] & (o_v < DIM_V)[None, :], other=0.0)  # fmt: skip
        acc = tl.dot(p, g, acc, input_precision="ieee")
    if first < last:
        o_j = i_c * BN + o_c
        p_d = DV + (i_x * keys + o_j)[:, None] * DIM_V + o_v[None, :]
        m = (o_j < keys)[:, None] & (o_v < DIM_V)[None, :]
        tl.store(p_d, tl.load(p_d, mask=m, other=0.0) + acc, mask=m)


@triton.jit(do_not_specialize=["keys", "tile_rows", "lines", "length", "group_x", "copy_x", "first_copy", "first_entry",
                               "last_entry"])  # fmt: skip
def distances_kernel(
    DS, STARTS, TILE, SUMS, keys, tile_rows, lines, length, group_x, copy_x, first_copy, first_entry, last_entry,
    BM: tl.constexpr, BN: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """Σ ds over the pairs at each distance; one of `lines` programs takes every `lines`-th row of tiles.

    SUMS `[batch · heads, lines, length]` has distance row − j at place row − j + keys − 1 + BN.
    """
    group, i_l = tl.program_id(0) // lines, tl.program_id(0) % lines
    i_x = (group * group_x + (first_copy + tl.program_id(1)) * copy_x).to(tl.int64)
    slot = tl.program_id(1).to(tl.int64) * (last_entry - first_entry) - first_entry
    o_r, o_x = tl.arange(0, BM)[:, None], tl.arange(0, BX)
    column = o_r + BN - 1 - o_x[None, :]  # place x of a tile is distance x − (BN − 1)
    inside = (column >= 0) & (column < BN)
    for i_r in range(i_l, tile_rows, lines):
        first = tl.maximum(tl.load(STARTS + group * (tile_rows + 1) + i_r), first_entry)
        last = tl.minimum(tl.load(STARTS + group * (tile_rows + 1) + i_r + 1), last_entry)
        for e in range(first, last):
            d = tl.load(DS + (slot + e) * (BM * BN) + o_r * BN + column, mask=inside, other=0.0)
            start = i_r * BM - tl.load(TILE + e) * BN - (BN - 1) + keys - 1 + BN
            p_s = SUMS + (i_x * lines + i_l) * length + start + o_x
            tl.debug_barrier()  # the next tile's sums overlap, and other threads may hold them
            tl.store(p_s, tl.load(p_s) + tl.sum(d, 0))
            tl.debug_barrier()


@dataclass(frozen=True)
class Prepared:
    """A problem's tensors as kernels take them, for one size of tiles."""

    problem: Problem
    patch: Patch
    tiles: Lists
    weight: Tensor  # [heads, DP], float32, zeros beyond head_dim
    a: Tensor  # int64 [batch · heads, planes, DP / 2, padded queries]
    b: Tensor  # int64 [batch · kv_heads, planes, DP / 2, padded keys]
    top_a: Tensor  # [batch · heads, tile rows]
    top_b: Tensor  # [batch · kv_heads, tile columns]
    line_a: Tensor  # [batch · heads, padded queries]
    line_b: Tensor  # [batch · heads, padded keys]
    v: Tensor

    @property
    def tanh(self) -> bool:
        return self.problem.activation == "tanh"

    @property
    def dp(self) -> int:
        return self.weight.shape[1]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(padded queries, padded keys, tile rows, tile columns)."""
        return self.a.shape[-1], self.b.shape[-1], self.top_a.shape[1], self.top_b.shape[1]

    @property
    def numbers(self) -> tuple[Tensor, int, int]:
        """(table, its length, zero); any tensor where there is no table."""
        found = self.problem.numbers
        return (self.weight, 1, 0) if found is None else (found.table.contiguous(), found.table.shape[1], found.zero)


def prepare(p: Problem, patch: Patch) -> Prepared:
    """The exponentials (or the numbers themselves) with tokens last, and what can be summed once a token."""
    heads, kv_heads, head_dim = p.q.shape[1], p.k.shape[1], p.q.shape[3]
    dp = padded_dim(head_dim)
    weight = torch.nn.functional.pad(p.weight.float(), (0, dp - head_dim)).contiguous()  # type: ignore[union-attr]
    planes = 2 if p.activation == "tanh" else 1
    made = []
    for x, size, group, query in ((p.q, patch.rows, 1, True), (p.k, patch.columns, heads // kv_heads, False)):
        x = x if x.stride(-1) == 1 else x.contiguous()
        batch, own, tokens, _ = x.shape
        tiles = -(-tokens // size)
        out = x.new_empty(batch * own, planes, dp // 2, tiles * size, dtype=torch.int64)
        top, line = (
            x.new_empty(n, m, dtype=torch.float32) for n, m in ((batch * own, tiles), (batch * heads, tiles * size))
        )
        prepare_kernel[(tiles, batch * own)](
            x, weight, out, top, line, *x.stride()[:3], own, group, tokens, tiles * size, head_dim, 0.5 + 0.5 * p.slope,
            TANH=planes == 2, QUERY=query, DP=dp, BT=size, BP=min(16, dp // 2), num_warps=4,
        )  # fmt: skip
        made.append((out, top, line))
    (a, top_a, line_a), (b, top_b, line_b) = made
    v = p.v if p.v.stride(-1) == 1 else p.v.contiguous()
    tiles = lists(p.mask, p.grid, patch.rows, patch.columns)
    return Prepared(p, patch, tiles, weight, a, b, top_a, top_b, line_a, line_b, v)


def padded_dim(head_dim: int) -> int:
    """head_dim as the loops over d take it: even, and a multiple of a turn."""
    return next((n for n in (2, 4) if head_dim <= n), -(-head_dim // OWNED) * OWNED)


@dataclass(frozen=True)
class Entries:
    """The listed tiles, numbered as in `Lists.tile`, and the same ones column by column."""

    owner: Tensor  # int32 [n]: group · tile rows + row
    order: Tensor  # int32 [n]: the tiles by (group, column, row)
    sorted: Tensor  # int64 [n]: (group · tile columns + column) · n + tile, in that order
    columns: int  # tile columns of all groups
    cuts: dict[tuple[int, int], tuple[Tensor, Tensor]]

    def between(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Where in `order` each column's tiles of number first … last − 1 begin and end."""
        if (first, last) not in self.cuts:
            lines = torch.arange(self.columns, device=self.order.device) * max(len(self.order), 1)
            self.cuts[first, last] = tuple(torch.searchsorted(self.sorted, lines + x).int() for x in (first, last))  # type: ignore[assignment]
        return self.cuts[first, last]


_entries: weakref.WeakKeyDictionary[Lists, Entries] = weakref.WeakKeyDictionary()


def entries_of(tiles: Lists, columns: int) -> Entries:
    """The entries of lists whose tiles stand in so many columns; remembered as long as the lists are."""
    if tiles not in _entries:
        starts, n = tiles.starts.long(), len(tiles.tile)
        rows = starts.shape[1] - 1
        owner = torch.repeat_interleave((starts[:, 1:] - starts[:, :-1]).flatten(), output_size=n)
        line = owner // rows * columns + tiles.tile
        found, order = torch.sort(line * n + torch.arange(n, device=line.device))
        _entries[tiles] = Entries(owner.int(), order.int(), found, columns * tiles.groups, {})
    return _entries[tiles]


class Part(NamedTuple):
    """Tiles first … last − 1 of each of some copies: the (batch, head) that share a group's lists."""

    copy: int
    copies: int
    first: int
    last: int


def parts(ready: Prepared) -> tuple[list[Part], int, int]:
    """The work of backward in parts that fit the scratch; and (batch · heads) = group · group_x + copy · copy_x."""
    p, tiles, n = ready.problem, ready.tiles, len(ready.tiles.tile)
    batch, heads = p.q.shape[:2]
    room = max(SCRATCH // (ready.patch.rows * ready.patch.columns * (4 + p.v.element_size())), 1)
    copies = batch * heads // tiles.groups
    if tiles.batch_stride and tiles.head_stride:
        steps = (1, 0)
    elif tiles.batch_stride:
        steps = (heads, 1)
    else:
        steps = (1, heads) if tiles.head_stride else (0, 1)
    return list(cut(copies, n, room)), *steps


def cut(copies: int, n: int, room: int) -> Iterator[Part]:
    """Whole copies while they fit, else stretches of one copy's tiles."""
    step = min(max(room // max(n, 1), 1), 65535)
    for copy in range(0, copies, step):
        for first in range(0, n, room):
            yield Part(copy, min(step, copies - copy), first, min(first + room, n))


def forward(p: Problem) -> tuple[Tensor, Tensor]:
    """(output, lse) of an additive problem."""
    batch, heads, queries, _ = p.q.shape
    kv_heads, keys, dim_v = p.v.shape[1:]
    output, lse = p.v.new_empty(batch, heads, queries, dim_v), p.v.new_empty(batch, heads, queries, dtype=torch.float32)
    if not output.numel() or not keys:
        return output.zero_(), lse.fill_(-math.inf)
    ready = prepare(p, FORWARD)
    rm, rn, tm, tn, warps = FORWARD
    table, entries, zero = ready.numbers
    tiles, sizes = ready.tiles, ready.sizes
    forward_kernel[(sizes[2] * batch * heads,)](
        ready.a, ready.b, ready.weight, ready.top_a, ready.top_b, ready.line_a, ready.line_b, ready.v, table,
        ready.weight if p.seed is None else p.seed, tiles.starts, tiles.tile, tiles.bits, tiles.packed, output, lse,
        *ready.v.stride()[:3], heads, kv_heads, queries, keys, *sizes, tiles.batch_stride, tiles.head_stride,
        entries, zero, threshold(p.dropout), kept_scale(p.dropout), p.slope,
        DIM_V=dim_v, TANH=ready.tanh, NUMBERS=p.numbers is not None, DROPOUT=p.seed is not None, DP=ready.dp,
        BV=max(triton.next_power_of_2(dim_v), 16), UP=min(PAIRS, ready.dp // 2), RM=rm, RN=rn, TM=tm, TN=tn,
        num_warps=warps, num_stages=1,
    )  # fmt: skip
    return output, lse


def backward(p: Problem, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight and numbers; None for asking and table, which additive scores do not have."""
    batch, heads, queries, head_dim = p.q.shape
    kv_heads, keys, dim_v = p.v.shape[1:]
    if not output.numel() or not keys:
        return [
            *(
                None if x is None else torch.zeros_like(x)
                for x in (p.q, p.k, p.v, p.weight, p.numbers and p.numbers.table)
            ),
            None,
            None,
        ]
    ready = prepare(p, SCORES)
    sums = Sums(ready)
    walk(ready, sums, grad.contiguous(), output.contiguous(), lse.contiguous())
    by_head = lambda x: (
        x.view(batch, kv_heads, -1, *x.shape[1:]).sum(2) if kv_heads < heads else x.view(batch, heads, *x.shape[1:])
    )  # noqa: E731
    return [
        sums.q.view(batch, heads, *sums.q.shape[1:])[:, :, :head_dim, :queries].mT.to(p.q.dtype).contiguous(),
        by_head(sums.k)[:, :, :head_dim, :keys].mT.to(p.k.dtype).contiguous(),
        by_head(sums.v).to(p.v.dtype),
        sums.weight.view(batch, heads, -1, ready.dp).sum((0, 2))[:, :head_dim],
        folded(sums, ready) if p.numbers is not None else None,
        None,
        None,
    ]


class Sums:
    """What backward adds up, part by part, in float32; tokens last where a program owns a few d."""

    def __init__(self, ready: Prepared):
        p = ready.problem
        padded_q, padded_k, tile_rows, _ = ready.sizes
        batch, heads = p.q.shape[:2]
        zeros = lambda *sizes: p.q.new_zeros(batch * heads, *sizes, dtype=torch.float32)  # noqa: E731
        self.q, self.k, self.v = zeros(ready.dp, padded_q), zeros(ready.dp, padded_k), zeros(*p.v.shape[2:])
        self.weight = zeros(tile_rows, ready.dp)
        self.reach = triton.next_power_of_2(ready.patch.rows + ready.patch.columns - 1)  # distances in a tile
        length = padded_q + p.k.shape[2] + ready.patch.columns + self.reach
        self.distances = zeros(min(LINES, tile_rows), length) if p.numbers is not None else None


def folded(sums: Sums, ready: Prepared) -> Tensor:
    """Sums by distance as the gradient of the table, whose ends serve the distances beyond them."""
    _, n, zero = ready.numbers
    batch, heads, queries, _ = ready.problem.q.shape
    count = queries + ready.problem.k.shape[2] - 1
    line = sums.distances.view(batch, heads, *sums.distances.shape[1:]).sum((0, 2))  # type: ignore[union-attr]
    line = line[:, ready.patch.columns : ready.patch.columns + count]  # [heads, count]
    shift = zero - queries + 1
    low, high = (min(max(x, 0), count) for x in (-shift, n - shift))
    found = line.new_zeros(heads, n)
    found[:, low + shift : high + shift] = line[:, low:high]
    found[:, 0] += line[:, :low].sum(1)
    found[:, -1] += line[:, high:].sum(1)
    return found


def walk(ready: Prepared, sums: Sums, grad: Tensor, output: Tensor, lse: Tensor) -> None:
    """Add every part's share to the sums."""
    p, tiles, (padded_q, padded_k, tile_rows, tile_columns) = ready.problem, ready.tiles, ready.sizes
    batch, heads, queries, _ = p.q.shape
    kv_heads, keys, dim_v = p.v.shape[1:]
    table, entries, zero = ready.numbers
    rows, columns, n = ready.patch.rows, ready.patch.columns, len(tiles.tile)
    wide = max(triton.next_power_of_2(dim_v), 16)
    delta, level = (torch.empty_like(ready.line_a) for _ in range(2))
    delta_kernel[(tile_rows, batch * heads)](
        grad, output, lse, ready.line_a, delta, level, queries, padded_q, DIM_V=dim_v, BT=rows, BV=min(wide, 64), num_warps=4
    )
    listed = entries_of(tiles, tile_columns)
    work, group_x, copy_x = parts(ready)
    slots = max((part.copies * (part.last - part.first) for part in work), default=0)
    ds, weights = (p.v.new_empty(slots, rows, columns, dtype=x) for x in (torch.float32, p.v.dtype))
    seed = ready.weight if p.seed is None else p.seed
    owned = min(OWNED, ready.dp)
    both = ready.a, ready.b, ready.weight, ready.top_a, ready.top_b
    shared = dict(TANH=ready.tanh, DP=ready.dp)
    for part in work:
        span = group_x, copy_x, part.copy, part.first
        first, last = listed.between(part.first, part.last)
        scores_kernel[(part.last - part.first, part.copies)](
            *both, ready.line_b, ready.v, table, seed, listed.owner, tiles.tile, tiles.bits, tiles.packed, grad, delta, level,
            ds, weights, *ready.v.stride()[:3], heads, kv_heads, queries, keys, *ready.sizes, *span, entries, zero,
            threshold(p.dropout), kept_scale(p.dropout), p.slope, DIM_V=dim_v, **shared, NUMBERS=p.numbers is not None,
            DROPOUT=p.seed is not None, BV=min(wide, 64), UP=min(PAIRS, ready.dp // 2), **axes(SCORES), num_stages=1,
        )  # fmt: skip
        rows_kernel[(ready.dp // owned * tile_rows * tiles.groups, part.copies)](
            *both, ds, tiles.starts, tiles.tile, sums.q, sums.weight, heads, kv_heads, *ready.sizes, *span, part.last,
            p.slope, **shared, DU=owned, **axes(BY_ROW), num_stages=1,
        )  # fmt: skip
        columns_kernel[(ready.dp // owned * listed.columns, part.copies)](
            *both, ds, first, last, listed.order, listed.owner, sums.k, heads, kv_heads, *ready.sizes, *span, part.last,
            p.slope, **shared, DU=owned, **axes(BY_COLUMN), num_stages=1,
        )  # fmt: skip
        values_kernel[(listed.columns, part.copies, -(-dim_v // min(wide, 128)))](
            weights, grad, first, last, listed.order, listed.owner, sums.v, queries, keys, tile_rows, tile_columns, *span,
            part.last, DIM_V=dim_v, BM=rows, BN=columns, BV=min(wide, 128), num_warps=8, num_stages=2,
        )  # fmt: skip
        if sums.distances is not None:
            lines, length = sums.distances.shape[1:]
            distances_kernel[(lines * tiles.groups, part.copies)](
                ds, tiles.starts, tiles.tile, sums.distances, keys, tile_rows, lines, length, *span, part.last,
                BM=rows, BN=columns, BX=sums.reach, num_warps=8,
            )  # fmt: skip


def axes(patch: Patch) -> dict[str, int]:
    """A patch as a kernel's arguments."""
    return dict(RM=patch.rm, RN=patch.rn, TM=patch.tm, TN=patch.tn, num_warps=patch.warps)
