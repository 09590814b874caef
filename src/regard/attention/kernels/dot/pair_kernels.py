"""Device code of the gradients beside a bias by pair that is learned: ds is computed once and stored by pair.

Where the bias is added to the scores alone, its gradient is ds, and dq a product of ds. So the kernel over columns of
tiles stores ds as it computes dk and dv, and two more read it.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from ..pair_tiles import load_pairs, load_tokens, pair_scores, store_pairs
from ..prelude import dropout_mask, hash_rows, head_pointer, key_order, load_mask, load_rows, store_rows
from .kernels import SIZES, next_tile, store_partial

PAIR_SIZES = [*SIZES, "ds_keys", "terms", "slots"]


@triton.jit(do_not_specialize=PAIR_SIZES)
def dkdv_pairs_kernel(
    p_q, p_k, p_v, p_pairs, p_seed, p_do, p_lse2, p_delta, p_dk, p_dv, p_dk_parts, p_dv_parts, p_ds, p_ds_base,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_bits, p_packed,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_pb, stride_ph, stride_pm, stride_pn,
    queries, keys, padded, heads, group_size, ds_keys, scale, inv_scale, grad_scale, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    ALIGNED: tl.constexpr, DS_ALIGNED: tl.constexpr, PAIRS_AHEAD: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A work item of one column of tiles of one head: ds to scratch or to the gradient itself, and

        dv = Σ_i keep·p·do,   dk = scale · Σ_i ds·q

    ds of (batch, head) is number p_ds_base[batch and head] of `p_ds [numbers, queries, ds_keys]`.
    """
    DS_VECTOR: tl.constexpr = 128 // p_ds.dtype.element_ty.primitive_bitwidth if DS_ALIGNED else 1
    ds_keys = ds_keys // DS_VECTOR * DS_VECTOR  # as it is: the compiler must know it
    i_item = tl.program_id(0)
    i_bh, i_column = tl.load(p_group + i_item), tl.load(p_row + i_item)
    i_first, i_last = tl.load(p_first + i_item), tl.load(p_last + i_item)
    i_b, i_h = i_bh // heads, i_bh % heads
    o_m, o_n = tl.arange(0, BM), key_order(BN, True)
    o_k = tl.minimum(i_column * BN + o_n, keys - 1)
    b_k = load_rows(head_pointer(p_k, i_b, i_h // group_size, stride_kb, stride_kh), o_k, stride_kn, D, BD)
    b_v = load_rows(head_pointer(p_v, i_b, i_h // group_size, stride_vb, stride_vh), o_k, stride_vn, DV, BDV)
    p_qh = head_pointer(p_q, i_b, i_h, stride_qb, stride_qh)
    p_pairs = head_pointer(p_pairs, i_b, i_h, stride_pb, stride_ph)
    p_do += i_bh.to(tl.int64) * queries * DV
    p_lse2 += i_bh.to(tl.int64) * padded
    p_delta += i_bh.to(tl.int64) * padded
    p_ds += tl.load(p_ds_base + i_bh) * queries * ds_keys
    b_dk = tl.zeros([BN, BD], tl.float32)
    b_dv = tl.zeros([BN, BDV], tl.float32)
    i_next = next_tile(p_tile, i_first, i_last)
    if PAIRS_AHEAD:
        b_next_pairs = load_pairs(
            p_pairs, i_next * BM, i_column * BN, queries, keys, stride_pm, stride_pn, BM, BN, ALIGNED
        )
    for x in range(i_first, i_last):
        i_tile = i_next
        i_next = next_tile(p_tile, x + 1, i_last)
        if PAIRS_AHEAD:
            b_pairs = b_next_pairs
            b_next_pairs = load_pairs(
                p_pairs, i_next * BM, i_column * BN, queries, keys, stride_pm, stride_pn, BM, BN, ALIGNED
            )
        else:
            b_pairs = load_pairs(
                p_pairs, i_tile * BM, i_column * BN, queries, keys, stride_pm, stride_pn, BM, BN, ALIGNED
            )
        i_bits = tl.load(p_bits + x)
        b_q = load_tokens(p_qh, i_tile * BM, o_m, queries, stride_qn, D, BD)
        b_do = load_tokens(p_do, i_tile * BM, o_m, queries, DV, DV, BDV)
        b_lse2, b_delta = tl.load(p_lse2 + i_tile * BM + o_m), tl.load(p_delta + i_tile * BM + o_m)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_s = tl.fma(pair_scores(p_pairs, b_pairs, BM, BN), inv_scale, b_s)
        b_dp = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION)
        b_s = b_s * scale - b_lse2[:, None]
        if i_bits >= 0:
            b_s = tl.where(load_mask(p_packed, i_bits, BM, BN, False, True), b_s, -float("inf"))
        b_p = tl.exp2(b_s)
        b_p_drop = b_p
        if DROPOUT:
            b_hash = hash_rows(p_seed, i_b, i_h, i_tile * BM + o_m + keys - queries)
            m_keep = dropout_mask(b_hash, i_column * BN + o_n, threshold, False)
            b_p_drop = tl.where(m_keep, b_p, 0.0)
            b_dp = tl.where(m_keep, b_dp * keep_scale, 0.0)
        b_ds = b_p * (b_dp - b_delta[:, None])
        store_pairs(p_ds, b_ds, i_tile * BM, i_column * BN, queries, ds_keys, BM, BN)
        b_dv = tl.dot(tl.trans(b_p_drop.to(b_do.dtype)), b_do, b_dv, input_precision=PRECISION)
        b_dk = tl.dot(tl.trans(b_ds.to(b_q.dtype)), b_q, b_dk, input_precision=PRECISION)
    b_dk *= grad_scale
    b_dv *= keep_scale
    i_slot = tl.load(p_slot + i_item)
    if i_slot >= 0:  # rows of partial sums have the keys in order
        store_rows(p_dk_parts + i_slot.to(tl.int64) * (BN * BD), o_n, b_dk, BN, BD, BD)
        store_rows(p_dv_parts + i_slot.to(tl.int64) * (BN * BDV), o_n, b_dv, BN, BDV, BDV)
    else:
        first = i_bh.to(tl.int64) * keys
        store_rows(p_dk + first * D, i_column * BN + o_n, b_dk, keys, D, BD)
        store_rows(p_dv + first * DV, i_column * BN + o_n, b_dv, keys, DV, BDV)


@triton.jit(do_not_specialize=PAIR_SIZES)
def dq_pairs_kernel(
    p_k, p_ds, p_ds_base, p_dq, p_dq_parts, p_group, p_row, p_first, p_last, p_slot, p_tile,
    stride_kb, stride_kh, stride_kn, queries, keys, heads, group_size, ds_keys, grad_scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, DS_ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A work item of one row of tiles of one head: dq = scale · Σ_j ds·k, from ds."""
    VECTOR: tl.constexpr = 128 // p_ds.dtype.element_ty.primitive_bitwidth if DS_ALIGNED else 1
    i_item = tl.program_id(0)
    i_bh, i_row = tl.load(p_group + i_item), tl.load(p_row + i_item)
    i_first, i_last = tl.load(p_first + i_item), tl.load(p_last + i_item)
    ds_keys = ds_keys // VECTOR * VECTOR
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    p_k = head_pointer(p_k, i_bh // heads, i_bh % heads // group_size, stride_kb, stride_kh)
    o_q = tl.minimum(i_row * BM + o_m, queries - 1)
    p_rows = p_ds + tl.load(p_ds_base + i_bh) * queries * ds_keys + (o_q.to(tl.int64) * ds_keys)[:, None]
    b_dq = tl.zeros([BM, BD], tl.float32)
    i_next = next_tile(p_tile, i_first, i_last)
    for x in range(i_first, i_last):
        i_tile = i_next
        i_next = next_tile(p_tile, x + 1, i_last)
        o_j = i_tile * BN + o_n
        b_ds = tl.load(p_rows + o_j[None, :], mask=(o_j < ds_keys)[None, :], other=0.0)
        b_k = load_tokens(p_k, i_tile * BN, o_n, keys, stride_kn, D, BD)
        b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION)
    i_slot = tl.load(p_slot + i_item)
    if i_slot >= 0:
        store_partial(p_dq_parts, i_slot, b_dq, BM, BD)
    else:
        store_rows(p_dq + i_bh.to(tl.int64) * queries * D, i_row * BM + o_m, b_dq * grad_scale, queries, D, BD)


@triton.jit(do_not_specialize=PAIR_SIZES)
def sum_pairs_kernel(
    p_ds, p_out, queries, keys, ds_keys, terms,
    DS_ALIGNED: tl.constexpr, OUT_ALIGNED: tl.constexpr, ADD: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """out[slot] = Σ ds over the `terms` numbers of a slot, in order, for one row of pairs; ADD adds to what is there.

    `p_ds [slots · terms, queries, ds_keys]`, `p_out [slots, queries, keys]`.
    """
    VECTOR: tl.constexpr = 128 // p_ds.dtype.element_ty.primitive_bitwidth if DS_ALIGNED else 1
    ds_keys = ds_keys // VECTOR * VECTOR
    i_slot, i_row = tl.program_id(0) // queries, tl.program_id(0) % queries
    if OUT_ALIGNED:
        keys = keys // VECTOR * VECTOR
    step = queries.to(tl.int64) * ds_keys
    p_ds += i_slot.to(tl.int64) * terms * step + i_row.to(tl.int64) * ds_keys
    p_out += (i_slot.to(tl.int64) * queries + i_row) * keys
    for first in range(0, keys, SIZE):
        o_j = first + tl.arange(0, SIZE)
        b_sum = tl.zeros([SIZE], tl.float32)
        if ADD:
            b_sum += tl.load(p_out + o_j, mask=o_j < keys, other=0.0)
        for x in range(terms):
            b_sum += tl.load(p_ds + x * step + o_j, mask=o_j < ds_keys, other=0.0).to(tl.float32)
        tl.store(p_out + o_j, b_sum.to(p_out.dtype.element_ty), mask=o_j < keys)
