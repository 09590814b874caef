"""Device code of additive attention; `passes.py` says what the kernels compute together.

A thread owns a patch of queries × keys: tiles are `[RM, RN, TM, TN]` with threads on the last two axes and registers on
the first two, so that a step in d loads RM + RN numbers for RM · RN elements. q and k come as pairs: tokens last,
two float32 neighbours in d packed into an int64; for tanh a second plane holds e^2q and e^2k.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from ..places import add_by_entry
from ..prelude import (
    INLINE_PTX,
    LN2,
    LOG2E,
    dropout_mask,
    hash_rows,
    head_pointer,
    key_places,
    load_mask,
    pair_bias_tile,
    placed_bias,
    query_places,
    tanh,
)

PAIR_LIMIT = tl.constexpr(21.5)  # max|q| + max|k| below which (1 + e^2(q+k))² is finite
FOUR_LIMIT = tl.constexpr(10.5)  # and below which its square is, with weights of up to thousands beside it


@triton.jit
def reciprocal(x):
    """1 / x to an ulp, without the care for denormals that a division takes."""
    if INLINE_PTX:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        return 1.0 / x


@triton.jit
def unpack_pair(x):
    """The two float32 in an int64."""
    low = x.to(tl.int32).to(tl.float32, bitcast=True)
    high = (x >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return low, high


@triton.jit
def pack_pair(low, high):
    """Two float32 in an int64."""
    low = low.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (high.to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def exp_2x(x):
    """e^2x with the rounding error of 2x · log₂e corrected; finite for any x."""
    x = tl.minimum(tl.maximum(x, -43.0), 43.0)
    whole = tl.floor(x * 2.8853900817779268 + 0.5)
    rest = tl.fma(x, 2.885390043258667, -whole) + x * 3.8519259822e-08
    return tl.exp2(rest) * tl.exp2(whole)


@triton.jit
def sigmoid_2x(x):
    """1 / (1 + e^2x) for any x."""
    return reciprocal(1.0 + tl.exp2(x * 2.8853900817779268))


@triton.jit(do_not_specialize=["heads", "group_size", "tokens", "head_dim"])
def prepare_kernel(
    p_x, p_w, p_out, p_absmax, p_term, stride_b, stride_h, stride_n, heads, group_size, tokens, padded, head_dim, slope,
    TANH: tl.constexpr, QUERY: tl.constexpr, DP: tl.constexpr, BT: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """x as pairs, with e^2x for tanh; the largest |x| of each tile; the term of each token alone.

    p_term in base 2: Σ weight for queries of tanh; slope · Σ weight · x for leaky ReLU.
    """
    i_t = tl.program_id(0)
    i_bh = tl.program_id(1).to(tl.int64)
    i_b, i_h = i_bh // heads, i_bh % heads
    HALF: tl.constexpr = DP // 2
    PLANES: tl.constexpr = 2 if TANH else 1
    o_n = i_t * BT + tl.arange(0, BT)
    p_token = p_x + i_b * stride_b + i_h * stride_h + o_n.to(tl.int64)[None, :] * stride_n
    p_pairs = p_out + i_bh * PLANES * HALF * padded + o_n[None, :]
    b_absmax = tl.zeros([BT], tl.float32)
    for p in range(0, HALF, BP):
        o_p = p + tl.arange(0, BP)[:, None]
        m_x = o_n[None, :] < tokens
        b_even = tl.load(p_token + 2 * o_p, mask=m_x & (2 * o_p < head_dim), other=0.0).to(tl.float32)
        b_odd = tl.load(p_token + 2 * o_p + 1, mask=m_x & (2 * o_p + 1 < head_dim), other=0.0).to(tl.float32)
        b_absmax = tl.maximum(b_absmax, tl.max(tl.maximum(tl.abs(b_even), tl.abs(b_odd)), 0))
        tl.store(p_pairs + o_p * padded, pack_pair(b_even, b_odd), mask=o_p < HALF)
        if TANH:
            tl.store(p_pairs + (HALF + o_p) * padded, pack_pair(exp_2x(b_even), exp_2x(b_odd)), mask=o_p < HALF)
    tl.store(p_absmax + i_bh * tl.num_programs(0) + i_t, tl.max(b_absmax, 0))
    if QUERY or not TANH:
        for g in range(0, group_size):
            h = i_h * group_size + g
            b_term = tl.zeros([BT], tl.float32)
            for p in range(0, DP, BP):
                o_d = p + tl.arange(0, BP)[:, None]
                b_w = tl.load(p_w + h * DP + o_d, mask=o_d < DP, other=0.0)
                if TANH:
                    b_x = tl.full([BP, BT], 1.0, tl.float32)
                else:
                    m_x = (o_n[None, :] < tokens) & (o_d < head_dim)
                    b_x = slope * tl.load(p_token + o_d, mask=m_x, other=0.0).to(tl.float32)
                b_term += tl.sum(b_w * b_x, 0)
            tl.store(p_term + (i_b * heads * group_size + h) * padded + o_n, b_term * LOG2E)


@triton.jit
def head_indices(i_bh, heads, kv_heads):
    """(batch, query head, key head) of an index over batch and query heads."""
    i_b, i_h = i_bh // heads, i_bh % heads
    return i_b, i_h, i_h // (heads // kv_heads)


@triton.jit
def patch_offsets(RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr):
    """Rows and columns of a tile's elements, `[RM, 1, TM, 1]` and `[1, RN, 1, TN]`."""
    o_r4 = tl.arange(0, RM)[:, None, None, None] * TM + tl.arange(0, TM)[None, None, :, None]
    o_c4 = tl.arange(0, RN)[None, :, None, None] * TN + tl.arange(0, TN)[None, None, None, :]
    return o_r4, o_c4


