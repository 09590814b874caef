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
from ..custom_op import operator
from .schedule import Chunk, Span, chunks
from .tile import Gradients, Tile, Walker, shape_for

name = "blockwise"


def unsupported(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    return None


def slower(call: Call) -> str | None:
    """Why another backend would run the call faster; None when none would."""
    return None


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with without_autocast(call.q.device):
        return solve(lower(call))[0]


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, chunk of queries by chunk of queries."""
    walker = Walker(p)
    output = p.v.new_zeros(*p.q.shape[:3], p.v.shape[3], dtype=walker.exact)
    lse = p.v.new_full(p.q.shape[:3], -torch.inf, dtype=walker.exact)
    shape, together = shape_for(p)
    for chunk in chunks(p.mask, walker.grid, shape, together):
        if chunk.spans:
            mixed, level = forward_chunk(walker, chunk)
            output[chunk.batch, :, chunk.first : chunk.last] = mixed.flip(2)
            lse[chunk.batch, :, chunk.first : chunk.last] = level.flip(2)
    return output, lse


def forward_chunk(walker: Walker, chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of one chunk's rows, last to first."""
    tile = walker.tile(chunk)
    top, total, mixed = meet(tile, chunk.spans[0], None)
    for span in chunk.spans[1:]:
        high, sums, part = meet(tile, span, top)
        fade = (top - high.masked_fill(high == -torch.inf, 0.0)).exp_()
        top, total, mixed = high, sums + total * fade, part + mixed * fade
    alive = total > 0
    level = torch.where(alive, top + total.log(), -torch.inf).squeeze(-1)
    return mixed / torch.where(alive, total, 1.0), level


def meet(tile: Tile, span: Span, top: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(m, l, Σ p·v) of one span, with m the maximum of its scores and of those before, `top`."""
    walker = tile.walker
    s = tile.scores(span)
    high = s.amax(-1, keepdim=True)
    high = high if top is None else torch.maximum(top, high)
    weights = s.sub_(high.masked_fill(high == -torch.inf, 0.0)).exp_()
    total = weights.sum(-1, keepdim=True)
    kept = tile.kept(span)
    weights = weights if kept is None else weights.mul_(kept)
    mixed = torch.bmm(walker.grouped(weights), walker.keys(walker.v, tile.chunk, span))
    return high, total, mixed.view(*total.shape[:3], -1)


def backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight, numbers, asking, table."""
    walker = Walker(p)
    sums = Gradients(walker)
    grad = grad.to(walker.exact)
    delta = (grad * output).sum(-1, keepdim=True)
    level = lse.masked_fill(lse == -torch.inf, torch.inf)[..., None]
    shape, together = shape_for(p)
    for chunk in chunks(p.mask, walker.grid, shape, together):
        tile = walker.tile(chunk)
        d_out, d_level, d_delta = (walker.rows(x, chunk) for x in (grad, level, delta))
        grouped = walker.grouped(d_out)
        for span in chunk.spans:
            weights = tile.scores(span).sub_(d_level).exp_()
            kept = tile.kept(span)
            dropped = weights if kept is None else weights * kept
            walker.keys(sums.v, chunk, span).baddbmm_(walker.grouped(dropped).mT, grouped)
            d = torch.bmm(grouped, walker.keys(walker.v, chunk, span).mT).view_as(weights)
            d = d if kept is None else d.mul_(kept)
            sums.add(tile, span, d.sub_(d_delta).mul_(weights))
    return sums.found()


solve = operator("blockwise", forward, backward)
"""(output, log-sum-exp) of a lowered problem."""
