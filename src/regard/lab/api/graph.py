"""The page of graphs: nodes and edges with the weights that a layer gave them, each node's look at itself included."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from ..inspect.capture import Attention, Capture
from ..server.jobs import Job

WHOLE = 150
"""Nodes up to which a graph is drawn in one picture."""
NEAR = 80
"""Nodes of a neighbourhood that are drawn at most; those with the largest weights stay."""


def run(lab: Any, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The graph, what the model says of its nodes, and the layers that can be looked at."""
    capture = lab.capture(ask, job)
    tokens, edges = capture.tokens["nodes"], capture.about["edges"]
    seen = [attention for attention in capture.attentions if attention.queries == len(tokens)]
    differences = [attention.difference()["largest"] for attention in seen]
    return {
        "nodes": [token.text for token in tokens] if len(tokens) <= WHOLE else len(tokens),
        "count": len(tokens),
        "edges": edges.shape[1],
        "labels": capture.about["labels"],
        "prediction": None if capture.prediction["kind"] == "nodes" else capture.prediction,
        **said(capture),
        "attentions": [attention.describe() for attention in seen],
        "places": laid_out(len(tokens), edges) if len(tokens) <= WHOLE else None,
        "backend": seen[0].backend if seen else None,
        "difference": max(differences, default=None),
    }


def said(capture: Capture) -> dict[str, Any]:
    """Each node's class and its probability; what is said of the whole graph is in the prediction."""
    if capture.logits is None or len(capture.logits) != len(capture.tokens["nodes"]):
        return {"class": None, "probability": None}
    best = capture.logits.float().softmax(-1).max(-1)
    return {"class": best.indices.to(torch.int32), "probability": best.values}


