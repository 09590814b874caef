"""Attention along the edges of a graph, fused: nothing of an edge but one number a head is ever stored.

A program owns a few nodes and walks their edges in chunks. A tile is `[heads, nodes, edges, dim]`, an order in which
Triton spreads a neighbour's features over the threads of a warp and keeps every sum over edges inside a thread.

Forward walks by query. Backward walks by key first: one gather of q and of the output's gradient gives dk, dv and the
gradient of every edge's score; then by query, where those are summed into dq. Nodes with very many edges are cut into
segments whose results are merged.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..call import Problem
from ..dropout import kept_scale, threshold
from ..graph import Edges, Order
from .score import mix

FEATURES = 256  # features of a node that one program holds: heads beyond them go to other programs
LANES = 32  # threads of a program: one warp, so that no sum crosses a barrier
EDGES_FORWARD = {4: 4, 2: 4}  # edges in a chunk at 128 features a program, by bytes of a feature
EDGES_BY_KEY = {4: 4, 2: 2}
EDGES_BY_QUERY = {4: 8, 2: 4}
EDGES_SUMMED = {4: 16}  # where dq needs no neighbour's features
STAGES = 1  # a neighbour's number is loaded a step ahead by hand
GRAIN = 8  # nodes stand by falling numbers of edges in steps of this; inside a step they keep their order
SEGMENT = 1024  # edges of a node that one program walks; nodes with more are cut
KEEP = ""  # what the cache does with keys of one number a head, which may fit into it: "" or "evict_last"
LARGEST_DIM = 256
SIGNS_UP_TO = 32  # head_dim up to which leaky ReLU's slopes are kept as bits, at most 32
LARGEST_INDEX = (1 << 31) - (1 << 16)  # kernels look a little beyond the last edge
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-3.0e38)


class Walk(NamedTuple):
    """Nodes and where their edges begin and end, each `[nodes or segments]`, int32."""

    nodes: Tensor
    begins: Tensor
    ends: Tensor


class Side(NamedTuple):
    """One end of the edges: whole nodes, those with most edges first, and the segments of nodes with too many."""

    whole: Walk
    segments: Walk | None
    cut: Tensor | None  # [cut nodes]
    offsets: Tensor | None  # [cut nodes + 1]: where each one's segments begin


class Layout(NamedTuple):
    """A graph as the kernels read it; indices are int32."""

    by_query: Side
    by_key: Side
    columns: Tensor  # [edges]: the key of each edge, by query
    rows: Tensor  # [edges]: the query of each edge, by key
    slots: Tensor  # [edges]: the edge's number by query, for each by key


_layouts = WeakTensorKeyDictionary()  # by the tensor of columns: masks that a compiled graph decodes share it


def covers(p: Problem) -> str | None:
    """Why these kernels cannot run the problem; None when they can."""
    if not isinstance(p.mask, Edges):
        return "the mask is not a graph: Edges(edge_index) alone"
    if p.vectors is not None:
        return "vectors by distance along edges have no kernel"
    if any(x.dtype == torch.float64 for x in (p.q, p.k, p.v)):
        return "float64 has no kernel"
    if max(p.q.shape[3], p.v.shape[3]) > LARGEST_DIM:
        return f"head_dim is above {LARGEST_DIM}"
    if not p.q.numel() * p.v.numel():
        return "there is nothing to compute"
    if p.q.shape[0] > 65535:
        return "there are more than 65535 batches"
    if max(p.grid.queries, p.grid.keys, p.mask.order(p.grid.queries, p.grid.keys).rows.numel()) > LARGEST_INDEX:
        return "there are more nodes or edges than 32 bits can number"
    return None


def layout(order: Order) -> Layout:
    """The graph as the kernels read it, made once and remembered as long as the sorted edges live."""
    known = _layouts.get(order.columns)
    if known is None:
        known = Layout(
            side(order.starts),
            side(order.key_starts),
            order.columns.int(),
            order.rows[order.by_key].int(),
            order.by_key.int(),
        )
        _layouts[order.columns] = known
    return known


def side(starts: Tensor) -> Side:
    """The nodes whose runs of edges begin at `starts [nodes + 1]`: the most edges first."""
    counts = starts.diff()
    short = counts <= SEGMENT
    steps = torch.where(short, (counts + GRAIN - 1) // GRAIN, -1)
    nodes = steps.argsort(descending=True, stable=True)[: int(short.sum())]
    whole = Walk(nodes.int(), starts[nodes].int(), starts[nodes + 1].int())
    cut = (~short).nonzero().flatten()
    if not cut.numel():
        return Side(whole, None, None, None)
    pieces = (counts[cut] + SEGMENT - 1) // SEGMENT
    offsets = torch.nn.functional.pad(pieces.cumsum(0), (1, 0))
    which = torch.repeat_interleave(torch.arange(cut.numel(), device=cut.device), pieces)
    owner = cut[which]
    begins = starts[owner] + SEGMENT * (torch.arange(which.numel(), device=cut.device) - offsets[which])
    ends = torch.minimum(begins + SEGMENT, starts[owner + 1])
    return Side(whole, Walk(owner.int(), begins.int(), ends.int()), cut.int(), offsets.int())


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
    NUMBERS: tl.constexpr, DROPOUT: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Each key's gradients, one sweep over its edges, and the gradient of every edge's score.

    p_i = exp(s_i − lse_i),   dv = Σ_i p_i · kept_i · grad_i,   ds_i = p_i · (kept_i · grad_i·v − grad_i·output_i)
    dk = scale · Σ_i ds_i · q_i   or   weight · Σ_i ds_i · act′(q_i + k),   dweight = Σ_i ds_i · act(q_i + k)

    `ds` goes to the edge's place by query; with READY (head_dim 1) it is ds · act′, which dq sums as it is. With SIGNS
    (leaky ReLU of a narrow head) so do the signs of q_i + k, one bit each, so that dq need not gather k.
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
    tl.store(p_dk + to * (HEADS * D) + o_q[:, None, None, :], dk.to(p_dk.dtype.element_ty), mask=m_nd)
    tl.store(p_dv + to * (HEADS * C) + o_o[:, None, None, :], dv.to(p_dv.dtype.element_ty), mask=m_nc)
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


class Shape(NamedTuple):
    """The sizes of a kernel's tiles, and its grid but for the nodes."""

    heads: int  # BH
    head_dim: int  # BD
    value_dim: int  # BC
    edges: int  # BE
    nodes: int  # BN


