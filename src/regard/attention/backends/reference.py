"""The formula, top to bottom: the oracle that every other backend is compared with.

    score(i, j)  = similarity(q_i, k_j) + position(i, j, q_i) + bias(i, j)   if mask allows (i, j), else −∞
    weight(i, ·) = softmax over j (and the sink, whose weight goes nowhere)
    output(i)    = Σ_j weight(i, j) · v_j

It holds every pair in memory, in float32 at least, and leaves the gradients to autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..call import Call, without_autocast
from ..dropout import keep_mask, keep_scale, row_keys
from ..parts.edges import EdgeFeatures
from ..parts.masks import Everything
from ..parts.scores import Dot
from ..parts.sink import Sink

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
        plain = call.position is call.bias is call.sink is None and isinstance(call.mask, Everything)  # rows have keys
        weights = drop(scores(call).softmax(-1) if plain else softmax(scores(call), call.sink), call)
        v = per_query_head(call.v, call).to(call.exact)
        mixed = weights @ v if call.edges is None else mix_along_edges(weights, v, call.edges, call)
        return mixed.to(call.v.dtype)


def scores(call: Call) -> Tensor:
    """Every pair's score, −∞ where the mask forbids it, `[batch, heads, queries, keys]`."""
    q, k = call.q.to(call.exact), per_query_head(call.k, call).to(call.exact)
    if call.position is call.bias is None and isinstance(call.mask, Everything):
        return call.score.apply_cap(call.score.similarity(q, k))
    i, j = call.grid.indices()
    if call.position is None:
        score = call.score.apply_cap(similarity(q, k, call))
    else:
        whole = call.position.score_scale
        scale = whole * call.score.factor(q.shape[-1]) if isinstance(call.score, Dot) else 1.0
        places = None if call.places is None else call.places.pair(call.grid.queries)
        distances = call.distances()
        bias = call.position.score_bias(q, k, scale, distances)
        bias = bias + scale * call.position.vector_scores(q, k, distances, call.q.dtype)
        q, k = call.position.transform(q, k) if places is None else call.position.transform_at(q, k, places)
        if call.position.keeps_dtype:
            q, k = q.to(call.q.dtype).to(call.exact), k.to(call.q.dtype).to(call.exact)
        score = similarity(q, k, call)
        score = score if whole == 1.0 else score * whole
        # The cap bounds the whole dot product, of which some positions are part.
        dot = call.position.dot_only
        score = call.score.apply_cap(score + bias) if dot else call.score.apply_cap(score) + bias
    if call.bias is not None:
        score = score + call.bias.four_dims().to(call.exact)
    if call.edges is not None and call.edges.bias is not None:
        score = score + call.edges.dense("bias", call.mask, call.grid, call.exact)[..., 0]
    return score.masked_fill(~call.mask.permits(i, j, call.grid), -torch.inf)


def similarity(q: Tensor, k: Tensor, call: Call) -> Tensor:
    """Every pair's similarity; with features of edges, pairs without an edge have keys of zeros."""
    if call.edges is None:
        return call.score.similarity(q, k)
    batch, _, queries, _ = q.shape
    keys = for_every_pair(k, "keys", call.edges, call)  # [batch, heads, queries, keys, d]
    q, keys = (x.transpose(1, 2).flatten(0, 1) for x in (q, keys))  # each query is a batch with keys of its own
    by_row = call.score.similarity(q[:, :, None], keys)  # [batch · queries, heads, 1, keys]
    return by_row.squeeze(2).unflatten(0, (batch, queries)).transpose(1, 2)


def mix_along_edges(weights: Tensor, v: Tensor, edges: EdgeFeatures, call: Call) -> Tensor:
    """Σ_j weight(i, j) · (v_j + values_ij)."""
    return torch.einsum("bhij,bhijd->bhid", weights, for_every_pair(v, "values", edges, call))


def for_every_pair(x: Tensor, name: str, edges: EdgeFeatures, call: Call) -> Tensor:
    """Keys or values x with what the edges add to them, `[batch, heads, queries, keys, d]`; zero without an edge."""
    pairs = x[:, :, None].expand(-1, -1, call.grid.queries, -1, -1)
    if getattr(edges, name) is not None:
        pairs = pairs + edges.dense(name, call.mask, call.grid, call.exact)
    return pairs.masked_fill(~call.mask.permits(*call.grid.indices(), call.grid)[..., None], 0.0)


def softmax(scores: Tensor, sink: Sink | None = None) -> Tensor:
    """Weights over the keys; a row with no allowed key gives zeros. The sink takes its share and is left out."""
    if sink is not None:
        logits = sink.head_logits(scores)[:, None, None].expand(*scores.shape[:3], 1)
        return softmax(torch.cat([scores, logits], dim=-1))[..., :-1]
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
