"""Device code of the dot family: scale·q·k, a distance bias or vectors by distance, any mask, dropout.

Tables by distance are first written out along a line, entry x for j − row = x − origin, with their ends repeated: so
kernels neither clamp a distance nor test where a table ends. The line is as long as queries and keys together.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from ..pair_tiles import load_pairs, load_tokens, pair_scores
from ..places import add_placed_rows, allowed_pairs, placed_scores
from ..prelude import (
    LN2,
    MAX_INIT,
    add_after_product,
    add_product,
    add_sink,
    dropout_mask,
    group_index,
    hash_rows,
    head_pointer,
    key_order,
    key_places,
    key_scores,
    load_mask,
    load_rows,
    per_query,
    query_places,
    rel_bias_tile,
    round_to,
    shear,
    store_rows,
    unshear,
    unshear_keys,
)

# Not specialised, so that new sizes need no new kernels; origin, length and padded are always multiples of 16.
SIZES = ["queries", "keys", "heads", "group_size", "instances", "batches", "tile_rows", "lists", "threshold"]


@triton.jit
def work_item(p_group, p_row, p_first, p_last, p_slot, instances, heads, BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr):
    """(batch, head, instance, row of tiles, first and last + 1 of its listed tiles, slot) of this program."""
    i_item = tl.program_id(0) // instances
    i_instance = tl.program_id(0) % instances
    i_row = tl.load(p_row + i_item)
    i_first, i_last = tl.load(p_first + i_item), tl.load(p_last + i_item)
    i_slot = tl.load(p_slot + i_item)
    i_b, i_h = group_index(tl.load(p_group + i_item), i_instance, heads, BY_BATCH, BY_HEAD)
    return i_b, i_h, i_instance, i_row, i_first, i_last, i_slot


@triton.jit
def split_row(p_split_rows, instances, heads, BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr):
    """(batch, head, instance, row of tiles, first and last + 1 of its slots) of this program."""
    p_split_rows += tl.program_id(0) // instances * 4
    i_instance = tl.program_id(0) % instances
    i_row = tl.load(p_split_rows + 1)
    i_b, i_h = group_index(tl.load(p_split_rows), i_instance, heads, BY_BATCH, BY_HEAD)
    return i_b, i_h, i_instance, i_row, tl.load(p_split_rows + 2), tl.load(p_split_rows + 3)


@triton.jit
def next_tile(p_tile, x, i_last):
    """Entry x of a list, 0 beyond its end: loaded a step ahead, so that the loads of tokens do not wait for it."""
    return tl.load(p_tile + x, mask=x < i_last, other=0)


@triton.jit
def store_partial(p_parts, i_part, b_x, ROWS: tl.constexpr, BD: tl.constexpr):
    """Store partial sums `[ROWS, BD]` as number i_part."""
    o_x = tl.arange(0, ROWS)[:, None] * BD + tl.arange(0, BD)[None, :]
    tl.store(p_parts + i_part.to(tl.int64) * (ROWS * BD) + o_x, b_x)


@triton.jit
def relative_scores(
    b_rel_q, b_k, p_high, p_for_keys,
    B: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, KEY_VECTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """rel_q·rel_vectors[j − i] + k·key_vectors[j − i] of a tile; the pointers are those of its corner's vectors."""
    o_n = tl.arange(0, B)
    b_high = tl.dot(b_rel_q, tl.trans(load_rows(p_high, o_n, D, D, BD)), input_precision=PRECISION)
    b_low = tl.dot(b_rel_q, tl.trans(load_rows(p_high - B * D, o_n, D, D, BD)), input_precision=PRECISION)
    b_s = shear(b_low, b_high, B)
    if KEY_VECTORS:
        b_s += key_scores(b_k, p_for_keys, B, D, BD, PRECISION)
    return b_s


