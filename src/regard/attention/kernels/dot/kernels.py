"""Fused attention of the dot family: scale·q·k, a number or a vector by distance, any mask, dropout.

Tables by distance are first written out along one line, entry x for j − row = x − origin: their ends are repeated
there, so kernels neither clamp nor look where a table ends. Its length is that of queries and keys together.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from ..prelude import allowed, by_distance, kept, place, row_keys, sheared, spread, unsheared

FLOOR = tl.constexpr(-1e30)  # below every score; unlike −∞ it can be subtracted from itself
LN2 = tl.constexpr(math.log(2.0))

# Not specialised, so that new sizes need no new kernels; origin, length and padded are always multiples of 16.
SIZES = ["queries", "keys", "heads", "share", "instances", "parts", "tile_rows", "lines", "threshold"]


@triton.jit
def tokens_at(p, o_n, stride, D: tl.constexpr, BD: tl.constexpr):
    """Rows o_n of a matrix `[tokens, D]`, padded with zeros to BD columns."""
    o_d = tl.arange(0, BD)
    p_x = p + o_n[:, None] * stride + o_d[None, :]
    return tl.load(p_x) if D == BD else tl.load(p_x, mask=(o_d < D)[None, :], other=0.0)


@triton.jit
def put_tokens(p, o_n, b_x, limit, D: tl.constexpr, BD: tl.constexpr):
    """Store rows o_n < limit of a contiguous matrix `[tokens, D]`."""
    o_d = tl.arange(0, BD)
    m_x = (o_n < limit)[:, None] & (o_d < D)[None, :]
    tl.store(p + o_n[:, None] * D + o_d[None, :], b_x.to(p.dtype.element_ty), mask=m_x)


@triton.jit
def put_part(p, i_part, b_x, ROWS: tl.constexpr, BD: tl.constexpr):
    """Store partial sums `[ROWS, BD]` as number i_part."""
    o_x = tl.arange(0, ROWS)[:, None] * BD + tl.arange(0, BD)[None, :]
    tl.store(p + i_part.to(tl.int64) * (ROWS * BD) + o_x, b_x)


@triton.jit(do_not_specialize=SIZES)
def forward_tiles(
    p_q, p_k, p_v, p_numbers, p_asking, p_table, p_seed, p_o, p_lse, p_sums, p_tops, p_totals,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_ends, p_bits, p_packed,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ab, ah, an,
    queries, keys, heads, share, origin, length, instances, scale, unit, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr, NUMBERS: tl.constexpr, VECTORS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """A piece of one row of tiles, with a running maximum m and sum l, in base 2:

        s = log2(e) · scale · (q·k + asking·table[j − i] + numbers[j − i]),   −∞ where the mask forbids
        p = 2^(s − m),   l = Σ p,   o = Σ keep·p·v / l,   lse = ln 2 · (m + log2 l)

    Pieces of a cut list leave (m, l, Σ p·v) to be merged.
    """
    i_item = tl.program_id(0) // instances
    i_instance = tl.program_id(0) % instances
    i_row = tl.load(p_row + i_item)
    i_first, i_last = tl.load(p_first + i_item), tl.load(p_last + i_item)
    i_slot = tl.load(p_slot + i_item)
    i_b, i_h = place(tl.load(p_group + i_item), i_instance, heads, BY_BATCH, BY_HEAD)
    i_kv = i_h // share
    p_k += i_b.to(tl.int64) * kb + i_kv.to(tl.int64) * kh
    p_v += i_b.to(tl.int64) * vb + i_kv.to(tl.int64) * vh
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    o_q = tl.minimum(i_row * BM + o_m, queries - 1)
    b_q = tokens_at(p_q + i_b.to(tl.int64) * qb + i_h.to(tl.int64) * qh, o_q, qn, D, BD)
    if VECTORS:
        b_a = tokens_at(p_asking + i_b.to(tl.int64) * ab + i_h.to(tl.int64) * ah, o_q, an, D, BD)
        p_table += (i_h.to(tl.int64) * length + origin - i_row * BM) * D
        b_low = tl.zeros([BM, BN], tl.float32)
    if DROPOUT:
        b_keys = row_keys(p_seed, i_b, i_h, i_row * BM + o_m + keys - queries)
    # An exact output is divided by the sum of the weights as they were rounded for the product, so that what all values
    # have in common comes out exactly.
    SHARP: tl.constexpr = p_o.dtype.element_ty != p_v.dtype.element_ty
    b_m = tl.full([BM], FLOOR, tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_sharp = tl.zeros([BM], tl.float32)
    b_o = tl.zeros([BM, BDV], tl.float32)
    # With vectors by distance the list is walked in runs: what one tile computed of the band serves its neighbour.
    while i_first < i_last:
        i_end = i_last
        i_next = tl.load(p_tile + i_first)
        if VECTORS:
            i_end = tl.minimum(tl.load(p_ends + i_first), i_last)
            p_band = p_table + (i_next - 1) * BN * D
            b_low = tl.dot(b_a, tl.trans(tokens_at(p_band, o_n, D, D, BD)), input_precision=PRECISION)
        for x in range(i_first, i_end):
            i_tile = i_next
            # One step ahead, so that the loads of keys need not wait for it.
            i_next = tl.load(p_tile + x + 1, mask=x + 1 < i_end, other=0)
            i_bits = tl.load(p_bits + x)
            o_k = tl.minimum(o_n, keys - 1 - i_tile * BN)
            b_k = tokens_at(p_k + (i_tile * BN).to(tl.int64) * kn, o_k, kn, D, BD)
            if NUMBERS:
                o_x = i_tile * BN - i_row * BM
                b_s = by_distance(
                    p_numbers, i_h, o_x, origin, keys - queries, length, unit, BM, BN, False, PAIRS, NUMBERS
                )
            else:
                b_s = tl.zeros([BM, BN], tl.float32)
            if VECTORS:
                p_high = p_table + i_tile * BN * D
                b_high = tl.dot(b_a, tl.trans(tokens_at(p_high, o_n, D, D, BD)), input_precision=PRECISION)
                b_s += sheared(b_low, b_high, BN)
                b_low = b_high
            b_s = tl.dot(b_q, tl.trans(b_k), b_s, input_precision=PRECISION)
            if i_bits >= 0:
                b_s = tl.where(allowed(p_packed, i_bits, BM, BN, False), b_s, -float("inf"))
            b_top = tl.maximum(b_m, tl.max(b_s, 1) * scale)
            b_p = tl.exp2(b_s * scale - b_top[:, None])
            b_fade = tl.exp2(b_m - b_top)
            b_l = b_l * b_fade + tl.sum(b_p, 1)
            b_m = b_top
            if SHARP:
                b_sharp = b_sharp * b_fade + tl.sum(b_p.to(p_v.dtype.element_ty).to(tl.float32), 1)
            if DROPOUT:
                b_p = tl.where(kept(b_keys, i_tile * BN + o_n, threshold, False), b_p, 0.0)
            b_v = tokens_at(p_v + (i_tile * BN).to(tl.int64) * vn, o_k, vn, DV, BDV)
            b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * b_fade[:, None], input_precision=PRECISION)
        i_first = i_end
    if SHARP:
        b_o *= (b_l / tl.where(b_sharp > 0, b_sharp, 1.0))[:, None]
    if i_slot >= 0:
        i_part = i_slot * instances + i_instance
        put_part(p_sums, i_part, b_o, BM, BDV)
        tl.store(p_tops + i_part.to(tl.int64) * BM + o_m, b_m)
        tl.store(p_totals + i_part.to(tl.int64) * BM + o_m, b_l)
    else:
        first = (i_b * heads + i_h).to(tl.int64) * queries
        put_output(p_o, p_lse, b_m, b_l, b_o, first, i_row, queries, keep_scale, DV, BDV, BM)


@triton.jit
def put_output(
    p_o, p_lse, b_m, b_l, b_o, first, i_row, queries, keep_scale, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr
):  # fmt: skip
    """Store a finished row of tiles; rows that saw no key become zeros with lse −∞."""
    o_q = i_row * BM + tl.arange(0, BM)
    m_alive = b_l > 0
    b_l = tl.where(m_alive, b_l, 1.0)
    put_tokens(p_o + first * DV, o_q, b_o * (keep_scale / b_l)[:, None], queries, DV, BDV)
    b_lse = tl.where(m_alive, (b_m + tl.log2(b_l)) * LN2, -float("inf"))
    tl.store(p_lse + first + o_q, b_lse, mask=o_q < queries)


@triton.jit(do_not_specialize=SIZES)
def merge_outputs(
    p_o, p_lse, p_sums, p_tops, p_totals, p_cuts, queries, heads, instances, keep_scale,
    DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr,
):  # fmt: skip
    """One row of tiles from its pieces: m = max m_s, l = Σ l_s·2^(m_s − m), and the sums likewise."""
    i_cut = tl.program_id(0) // instances
    i_instance = tl.program_id(0) % instances
    p_cuts += i_cut * 4
    i_row = tl.load(p_cuts + 1)
    i_b, i_h = place(tl.load(p_cuts), i_instance, heads, BY_BATCH, BY_HEAD)
    o_m = tl.arange(0, BM)
    o_x = o_m[:, None] * BDV + tl.arange(0, BDV)[None, :]
    b_m = tl.full([BM], FLOOR, tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_o = tl.zeros([BM, BDV], tl.float32)
    for i_slot in range(tl.load(p_cuts + 2), tl.load(p_cuts + 3)):
        i_part = (i_slot * instances + i_instance).to(tl.int64)
        b_top = tl.load(p_tops + i_part * BM + o_m)
        b_most = tl.maximum(b_m, b_top)
        b_old, b_new = tl.exp2(b_m - b_most), tl.exp2(b_top - b_most)
        b_l = b_l * b_old + tl.load(p_totals + i_part * BM + o_m) * b_new
        b_o = b_o * b_old[:, None] + tl.load(p_sums + i_part * (BM * BDV) + o_x) * b_new[:, None]
        b_m = b_most
    first = (i_b * heads + i_h).to(tl.int64) * queries
    put_output(p_o, p_lse, b_m, b_l, b_o, first, i_row, queries, keep_scale, DV, BDV, BM)


@triton.jit(do_not_specialize=SIZES)
def sum_parts(
    p_out, p_parts, p_cuts, lines, heads, instances, scale,
    D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr, BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr,
):  # fmt: skip
    """Rows of `p_out [batch, heads, lines, D]` from the partial sums of their pieces, added in order."""
    i_cut = tl.program_id(0) // instances
    i_instance = tl.program_id(0) % instances
    p_cuts += i_cut * 4
    i_row = tl.load(p_cuts + 1)
    i_b, i_h = place(tl.load(p_cuts), i_instance, heads, BY_BATCH, BY_HEAD)
    o_r = tl.arange(0, ROWS)
    o_x = o_r[:, None] * BD + tl.arange(0, BD)[None, :]
    b_sum = tl.zeros([ROWS, BD], tl.float32)
    for i_slot in range(tl.load(p_cuts + 2), tl.load(p_cuts + 3)):
        b_sum += tl.load(p_parts + (i_slot * instances + i_instance).to(tl.int64) * (ROWS * BD) + o_x)
    put_tokens(p_out + (i_b * heads + i_h).to(tl.int64) * lines * D, i_row * ROWS + o_r, b_sum * scale, lines, D, BD)


@triton.jit(do_not_specialize=SIZES)
def prepare_rows(
    p_o, p_lse, p_grad, p_level, p_delta, queries, instances, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr
):  # fmt: skip
    """delta = Σ o·d_o of each row, and its lse in base 2, +∞ where it saw no key so that its weights come out as zeros.

    Both are as long as whole tiles; what lies beyond the last row is like a row that saw no key.
    """
    i_row, i_instance = tl.program_id(0) // instances, (tl.program_id(0) % instances).to(tl.int64)
    o_m = i_row * BM + tl.arange(0, BM)
    o_q = tl.minimum(o_m, queries - 1)
    b_o = tokens_at(p_o + i_instance * queries * DV, o_q, DV, DV, BDV).to(tl.float32)
    b_grad = tokens_at(p_grad + i_instance * queries * DV, o_q, DV, DV, BDV).to(tl.float32)
    b_lse = tl.load(p_lse + i_instance * queries + o_q)
    m_dead = (b_lse == -float("inf")) | (o_m >= queries)
    padded = tl.num_programs(0) // instances * BM
    tl.store(p_delta + i_instance * padded + o_m, tl.sum(b_o * b_grad, 1))
    tl.store(p_level + i_instance * padded + o_m, tl.where(m_dead, float("inf"), b_lse * (1.0 / LN2)))


@triton.jit(do_not_specialize=SIZES)
def backward_rows(
    p_q, p_k, p_v, p_numbers, p_seed, p_grad, p_level, p_delta, p_dq, p_dq_parts,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_bits, p_packed,
    qb, qh, qn, kb, kh, kn, vb, vh, vn,
    queries, keys, padded, heads, share, origin, length, instances, scale, unit, d_scale, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr, NUMBERS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """A piece of one row of tiles, with p = 2^(s − level) as in the forward pass:

    ds = p · (keep·d_o·v − delta),   dq = scale · Σ_j ds·k
    """
    i_item = tl.program_id(0) // instances
    i_instance = tl.program_id(0) % instances
    i_row = tl.load(p_row + i_item)
    i_first, i_last = tl.load(p_first + i_item), tl.load(p_last + i_item)
    i_slot = tl.load(p_slot + i_item)
    i_b, i_h = place(tl.load(p_group + i_item), i_instance, heads, BY_BATCH, BY_HEAD)
    i_kv = i_h // share
    p_k += i_b.to(tl.int64) * kb + i_kv.to(tl.int64) * kh
    p_v += i_b.to(tl.int64) * vb + i_kv.to(tl.int64) * vh
    first = (i_b * heads + i_h).to(tl.int64) * queries
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    o_q = tl.minimum(i_row * BM + o_m, queries - 1)
    b_q = tokens_at(p_q + i_b.to(tl.int64) * qb + i_h.to(tl.int64) * qh, o_q, qn, D, BD)
    b_grad = tokens_at(p_grad + first * DV, o_q, DV, DV, BDV)
    o_level = (i_b * heads + i_h).to(tl.int64) * padded + i_row * BM + o_m
    b_level, b_delta = tl.load(p_level + o_level), tl.load(p_delta + o_level)
    if DROPOUT:
        b_keys = row_keys(p_seed, i_b, i_h, i_row * BM + o_m + keys - queries)
    b_dq = tl.zeros([BM, BD], tl.float32)
    i_next = tl.load(p_tile + i_first, mask=i_first < i_last, other=0)
    for x in range(i_first, i_last):
        i_tile = i_next
        i_next = tl.load(p_tile + x + 1, mask=x + 1 < i_last, other=0)
        i_bits = tl.load(p_bits + x)
        o_k = tl.minimum(o_n, keys - 1 - i_tile * BN)
        b_k = tokens_at(p_k + (i_tile * BN).to(tl.int64) * kn, o_k, kn, D, BD)
        b_v = tokens_at(p_v + (i_tile * BN).to(tl.int64) * vn, o_k, vn, DV, BDV)
        if NUMBERS:
            o_x = i_tile * BN - i_row * BM
            b_s = by_distance(p_numbers, i_h, o_x, origin, keys - queries, length, unit, BM, BN, False, PAIRS, NUMBERS)
        else:
            b_s = tl.zeros([BM, BN], tl.float32)
        b_s = tl.dot(b_q, tl.trans(b_k), b_s, input_precision=PRECISION) * scale - b_level[:, None]
        if i_bits >= 0:
            b_s = tl.where(allowed(p_packed, i_bits, BM, BN, False), b_s, -float("inf"))
        b_p = tl.exp2(b_s)
        b_d = tl.dot(b_grad, tl.trans(b_v), input_precision=PRECISION)
        if DROPOUT:
            b_d = tl.where(kept(b_keys, i_tile * BN + o_n, threshold, False), b_d * keep_scale, 0.0)
        b_d = b_p * (b_d - b_delta[:, None])
        b_dq = tl.dot(b_d.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION)
    if i_slot >= 0:
        put_part(p_dq_parts, i_slot * instances + i_instance, b_dq, BM, BD)
    else:
        put_tokens(p_dq + first * D, i_row * BM + o_m, b_dq * d_scale, queries, D, BD)


@triton.jit(do_not_specialize=SIZES)
def backward_columns(
    p_q, p_k, p_v, p_numbers, p_asking, p_table, p_seed, p_grad, p_level, p_delta,
    p_dk, p_dv, p_dk_parts, p_dv_parts, p_kept, p_base,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_bits, p_packed,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ab, ah, an,
    queries, keys, padded, heads, share, origin, length, instances, scale, unit, d_scale, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr, NUMBERS: tl.constexpr, VECTORS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A piece of one column of tiles, for each of PARTS query heads that share its keys:

        dv = Σ_i keep·p·d_o,   dk = scale · Σ_i ds·q

    The tile is held turned, keys down, so that p and ds are left factors of the products as they come. With vectors by
    distance it is not: their rotation runs along the rows of queries; and ds is kept, tile p_base[batch row and head]
    + its number in the list, for the gradients that `band.py` takes from it.
    """
    TURNED: tl.constexpr = not VECTORS
    i_item = tl.program_id(0) // instances
    i_instance = tl.program_id(0) % instances
    i_column = tl.load(p_row + i_item)
    i_first, i_last = tl.load(p_first + i_item), tl.load(p_last + i_item)
    i_slot = tl.load(p_slot + i_item)
    i_b, i_shared = place(tl.load(p_group + i_item), i_instance, heads // PARTS, BY_BATCH, BY_HEAD)
    i_kv = i_shared * PARTS // share
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    o_k = tl.minimum(i_column * BN + o_n, keys - 1)
    b_k = tokens_at(p_k + i_b.to(tl.int64) * kb + i_kv.to(tl.int64) * kh, o_k, kn, D, BD)
    b_v = tokens_at(p_v + i_b.to(tl.int64) * vb + i_kv.to(tl.int64) * vh, o_k, vn, DV, BDV)
    b_dk = tl.zeros([BN, BD], tl.float32)
    b_dv = tl.zeros([BN, BDV], tl.float32)
    for i_part in range(PARTS):
        i_h = i_shared * PARTS + i_part
        first = (i_b * heads + i_h).to(tl.int64) * queries
        p_qh = p_q + i_b.to(tl.int64) * qb + i_h.to(tl.int64) * qh
        if VECTORS:
            i_base = tl.load(p_base + i_b * heads + i_h)
        i_next = tl.load(p_tile + i_first, mask=i_first < i_last, other=0)
        for x in range(i_first, i_last):
            i_tile = i_next
            i_next = tl.load(p_tile + x + 1, mask=x + 1 < i_last, other=0)
            i_bits = tl.load(p_bits + x)
            o_q = tl.minimum(o_m, queries - 1 - i_tile * BM)
            first_row = (i_tile * BM).to(tl.int64)
            b_q = tokens_at(p_qh + first_row * qn, o_q, qn, D, BD)
            b_grad = tokens_at(p_grad + (first + first_row) * DV, o_q, DV, DV, BDV)
            o_level = (i_b * heads + i_h).to(tl.int64) * padded + first_row + o_m
            b_level, b_delta = spread(tl.load(p_level + o_level), TURNED), spread(tl.load(p_delta + o_level), TURNED)
            o_x = origin + i_column * BN - i_tile * BM
            if NUMBERS:
                o_c = o_x - origin
                b_s = by_distance(
                    p_numbers, i_h, o_c, origin, keys - queries, length, unit, BM, BN, TURNED, PAIRS, NUMBERS
                )
            else:
                b_s = tl.zeros([BN, BM] if TURNED else [BM, BN], tl.float32)
            if VECTORS:
                b_a = tokens_at(
                    p_asking + i_b.to(tl.int64) * ab + i_h.to(tl.int64) * ah + first_row * an, o_q, an, D, BD
                )
                p_band = p_table + (i_h.to(tl.int64) * length + o_x) * D
                b_high = tl.dot(b_a, tl.trans(tokens_at(p_band, o_n, D, D, BD)), input_precision=PRECISION)
                b_low = tl.dot(b_a, tl.trans(tokens_at(p_band - BN * D, o_n, D, D, BD)), input_precision=PRECISION)
                b_s = tl.dot(b_q, tl.trans(b_k), b_s + sheared(b_low, b_high, BN), input_precision=PRECISION)
                b_d = tl.dot(b_grad, tl.trans(b_v), input_precision=PRECISION)
            else:
                b_s = tl.dot(b_k, tl.trans(b_q), b_s, input_precision=PRECISION)
                b_d = tl.dot(b_v, tl.trans(b_grad), input_precision=PRECISION)
            b_s = b_s * scale - b_level
            if i_bits >= 0:
                b_s = tl.where(allowed(p_packed, i_bits, BM, BN, TURNED), b_s, -float("inf"))
            b_p = tl.exp2(b_s)
            b_mixing = b_p
            if DROPOUT:
                b_keys = row_keys(p_seed, i_b, i_h, i_tile * BM + o_m + keys - queries)
                m_kept = kept(b_keys, i_column * BN + o_n, threshold, TURNED)
                b_mixing = tl.where(m_kept, b_p, 0.0)
                b_d = tl.where(m_kept, b_d * keep_scale, 0.0)
            b_mixing = b_mixing.to(b_grad.dtype)
            b_d = (b_p * (b_d - b_delta)).to(b_q.dtype)
            if VECTORS:
                tl.store(p_kept + (i_base + x) * (BM * BN) + o_m[:, None] * BN + o_n[None, :], b_d)
            if not TURNED:
                b_mixing, b_d = tl.trans(b_mixing), tl.trans(b_d)
            b_dv = tl.dot(b_mixing, b_grad, b_dv, input_precision=PRECISION)
            b_dk = tl.dot(b_d, b_q, b_dk, input_precision=PRECISION)
    b_dk *= d_scale
    b_dv *= keep_scale
    if i_slot >= 0:
        put_part(p_dk_parts, i_slot * instances + i_instance, b_dk, BN, BD)
        put_part(p_dv_parts, i_slot * instances + i_instance, b_dv, BN, BDV)
    else:
        first = (i_b * (heads // PARTS) + i_shared).to(tl.int64) * keys
        put_tokens(p_dk + first * D, i_column * BN + o_n, b_dk, keys, D, BD)
        put_tokens(p_dv + first * DV, i_column * BN + o_n, b_dv, keys, DV, BDV)


@triton.jit(do_not_specialize=SIZES)
def backward_diagonals(
    p_q, p_k, p_v, p_numbers, p_seed, p_grad, p_level, p_delta, p_dnumbers, p_dnumbers_parts,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_bits, p_packed,
    qb, qh, qn, kb, kh, kn, vb, vh, vn,
    queries, keys, padded, heads, share, origin, length, instances, parts, tile_rows, lines,
    scale, unit, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr, NUMBERS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """A piece of one diagonal of tiles, for `parts` rows of the batch; every tile on it has the same distances:

        d numbers[x] = Σ_{j − i = x} ds

    Written as the two halves of the band of distances, low and high; neighbouring diagonals share halves. The tiles are
    added up as they are and only their sum is summed along its diagonals.
    """
    i_item = tl.program_id(0) // instances
    i_instance = tl.program_id(0) % instances
    i_line = tl.load(p_row + i_item)
    i_first, i_last = tl.load(p_first + i_item), tl.load(p_last + i_item)
    i_slot = tl.load(p_slot + i_item)
    i_shared, i_h = place(tl.load(p_group + i_item), i_instance, heads, BY_BATCH, BY_HEAD)
    i_kv = i_h // share
    i_across = i_line - (tile_rows - 1)
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    o_x = origin + i_across * BN
    b_sum = tl.zeros([BM, BN], tl.float32)
    for i_part in range(parts):
        i_b = i_shared * parts + i_part
        first = (i_b * heads + i_h).to(tl.int64) * queries
        p_qh = p_q + i_b.to(tl.int64) * qb + i_h.to(tl.int64) * qh
        p_kh = p_k + i_b.to(tl.int64) * kb + i_kv.to(tl.int64) * kh
        p_vh = p_v + i_b.to(tl.int64) * vb + i_kv.to(tl.int64) * vh
        i_next = tl.load(p_tile + i_first, mask=i_first < i_last, other=0)
        for x in range(i_first, i_last):
            i_tile = i_next
            i_next = tl.load(p_tile + x + 1, mask=x + 1 < i_last, other=0)
            i_bits = tl.load(p_bits + x)
            i_column = i_tile + i_across
            o_q = tl.minimum(o_m, queries - 1 - i_tile * BM)
            o_k = tl.minimum(o_n, keys - 1 - i_column * BN)
            first_row, first_column = (i_tile * BM).to(tl.int64), (i_column * BN).to(tl.int64)
            b_q = tokens_at(p_qh + first_row * qn, o_q, qn, D, BD)
            b_k = tokens_at(p_kh + first_column * kn, o_k, kn, D, BD)
            b_v = tokens_at(p_vh + first_column * vn, o_k, vn, DV, BDV)
            b_grad = tokens_at(p_grad + (first + first_row) * DV, o_q, DV, DV, BDV)
            o_level = (i_b * heads + i_h).to(tl.int64) * padded + first_row + o_m
            b_level, b_delta = tl.load(p_level + o_level), tl.load(p_delta + o_level)
            o_c = o_x - origin
            b_s = by_distance(p_numbers, i_h, o_c, origin, keys - queries, length, unit, BM, BN, False, PAIRS, NUMBERS)
            b_s = tl.dot(b_q, tl.trans(b_k), b_s, input_precision=PRECISION) * scale - b_level[:, None]
            if i_bits >= 0:
                b_s = tl.where(allowed(p_packed, i_bits, BM, BN, False), b_s, -float("inf"))
            b_p = tl.exp2(b_s)
            b_d = tl.dot(b_grad, tl.trans(b_v), input_precision=PRECISION)
            if DROPOUT:
                b_keys = row_keys(p_seed, i_b, i_h, i_tile * BM + o_m + keys - queries)
                b_d = tl.where(kept(b_keys, i_column * BN + o_n, threshold, False), b_d * keep_scale, 0.0)
            b_sum += b_p * (b_d - b_delta[:, None])
    i_part = i_slot * instances + i_instance
    i_out = (i_shared * heads + i_h).to(tl.int64) * lines + i_line
    b_low, b_high = unsheared(b_sum, BN)
    b_dlow, b_dhigh = tl.sum(b_low, 0), tl.sum(b_high, 0)
    if i_slot >= 0:
        tl.store(p_dnumbers_parts + i_part * (2 * BN) + o_n, b_dlow)
        tl.store(p_dnumbers_parts + i_part * (2 * BN) + BN + o_n, b_dhigh)
    else:
        tl.store(p_dnumbers + i_out * (2 * BN) + o_n, b_dlow)
        tl.store(p_dnumbers + i_out * (2 * BN) + BN + o_n, b_dhigh)