@triton.jit
def load_ds(p_ds, o_r4, o_c4, BN: tl.constexpr):
    """ds of a tile as patches.

    The hints put threads on the last two axes with one element each: without them the compiler gives a thread four
    neighbours in TN, and every sum over a patch crosses threads.
    """
    p_patch = tl.max_contiguous(p_ds + o_r4 * BN + o_c4, [1, 1, 2, 4])
    return tl.load(tl.multiple_of(p_patch, [4, 4, 4, 4]))


@triton.jit
def load_exponentials(p_q4, p_k4, u, padded_q, padded_k, HALF: tl.constexpr):
    """e^2q and e^2k of pair u of d; of the last one where there is no such pair."""
    u = HALF + tl.minimum(u, HALF - 1)
    return tl.load(p_q4 + u * padded_q), tl.load(p_k4 + u * padded_k)


@triton.jit
def pair_fraction(a, b, p_wh, u):
    """w₁/m₁ + w₂/m₂ of pair u of d, as numerator and denominator."""
    a1, a2 = unpack_pair(a)
    b1, b2 = unpack_pair(b)
    w1, w2 = tl.load(p_wh + 2 * u), tl.load(p_wh + 2 * u + 1)
    m1, m2 = tl.fma(a1, b1, 1.0), tl.fma(a2, b2, 1.0)
    return w1 * m2 + w2 * m1, m1 * m2


