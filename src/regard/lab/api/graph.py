"""The page Graph: nodes, and edges with their attention weights, self-loops included."""

from __future__ import annotations

import math
from typing import NamedTuple, TypedDict
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ...errors import BadInput
from ..inputs.model_input import is_graph
from ..inputs.notices import Notice
from ..inspect.attention_fields import AttentionFields
from ..inspect.capture import Capture
from ..inspect.captured_attention import CapturedAttention
from ..inspect.predictions import PredictionFields
from ..lab import Lab
from ..protocol import Request
from ..server.jobs import Job
from .request import check_index

MAX_WHOLE = 150
"""Nodes up to which a whole graph is drawn."""
MAX_NEIGHBOURHOOD = 80
"""The most nodes of a neighbourhood that are drawn; those with the largest weights stay."""

EDGE_WEIGHTS: WeakKeyDictionary[CapturedAttention, tuple[Tensor, Tensor]] = WeakKeyDictionary()
MAX_HOPS = 2
MIN_START, MAX_START = 8, 17
"""Edges into the node that is shown first, its self-loop included."""


GraphRun = TypedDict(
    "GraphRun",
    {
        "nodes": list[str] | int,
        "count": int,
        "edges": int,
        "labels": list[str] | None,
        "notices": list[Notice],
        "prediction": PredictionFields | None,
        "class": Tensor | None,
        "probability": Tensor | None,
        "attentions": list[AttentionFields],
        "start": int,
        "places": Tensor | None,
        "backend": str | None,
        "difference": float | None,
    },
)
"""A graph; `nodes` are their names, or their number where there are many."""


class Neighbourhood(TypedDict):
    """See `around`; `shown` are the nodes to draw, with their names, hops and coordinates."""

    node: int
    sources: Tensor
    weights: Tensor
    every: list[Tensor]
    sums: Tensor
    self: Tensor
    entropy: Tensor
    received: Tensor
    shown: Tensor
    names: list[str]
    hops: Tensor
    places: Tensor | None
    edges: Tensor
    weight: Tensor
    left_out: int


class NodeClasses(NamedTuple):
    """Each node's class and its probability, `[nodes]`; None where the prediction is of the whole graph."""

    classes: Tensor | None
    probabilities: Tensor | None


def run(lab: Lab, request: Request, job: Job) -> GraphRun:
    """The graph, the predictions for its nodes, and the layers to choose from."""
    capture = lab.capture(request, job)
    metadata = capture.metadata
    if not is_graph(metadata):
        raise BadInput("This model reads no graphs. Choose one that does.")
    tokens, edges = capture.tokens["nodes"], metadata["edges"]
    attentions = graph_attentions(capture)
    differences = [attention.difference["largest"] for attention in attentions]
    predicted = node_classes(capture)
    return {
        "nodes": [token.text for token in tokens] if len(tokens) <= MAX_WHOLE else len(tokens),
        "count": len(tokens),
        "edges": edges.shape[1],
        "labels": metadata.get("labels"),
        "notices": capture.notices,
        "prediction": None if capture.prediction["type"] == "nodes" else capture.prediction,
        "class": predicted.classes,
        "probability": predicted.probabilities,
        "attentions": [attention.describe() for attention in attentions],
        "start": first_node(attentions[0], predicted.classes) if attentions else 0,
        "places": spring_layout(len(tokens), edges) if len(tokens) <= MAX_WHOLE else None,
        "backend": attentions[0].backend if attentions else None,
        "difference": max(differences, default=None),
    }


def node_classes(capture: Capture) -> NodeClasses:
    if capture.logits is None or len(capture.logits) != len(capture.tokens["nodes"]):
        return NodeClasses(None, None)
    best = capture.logits.float().softmax(-1).max(-1)
    return NodeClasses(best.indices.to(torch.int32), best.values)


