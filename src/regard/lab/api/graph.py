"""The page Graph: nodes, and edges with their attention weights, self-loops included."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from ..inspect.capture import Capture, CapturedAttention
from ..lab import Lab
from ..server.jobs import Job

MAX_WHOLE = 150
"""Nodes up to which a whole graph is drawn."""
MAX_NEIGHBOURHOOD = 80
"""The most nodes of a neighbourhood that are drawn; those with the largest weights stay."""


def run(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The graph, the predictions for its nodes, and the layers to choose from."""
    capture = lab.capture(request, job)
    tokens, edges = capture.tokens["nodes"], capture.metadata["edges"]
    attentions = [attention for attention in capture.attentions if attention.queries == len(tokens)]
    differences = [attention.difference["largest"] for attention in attentions]
    return {
        "nodes": [token.text for token in tokens] if len(tokens) <= MAX_WHOLE else len(tokens),
        "count": len(tokens),
        "edges": edges.shape[1],
        "labels": capture.metadata["labels"],
        "notices": capture.notices,
        "prediction": None if capture.prediction["type"] == "nodes" else capture.prediction,
        **node_classes(capture),
        "attentions": [attention.describe() for attention in attentions],
        "places": spring_layout(len(tokens), edges) if len(tokens) <= MAX_WHOLE else None,
        "backend": attentions[0].backend if attentions else None,
        "difference": max(differences, default=None),
    }


def node_classes(capture: Capture) -> dict[str, Any]:
    """Each node's class and its probability; None where the prediction is of the whole graph."""
    if capture.logits is None or len(capture.logits) != len(capture.tokens["nodes"]):
        return {"class": None, "probability": None}
    best = capture.logits.float().softmax(-1).max(-1)
    return {"class": best.indices.to(torch.int32), "probability": best.values}


def around(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """A node's neighbourhood: its weights in every head, and the edges to draw.

    `edges [2, edges]` (sources, then targets: the target attends to the source) with the `weight` of the head;
    `sources` and `weights [heads, sources]` are the node's own row, which sums to one for every head.
    """
    capture = lab.capture(request, job)
    attention, head, node = find_node(capture, request)
    edges, weights = attention.edge_weights()
    own = edges[1] == node
    sources, row = edges[0, own], weights[:, own]
    order = row[head].argsort(descending=True, stable=True)
    if attention.queries <= MAX_WHOLE:
        shown, hops = torch.arange(attention.queries), count_hops(edges, node, attention.queries, 99)
        drawn = torch.ones(edges.shape[1], dtype=torch.bool)
        places = None
    else:
        hops = count_hops(edges, node, attention.queries, int(request.get("hops", 1)))
        shown = choose_neighbourhood(edges, weights[head], hops, node)
        drawn = torch.isin(edges[0], shown) & torch.isin(edges[1], shown)
        places = ring_layout(shown, hops[shown], edges[:, drawn], node)
    received = torch.zeros(attention.keys, dtype=weights.dtype).index_add_(0, edges[0], weights[head])
    return {
        "node": node,
        "sources": sources[order].to(torch.int32),
        "weights": row[:, order],
        "sums": row.sum(-1),
        "self": row[:, sources == node].sum(-1),
        "entropy": torch.special.entr(row).sum(-1),
        "received": float(received[node]),
        "shown": shown.to(torch.int32),
        "names": [capture.tokens["nodes"][n].text for n in shown.tolist()],
        "hops": hops[shown].to(torch.int32),
        "places": places,
        "edges": edges[:, drawn].to(torch.int32),
        "weight": weights[head, drawn],
        "left_out": int((hops >= 0).sum()) - len(shown),
    }


def find_node(capture: Capture, request: dict[str, Any]) -> tuple[CapturedAttention, int, int]:
    """The attention, head and node of a request."""
    attention = capture.attention(request.get("attention", 0))
    head, node = request.get("head", 0), request.get("node", 0)
    attention.check_region(head, None, None)
    if not isinstance(node, int) or isinstance(node, bool) or not 0 <= node < attention.queries:
        raise BadInput(f"The graph has nodes 0 … {attention.queries - 1}; got node {node!r}.")
    return attention, head, node


def count_hops(edges: Tensor, node: int, count: int, most: int) -> Tensor:
    """The length of the shortest path from each node to this one, `[nodes]`; −1 beyond `most`."""
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


def choose_neighbourhood(edges: Tensor, weight: Tensor, hops: Tensor, node: int) -> Tensor:
    """The nodes to draw: the node, then its neighbours by weight, then theirs, at most `MAX_NEIGHBOURHOOD`."""
    strength = torch.zeros(len(hops), dtype=weight.dtype)
    strength.scatter_reduce_(0, edges[0], weight * (hops[edges[1]] >= 0), "amax")
    reached = (hops >= 0).nonzero().flatten()
    order = sorted(reached.tolist(), key=lambda n: (int(hops[n]), -float(strength[n]), n))
    return torch.tensor(sorted(order[:MAX_NEIGHBOURHOOD], key=lambda n: (n != node, n)))


def ring_layout(shown: Tensor, hops: Tensor, edges: Tensor, node: int) -> Tensor:
    """Coordinates `[nodes, 2]` in −1 … 1: the node in the middle, a ring a hop, each node near its parent."""
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


def spring_layout(count: int, edges: Tensor, steps: int = 300) -> Tensor:
    """Coordinates `[nodes, 2]` in −1 … 1 of a whole graph, force-directed (Fruchterman and Reingold, 1991).

    It starts from a spiral, so the layout is deterministic.
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
