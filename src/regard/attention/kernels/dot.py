"""Fused attention of the dot family: scale·q·k, a number or a vector by distance, any mask, dropout.

Tables by distance are first written out along one line, entry x for j − row = x − origin: their ends are repeated
there, so kernels neither clamp nor look where a table ends. Its length is that of queries and keys together.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..call import Problem
from ..dropout import kept_scale, threshold
from .lists import Items, Lists, diagonals, items, lists
from .score import allowed, by_distance, kept, place, row_keys, sheared, spread, unsheared

LOG2E = math.log2(math.e)
FLOOR = tl.constexpr(-1e30)  # below every score; unlike −∞ it can be subtracted from itself
LN2 = tl.constexpr(math.log(2.0))


class Shape(NamedTuple):
    """A tile of `rows` queries × `columns` keys, and how a program that walks such tiles is run."""

    rows: int
    columns: int
    warps: int
    stages: int


# By bytes of an element, then by the greater of the (padded) head dims.
FORWARD = {
    2: {64: Shape(64, 64, 4, 3), 128: Shape(128, 128, 8, 3), 256: Shape(128, 64, 8, 2)},
    4: {64: Shape(64, 64, 4, 1), 128: Shape(64, 32, 4, 1), 256: Shape(16, 32, 4, 1)},
}
ROWS = {
    2: {64: Shape(64, 64, 4, 3), 128: Shape(128, 64, 8, 3), 256: Shape(64, 32, 8, 2)},
    4: {64: Shape(64, 64, 4, 1), 128: Shape(64, 32, 4, 1), 256: Shape(16, 32, 4, 1)},
}
COLUMNS = {
    2: {64: Shape(64, 64, 4, 3), 128: Shape(64, 128, 8, 3), 256: Shape(32, 64, 8, 2)},
    4: {64: Shape(64, 64, 4, 1), 128: Shape(32, 64, 4, 1), 256: Shape(16, 32, 4, 1)},
}
DIAGONALS = {
    2: {64: Shape(64, 64, 4, 3), 128: Shape(64, 64, 4, 2), 256: Shape(32, 32, 4, 2)},
    4: {64: Shape(64, 64, 4, 1), 128: Shape(32, 32, 4, 1), 256: Shape(32, 32, 8, 1)},
}
# Square, for everything when there are vectors by distance. Wider heads would not fit.
SQUARE = {2: {64: Shape(64, 64, 4, 2), 128: Shape(64, 64, 8, 2)}, 4: {64: Shape(32, 32, 4, 1)}}
EXACT = "tf32x3"  # products of float32: three of tensor cores, whose sum is as exact
EDGE = 256  # the origin of a line is a multiple of this, and so of every tile's sizes
PROGRAMS = 3  # programs a multiprocessor that the work should be enough for
LEAST = 16  # tiles that a piece of a cut list has at least

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
    p_q, p_k, p_v, p_o, p_lse, p_numbers, p_asking, p_table, p_seed,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_ends, p_bits, p_packed, p_sums, p_tops, p_totals,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ab, ah, an,
    queries, keys, heads, share, origin, length, instances, scale, threshold, keep_scale,
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
    b_m = tl.full([BM], FLOOR, tl.float32)
    b_l = tl.zeros([BM], tl.float32)
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
                b_s = by_distance(p_numbers, i_h, o_x, origin, keys - queries, length, BM, BN, False, PAIRS, NUMBERS)
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
            if DROPOUT:
                b_p = tl.where(kept(b_keys, i_tile * BN + o_n, threshold, False), b_p, 0.0)
            b_v = tokens_at(p_v + (i_tile * BN).to(tl.int64) * vn, o_k, vn, DV, BDV)
            b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * b_fade[:, None], input_precision=PRECISION)
        i_first = i_end
    if i_slot >= 0:
        i_part = i_slot * instances + i_instance
        put_part(p_sums, i_part, b_o, BM, BDV)
        tl.store(p_tops + i_part.to(tl.int64) * BM + o_m, b_m)
        tl.store(p_totals + i_part.to(tl.int64) * BM + o_m, b_l)
    else:
        put_output(
            p_o,
            p_lse,
            b_m,
            b_l,
            b_o,
            (i_b * heads + i_h).to(tl.int64) * queries,
            i_row,
            queries,
            keep_scale,
            DV,
            BDV,
            BM,
        )


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
    p_o, p_lse, p_cuts, p_sums, p_tops, p_totals, queries, heads, instances, keep_scale,
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
    put_output(
        p_o, p_lse, b_m, b_l, b_o, (i_b * heads + i_h).to(tl.int64) * queries, i_row, queries, keep_scale, DV, BDV, BM
    )


@triton.jit(do_not_specialize=SIZES)
def sum_parts(
    p_out, p_cuts, p_parts, lines, heads, instances, scale,
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
    p_o, p_grad, p_lse, p_delta, p_level, queries, instances, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr
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
    p_q, p_k, p_v, p_grad, p_level, p_delta, p_numbers, p_asking, p_table, p_seed,
    p_dq, p_dasking, p_dq_parts, p_dasking_parts,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_ends, p_bits, p_packed,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ab, ah, an,
    queries, keys, padded, heads, share, origin, length, instances, scale, d_scale, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr, NUMBERS: tl.constexpr, VECTORS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """A piece of one row of tiles, with p = 2^(s − level) as in the forward pass:

    ds = p · (keep·d_o·v − delta),   dq = scale · Σ_j ds·k,   d asking = scale · Σ_j ds·table[j − i]
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
    if VECTORS:
        b_a = tokens_at(p_asking + i_b.to(tl.int64) * ab + i_h.to(tl.int64) * ah, o_q, an, D, BD)
        p_table += (i_h.to(tl.int64) * length + origin - i_row * BM) * D
        b_low = tl.zeros([BM, BN], tl.float32)
        b_waiting = tl.zeros([BM, BN], tl.float32)
        b_da = tl.zeros([BM, BD], tl.float32)
    if DROPOUT:
        b_keys = row_keys(p_seed, i_b, i_h, i_row * BM + o_m + keys - queries)
    b_dq = tl.zeros([BM, BD], tl.float32)
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
            i_next = tl.load(p_tile + x + 1, mask=x + 1 < i_end, other=0)
            i_bits = tl.load(p_bits + x)
            o_k = tl.minimum(o_n, keys - 1 - i_tile * BN)
            b_k = tokens_at(p_k + (i_tile * BN).to(tl.int64) * kn, o_k, kn, D, BD)
            b_v = tokens_at(p_v + (i_tile * BN).to(tl.int64) * vn, o_k, vn, DV, BDV)
            if NUMBERS:
                o_x = i_tile * BN - i_row * BM
                b_s = by_distance(p_numbers, i_h, o_x, origin, keys - queries, length, BM, BN, False, PAIRS, NUMBERS)
            else:
                b_s = tl.zeros([BM, BN], tl.float32)
            if VECTORS:
                p_high = p_table + i_tile * BN * D
                b_high = tl.dot(b_a, tl.trans(tokens_at(p_high, o_n, D, D, BD)), input_precision=PRECISION)
                b_r = tokens_at(p_high - BN * D, o_n, D, D, BD)
                b_s += sheared(b_low, b_high, BN)
                b_low = b_high
            b_s = tl.dot(b_q, tl.trans(b_k), b_s, input_precision=PRECISION) * scale - b_level[:, None]
            if i_bits >= 0:
                b_s = tl.where(allowed(p_packed, i_bits, BM, BN, False), b_s, -float("inf"))
            b_p = tl.exp2(b_s)
            b_d = tl.dot(b_grad, tl.trans(b_v), input_precision=PRECISION)
            if DROPOUT:
                b_d = tl.where(kept(b_keys, i_tile * BN + o_n, threshold, False), b_d * keep_scale, 0.0)
            b_d = b_p * (b_d - b_delta[:, None])
            b_dq = tl.dot(b_d.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION)
            if VECTORS:
                # Neighbouring tiles share a block of distances: what this one has for it joins what the last one left.
                b_left, b_right = unsheared(b_d, BN)
                b_da = tl.dot((b_waiting + b_left).to(b_r.dtype), b_r, b_da, input_precision=PRECISION)
                b_waiting = b_right
        if VECTORS:
            p_band += (i_end - i_first) * BN * D
            b_old = tokens_at(p_band, o_n, D, D, BD)
            b_da = tl.dot(b_waiting.to(b_old.dtype), b_old, b_da, input_precision=PRECISION)
            b_waiting = tl.zeros([BM, BN], tl.float32)
        i_first = i_end
    if i_slot >= 0:
        put_part(p_dq_parts, i_slot * instances + i_instance, b_dq, BM, BD)
        if VECTORS:
            put_part(p_dasking_parts, i_slot * instances + i_instance, b_da, BM, BD)
    else:
        put_tokens(p_dq + first * D, i_row * BM + o_m, b_dq * d_scale, queries, D, BD)
        if VECTORS:
            put_tokens(p_dasking + first * D, i_row * BM + o_m, b_da * d_scale, queries, D, BD)


