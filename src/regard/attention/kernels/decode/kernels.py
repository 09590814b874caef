"""Device code of decoding: split-k attention of few queries over many keys."""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from ..prelude import (
    LN2,
    LOG2E,
    MASKED,
    MAX_INIT,
    add_sink,
    dropout_mask,
    hash_rows,
    head_pointer,
    key_places,
    load_span,
    load_span_transposed,
    query_places,
    tanh,
)


@triton.jit
def load_rel_bias(p_table, o_table, b_distance, zero, entries):
    """The entry of each pair's distance in its row's table."""
    return tl.load(p_table + o_table[:, None] + tl.minimum(tl.maximum(b_distance + zero, 0), entries - 1))


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "kv_heads", "group_size", "row_tiles", "splits", "offset", "scale",
        "bias_zero", "bias_entries", "rel_zero", "rel_entries", "batch", "threshold",
        "stride_mb", "stride_mh", "stride_mq", "stride_mn", "stride_bounds", "cap",
        "stride_pb", "stride_ph", "stride_pq", "stride_pn", "stride_places",
    ]
)  # fmt: skip
def split_kernel(
    p_q, p_k, p_v, p_rel_bias, p_rel_scores, p_pairs, p_places, p_mask, p_bounds, p_seed,
    p_acc_parts, p_max_parts, p_sum_parts,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_mb, stride_mh, stride_mq, stride_mn, stride_bounds, stride_pb, stride_ph, stride_pq, stride_pn,
    stride_places,
    batch, queries, keys, kv_heads, group_size, row_tiles, splits, offset, scale,
    bias_zero, bias_entries, rel_zero, rel_entries, cap, threshold,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    MASK: tl.constexpr, REL_BIAS: tl.constexpr, REL_VECTORS: tl.constexpr, CAP: tl.constexpr, PAIR_BIAS: tl.constexpr,
    PLACED: tl.constexpr, DROPOUT: tl.constexpr, RENORMALIZE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One split of the keys for BM rows, (head of the group, query), in base 2 with a running maximum m:

        p = 2^(s − m),   l = Σ p,   acc = Σ p · v

    REL_BIAS 1 reads a table by distance, 2 computes −slope·|i − j|, between explicit places where PLACED. RENORMALIZE
    scales acc by l over the sum of the weights as they were rounded for the product with v; EXACT adds what rounding
    cut off. Backward is that of any exact attention with this output and log-sum-exp.
    """
    i_split = tl.program_id(0) % splits
    i_rest = tl.program_id(0) // splits
    i_tile = i_rest % row_tiles
    i_kv = (i_rest // row_tiles) % kv_heads
    i_b = i_rest // row_tiles // kv_heads
    o_r = i_tile * BM + tl.arange(0, BM)
    m_r = o_r < group_size * queries
    o_h = i_kv * group_size + o_r // queries
    o_query = o_r % queries
    o_i = o_query + offset
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    o_v = tl.arange(0, BDV)
    i_b = tl.cast(i_b, tl.int64)
    p_rows = p_q + i_b * stride_qb + (o_h.to(tl.int64) * stride_qh + o_query * stride_qn)[:, None] + o_d[None, :]
    b_q = tl.load(p_rows, mask=m_r[:, None] & (o_d < D)[None, :], other=0.0)
    p_k = head_pointer(p_k, i_b, i_kv, stride_kb, stride_kh)
    p_v = head_pointer(p_v, i_b, i_kv, stride_vb, stride_vh)
    if PAIR_BIAS:
        p_biases = p_pairs + i_b * stride_pb + (o_h.to(tl.int64) * stride_ph + o_query * stride_pq)[:, None]
    if MASK:
        p_allowed = p_mask + i_b * stride_mb + (o_h.to(tl.int64) * stride_mh + o_query * stride_mq)[:, None]
        low = tl.load(p_bounds + i_b * stride_bounds)
        high = tl.load(p_bounds + i_b * stride_bounds + 1)
        low = low // BN * BN
    else:
        low = 0
        high = keys
    if REL_BIAS == 1:
        o_bias = tl.where(m_r, o_h, 0) * bias_entries
    if REL_BIAS == 2:
        b_slope = tl.load(p_rel_bias + tl.where(m_r, o_h, 0)).to(tl.float32) * LOG2E
    if REL_VECTORS:
        o_rel = ((tl.where(m_r, o_h, 0).to(tl.int64) * batch + i_b) * queries + o_query) * rel_entries
    if DROPOUT:
        b_hash = hash_rows(p_seed, i_b, o_h, o_i)
    if PLACED:  # dropout has hashed the rows
        o_i = query_places(p_places, i_b, o_query, queries, stride_places)
    size = tl.cdiv(tl.cdiv(high - low, BN), splits) * BN
    first = low + i_split * size
    last = tl.minimum(first + size, high)
    b_m = tl.full([BM], MAX_INIT, tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_l_rounded = tl.zeros([BM], tl.float32)
    b_acc = tl.zeros([BM, BDV], tl.float32)
    for n in tl.range(first, last, BN):
        o_j = n + o_n
        m_j = o_j < last
        b_k = load_span_transposed(p_k, n, stride_kn, last, BN, D, BD, True)
        b_s = tl.dot(b_q, b_k, input_precision="ieee") * scale
        if PLACED:
            b_distance = o_i[:, None] - key_places(p_places, i_b, o_j, queries, keys, stride_places)[None, :]
        else:
            b_distance = o_i[:, None] - o_j[None, :]
        if REL_VECTORS:
            b_s += load_rel_bias(p_rel_scores, o_rel, b_distance, rel_zero, rel_entries)
        if CAP:
            b_s = cap * tanh(b_s * (1.0 / cap))
        if REL_BIAS == 1:
            b_s += load_rel_bias(p_rel_bias, o_bias, b_distance, bias_zero, bias_entries)
        if REL_BIAS == 2:
            if not PLACED:  # a conversion of each pair would take as long as its exponential
                b_distance = o_i.to(tl.float32)[:, None] - o_j.to(tl.float32)[None, :]
            b_s -= b_slope[:, None] * tl.abs(b_distance).to(tl.float32)
        if PAIR_BIAS:
            p_tile = p_biases + o_j[None, :].to(tl.int64) * stride_pn
            b_s += tl.load(p_tile, mask=m_r[:, None] & m_j[None, :], other=0.0).to(tl.float32) * LOG2E
        if MASK:
            p_tile = p_allowed + o_j[None, :].to(tl.int64) * stride_mn
            b_allowed = tl.load(p_tile, mask=m_r[:, None] & m_j[None, :], other=0)
            b_s = tl.where(b_allowed != 0, b_s, MASKED)
        else:
            b_s = tl.where(m_j[None, :], b_s, MASKED)
        b_new_m = tl.maximum(b_m, tl.max(b_s, 1))
        b_p = tl.exp2(b_s - b_new_m[:, None])
        b_alpha = tl.exp2(b_m - b_new_m)
        b_l = b_l * b_alpha + tl.sum(b_p, 1)
        if RENORMALIZE:
            b_l_rounded = b_l_rounded * b_alpha + tl.sum(b_p.to(p_v.dtype.element_ty).to(tl.float32), 1)
        if DROPOUT:
            b_p = tl.where(dropout_mask(b_hash, o_j, threshold, False), b_p, 0.0)
        b_v = load_span(p_v, n, stride_vn, last, BN, DV, BDV, True)
        b_acc = tl.dot(b_p.to(b_v.dtype), b_v, b_acc * b_alpha[:, None], input_precision="ieee")
        if EXACT:
            b_acc = tl.dot((b_p - b_p.to(b_v.dtype).to(tl.float32)).to(b_v.dtype), b_v, b_acc)
        b_m = b_new_m
    if RENORMALIZE:
        b_acc *= (b_l / tl.where(b_l_rounded > 0, b_l_rounded, 1.0))[:, None]
    o_out = (i_b * kv_heads + i_kv) * group_size * queries + o_r
    tl.store(p_max_parts + o_out * splits + i_split, b_m, mask=m_r)
    tl.store(p_sum_parts + o_out * splits + i_split, b_l, mask=m_r)
    p_out = p_acc_parts + (o_out * splits + i_split)[:, None] * DV + o_v[None, :]
    tl.store(p_out, b_acc, mask=m_r[:, None] & (o_v < DV)[None, :])


@triton.jit(do_not_specialize=["splits", "keep_scale", "queries", "heads"])
def merge_kernel(
    p_acc_parts, p_max_parts, p_sum_parts, p_sink, p_output, p_lse, splits, keep_scale, queries, heads,
    DV: tl.constexpr, BDV: tl.constexpr, BS: tl.constexpr, SINK: tl.constexpr,
):  # fmt: skip
    """One row from its splits, with M = max m and α = 2^(m − M):

    L = Σ α · l,   output = Σ α · acc / L,   lse = M + log2 L

    A SINK adds its own 2^(sink − M) to L.
    """
    i_row = tl.cast(tl.program_id(0), tl.int64)
    o_s = tl.arange(0, BS)
    o_v = tl.arange(0, BDV)
    b_max = tl.full([BS], MAX_INIT, tl.float32)
    for at in range(0, splits, BS):
        m_s = at + o_s < splits
        b_max = tl.maximum(b_max, tl.load(p_max_parts + i_row * splits + at + o_s, mask=m_s, other=MAX_INIT))
    b_max = tl.max(b_max, 0)
    b_l = tl.zeros([BS], tl.float32)
    b_output = tl.zeros([BS, BDV], tl.float32)
    for at in range(0, splits, BS):
        m_s = at + o_s < splits
        b_alpha = tl.exp2(tl.load(p_max_parts + i_row * splits + at + o_s, mask=m_s, other=MAX_INIT) - b_max)
        b_l += b_alpha * tl.load(p_sum_parts + i_row * splits + at + o_s, mask=m_s, other=0.0)
        p_rows = p_acc_parts + (i_row * splits + at + o_s)[:, None] * DV + o_v[None, :]
        b_output += b_alpha[:, None] * tl.load(p_rows, mask=m_s[:, None] & (o_v < DV)[None, :], other=0.0)
    b_total = tl.sum(b_l, 0)
    b_factor = keep_scale
    if SINK:
        b_alpha, b_max, b_total = add_sink(p_sink, i_row // queries % heads, b_max, b_total)
        b_factor = keep_scale * b_alpha
    m_alive = b_total > 0
    b_safe = tl.where(m_alive, b_total, 1.0)
    b_row = tl.sum(b_output, 0) * (b_factor / b_safe)
    tl.store(p_output + i_row * DV + o_v, b_row.to(p_output.dtype.element_ty), mask=o_v < DV)
    tl.store(p_lse + i_row, tl.where(m_alive, (b_max + tl.log2(b_safe)) * LN2, -float("inf")))
