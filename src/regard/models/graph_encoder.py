"""Graphs through any stack: a class for each node, or one for each of many graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..attention.parts.edges import Edges
from ..errors import BadInput
from ..nn.block import Stack
from ..nn.graph import project_nodes, with_self_loops
from ..nn.graph_layers import GraphLayers
from ..nn.packing import Packing
from .heads import ClassificationHeadConfig, supervised_loss
from .model import Model, Output


@dataclass(frozen=True)
class GraphEncoderConfig:
    """A linear map of each node's `features`, a stack, and a head of each node (`per_token`) or of each graph's nodes.

    The stack is `GraphLayersConfig` (graph attention), `StackConfig` (its blocks, whose tokens see along the edges) or
    `FullyConnectedConfig` (each node for itself).
    """

    features: int
    stack: Any
    head: ClassificationHeadConfig
    dropout: float = 0.0
    family: str | None = None

    def build(self) -> GraphEncoderModel:
        return GraphEncoderModel(self)


class GraphEncoderModel(Model):
    """See `GraphEncoder`.

    `nodes [nodes, features]` of all graphs, one after the other; `edges [2, edges]` by their numbers among all of them;
    `sizes [graphs]` how many nodes each has. Answers with `hidden [nodes, dim]` and `logits` `[nodes, classes]` or
    `[graphs, classes]`.

    >>> import torch
    >>> from regard.nn.graph_layers import GraphLayersConfig
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
        self, *, nodes: Tensor, edges: Tensor | Edges, sizes: Tensor | None = None, labels: Tensor | None = None
    ) -> Output:
        graph = edges if isinstance(edges, Edges) else Edges(with_self_loops(edges, nodes.shape[0]))
        hidden = self.encode(self.dropout(project_nodes(nodes, self.embed)), graph)
        logits = self.head(self.pool_graphs(hidden, sizes))
        return Output(hidden, logits, loss=None if labels is None else supervised_loss(logits, labels, shift=False))

    def encode(self, x: Tensor, graph: Edges) -> Tensor:
        """The nodes after the last layer, `[nodes, dim]`."""
        if isinstance(self.stack, GraphLayers):
            return self.stack(x, graph)
        seen = {"mask": graph} if isinstance(self.stack, Stack) else {}
        return self.stack(x[None], **seen)[0]

    def pool_graphs(self, hidden: Tensor, sizes: Tensor | None) -> Tensor:
        """What the head reads: the nodes, or what is pooled of each graph's."""
        if self.config.head.per_token:
            return hidden
        if sizes is None or int(sizes.sum()) != hidden.shape[0]:
            given = "none" if sizes is None else f"{int(sizes.sum())}"
            raise BadInput(f"sizes count {given} of {hidden.shape[0]} nodes. Give each graph's number of nodes.")
        return self.head.pool(Packing(sizes, int(sizes.max())).pad(hidden), sizes, None)