@triton.jit(do_not_specialize=SIZES)
def backward_columns(
    p_q, p_k, p_v, p_grad, p_level, p_delta, p_numbers, p_asking, p_table, p_seed, p_dk, p_dv, p_dk_parts, p_dv_parts,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_bits, p_packed,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ab, ah, an,
    queries, keys, padded, heads, share, origin, length, instances, scale, d_scale, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr, NUMBERS: tl.constexpr, VECTORS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A piece of one column of tiles, for each of PARTS query heads that share its keys:

        dv = Σ_i keep·p·d_o,   dk = scale · Σ_i ds·q

    The tile is held turned, keys down, so that p and ds are left factors of the products as they come. With vectors by
    distance it is not: their rotation runs along the rows of queries.
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
                b_s = by_distance(p_numbers, i_h, o_c, origin, keys - queries, length, BM, BN, TURNED, PAIRS, NUMBERS)
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
    p_q, p_k, p_v, p_grad, p_level, p_delta, p_numbers, p_asking, p_table, p_seed,
    p_dnumbers, p_dtable, p_dnumbers_parts, p_dtable_parts,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_bits, p_packed,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ab, ah, an,
    queries, keys, padded, heads, share, origin, length, instances, parts, tile_rows, lines,
    scale, d_scale, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr, NUMBERS: tl.constexpr, VECTORS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """A piece of one diagonal of tiles, for `parts` rows of the batch; every tile on it has the same distances:

        d numbers[x] = Σ_{j − i = x} ds,   d table[x] = scale · Σ_{j − i = x} ds·asking

    Written as the two halves of the band of distances, low and high; neighbouring diagonals share halves. For numbers
    the tiles are added up as they are and only their sum is summed along its diagonals.
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
    if VECTORS:
        p_band = p_table + (i_h.to(tl.int64) * length + o_x) * D
        b_right = tokens_at(p_band, o_n, D, D, BD)
        b_left = tokens_at(p_band - BN * D, o_n, D, D, BD)
        b_dright = tl.zeros([BN, BD], tl.float32)
        b_dleft = tl.zeros([BN, BD], tl.float32)
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
            if NUMBERS:
                o_c = o_x - origin
                b_s = by_distance(p_numbers, i_h, o_c, origin, keys - queries, length, BM, BN, False, PAIRS, NUMBERS)
            else:
                b_s = tl.zeros([BM, BN], tl.float32)
            if VECTORS:
                b_a = tokens_at(
                    p_asking + i_b.to(tl.int64) * ab + i_h.to(tl.int64) * ah + first_row * an, o_q, an, D, BD
                )
                b_high = tl.dot(b_a, tl.trans(b_right), input_precision=PRECISION)
                b_low = tl.dot(b_a, tl.trans(b_left), input_precision=PRECISION)
                b_s += sheared(b_low, b_high, BN)
            b_s = tl.dot(b_q, tl.trans(b_k), b_s, input_precision=PRECISION) * scale - b_level[:, None]
            if i_bits >= 0:
                b_s = tl.where(allowed(p_packed, i_bits, BM, BN, False), b_s, -float("inf"))
            b_p = tl.exp2(b_s)
            b_d = tl.dot(b_grad, tl.trans(b_v), input_precision=PRECISION)
            if DROPOUT:
                b_keys = row_keys(p_seed, i_b, i_h, i_tile * BM + o_m + keys - queries)
                b_d = tl.where(kept(b_keys, i_column * BN + o_n, threshold, False), b_d * keep_scale, 0.0)
            b_d = b_p * (b_d - b_delta[:, None])
            if NUMBERS:
                b_sum += b_d
            if VECTORS:
                b_low, b_high = unsheared(b_d, BN)
                b_dleft = tl.dot(tl.trans(b_low.to(b_a.dtype)), b_a, b_dleft, input_precision=PRECISION)
                b_dright = tl.dot(tl.trans(b_high.to(b_a.dtype)), b_a, b_dright, input_precision=PRECISION)
    i_part = i_slot * instances + i_instance
    i_out = (i_shared * heads + i_h).to(tl.int64) * lines + i_line
    if NUMBERS:
        b_low, b_high = unsheared(b_sum, BN)
        b_dlow, b_dhigh = tl.sum(b_low, 0), tl.sum(b_high, 0)
        if i_slot >= 0:
            tl.store(p_dnumbers_parts + i_part * (2 * BN) + o_n, b_dlow)
            tl.store(p_dnumbers_parts + i_part * (2 * BN) + BN + o_n, b_dhigh)
        else:
            tl.store(p_dnumbers + i_out * (2 * BN) + o_n, b_dlow)
            tl.store(p_dnumbers + i_out * (2 * BN) + BN + o_n, b_dhigh)
    if VECTORS:
        b_dleft *= d_scale
        b_dright *= d_scale
        if i_slot >= 0:
            put_part(p_dtable_parts, i_part * 2, b_dleft, BN, BD)
            put_part(p_dtable_parts, i_part * 2 + 1, b_dright, BN, BD)
        else:
            put_tokens(p_dtable + i_out * (2 * BN * D), o_n, b_dleft, BN, D, BD)
            put_tokens(p_dtable + i_out * (2 * BN * D) + BN * D, o_n, b_dright, BN, D, BD)


class Work:
    """A problem made ready for the kernels: types, strides, tables along a line."""

    def __init__(self, p: Problem, sloped: bool = True):
        """`sloped` numbers are computed rather than read, which their own gradient cannot be."""
        dtype = p.v.dtype
        self.p, self.grid = p, p.grid
        self.scale = abs(p.scale) or 1.0
        self.q, self.k, self.v = (ready(x, dtype) for x in (self.signed(p.q), p.k, p.v))
        self.share = p.q.shape[1] // p.k.shape[1]
        self.dim, self.value_dim = self.q.shape[-1], self.v.shape[-1]
        self.origin = -(-self.grid.queries // EDGE) * EDGE + EDGE  # so that copies that are moved lose nothing
        self.length = self.origin + -(-self.grid.keys // EDGE) * EDGE
        self.numbers = self.asking = self.table = None
        self.sloped = sloped and p.numbers is not None and p.numbers.slopes is not None
        if self.sloped:
            self.numbers = p.numbers.slopes.float() / self.scale  # type: ignore[union-attr]
        elif p.numbers is not None:
            line = self.along(p.numbers.table, p.numbers.zero).float() / self.scale
            both = (line, line.flip(1).roll(1, 1))  # entry y of the second is that of x = length − y
            self.numbers = torch.stack([x.roll(copy, 1) for x in both for copy in range(4)], 1)  # [heads, 8, length]
        if p.vectors is not None:
            self.asking = ready(self.signed(p.vectors.queries), dtype)
            self.table = ready(self.along(p.vectors.table, p.vectors.zero), dtype).contiguous()

    def signed(self, x: Tensor) -> Tensor:
        """Queries or their gradient with the scale's sign: kernels take the maximum before they scale."""
        return x if self.p.scale > 0 else -x if self.p.scale < 0 else torch.zeros_like(x)

    def along(self, table: Tensor, zero: int) -> Tensor:
        """The table's entries along the line, `[heads, length, ...]`."""
        x = torch.arange(self.length, device=table.device)
        return table[:, (self.origin - x + self.grid.offset + zero).clamp(0, table.shape[1] - 1)]

    def joined(self, bands: Tensor, tile_rows: int, size: int) -> Tensor:
        """The bands of all diagonals, `[batch, heads, diagonals, 2 · size, ...]`, added up along the line."""
        low, high = bands.sum(0).split(size, 2)
        line = bands.new_zeros(bands.shape[1], self.length, *bands.shape[4:])
        first, count = self.origin - (tile_rows - 1) * size, bands.shape[2] * size
        line[:, first : first + count] += high.flatten(1, 2)
        line[:, first - size : first - size + count] += low.flatten(1, 2)
        return line

    def folded(self, line: Tensor, size: int, zero: int) -> Tensor:
        """The adjoint of `along`: line `[heads, length, ...]` as a table of `size` entries."""
        start = self.origin + self.grid.offset + zero  # the entry at x is that of start − x
        low, high = (min(max(x, 0), self.length) for x in (start - size + 2, start))  # entries 1 … size − 2 lie between
        table = line.new_zeros(line.shape[0], size, *line.shape[2:])
        if size == 1:
            table[:, 0] = line.sum(1)
            return table
        table[:, -1] = line[:, :low].sum(1)
        table[:, 0] = line[:, high:].sum(1)
        if low < high:
            table[:, start - high + 1 : start - low + 1] = line[:, low:high].flip(1)
        return table

    def shape(self, table: dict[int, dict[int, Shape]]) -> Shape:
        """The tile for these types and sizes."""
        widest = max(power(self.dim), power(self.value_dim), 64)
        return (table if self.table is None else SQUARE)[self.v.itemsize][widest]

    def arguments(self, tiles: Lists, pieces: Items, shape: Shape, instances: int) -> dict[str, Any]:
        """What all kernels that walk tiles are given."""
        p = self.p
        asking = self.asking if self.asking is not None else self.q
        strides = [x.stride()[:3] for x in (self.q, self.k, self.v, asking)]
        names = ("qb", "qh", "qn", "kb", "kh", "kn", "vb", "vh", "vn", "ab", "ah", "an")
        return dict(
            p_q=self.q, p_k=self.k, p_v=self.v, p_numbers=self.numbers, p_asking=self.asking, p_table=self.table,
            p_seed=p.seed, p_group=pieces.group, p_row=pieces.row, p_first=pieces.first, p_last=pieces.last,
            p_slot=pieces.slot, p_tile=tiles.tile, p_bits=tiles.bits, p_packed=tiles.packed,
            **dict(zip(names, (x for three in strides for x in three), strict=True)),
            queries=self.grid.queries, keys=self.grid.keys, heads=self.grid.heads, share=self.share,
            origin=self.origin, length=self.length, instances=instances, scale=self.scale * LOG2E,
            threshold=threshold(p.dropout), keep_scale=kept_scale(p.dropout) if p.seed is not None else 1.0,
            D=self.dim, BD=power(self.dim),
            DV=self.value_dim, BDV=power(self.value_dim),
            BM=shape.rows, BN=shape.columns, **grouping(tiles),
            NUMBERS=2 if self.sloped else int(self.numbers is not None), VECTORS=self.table is not None,
            DROPOUT=p.seed is not None,
            PRECISION=EXACT if self.v.dtype == torch.float32 else "tf32", PAIRS=self.v.itemsize == 2, **launch(shape),
        )  # fmt: skip


def ready(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the type, its last dim contiguous and a multiple of 16, which loads of 16 bytes need."""
    x = x.to(dtype)
    if x.shape[-1] % 16:
        return torch.nn.functional.pad(x, (0, -x.shape[-1] % 16))
    aligned = x.stride(-1) == 1 and all(
        s % 8 == 0 or n == 1 for s, n in zip(x.stride()[:-1], x.shape[:-1], strict=True)
    )
    return x if aligned else x.contiguous()


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def launch(shape: Shape) -> dict[str, int]:
    return {"num_warps": shape.warps, "num_stages": shape.stages}


def grouping(tiles: Lists) -> dict[str, bool]:
    return {"BY_BATCH": tiles.batch_stride > 0, "BY_HEAD": tiles.head_stride > 0}


def limit(tiles: Lists, instances: int) -> int:
    """The longest list that is not cut: what a program would have if the work were spread evenly, a power of two."""
    device = tiles.tile.device
    many = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    even = len(tiles.tile) * instances // (many * PROGRAMS)
    return power(max(even, LEAST))


def cut(tiles: Lists, programs: int) -> tuple[Items, int]:
    """The pieces of the lists, and how many programs each has when there are `programs` for every row of tiles."""
    instances = programs // tiles.groups
    return items(tiles, limit(tiles, instances)), instances


def ends(tiles: Lists) -> Tensor:
    """Where the run of neighbouring tiles ends that each listed tile is in; runs may go on into the next row's list."""
    count = len(tiles.tile)
    at = torch.arange(1, count + 1, dtype=torch.int32, device=tiles.tile.device)
    last = torch.ones(count, dtype=torch.bool, device=at.device)
    last[:-1] = tiles.tile[1:] != tiles.tile[:-1] + 1
    return torch.where(last, at, count).flip(0).cummin(0).values.flip(0)


def parts_for(like: Tensor, pieces: Items, instances: int, *size: int) -> Tensor:
    """Room for partial sums of cut lists, float32."""
    return torch.empty(pieces.slots * instances, *size, dtype=torch.float32, device=like.device)


def forward(p: Problem) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    work = Work(p)
    batch, heads, queries, _ = p.q.shape
    shape = work.shape(FORWARD)
    tiles = lists(p.mask, work.grid, shape.rows, shape.columns)
    pieces, instances = cut(tiles, batch * heads)
    output = work.v.new_empty(batch, heads, queries, work.value_dim)
    lse = work.v.new_empty(batch, heads, queries, dtype=torch.float32)
    given = work.arguments(tiles, pieces, shape, instances)
    sums = parts_for(output, pieces, instances, shape.rows, given["BDV"])
    tops, totals = (parts_for(output, pieces, instances, shape.rows) for _ in range(2))
    partial = {"p_sums": sums, "p_tops": tops, "p_totals": totals}
    given["p_ends"] = ends(tiles) if p.vectors is not None else None
    forward_tiles[(len(pieces.row) * instances,)](p_o=output, p_lse=lse, **partial, **given)
    if len(pieces.cuts):
        sizes = {name: given[name] for name in ("queries", "heads", "instances", "keep_scale", "DV", "BDV", "BM")}
        merge_outputs[(len(pieces.cuts) * instances,)](output, lse, pieces.cuts, **partial, **sizes, **grouping(tiles))
    return (output if output.shape[-1] == p.v.shape[-1] else output[..., : p.v.shape[-1]].contiguous()), lse


def backward(p: Problem, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight (none here), numbers, asking, table."""
    of_numbers, of_table = p.numbers is not None and p.wanted[4], p.vectors is not None and p.wanted[6]
    work = Work(p, sloped=not of_numbers)
    grad, output = (ready(x.contiguous(), p.v.dtype) for x in (grad, output))
    batch, heads, queries = lse.shape
    padded = -(-queries // EDGE) * EDGE
    delta, level = (lse.new_empty(batch, heads, padded) for _ in range(2))
    sizes = {"DV": work.value_dim, "BDV": power(work.value_dim), "BM": 64}
    prepare_rows[(padded // 64 * batch * heads,)](output, grad, lse, delta, level, queries, batch * heads, **sizes)
    common = {"p_grad": grad, "p_level": level, "p_delta": delta, "padded": padded}
    dq, dasking = by_rows(work, common)
    dk, dv = by_columns(work, common)
    dnumbers, dtable = by_diagonals(work, common) if of_numbers or of_table else (None, None)
    dim = p.q.shape[-1]
    dasking = None if dasking is None else work.signed(dasking)[..., :dim]
    return [work.signed(dq)[..., :dim], dk[..., :dim], dv[..., : p.v.shape[-1]], None, dnumbers, dasking, dtable]


def by_rows(work: Work, common: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """dq and d asking."""
    shape, grid = work.shape(ROWS), work.grid
    tiles = lists(work.p.mask, grid, shape.rows, shape.columns)
    pieces, instances = cut(tiles, grid.batch * grid.heads)
    given = work.arguments(tiles, pieces, shape, instances)
    given["p_ends"] = ends(tiles) if work.table is not None else None
    out = [work.q.new_empty(work.q.shape) if there else None for there in (True, work.table is not None)]
    partial = [None if x is None else parts_for(x, pieces, instances, shape.rows, given["BD"]) for x in out]
    backward_rows[(len(pieces.row) * instances,)](
        p_dq=out[0],
        p_dasking=out[1],
        p_dq_parts=partial[0],
        p_dasking_parts=partial[1],
        d_scale=work.scale,
        **common,
        **given,
    )
    for x, part in zip(out, partial, strict=True):
        if x is not None:
            add_parts(x, part, tiles, pieces, instances, shape.rows, work.scale)
    return out[0], out[1]  # type: ignore[return-value]


def by_columns(work: Work, common: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """dk and dv. Heads that share keys are taken together, unless each has a mask of its own."""
    shape, grid = work.shape(COLUMNS), work.grid
    tiles = lists(work.p.mask, grid, shape.rows, shape.columns, transposed=True)
    parts = 1 if tiles.head_stride else work.share
    pieces, instances = cut(tiles, grid.batch * grid.heads // parts)
    given = work.arguments(tiles, pieces, shape, instances)
    exact = work.v.dtype if parts == work.share else torch.float32
    out = [x.new_empty(grid.batch, grid.heads // parts, *x.shape[2:], dtype=exact) for x in (work.k, work.v)]
    partial = [parts_for(out[0], pieces, instances, shape.columns, given[name]) for name in ("BD", "BDV")]
    backward_columns[(len(pieces.row) * instances,)](
        p_dk=out[0], p_dv=out[1], p_dk_parts=partial[0], p_dv_parts=partial[1], PARTS=parts, d_scale=work.scale,
        **common, **given,
    )  # fmt: skip
    for x, part in zip(out, partial, strict=True):
        add_parts(x, part, tiles, pieces, instances, shape.columns, 1.0)
    if parts != work.share:
        out = [x.unflatten(1, (-1, work.share)).sum(2) for x in out]
    return out[0], out[1]


def by_diagonals(work: Work, common: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """d numbers and d table. The rows of the batch are taken together, unless each has a mask of its own."""
    shape, grid, p = work.shape(DIAGONALS), work.grid, work.p
    by_row = lists(p.mask, grid, shape.rows, shape.columns)
    tiles = diagonals(by_row, grid)
    parts = 1 if tiles.batch_stride else grid.batch
    pieces, instances = cut(tiles, grid.batch * grid.heads // parts)
    given = work.arguments(tiles, pieces, shape, instances)
    tile_rows, lines, band = by_row.starts.shape[1] - 1, tiles.starts.shape[1] - 1, 2 * shape.columns
    widths = (1 if p.numbers is not None else None, work.dim if p.vectors is not None else None)
    front = (grid.batch // parts, grid.heads, lines, band)
    out = [None if w is None else torch.empty(*front, w, device=work.q.device) for w in widths]
    partial = [None if w is None else parts_for(work.q, pieces, instances, band, power(w)) for w in widths]
    backward_diagonals[(len(pieces.row) * instances,)](
        p_dnumbers=out[0], p_dtable=out[1], p_dnumbers_parts=partial[0], p_dtable_parts=partial[1],
        parts=parts, tile_rows=tile_rows, lines=lines, d_scale=work.scale, **common, **given,
    )  # fmt: skip
    tables: list[Tensor | None] = [None, None]
    for n, (x, part, source) in enumerate(zip(out, partial, (p.numbers, p.vectors), strict=True)):
        if x is not None:
            add_parts(x.flatten(2, 3), part, tiles, pieces, instances, band, 1.0)  # type: ignore[arg-type]
            line = work.joined(x, tile_rows, shape.columns)
            tables[n] = work.folded(line, source.table.shape[1], source.zero)  # type: ignore[union-attr]
    numbers, table = tables
    return None if numbers is None else numbers[..., 0], None if table is None else table[..., : p.q.shape[-1]]


def add_parts(
    out: Tensor, partial: Tensor, tiles: Lists, pieces: Items, instances: int, rows: int, scale: float
) -> None:
    """Put the sums of cut lists where they belong in `out [batch, heads, length, d]`."""
    if len(pieces.cuts):
        dim = out.shape[-1]
        wide = partial.shape[-1] if partial.dim() == 3 else 1
        sum_parts[(len(pieces.cuts) * instances,)](
            out,
            pieces.cuts,
            partial,
            out.shape[2],
            out.shape[1],
            instances,
            scale,
            D=dim,
            BD=wide,
            ROWS=rows,
            **grouping(tiles),
        )
