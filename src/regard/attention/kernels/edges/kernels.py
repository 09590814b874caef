"""The kernels of attention along edges; `graph.py` says what they compute together and runs them.

A program owns a few nodes and walks their edges in chunks. A tile is `[heads, nodes, edges, dim]`, an order in which
Triton spreads a neighbour's features over the threads of a warp and keeps every sum over edges inside a thread.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..prelude import mix

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def kept_pairs(p_seed, i_batch, heads, i, j, least):
    """Whether dropout keeps the weights of places i on keys j, each `[nodes, edges]` → `[heads, nodes, edges]`."""
    x = mix(tl.load(p_seed).to(tl.uint32))
    x = mix(x ^ i_batch.to(tl.uint32))
    x = mix(x ^ heads.to(tl.uint32))
    x = mix(x[:, None, None] ^ i.to(tl.uint32, bitcast=True)[None, :, :])
    x = mix(x ^ (j.to(tl.uint32, bitcast=True) * 0x9E3779B1)[None, :, :])
    return (x & 0x7FFFFFFF).to(tl.int32) >= least


@triton.jit
def activate(z, slope, TANH: tl.constexpr):
    """(act(z), act′(z)): tanh by one exponential, or leaky ReLU."""
    if TANH:
        act = 1.0 - 2.0 / (1.0 + tl.exp2(z * (2.0 * LOG2E)))
        return act, 1.0 - act * act
    rise = tl.where(z > 0, 1.0, slope)
    return z * rise, rise


@triton.jit
def longest(p_begins, p_ends, begin, end, first, count, BN: tl.constexpr, GRAIN: tl.constexpr, SEGMENTS: tl.constexpr):
    """A number of edges that no node of the tile exceeds: whole nodes stand by falling numbers of edges."""
    if SEGMENTS and BN > 1:
        most = tl.max(end - begin)
    else:
        # Read as a scalar, the bound is known to be the same for all threads.
        most = tl.load(p_ends + first, mask=first < count, other=0)
        most -= tl.load(p_begins + first, mask=first < count, other=0)
        if BN > 1:
            most = (most + GRAIN - 1) // GRAIN * GRAIN
    return most


@triton.jit
def nodes_at(p_nodes, p_begins, p_ends, p_others, o_n, m_n, BE: tl.constexpr):
    """Some nodes, where their edges begin and end, and the other ends of their first edges."""
    node = tl.load(p_nodes + o_n, mask=m_n, other=0)
    begin = tl.load(p_begins + o_n, mask=m_n, other=0)
    end = tl.load(p_ends + o_n, mask=m_n, other=0)
    o_edge = begin[:, None] + tl.arange(0, BE)[None, :]
    return node, begin, end, tl.load(p_others + o_edge, mask=o_edge < end[:, None], other=0)


@triton.jit
def number_of(p_numbers, number_size, number_zero, heads, m_h, i, j):
    """numbers[head, clamp(i − j + zero)] of i and j `[nodes, edges]` → `[heads, nodes, edges]`."""
    at = tl.minimum(tl.maximum(i - j + number_zero, 0), number_size - 1)
    p_at = p_numbers + heads[:, None, None] * number_size + at[None, :, :]
    return tl.load(p_at, mask=m_h[:, None, None], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["count", "queries", "keys", "number_size", "number_zero", "least"])
def forward_kernel(
    p_q, p_k, p_v, p_weight, p_numbers, p_seed, p_nodes, p_begins, p_ends, p_columns, p_out, p_lse,
    count, queries, keys, q_token, q_batch, k_token, k_batch, v_token, v_batch, out_batch, lse_batch,
    scale, slope, number_size, number_zero, least, kept,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, C: tl.constexpr,
    BH: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, GRAIN: tl.constexpr,
    ADDITIVE: tl.constexpr, TANH: tl.constexpr, SHARED: tl.constexpr, NUMBERS: tl.constexpr, DROPOUT: tl.constexpr,
    SEGMENTS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Each query's mix of values, one sweep over its edges with a running maximum.

    s_j = scale · q·k_j   or   Σ_d weight_d · act(q_d + k_jd),   + numbers[i − j]
    lse = log Σ_j exp(s_j),   output = Σ_j exp(s_j − lse) · kept_j · v_j
    """
    i_batch = tl.program_id(2)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    o_d = tl.arange(0, BD)
    o_c = tl.arange(0, BC)
    o_e = tl.arange(0, BE)
    m_h = o_h < HEADS
    m_hd = m_h[:, None] & (o_d < D)[None, :]
    m_hc = m_h[:, None] & (o_c < C)[None, :]
    o_q = o_h[:, None] * D + o_d[None, :]
    o_k = (o_h // GROUP)[:, None] * D + o_d[None, :]
    o_v = (o_h // GROUP)[:, None] * C + o_c[None, :]
    p_q += i_batch.to(tl.int64) * q_batch
    p_k += i_batch.to(tl.int64) * k_batch
    p_v += i_batch.to(tl.int64) * v_batch
    p_out += i_batch.to(tl.int64) * out_batch
    p_lse += i_batch.to(tl.int64) * lse_batch
    if ADDITIVE:
        b_weight = tl.load(p_weight + o_q, mask=m_hd, other=0.0).to(tl.float32) * LOG2E
    first = tl.program_id(0) * BN
    o_n = first + tl.arange(0, BN)
    m_n = o_n < count
    node, begin, end, other = nodes_at(p_nodes, p_begins, p_ends, p_columns, o_n, m_n, BE)
    own = node.to(tl.int64)[None, :, None, None]
    m_q = m_n[None, :, None, None] & m_hd[:, None, None, :]
    b_q = tl.load(p_q + own * q_token + o_q[:, None, None, :], mask=m_q, other=0.0).to(tl.float32)
    if not ADDITIVE:
        b_q *= scale * LOG2E
    top = tl.full([BH, BN, 1], LOWEST, tl.float32)
    total = tl.zeros([BH, BN, 1], tl.float32)
    acc = tl.zeros([BH, BN, 1, BC], tl.float32)
    o_edge = begin[:, None] + o_e[None, :]
    for _i_edge in range(0, longest(p_begins, p_ends, begin, end, first, count, BN, GRAIN, SEGMENTS), BE):
        here = other
        m_e = o_edge < end[:, None]
        o_edge += BE
        other = tl.load(p_columns + o_edge, mask=o_edge < end[:, None], other=0)
        at = here.to(tl.int64)[None, :, :, None]
        m_k = m_e[None, :, :, None] & m_hd[:, None, None, :]
        b_k = tl.load(p_k + at * k_token + o_k[:, None, None, :], mask=m_k, other=0.0, eviction_policy=KEEP)
        b_k = b_k.to(tl.float32)
        if SHARED:
            b_v = b_k
        else:
            m_v = m_e[None, :, :, None] & m_hc[:, None, None, :]
            b_v = tl.load(p_v + at * v_token + o_v[:, None, None, :], mask=m_v, other=0.0).to(tl.float32)
        if ADDITIVE:
            act, _rise = activate(b_k + b_q, slope, TANH)
            s = tl.sum(act * b_weight[:, None, None, :], 3)
        else:
            s = tl.sum(b_k * b_q, 3)
        place = node[:, None] + (keys - queries)
        if NUMBERS:
            s += number_of(p_numbers, number_size, number_zero, o_h, m_h, place, here) * LOG2E
        s = tl.where(m_e[None, :, :], s, float("-inf"))
        above = tl.maximum(top, tl.max(s, 2, keep_dims=True))
        p = tl.exp2(s - above)
        shrink = tl.exp2(top - above)
        total = total * shrink + tl.sum(p, 2, keep_dims=True)
        if DROPOUT:
            p = tl.where(kept_pairs(p_seed, i_batch, o_h, place, here, least), p, 0.0)
        acc = acc * shrink[:, :, :, None] + tl.sum(p[:, :, :, None] * b_v, 2, keep_dims=True)
        top = above
    alive = total > 0
    factor = kept / tl.where(alive, total, 1.0)
    lse = tl.where(alive, (top + tl.log2(tl.where(alive, total, 1.0))) * LN2, float("-inf"))
    to = (o_n if SEGMENTS else node).to(tl.int64)[None, :, None]
    p_to = p_out + to[:, :, :, None] * (HEADS * C) + (o_h[:, None] * C + o_c[None, :])[:, None, None, :]
    b_out = (acc * factor[:, :, :, None]).to(p_out.dtype.element_ty)
    tl.store(p_to, b_out, mask=m_n[None, :, None, None] & m_hc[:, None, None, :])
    tl.store(p_lse + to * HEADS + o_h[:, None, None], lse, mask=m_n[None, :, None] & m_h[:, None, None])


@triton.jit(do_not_specialize=["count", "lse_token", "lse_head", "lse_batch"])
def facts_kernel(
    p_grad, p_out, p_lse, p_facts, count, grad_token, grad_batch, out_token, out_batch, lse_token, lse_head, lse_batch,
    HEADS: tl.constexpr, C: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """What backward asks of a query beside its features, `[queries, 2, heads]`: lse in base 2, and grad · output."""
    i_batch = tl.program_id(2)
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    o_c = tl.arange(0, BC)
    m_nh = (o_n < count)[:, None] & (o_h < HEADS)[None, :]
    m = m_nh[:, :, None] & (o_c < C)[None, None, :]
    o_f = (o_h[:, None] * C + o_c[None, :])[None, :, :]
    p_grad += i_batch.to(tl.int64) * grad_batch
    p_out += i_batch.to(tl.int64) * out_batch
    b_grad = tl.load(p_grad + o_n[:, None, None] * grad_token + o_f, mask=m, other=0.0).to(tl.float32)
    b_out = tl.load(p_out + o_n[:, None, None] * out_token + o_f, mask=m, other=0.0).to(tl.float32)
    p_lse += i_batch.to(tl.int64) * lse_batch
    lse = tl.load(p_lse + o_n[:, None] * lse_token + o_h[None, :] * lse_head, mask=m_nh, other=0.0) * LOG2E
    # A dead row's −∞ becomes +∞, so that exp2(s − lse) is 0 and not NaN.
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    p_to = p_facts + (i_batch.to(tl.int64) * count + o_n)[:, None] * (2 * HEADS) + o_h[None, :]
    tl.store(p_to, lse, mask=m_nh)
    tl.store(p_to + HEADS, tl.sum(b_grad * b_out, 2), mask=m_nh)


@triton.jit(do_not_specialize=["count", "queries", "keys", "edges", "number_size", "number_zero", "least"])
def by_key_kernel(
    p_q, p_k, p_v, p_weight, p_numbers, p_seed, p_grad, p_facts, p_nodes, p_begins, p_ends, p_rows, p_slots,
    p_dk, p_dv, p_ds, p_signs, p_dweight,
    count, queries, keys, edges, q_token, q_batch, k_token, k_batch, v_token, v_batch, grad_token, grad_batch,
    dk_batch, dv_batch,
    scale, slope, number_size, number_zero, least, kept,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, C: tl.constexpr,
    BH: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, GRAIN: tl.constexpr,
    ADDITIVE: tl.constexpr, TANH: tl.constexpr, READY: tl.constexpr, SIGNS: tl.constexpr,
    NUMBERS: tl.constexpr, DROPOUT: tl.constexpr, SEGMENTS: tl.constexpr, TIED: tl.constexpr,
):  # fmt: skip
    """Each key's gradients, one sweep over its edges, and the gradient of every edge's score.

    p_i = exp(s_i − lse_i),   dv = Σ_i p_i · kept_i · grad_i,   ds_i = p_i · (kept_i · grad_i·v − grad_i·output_i)
    dk = scale · Σ_i ds_i · q_i   or   weight · Σ_i ds_i · act′(q_i + k),   dweight = Σ_i ds_i · act(q_i + k)

    `ds` goes to the edge's place by query; with READY (head_dim 1) it is ds · act′, which dq sums as it is. With SIGNS
    (leaky ReLU of a narrow head) so do the signs of q_i + k, one bit each, so that dq need not gather k. With TIED, k
    and v are one tensor, and dk + dv goes to dk.
    """
    i_batch = tl.program_id(2)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    o_d = tl.arange(0, BD)
    o_c = tl.arange(0, BC)
    o_e = tl.arange(0, BE)
    m_h = o_h < HEADS
    m_hd = m_h[:, None] & (o_d < D)[None, :]
    m_hc = m_h[:, None] & (o_c < C)[None, :]
    o_q = o_h[:, None] * D + o_d[None, :]
    o_o = o_h[:, None] * C + o_c[None, :]
    o_k = (o_h // GROUP)[:, None] * D + o_d[None, :]
    o_v = (o_h // GROUP)[:, None] * C + o_c[None, :]
    p_q += i_batch.to(tl.int64) * q_batch
    p_k += i_batch.to(tl.int64) * k_batch
    p_v += i_batch.to(tl.int64) * v_batch
    p_grad += i_batch.to(tl.int64) * grad_batch
    p_facts += i_batch.to(tl.int64) * queries * (2 * HEADS)
    p_ds += i_batch.to(tl.int64) * edges * HEADS
    p_signs += i_batch.to(tl.int64) * edges * HEADS
    p_dk += i_batch.to(tl.int64) * dk_batch
    p_dv += i_batch.to(tl.int64) * dv_batch
    if ADDITIVE:
        b_weight = tl.load(p_weight + o_q, mask=m_hd, other=0.0).to(tl.float32)
    # Of one number a head, threads hold one edge each, and what is summed over edges is summed at the end.
    dweight = tl.zeros([BH, BN, BE], tl.float32) if BD == 1 else tl.zeros([BH, BN, 1, BD], tl.float32)
    first = tl.program_id(0) * BN
    o_n = first + tl.arange(0, BN)
    m_n = o_n < count
    node, begin, end, other = nodes_at(p_nodes, p_begins, p_ends, p_rows, o_n, m_n, BE)
    m_nd = m_n[None, :, None, None] & m_hd[:, None, None, :]
    m_nc = m_n[None, :, None, None] & m_hc[:, None, None, :]
    own = node.to(tl.int64)[None, :, None, None]
    b_k = tl.load(p_k + own * k_token + o_k[:, None, None, :], mask=m_nd, other=0.0).to(tl.float32)
    b_v = tl.load(p_v + own * v_token + o_v[:, None, None, :], mask=m_nc, other=0.0).to(tl.float32)
    dk = tl.zeros([BH, BN, BE], tl.float32) if BD == 1 else tl.zeros([BH, BN, 1, BD], tl.float32)
    dv = tl.zeros([BH, BN, 1, BC], tl.float32)
    o_edge = begin[:, None] + o_e[None, :]
    for _i_edge in range(0, longest(p_begins, p_ends, begin, end, first, count, BN, GRAIN, SEGMENTS), BE):
        here = other
        m_e = o_edge < end[:, None]
        slot = tl.load(p_slots + o_edge, mask=m_e, other=0)
        o_edge += BE
        other = tl.load(p_rows + o_edge, mask=o_edge < end[:, None], other=0)
        at = here.to(tl.int64)[None, :, :, None]
        m_q = m_e[None, :, :, None] & m_hd[:, None, None, :]
        m_o = m_e[None, :, :, None] & m_hc[:, None, None, :]
        m_f = m_e[None, :, :] & m_h[:, None, None]
        b_q = tl.load(p_q + at * q_token + o_q[:, None, None, :], mask=m_q, other=0.0).to(tl.float32)
        b_grad = tl.load(p_grad + at * grad_token + o_o[:, None, None, :], mask=m_o, other=0.0).to(tl.float32)
        p_at = p_facts + here.to(tl.int64)[None, :, :] * (2 * HEADS) + o_h[:, None, None]
        lse = tl.load(p_at, mask=m_f, other=0.0)
        delta = tl.load(p_at + HEADS, mask=m_f, other=0.0)
        if ADDITIVE:
            z = b_q + b_k
            act, rise = activate(z, slope, TANH)
            s = tl.sum(act * b_weight[:, None, None, :], 3) * LOG2E
        else:
            s = tl.sum(b_q * b_k, 3) * (scale * LOG2E)
        place = here + (keys - queries)
        key = tl.broadcast_to(node[:, None], (BN, BE))
        if NUMBERS:
            s += number_of(p_numbers, number_size, number_zero, o_h, m_h, place, key) * LOG2E
        p = tl.where(m_e[None, :, :], tl.exp2(s - lse), 0.0)
        dp = tl.sum(b_grad * b_v, 3)
        used = p
        if DROPOUT:
            stays = kept_pairs(p_seed, i_batch, o_h, place, key, least)
            used = tl.where(stays, p * kept, 0.0)
            dp = tl.where(stays, dp * kept, 0.0)
        ds = p * (dp - delta)
        dv += tl.sum(used[:, :, :, None] * b_grad, 2, keep_dims=True)
        if not ADDITIVE:
            rise = b_q
        if BD == 1:
            if ADDITIVE:
                dweight += ds * tl.sum(act, 3)
            pulled = ds * tl.sum(rise, 3)
            dk += pulled
            if READY:
                ds = pulled
        else:
            if ADDITIVE:
                dweight += tl.sum(ds[:, :, :, None] * act, 2, keep_dims=True)
            dk += tl.sum(ds[:, :, :, None] * rise, 2, keep_dims=True)
        o_to = slot.to(tl.int64)[None, :, :] * HEADS + o_h[:, None, None]
        tl.store(p_ds + o_to, ds, mask=m_f)
        if SIGNS:
            signs = tl.sum((z > 0).to(tl.int32) << o_d[None, None, None, :], 3)
            tl.store(p_signs + o_to, signs.to(p_signs.dtype.element_ty), mask=m_f)
    if BD == 1:
        dk = tl.sum(dk, 2, keep_dims=True)[:, :, :, None]
    if ADDITIVE:
        dk *= b_weight[:, None, None, :]
    else:
        dk *= scale
    to = (o_n if SEGMENTS else node).to(tl.int64)[None, :, None, None]
    if TIED:
        dk += dv
    else:
        tl.store(p_dv + to * (HEADS * C) + o_o[:, None, None, :], dv.to(p_dv.dtype.element_ty), mask=m_nc)
    tl.store(p_dk + to * (HEADS * D) + o_q[:, None, None, :], dk.to(p_dk.dtype.element_ty), mask=m_nd)
    if ADDITIVE:
        i_part = i_batch.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        if BD == 1:
            dweight = tl.sum(dweight, 2, keep_dims=True)[:, :, :, None]
        tl.store(p_dweight + i_part * (HEADS * D) + o_q, tl.sum(tl.sum(dweight, 2), 1), mask=m_hd)


@triton.jit(do_not_specialize=["count", "edges"])
def by_query_kernel(
    p_q, p_k, p_weight, p_ds, p_signs, p_nodes, p_begins, p_ends, p_columns, p_dq,
    count, edges, q_token, q_batch, k_token, k_batch, dq_batch, scale, slope,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    BH: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr, GRAIN: tl.constexpr,
    ADDITIVE: tl.constexpr, TANH: tl.constexpr, READY: tl.constexpr, SIGNS: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Each query's gradient, from the gradients of its edges' scores.

    dq = scale · Σ_j ds_j · k_j   or   weight · Σ_j ds_j · act′(q + k_j)   or, with READY, weight · Σ_j ds_j

    With SIGNS, act′ is read from the bits that `by_key_kernel` left; k is not gathered.
    """
    i_batch = tl.program_id(2)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    o_d = tl.arange(0, BD)
    o_e = tl.arange(0, BE)
    m_h = o_h < HEADS
    m_hd = m_h[:, None] & (o_d < D)[None, :]
    o_q = o_h[:, None] * D + o_d[None, :]
    o_k = (o_h // GROUP)[:, None] * D + o_d[None, :]
    p_q += i_batch.to(tl.int64) * q_batch
    p_k += i_batch.to(tl.int64) * k_batch
    p_ds += i_batch.to(tl.int64) * edges * HEADS
    p_signs += i_batch.to(tl.int64) * edges * HEADS
    p_dq += i_batch.to(tl.int64) * dq_batch
    if ADDITIVE:
        b_weight = tl.load(p_weight + o_q, mask=m_hd, other=0.0).to(tl.float32)
    first = tl.program_id(0) * BN
    o_n = first + tl.arange(0, BN)
    m_n = o_n < count
    node = tl.load(p_nodes + o_n, mask=m_n, other=0)
    begin = tl.load(p_begins + o_n, mask=m_n, other=0)
    end = tl.load(p_ends + o_n, mask=m_n, other=0)
    m_nd = m_n[None, :, None, None] & m_hd[:, None, None, :]
    own = node.to(tl.int64)[None, :, None, None]
    dq = tl.zeros([BH, BN, 1, BD], tl.float32)
    if ADDITIVE and not READY and not SIGNS:
        b_q = tl.load(p_q + own * q_token + o_q[:, None, None, :], mask=m_nd, other=0.0).to(tl.float32)
    o_edge = begin[:, None] + o_e[None, :]
    if not READY and not SIGNS:
        column = tl.load(p_columns + o_edge, mask=o_edge < end[:, None], other=0)
    for _i_edge in range(0, longest(p_begins, p_ends, begin, end, first, count, BN, GRAIN, SEGMENTS), BE):
        m_e = o_edge < end[:, None]
        m_at = m_e[None, :, :] & m_h[:, None, None]
        o_at = o_edge.to(tl.int64)[None, :, :] * HEADS + o_h[:, None, None]
        ds = tl.load(p_ds + o_at, mask=m_at, other=0.0)
        o_edge += BE
        if READY:
            dq += tl.sum(ds, 2, keep_dims=True)[:, :, :, None]
        elif SIGNS:
            signs = tl.load(p_signs + o_at, mask=m_at, other=0).to(tl.int32)
            above = (signs[:, :, :, None] >> o_d[None, None, None, :]) & 1
            dq += tl.sum(ds[:, :, :, None] * tl.where(above != 0, 1.0, slope), 2, keep_dims=True)
        else:
            here = column.to(tl.int64)[None, :, :, None]
            column = tl.load(p_columns + o_edge, mask=o_edge < end[:, None], other=0)
            m_k = m_e[None, :, :, None] & m_hd[:, None, None, :]
            b_k = tl.load(p_k + here * k_token + o_k[:, None, None, :], mask=m_k, other=0.0).to(tl.float32)
            if ADDITIVE:
                _act, b_k = activate(b_k + b_q, slope, TANH)
            dq += tl.sum(ds[:, :, :, None] * b_k, 2, keep_dims=True)
    if ADDITIVE:
        dq *= b_weight[:, None, None, :]
    else:
        dq *= scale
    to = (o_n if SEGMENTS else node).to(tl.int64)[None, :, None, None]
    tl.store(p_dq + to * (HEADS * D) + o_q[:, None, None, :], dq.to(p_dq.dtype.element_ty), mask=m_nd)


@triton.jit(do_not_specialize=["part_batch", "part_lse_batch", "out_batch", "lse_batch"])
def merge_kernel(
    p_part, p_part_lse, p_offsets, p_nodes, p_out, p_lse, part_batch, part_lse_batch, out_batch, lse_batch,
    HEADS: tl.constexpr, C: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, WEIGHED: tl.constexpr,
):  # fmt: skip
    """What the segments of a node found, put together.

    Σ_s part_s   or, WEIGHED,   lse = log Σ_s exp(lse_s),   Σ_s exp(lse_s − lse) · part_s
    """
    i_head = tl.program_id(1)
    i_batch = tl.program_id(2).to(tl.int64)
    begin = tl.load(p_offsets + tl.program_id(0))
    end = tl.load(p_offsets + tl.program_id(0) + 1)
    node = tl.load(p_nodes + tl.program_id(0)).to(tl.int64)
    o_s = tl.arange(0, BS)
    o_c = tl.arange(0, BC)
    p_part += i_batch * part_batch + i_head * C
    p_part_lse += i_batch * part_lse_batch + i_head
    factor = 1.0
    if WEIGHED:
        above = tl.full([BS], LOWEST, tl.float32)
        sums = tl.zeros([BS], tl.float32)
        for i_segment in range(begin, end, BS):
            o_at = (i_segment + o_s).to(tl.int64)
            lse = tl.load(p_part_lse + o_at * HEADS, mask=o_at < end, other=float("-inf")) * LOG2E
            risen = tl.maximum(above, lse)
            sums = sums * tl.exp2(above - risen) + tl.exp2(lse - risen)
            above = risen
        top = tl.max(above, 0)
        total = tl.sum(sums * tl.exp2(above - top), 0)
        alive = total > 0
        factor = tl.where(alive, 1.0 / tl.where(alive, total, 1.0), 0.0)
        whole = tl.where(alive, (top + tl.log2(tl.where(alive, total, 1.0))) * LN2, float("-inf"))
        tl.store(p_lse + i_batch * lse_batch + node * HEADS + i_head, whole)
    acc = tl.zeros([BS, BC], tl.float32)
    for i_segment in range(begin, end, BS):
        o_at = (i_segment + o_s).to(tl.int64)
        m = (o_at < end)[:, None] & (o_c < C)[None, :]
        part = tl.load(p_part + o_at[:, None] * (HEADS * C) + o_c[None, :], mask=m, other=0.0)
        if WEIGHED:
            lse = tl.load(p_part_lse + o_at * HEADS, mask=o_at < end, other=float("-inf")) * LOG2E
            part *= tl.exp2(lse - top)[:, None]
        acc += part
    p_to = p_out + i_batch * out_batch + node * (HEADS * C) + i_head * C + o_c
    tl.store(p_to, (tl.sum(acc, 0) * factor).to(p_out.dtype.element_ty), mask=o_c < C)
