"""The kernels of additive attention; `additive.py` says what they compute together and runs them.

A thread owns a patch of queries × keys: tiles are `[RM, RN, TM, TN]` with threads on the last two axes and registers on
the first two, so that a step in d loads RM + RN numbers for RM · RN elements.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..prelude import allowed, kept, row_keys

ROOM = tl.constexpr(21.5)  # max|q| + max|k| below which (1 + e^2(q+k))² is finite
ROOM_OF_FOUR = tl.constexpr(10.5)  # and below which its square is, with weights of up to thousands beside it

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
    p_x, p_w, p_out, p_top, p_line, stride_b, stride_h, stride_n, heads, group, tokens, padded, head_dim, slope,
    TANH: tl.constexpr, QUERY: tl.constexpr, DP: tl.constexpr, BT: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """x in float32, tokens last and d in pairs; e^2x too for tanh; the largest |x| of a tile; what a token adds alone.

    p_line, in units of log 2: Σ weight for tanh's queries; slope · Σ weight · x for leaky ReLU.
    """
    i_t = tl.program_id(0)
    i_x = tl.program_id(1).to(tl.int64)
    i_b, i_h = i_x // heads, i_x % heads
    HALF: tl.constexpr = DP // 2
    PLANES: tl.constexpr = 2 if TANH else 1
    o_n = i_t * BT + tl.arange(0, BT)
    p_token = p_x + i_b * stride_b + i_h * stride_h + o_n.to(tl.int64)[None, :] * stride_n
    p_pairs = p_out + i_x * PLANES * HALF * padded + o_n[None, :]
    top = tl.zeros([BT], tl.float32)
    for p in range(0, HALF, BP):
        o_p = p + tl.arange(0, BP)[:, None]
        m = o_n[None, :] < tokens
        even = tl.load(p_token + 2 * o_p, mask=m & (2 * o_p < head_dim), other=0.0).to(tl.float32)
        odd = tl.load(p_token + 2 * o_p + 1, mask=m & (2 * o_p + 1 < head_dim), other=0.0).to(tl.float32)
        top = tl.maximum(top, tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), 0))
        tl.store(p_pairs + o_p * padded, joined(even, odd), mask=o_p < HALF)
        if TANH:
            tl.store(p_pairs + (HALF + o_p) * padded, joined(twice_exp(even), twice_exp(odd)), mask=o_p < HALF)
    tl.store(p_top + i_x * tl.num_programs(0) + i_t, tl.max(top, 0))
    if QUERY or not TANH:
        for g in range(0, group):
            h = i_h * group + g
            total = tl.zeros([BT], tl.float32)
            for p in range(0, DP, BP):
                o_d = p + tl.arange(0, BP)[:, None]
                w = tl.load(p_w + h * DP + o_d, mask=o_d < DP, other=0.0)
                if TANH:
                    x = tl.full([BP, BT], 1.0, tl.float32)
                else:
                    m = (o_n[None, :] < tokens) & (o_d < head_dim)
                    x = slope * tl.load(p_token + o_d, mask=m, other=0.0).to(tl.float32)
                total += tl.sum(w * x, 0)
            tl.store(p_line + (i_b * heads * group + h) * padded + o_n, total * LOG2E)


@triton.jit
def powers(p_a4, p_b4, u, padded_q, padded_k, HALF: tl.constexpr):
    """e^2q and e^2k of pair u of d; of the last one where there is no such pair."""
    u = HALF + tl.minimum(u, HALF - 1)
    return tl.load(p_a4 + u * padded_q), tl.load(p_b4 + u * padded_k)


@triton.jit
def fraction(a, b, p_weight, u):
    """w₁/m₁ + w₂/m₂ of pair u of d, as numerator and denominator."""
    a1, a2 = halves(a)
    b1, b2 = halves(b)
    w1, w2 = tl.load(p_weight + 2 * u), tl.load(p_weight + 2 * u + 1)
    m1, m2 = tl.fma(a1, b1, 1.0), tl.fma(a2, b2, 1.0)
    return w1 * m2 + w2 * m1, m1 * m2


@triton.jit
def patch_scores(
    p_a4, p_b4, p_weight, padded_q, padded_k, reach, slope,
    TANH: tl.constexpr, FOURS: tl.constexpr, DP: tl.constexpr, UP: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """Scores `[rows, columns]` in units of log 2, without p_line: −2 Σ w · r, or (1 − slope) · Σ w · max(x, 0)."""
    HALF: tl.constexpr = DP // 2
    s = tl.zeros([RM, RN, TM, TN], tl.float32)
    if TANH:
        # What the next turn needs is loaded before this one's is used.
        a, b = powers(p_a4, p_b4, 0, padded_q, padded_k, HALF)
        if FOURS and reach < ROOM_OF_FOUR:
            for p in range(0, HALF, UP):
                for u in tl.static_range(UP // 2):
                    c, d = powers(p_a4, p_b4, p + 2 * u + 1, padded_q, padded_k, HALF)
                    n1, m1 = fraction(a, b, p_weight, p + 2 * u)
                    a, b = powers(p_a4, p_b4, p + 2 * u + 2, padded_q, padded_k, HALF)
                    n2, m2 = fraction(c, d, p_weight, p + 2 * u + 1)
                    s += (n1 * m2 + n2 * m1) * inverse(m1 * m2)
        elif reach < ROOM:
            for p in range(0, HALF, UP):
                for u in tl.static_range(UP):
                    c, d = powers(p_a4, p_b4, p + u + 1, padded_q, padded_k, HALF)
                    n, m = fraction(a, b, p_weight, p + u)
                    s += n * inverse(m)
                    a, b = c, d
        else:
            for p in range(0, HALF):
                a1, a2 = halves(tl.load(p_a4 + p * padded_q))
                b1, b2 = halves(tl.load(p_b4 + p * padded_k))
                w1, w2 = tl.load(p_weight + 2 * p), tl.load(p_weight + 2 * p + 1)
                s += w1 * sigma(a1 + b1) + w2 * sigma(a2 + b2)
        s *= -2.0 * LOG2E
    else:
        for p in range(0, HALF, UP):
            for u in tl.static_range(UP):
                a1, a2 = halves(tl.load(p_a4 + (p + u) * padded_q))
                b1, b2 = halves(tl.load(p_b4 + (p + u) * padded_k))
                w1, w2 = tl.load(p_weight + 2 * (p + u)), tl.load(p_weight + 2 * (p + u) + 1)
                s += w1 * tl.maximum(a1 + b1, 0.0)
                s += w2 * tl.maximum(a2 + b2, 0.0)
        s *= (1.0 - slope) * LOG2E
    return tl.reshape(tl.permute(s, (0, 2, 1, 3)), (RM * TM, RN * TN))


@triton.jit
def whole_scores(
    s, p_key, p_number, p_packed, bits, o_r, o_c, distance, last,
    TANH: tl.constexpr, NUMBERS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A tile's scores with what keys and distances add, −∞ where forbidden; `distance` is that of (0, 0), plus zero."""
    if not TANH:
        s += tl.load(p_key + o_c)[None, :]
    if NUMBERS:
        o_t = tl.minimum(tl.maximum(distance + o_r[:, None] - o_c[None, :], 0), last)
        s += tl.load(p_number + o_t).to(tl.float32) * LOG2E
    if bits >= 0:
        s = tl.where(allowed(p_packed, bits, BM, BN, False), s, -float("inf"))
    return s