def power(x: int) -> int:
    """The least power of two that is not below x."""
    return 1 << (x - 1).bit_length()


def shape(heads: int, head_dim: int, value_dim: int, size: int, edges: dict[int, int]) -> Shape:
    """Tiles that give every thread of a warp 16 bytes of a neighbour's features; `size` is a feature's bytes."""
    wide = max(power(head_dim), power(value_dim))
    together = min(power(heads), max(FEATURES // wide, 1))
    nodes = min(max(LANES * 16 // size // (together * wide), 1), LANES)
    chunk = max(edges[size] * 128 * 4 // size // (nodes * together * wide), 1)
    return Shape(together, power(head_dim), power(value_dim), min(chunk, 16), nodes)


def packed(x: Tensor) -> Tensor:
    """x `[batch, heads, tokens, d]` with a node's features side by side in memory: itself if they are, or a copy."""
    heads, dim = x.shape[1], x.shape[3]
    ready = (dim == 1 or x.stride(3) == 1) and (heads == 1 or x.stride(1) == dim)
    return x if ready else x.transpose(1, 2).contiguous().transpose(1, 2)


def strides(x: Tensor) -> tuple[int, int]:
    """(token, batch) strides; a single batch's is 0, so that kernels are not made anew for it."""
    return x.stride(2), x.stride(0) if x.shape[0] > 1 else 0


def per_node(p: Problem, count: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Room for `[batch, count, heads, dim]`."""
    return p.v.new_empty((p.q.shape[0], count, p.q.shape[1], dim), dtype=dtype)


def shares(k: Tensor, v: Tensor) -> bool:
    """Whether keys and values are one tensor, so that a neighbour is read once."""
    same = k.data_ptr() == v.data_ptr() and k.dtype == v.dtype
    return same and k.shape == v.shape and k.stride() == v.stride()


class Run:
    """A problem made ready for the kernels: packed tensors, and the arguments that they have in common."""

    def __init__(self, p: Problem):
        self.p = p
        self.batch, self.heads, self.queries, self.head_dim = p.q.shape
        self.keys, self.value_dim = p.v.shape[2:]
        self.layout = layout(p.mask.order(self.queries, self.keys))  # type: ignore[attr-defined]
        self.shared = shares(p.k, p.v)
        self.q, self.k = packed(p.q), packed(p.k)
        self.v = self.k if self.shared else packed(p.v)
        self.weight = self.q if p.weight is None else p.weight.contiguous()
        self.numbers = self.q if p.numbers is None else p.numbers.table.contiguous()
        self.seed = self.layout.columns if p.seed is None else p.seed
        self.ready = p.weight is not None and self.head_dim == 1 and p.numbers is None
        self.signs = p.weight is not None and p.activation != "tanh" and 1 < self.head_dim <= SIGNS_UP_TO

    def shape(self, edges: dict[int, int]) -> Shape:
        size = max(x.element_size() for x in (self.q, self.v))
        return shape(self.heads, self.head_dim, self.value_dim, size, edges)

    def grid(self, count: int, s: Shape) -> tuple[int, int, int]:
        return triton.cdiv(count, s.nodes), triton.cdiv(self.heads, s.heads), self.batch

    def numbers_and_dropout(self) -> tuple:
        p = self.p
        size, zero = (1, 0) if p.numbers is None else (p.numbers.table.shape[1], p.numbers.zero)
        return size, zero, threshold(p.dropout), kept_scale(p.dropout) if p.seed is not None else 1.0

    def constants(self, s: Shape) -> dict:
        return {
            "HEADS": self.heads, "GROUP": self.heads // self.k.shape[1], "D": self.head_dim,
            "BH": s.heads, "BD": s.head_dim, "BE": s.edges, "BN": s.nodes, "GRAIN": GRAIN,
            "ADDITIVE": self.p.weight is not None, "TANH": self.p.activation == "tanh",
            "num_warps": LANES // 32, "num_stages": STAGES,
        }  # fmt: skip

    def value_constants(self, s: Shape) -> dict:
        parts = {"NUMBERS": self.p.numbers is not None, "DROPOUT": self.p.seed is not None}
        return {"C": self.value_dim, "BC": s.value_dim, **parts}


def forward(p: Problem) -> tuple[Tensor, Tensor]:
    """Output `[batch, heads, queries, value dim]` and log-sum-exp, float32; a node's heads lie side by side."""
    run = Run(p)
    out = per_node(p, run.queries, run.value_dim, torch.float32)
    lse = per_node(p, run.queries, 1, torch.float32)[..., 0]
    by_query = run.layout.by_query
    launch_forward(run, by_query.whole, out, lse, False)
    if by_query.segments is not None:
        merge_forward(run, by_query, out, lse)
    return out.transpose(1, 2), lse.transpose(1, 2)


def launch_forward(run: Run, walk: Walk, out: Tensor, lse: Tensor, segments: bool) -> None:
    s, count = run.shape(EDGES_FORWARD), walk.nodes.numel()
    if not count:
        return
    forward_kernel[run.grid(count, s)](
        run.q, run.k, run.v, run.weight, run.numbers, run.seed, *walk, run.layout.columns, out, lse,
        count, run.queries, run.keys, *strides(run.q), *strides(run.k), *strides(run.v),
        outer(out), outer(lse), run.p.scale, run.p.slope, *run.numbers_and_dropout(),
        SHARED=run.shared, SEGMENTS=segments, KEEP=KEEP if run.head_dim == 1 else "",
        **run.constants(s), **run.value_constants(s),
    )  # fmt: skip


def outer(x: Tensor) -> int:
    """The stride of batch; 0 when there is one."""
    return x.stride(0) if x.shape[0] > 1 else 0


def merge_forward(run: Run, nodes: Side, out: Tensor, lse: Tensor) -> None:
    """Walk the segments of nodes with very many edges, and put what they found together."""
    count = nodes.segments.nodes.numel()  # type: ignore[union-attr]
    part = per_node(run.p, count, run.value_dim, torch.float32)
    part_lse = per_node(run.p, count, 1, torch.float32)[..., 0]
    launch_forward(run, nodes.segments, part, part_lse, True)  # type: ignore[arg-type]
    merge(nodes, part, out, part_lse, lse)


def merge(nodes: Side, part: Tensor, out: Tensor, part_lse: Tensor | None = None, lse: Tensor | None = None) -> None:
    """Put parts `[batch, segments, heads, d]` together, weighed where they have a log-sum-exp, in `out`'s cut nodes."""
    batch, _, heads, dim = part.shape
    weighed = (part, out) if part_lse is None or lse is None else (part_lse, lse)
    merge_kernel[nodes.cut.numel(), heads, batch](  # type: ignore[union-attr]
        part, weighed[0], nodes.offsets, nodes.cut, out, weighed[1],
        part.stride(0), weighed[0].stride(0), out.stride(0), weighed[1].stride(0),
        HEADS=heads, C=dim, BC=power(dim), BS=32, WEIGHED=part_lse is not None, num_warps=4,
    )  # fmt: skip


def backward(p: Problem, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight, numbers, asking, table; None for what is not there."""
    run = Run(p)
    grad = packed(grad.to(p.v.dtype))  # it came from a result of that type: nothing is lost
    facts = node_facts(run, grad, packed(output), lse)
    ds = p.v.new_empty((run.batch, run.layout.columns.numel(), run.heads), dtype=torch.float32)
    bits = torch.int16 if run.head_dim <= 16 else torch.int32
    signs = ds.new_empty(ds.shape if run.signs else 1, dtype=bits)
    dk, dv, dweight = key_gradients(run, (grad, facts, ds, signs))
    dq = query_gradients(run, ds, signs)
    dnumbers = number_gradients(run, ds) if p.numbers is not None and p.wanted[4] else None
    return [dq.transpose(1, 2), per_kv_head(run, dk), per_kv_head(run, dv), dweight, dnumbers, None, None]


def node_facts(run: Run, grad: Tensor, output: Tensor, lse: Tensor) -> Tensor:
    """What backward asks of each query, `[batch, queries, 2, heads]`."""
    facts = lse.new_empty((run.batch, run.queries, 2, run.heads))
    heads, width = power(run.heads), power(run.value_dim)
    heads = min(heads, max(FEATURES // width, 1))
    nodes = max(4096 // (heads * width), 1)
    facts_kernel[triton.cdiv(run.queries, nodes), triton.cdiv(run.heads, heads), run.batch](
        grad, output, lse, facts, run.queries, *strides(grad), *strides(output),
        lse.stride(2), lse.stride(1), lse.stride(0),
        HEADS=run.heads, C=run.value_dim, BH=heads, BC=width, BN=nodes, num_warps=4,
    )  # fmt: skip
    return facts


def key_gradients(run: Run, tensors: tuple) -> tuple[Tensor, Tensor, Tensor | None]:
    """dk and dv `[batch, keys, heads, ...]`, dweight; of `tensors` (grad, facts, ds, signs) the last two are filled."""
    grouped = run.k.shape[1] != run.heads
    dk = per_node(run.p, run.keys, run.head_dim, torch.float32 if grouped else run.k.dtype)
    dv = per_node(run.p, run.keys, run.value_dim, torch.float32 if grouped else run.v.dtype)
    by_key = run.layout.by_key
    dweight = launch_by_key(run, by_key.whole, tensors, dk, dv, False)
    if by_key.segments is not None:
        count = by_key.segments.nodes.numel()
        part_k = per_node(run.p, count, run.head_dim, torch.float32)
        part_v = per_node(run.p, count, run.value_dim, torch.float32)
        more = launch_by_key(run, by_key.segments, tensors, part_k, part_v, True)
        merge(by_key, part_k, dk)
        merge(by_key, part_v, dv)
        dweight += more
    return dk, dv, None if run.p.weight is None else dweight


def launch_by_key(run: Run, walk: Walk, tensors: tuple, dk: Tensor, dv: Tensor, segments: bool) -> Tensor:
    """dweight, summed over these nodes; `tensors` are grad, facts, ds, signs."""
    grad, facts, ds, signs = tensors
    s, count = run.shape(EDGES_BY_KEY), walk.nodes.numel()
    grid = run.grid(count, s)
    additive = run.p.weight is not None
    parts = facts.new_empty((run.batch * grid[0] if additive else 1, run.heads, run.head_dim))
    if count:
        by_key_kernel[grid](
            run.q, run.k, run.v, run.weight, run.numbers, run.seed, grad, facts, *walk, run.layout.rows,
            run.layout.slots, dk, dv, ds, signs, parts,
            count, run.queries, run.keys, run.layout.columns.numel(),
            *strides(run.q), *strides(run.k), *strides(run.v), *strides(grad), outer(dk), outer(dv),
            run.p.scale, run.p.slope, *run.numbers_and_dropout(),
            READY=run.ready, SIGNS=run.signs, SEGMENTS=segments, **run.constants(s), **run.value_constants(s),
        )  # fmt: skip
    return parts.sum(0)


def query_gradients(run: Run, ds: Tensor, signs: Tensor) -> Tensor:
    """dq `[batch, queries, heads, head_dim]`."""
    dq = per_node(run.p, run.queries, run.head_dim, run.q.dtype)
    by_query = run.layout.by_query
    launch_by_query(run, by_query.whole, ds, signs, dq, False)
    if by_query.segments is not None:
        part = per_node(run.p, by_query.segments.nodes.numel(), run.head_dim, torch.float32)
        launch_by_query(run, by_query.segments, ds, signs, part, True)
        merge(by_query, part, dq)
    return dq


def launch_by_query(run: Run, walk: Walk, ds: Tensor, signs: Tensor, dq: Tensor, segments: bool) -> None:
    size, edges = (4, EDGES_SUMMED) if run.ready or run.signs else (run.k.element_size(), EDGES_BY_QUERY)
    s, count = shape(run.heads, run.head_dim, 1, size, edges), walk.nodes.numel()
    if count:
        by_query_kernel[run.grid(count, s)](
            run.q, run.k, run.weight, ds, signs, *walk, run.layout.columns, dq,
            count, run.layout.columns.numel(), *strides(run.q), *strides(run.k), outer(dq),
            run.p.scale, run.p.slope,
            READY=run.ready, SIGNS=run.signs, SEGMENTS=segments, **run.constants(s),
        )  # fmt: skip


def per_kv_head(run: Run, x: Tensor) -> Tensor:
    """A gradient `[batch, keys, heads, d]` as `[batch, kv_heads, keys, d]`, heads that share keys added up."""
    kv_heads = run.k.shape[1]
    x = x if kv_heads == run.heads else x.unflatten(2, (kv_heads, -1)).sum(3)
    return x.transpose(1, 2)


def number_gradients(run: Run, ds: Tensor) -> Tensor:
    """The gradients of the edges' scores, summed by distance: `[heads, n]`."""
    order: Order = run.p.mask.order(run.queries, run.keys)  # type: ignore[attr-defined]
    table, zero, _ = run.p.numbers  # type: ignore[misc]
    distance = order.rows + (run.keys - run.queries) - order.columns
    index = (distance + zero).clamp(0, table.shape[1] - 1)
    return ds.new_zeros(table.shape[1], run.heads).index_put_((index,), ds.sum(0), accumulate=True).mT