def around(lab: Any, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """A node's neighbourhood: whom it looks at, by every head, and the edges that can be drawn.

    `edges [2, edges]` (sources, then targets: the target looks at the source) with the `weight` of the asked head;
    `sources` and `weights [heads, sources]` are the node's own row, which sums to one for every head.
    """
    capture = lab.capture(ask, job)
    attention, head, node = chosen(capture, ask)
    edges, weights = attention.edge_weights()
    own = edges[1] == node
    sources, row = edges[0, own], weights[:, own]
    order = row[head].argsort(descending=True, stable=True)
    if attention.queries <= WHOLE:
        shown, hops = torch.arange(attention.queries), hops_from(edges, node, attention.queries, 99)
        drawn = torch.ones(edges.shape[1], dtype=torch.bool)
        places = None
    else:
        hops = hops_from(edges, node, attention.queries, int(ask.get("hops", 1)))
        shown = nearest(edges, weights[head], hops, node)
        drawn = torch.isin(edges[0], shown) & torch.isin(edges[1], shown)
        places = in_rings(shown, hops[shown], edges[:, drawn], node)
    received = torch.zeros(attention.keys, dtype=weights.dtype).index_add_(0, edges[0], weights[head])
    return {
        "node": node,
        "sources": sources[order].to(torch.int32),
        "weights": row[:, order],
        "sums": row.sum(-1),
        "self": row[:, sources == node].sum(-1),
        "entropy": entropy(row),
        "received": float(received[node]),
        "shown": shown.to(torch.int32),
        "names": [capture.tokens["nodes"][n].text for n in shown.tolist()],
        "hops": hops[shown].to(torch.int32),
        "places": places,
        "edges": edges[:, drawn].to(torch.int32),
        "weight": weights[head, drawn],
        "left_out": int((hops >= 0).sum()) - len(shown),
    }


def chosen(capture: Capture, ask: dict[str, Any]) -> tuple[Attention, int, int]:
    """The attention, head and node that are asked for; `BadInput` where they are not there."""
    attention = capture.attention(ask.get("attention", 0))
    head, node = ask.get("head", 0), ask.get("node", 0)
    attention.need_region(head, None, None)
    if not isinstance(node, int) or isinstance(node, bool) or not 0 <= node < attention.queries:
        raise BadInput(f"The graph has nodes 0 … {attention.queries - 1}; node {node!r} was asked for.")
    return attention, head, node


def entropy(row: Tensor) -> Tensor:
    """Of each head, in nats, `[heads]`."""
    return torch.special.entr(row).sum(-1)


def hops_from(edges: Tensor, node: int, count: int, most: int) -> Tensor:
    """How many edges lead from each node to this one at least, `[nodes]`; −1 beyond `most`."""
    hops = torch.full((count,), -1)
    hops[node] = 0
    for hop in range(1, most + 1):
        reached = torch.zeros(count, dtype=torch.bool)
        reached[edges[0, hops[edges[1]] == hop - 1]] = True
        new = reached & (hops < 0)
        if not bool(new.any()):
            break
        hops[new] = hop
    return hops


def nearest(edges: Tensor, weight: Tensor, hops: Tensor, node: int) -> Tensor:
    """The nodes to draw: the node, then its neighbours by weight, then theirs, at most `NEAR`."""
    strength = torch.zeros(len(hops), dtype=weight.dtype)
    strength.scatter_reduce_(0, edges[0], weight * (hops[edges[1]] >= 0), "amax")
    reached = (hops >= 0).nonzero().flatten()
    order = sorted(reached.tolist(), key=lambda n: (int(hops[n]), -float(strength[n]), n))
    return torch.tensor(sorted(order[:NEAR], key=lambda n: (n != node, n)))


def in_rings(shown: Tensor, hops: Tensor, edges: Tensor, node: int) -> Tensor:
    """Places `[nodes, 2]` in −1 … 1: the node in the middle, a ring a hop, each near the one it was reached by."""
    angle = {node: 0.0}
    most = max(1, int(hops.max()))
    places = torch.zeros(len(shown), 2)
    parents = {source: target for source, target in edges.t().tolist()}
    for hop in range(1, most + 1):
        ring = [n for n, far in zip(shown.tolist(), hops.tolist(), strict=True) if far == hop]
        ring.sort(key=lambda n: (angle.get(parents.get(n, node), 0.0), n))
        for k, n in enumerate(ring):
            angle[n] = 2 * math.pi * (k + 0.5 * (hop % 2)) / max(1, len(ring))
    for row, (n, far) in enumerate(zip(shown.tolist(), hops.tolist(), strict=True)):
        turn, radius = angle.get(n, 0.0), far / most
        places[row] = torch.tensor([radius * math.cos(turn), radius * math.sin(turn)])
    return places


def laid_out(count: int, edges: Tensor, steps: int = 300) -> Tensor:
    """Places `[nodes, 2]` in −1 … 1 for a whole graph: edges pull, nodes push, the same each time.

    (Fruchterman and Reingold, 1991.) It starts from a circle, so nothing is drawn by chance.
    """
    turn = torch.arange(count) * (2 * math.pi * 0.381966)  # the golden angle: neighbours in number start apart
    radius = ((torch.arange(count) + 0.5) / max(1, count)).sqrt()
    x = torch.stack([radius * turn.cos(), radius * turn.sin()], -1)
    tied = torch.zeros(count, count)
    apart = edges[:, edges[0] != edges[1]].long()
    tied[apart[0], apart[1]] = tied[apart[1], apart[0]] = 1.0
    ideal = 1.0 / math.sqrt(max(1, count))
    for step in range(steps):
        between = x[:, None] - x
        far = between.norm(dim=-1).clamp(min=1e-3)
        push, pull = ideal**2 / far**2, tied * far / ideal
        move = (between * (push - pull)[..., None]).sum(1) - 0.5 * ideal * x
        length = move.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        x = x + move / length * length.clamp(max=0.1 * (1 - step / steps))
    x = x - (x.amax(0) + x.amin(0)) / 2
    return x / x.abs().amax(0).clamp(min=1e-6)


CALLS = {"run": run, "around": around}