@triton.jit(do_not_specialize=["heads", "kv_heads", "queries", "keys", "tile_rows", "tile_columns", "group_b",
                               "group_h", "entries", "zero", "threshold"])  # fmt: skip
def forward_kernel(
    p_a, p_b, p_w, p_top_a, p_top_b, p_line_a, p_line_b, p_v, p_numbers, p_seed, p_starts, p_tile, p_bits, p_packed,
    p_out, p_lse,
    stride_vb, stride_vh, stride_vn, heads, kv_heads, queries, keys, padded_q, padded_k, tile_rows, tile_columns,
    group_b, group_h, entries, zero, threshold, scale, slope,
    TANH: tl.constexpr, NUMBERS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    DP: tl.constexpr, DIM_V: tl.constexpr, BV: tl.constexpr, UP: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """output = Σ_j p · v / l and lse = m + log l over one row of tiles, with a running maximum m and sum l (total)."""
    BM: tl.constexpr = RM * TM
    BN: tl.constexpr = RN * TN
    PLANES: tl.constexpr = 2 if TANH else 1
    # Of float32 backward's p = exp(s − lse) wants the very scores that lse was made of, and it takes pairs.
    FOURS: tl.constexpr = UP % 2 == 0 and p_v.dtype.element_ty != tl.float32
    # Later rows first: under a causal mask theirs are the long lists.
    i_r = tile_rows - 1 - tl.program_id(0) % tile_rows
    i_x = tl.program_id(0) // tile_rows
    i_b, i_h = i_x // heads, i_x % heads
    i_kv = i_b * kv_heads + i_h // (heads // kv_heads)
    group = i_b * group_b + i_h * group_h

    o_r, o_c, o_v = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BV)
    r4 = tl.arange(0, RM)[:, None, None, None] * TM + tl.arange(0, TM)[None, None, :, None]
    c4 = tl.arange(0, RN)[None, :, None, None] * TN + tl.arange(0, TN)[None, None, None, :]
    p_a4 = p_a + i_x.to(tl.int64) * (PLANES * DP // 2) * padded_q + i_r * BM + r4
    p_b4 = p_b + i_kv.to(tl.int64) * (PLANES * DP // 2) * padded_k + c4
    p_value = p_v + i_b.to(tl.int64) * stride_vb + (i_h // (heads // kv_heads)).to(tl.int64) * stride_vh
    p_weight = p_w + i_h * DP
    top_a = tl.load(p_top_a + i_x * tile_rows + i_r)
    if DROPOUT:
        b_keys = row_keys(p_seed, i_b, i_h, i_r * BM + o_r + keys - queries)

    m = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BV], tl.float32)
    for e in range(
        tl.load(p_starts + group * (tile_rows + 1) + i_r), tl.load(p_starts + group * (tile_rows + 1) + i_r + 1)
    ):
        i_c = tl.load(p_tile + e)
        bits = tl.load(p_bits + e)
        reach = top_a + tl.load(p_top_b + i_kv * tile_columns + i_c)
        p_c4 = p_b4 + i_c * BN
        s = patch_scores(p_a4, p_c4, p_weight, padded_q, padded_k, reach, slope, TANH, FOURS, DP, UP, RM, RN, TM, TN)
        distance = i_r * BM + keys - queries - i_c * BN + zero
        p_key = p_line_b + i_x.to(tl.int64) * padded_k + i_c * BN
        s = whole_scores(s, p_key, p_numbers + i_h * entries, p_packed, bits, o_r, o_c, distance, entries - 1,
                         TANH, NUMBERS, BM, BN)  # fmt: skip
        top = tl.maximum(m, tl.max(s, 1))
        safe = tl.where(top == -float("inf"), 0.0, top)
        p = tl.exp2(s - safe[:, None])
        fade = tl.exp2(m - safe)
        total = total * fade + tl.sum(p, 1)
        m = top
        if DROPOUT:
            p = tl.where(kept(b_keys, i_c * BN + o_c, threshold, False), p * scale, 0.0)
        o_j = i_c * BN + o_c
        v = tl.load(p_value + o_j.to(tl.int64)[:, None] * stride_vn + o_v[None, :],
                    mask=(o_j < keys)[:, None] & (o_v < DIM_V)[None, :], other=0.0)  # fmt: skip
        high = p.to(v.dtype)
        acc = tl.dot(high, v, acc * fade[:, None], input_precision=PRECISION)
        if v.dtype != tl.float32:
            # The rest of the weights too: δ = Σ output · d_output decides all gradients, the weight's in float32.
            acc = tl.dot((p - high.to(tl.float32)).to(v.dtype), v, acc)

    alive = total > 0
    acc = acc / tl.where(alive, total, 1.0)[:, None]
    o_i = i_r * BM + o_r
    line = tl.load(p_line_a + i_x.to(tl.int64) * padded_q + o_i)
    lse = tl.where(alive, (m + tl.log2(tl.where(alive, total, 1.0)) + line) * LN2, -float("inf"))
    p_o = p_out + (i_x.to(tl.int64) * queries + o_i)[:, None] * DIM_V + o_v[None, :]
    tl.store(p_o, acc.to(p_out.dtype.element_ty), mask=(o_i < queries)[:, None] & (o_v < DIM_V)[None, :])
    tl.store(p_lse + i_x.to(tl.int64) * queries + o_i, lse, mask=o_i < queries)


@triton.jit(do_not_specialize=["queries"])
def delta_kernel(
    p_grad, p_out, p_lse, p_line, p_delta, p_level, queries, padded_q,
    DIM_V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """δ = Σ d_output · output, and the lse in units of log 2 less p_line (∞ for rows without keys)."""
    i_x = tl.program_id(1).to(tl.int64)
    o_i = tl.program_id(0) * BT + tl.arange(0, BT)
    total = tl.zeros([BT], tl.float32)
    for v in range(0, DIM_V, BV):
        o_v = v + tl.arange(0, BV)
        m = (o_i < queries)[:, None] & (o_v < DIM_V)[None, :]
        o = (i_x * queries + o_i)[:, None] * DIM_V + o_v[None, :]
        g = tl.load(p_grad + o, mask=m, other=0.0).to(tl.float32)
        total += tl.sum(g * tl.load(p_out + o, mask=m, other=0.0).to(tl.float32), 1)
    lse = tl.load(p_lse + i_x * queries + o_i, mask=o_i < queries, other=-float("inf"))
    level = lse * LOG2E - tl.load(p_line + i_x * padded_q + o_i)
    tl.store(p_delta + i_x * padded_q + o_i, total)
    tl.store(p_level + i_x * padded_q + o_i, tl.where(lse == -float("inf"), float("inf"), level))


@triton.jit(do_not_specialize=["heads", "kv_heads", "queries", "keys", "tile_rows", "tile_columns", "group_x", "copy_x",
                               "first_copy", "first_entry", "entries", "zero", "threshold"])  # fmt: skip
def scores_kernel(
    p_a, p_b, p_w, p_top_a, p_top_b, p_line_b, p_v, p_numbers, p_seed, p_owner, p_tile, p_bits, p_packed,
    p_grad, p_delta, p_level, p_ds, p_p,
    stride_vb, stride_vh, stride_vn, heads, kv_heads, queries, keys, padded_q, padded_k, tile_rows, tile_columns,
    group_x, copy_x, first_copy, first_entry, entries, zero, threshold, scale, slope,
    TANH: tl.constexpr, NUMBERS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    DP: tl.constexpr, DIM_V: tl.constexpr, BV: tl.constexpr, UP: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """p = exp(s − lse) (dropped: p · kept) and ds = p · (kept · d_output vᵀ − δ) of one tile, to scratch."""
    BM: tl.constexpr = RM * TM
    BN: tl.constexpr = RN * TN
    PLANES: tl.constexpr = 2 if TANH else 1
    e = first_entry + tl.program_id(0)
    slot = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    owner = tl.load(p_owner + e)
    i_r = owner % tile_rows
    i_c = tl.load(p_tile + e)
    i_x = owner // tile_rows * group_x + (first_copy + tl.program_id(1)) * copy_x
    i_b, i_h = i_x // heads, i_x % heads
    i_kv = i_b * kv_heads + i_h // (heads // kv_heads)

    o_r, o_c = tl.arange(0, BM), tl.arange(0, BN)
    r4 = tl.arange(0, RM)[:, None, None, None] * TM + tl.arange(0, TM)[None, None, :, None]
    c4 = tl.arange(0, RN)[None, :, None, None] * TN + tl.arange(0, TN)[None, None, None, :]
    p_a4 = p_a + i_x.to(tl.int64) * (PLANES * DP // 2) * padded_q + i_r * BM + r4
    p_b4 = p_b + i_kv.to(tl.int64) * (PLANES * DP // 2) * padded_k + i_c * BN + c4
    reach = tl.load(p_top_a + i_x * tile_rows + i_r) + tl.load(p_top_b + i_kv * tile_columns + i_c)
    # Pairs alone: the numbers of four would not fit the registers.
    s = patch_scores(p_a4, p_b4, p_w + i_h * DP, padded_q, padded_k, reach, slope, TANH, False, DP, UP, RM, RN, TM, TN)
    distance = i_r * BM + keys - queries - i_c * BN + zero
    p_key = p_line_b + i_x.to(tl.int64) * padded_k + i_c * BN
    bits = tl.load(p_bits + e)
    s = whole_scores(s, p_key, p_numbers + i_h * entries, p_packed, bits, o_r, o_c, distance, entries - 1,
                     TANH, NUMBERS, BM, BN)  # fmt: skip
    o_i, o_j = i_r * BM + o_r, i_c * BN + o_c
    p = tl.exp2(s - tl.load(p_level + i_x.to(tl.int64) * padded_q + o_i)[:, None])

    d = tl.zeros([BM, BN], tl.float32)
    p_value = p_v + i_b.to(tl.int64) * stride_vb + (i_h // (heads // kv_heads)).to(tl.int64) * stride_vh
    p_g = p_grad + (i_x.to(tl.int64) * queries + o_i)[:, None] * DIM_V
    for c in range(0, DIM_V, BV):
        o_v = c + tl.arange(0, BV)
        g = tl.load(p_g + o_v[None, :], mask=(o_i < queries)[:, None] & (o_v < DIM_V)[None, :], other=0.0)
        v = tl.load(p_value + o_j.to(tl.int64)[None, :] * stride_vn + o_v[:, None],
                    mask=(o_j < keys)[None, :] & (o_v < DIM_V)[:, None], other=0.0)  # fmt: skip
        d = tl.dot(g, v, d, input_precision=PRECISION)
    dropped = p
    if DROPOUT:
        keep = kept(row_keys(p_seed, i_b, i_h, o_i + keys - queries), o_j, threshold, False)
        dropped = tl.where(keep, p * scale, 0.0)
        d = tl.where(keep, d * scale, 0.0)
    d = p * (d - tl.load(p_delta + i_x.to(tl.int64) * padded_q + o_i)[:, None])
    o = slot * (BM * BN) + o_r[:, None] * BN + o_c[None, :]
    tl.store(p_ds + o, d)
    tl.store(p_p + o, dropped.to(p_p.dtype.element_ty))


@triton.jit
def pair(p_a4, p_b4, u, padded_q, padded_k, TANH: tl.constexpr, NEAR: tl.constexpr, HALF: tl.constexpr):
    """r of two d for tanh, q + k for leaky ReLU; `[RM, RN, TM, TN]` each."""
    if TANH and NEAR:
        a1, a2 = halves(tl.load(p_a4 + (HALF + u) * padded_q))
        b1, b2 = halves(tl.load(p_b4 + (HALF + u) * padded_k))
        m1, m2 = tl.fma(a1, b1, 1.0), tl.fma(a2, b2, 1.0)
        both = inverse(m1 * m2)
        return both * m2, both * m1
    else:
        a1, a2 = halves(tl.load(p_a4 + u * padded_q))
        b1, b2 = halves(tl.load(p_b4 + u * padded_k))
        x1, x2 = a1 + b1, a2 + b2
        if TANH:
            x1, x2 = sigma(x1), sigma(x2)
        return x1, x2


@triton.jit
def add_rows(
    t1, t2, d, p_a4, p_b4, padded_q, padded_k, slope,
    TANH: tl.constexpr, NEAR: tl.constexpr, HALF: tl.constexpr, DU: tl.constexpr,
):  # fmt: skip
    """A tile's Σ_j ds · r and Σ_j ds · r² (leaky ReLU: ds · act and ds · act′), for DU of the d, added to t1 and t2."""
    n1, n2 = (), ()
    for u in tl.static_range(DU // 2):
        x1, x2 = pair(p_a4, p_b4, u, padded_q, padded_k, TANH, NEAR, HALF)
        if TANH:
            y1, y2 = d * x1, d * x2
            n1 += (t1[2 * u] + tl.sum(y1, 1), t1[2 * u + 1] + tl.sum(y2, 1))
            n2 += (t2[2 * u] + tl.sum(y1 * x1, 1), t2[2 * u + 1] + tl.sum(y2 * x2, 1))
        else:
            y1, y2 = tl.where(x1 > 0, d, d * slope), tl.where(x2 > 0, d, d * slope)
            n1 += (t1[2 * u] + tl.sum(y1 * x1, 1), t1[2 * u + 1] + tl.sum(y2 * x2, 1))
            n2 += (t2[2 * u] + tl.sum(y1, 1), t2[2 * u + 1] + tl.sum(y2, 1))
    return n1, n2


@triton.jit
def add_columns(
    t, d, p_a4, p_b4, padded_q, padded_k, slope,
    TANH: tl.constexpr, NEAR: tl.constexpr, HALF: tl.constexpr, DU: tl.constexpr,
):  # fmt: skip
    """A tile's Σ_i ds · (r − r²) (leaky ReLU: ds · act′) added to t, for DU of the d."""
    n = ()
    for u in tl.static_range(DU // 2):
        x1, x2 = pair(p_a4, p_b4, u, padded_q, padded_k, TANH, NEAR, HALF)
        if TANH:
            y1, y2 = d * (x1 - x1 * x1), d * (x2 - x2 * x2)
        else:
            y1, y2 = tl.where(x1 > 0, d, d * slope), tl.where(x2 > 0, d, d * slope)
        n += (t[2 * u] + tl.sum(y1, 0), t[2 * u + 1] + tl.sum(y2, 0))
    return n


@triton.jit(do_not_specialize=["heads", "kv_heads", "tile_rows", "tile_columns", "group_x", "copy_x", "first_copy",
                               "first_entry", "last_entry"])  # fmt: skip
def rows_kernel(
    p_a, p_b, p_w, p_top_a, p_top_b, p_ds, p_starts, p_tile, p_dq, p_dw,
    heads, kv_heads, padded_q, padded_k, tile_rows, tile_columns,
    group_x, copy_x, first_copy, first_entry, last_entry, slope,
    TANH: tl.constexpr, DP: tl.constexpr, DU: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """dq = weight Σ_j ds · act′, dweight = Σ_ij ds · act, for the rows of one row of tiles and DU of the d.

    tanh: act = 1 − 2r and act′ = 4 (r − r²), so both need Σ_j ds · r and Σ_j ds · r² alone, and Σ_j ds once for all d.
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
    first = tl.maximum(tl.load(p_starts + group * (tile_rows + 1) + i_r), first_entry)
    last = tl.minimum(tl.load(p_starts + group * (tile_rows + 1) + i_r + 1), last_entry)

    r4 = tl.arange(0, RM)[:, None, None, None] * TM + tl.arange(0, TM)[None, None, :, None]
    c4 = tl.arange(0, RN)[None, :, None, None] * TN + tl.arange(0, TN)[None, None, None, :]
    p_a4 = p_a + (i_x.to(tl.int64) * PLANES * HALF + i_d * (DU // 2)) * padded_q + i_r * BM + r4
    p_b4 = p_b + (i_kv.to(tl.int64) * PLANES * HALF + i_d * (DU // 2)) * padded_k + c4
    slot = tl.program_id(1).to(tl.int64) * (last_entry - first_entry) - first_entry
    top_a = tl.load(p_top_a + i_x * tile_rows + i_r)
    rest = tl.zeros([RM, TM, TN], tl.float32)
    t1, t2 = (), ()
    for _ in tl.static_range(DU):
        t1 += (tl.zeros([RM, TM, TN], tl.float32),)
        t2 += (tl.zeros([RM, TM, TN], tl.float32),)
    for e in range(first, last):
        i_c = tl.load(p_tile + e)
        # Hints for threads on the last two axes with one number each: left alone the compiler gives a thread four
        # neighbours in TN, and every sum over a patch crosses threads.
        p_tile4 = tl.max_contiguous(p_ds + (slot + e) * (BM * BN) + r4 * BN + c4, [1, 1, 2, 4])
        d = tl.load(tl.multiple_of(p_tile4, [4, 4, 4, 4]))
        if TANH:
            rest += tl.sum(d, 1)
        near = top_a + tl.load(p_top_b + i_kv * tile_columns + i_c) < ROOM
        if near or not TANH:
            t1, t2 = add_rows(t1, t2, d, p_a4, p_b4 + i_c * BN, padded_q, padded_k, slope, TANH, True, HALF, DU)
        else:
            t1, t2 = add_rows(t1, t2, d, p_a4, p_b4 + i_c * BN, padded_q, padded_k, slope, TANH, False, HALF, DU)
    if first < last:
        r2d = i_r * BM + tl.arange(0, RM)[:, None] * TM + tl.arange(0, TM)[None, :]
        for u in tl.static_range(DU):
            i_u = i_d * DU + u
            x1, x2 = tl.sum(t1[u], 2), tl.sum(t2[u], 2)
            w = tl.load(p_w + i_h * DP + i_u)
            p_row = p_dq + (i_x.to(tl.int64) * DP + i_u) * padded_q + r2d
            p_one = p_dw + (i_x.to(tl.int64) * tile_rows + i_r) * DP + i_u
            if TANH:
                tl.store(p_row, tl.load(p_row) + 4.0 * w * (x1 - x2))
                x1 = tl.sum(rest, 2) - 2.0 * x1
            else:
                tl.store(p_row, tl.load(p_row) + w * x2)
            tl.store(p_one, tl.load(p_one) + tl.sum(tl.sum(x1, 1), 0))


@triton.jit(do_not_specialize=["heads", "kv_heads", "tile_rows", "tile_columns", "group_x", "copy_x", "first_copy",
                               "first_entry", "last_entry"])  # fmt: skip
def columns_kernel(
    p_a, p_b, p_w, p_top_a, p_top_b, p_ds, p_first, p_last, p_order, p_owner, p_dk,
    heads, kv_heads, padded_q, padded_k, tile_rows, tile_columns,
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
    first, last = tl.load(p_first + line), tl.load(p_last + line)

    r4 = tl.arange(0, RM)[:, None, None, None] * TM + tl.arange(0, TM)[None, None, :, None]
    c4 = tl.arange(0, RN)[None, :, None, None] * TN + tl.arange(0, TN)[None, None, None, :]
    p_a4 = p_a + (i_x.to(tl.int64) * PLANES * HALF + i_d * (DU // 2)) * padded_q + r4
    p_b4 = p_b + (i_kv.to(tl.int64) * PLANES * HALF + i_d * (DU // 2)) * padded_k + i_c * BN + c4
    slot = tl.program_id(1).to(tl.int64) * (last_entry - first_entry) - first_entry
    top_b = tl.load(p_top_b + i_kv * tile_columns + i_c)
    t = ()
    for _ in tl.static_range(DU):
        t += (tl.zeros([RN, TM, TN], tl.float32),)
    for x in range(first, last):
        e = tl.load(p_order + x)
        i_r = tl.load(p_owner + e) % tile_rows
        # Hints for threads on the last two axes with one number each: left alone the compiler gives a thread four
        # neighbours in TN, and every sum over a patch crosses threads.
        p_tile4 = tl.max_contiguous(p_ds + (slot + e) * (BM * BN) + r4 * BN + c4, [1, 1, 2, 4])
        d = tl.load(tl.multiple_of(p_tile4, [4, 4, 4, 4]))
        near = top_b + tl.load(p_top_a + i_x * tile_rows + i_r) < ROOM
        if near or not TANH:
            t = add_columns(t, d, p_a4 + i_r * BM, p_b4, padded_q, padded_k, slope, TANH, True, HALF, DU)
        else:
            t = add_columns(t, d, p_a4 + i_r * BM, p_b4, padded_q, padded_k, slope, TANH, False, HALF, DU)
    if first < last:
        c2d = i_c * BN + tl.arange(0, RN)[:, None] * TN + tl.arange(0, TN)[None, :]
        for u in tl.static_range(DU):
            i_u = i_d * DU + u
            w = tl.load(p_w + i_h * DP + i_u)
            if TANH:
                w *= 4.0
            p_column = p_dk + (i_x.to(tl.int64) * DP + i_u) * padded_k + c2d
            tl.store(p_column, tl.load(p_column) + w * tl.sum(t[u], 1))


@triton.jit(do_not_specialize=["queries", "keys", "tile_rows", "tile_columns", "group_x", "copy_x", "first_copy",
                               "first_entry", "last_entry"])  # fmt: skip
def values_kernel(
    p_p, p_grad, p_first, p_last, p_order, p_owner, p_dv, queries, keys, tile_rows, tile_columns,
    group_x, copy_x, first_copy, first_entry, last_entry,
    DIM_V: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dv = Σ_i p · d_output, for the keys of one column of tiles and BV of the value's numbers."""
    line = tl.program_id(0)
    i_c = line % tile_columns
    i_x = (line // tile_columns * group_x + (first_copy + tl.program_id(1)) * copy_x).to(tl.int64)
    slot = tl.program_id(1).to(tl.int64) * (last_entry - first_entry) - first_entry
    o_r, o_c, o_v = tl.arange(0, BM), tl.arange(0, BN), tl.program_id(2) * BV + tl.arange(0, BV)
    first, last = tl.load(p_first + line), tl.load(p_last + line)
    acc = tl.zeros([BN, BV], tl.float32)
    for x in range(first, last):
        e = tl.load(p_order + x)
        o_i = tl.load(p_owner + e) % tile_rows * BM + o_r
        p = tl.load(p_p + (slot + e) * (BM * BN) + o_r[None, :] * BN + o_c[:, None])
        g = tl.load(p_grad + (i_x * queries + o_i)[:, None] * DIM_V + o_v[None, :],
                    mask=(o_i < queries)[:, None] & (o_v < DIM_V)[None, :], other=0.0)  # fmt: skip
        acc = tl.dot(p, g, acc, input_precision=PRECISION)
    if first < last:
        o_j = i_c * BN + o_c
        p_key = p_dv + (i_x * keys + o_j)[:, None] * DIM_V + o_v[None, :]
        m = (o_j < keys)[:, None] & (o_v < DIM_V)[None, :]
        tl.store(p_key, tl.load(p_key, mask=m, other=0.0) + acc, mask=m)


@triton.jit(do_not_specialize=["keys", "tile_rows", "lines", "length", "group_x", "copy_x", "first_copy", "first_entry",
                               "last_entry"])  # fmt: skip
def distances_kernel(
    p_ds, p_starts, p_tile, p_sums, keys, tile_rows, lines, length,
    group_x, copy_x, first_copy, first_entry, last_entry,
    BM: tl.constexpr, BN: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """Σ ds over the pairs at each distance; one of `lines` programs takes every `lines`-th row of tiles.

    p_sums `[batch · heads, lines, length]` has distance row − j at place row − j + keys − 1 + BN.
    """
    group, i_l = tl.program_id(0) // lines, tl.program_id(0) % lines
    i_x = (group * group_x + (first_copy + tl.program_id(1)) * copy_x).to(tl.int64)
    slot = tl.program_id(1).to(tl.int64) * (last_entry - first_entry) - first_entry
    o_r, o_x = tl.arange(0, BM)[:, None], tl.arange(0, BX)
    column = o_r + BN - 1 - o_x[None, :]  # place x of a tile is distance x − (BN − 1)
    inside = (column >= 0) & (column < BN)
    for i_r in range(i_l, tile_rows, lines):
        first = tl.maximum(tl.load(p_starts + group * (tile_rows + 1) + i_r), first_entry)
        last = tl.minimum(tl.load(p_starts + group * (tile_rows + 1) + i_r + 1), last_entry)
        for e in range(first, last):
            d = tl.load(p_ds + (slot + e) * (BM * BN) + o_r * BN + column, mask=inside, other=0.0)
            start = i_r * BM - tl.load(p_tile + e) * BN - (BN - 1) + keys - 1 + BN
            p_s = p_sums + (i_x * lines + i_l) * length + start + o_x
            tl.debug_barrier()  # the next tile's sums overlap, and other threads may hold them
            tl.store(p_s, tl.load(p_s) + tl.sum(d, 0))
            tl.debug_barrier()