@triton.jit
def placed_relative_scores(
    b_rel_q, b_k, p_rel_vectors, p_key_vectors, p_places, p_packed, i_b, i_bits, i_m, i_n, queries, keys, stride_places,
    zero, entries, B: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, KEY_VECTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """rel_q·rel_vectors[i − j] + k·key_vectors[i − j] of a tile at explicit places, from a head's tables."""
    b_i = query_places(p_places, i_b, i_m + tl.arange(0, B), queries, stride_places)
    b_j = key_places(p_places, i_b, i_n + tl.arange(0, B), queries, keys, stride_places)
    m_pairs = allowed_pairs(p_packed, i_bits, B)
    b_s = placed_scores(b_rel_q, p_rel_vectors, b_i, b_j, m_pairs, zero, entries, B, D, BD, False, PRECISION)
    if KEY_VECTORS:
        m_pairs = tl.trans(m_pairs)
        b_keys = placed_scores(b_k, p_key_vectors, b_j, b_i, m_pairs, zero, entries, B, D, BD, True, PRECISION)
        b_s += tl.trans(b_keys)
    return b_s


@triton.jit(do_not_specialize=SIZES)
def forward_kernel(
    p_q, p_k, p_v, p_rel_bias, p_rel_q, p_rel_vectors, p_key_vectors, p_pairs, p_places, p_sink, p_seed,
    p_o, p_lse, p_acc_parts, p_max_parts, p_sum_parts,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_run_end, p_bits, p_packed,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_rb, stride_rh, stride_rn, stride_pb, stride_ph, stride_pm, stride_pn, stride_places,
    queries, keys, heads, group_size, origin, length, instances, scale, inv_scale, cap, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr, REL_BIAS: tl.constexpr, REL_VECTORS: tl.constexpr,
    KEY_VECTORS: tl.constexpr, CAP: tl.constexpr, PAIR_BIAS: tl.constexpr, SINK: tl.constexpr,
    PLACED: tl.constexpr, PLACED_BIAS: tl.constexpr, BY_THREAD: tl.constexpr, ALIGNED: tl.constexpr,
    EXACT_WEIGHTS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Online softmax over a work item of one row of tiles, with a running maximum m and sum l, in base 2:

        s = log2(e) · scale · (capped(q·k + rel_q·rel_vectors[j − i] + k·key_vectors[j − i])
                               + rel_bias[j − i] + pair_bias[i, j]),   or −∞
        p = 2^(s − m),   l = Σ p,   o = Σ keep·p·v / l,   lse = ln 2 · (m + log2 l)

    When m grows, α = 2^(old m − new m) rescales l and the sum. Items of a split list store (m, l, Σ p·v) for
    `merge_kernel`.
    """
    i_b, i_h, i_instance, i_row, i_first, i_last, i_slot = work_item(
        p_group, p_row, p_first, p_last, p_slot, instances, heads, BY_BATCH, BY_HEAD
    )
    i_kv = i_h // group_size
    p_k = head_pointer(p_k, i_b, i_kv, stride_kb, stride_kh)
    p_v = head_pointer(p_v, i_b, i_kv, stride_vb, stride_vh)
    o_m, o_n = tl.arange(0, BM), key_order(BN, BY_THREAD)
    o_q = tl.minimum(i_row * BM + o_m, queries - 1)
    b_q = load_rows(head_pointer(p_q, i_b, i_h, stride_qb, stride_qh), o_q, stride_qn, D, BD)
    if REL_VECTORS:
        b_rel_q = load_rows(head_pointer(p_rel_q, i_b, i_h, stride_rb, stride_rh), o_q, stride_rn, D, BD)
        b_low = tl.zeros([BM, BN], tl.float32)
        p_rel_vectors += (i_h.to(tl.int64) * length + (0 if PLACED else origin - i_row * BM)) * D
    if KEY_VECTORS:
        p_key_vectors += (i_h.to(tl.int64) * length + (0 if PLACED else origin - i_row * BM)) * D
    if BY_THREAD:
        p_pairs = head_pointer(p_pairs, i_b, i_h, stride_pb, stride_ph)
    if DROPOUT:
        b_hash = hash_rows(p_seed, i_b, i_h, i_row * BM + o_m + keys - queries)
    # A float32 output of rounded weights is divided by the sum of the rounded weights, so that what all values have in
    # common comes out exactly. The gradient of a sink is a sum of δ alone: there the rest of every weight is added too.
    EXACT: tl.constexpr = EXACT_WEIGHTS and p_o.dtype.element_ty != p_v.dtype.element_ty
    RENORMALIZE: tl.constexpr = not EXACT and p_o.dtype.element_ty != p_v.dtype.element_ty
    b_m = tl.full([BM], MAX_INIT, tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_l_rounded = tl.zeros([BM], tl.float32)
    b_o = tl.zeros([BM, BDV], tl.float32)
    # With relative vectors the list is walked in runs of neighbouring tiles, which share half of their distances.
    while i_first < i_last:
        i_end = i_last
        i_next = tl.load(p_tile + i_first)
        if REL_VECTORS and not PLACED:
            i_end = tl.minimum(tl.load(p_run_end + i_first), i_last)
            p_low = p_rel_vectors + (i_next - 1) * BN * D
            b_low = tl.dot(b_rel_q, tl.trans(load_rows(p_low, o_n, D, D, BD)), input_precision=PRECISION)
        for x in range(i_first, i_end):
            i_tile = i_next
            i_next = next_tile(p_tile, x + 1, i_end)
            i_bits = tl.load(p_bits + x)
            if BY_THREAD:
                b_k = load_tokens(p_k, i_tile * BN, o_n, keys, stride_kn, D, BD)
            else:
                o_k = tl.minimum(o_n, keys - 1 - i_tile * BN)
                b_k = load_rows(p_k + (i_tile * BN).to(tl.int64) * stride_kn, o_k, stride_kn, D, BD)
            if BY_THREAD:
                b_pairs = load_pairs(
                    p_pairs, i_row * BM, i_tile * BN, queries, keys, stride_pm, stride_pn, BM, BN, ALIGNED
                )
            if REL_BIAS and not CAP:
                o_x = i_tile * BN - i_row * BM
                b_s = rel_bias_tile(
                    p_rel_bias, i_h, o_x, origin, keys - queries, length, inv_scale, BM, BN, False, PAIRS, REL_BIAS
                )
            else:
                b_s = tl.zeros([BM, BN], tl.float32)
            if PLACED and REL_VECTORS:
                b_s += placed_relative_scores(
                    b_rel_q, b_k, p_rel_vectors, p_key_vectors, p_places, p_packed, i_b, i_bits,
                    i_row * BM, i_tile * BN, queries, keys, stride_places, origin, length,
                    BN, D, BD, KEY_VECTORS, PRECISION,
                )  # fmt: skip
            elif REL_VECTORS:
                p_high = p_rel_vectors + i_tile * BN * D
                b_high = tl.dot(b_rel_q, tl.trans(load_rows(p_high, o_n, D, D, BD)), input_precision=PRECISION)
                b_s += shear(b_low, b_high, BN)
                b_low = b_high
            if KEY_VECTORS and not PLACED:
                b_s += key_scores(b_k, p_key_vectors + i_tile * BN * D, BN, D, BD, PRECISION)
            b_s = tl.dot(b_q, tl.trans(b_k), b_s, input_precision=PRECISION)
            if CAP or (PAIR_BIAS and not BY_THREAD) or PLACED_BIAS:
                b_s, _b_slope = add_after_product(
                    b_s, p_rel_bias, p_pairs, p_places, i_b, i_h, i_row * BM, i_tile * BN, queries, keys,
                    stride_pb, stride_ph, stride_pm, stride_pn, stride_places, origin, length, inv_scale, cap,
                    BM, BN, False, REL_BIAS, CAP, PAIR_BIAS and not BY_THREAD, PLACED_BIAS,
                )  # fmt: skip
            if BY_THREAD:
                b_s = tl.fma(pair_scores(p_pairs, b_pairs, BM, BN), inv_scale, b_s)
            if i_bits >= 0:
                b_s = tl.where(load_mask(p_packed, i_bits, BM, BN, False, BY_THREAD), b_s, -float("inf"))
            b_new_m = tl.maximum(b_m, tl.max(b_s, 1) * scale)
            b_p = tl.exp2(b_s * scale - b_new_m[:, None])
            b_alpha = tl.exp2(b_m - b_new_m)
            b_l = b_l * b_alpha + tl.sum(b_p, 1)
            b_m = b_new_m
            if RENORMALIZE:
                b_l_rounded = b_l_rounded * b_alpha + tl.sum(round_to(b_p, p_v.dtype.element_ty), 1)
            if DROPOUT:
                b_p = tl.where(dropout_mask(b_hash, i_tile * BN + o_n, threshold, False), b_p, 0.0)
            if BY_THREAD:
                b_v = load_tokens(p_v, i_tile * BN, o_n, keys, stride_vn, DV, BDV)
            else:
                b_v = load_rows(p_v + (i_tile * BN).to(tl.int64) * stride_vn, o_k, stride_vn, DV, BDV)
            b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * b_alpha[:, None], input_precision=PRECISION)
            if EXACT:
                b_o = tl.dot((b_p - round_to(b_p, b_v.dtype)).to(b_v.dtype), b_v, b_o)
        i_first = i_end
    if RENORMALIZE:
        b_o *= (b_l / tl.where(b_l_rounded > 0, b_l_rounded, 1.0))[:, None]
    if i_slot >= 0:
        i_part = i_slot * instances + i_instance
        store_partial(p_acc_parts, i_part, b_o, BM, BDV)
        tl.store(p_max_parts + i_part.to(tl.int64) * BM + o_m, b_m)
        tl.store(p_sum_parts + i_part.to(tl.int64) * BM + o_m, b_l)
    else:
        first = (i_b * heads + i_h).to(tl.int64) * queries
        store_output(p_o, p_lse, p_sink, b_m, b_l, b_o, i_h, first, i_row, queries, keep_scale, DV, BDV, BM, SINK)


@triton.jit
def store_output(
    p_o, p_lse, p_sink, b_m, b_l, b_o, i_h, first, i_row, queries, keep_scale,
    DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, SINK: tl.constexpr,
):  # fmt: skip
    """Store a finished row of tiles; rows without an allowed key become zeros with lse −∞, or that of the SINK."""
    o_q = i_row * BM + tl.arange(0, BM)
    if SINK:
        b_alpha, b_m, b_l = add_sink(p_sink, i_h, b_m, b_l)
        b_o *= b_alpha[:, None]
    m_alive = b_l > 0
    b_l = tl.where(m_alive, b_l, 1.0)
    store_rows(p_o + first * DV, o_q, b_o * (keep_scale / b_l)[:, None], queries, DV, BDV)
    b_lse = tl.where(m_alive, (b_m + tl.log2(b_l)) * LN2, -float("inf"))
    tl.store(p_lse + first + o_q, b_lse, mask=o_q < queries)


@triton.jit(do_not_specialize=SIZES)
def merge_kernel(
    p_o, p_lse, p_acc_parts, p_max_parts, p_sum_parts, p_sink, p_split_rows, queries, heads, instances, keep_scale,
    DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr,
    SINK: tl.constexpr,
):  # fmt: skip
    """One row of tiles from its splits: m = max m_s, l = Σ l_s·2^(m_s − m), and the output sums likewise."""
    i_b, i_h, i_instance, i_row, i_first, i_last = split_row(p_split_rows, instances, heads, BY_BATCH, BY_HEAD)
    o_m = tl.arange(0, BM)
    o_x = o_m[:, None] * BDV + tl.arange(0, BDV)[None, :]
    b_m = tl.full([BM], MAX_INIT, tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_o = tl.zeros([BM, BDV], tl.float32)
    for i_slot in range(i_first, i_last):
        i_part = (i_slot * instances + i_instance).to(tl.int64)
        b_part_m = tl.load(p_max_parts + i_part * BM + o_m)
        b_new_m = tl.maximum(b_m, b_part_m)
        b_alpha, b_beta = tl.exp2(b_m - b_new_m), tl.exp2(b_part_m - b_new_m)
        b_l = b_l * b_alpha + tl.load(p_sum_parts + i_part * BM + o_m) * b_beta
        b_o = b_o * b_alpha[:, None] + tl.load(p_acc_parts + i_part * (BM * BDV) + o_x) * b_beta[:, None]
        b_m = b_new_m
    first = (i_b * heads + i_h).to(tl.int64) * queries
    store_output(p_o, p_lse, p_sink, b_m, b_l, b_o, i_h, first, i_row, queries, keep_scale, DV, BDV, BM, SINK)


@triton.jit(do_not_specialize=SIZES)
def sum_splits_kernel(
    p_out, p_parts, p_split_rows, lists, heads, instances, scale,
    D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr, BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr,
):  # fmt: skip
    """Rows of `p_out [batch, heads, lists, D]` from the partial sums of their splits, added in order."""
    i_b, i_h, i_instance, i_row, i_first, i_last = split_row(p_split_rows, instances, heads, BY_BATCH, BY_HEAD)
    o_r = tl.arange(0, ROWS)
    o_x = o_r[:, None] * BD + tl.arange(0, BD)[None, :]
    b_sum = tl.zeros([ROWS, BD], tl.float32)
    for i_slot in range(i_first, i_last):
        b_sum += tl.load(p_parts + (i_slot * instances + i_instance).to(tl.int64) * (ROWS * BD) + o_x)
    store_rows(p_out + (i_b * heads + i_h).to(tl.int64) * lists * D, i_row * ROWS + o_r, b_sum * scale, lists, D, BD)


@triton.jit(do_not_specialize=SIZES)
def delta_kernel(
    p_o, p_lse, p_do, p_lse2, p_delta, queries, instances, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr
):  # fmt: skip
    """δ = Σ o·do of each row, and its lse in base 2, +∞ where it has no allowed key so that its weights are zeros.

    Both are padded to whole tiles; rows beyond the last query are like rows without an allowed key.
    """
    i_row, i_instance = tl.program_id(0) // instances, (tl.program_id(0) % instances).to(tl.int64)
    o_m = i_row * BM + tl.arange(0, BM)
    o_q = tl.minimum(o_m, queries - 1)
    b_o = load_rows(p_o + i_instance * queries * DV, o_q, DV, DV, BDV).to(tl.float32)
    b_do = load_rows(p_do + i_instance * queries * DV, o_q, DV, DV, BDV).to(tl.float32)
    b_lse = tl.load(p_lse + i_instance * queries + o_q)
    m_dead = (b_lse == -float("inf")) | (o_m >= queries)
    padded = tl.num_programs(0) // instances * BM
    tl.store(p_delta + i_instance * padded + o_m, tl.sum(b_o * b_do, 1))
    tl.store(p_lse2 + i_instance * padded + o_m, tl.where(m_dead, float("inf"), b_lse * (1.0 / LN2)))


@triton.jit
def tile_ds(
    b_start, b_q, b_k, b_v, b_do, b_lse2, b_delta, b_hash, p_rel_bias, p_pairs, p_places, p_packed,
    i_b, i_h, i_bits, i_m, i_n, queries, keys, stride_pb, stride_ph, stride_pm, stride_pn, stride_places,
    origin, length, scale, inv_scale, cap, threshold, keep_scale,
    BM: tl.constexpr, BN: tl.constexpr, REL_BIAS: tl.constexpr, CAP: tl.constexpr, PAIR_BIAS: tl.constexpr,
    PLACED_BIAS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """ds = p · (keep·do·vᵀ − δ) of the tile with its corner at (i_m, i_n), p = 2^(s − lse2); and the cap's slope.

    `b_start` is what the product starts from: relative scores, or 0.
    """
    if REL_BIAS and not CAP:
        b_s = rel_bias_tile(
            p_rel_bias, i_h, i_n - i_m, origin, keys - queries, length, inv_scale, BM, BN, False, PAIRS, REL_BIAS
        )
    else:
        b_s = tl.zeros([BM, BN], tl.float32) + b_start
    b_s = tl.dot(b_q, tl.trans(b_k), b_s, input_precision=PRECISION)
    b_s, b_slope = add_after_product(
        b_s, p_rel_bias, p_pairs, p_places, i_b, i_h, i_m, i_n, queries, keys,
        stride_pb, stride_ph, stride_pm, stride_pn, stride_places, origin, length, inv_scale, cap,
        BM, BN, False, REL_BIAS, CAP, PAIR_BIAS, PLACED_BIAS,
    )  # fmt: skip
    b_s = b_s * scale - b_lse2[:, None]
    if i_bits >= 0:
        b_s = tl.where(load_mask(p_packed, i_bits, BM, BN, False), b_s, -float("inf"))
    b_p = tl.exp2(b_s)
    b_dp = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION)
    if DROPOUT:
        b_dp = tl.where(dropout_mask(b_hash, i_n + tl.arange(0, BN), threshold, False), b_dp * keep_scale, 0.0)
    return b_p * (b_dp - b_delta[:, None]), b_slope


@triton.jit(do_not_specialize=SIZES)
def dq_kernel(
    p_q, p_k, p_v, p_rel_bias, p_pairs, p_places, p_seed, p_do, p_lse2, p_delta, p_dq, p_dq_parts,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_bits, p_packed,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_pb, stride_ph, stride_pm, stride_pn, stride_places,
    queries, keys, padded, heads, group_size, origin, length, instances,
    scale, inv_scale, grad_scale, cap, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr, REL_BIAS: tl.constexpr, CAP: tl.constexpr, PAIR_BIAS: tl.constexpr,
    PLACED_BIAS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """A work item of one row of tiles: dq = scale · Σ_j ds·k."""
    i_b, i_h, i_instance, i_row, i_first, i_last, i_slot = work_item(
        p_group, p_row, p_first, p_last, p_slot, instances, heads, BY_BATCH, BY_HEAD
    )
    i_kv = i_h // group_size
    p_k = head_pointer(p_k, i_b, i_kv, stride_kb, stride_kh)
    p_v = head_pointer(p_v, i_b, i_kv, stride_vb, stride_vh)
    first = (i_b * heads + i_h).to(tl.int64) * queries
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    o_q = tl.minimum(i_row * BM + o_m, queries - 1)
    b_q = load_rows(head_pointer(p_q, i_b, i_h, stride_qb, stride_qh), o_q, stride_qn, D, BD)
    b_do = load_rows(p_do + first * DV, o_q, DV, DV, BDV)
    o_lse2 = (i_b * heads + i_h).to(tl.int64) * padded + i_row * BM + o_m
    b_lse2, b_delta = tl.load(p_lse2 + o_lse2), tl.load(p_delta + o_lse2)
    b_hash = hash_rows(p_seed, i_b, i_h, i_row * BM + o_m + keys - queries) if DROPOUT else 0
    b_dq = tl.zeros([BM, BD], tl.float32)
    i_next = next_tile(p_tile, i_first, i_last)
    for x in range(i_first, i_last):
        i_tile = i_next
        i_next = next_tile(p_tile, x + 1, i_last)
        i_bits = tl.load(p_bits + x)
        o_k = tl.minimum(o_n, keys - 1 - i_tile * BN)
        b_k = load_rows(p_k + (i_tile * BN).to(tl.int64) * stride_kn, o_k, stride_kn, D, BD)
        b_v = load_rows(p_v + (i_tile * BN).to(tl.int64) * stride_vn, o_k, stride_vn, DV, BDV)
        b_ds, b_slope = tile_ds(
            0.0, b_q, b_k, b_v, b_do, b_lse2, b_delta, b_hash, p_rel_bias, p_pairs, p_places, p_packed,
            i_b, i_h, i_bits, i_row * BM, i_tile * BN, queries, keys,
            stride_pb, stride_ph, stride_pm, stride_pn, stride_places,
            origin, length, scale, inv_scale, cap, threshold, keep_scale,
            BM, BN, REL_BIAS, CAP, PAIR_BIAS, PLACED_BIAS, DROPOUT, PRECISION, PAIRS,
        )  # fmt: skip
        if CAP:
            b_ds *= b_slope
        b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION)
    if i_slot >= 0:
        store_partial(p_dq_parts, i_slot * instances + i_instance, b_dq, BM, BD)
    else:
        store_rows(p_dq + first * D, i_row * BM + o_m, b_dq * grad_scale, queries, D, BD)


@triton.jit(do_not_specialize=SIZES)
def dkdv_kernel(
    p_q, p_k, p_v, p_rel_bias, p_rel_q, p_rel_vectors, p_key_vectors, p_pairs, p_places, p_seed, p_do, p_lse2, p_delta,
    p_dk, p_dv, p_dk_parts, p_dv_parts, p_ds, p_ds_base,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_bits, p_packed,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_rb, stride_rh, stride_rn, stride_pb, stride_ph, stride_pm, stride_pn, stride_places,
    queries, keys, padded, heads, group_size, origin, length, instances,
    scale, inv_scale, grad_scale, cap, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr, REL_BIAS: tl.constexpr, REL_VECTORS: tl.constexpr,
    KEY_VECTORS: tl.constexpr, CAP: tl.constexpr, PAIR_BIAS: tl.constexpr, PLACED: tl.constexpr,
    PLACED_BIAS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """A work item of one column of tiles, summed over HEADS query heads that share its keys:

        dv = Σ_i keep·p·do,   dk = scale · Σ_i ds·(q + key_vectors[j − i])

    Tiles are transposed, keys down, so that p and ds are left operands of the products as they come. With relative
    vectors they are not: `shear` rotates rows of queries; and ds goes to scratch memory, tile p_ds_base[batch and head]
    + its index in the list, for the gradients that `relative.py` computes from it.
    """
    TRANSPOSED: tl.constexpr = not REL_VECTORS
    i_b, i_hs, i_instance, i_column, i_first, i_last, i_slot = work_item(
        p_group, p_row, p_first, p_last, p_slot, instances, heads // HEADS, BY_BATCH, BY_HEAD
    )
    i_kv = i_hs * HEADS // group_size
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    o_k = tl.minimum(i_column * BN + o_n, keys - 1)
    b_k = load_rows(head_pointer(p_k, i_b, i_kv, stride_kb, stride_kh), o_k, stride_kn, D, BD)
    b_v = load_rows(head_pointer(p_v, i_b, i_kv, stride_vb, stride_vh), o_k, stride_vn, DV, BDV)
    b_dk = tl.zeros([BN, BD], tl.float32)
    b_dv = tl.zeros([BN, BDV], tl.float32)
    for i_head in range(HEADS):
        i_h = i_hs * HEADS + i_head
        first = (i_b * heads + i_h).to(tl.int64) * queries
        p_qh = head_pointer(p_q, i_b, i_h, stride_qb, stride_qh)
        if REL_VECTORS:
            i_ds_base = tl.load(p_ds_base + i_b * heads + i_h)
        i_next = next_tile(p_tile, i_first, i_last)
        for x in range(i_first, i_last):
            i_tile = i_next
            i_next = next_tile(p_tile, x + 1, i_last)
            i_bits = tl.load(p_bits + x)
            o_q = tl.minimum(o_m, queries - 1 - i_tile * BM)
            first_row = (i_tile * BM).to(tl.int64)
            b_q = load_rows(p_qh + first_row * stride_qn, o_q, stride_qn, D, BD)
            b_do = load_rows(p_do + (first + first_row) * DV, o_q, DV, DV, BDV)
            o_lse2 = (i_b * heads + i_h).to(tl.int64) * padded + first_row + o_m
            b_lse2 = per_query(tl.load(p_lse2 + o_lse2), TRANSPOSED)
            b_delta = per_query(tl.load(p_delta + o_lse2), TRANSPOSED)
            o_x = i_column * BN - i_tile * BM
            if REL_BIAS and not CAP:
                b_s = rel_bias_tile(
                    p_rel_bias, i_h, o_x, origin, keys - queries, length, inv_scale, BM, BN, TRANSPOSED, PAIRS, REL_BIAS
                )
            else:
                b_s = tl.zeros([BN, BM] if TRANSPOSED else [BM, BN], tl.float32)
            if REL_VECTORS:
                p_rh = head_pointer(p_rel_q, i_b, i_h, stride_rb, stride_rh)
                b_rel_q = load_rows(p_rh + first_row * stride_rn, o_q, stride_rn, D, BD)
                p_high = p_rel_vectors + (i_h.to(tl.int64) * length + (0 if PLACED else origin + o_x)) * D
                p_for_keys = p_key_vectors
                if KEY_VECTORS:
                    p_for_keys += (i_h.to(tl.int64) * length + (0 if PLACED else origin + o_x)) * D
                if PLACED:
                    b_s += placed_relative_scores(
                        b_rel_q, b_k, p_high, p_for_keys, p_places, p_packed, i_b, i_bits, i_tile * BM, i_column * BN,
                        queries, keys, stride_places, origin, length, BN, D, BD, KEY_VECTORS, PRECISION,
                    )  # fmt: skip
                else:
                    b_s += relative_scores(b_rel_q, b_k, p_high, p_for_keys, BN, D, BD, KEY_VECTORS, PRECISION)
                b_s = tl.dot(b_q, tl.trans(b_k), b_s, input_precision=PRECISION)
                b_dp = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION)
            else:
                b_s = tl.dot(b_k, tl.trans(b_q), b_s, input_precision=PRECISION)
                b_dp = tl.dot(b_v, tl.trans(b_do), input_precision=PRECISION)
            b_s, b_slope = add_after_product(
                b_s, p_rel_bias, p_pairs, p_places, i_b, i_h, i_tile * BM, i_column * BN, queries, keys,
                stride_pb, stride_ph, stride_pm, stride_pn, stride_places, origin, length, inv_scale, cap,
                BM, BN, TRANSPOSED, REL_BIAS, CAP, PAIR_BIAS, PLACED_BIAS,
            )  # fmt: skip
            b_s = b_s * scale - b_lse2
            if i_bits >= 0:
                b_s = tl.where(load_mask(p_packed, i_bits, BM, BN, TRANSPOSED), b_s, -float("inf"))
            b_p = tl.exp2(b_s)
            b_p_drop = b_p
            if DROPOUT:
                b_hash = hash_rows(p_seed, i_b, i_h, i_tile * BM + o_m + keys - queries)
                m_keep = dropout_mask(b_hash, i_column * BN + o_n, threshold, TRANSPOSED)
                b_p_drop = tl.where(m_keep, b_p, 0.0)
                b_dp = tl.where(m_keep, b_dp * keep_scale, 0.0)
            b_p_drop = b_p_drop.to(b_do.dtype)
            b_ds = b_p * (b_dp - b_delta) * b_slope
            if REL_VECTORS:
                tl.store(p_ds + (i_ds_base + x) * (BM * BN) + o_m[:, None] * BN + o_n[None, :], b_ds)
            b_ds = b_ds.to(b_q.dtype)
            if KEY_VECTORS and PLACED:
                b_i = query_places(p_places, i_b, i_tile * BM + o_m, queries, stride_places)
                b_j = key_places(p_places, i_b, i_column * BN + o_n, queries, keys, stride_places)
                b_dk = add_placed_rows(
                    b_dk, tl.trans(b_ds), p_for_keys, b_j, b_i, origin, length, BN, D, BD, True, False, PRECISION
                )
            elif KEY_VECTORS:
                b_upper, b_lower = load_rows(p_for_keys, o_n, D, D, BD), load_rows(p_for_keys - BN * D, o_n, D, D, BD)
                b_dlow, b_dhigh = unshear_keys(b_ds.to(tl.float32), BN)
                b_dk = tl.dot(b_dlow.to(b_ds.dtype), b_lower, b_dk, input_precision=PRECISION)
                b_dk = tl.dot(b_dhigh.to(b_ds.dtype), b_upper, b_dk, input_precision=PRECISION)
            if not TRANSPOSED:
                b_p_drop, b_ds = tl.trans(b_p_drop), tl.trans(b_ds)
            b_dv = tl.dot(b_p_drop, b_do, b_dv, input_precision=PRECISION)
            b_dk = tl.dot(b_ds, b_q, b_dk, input_precision=PRECISION)
    b_dk *= grad_scale
    b_dv *= keep_scale
    if i_slot >= 0:
        store_partial(p_dk_parts, i_slot * instances + i_instance, b_dk, BN, BD)
        store_partial(p_dv_parts, i_slot * instances + i_instance, b_dv, BN, BDV)
    else:
        first = (i_b * (heads // HEADS) + i_hs).to(tl.int64) * keys
        store_rows(p_dk + first * D, i_column * BN + o_n, b_dk, keys, D, BD)
        store_rows(p_dv + first * DV, i_column * BN + o_n, b_dv, keys, DV, BDV)


@triton.jit(do_not_specialize=SIZES)
def d_rel_bias_kernel(
    p_q, p_k, p_v, p_rel_bias, p_pairs, p_seed, p_do, p_lse2, p_delta, p_drel_bias, p_drel_bias_parts,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_bits, p_packed,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_pb, stride_ph, stride_pm, stride_pn,
    queries, keys, padded, heads, group_size, origin, length, instances, batches, tile_rows, lists,
    scale, inv_scale, cap, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr, REL_BIAS: tl.constexpr, CAP: tl.constexpr, PAIR_BIAS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """A work item of one diagonal of tiles, which all have the same distances, for `batches` rows of the batch:

        d rel_bias[x] = Σ_{j − i = x} ds

    The result is two halves of distances, low and high; neighbouring diagonals share halves. The tiles are summed as
    they are, and only their sum is summed along its diagonals.
    """
    i_bs, i_h, i_instance, i_diagonal, i_first, i_last, i_slot = work_item(
        p_group, p_row, p_first, p_last, p_slot, instances, heads, BY_BATCH, BY_HEAD
    )
    i_kv = i_h // group_size
    i_across = i_diagonal - (tile_rows - 1)
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    b_sum = tl.zeros([BM, BN], tl.float32)
    for i_batch in range(batches):
        i_b = i_bs * batches + i_batch
        first = (i_b * heads + i_h).to(tl.int64) * queries
        p_qh = head_pointer(p_q, i_b, i_h, stride_qb, stride_qh)
        p_kh = head_pointer(p_k, i_b, i_kv, stride_kb, stride_kh)
        p_vh = head_pointer(p_v, i_b, i_kv, stride_vb, stride_vh)
        i_next = next_tile(p_tile, i_first, i_last)
        for x in range(i_first, i_last):
            i_tile = i_next
            i_next = next_tile(p_tile, x + 1, i_last)
            i_bits = tl.load(p_bits + x)
            i_column = i_tile + i_across
            o_q = tl.minimum(o_m, queries - 1 - i_tile * BM)
            o_k = tl.minimum(o_n, keys - 1 - i_column * BN)
            first_row, first_column = (i_tile * BM).to(tl.int64), (i_column * BN).to(tl.int64)
            b_q = load_rows(p_qh + first_row * stride_qn, o_q, stride_qn, D, BD)
            b_k = load_rows(p_kh + first_column * stride_kn, o_k, stride_kn, D, BD)
            b_v = load_rows(p_vh + first_column * stride_vn, o_k, stride_vn, DV, BDV)
            b_do = load_rows(p_do + (first + first_row) * DV, o_q, DV, DV, BDV)
            o_lse2 = (i_b * heads + i_h).to(tl.int64) * padded + first_row + o_m
            b_lse2, b_delta = tl.load(p_lse2 + o_lse2), tl.load(p_delta + o_lse2)
            b_hash = hash_rows(p_seed, i_b, i_h, i_tile * BM + o_m + keys - queries) if DROPOUT else 0
            b_ds, _b_slope = tile_ds(
                0.0, b_q, b_k, b_v, b_do, b_lse2, b_delta, b_hash, p_rel_bias, p_pairs, p_pairs, p_packed,
                i_b, i_h, i_bits, i_tile * BM, i_column * BN, queries, keys,
                stride_pb, stride_ph, stride_pm, stride_pn, 0,
                origin, length, scale, inv_scale, cap, threshold, keep_scale,
                BM, BN, REL_BIAS, CAP, PAIR_BIAS, 0, DROPOUT, PRECISION, PAIRS,
            )  # fmt: skip
            b_sum += b_ds
    i_part = i_slot * instances + i_instance
    i_out = (i_bs * heads + i_h).to(tl.int64) * lists + i_diagonal
    b_low, b_high = unshear(b_sum, BN)
    b_dlow, b_dhigh = tl.sum(b_low, 0), tl.sum(b_high, 0)
    if i_slot >= 0:
        tl.store(p_drel_bias_parts + i_part * (2 * BN) + o_n, b_dlow)
        tl.store(p_drel_bias_parts + i_part * (2 * BN) + BN + o_n, b_dhigh)
    else:
        tl.store(p_drel_bias + i_out * (2 * BN) + o_n, b_dlow)
        tl.store(p_drel_bias + i_out * (2 * BN) + BN + o_n, b_dhigh)


@triton.jit(do_not_specialize=[*SIZES, "shared_heads", "splits"])
def d_pair_bias_kernel(
    p_q, p_k, p_v, p_rel_bias, p_rel_q, p_rel_vectors, p_key_vectors, p_pairs, p_places, p_seed, p_do, p_lse2, p_delta,
    p_out, p_starts, p_tile, p_bits, p_packed,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_rb, stride_rh, stride_rn, stride_pb, stride_ph, stride_pm, stride_pn, stride_places, stride_gb, stride_gh,
    queries, keys, padded, heads, group_size, origin, length, lists, batches, shared_heads, splits,
    scale, inv_scale, cap, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    REL_BIAS: tl.constexpr, REL_VECTORS: tl.constexpr, KEY_VECTORS: tl.constexpr, CAP: tl.constexpr,
    PAIR_BIAS: tl.constexpr, PLACED: tl.constexpr, PLACED_BIAS: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, PAIRS: tl.constexpr, OVER_QUERIES: tl.constexpr, ONE_LIST: tl.constexpr,
):  # fmt: skip
    """d pair_bias = ds, summed over the `batches` rows of the batch and the `shared_heads` that share a number:

    A program owns every splits-th tile of a row of tiles of `p_out [slots, queries, keys]`. With ONE_LIST of tiles for
    all of them a tile is summed before it is stored; otherwise p_out holds zeros before, and they are added in a fixed
    order. OVER_QUERIES sums a column of tiles to `[slots, keys]`, from lists by column.
    """
    i_split = tl.program_id(0) % splits
    i_list = tl.program_id(0) // splits % lists
    i_slot = tl.program_id(0) // splits // lists
    first_b = i_slot // (heads // shared_heads) * batches
    first_h = i_slot % (heads // shared_heads) * shared_heads
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    b_sum = tl.zeros([BN], tl.float32)
    for i_outer in range(1 if ONE_LIST else batches * shared_heads):
        i_b, i_h = first_b + i_outer // shared_heads, first_h + i_outer % shared_heads
        p_list = p_starts + (i_b * stride_gb + i_h * stride_gh) * (lists + 1) + i_list
        for x in range(tl.load(p_list), tl.load(p_list + 1)):
            i_tile = tl.load(p_tile + x)
            if i_tile % splits == i_split:
                i_row = i_tile if OVER_QUERIES else i_list
                i_column = i_list if OVER_QUERIES else i_tile
                o_q = tl.minimum(i_row * BM + o_m, queries - 1)
                o_k = tl.minimum(i_column * BN + o_n, keys - 1).to(tl.int64)
                b_tile = tl.zeros([BM, BN], tl.float32)
                for i_inner in range(batches * shared_heads if ONE_LIST else 1):
                    i_b = first_b + (i_outer + i_inner) // shared_heads
                    i_h = first_h + (i_outer + i_inner) % shared_heads
                    first = (i_b * heads + i_h).to(tl.int64) * queries
                    p_qh = head_pointer(p_q, i_b, i_h, stride_qb, stride_qh)
                    p_kh = head_pointer(p_k, i_b, i_h // group_size, stride_kb, stride_kh)
                    p_vh = head_pointer(p_v, i_b, i_h // group_size, stride_vb, stride_vh)
                    b_q = load_rows(p_qh, o_q.to(tl.int64), stride_qn, D, BD)
                    b_k = load_rows(p_kh, o_k, stride_kn, D, BD)
                    b_v = load_rows(p_vh, o_k, stride_vn, DV, BDV)
                    b_do = load_rows(p_do + first * DV, o_q, DV, DV, BDV)
                    o_lse2 = (i_b * heads + i_h).to(tl.int64) * padded + i_row * BM + o_m
                    b_lse2, b_delta = tl.load(p_lse2 + o_lse2), tl.load(p_delta + o_lse2)
                    b_hash = hash_rows(p_seed, i_b, i_h, i_row * BM + o_m + keys - queries) if DROPOUT else 0
                    b_start = 0.0
                    if REL_VECTORS:
                        p_rh = head_pointer(p_rel_q, i_b, i_h, stride_rb, stride_rh)
                        b_rel_q = load_rows(p_rh, o_q.to(tl.int64), stride_rn, D, BD)
                        o_x = 0 if PLACED else origin + i_column * BN - i_row * BM
                        p_high = p_rel_vectors + (i_h.to(tl.int64) * length + o_x) * D
                        p_for_keys = p_key_vectors
                        if KEY_VECTORS:
                            p_for_keys += (i_h.to(tl.int64) * length + o_x) * D
                        if PLACED:
                            b_start = placed_relative_scores(
                                b_rel_q, b_k, p_high, p_for_keys, p_places, p_packed, i_b, tl.load(p_bits + x),
                                i_row * BM, i_column * BN, queries, keys, stride_places, origin, length,
                                BN, D, BD, KEY_VECTORS, PRECISION,
                            )  # fmt: skip
                        else:
                            b_start = relative_scores(
                                b_rel_q, b_k, p_high, p_for_keys, BN, D, BD, KEY_VECTORS, PRECISION
                            )
                    b_ds, _b_slope = tile_ds(
                        b_start, b_q, b_k, b_v, b_do, b_lse2, b_delta, b_hash, p_rel_bias, p_pairs, p_places, p_packed,
                        i_b, i_h, tl.load(p_bits + x), i_row * BM, i_column * BN, queries, keys,
                        stride_pb, stride_ph, stride_pm, stride_pn, stride_places,
                        origin, length, scale, inv_scale, cap, threshold, keep_scale,
                        BM, BN, REL_BIAS, CAP, PAIR_BIAS, PLACED_BIAS, DROPOUT, PRECISION, PAIRS,
                    )  # fmt: skip
                    b_tile += b_ds
                if OVER_QUERIES:
                    b_sum += tl.sum(b_tile, 0)
                else:
                    o_i, o_j = i_row * BM + o_m, i_column * BN + o_n
                    m_pair = (o_i < queries)[:, None] & (o_j < keys)[None, :]
                    p_pair = p_out + (i_slot.to(tl.int64) * queries + o_i)[:, None] * keys + o_j[None, :]
                    if ONE_LIST:
                        tl.store(p_pair, b_tile, mask=m_pair)
                    else:
                        tl.store(p_pair, tl.load(p_pair, mask=m_pair, other=0.0) + b_tile, mask=m_pair)
                        tl.debug_barrier()  # the next head adds to the same numbers
    if OVER_QUERIES:
        o_j = i_list * BN + o_n
        tl.store(p_out + i_slot.to(tl.int64) * keys + o_j, b_sum, mask=o_j < keys)


@triton.jit
def relative_item(p_group, p_first, p_last, p_ds, p_ds_base, heads, TILE: tl.constexpr):
    """(batch, head, batch · heads + head, first and last + 1 of the listed tiles, scratch of ds) of this program."""
    i_item = tl.program_id(0)
    i_bh = tl.load(p_group + i_item)
    p_ds += tl.load(p_ds_base + i_bh) * TILE
    return i_bh // heads, i_bh % heads, i_bh, tl.load(p_first + i_item), tl.load(p_last + i_item), p_ds


@triton.jit(do_not_specialize=SIZES)
def dq_relative_kernel(
    p_k, p_rel_vectors, p_ds, p_places, p_dq, p_drel_q, p_dq_parts, p_drel_q_parts,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_ds_index, p_ds_base,
    stride_kb, stride_kh, stride_kn, stride_places, queries, keys, heads, group_size, origin, length, grad_scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, ADD: tl.constexpr, PLACED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dq and d rel_q of a work item of one row of tiles, from ds; ADD adds to the sums of earlier columns."""
    i_b, i_h, i_bh, i_first, i_last, p_ds = relative_item(p_group, p_first, p_last, p_ds, p_ds_base, heads, BM * BN)
    i_row = tl.load(p_row + tl.program_id(0))
    i_slot = tl.load(p_slot + tl.program_id(0))
    p_k = head_pointer(p_k, i_b, i_h // group_size, stride_kb, stride_kh)
    p_rel_vectors += (i_h.to(tl.int64) * length + (0 if PLACED else origin - i_row * BM)) * D
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    EXACT: tl.constexpr = p_ds.dtype.element_ty != p_k.dtype.element_ty
    b_dq = tl.zeros([BM, BD], tl.float32)
    b_drel_q = tl.zeros([BM, BD], tl.float32)
    i_next, i_ds_next = next_tile(p_tile, i_first, i_last), next_tile(p_ds_index, i_first, i_last)
    for x in range(i_first, i_last):
        i_tile, i_ds = i_next, i_ds_next
        i_next, i_ds_next = next_tile(p_tile, x + 1, i_last), next_tile(p_ds_index, x + 1, i_last)
        b_ds = load_rows(p_ds + i_ds.to(tl.int64) * (BM * BN), o_m, BN, BN, BN)
        o_k = tl.minimum(o_n, keys - 1 - i_tile * BN)
        b_k = load_rows(p_k + (i_tile * BN).to(tl.int64) * stride_kn, o_k, stride_kn, D, BD)
        b_dq = add_product(b_dq, b_ds, b_k, EXACT, PRECISION)
        if PLACED:
            b_i = query_places(p_places, i_b, i_row * BM + o_m, queries, stride_places)
            b_j = key_places(p_places, i_b, i_tile * BN + o_n, queries, keys, stride_places)
            b_drel_q = add_placed_rows(
                b_drel_q, b_ds, p_rel_vectors, b_i, b_j, origin, length, BN, D, BD, False, EXACT, PRECISION
            )
        else:
            p_high = p_rel_vectors + i_tile * BN * D
            b_upper, b_lower = load_rows(p_high, o_n, D, D, BD), load_rows(p_high - BN * D, o_n, D, D, BD)
            b_low, b_high = unshear(b_ds.to(tl.float32), BN)
            b_drel_q = add_product(b_drel_q, b_low, b_lower, EXACT, PRECISION)
            b_drel_q = add_product(b_drel_q, b_high, b_upper, EXACT, PRECISION)
    if i_slot >= 0:
        store_partial(p_dq_parts, i_slot, b_dq, BM, BD)
        store_partial(p_drel_q_parts, i_slot, b_drel_q, BM, BD)
    else:
        o_q = i_row * BM + o_m
        first = i_bh.to(tl.int64) * queries * D
        b_dq, b_drel_q = b_dq * grad_scale, b_drel_q * grad_scale
        if ADD:
            o_last = tl.minimum(o_q, queries - 1)
            b_dq += load_rows(p_dq + first, o_last, D, D, BD)
            b_drel_q += load_rows(p_drel_q + first, o_last, D, D, BD)
        store_rows(p_dq + first, o_q, b_dq, queries, D, BD)
        store_rows(p_drel_q + first, o_q, b_drel_q, queries, D, BD)


@triton.jit(do_not_specialize=SIZES)
def d_rel_vectors_kernel(
    p_rel_q, p_ds, p_out, p_group, p_first, p_last, p_slot, p_tile, p_ds_index, p_ds_base,
    stride_rb, stride_rh, stride_rn, queries, heads, grad_scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d rel_vectors of one diagonal of tiles, low half and high half of its distances, for one row of the batch."""
    i_b, i_h, _i_bh, i_first, i_last, p_ds = relative_item(p_group, p_first, p_last, p_ds, p_ds_base, heads, BM * BN)
    p_rel_q = head_pointer(p_rel_q, i_b, i_h, stride_rb, stride_rh)
    EXACT: tl.constexpr = p_ds.dtype.element_ty != p_rel_q.dtype.element_ty
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    b_dlow = tl.zeros([BN, BD], tl.float32)
    b_dhigh = tl.zeros([BN, BD], tl.float32)
    i_next, i_ds_next = next_tile(p_tile, i_first, i_last), next_tile(p_ds_index, i_first, i_last)
    for x in range(i_first, i_last):
        i_tile, i_ds = i_next, i_ds_next
        i_next, i_ds_next = next_tile(p_tile, x + 1, i_last), next_tile(p_ds_index, x + 1, i_last)
        b_ds = load_rows(p_ds + i_ds.to(tl.int64) * (BM * BN), o_m, BN, BN, BN)
        o_q = tl.minimum(o_m, queries - 1 - i_tile * BM)
        b_rel_q = load_rows(p_rel_q + (i_tile * BM).to(tl.int64) * stride_rn, o_q, stride_rn, D, BD)
        b_low, b_high = unshear(b_ds.to(tl.float32), BN)
        b_dlow = add_product(b_dlow, tl.trans(b_low), b_rel_q, EXACT, PRECISION)
        b_dhigh = add_product(b_dhigh, tl.trans(b_high), b_rel_q, EXACT, PRECISION)
    p_out += tl.load(p_slot + tl.program_id(0)).to(tl.int64) * (2 * BN * D)
    store_rows(p_out, o_n, b_dlow * grad_scale, BN, D, BD)
    store_rows(p_out + BN * D, o_n, b_dhigh * grad_scale, BN, D, BD)


@triton.jit(do_not_specialize=SIZES)
def d_key_vectors_kernel(
    p_k, p_ds, p_out, p_group, p_row, p_first, p_last, p_slot, p_tile, p_ds_index, p_ds_base,
    stride_kb, stride_kh, stride_kn, keys, heads, group_size, tile_rows, grad_scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d key_vectors of one diagonal of tiles, low half and high half of its distances, for one row of the batch."""
    i_b, i_h, _i_bh, i_first, i_last, p_ds = relative_item(p_group, p_first, p_last, p_ds, p_ds_base, heads, BM * BN)
    i_across = tl.load(p_row + tl.program_id(0)) - (tile_rows - 1)
    p_k = head_pointer(p_k, i_b, i_h // group_size, stride_kb, stride_kh)
    EXACT: tl.constexpr = p_ds.dtype.element_ty != p_k.dtype.element_ty
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    b_dlow = tl.zeros([BN, BD], tl.float32)
    b_dhigh = tl.zeros([BN, BD], tl.float32)
    i_next, i_ds_next = next_tile(p_tile, i_first, i_last), next_tile(p_ds_index, i_first, i_last)
    for x in range(i_first, i_last):
        i_column, i_ds = i_next + i_across, i_ds_next
        i_next, i_ds_next = next_tile(p_tile, x + 1, i_last), next_tile(p_ds_index, x + 1, i_last)
        b_ds = load_rows(p_ds + i_ds.to(tl.int64) * (BM * BN), o_m, BN, BN, BN)
        o_k = tl.minimum(o_n, keys - 1 - i_column * BN)
        b_k = load_rows(p_k + (i_column * BN).to(tl.int64) * stride_kn, o_k, stride_kn, D, BD)
        b_low, b_high = unshear_keys(b_ds.to(tl.float32), BN)
        b_dlow = add_product(b_dlow, tl.trans(b_low), b_k, EXACT, PRECISION)
        b_dhigh = add_product(b_dhigh, tl.trans(b_high), b_k, EXACT, PRECISION)
    p_out += tl.load(p_slot + tl.program_id(0)).to(tl.int64) * (2 * BN * D)
    store_rows(p_out, o_n, b_dlow * grad_scale, BN, D, BD)
    store_rows(p_out + BN * D, o_n, b_dhigh * grad_scale, BN, D, BD)
