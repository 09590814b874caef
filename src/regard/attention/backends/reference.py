"""The formula, top to bottom: the oracle that every other backend is compared with.

    score(i, j)  = similarity(q_i, k_j) + position(i, j, q_i)   if mask allows (i, j), else −∞
    weight(i, ·) = softmax over j
    output(i)    = Σ_j weight(i, j) · v_j

It holds every pair in memory, in float32 at least, and leaves the gradients to autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..call import Call, without_autocast
from ..dropout import keep_mask, keep_scale, row_keys
from ..parts.scores import Dot

name = "reference"


def unsupported_reason(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    return None


def slower_reason(call: Call) -> str | None:
    """Why another backend would run the call faster; None when none would."""
    return None


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with without_autocast(call.q.device):
        weights = drop(softmax(scores(call)), call)
        return (weights @ per_query_head(call.v, call).to(call.exact)).to(call.v.dtype)


def scores(call: Call) -> Tensor:
    """Every pair's score, −∞ where the mask forbids it, `[batch, heads, queries, keys]`."""
    q, k = call.q.to(call.exact), per_query_head(call.k, call).to(call.exact)
    i, j = call.grid.indices()
    if call.position is None:
        score = call.score.similarity(q, k)
    else:
        scale = call.score.factor(q.shape[-1]) if isinstance(call.score, Dot) else 1.0
        transformed = call.position.transform(q, k)
        if call.position.keeps_dtype:
            transformed = [x.to(call.q.dtype).to(call.exact) for x in transformed]
        score = call.score.similarity(*transformed) + call.position.score_bias(q, k, scale, i - j)
    return score.masked_fill(~call.mask.permits(i, j, call.grid), -torch.inf)


def softmax(scores: Tensor) -> Tensor:
    """Weights over the keys; a row with no allowed key gives zeros."""
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)


def drop(weights: Tensor, call: Call) -> Tensor:
    """The weights after dropout."""
    if call.seed is None:
        return weights
    i, j = call.grid.indices()
    batch, heads = (torch.arange(size, device=weights.device) for size in weights.shape[:2])
    return (
        weights * keep_mask(row_keys(call.seed, batch, heads, i[:, 0]), j[0], call.dropout) * keep_scale(call.dropout)
    )


def per_query_head(x: Tensor, call: Call) -> Tensor:
    """Keys or values repeated for every query head: query head h reads head h // (heads // kv_heads)."""
    group = call.q.shape[1] // max(x.shape[1], 1)
    return x if group == 1 else x.repeat_interleave(group, dim=1)