@triton.jit
def patch_scores(
    p_q4, p_k4, p_wh, padded_q, padded_k, absmax, slope,
    TANH: tl.constexpr, FOURS: tl.constexpr, DP: tl.constexpr, UNROLL: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """Scores `[rows, columns]` in base 2, without p_term: −2 Σ w · r, or (1 − slope) · Σ w · max(x, 0)."""
    HALF: tl.constexpr = DP // 2
    b_s = tl.zeros([RM, RN, TM, TN], tl.float32)
    if TANH:
        # Operands of the next step are loaded before this step's are used.
        a, b = load_exponentials(p_q4, p_k4, 0, padded_q, padded_k, HALF)
        if FOURS and absmax < FOUR_LIMIT:
            for p in range(0, HALF, UNROLL):
                for u in tl.static_range(UNROLL // 2):
                    c, d = load_exponentials(p_q4, p_k4, p + 2 * u + 1, padded_q, padded_k, HALF)
                    n1, m1 = pair_fraction(a, b, p_wh, p + 2 * u)
                    a, b = load_exponentials(p_q4, p_k4, p + 2 * u + 2, padded_q, padded_k, HALF)
                    n2, m2 = pair_fraction(c, d, p_wh, p + 2 * u + 1)
                    b_s += (n1 * m2 + n2 * m1) * reciprocal(m1 * m2)
        elif absmax < PAIR_LIMIT:
            for p in range(0, HALF, UNROLL):
                for u in tl.static_range(UNROLL):
                    c, d = load_exponentials(p_q4, p_k4, p + u + 1, padded_q, padded_k, HALF)
                    n, m = pair_fraction(a, b, p_wh, p + u)
                    b_s += n * reciprocal(m)
                    a, b = c, d
        else:
            for p in range(0, HALF):
                a1, a2 = unpack_pair(tl.load(p_q4 + p * padded_q))
                b1, b2 = unpack_pair(tl.load(p_k4 + p * padded_k))
                w1, w2 = tl.load(p_wh + 2 * p), tl.load(p_wh + 2 * p + 1)
                b_s += w1 * sigmoid_2x(a1 + b1) + w2 * sigmoid_2x(a2 + b2)
        b_s *= -2.0 * LOG2E
    else:
        for p in range(0, HALF, UNROLL):
            for u in tl.static_range(UNROLL):
                a1, a2 = unpack_pair(tl.load(p_q4 + (p + u) * padded_q))
                b1, b2 = unpack_pair(tl.load(p_k4 + (p + u) * padded_k))
                w1, w2 = tl.load(p_wh + 2 * (p + u)), tl.load(p_wh + 2 * (p + u) + 1)
                b_s += w1 * tl.maximum(a1 + b1, 0.0)
                b_s += w2 * tl.maximum(a2 + b2, 0.0)
        b_s *= (1.0 - slope) * LOG2E
    return tl.reshape(tl.permute(b_s, (0, 2, 1, 3)), (RM * TM, RN * TN))


@triton.jit
def add_terms(
    b_s, b_row, p_term, p_bias, p_pairs, p_places, p_packed, i_bits, i_b, i_h, i_m, i_n, o_r, o_c, distance, zero, last,
    cap, queries, keys, stride_pb, stride_ph, stride_pm, stride_pn, stride_places,
    TANH: tl.constexpr, REL_BIAS: tl.constexpr, PAIR_BIAS: tl.constexpr, PLACED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A tile's scores with the terms of keys and distances, −∞ where masked; `distance` is that of (0, 0) + zero.

    A cap (not None) bounds the whole similarity: there the queries' terms `b_row` are part of the scores. Also the
    derivative of the cap, 1 − tanh². PLACED reads distances between explicit places, 1 in a table and 2 with slopes.
    """
    b_slope = 1.0
    if not TANH:
        b_s += tl.load(p_term + o_c)[None, :]
    if cap is not None:
        b_tanh = tanh((b_s + b_row[:, None]) * (1.0 / cap))
        b_slope = 1.0 - b_tanh * b_tanh
        b_s = b_tanh * cap
    if REL_BIAS and PLACED:
        b_i = query_places(p_places, i_b, i_m + o_r, queries, stride_places)
        b_j = key_places(p_places, i_b, i_n + o_c, queries, keys, stride_places)
        b_s += placed_bias(p_bias, 0, b_i, b_j, zero, last + 1, LOG2E, False, PLACED == 2)
    elif REL_BIAS:
        o_t = tl.minimum(tl.maximum(distance + o_r[:, None] - o_c[None, :], 0), last)
        b_s += tl.load(p_bias + o_t).to(tl.float32) * LOG2E
    if PAIR_BIAS:
        b_s += LOG2E * pair_bias_tile(
            p_pairs, i_b, i_h, i_m, i_n, queries, keys, stride_pb, stride_ph, stride_pm, stride_pn, BM, BN, False
        )
    if i_bits >= 0:
        b_s = tl.where(load_mask(p_packed, i_bits, BM, BN, False), b_s, -float("inf"))
    return b_s, b_slope


@triton.jit(
    do_not_specialize=[
        "heads", "kv_heads", "queries", "keys", "tile_rows", "tile_columns", "stride_gb", "stride_gh", "entries",
        "zero", "threshold",
    ]
)  # fmt: skip
def forward_kernel(
    p_q_pairs, p_k_pairs, p_w, p_absmax_q, p_absmax_k, p_term_q, p_term_k, p_v, p_rel_bias, p_pairs, p_places,
    p_seed, p_starts, p_tile, p_bits, p_packed, p_out, p_lse,
    stride_vb, stride_vh, stride_vn, heads, kv_heads, queries, keys, padded_q, padded_k, tile_rows, tile_columns,
    stride_gb, stride_gh, entries, zero, threshold, keep_scale, slope, cap, stride_pb, stride_ph, stride_pm, stride_pn,
    stride_places, TANH: tl.constexpr, REL_BIAS: tl.constexpr, PAIR_BIAS: tl.constexpr, PLACED: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    DP: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, UNROLL: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """o = Σ_j keep·p·v / l and lse = m + log l over one row of tiles, with a running maximum m and sum l."""
    BM: tl.constexpr = RM * TM
    BN: tl.constexpr = RN * TN
    PLANES: tl.constexpr = 2 if TANH else 1
    # In float32, backward's p = exp(s − lse) needs the very scores that made lse, and it takes pairs.
    FOURS: tl.constexpr = UNROLL % 2 == 0 and p_v.dtype.element_ty != tl.float32
    # The last rows first: under a causal mask they have the longest lists.
    i_r = tile_rows - 1 - tl.program_id(0) % tile_rows
    i_bh = tl.program_id(0) // tile_rows
    i_b, i_h, i_kv = head_indices(i_bh, heads, kv_heads)
    i_bkv = i_b * kv_heads + i_kv
    group = i_b * stride_gb + i_h * stride_gh

    o_r, o_c, o_v = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BDV)
    o_r4, o_c4 = patch_offsets(RM, RN, TM, TN)
    p_q4 = p_q_pairs + i_bh.to(tl.int64) * (PLANES * DP // 2) * padded_q + i_r * BM + o_r4
    p_k4 = p_k_pairs + i_bkv.to(tl.int64) * (PLANES * DP // 2) * padded_k + o_c4
    p_vh = head_pointer(p_v, i_b, i_kv, stride_vb, stride_vh)
    p_wh = p_w + i_h * DP
    absmax_q = tl.load(p_absmax_q + i_bh * tile_rows + i_r)
    if DROPOUT:
        b_hash = hash_rows(p_seed, i_b, i_h, i_r * BM + o_r + keys - queries)

    b_term = tl.load(p_term_q + i_bh.to(tl.int64) * padded_q + i_r * BM + o_r)
    b_m = tl.full([BM], -float("inf"), tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_o = tl.zeros([BM, BDV], tl.float32)
    for x in range(
        tl.load(p_starts + group * (tile_rows + 1) + i_r), tl.load(p_starts + group * (tile_rows + 1) + i_r + 1)
    ):
        i_c = tl.load(p_tile + x)
        i_bits = tl.load(p_bits + x)
        absmax = absmax_q + tl.load(p_absmax_k + i_bkv * tile_columns + i_c)
        p_c4 = p_k4 + i_c * BN
        b_s = patch_scores(p_q4, p_c4, p_wh, padded_q, padded_k, absmax, slope, TANH, FOURS, DP, UNROLL, RM, RN, TM, TN)
        distance = i_r * BM + keys - queries - i_c * BN + zero
        p_key = p_term_k + i_bh.to(tl.int64) * padded_k + i_c * BN
        b_s, _b_slope = add_terms(
            b_s, b_term, p_key, p_rel_bias + i_h * entries, p_pairs, p_places, p_packed, i_bits, i_b, i_h,
            i_r * BM, i_c * BN, o_r, o_c, distance, zero, entries - 1, cap, queries, keys,
            stride_pb, stride_ph, stride_pm, stride_pn, stride_places, TANH, REL_BIAS, PAIR_BIAS, PLACED, BM, BN,
        )  # fmt: skip
        b_new_m = tl.maximum(b_m, tl.max(b_s, 1))
        b_safe_m = tl.where(b_new_m == -float("inf"), 0.0, b_new_m)
        b_p = tl.exp2(b_s - b_safe_m[:, None])
        b_alpha = tl.exp2(b_m - b_safe_m)
        b_l = b_l * b_alpha + tl.sum(b_p, 1)
        b_m = b_new_m
        if DROPOUT:
            b_p = tl.where(dropout_mask(b_hash, i_c * BN + o_c, threshold, False), b_p * keep_scale, 0.0)
        o_j = i_c * BN + o_c
        b_v = tl.load(p_vh + o_j.to(tl.int64)[:, None] * stride_vn + o_v[None, :],
                    mask=(o_j < keys)[:, None] & (o_v < DV)[None, :], other=0.0)  # fmt: skip
        b_p_high = b_p.to(b_v.dtype)
        b_o = tl.dot(b_p_high, b_v, b_o * b_alpha[:, None], input_precision=PRECISION)
        if b_v.dtype != tl.float32:
            # What rounding cut off, too: δ = Σ o·do decides all gradients, the weight's in float32.
            b_o = tl.dot((b_p - b_p_high.to(tl.float32)).to(b_v.dtype), b_v, b_o)

    m_alive = b_l > 0
    b_o = b_o / tl.where(m_alive, b_l, 1.0)[:, None]
    o_i = i_r * BM + o_r
    if cap is not None:
        b_term = tl.zeros([BM], tl.float32)  # which is in the scores
    b_lse = tl.where(m_alive, (b_m + tl.log2(tl.where(m_alive, b_l, 1.0)) + b_term) * LN2, -float("inf"))
    p_rows = p_out + (i_bh.to(tl.int64) * queries + o_i)[:, None] * DV + o_v[None, :]
    tl.store(p_rows, b_o.to(p_out.dtype.element_ty), mask=(o_i < queries)[:, None] & (o_v < DV)[None, :])
    tl.store(p_lse + i_bh.to(tl.int64) * queries + o_i, b_lse, mask=o_i < queries)


@triton.jit(do_not_specialize=["queries"])
def delta_kernel(
    p_do, p_out, p_lse, p_term, p_delta, p_lse2, queries, padded_q, CAP: tl.constexpr,
    DV: tl.constexpr, BT: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """δ = Σ o·do, and the lse in base 2 less p_term (∞ for rows without keys)."""
    i_bh = tl.program_id(1).to(tl.int64)
    o_i = tl.program_id(0) * BT + tl.arange(0, BT)
    b_delta = tl.zeros([BT], tl.float32)
    for d in range(0, DV, BDV):
        o_v = d + tl.arange(0, BDV)
        m_x = (o_i < queries)[:, None] & (o_v < DV)[None, :]
        o_x = (i_bh * queries + o_i)[:, None] * DV + o_v[None, :]
        b_do = tl.load(p_do + o_x, mask=m_x, other=0.0).to(tl.float32)
        b_delta += tl.sum(b_do * tl.load(p_out + o_x, mask=m_x, other=0.0).to(tl.float32), 1)
    b_lse = tl.load(p_lse + i_bh * queries + o_i, mask=o_i < queries, other=-float("inf"))
    b_lse2 = b_lse * LOG2E
    if not CAP:
        b_lse2 -= tl.load(p_term + i_bh * padded_q + o_i)
    tl.store(p_delta + i_bh * padded_q + o_i, b_delta)
    tl.store(p_lse2 + i_bh * padded_q + o_i, tl.where(b_lse == -float("inf"), float("inf"), b_lse2))


@triton.jit(
    do_not_specialize=[
        "heads", "kv_heads", "queries", "keys", "tile_rows", "tile_columns", "stride_group", "stride_instance",
        "first_instance", "first_tile", "entries", "zero", "threshold",
    ]
)  # fmt: skip
def ds_kernel(
    p_q_pairs, p_k_pairs, p_w, p_absmax_q, p_absmax_k, p_term_q, p_term_k, p_v, p_rel_bias, p_pairs, p_places,
    p_seed, p_owner, p_tile, p_bits, p_packed, p_do, p_delta, p_lse2, p_ds, p_ds_capped, p_p,
    stride_vb, stride_vh, stride_vn, heads, kv_heads, queries, keys, padded_q, padded_k, tile_rows, tile_columns,
    stride_group, stride_instance, first_instance, first_tile, entries, zero, threshold, keep_scale, slope, cap,
    stride_pb, stride_ph, stride_pm, stride_pn, stride_places,
    TANH: tl.constexpr, REL_BIAS: tl.constexpr, PAIR_BIAS: tl.constexpr, PLACED: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    DP: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, UNROLL: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """p = exp(s − lse) (with dropout keep·p) and ds = p · (keep·do·vᵀ − δ) of one tile, to scratch memory.

    With a cap the gradient of the similarity is ds · (1 − tanh²), which goes to p_ds; ds itself to p_ds_capped, for the
    gradients of what is added after the cap.
    """
    BM: tl.constexpr = RM * TM
    BN: tl.constexpr = RN * TN
    PLANES: tl.constexpr = 2 if TANH else 1
    x = first_tile + tl.program_id(0)
    slot = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    owner = tl.load(p_owner + x)
    i_r = owner % tile_rows
    i_c = tl.load(p_tile + x)
    i_bh = owner // tile_rows * stride_group + (first_instance + tl.program_id(1)) * stride_instance
    i_b, i_h, i_kv = head_indices(i_bh, heads, kv_heads)
    i_bkv = i_b * kv_heads + i_kv

    o_r, o_c = tl.arange(0, BM), tl.arange(0, BN)
    o_r4, o_c4 = patch_offsets(RM, RN, TM, TN)
    p_q4 = p_q_pairs + i_bh.to(tl.int64) * (PLANES * DP // 2) * padded_q + i_r * BM + o_r4
    p_k4 = p_k_pairs + i_bkv.to(tl.int64) * (PLANES * DP // 2) * padded_k + i_c * BN + o_c4
    absmax = tl.load(p_absmax_q + i_bh * tile_rows + i_r) + tl.load(p_absmax_k + i_bkv * tile_columns + i_c)
    # Pairs only: fours do not fit the registers.
    b_s = patch_scores(
        p_q4, p_k4, p_w + i_h * DP, padded_q, padded_k, absmax, slope, TANH, False, DP, UNROLL, RM, RN, TM, TN
    )
    distance = i_r * BM + keys - queries - i_c * BN + zero
    p_key = p_term_k + i_bh.to(tl.int64) * padded_k + i_c * BN
    i_bits = tl.load(p_bits + x)
    b_term = tl.load(p_term_q + i_bh.to(tl.int64) * padded_q + i_r * BM + o_r)
    b_s, b_slope = add_terms(
        b_s, b_term, p_key, p_rel_bias + i_h * entries, p_pairs, p_places, p_packed, i_bits, i_b, i_h,
        i_r * BM, i_c * BN, o_r, o_c, distance, zero, entries - 1, cap, queries, keys,
        stride_pb, stride_ph, stride_pm, stride_pn, stride_places, TANH, REL_BIAS, PAIR_BIAS, PLACED, BM, BN,
    )  # fmt: skip
    o_i, o_j = i_r * BM + o_r, i_c * BN + o_c
    b_p = tl.exp2(b_s - tl.load(p_lse2 + i_bh.to(tl.int64) * padded_q + o_i)[:, None])

    b_dp = tl.zeros([BM, BN], tl.float32)
    p_vh = head_pointer(p_v, i_b, i_kv, stride_vb, stride_vh)
    p_g = p_do + (i_bh.to(tl.int64) * queries + o_i)[:, None] * DV
    for d in range(0, DV, BDV):
        o_v = d + tl.arange(0, BDV)
        b_do = tl.load(p_g + o_v[None, :], mask=(o_i < queries)[:, None] & (o_v < DV)[None, :], other=0.0)
        b_v = tl.load(p_vh + o_j.to(tl.int64)[None, :] * stride_vn + o_v[:, None],
                    mask=(o_j < keys)[None, :] & (o_v < DV)[:, None], other=0.0)  # fmt: skip
        b_dp = tl.dot(b_do, b_v, b_dp, input_precision=PRECISION)
    b_p_drop = b_p
    if DROPOUT:
        m_keep = dropout_mask(hash_rows(p_seed, i_b, i_h, o_i + keys - queries), o_j, threshold, False)
        b_p_drop = tl.where(m_keep, b_p * keep_scale, 0.0)
        b_dp = tl.where(m_keep, b_dp * keep_scale, 0.0)
    b_dp = b_p * (b_dp - tl.load(p_delta + i_bh.to(tl.int64) * padded_q + o_i)[:, None])
    o_x = slot * (BM * BN) + o_r[:, None] * BN + o_c[None, :]
    tl.store(p_ds + o_x, b_dp * b_slope)
    if cap is not None:
        tl.store(p_ds_capped + o_x, b_dp)
    tl.store(p_p + o_x, b_p_drop.to(p_p.dtype.element_ty))


@triton.jit
def pair_terms(p_q4, p_k4, u, padded_q, padded_k, TANH: tl.constexpr, NEAR: tl.constexpr, HALF: tl.constexpr):
    """r of two d for tanh, q + k for leaky ReLU; `[RM, RN, TM, TN]` each."""
    if TANH and NEAR:
        a1, a2 = unpack_pair(tl.load(p_q4 + (HALF + u) * padded_q))
        b1, b2 = unpack_pair(tl.load(p_k4 + (HALF + u) * padded_k))
        m1, m2 = tl.fma(a1, b1, 1.0), tl.fma(a2, b2, 1.0)
        both = reciprocal(m1 * m2)
        return both * m2, both * m1
    else:
        a1, a2 = unpack_pair(tl.load(p_q4 + u * padded_q))
        b1, b2 = unpack_pair(tl.load(p_k4 + u * padded_k))
        x1, x2 = a1 + b1, a2 + b2
        if TANH:
            x1, x2 = sigmoid_2x(x1), sigmoid_2x(x2)
        return x1, x2


@triton.jit
def add_rows(
    b_t1, b_t2, b_ds, p_q4, p_k4, padded_q, padded_k, slope,
    TANH: tl.constexpr, NEAR: tl.constexpr, HALF: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """A tile's Σ_j ds · r and Σ_j ds · r² (leaky ReLU: ds · act and ds · act′), for DU of the d, added to t1 and t2."""
    n1, n2 = (), ()
    for u in tl.static_range(BD // 2):
        x1, x2 = pair_terms(p_q4, p_k4, u, padded_q, padded_k, TANH, NEAR, HALF)
        if TANH:
            y1, y2 = b_ds * x1, b_ds * x2
            n1 += (b_t1[2 * u] + tl.sum(y1, 1), b_t1[2 * u + 1] + tl.sum(y2, 1))
            n2 += (b_t2[2 * u] + tl.sum(y1 * x1, 1), b_t2[2 * u + 1] + tl.sum(y2 * x2, 1))
        else:
            y1, y2 = tl.where(x1 > 0, b_ds, b_ds * slope), tl.where(x2 > 0, b_ds, b_ds * slope)
            n1 += (b_t1[2 * u] + tl.sum(y1 * x1, 1), b_t1[2 * u + 1] + tl.sum(y2 * x2, 1))
            n2 += (b_t2[2 * u] + tl.sum(y1, 1), b_t2[2 * u + 1] + tl.sum(y2, 1))
    return n1, n2


@triton.jit
def add_columns(
    b_t, b_ds, p_q4, p_k4, padded_q, padded_k, slope,
    TANH: tl.constexpr, NEAR: tl.constexpr, HALF: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """A tile's Σ_i ds · (r − r²) (leaky ReLU: ds · act′) added to t, for DU of the d."""
    n = ()
    for u in tl.static_range(BD // 2):
        x1, x2 = pair_terms(p_q4, p_k4, u, padded_q, padded_k, TANH, NEAR, HALF)
        if TANH:
            y1, y2 = b_ds * (x1 - x1 * x1), b_ds * (x2 - x2 * x2)
        else:
            y1, y2 = tl.where(x1 > 0, b_ds, b_ds * slope), tl.where(x2 > 0, b_ds, b_ds * slope)
        n += (b_t[2 * u] + tl.sum(y1, 0), b_t[2 * u + 1] + tl.sum(y2, 0))
    return n


@triton.jit(
    do_not_specialize=[
        "heads", "kv_heads", "tile_rows", "tile_columns", "stride_group", "stride_instance", "first_instance",
        "first_tile", "last_tile",
    ]
)  # fmt: skip
def dq_kernel(
    p_q_pairs, p_k_pairs, p_w, p_absmax_q, p_absmax_k, p_ds, p_starts, p_tile, p_dq, p_dw,
    heads, kv_heads, padded_q, padded_k, tile_rows, tile_columns,
    stride_group, stride_instance, first_instance, first_tile, last_tile, slope,
    TANH: tl.constexpr, DP: tl.constexpr, BD: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """dq = weight Σ_j ds · act′, dweight = Σ_ij ds · act, for the rows of one row of tiles and DU of the d.

    tanh: act = 1 − 2r and act′ = 4 (r − r²), so both need Σ_j ds · r and Σ_j ds · r² alone, and Σ_j ds once for all d.
    """
    BM: tl.constexpr = RM * TM
    BN: tl.constexpr = RN * TN
    PLANES: tl.constexpr = 2 if TANH else 1
    HALF: tl.constexpr = DP // 2
    PARTS: tl.constexpr = DP // BD
    i_d = tl.program_id(0) % PARTS
    i_r = tl.program_id(0) // PARTS % tile_rows
    group = tl.program_id(0) // PARTS // tile_rows
    i_bh = group * stride_group + (first_instance + tl.program_id(1)) * stride_instance
    i_b, i_h, i_kv = head_indices(i_bh, heads, kv_heads)
    i_bkv = i_b * kv_heads + i_kv
    first = tl.maximum(tl.load(p_starts + group * (tile_rows + 1) + i_r), first_tile)
    last = tl.minimum(tl.load(p_starts + group * (tile_rows + 1) + i_r + 1), last_tile)

    o_r4, o_c4 = patch_offsets(RM, RN, TM, TN)
    p_q4 = p_q_pairs + (i_bh.to(tl.int64) * PLANES * HALF + i_d * (BD // 2)) * padded_q + i_r * BM + o_r4
    p_k4 = p_k_pairs + (i_bkv.to(tl.int64) * PLANES * HALF + i_d * (BD // 2)) * padded_k + o_c4
    slot = tl.program_id(1).to(tl.int64) * (last_tile - first_tile) - first_tile
    absmax_q = tl.load(p_absmax_q + i_bh * tile_rows + i_r)
    b_sum = tl.zeros([RM, TM, TN], tl.float32)
    b_t1, b_t2 = (), ()
    for _ in tl.static_range(BD):
        b_t1 += (tl.zeros([RM, TM, TN], tl.float32),)
        b_t2 += (tl.zeros([RM, TM, TN], tl.float32),)
    for x in range(first, last):
        i_c = tl.load(p_tile + x)
        b_ds = load_ds(p_ds + (slot + x) * (BM * BN), o_r4, o_c4, BN)
        if TANH:
            b_sum += tl.sum(b_ds, 1)
        m_near = absmax_q + tl.load(p_absmax_k + i_bkv * tile_columns + i_c) < PAIR_LIMIT
        if m_near or not TANH:
            b_t1, b_t2 = add_rows(
                b_t1, b_t2, b_ds, p_q4, p_k4 + i_c * BN, padded_q, padded_k, slope, TANH, True, HALF, BD
            )
        else:
            b_t1, b_t2 = add_rows(
                b_t1, b_t2, b_ds, p_q4, p_k4 + i_c * BN, padded_q, padded_k, slope, TANH, False, HALF, BD
            )
    if first < last:
        o_r2 = i_r * BM + tl.arange(0, RM)[:, None] * TM + tl.arange(0, TM)[None, :]
        for u in tl.static_range(BD):
            i_u = i_d * BD + u
            b_x1, b_x2 = tl.sum(b_t1[u], 2), tl.sum(b_t2[u], 2)
            b_w = tl.load(p_w + i_h * DP + i_u)
            p_row = p_dq + (i_bh.to(tl.int64) * DP + i_u) * padded_q + o_r2
            p_dw_row = p_dw + (i_bh.to(tl.int64) * tile_rows + i_r) * DP + i_u
            if TANH:
                tl.store(p_row, tl.load(p_row) + 4.0 * b_w * (b_x1 - b_x2))
                b_x1 = tl.sum(b_sum, 2) - 2.0 * b_x1
            else:
                tl.store(p_row, tl.load(p_row) + b_w * b_x2)
            tl.store(p_dw_row, tl.load(p_dw_row) + tl.sum(tl.sum(b_x1, 1), 0))


@triton.jit(
    do_not_specialize=[
        "heads", "kv_heads", "tile_rows", "tile_columns", "stride_group", "stride_instance", "first_instance",
        "first_tile", "last_tile",
    ]
)  # fmt: skip
def dk_kernel(
    p_q_pairs, p_k_pairs, p_w, p_absmax_q, p_absmax_k, p_ds, p_first, p_last, p_order, p_owner, p_dk,
    heads, kv_heads, padded_q, padded_k, tile_rows, tile_columns,
    stride_group, stride_instance, first_instance, first_tile, last_tile, slope,
    TANH: tl.constexpr, DP: tl.constexpr, BD: tl.constexpr,
    RM: tl.constexpr, RN: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr,
):  # fmt: skip
    """dk = weight Σ_i ds · act′, for the keys of one column of tiles and DU of the d."""
    BM: tl.constexpr = RM * TM
    BN: tl.constexpr = RN * TN
    PLANES: tl.constexpr = 2 if TANH else 1
    HALF: tl.constexpr = DP // 2
    PARTS: tl.constexpr = DP // BD
    i_d = tl.program_id(0) % PARTS
    i_list = tl.program_id(0) // PARTS
    i_c = i_list % tile_columns
    i_bh = i_list // tile_columns * stride_group + (first_instance + tl.program_id(1)) * stride_instance
    i_b, i_h, i_kv = head_indices(i_bh, heads, kv_heads)
    i_bkv = i_b * kv_heads + i_kv
    first, last = tl.load(p_first + i_list), tl.load(p_last + i_list)

    o_r4, o_c4 = patch_offsets(RM, RN, TM, TN)
    p_q4 = p_q_pairs + (i_bh.to(tl.int64) * PLANES * HALF + i_d * (BD // 2)) * padded_q + o_r4
    p_k4 = p_k_pairs + (i_bkv.to(tl.int64) * PLANES * HALF + i_d * (BD // 2)) * padded_k + i_c * BN + o_c4
    slot = tl.program_id(1).to(tl.int64) * (last_tile - first_tile) - first_tile
    absmax_k = tl.load(p_absmax_k + i_bkv * tile_columns + i_c)
    b_t = ()
    for _ in tl.static_range(BD):
        b_t += (tl.zeros([RN, TM, TN], tl.float32),)
    for x in range(first, last):
        i_tile = tl.load(p_order + x)
        i_r = tl.load(p_owner + i_tile) % tile_rows
        b_ds = load_ds(p_ds + (slot + i_tile) * (BM * BN), o_r4, o_c4, BN)
        m_near = absmax_k + tl.load(p_absmax_q + i_bh * tile_rows + i_r) < PAIR_LIMIT
        if m_near or not TANH:
            b_t = add_columns(b_t, b_ds, p_q4 + i_r * BM, p_k4, padded_q, padded_k, slope, TANH, True, HALF, BD)
        else:
            b_t = add_columns(b_t, b_ds, p_q4 + i_r * BM, p_k4, padded_q, padded_k, slope, TANH, False, HALF, BD)
    if first < last:
        o_c2 = i_c * BN + tl.arange(0, RN)[:, None] * TN + tl.arange(0, TN)[None, :]
        for u in tl.static_range(BD):
            i_u = i_d * BD + u
            b_w = tl.load(p_w + i_h * DP + i_u)
            if TANH:
                b_w *= 4.0
            p_column = p_dk + (i_bh.to(tl.int64) * DP + i_u) * padded_k + o_c2
            tl.store(p_column, tl.load(p_column) + b_w * tl.sum(b_t[u], 1))


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "tile_rows", "tile_columns", "stride_group", "stride_instance", "first_instance",
        "first_tile", "last_tile",
    ]
)  # fmt: skip
def dv_kernel(
    p_p, p_do, p_first, p_last, p_order, p_owner, p_dv, queries, keys, tile_rows, tile_columns,
    stride_group, stride_instance, first_instance, first_tile, last_tile,
    DV: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """dv = Σ_i keep·p·do, for the keys of one column of tiles and BDV of the value dims."""
    i_list = tl.program_id(0)
    i_c = i_list % tile_columns
    i_bh = (i_list // tile_columns * stride_group + (first_instance + tl.program_id(1)) * stride_instance).to(tl.int64)
    slot = tl.program_id(1).to(tl.int64) * (last_tile - first_tile) - first_tile
    o_r, o_c, o_v = tl.arange(0, BM), tl.arange(0, BN), tl.program_id(2) * BDV + tl.arange(0, BDV)
    first, last = tl.load(p_first + i_list), tl.load(p_last + i_list)
    b_dv = tl.zeros([BN, BDV], tl.float32)
    for x in range(first, last):
        i_tile = tl.load(p_order + x)
        o_i = tl.load(p_owner + i_tile) % tile_rows * BM + o_r
        b_p = tl.load(p_p + (slot + i_tile) * (BM * BN) + o_r[None, :] * BN + o_c[:, None])
        b_do = tl.load(p_do + (i_bh * queries + o_i)[:, None] * DV + o_v[None, :],
                    mask=(o_i < queries)[:, None] & (o_v < DV)[None, :], other=0.0)  # fmt: skip
        b_dv = tl.dot(b_p, b_do, b_dv, input_precision=PRECISION)
    if first < last:
        o_j = i_c * BN + o_c
        p_key = p_dv + (i_bh * keys + o_j)[:, None] * DV + o_v[None, :]
        m_x = (o_j < keys)[:, None] & (o_v < DV)[None, :]
        tl.store(p_key, tl.load(p_key, mask=m_x, other=0.0) + b_dv, mask=m_x)


@triton.jit(
    do_not_specialize=[
        "keys", "tile_rows", "programs", "length", "stride_group", "stride_instance", "first_instance", "first_tile",
        "last_tile",
    ]
)  # fmt: skip
def d_rel_bias_kernel(
    p_ds, p_starts, p_tile, p_sums, keys, tile_rows, programs, length,
    stride_group, stride_instance, first_instance, first_tile, last_tile,
    BM: tl.constexpr, BN: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """Σ ds over the pairs at each distance; one of `programs` takes every `programs`-th row of tiles.

    p_sums `[batch · heads, programs, length]` has distance row − j at index row − j + keys − 1 + BN.
    """
    group, i_l = tl.program_id(0) // programs, tl.program_id(0) % programs
    i_bh = (group * stride_group + (first_instance + tl.program_id(1)) * stride_instance).to(tl.int64)
    slot = tl.program_id(1).to(tl.int64) * (last_tile - first_tile) - first_tile
    o_r, o_x = tl.arange(0, BM)[:, None], tl.arange(0, BX)
    column = o_r + BN - 1 - o_x[None, :]  # index x of a tile is distance x − (BN − 1)
    inside = (column >= 0) & (column < BN)
    for i_r in range(i_l, tile_rows, programs):
        first = tl.maximum(tl.load(p_starts + group * (tile_rows + 1) + i_r), first_tile)
        last = tl.minimum(tl.load(p_starts + group * (tile_rows + 1) + i_r + 1), last_tile)
        for x in range(first, last):
            b_ds = tl.load(p_ds + (slot + x) * (BM * BN) + o_r * BN + column, mask=inside, other=0.0)
            start = i_r * BM - tl.load(p_tile + x) * BN - (BN - 1) + keys - 1 + BN
            p_s = p_sums + (i_bh * programs + i_l) * length + start + o_x
            tl.debug_barrier()  # the next tile's sums overlap, and other threads may hold them
            tl.store(p_s, tl.load(p_s) + tl.sum(b_ds, 0))
            tl.debug_barrier()


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "heads", "tile_rows", "programs", "entries", "zero", "stride_group", "stride_instance",
        "first_instance", "first_tile", "last_tile", "stride_places",
    ]
)  # fmt: skip
def d_placed_bias_kernel(
    p_ds, p_places, p_starts, p_tile, p_sums, stride_places, queries, keys, heads, tile_rows, programs, entries, zero,
    stride_group, stride_instance, first_instance, first_tile, last_tile, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Σ ds over the pairs of each entry of a table at explicit places, as `d_rel_bias_kernel` sums them by distance.

    p_sums is `[batch · heads, programs, entries]`.
    """
    group, i_l = tl.program_id(0) // programs, tl.program_id(0) % programs
    i_bh = (group * stride_group + (first_instance + tl.program_id(1)) * stride_instance).to(tl.int64)
    slot = tl.program_id(1).to(tl.int64) * (last_tile - first_tile) - first_tile
    i_b = i_bh // heads
    o_r, o_c = tl.arange(0, BM), tl.arange(0, BN)
    for i_r in range(i_l, tile_rows, programs):
        first = tl.maximum(tl.load(p_starts + group * (tile_rows + 1) + i_r), first_tile)
        last = tl.minimum(tl.load(p_starts + group * (tile_rows + 1) + i_r + 1), last_tile)
        b_i = query_places(p_places, i_b, i_r * BM + o_r, queries, stride_places)
        for x in range(first, last):
            b_ds = tl.load(p_ds + (slot + x) * (BM * BN) + o_r[:, None] * BN + o_c[None, :])
            b_j = key_places(p_places, i_b, tl.load(p_tile + x) * BN + o_c, queries, keys, stride_places)
            add_by_entry(p_sums + (i_bh * programs + i_l) * entries, b_ds, b_i, b_j, zero, entries, BM, BN)
