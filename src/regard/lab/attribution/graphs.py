"""The readings of a graph: a node's neighbours are the units, and an edge that leads to it is what is taken away.

Work is proportional to the edges; no square of nodes is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...attention.parts.edges import Edges
from ...errors import BadInput, Unsupported
from ...nn.hooks.attentions import call_arguments, find_attentions
from ..inspect.capture import CapturedAttention, record_call
from .ablation import Removal, Tell
from .methods import RESIDUAL, keeping_outputs, one_at
from .target import MOST_UNITS, Asked, Question, Units


class GraphAsked(Asked):
    """A model of graphs, a graph `{nodes, edges}` and a question about one node, whose neighbours are the units.

    `sources [units]` are the nodes that edges lead from to the node, itself included where it looks at itself: all, or
    of more than 256 those that the last layer looks at most. Where one answer is given for the whole graph, the node
    says whose neighbours are looked at.
    """

    def __init__(self, model: Any, inputs: dict[str, Any], question: Question | None = None, raw: bool = False) -> None:
        question = question or Question()
        self.model, self.inputs, self.reads, self.side, self.written = model, inputs, "nodes", "nodes", []
        self.tokens, self.raw = inputs["nodes"].shape[0], raw
        self.place = 0 if question.place is None else question.place
        if not 0 <= self.place < self.tokens:
            raise BadInput(f"There is no node {self.place}: the graph has {self.tokens}, 0 … {self.tokens - 1}.")
        with torch.no_grad():
            output = model(**inputs)
        self.whole = len(output.logits) != self.tokens
        self.kind = "number" if raw or output.logits.shape[-1] == 1 else "graph" if self.whole else "node"
        self.before = self.told(output, None)[0]
        self.label = self.label_asked(question.label)
        self.layers = layers_of(self)
        self.graph: Edges = self.layers[-1].parts["mask"]
        self.sources = self.neighbours()
        self.units = Units(torch.arange(len(self.sources)))

    def neighbours(self) -> Tensor:
        """The nodes that edges lead from to the one asked about, `[units]`, in order."""
        edges, weights = self.layers[-1].edge_weights()
        mine = edges[1] == self.place
        sources, mean = edges[0, mine], weights[:, mine].mean(0)
        if len(sources) > MOST_UNITS:
            sources = sources[mean.topk(MOST_UNITS).indices]
        if not len(sources):
            raise BadInput(f"No edge leads to node {self.place}, so it has no neighbours. Choose another node.")
        return sources.sort().values

    def places(self, batch: int) -> Tensor | None:
        return None

    def told(self, output: Any, places: Tensor | None) -> Tensor:
        """ln p of every class of the node or the graph, `[1, classes]`; its numbers where these are the answer."""
        logits = output.logits[:1] if self.whole else output.logits[self.place : self.place + 1]
        return logits.float() if self.kind == "number" else logits.float().log_softmax(-1)


def layers_of(asked: GraphAsked) -> list[CapturedAttention]:
    """The attentions of a pass that look along edges; `BadInput` where there are none."""
    found: list[CapturedAttention] = []

    def keeper(name: str) -> Any:
        def keep(attend: Any, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
            found.append(record_call(asked.model, name, attend, call_arguments(*args, **kwargs), output, "nodes"))

        return keep

    handles = [
        one.register_forward_hook(keeper(name), with_kwargs=True) for name, one in find_attentions(asked.model).items()
    ]
    try:
        with torch.no_grad():
            asked.model(**asked.inputs)
    finally:
        for handle in handles:
            handle.remove()
    along = [one for one in found if isinstance(one.parts.get("mask"), Edges)]
    if not along:
        raise Unsupported("This model has no attention along edges, so there are no neighbours to attribute to.")
    return along


@dataclass(frozen=True)
class GraphLook:
    """What one pass over a graph, forward and backward, has shown; each reading is `[units]`."""

    asked: GraphAsked
    gradients: dict[str, Tensor | None]

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.asked.layers]

    def heads(self, name: str) -> int:
        return self.layer(name).heads

    def usual(self) -> int:
        return len(self.names) - 1

    @property
    def read(self) -> Tensor:
        """Where the node itself is among the units."""
        return (self.asked.sources == self.asked.place).float()

    def layer(self, name: str) -> CapturedAttention:
        return self.asked.layers[self.names.index(name)]

    def edges_in(self, name: str) -> tuple[Tensor, Tensor]:
        """The weights of the edges from the units to the node, `[heads, units]`, and the units' nodes."""
        edges, weights = self.layer(name).edge_weights()
        mine = (edges[1] == self.asked.place).nonzero().flatten()  # sorted by source, as the units are
        kept = mine[torch.isin(edges[0, mine], self.asked.sources)]
        return weights[:, kept], edges[0, kept]

    def raw(self, name: str, head: int | None) -> Tensor:
        """The node's weights on its neighbours; the mean over heads unless one is given."""
        return of_heads(self.edges_in(name)[0], head)

    def value(self, name: str, head: int | None) -> Tensor:
        """‖weight · value‖: graph attention has no projection after its heads, other layers have one."""
        layer = self.layer(name)
        weights, sources = self.edges_in(name)
        lengths = layer.v.float().norm(dim=-1) if layer.value_lengths is None else layer.value_lengths
        lengths = lengths.repeat_interleave(layer.heads // len(lengths), 0)
        return of_heads(weights * lengths[:, sources].to(weights.dtype), head)

    def rollout(self, name: str) -> Tensor:
        """What flows from each neighbour into the node through the layers up to this one.

        A neighbour's share also comes by longer ways; what is missing from a sum of one comes from other nodes.
        """
        row = one_at(self.asked.place, self.asked.tokens)
        for layer in reversed(self.asked.layers[: self.names.index(name) + 1]):
            edges, weights = layer.edge_weights()
            mean = weights.mean(0).float()
            kept = RESIDUAL * row
            row = kept.index_add(0, edges[0], (1 - RESIDUAL) * row[edges[1]] * mean)
        return row[self.asked.sources]

    def gradient(self, name: str, head: int | None) -> Tensor:
        """weight · ∂score/∂weight of each edge to the node; summed over heads unless one is given."""
        layer, gradient = self.layer(name), self.gradients.get(name)
        weights, sources = self.edges_in(name)
        if gradient is None:
            return torch.zeros(len(sources))
        values = layer.v.repeat_interleave(layer.heads // layer.kv_heads, 0)[:, sources]  # [heads, units, value dim]
        slope = (values @ gradient[0, :, self.asked.place, :, None])[..., 0]
        worth = weights * slope.to(weights.dtype)
        return worth.sum(0) if head is None else worth[head]


def of_heads(cells: Tensor, head: int | None) -> Tensor:
    return cells.mean(0) if head is None else cells[head]


def look_at_graph(asked: GraphAsked) -> GraphLook:
    """One forward and backward pass. Parameters get no gradient."""
    with torch.enable_grad(), keeping_outputs(asked.model) as outputs:
        score = asked.score(asked.answers(asked.inputs, None))[0]
        found = torch.autograd.grad(score, list(outputs.values()), allow_unused=True)
    return GraphLook(asked, dict(zip(outputs, found, strict=True)))


@torch.no_grad()
def dropped(asked: GraphAsked, how: Removal = "drop", tell: Tell = lambda done, of: None) -> Tensor:
    """score − score without the edge from each neighbour to the node, in all layers, `[units]`."""
    if how != "drop":
        raise BadInput(f"The ablation is {how!r}; for a graph it must be drop.")
    order = asked.graph.sort(asked.tokens, asked.tokens)
    scores = []
    for n, source in enumerate(asked.sources.tolist()):
        tell(n, len(asked.sources))
        keep = (order.rows != asked.place) | (order.columns != source)
        edges = Edges(torch.stack([order.columns[keep], order.rows[keep]]))
        scores.append(asked.score(asked.answers(asked.inputs | {"edges": edges}, None)))
    return asked.now() - torch.cat(scores)
