"""Device code of attention along edges; `passes.py` says what the kernels compute together.

A program owns a few nodes and reads their edges in chunks. A tile is `[heads, nodes, edges, dim]`, an order in which
Triton spreads a neighbour's features over the threads of a warp and keeps every sum over edges inside a thread. The
heads of a node lie side by side, so a tensor has the strides of batch and nodes alone, `stride_xb` and `stride_xn`.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from ..prelude import LN2, LOG2E, LOWEST, hash_head, murmur3_mix


@triton.jit
def dropout_pairs(p_seed, i_b, o_h, o_i, o_j, threshold):
    """Whether dropout keeps the weights of queries at i on keys j, `[nodes, edges]` each → `[heads, nodes, edges]`."""
    x = hash_head(p_seed, i_b, o_h)
    x = murmur3_mix(x[:, None, None] ^ o_i.to(tl.uint32, bitcast=True)[None, :, :])
    x = murmur3_mix(x ^ (o_j.to(tl.uint32, bitcast=True) * 0x9E3779B1)[None, :, :])
    return (x & 0x7FFFFFFF).to(tl.int32) >= threshold


@triton.jit
def activate(b_z, slope, TANH: tl.constexpr):
    """(act(z), act′(z)): tanh by one exponential, or leaky ReLU."""
    if TANH:
        b_act = 1.0 - 2.0 / (1.0 + tl.exp2(b_z * (2.0 * LOG2E)))
        return b_act, 1.0 - b_act * b_act
    b_slope = tl.where(b_z > 0, 1.0, slope)
    return b_z * b_slope, b_slope


@triton.jit
def head_features(BH: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr):
    """Heads of this program, features of D numbers: (heads, mask of both, offsets in q, offsets in k), `[BH, BD]`."""
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    o_d = tl.arange(0, BD)
    m_hd = (o_h < HEADS)[:, None] & (o_d < D)[None, :]
    return o_h, m_hd, o_h[:, None] * D + o_d[None, :], (o_h // GROUP_SIZE)[:, None] * D + o_d[None, :]


@triton.jit
def max_edges(
    p_begins, p_ends, begin, end, first, count, BN: tl.constexpr, SORT_STEP: tl.constexpr, SEGMENTS: tl.constexpr
):
    """A bound on the edges of the tile's nodes: uncut nodes are sorted by descending numbers of edges."""
    if SEGMENTS and BN > 1:
        most = tl.max(end - begin)
    else:
        # Read as a scalar, the bound is known to be the same for all threads.
        most = tl.load(p_ends + first, mask=first < count, other=0)
        most -= tl.load(p_begins + first, mask=first < count, other=0)
        if BN > 1:
            most = (most + SORT_STEP - 1) // SORT_STEP * SORT_STEP
    return most


@triton.jit
def load_nodes(p_nodes, p_begins, p_ends, p_others, o_n, m_n, BE: tl.constexpr):
    """Some nodes, where their edges begin and end, and the other ends of their first edges."""
    i_node = tl.load(p_nodes + o_n, mask=m_n, other=0)
    begin = tl.load(p_begins + o_n, mask=m_n, other=0)
    end = tl.load(p_ends + o_n, mask=m_n, other=0)
    o_edge = begin[:, None] + tl.arange(0, BE)[None, :]
    return i_node, begin, end, tl.load(p_others + o_edge, mask=o_edge < end[:, None], other=0)