def around(lab: Lab, request: Request, job: Job) -> Neighbourhood:
    """A node's neighbourhood: its weights in every head, and the edges to draw.

    `edges [2, edges]` (sources, then targets: the target attends to the source) with their `weight [heads, edges]`;
    `sources` and `weights [heads, sources]` are the node's own row, which sums to one for every head. `every` has the
    node's own row in all attentions.
    """
    capture = lab.capture(request, job)
    attention, node = find_node(capture, request)
    edges, weights = edge_weights(attention)
    own = edges[1] == node
    sources = edges[0, own]
    order = weights[:, own].mean(0).argsort(descending=True, stable=True)
    row = weights[:, own][:, order]
    if attention.queries <= MAX_WHOLE:
        shown, hops = torch.arange(attention.queries), count_hops(edges, node, attention.queries, 99)
        drawn = torch.ones(edges.shape[1], dtype=torch.bool)
        places = None
    else:
        hops = count_hops(edges, node, attention.queries, check_index(request.get("hops", 1), MAX_HOPS + 1, "hops"))
        shown = choose_neighbourhood(edges, weights.amax(0), hops, node)
        drawn = torch.isin(edges[0], shown) & torch.isin(edges[1], shown)
        number = torch.full((attention.queries,), -1).scatter_(0, shown, torch.arange(len(shown)))
        places = spring_layout(len(shown), number[edges[:, drawn]], steps=120)
    received = torch.zeros(attention.heads, attention.keys, dtype=weights.dtype).index_add_(1, edges[0], weights)
    return {
        "node": node,
        "sources": sources[order].to(torch.int32),
        "weights": row,
        "every": [edge_weights(layer)[1][:, own][:, order] for layer in graph_attentions(capture)],
        "sums": row.sum(-1),
        "self": row[:, sources[order] == node].sum(-1),
        "entropy": torch.special.entr(row).sum(-1),
        "received": received[:, node],
        "shown": shown.to(torch.int32),
        "names": [capture.tokens["nodes"][n].text for n in shown.tolist()],
        "hops": hops[shown].to(torch.int32),
        "places": places,
        "edges": edges[:, drawn].to(torch.int32),
        "weight": weights[:, drawn],
        "left_out": int((hops >= 0).sum()) - len(shown),
    }


def edge_weights(attention: CapturedAttention) -> tuple[Tensor, Tensor]:
    """The edges and their weights, `CapturedAttention.edge_weights`, computed once."""
    cached = EDGE_WEIGHTS.get(attention)
    if cached is None:
        cached = EDGE_WEIGHTS[attention] = attention.edge_weights()
    return cached


def graph_attentions(capture: Capture) -> list[CapturedAttention]:
    """The attentions of the graph's nodes."""
    return [attention for attention in capture.attentions if attention.queries == len(capture.tokens["nodes"])]


def first_node(attention: CapturedAttention, classes: Tensor | None) -> int:
    """The node to start with: of those with 7 to 16 neighbours of several classes, the one with the least even weights.

    `classes [nodes]` are the predicted ones; None where there are none.
    """
    edges, weights = edge_weights(attention)
    count = torch.bincount(edges[1], minlength=attention.queries)
    entropy = torch.zeros(attention.queries, dtype=weights.dtype)
    entropy.index_add_(0, edges[1], torch.special.entr(weights).mean(0))
    share = entropy / count.clamp(min=2).log()
    fitting = (count >= MIN_START) & (count <= MAX_START)
    if classes is not None:
        other = torch.zeros(attention.queries, dtype=torch.int64)
        other.index_add_(0, edges[1], (classes[edges[0]] != classes[edges[1]]).long())
        mixed = fitting & (other >= 3)
        fitting = mixed if bool(mixed.any()) else fitting
    return int(share.masked_fill(~fitting, torch.inf).argmin()) if bool(fitting.any()) else int(count.argmax())


def find_node(capture: Capture, request: Request) -> tuple[CapturedAttention, int]:
    """The attention and the node of a request."""
    attention = capture.attention(request.get("attention", 0))
    node = request.get("node", 0)
    if not isinstance(node, int) or isinstance(node, bool) or not 0 <= node < attention.queries:
        raise BadInput(f"The graph has nodes 0 … {attention.queries - 1}; got node {node!r}.")
    return attention, node


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
