"""Graph encoders of any stack, which classify nodes or whole graphs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..attention.parts.edges import Edges
from ..distributed.graphs import ShardedEdges
from ..errors import BadInput, Unsupported
from ..nn.block import Stack
from ..nn.graphs.attention import FeaturedEdges, prepare_edges, project_nodes
from ..nn.graphs.layers import GraphLayers
from ..nn.packing import Packing
from .heads import ClassificationHeadConfig, supervised_loss
from .interfaces import LayersConfig
from .model import Model, Output


@dataclass(frozen=True)
class GraphEncoderConfig:
    """A linear map of each node's `features`, a stack, and a head for each node (`per_token`) or each graph.

    The stack is `GraphLayersConfig` (graph attention), `StackConfig` (attention along the edges) or
    `FullyConnectedConfig` (each node by itself).
    """

    features: int
    stack: LayersConfig
    head: ClassificationHeadConfig
    dropout: float = 0.0
    family: str | None = None

    def build(self) -> GraphEncoderModel:
        return GraphEncoderModel(self)


class GraphEncoderModel(Model):
    """See `GraphEncoderConfig`.

    `nodes [nodes, features]` of all graphs, concatenated; `edges [2, edges]` with indices into all nodes; `sizes
    [graphs]` are the numbers of nodes; `edge_features [edges, n]` where the stack reads them. Returns `hidden [nodes,
    dim]` and `logits` `[nodes, classes]` or `[graphs, classes]`.

    >>> import torch
    >>> from regard.nn.graphs.layers import GraphLayersConfig
    >>> head = ClassificationHeadConfig(3, 8, pool="mean")
    >>> model = GraphEncoderConfig(5, GraphLayersConfig(8, 1), head).build()
    >>> edges = torch.tensor([[0, 1, 2], [1, 0, 3]])
    >>> model(nodes=torch.randn(4, 5), edges=edges, sizes=torch.tensor([2, 2])).logits.shape
    torch.Size([2, 3])
    """

    config: GraphEncoderConfig

    def __init__(self, config: GraphEncoderConfig) -> None:
        super().__init__(config)
        self.embed = nn.Linear(config.features, config.head.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.stack = config.stack.build()
        self.head = config.head.build()

    def forward(
        self,
        *,
        nodes: Tensor,
        edges: Tensor | Edges | FeaturedEdges | ShardedEdges,
        edge_features: Tensor | None = None,
        sizes: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Output:
        graph = prepare_edges(edges, nodes.shape[0], edge_features) if isinstance(edges, Tensor) else edges
        hidden = self.encode(self.dropout(project_nodes(nodes, self.embed)), graph)
        logits = self.head(self.pool_graphs(hidden, sizes))
        return Output(hidden, logits, loss=None if labels is None else supervised_loss(logits, labels, shift=False))

    def encode(self, x: Tensor, graph: Edges | FeaturedEdges | ShardedEdges) -> Tensor:
        """The nodes after the last layer, `[nodes, dim]`."""
        if isinstance(self.stack, GraphLayers):
            return self.stack(x, graph)
        if isinstance(graph, FeaturedEdges):
            raise Unsupported("Numbers of edges are read by graph attention only. Take gat or gatv2.")
        if not isinstance(self.stack, Stack):
            return self.stack(x[None])[0]
        if isinstance(graph, ShardedEdges) and any(mask is not None for mask in self.stack.masks[True]):
            raise Unsupported("A graph that is shared out has its edges as the only mask. Leave out mask.")
        return self.stack(x[None], mask=graph)[0]

    def pool_graphs(self, hidden: Tensor, sizes: Tensor | None) -> Tensor:
        """The input of the head: the nodes, or the pooled nodes of each graph."""
        if self.config.head.per_token:
            return hidden
        if sizes is not None and torch.compiler.is_exporting():  # a traced graph has no sizes that depend on values
            places = (sizes.cumsum(0) - sizes)[:, None] + torch.arange(hidden.shape[0], device=hidden.device)
            return self.head.pool(hidden[places.clamp(max=hidden.shape[0] - 1)], sizes, None)
        if sizes is None or int(sizes.sum()) != hidden.shape[0]:
            given = "none" if sizes is None else f"{int(sizes.sum())}"
            raise BadInput(f"sizes count {given} of {hidden.shape[0]} nodes. Give each graph's number of nodes.")
        return self.head.pool(Packing(sizes, int(sizes.max())).pad(hidden), sizes, None)
