"""Device code of gradients of tables by distance at explicit places."""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from ..places import add_by_entry, bounds, by_entry, distances_of, end_sums, sum_by_place
from ..prelude import add_product, hash_rows, head_pointer, key_places, load_rows, query_places, store_rows
from .kernels import SIZES, next_tile, relative_item, store_partial, tile_ds


@triton.jit(do_not_specialize=[*SIZES, "programs", "stride_gb", "stride_gh", "origin", "length"])
def d_placed_bias_kernel(
    p_q, p_k, p_v, p_rel_bias, p_pairs, p_places, p_seed, p_do, p_lse2, p_delta, p_sums,
    p_starts, p_tile, p_bits, p_packed,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_pb, stride_ph, stride_pm, stride_pn, stride_places, stride_gb, stride_gh,
    queries, keys, padded, heads, group_size, origin, length, lists, programs,
    scale, inv_scale, cap, threshold, keep_scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    REL_BIAS: tl.constexpr, CAP: tl.constexpr, PAIR_BIAS: tl.constexpr, PLACED_BIAS: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """d table[x] = Σ ds over the pairs of entry x. One of `programs` of a head takes every programs-th row of tiles.

    It adds to its own row of `p_sums [batch · heads, programs, length]`, zeros before.
    """
    i_program = tl.program_id(0) % programs
    i_bh = tl.program_id(0) // programs
    i_b, i_h = i_bh // heads, i_bh % heads
    p_sums += (i_bh.to(tl.int64) * programs + i_program) * length
    p_qh = head_pointer(p_q, i_b, i_h, stride_qb, stride_qh)
    p_kh = head_pointer(p_k, i_b, i_h // group_size, stride_kb, stride_kh)
    p_vh = head_pointer(p_v, i_b, i_h // group_size, stride_vb, stride_vh)
    p_starts += (i_b * stride_gb + i_h * stride_gh) * (lists + 1)
    first = i_bh.to(tl.int64) * queries
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    for i_row in range(i_program, lists, programs):
        o_q = tl.minimum(i_row * BM + o_m, queries - 1)
        b_q = load_rows(p_qh, o_q.to(tl.int64), stride_qn, D, BD)
        b_do = load_rows(p_do + first * DV, o_q, DV, DV, BDV)
        o_lse2 = i_bh.to(tl.int64) * padded + i_row * BM + o_m
        b_lse2, b_delta = tl.load(p_lse2 + o_lse2), tl.load(p_delta + o_lse2)
        b_hash = hash_rows(p_seed, i_b, i_h, i_row * BM + o_m + keys - queries) if DROPOUT else 0
        b_i = query_places(p_places, i_b, i_row * BM + o_m, queries, stride_places)
        for x in range(tl.load(p_starts + i_row), tl.load(p_starts + i_row + 1)):
            i_column = tl.load(p_tile + x)
            o_k = tl.minimum(i_column * BN + o_n, keys - 1).to(tl.int64)
            b_k = load_rows(p_kh, o_k, stride_kn, D, BD)
            b_v = load_rows(p_vh, o_k, stride_vn, DV, BDV)
            b_ds, _b_slope = tile_ds(
                0.0, b_q, b_k, b_v, b_do, b_lse2, b_delta, b_hash, p_rel_bias, p_pairs, p_places, p_packed,
                i_b, i_h, tl.load(p_bits + x), i_row * BM, i_column * BN, queries, keys,
                stride_pb, stride_ph, stride_pm, stride_pn, stride_places,
                origin, length, scale, inv_scale, cap, threshold, keep_scale,
                BM, BN, REL_BIAS, CAP, PAIR_BIAS, PLACED_BIAS, DROPOUT, PRECISION, PAIRS,
            )  # fmt: skip
            b_j = key_places(p_places, i_b, i_column * BN + o_n, queries, keys, stride_places)
            add_by_entry(p_sums, b_ds, b_i, b_j, origin, length, BM, BN)


@triton.jit(do_not_specialize=[*SIZES, "x_group", "origin", "length"])
def d_placed_vectors_kernel(
    p_x, p_ds, p_places, p_out, p_out_parts,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_column, p_ds_index, p_ds_base,
    stride_xb, stride_xh, stride_xn, stride_places, queries, keys, heads, x_group, origin, length, lists, grad_scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BY_KEY: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """d table[e] = scale · Σ ds·x over the pairs of entry e, for BN entries and a work item of the tiles that have any.

    x are the relative queries, or BY_KEY the keys of x_group heads.
    """
    i_b, i_h, i_bh, i_first, i_last, p_ds = relative_item(p_group, p_first, p_last, p_ds, p_ds_base, heads, BM * BN)
    i_block, i_slot = tl.load(p_row + tl.program_id(0)), tl.load(p_slot + tl.program_id(0))
    p_x = head_pointer(p_x, i_b, i_h // x_group, stride_xb, stride_xh)
    EXACT: tl.constexpr = p_ds.dtype.element_ty != p_x.dtype.element_ty
    tokens = keys if BY_KEY else queries
    o_m, o_n, o_e = tl.arange(0, BM), tl.arange(0, BN), i_block * BN + tl.arange(0, BN)
    b_out = tl.zeros([BN, BD], tl.float32)
    i_ds_next = next_tile(p_ds_index, i_first, i_last)
    for x in range(i_first, i_last):
        i_ds = i_ds_next
        i_ds_next = next_tile(p_ds_index, x + 1, i_last)
        i_row, i_column = tl.load(p_tile + x), tl.load(p_column + x)
        b_ds = load_rows(p_ds + i_ds.to(tl.int64) * (BM * BN), o_m, BN, BN, BN)
        b_own = query_places(p_places, i_b, i_row * BM + o_m, queries, stride_places)
        b_other = key_places(p_places, i_b, i_column * BN + o_n, queries, keys, stride_places)
        if BY_KEY:
            b_ds = tl.trans(b_ds)
            b_own, b_other = b_other, b_own
        o_x = tl.minimum((i_column if BY_KEY else i_row) * BN + o_n, tokens - 1)
        b_x = load_rows(p_x, o_x.to(tl.int64), stride_xn, D, BD)
        b_at = distances_of(b_own, b_other, BY_KEY) + origin
        m_own = (b_ds != 0) & (b_at > 0) & (b_at < length - 1) & (b_at >= i_block * BN) & (b_at < i_block * BN + BN)
        place, last_place = bounds(tl.broadcast_to(b_other[None, :], [BM, BN]), m_own, 1 << 30)
        for y in range(place, last_place + 1, BN):
            b_sums = sum_by_place(b_ds, b_other, y, b_x.dtype, BN, EXACT, PRECISION)
            b_band = by_entry(b_sums, b_own, y, i_block * BN, origin, length, BN, BY_KEY)
            b_out = add_product(b_out, tl.trans(b_band), b_x, EXACT, PRECISION)
        b_low, b_high = end_sums(b_ds, b_own, b_other, origin, length, BY_KEY)
        b_first = tl.sum(b_low[:, None] * b_x.to(tl.float32), 0)
        b_last = tl.sum(b_high[:, None] * b_x.to(tl.float32), 0)
        b_out += tl.where((o_e == 0)[:, None], b_first[None, :], 0.0)
        b_out += tl.where((o_e == length - 1)[:, None], b_last[None, :], 0.0)
    if i_slot >= 0:
        store_partial(p_out_parts, i_slot, b_out, BN, BD)
    else:
        store_rows(p_out + i_bh.to(tl.int64) * lists * BN * D, o_e, b_out * grad_scale, lists * BN, D, BD)
