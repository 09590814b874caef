"""Attention tile by tile, on any device, in memory linear in the sequence, forward and backward.

Forward, over the spans of keys that a chunk of queries visits, with a running maximum m and sum l:

    p = exp(s − m),   l = Σ p,   output = Σ p·v / l,   lse = m + log l

Backward recomputes p = exp(s − lse), and with δ = Σ output · d_output:

    dv = pᵀ d_output,   ds = p · (d_output vᵀ − δ),   and ds goes on to q, k and the parts' own tensors
"""

from __future__ import annotations

import torch
from torch import Tensor

from .call import Call, Problem, lower
from .operator import operator
from .schedule import chunks
from .tile import Gradients, Walker, shape_for


def reason(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    return None


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with torch.autocast(call.q.device.type, enabled=False):
        return solve(lower(call))[0]


def forward(p: Problem) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, chunk of queries by chunk of queries."""
    walker = Walker(p)
    output = p.v.new_zeros(*p.q.shape[:3], p.v.shape[3])
    lse = p.v.new_full(p.q.shape[:3], -torch.inf, dtype=walker.exact)
    shape, together = shape_for(p)
    for chunk in chunks(p.mask, walker.grid, shape, together):
        if not chunk.spans:
            continue
        tile = walker.tile(chunk)
        top = total = mixed = None
        for span in chunk.spans:
            s = tile.scores(span)
            high = s.amax(-1, keepdim=True)
            high = high if top is None else torch.maximum(top, high)
            safe = high.masked_fill(high == -torch.inf, 0.0)
            weights = s.sub_(safe).exp_()
            sums = weights.sum(-1, keepdim=True)
            kept = tile.kept(span)
            weights = weights if kept is None else weights.mul_(kept)
            part = torch.bmm(walker.grouped(weights), walker.keys(walker.v, chunk, span))
            part = part.view(*sums.shape[:3], -1)
            if top is not None:
                fade = (top - safe).exp_()
                sums, part = sums + total * fade, part + mixed * fade
            top, total, mixed = high, sums, part
        alive = total > 0
        found = mixed / torch.where(alive, total, 1.0)
        output[chunk.batch, :, chunk.first : chunk.last] = found.flip(2).to(output.dtype)
        whole = torch.where(alive, top + total.log(), -torch.inf).squeeze(-1)
        lse[chunk.batch, :, chunk.first : chunk.last] = whole.flip(2)
    return output, lse


def backward(p: Problem, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight, numbers, asking, table."""
    walker = Walker(p)
    sums = Gradients(walker)
    grad = grad.to(walker.exact)
    delta = (grad * output.to(walker.exact)).sum(-1, keepdim=True)
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
    return [sums.q, sums.k, sums.v, sums.weight, flipped(sums.numbers), sums.asking, flipped(sums.vectors)]


def flipped(table: Tensor | None) -> Tensor | None:
    return None if table is None else table.flip(1)


solve = operator("blockwise", forward, backward)
"""(output, log-sum-exp) of a lowered problem."""
