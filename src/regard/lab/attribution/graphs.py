"""Attribution in graphs: the units are a node's neighbours, and ablation drops the edge from one of them.

The cost is proportional to the edges; nothing is quadratic in the nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...attention.parts.edges import Edges
from ...errors import BadInput, Unsupported
from ...models.model import Output
from ...nn.attention import Attend
from ...nn.hooks.attentions import find_attentions, read_call
from ..inspect.capture import record_call
from ..inspect.captured_attention import CapturedAttention
from .ablation import Ablation, Progress
from .methods import RESIDUAL, capture_outputs, one_hot_row, select_head
from .target import MAX_UNITS, AttributionTarget, TargetChoice, Units


class GraphTarget(AttributionTarget):
    """A model of graphs, a graph `{nodes, edges}` and a node whose prediction is explained by its neighbours.

    `sources [units]` are the nodes with an edge to the node, itself included where it has a self-loop: all, or of more
    than 256 those with the largest weights in the last layer. Where the prediction is of the whole graph, the node only
    says whose neighbours are the units.
    """

    def __init__(
        self, model: nn.Module, inputs: dict[str, Tensor], choice: TargetChoice | None = None, numeric: bool = False
    ) -> None:
        choice = choice or TargetChoice()
        self.model, self.inputs, self.input_name, self.side, self.generated = model, inputs, "nodes", "nodes", []
        self.tokens = inputs["nodes"].shape[0]
        self.position = self.node = 0 if choice.position is None else choice.position
        if not 0 <= self.node < self.tokens:
            raise BadInput(f"There is no node {self.node}; the graph has {self.tokens}, 0 … {self.tokens - 1}.")
        with torch.no_grad():
            output = model(**inputs)
        self.whole = len(output.logits) != self.tokens
        self.prediction_type = (
            "number" if numeric or output.logits.shape[-1] == 1 else "graph" if self.whole else "node"
        )
        self.prediction = self.read_output(output, None)[0]
        self.label = self.resolve_label(choice.label)
        self.layers = capture_edge_layers(self)
        self.sources = self.find_neighbours()
        self.units = Units(torch.arange(len(self.sources)))

    def find_neighbours(self) -> Tensor:
        """The nodes with an edge to the node, `[units]`, in order."""
        edges, weights = self.layers[-1].edge_weights()
        incoming = edges[1] == self.node
        sources, mean = edges[0, incoming], weights[:, incoming].mean(0)
        if len(sources) > MAX_UNITS:
            sources = sources[mean.topk(MAX_UNITS).indices]
        if not len(sources):
            raise BadInput(f"Node {self.node} has no incoming edge, so it attends to nothing. Choose another node.")
        return sources.sort().values

    def positions(self, batch: int) -> Tensor | None:
        return None

    def read_output(self, output: Output, positions: Tensor | None) -> Tensor:
        """ln p of every class of the node or the graph, `[1, classes]`; its numbers where these are predicted."""
        assert output.logits is not None
        logits = output.logits[:1] if self.whole else output.logits[self.node : self.node + 1]
        return logits.float() if self.prediction_type == "number" else logits.float().log_softmax(-1)


def capture_edge_layers(target: GraphTarget) -> list[CapturedAttention]:
    """The attentions of a pass whose mask is the graph; raises `Unsupported` where there are none."""
    layers: list[CapturedAttention] = []

    def recorder(name: str) -> Callable[..., None]:
        def hook(attend: Attend, args: tuple[Tensor, ...], kwargs: dict[str, object], output: Tensor) -> None:
            layers.append(record_call(target.model, name, attend, read_call(args, kwargs), output, "nodes"))

        return hook

    attends = find_attentions(target.model)
    handles = [attend.register_forward_hook(recorder(name), with_kwargs=True) for name, attend in attends.items()]
    try:
        with torch.no_grad():
            target.model(**target.inputs)
    finally:
        for handle in handles:
            handle.remove()
    layers = [layer for layer in layers if isinstance(layer.parts.mask, Edges)]
    if not layers:
        raise Unsupported("No attention of this model follows the edges, so there are no neighbours to attribute to.")
    return layers


@dataclass(frozen=True)
class GraphPass:
    """A forward and backward pass over a graph, and the attributions computed from it, `[units]` each."""

    target: GraphTarget
    gradients: dict[str, Tensor | None]

    @property
    def names(self) -> list[str]:
        return [layer.name for layer in self.target.layers]

    def heads(self, name: str) -> int:
        return self.layer(name).heads

    def default_attention(self) -> int:
        return len(self.names) - 1

    @property
    def readout(self) -> Tensor:
        """1 where the node itself is the unit."""
        return (self.target.sources == self.target.node).float()

    def layer(self, name: str) -> CapturedAttention:
        return self.target.layers[self.names.index(name)]

    def incoming_weights(self, name: str) -> tuple[Tensor, Tensor]:
        """The weights of the edges from the units to the node, `[heads, units]`, and the units' nodes."""
        edges, weights = self.layer(name).edge_weights()
        incoming = (edges[1] == self.target.node).nonzero().flatten()  # sorted by source, as the units are
        units = incoming[torch.isin(edges[0, incoming], self.target.sources)]
        return weights[:, units], edges[0, units]

    def raw(self, name: str, head: int | None) -> Tensor:
        """The node's weights on its neighbours; the mean over heads unless one is given."""
        return select_head(self.incoming_weights(name)[0], head)

    def value(self, name: str, head: int | None) -> Tensor:
        """‖weight · value‖, after the output projection where the layer has one."""
        layer = self.layer(name)
        weights, sources = self.incoming_weights(name)
        lengths = layer.v.float().norm(dim=-1) if layer.value_lengths is None else layer.value_lengths
        lengths = lengths.repeat_interleave(layer.heads // len(lengths), 0)
        return select_head(weights * lengths[:, sources].to(weights.dtype), head)

    def rollout(self, name: str) -> Tensor:
        """Attention rollout from each neighbour into the node through the layers up to this one.

        A neighbour's share also comes over longer paths; the rest of a sum of one comes from other nodes.
        """
        row = one_hot_row(self.target.node, self.target.tokens)
        for layer in reversed(self.target.layers[: self.names.index(name) + 1]):
            edges, weights = layer.edge_weights()
            added = (1 - RESIDUAL) * row[edges[1]] * weights.mean(0).float()
            row = (RESIDUAL * row).index_add(0, edges[0], added)
        return row[self.target.sources]

    def gradient(self, name: str, head: int | None) -> Tensor:
        """weight · ∂score/∂weight of each edge to the node; summed over heads unless one is given."""
        layer, gradient = self.layer(name), self.gradients.get(name)
        weights, sources = self.incoming_weights(name)
        if gradient is None:
            return torch.zeros(len(sources))
        values = layer.v.repeat_interleave(layer.heads // layer.kv_heads, 0)[:, sources]  # [heads, units, value dim]
        slope = (values @ gradient[0, :, self.target.node, :, None])[..., 0]
        products = weights * slope.to(weights.dtype)
        return products.sum(0) if head is None else products[head]


def run_graph_pass(target: GraphTarget) -> GraphPass:
    """A forward and backward pass. Parameters get no gradient."""
    with torch.enable_grad(), capture_outputs(target.model) as outputs:
        score = target.score(target.predict(target.inputs, None))[0]
        gradients = torch.autograd.grad(score, list(outputs.values()), allow_unused=True)
    return GraphPass(target, dict(zip(outputs, gradients, strict=True)))


@torch.no_grad()
def ablate_edges(
    target: GraphTarget, method: Ablation = "drop", progress: Progress = lambda done, total: None
) -> Tensor:
    """score − score without the edge from each neighbour to the node, in all layers, `[units]`."""
    if method != "drop":
        raise BadInput(f"The ablation is {method!r}; here it must be drop.")
    graph = target.layers[-1].parts.mask
    assert isinstance(graph, Edges)
    edges = graph.sort(target.tokens, target.tokens)
    scores = []
    for n, source in enumerate(target.sources.tolist()):
        progress(n, len(target.sources))
        keep = (edges.rows != target.node) | (edges.columns != source)
        remaining = Edges(torch.stack([edges.columns[keep], edges.rows[keep]]))
        scores.append(target.score(target.predict({**target.inputs, "edges": remaining}, None)))
    return target.initial_score - torch.cat(scores)
