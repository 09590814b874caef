"""Attention tile by tile, on any device, in memory linear in the sequence, forward and backward.

Forward, over the spans of keys that a chunk of queries visits, with a running maximum m and sum l:

    p = exp(s − m),   l = Σ p,   output = Σ p·v / l,   lse = m + log l

Backward recomputes p = exp(s − lse), and with δ = Σ output · d_output:

    dv = pᵀ d_output,   ds = p · (d_output vᵀ − δ),   and ds goes on to q, k and the parts' own tensors
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...call import Call, LoweredCall, lower, without_autocast
from ...costs import formula_is_faster
from ..backend import EDGES_ONLY
from ..custom_op import define_operator
from ..sinks import add_sink
from . import flash
from .schedule import KeySpan, QueryChunk, plan_chunks
from .tile import Gradients, QueryTile, TileInputs

name = "blockwise"


def unsupported_reason(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    return None if call.edges is None else EDGES_ONLY


def slower_reason(call: Call) -> str | None:
    """Why another backend would run the call faster; None when none would."""
    return "the formula is faster for so few pairs" if formula_is_faster(call) else None


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with without_autocast(call.q.device):
        return solve(lower(call))[0]


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, chunk of queries by chunk of queries."""
    inputs = TileInputs(p)
    output = p.v.new_zeros(*p.q.shape[:3], p.v.shape[3], dtype=inputs.exact)
    lse = p.v.new_full(p.q.shape[:3], -torch.inf, dtype=inputs.exact)
    solve_chunk = flash.forward_chunk if flash.covers(inputs) else forward_chunk
    for chunk in plan_chunks(p):
        if chunk.spans:
            rows = (chunk.batch, slice(None), slice(chunk.first, chunk.last))
            output[rows], lse[rows] = solve_chunk(inputs, chunk)
    return add_sink(output, lse, p.sink)


def forward_chunk(inputs: TileInputs, chunk: QueryChunk) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of one chunk's rows, first to last, by online softmax over the spans of keys."""
    tile = inputs.tile(chunk)
    m, total, mixed = forward_span(tile, chunk.spans[0], None)
    for span in chunk.spans[1:]:
        m_next, span_total, span_mixed = forward_span(tile, span, m)
        alpha = (m - m_next.masked_fill(m_next == -torch.inf, 0.0)).exp_()
        m, total, mixed = m_next, span_total + total * alpha, span_mixed + mixed * alpha
    alive = total > 0
    lse = torch.where(alive, m + total.log(), -torch.inf).squeeze(-1)
    return (mixed / torch.where(alive, total, 1.0)).flip(2), lse.flip(2)


def forward_span(tile: QueryTile, span: KeySpan, m: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(m, l, Σ p·v) of one span, with m the maximum of its scores and of those before."""
    inputs = tile.inputs
    s = tile.scores(span)
    top = s.amax(-1, keepdim=True)
    m = top if m is None else torch.maximum(m, top)
    weights = s.sub_(m.masked_fill(m == -torch.inf, 0.0)).exp_()
    total = weights.sum(-1, keepdim=True)
    dropout = tile.dropout_scale(span)
    weights = weights if dropout is None else weights.mul_(dropout)
    mixed = torch.bmm(inputs.group_heads(weights), inputs.keys(inputs.v, tile.chunk, span))
    return m, total, mixed.view(*total.shape[:3], -1)


def backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight, rel_bias, rel_q, rel_vectors, pair_bias, key_vectors."""
    inputs = TileInputs(p)
    sums = Gradients(inputs)
    grad = grad.to(inputs.exact)
    finite_lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    if flash.covers(inputs):
        for chunk in plan_chunks(p):
            flash.backward_chunk(inputs, sums, chunk, grad, output, finite_lse)
        return sums.result()
    delta, finite_lse = (grad * output).sum(-1, keepdim=True), finite_lse[..., None]
    for chunk in plan_chunks(p):
        tile = inputs.tile(chunk)
        d_output, chunk_lse, chunk_delta = (inputs.rows(x, chunk) for x in (grad, finite_lse, delta))
        grouped = inputs.group_heads(d_output)
        for span in chunk.spans:
            scores, slope = tile.scores_and_slope(span)
            weights = scores.sub_(chunk_lse).exp_()
            dropout = tile.dropout_scale(span)
            dropped = weights if dropout is None else weights * dropout
            inputs.keys(sums.v, chunk, span).baddbmm_(inputs.group_heads(dropped).mT, grouped)
            d = torch.bmm(grouped, inputs.keys(inputs.v, chunk, span).mT).view_as(weights)
            d = d if dropout is None else d.mul_(dropout)
            sums.add(tile, span, d.sub_(chunk_delta).mul_(weights), slope)
    return sums.result()


solve = define_operator("blockwise", forward, backward)
"""(output, log-sum-exp) of a lowered call."""