@triton.jit
def load_edges(p_x, o_edge, m_x, o_h, HEADS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Features `[edges, HEADS or 1, D]` of edges `[nodes, edges]` → `[heads, nodes, edges, BD]`."""
    o_head = o_h if HEADS > 1 else o_h * 0
    o_x = o_edge.to(tl.int64)[None, :, :, None] * (HEADS * D) + o_head[:, None, None, None] * D
    return tl.load(p_x + o_x + tl.arange(0, BD)[None, None, None, :], mask=m_x, other=0.0).to(tl.float32)


@triton.jit
def load_rel_bias(p_rel_bias, entries, zero, o_h, m_h, o_i, o_j):
    """rel_bias[head, clamp(i − j + zero)] of i and j `[nodes, edges]` → `[heads, nodes, edges]`."""
    o_t = tl.minimum(tl.maximum(o_i - o_j + zero, 0), entries - 1)
    p_at = p_rel_bias + o_h[:, None, None] * entries + o_t[None, :, :]
    return tl.load(p_at, mask=m_h[:, None, None], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["count", "queries", "keys", "entries", "zero", "threshold"])
def forward_kernel(
    p_q, p_k, p_v, p_weight, p_rel_bias, p_seed, p_edge_bias, p_edge_keys, p_edge_values,
    p_nodes, p_begins, p_ends, p_columns, p_out, p_lse,
    stride_ebb, stride_ekb, stride_evb,
    count, queries, keys, stride_qb, stride_qn, stride_kb, stride_kn, stride_vb, stride_vn, stride_ob, stride_lb,
    scale, slope, entries, zero, threshold, keep_scale,
    HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BH: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, SORT_STEP: tl.constexpr,
    ADDITIVE: tl.constexpr, TANH: tl.constexpr, SHARED_KV: tl.constexpr, REL_BIAS: tl.constexpr, DROPOUT: tl.constexpr,
    SEGMENTS: tl.constexpr, EVICTION: tl.constexpr,
    EDGE_BIAS: tl.constexpr, EDGE_KEYS: tl.constexpr, EDGE_VALUES: tl.constexpr,
):  # fmt: skip
    """Each query's output, by online softmax over its edges.

    s_j = scale · q·k_j   or   Σ_d weight_d · act(q_d + k_jd),   + rel_bias[i − j] + edge_bias
    lse = log Σ_j exp(s_j),   o = Σ_j exp(s_j − lse) · keep_j · v_j

    The edge's own key and value are added to k_j and v_j. EDGE_BIAS, EDGE_KEYS and EDGE_VALUES are the heads that these
    have, 1 for all or HEADS; 0 without them.
    """
    i_b = tl.program_id(2)
    o_h, m_hd, o_qf, o_kf = head_features(BH, D, BD, HEADS, GROUP_SIZE)
    _o_h, m_hv, o_of, o_vf = head_features(BH, DV, BDV, HEADS, GROUP_SIZE)
    m_h = o_h < HEADS
    o_e = tl.arange(0, BE)
    p_q += i_b.to(tl.int64) * stride_qb
    p_k += i_b.to(tl.int64) * stride_kb
    p_v += i_b.to(tl.int64) * stride_vb
    p_edge_bias += i_b.to(tl.int64) * stride_ebb
    p_edge_keys += i_b.to(tl.int64) * stride_ekb
    p_edge_values += i_b.to(tl.int64) * stride_evb
    p_out += i_b.to(tl.int64) * stride_ob
    p_lse += i_b.to(tl.int64) * stride_lb
    if ADDITIVE:
        b_weight = tl.load(p_weight + o_qf, mask=m_hd, other=0.0).to(tl.float32) * LOG2E
    first = tl.program_id(0) * BN
    o_n = first + tl.arange(0, BN)
    m_n = o_n < count
    i_node, begin, end, i_next = load_nodes(p_nodes, p_begins, p_ends, p_columns, o_n, m_n, BE)
    i_own = i_node.to(tl.int64)[None, :, None, None]
    m_q = m_n[None, :, None, None] & m_hd[:, None, None, :]
    b_q = tl.load(p_q + i_own * stride_qn + o_qf[:, None, None, :], mask=m_q, other=0.0).to(tl.float32)
    if not ADDITIVE:
        b_q *= scale * LOG2E
    b_m = tl.full([BH, BN, 1], LOWEST, tl.float32)
    b_l = tl.zeros([BH, BN, 1], tl.float32)
    b_o = tl.zeros([BH, BN, 1, BDV], tl.float32)
    o_edge = begin[:, None] + o_e[None, :]
    for _i_edge in range(0, max_edges(p_begins, p_ends, begin, end, first, count, BN, SORT_STEP, SEGMENTS), BE):
        i_other = i_next
        m_e = o_edge < end[:, None]
        i_edge = o_edge
        o_edge += BE
        i_next = tl.load(p_columns + o_edge, mask=o_edge < end[:, None], other=0)
        at = i_other.to(tl.int64)[None, :, :, None]
        m_k = m_e[None, :, :, None] & m_hd[:, None, None, :]
        b_k = tl.load(p_k + at * stride_kn + o_kf[:, None, None, :], mask=m_k, other=0.0, eviction_policy=EVICTION)
        b_k = b_k.to(tl.float32)
        if SHARED_KV:
            b_v = b_k
        else:
            m_v = m_e[None, :, :, None] & m_hv[:, None, None, :]
            b_v = tl.load(p_v + at * stride_vn + o_vf[:, None, None, :], mask=m_v, other=0.0).to(tl.float32)
        if EDGE_VALUES > 0:
            m_ev = m_e[None, :, :, None] & m_hv[:, None, None, :]
            b_v += load_edges(p_edge_values, i_edge, m_ev, o_h, EDGE_VALUES, DV, BDV)
        if EDGE_KEYS > 0:
            b_k += load_edges(p_edge_keys, i_edge, m_k, o_h, EDGE_KEYS, D, BD)
        if ADDITIVE:
            b_act, _slope = activate(b_k + b_q, slope, TANH)
            b_s = tl.sum(b_act * b_weight[:, None, None, :], 3)
        else:
            b_s = tl.sum(b_k * b_q, 3)
        o_i = i_node[:, None] + (keys - queries)
        if REL_BIAS:
            b_s += load_rel_bias(p_rel_bias, entries, zero, o_h, m_h, o_i, i_other) * LOG2E
        if EDGE_BIAS > 0:
            m_eb = m_e[None, :, :, None] & m_h[:, None, None, None]
            b_s += tl.sum(load_edges(p_edge_bias, i_edge, m_eb, o_h, EDGE_BIAS, 1, 1), 3) * LOG2E
        b_s = tl.where(m_e[None, :, :], b_s, float("-inf"))
        b_new_m = tl.maximum(b_m, tl.max(b_s, 2, keep_dims=True))
        b_p = tl.exp2(b_s - b_new_m)
        b_alpha = tl.exp2(b_m - b_new_m)
        b_l = b_l * b_alpha + tl.sum(b_p, 2, keep_dims=True)
        if DROPOUT:
            b_p = tl.where(dropout_pairs(p_seed, i_b, o_h, o_i, i_other, threshold), b_p, 0.0)
        b_o = b_o * b_alpha[:, :, :, None] + tl.sum(b_p[:, :, :, None] * b_v, 2, keep_dims=True)
        b_m = b_new_m
    m_alive = b_l > 0
    b_factor = keep_scale / tl.where(m_alive, b_l, 1.0)
    b_lse = tl.where(m_alive, (b_m + tl.log2(tl.where(m_alive, b_l, 1.0))) * LN2, float("-inf"))
    i_out = (o_n if SEGMENTS else i_node).to(tl.int64)[None, :, None]
    p_to = p_out + i_out[:, :, :, None] * (HEADS * DV) + o_of[:, None, None, :]
    b_out = (b_o * b_factor[:, :, :, None]).to(p_out.dtype.element_ty)
    tl.store(p_to, b_out, mask=m_n[None, :, None, None] & m_hv[:, None, None, :])
    tl.store(p_lse + i_out * HEADS + o_h[:, None, None], b_lse, mask=m_n[None, :, None] & m_h[:, None, None])


@triton.jit(do_not_specialize=["count", "stride_lb", "stride_lh", "stride_ln"])
def delta_kernel(
    p_do, p_out, p_lse, p_lse2_delta, count,
    stride_db, stride_dn, stride_ob, stride_on, stride_lb, stride_lh, stride_ln,
    HEADS: tl.constexpr, DV: tl.constexpr, BH: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """What backward reads of a query besides its features, `[queries, 2, heads]`: lse in base 2, and δ = Σ o·do."""
    i_b = tl.program_id(2)
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    o_v = tl.arange(0, BDV)
    m_nh = (o_n < count)[:, None] & (o_h < HEADS)[None, :]
    m_x = m_nh[:, :, None] & (o_v < DV)[None, None, :]
    o_f = (o_h[:, None] * DV + o_v[None, :])[None, :, :]
    p_do += i_b.to(tl.int64) * stride_db
    p_out += i_b.to(tl.int64) * stride_ob
    b_do = tl.load(p_do + o_n[:, None, None] * stride_dn + o_f, mask=m_x, other=0.0).to(tl.float32)
    b_out = tl.load(p_out + o_n[:, None, None] * stride_on + o_f, mask=m_x, other=0.0).to(tl.float32)
    p_lse += i_b.to(tl.int64) * stride_lb
    b_lse = tl.load(p_lse + o_n[:, None] * stride_ln + o_h[None, :] * stride_lh, mask=m_nh, other=0.0) * LOG2E
    # A dead row's −∞ becomes +∞, so that exp2(s − lse) is 0 and not NaN.
    b_lse = tl.where(b_lse == float("-inf"), float("inf"), b_lse)
    p_to = p_lse2_delta + (i_b.to(tl.int64) * count + o_n)[:, None] * (2 * HEADS) + o_h[None, :]
    tl.store(p_to, b_lse, mask=m_nh)
    tl.store(p_to + HEADS, tl.sum(b_do * b_out, 2), mask=m_nh)


@triton.jit(do_not_specialize=["count", "queries", "keys", "edges", "entries", "zero", "threshold"])
def dkdv_kernel(
    p_q, p_k, p_v, p_weight, p_rel_bias, p_seed, p_edge_bias, p_edge_keys, p_edge_values,
    p_do, p_lse2_delta, p_nodes, p_begins, p_ends, p_rows, p_slots,
    p_dk, p_dv, p_ds, p_signs, p_dweight, p_d_edge_keys, p_d_edge_values,
    stride_ebb, stride_ekb, stride_evb,
    count, queries, keys, edges, stride_qb, stride_qn, stride_kb, stride_kn, stride_vb, stride_vn, stride_db, stride_dn,
    stride_dkb, stride_dvb,
    scale, slope, entries, zero, threshold, keep_scale,
    HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BH: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, SORT_STEP: tl.constexpr,
    ADDITIVE: tl.constexpr, TANH: tl.constexpr, PREMULTIPLIED: tl.constexpr, SIGN_BITS: tl.constexpr,
    REL_BIAS: tl.constexpr, DROPOUT: tl.constexpr, SEGMENTS: tl.constexpr, TIED: tl.constexpr,
    EDGE_BIAS: tl.constexpr, EDGE_KEYS: tl.constexpr, EDGE_VALUES: tl.constexpr,
    D_EDGE_KEYS: tl.constexpr, D_EDGE_VALUES: tl.constexpr,
):  # fmt: skip
    """Each key's gradients, summed over its edges, and the gradient of every edge's score.

    p_i = exp(s_i − lse_i),   dv = Σ_i p_i · keep_i · do_i,   ds_i = p_i · (keep_i · do_i·v − δ_i)
    dk = scale · Σ_i ds_i · q_i   or   weight · Σ_i ds_i · act′(q_i + k),   dweight = Σ_i ds_i · act(q_i + k)

    `ds` goes to the edge's index by query; with PREMULTIPLIED (head_dim 1) it is ds · act′, which dq sums as it is.
    With SIGN_BITS (leaky ReLU of a narrow head) the signs of q_i + k are stored too, one bit each, so that dq need not
    gather k. With TIED, k and v are one tensor, and dk + dv goes to dk. With D_EDGE_KEYS and D_EDGE_VALUES what each
    edge adds to dk and dv is stored too, `[edges, heads, dim]` by query: the gradients of the edge's own key and value.
    """
    i_b = tl.program_id(2)
    o_h, m_hd, o_qf, o_kf = head_features(BH, D, BD, HEADS, GROUP_SIZE)
    _o_h, m_hv, o_of, o_vf = head_features(BH, DV, BDV, HEADS, GROUP_SIZE)
    m_h = o_h < HEADS
    o_e = tl.arange(0, BE)
    p_q += i_b.to(tl.int64) * stride_qb
    p_k += i_b.to(tl.int64) * stride_kb
    p_v += i_b.to(tl.int64) * stride_vb
    p_do += i_b.to(tl.int64) * stride_db
    p_lse2_delta += i_b.to(tl.int64) * queries * (2 * HEADS)
    p_ds += i_b.to(tl.int64) * edges * HEADS
    p_signs += i_b.to(tl.int64) * edges * HEADS
    p_edge_bias += i_b.to(tl.int64) * stride_ebb
    p_edge_keys += i_b.to(tl.int64) * stride_ekb
    p_edge_values += i_b.to(tl.int64) * stride_evb
    p_d_edge_keys += i_b.to(tl.int64) * edges * (HEADS * D)
    p_d_edge_values += i_b.to(tl.int64) * edges * (HEADS * DV)
    p_dk += i_b.to(tl.int64) * stride_dkb
    p_dv += i_b.to(tl.int64) * stride_dvb
    if ADDITIVE:
        b_weight = tl.load(p_weight + o_qf, mask=m_hd, other=0.0).to(tl.float32)
    # With head_dim 1 a thread holds one edge, and sums over edges are taken at the end.
    b_dweight = tl.zeros([BH, BN, BE], tl.float32) if BD == 1 else tl.zeros([BH, BN, 1, BD], tl.float32)
    first = tl.program_id(0) * BN
    o_n = first + tl.arange(0, BN)
    m_n = o_n < count
    i_node, begin, end, i_next = load_nodes(p_nodes, p_begins, p_ends, p_rows, o_n, m_n, BE)
    m_nd = m_n[None, :, None, None] & m_hd[:, None, None, :]
    m_nc = m_n[None, :, None, None] & m_hv[:, None, None, :]
    i_own = i_node.to(tl.int64)[None, :, None, None]
    b_k = tl.load(p_k + i_own * stride_kn + o_kf[:, None, None, :], mask=m_nd, other=0.0).to(tl.float32)
    b_v = tl.load(p_v + i_own * stride_vn + o_vf[:, None, None, :], mask=m_nc, other=0.0).to(tl.float32)
    b_dk = tl.zeros([BH, BN, BE], tl.float32) if BD == 1 else tl.zeros([BH, BN, 1, BD], tl.float32)
    b_dv = tl.zeros([BH, BN, 1, BDV], tl.float32)
    o_edge = begin[:, None] + o_e[None, :]
    for _i_edge in range(0, max_edges(p_begins, p_ends, begin, end, first, count, BN, SORT_STEP, SEGMENTS), BE):
        i_other = i_next
        m_e = o_edge < end[:, None]
        slot = tl.load(p_slots + o_edge, mask=m_e, other=0)
        o_edge += BE
        i_next = tl.load(p_rows + o_edge, mask=o_edge < end[:, None], other=0)
        at = i_other.to(tl.int64)[None, :, :, None]
        m_q = m_e[None, :, :, None] & m_hd[:, None, None, :]
        m_o = m_e[None, :, :, None] & m_hv[:, None, None, :]
        m_f = m_e[None, :, :] & m_h[:, None, None]
        b_q = tl.load(p_q + at * stride_qn + o_qf[:, None, None, :], mask=m_q, other=0.0).to(tl.float32)
        b_do = tl.load(p_do + at * stride_dn + o_of[:, None, None, :], mask=m_o, other=0.0).to(tl.float32)
        p_at = p_lse2_delta + i_other.to(tl.int64)[None, :, :] * (2 * HEADS) + o_h[:, None, None]
        b_lse = tl.load(p_at, mask=m_f, other=0.0)
        b_delta = tl.load(p_at + HEADS, mask=m_f, other=0.0)
        b_key, b_value = b_k, b_v
        if EDGE_KEYS > 0:
            b_key += load_edges(p_edge_keys, slot, m_q, o_h, EDGE_KEYS, D, BD)
        if EDGE_VALUES > 0:
            b_value += load_edges(p_edge_values, slot, m_o, o_h, EDGE_VALUES, DV, BDV)
        if ADDITIVE:
            b_z = b_q + b_key
            b_act, b_slope = activate(b_z, slope, TANH)
            b_s = tl.sum(b_act * b_weight[:, None, None, :], 3) * LOG2E
        else:
            b_s = tl.sum(b_q * b_key, 3) * (scale * LOG2E)
        o_i = i_other + (keys - queries)
        key = tl.broadcast_to(i_node[:, None], (BN, BE))
        if REL_BIAS:
            b_s += load_rel_bias(p_rel_bias, entries, zero, o_h, m_h, o_i, key) * LOG2E
        if EDGE_BIAS > 0:
            b_s += tl.sum(load_edges(p_edge_bias, slot, m_f[:, :, :, None], o_h, EDGE_BIAS, 1, 1), 3) * LOG2E
        b_p = tl.where(m_e[None, :, :], tl.exp2(b_s - b_lse), 0.0)
        b_dp = tl.sum(b_do * b_value, 3)
        b_p_drop = b_p
        if DROPOUT:
            m_keep = dropout_pairs(p_seed, i_b, o_h, o_i, key, threshold)
            b_p_drop = tl.where(m_keep, b_p * keep_scale, 0.0)
            b_dp = tl.where(m_keep, b_dp * keep_scale, 0.0)
        b_ds = b_p * (b_dp - b_delta)
        b_dv += tl.sum(b_p_drop[:, :, :, None] * b_do, 2, keep_dims=True)
        if D_EDGE_VALUES:
            o_ev = slot.to(tl.int64)[None, :, :, None] * (HEADS * DV) + o_of[:, None, None, :]
            b_dev = b_p_drop[:, :, :, None] * b_do
            tl.store(p_d_edge_values + o_ev, b_dev.to(p_d_edge_values.dtype.element_ty), mask=m_o)
        if not ADDITIVE:
            b_slope = b_q
        if D_EDGE_KEYS:
            o_ek = slot.to(tl.int64)[None, :, :, None] * (HEADS * D) + o_qf[:, None, None, :]
            b_dek = b_ds[:, :, :, None] * b_slope * (b_weight[:, None, None, :] if ADDITIVE else scale)
            tl.store(p_d_edge_keys + o_ek, b_dek.to(p_d_edge_keys.dtype.element_ty), mask=m_q)
        if BD == 1:
            if ADDITIVE:
                b_dweight += b_ds * tl.sum(b_act, 3)
            b_dk_edge = b_ds * tl.sum(b_slope, 3)
            b_dk += b_dk_edge
            if PREMULTIPLIED:
                b_ds = b_dk_edge
        else:
            if ADDITIVE:
                b_dweight += tl.sum(b_ds[:, :, :, None] * b_act, 2, keep_dims=True)
            b_dk += tl.sum(b_ds[:, :, :, None] * b_slope, 2, keep_dims=True)
        o_to = slot.to(tl.int64)[None, :, :] * HEADS + o_h[:, None, None]
        tl.store(p_ds + o_to, b_ds, mask=m_f)
        if SIGN_BITS:
            b_signs = tl.sum((b_z > 0).to(tl.int32) << tl.arange(0, BD)[None, None, None, :], 3)
            tl.store(p_signs + o_to, b_signs.to(p_signs.dtype.element_ty), mask=m_f)
    if BD == 1:
        b_dk = tl.sum(b_dk, 2, keep_dims=True)[:, :, :, None]
    if ADDITIVE:
        b_dk *= b_weight[:, None, None, :]
    else:
        b_dk *= scale
    i_out = (o_n if SEGMENTS else i_node).to(tl.int64)[None, :, None, None]
    if TIED:
        b_dk += b_dv
    else:
        tl.store(p_dv + i_out * (HEADS * DV) + o_of[:, None, None, :], b_dv.to(p_dv.dtype.element_ty), mask=m_nc)
    tl.store(p_dk + i_out * (HEADS * D) + o_qf[:, None, None, :], b_dk.to(p_dk.dtype.element_ty), mask=m_nd)
    if ADDITIVE:
        i_part = i_b.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        if BD == 1:
            b_dweight = tl.sum(b_dweight, 2, keep_dims=True)[:, :, :, None]
        tl.store(p_dweight + i_part * (HEADS * D) + o_qf, tl.sum(tl.sum(b_dweight, 2), 1), mask=m_hd)


@triton.jit(do_not_specialize=["count", "edges"])
def dq_kernel(
    p_q, p_k, p_weight, p_edge_keys, p_ds, p_signs, p_nodes, p_begins, p_ends, p_columns, p_dq,
    stride_ekb, count, edges, stride_qb, stride_qn, stride_kb, stride_kn, stride_dqb, scale, slope,
    HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, D: tl.constexpr,
    BH: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, SORT_STEP: tl.constexpr,
    ADDITIVE: tl.constexpr, TANH: tl.constexpr, PREMULTIPLIED: tl.constexpr, SIGN_BITS: tl.constexpr,
    SEGMENTS: tl.constexpr, EDGE_KEYS: tl.constexpr,
):  # fmt: skip
    """Each query's gradient, from the gradients of its edges' scores.

    dq = scale · Σ_j ds_j · k_j   or   weight · Σ_j ds_j · act′(q + k_j)   or, with PREMULTIPLIED, weight · Σ_j ds_j

    With SIGN_BITS, act′ is read from the bits that `dkdv_kernel` stored; k is not gathered.
    """
    i_b = tl.program_id(2)
    o_h, m_hd, o_qf, o_kf = head_features(BH, D, BD, HEADS, GROUP_SIZE)
    m_h = o_h < HEADS
    o_d, o_e = tl.arange(0, BD), tl.arange(0, BE)
    p_q += i_b.to(tl.int64) * stride_qb
    p_k += i_b.to(tl.int64) * stride_kb
    p_ds += i_b.to(tl.int64) * edges * HEADS
    p_signs += i_b.to(tl.int64) * edges * HEADS
    p_edge_keys += i_b.to(tl.int64) * stride_ekb
    p_dq += i_b.to(tl.int64) * stride_dqb
    if ADDITIVE:
        b_weight = tl.load(p_weight + o_qf, mask=m_hd, other=0.0).to(tl.float32)
    first = tl.program_id(0) * BN
    o_n = first + tl.arange(0, BN)
    m_n = o_n < count
    i_node = tl.load(p_nodes + o_n, mask=m_n, other=0)
    begin = tl.load(p_begins + o_n, mask=m_n, other=0)
    end = tl.load(p_ends + o_n, mask=m_n, other=0)
    m_nd = m_n[None, :, None, None] & m_hd[:, None, None, :]
    i_own = i_node.to(tl.int64)[None, :, None, None]
    b_dq = tl.zeros([BH, BN, 1, BD], tl.float32)
    if ADDITIVE and not PREMULTIPLIED and not SIGN_BITS:
        b_q = tl.load(p_q + i_own * stride_qn + o_qf[:, None, None, :], mask=m_nd, other=0.0).to(tl.float32)
    o_edge = begin[:, None] + o_e[None, :]
    if not PREMULTIPLIED and not SIGN_BITS:
        i_next = tl.load(p_columns + o_edge, mask=o_edge < end[:, None], other=0)
    for _i_edge in range(0, max_edges(p_begins, p_ends, begin, end, first, count, BN, SORT_STEP, SEGMENTS), BE):
        m_e = o_edge < end[:, None]
        m_at = m_e[None, :, :] & m_h[:, None, None]
        o_at = o_edge.to(tl.int64)[None, :, :] * HEADS + o_h[:, None, None]
        b_ds = tl.load(p_ds + o_at, mask=m_at, other=0.0)
        i_edge = o_edge
        o_edge += BE
        if PREMULTIPLIED:
            b_dq += tl.sum(b_ds, 2, keep_dims=True)[:, :, :, None]
        elif SIGN_BITS:
            b_signs = tl.load(p_signs + o_at, mask=m_at, other=0).to(tl.int32)
            b_positive = (b_signs[:, :, :, None] >> o_d[None, None, None, :]) & 1
            b_dq += tl.sum(b_ds[:, :, :, None] * tl.where(b_positive != 0, 1.0, slope), 2, keep_dims=True)
        else:
            i_other = i_next.to(tl.int64)[None, :, :, None]
            i_next = tl.load(p_columns + o_edge, mask=o_edge < end[:, None], other=0)
            m_k = m_e[None, :, :, None] & m_hd[:, None, None, :]
            b_k = tl.load(p_k + i_other * stride_kn + o_kf[:, None, None, :], mask=m_k, other=0.0).to(tl.float32)
            if EDGE_KEYS > 0:
                b_k += load_edges(p_edge_keys, i_edge, m_k, o_h, EDGE_KEYS, D, BD)
            if ADDITIVE:
                _act, b_k = activate(b_k + b_q, slope, TANH)
            b_dq += tl.sum(b_ds[:, :, :, None] * b_k, 2, keep_dims=True)
    if ADDITIVE:
        b_dq *= b_weight[:, None, None, :]
    else:
        b_dq *= scale
    i_out = (o_n if SEGMENTS else i_node).to(tl.int64)[None, :, None, None]
    tl.store(p_dq + i_out * (HEADS * D) + o_qf[:, None, None, :], b_dq.to(p_dq.dtype.element_ty), mask=m_nd)


@triton.jit(do_not_specialize=["stride_pb", "stride_plb", "stride_ob", "stride_lb"])
def merge_kernel(
    p_part, p_part_lse, p_offsets, p_nodes, p_out, p_lse, stride_pb, stride_plb, stride_ob, stride_lb,
    HEADS: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BS: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """The results of a node's segments, merged.

    Σ_s part_s   or, with SOFTMAX,   lse = log Σ_s exp(lse_s),   Σ_s exp(lse_s − lse) · part_s
    """
    i_h = tl.program_id(1)
    i_b = tl.program_id(2).to(tl.int64)
    begin = tl.load(p_offsets + tl.program_id(0))
    end = tl.load(p_offsets + tl.program_id(0) + 1)
    i_node = tl.load(p_nodes + tl.program_id(0)).to(tl.int64)
    o_s = tl.arange(0, BS)
    o_v = tl.arange(0, BDV)
    p_part += i_b * stride_pb + i_h * DV
    p_part_lse += i_b * stride_plb + i_h
    b_factor = 1.0
    if SOFTMAX:
        b_m = tl.full([BS], LOWEST, tl.float32)
        b_sums = tl.zeros([BS], tl.float32)
        for i_segment in range(begin, end, BS):
            o_at = (i_segment + o_s).to(tl.int64)
            b_lse = tl.load(p_part_lse + o_at * HEADS, mask=o_at < end, other=float("-inf")) * LOG2E
            b_new_m = tl.maximum(b_m, b_lse)
            b_sums = b_sums * tl.exp2(b_m - b_new_m) + tl.exp2(b_lse - b_new_m)
            b_m = b_new_m
        b_max = tl.max(b_m, 0)
        b_l = tl.sum(b_sums * tl.exp2(b_m - b_max), 0)
        m_alive = b_l > 0
        b_factor = tl.where(m_alive, 1.0 / tl.where(m_alive, b_l, 1.0), 0.0)
        b_merged_lse = tl.where(m_alive, (b_max + tl.log2(tl.where(m_alive, b_l, 1.0))) * LN2, float("-inf"))
        tl.store(p_lse + i_b * stride_lb + i_node * HEADS + i_h, b_merged_lse)
    b_sum = tl.zeros([BS, BDV], tl.float32)
    for i_segment in range(begin, end, BS):
        o_at = (i_segment + o_s).to(tl.int64)
        m_x = (o_at < end)[:, None] & (o_v < DV)[None, :]
        b_part = tl.load(p_part + o_at[:, None] * (HEADS * DV) + o_v[None, :], mask=m_x, other=0.0)
        if SOFTMAX:
            b_lse = tl.load(p_part_lse + o_at * HEADS, mask=o_at < end, other=float("-inf")) * LOG2E
            b_part *= tl.exp2(b_lse - b_max)[:, None]
        b_sum += b_part
    p_to = p_out + i_b * stride_ob + i_node * (HEADS * DV) + i_h * DV + o_v
    tl.store(p_to, (tl.sum(b_sum, 0) * b_factor).to(p_out.dtype.element_ty), mask=o_v < DV)
