"""A stack of graph attention layers with residual connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ...attention.parts.edges import Edges
from ...distributed.graphs import ShardedEdges
from ..activations import ACTIVATIONS, choose
from .attention import FeaturedEdges, GraphAttention


@dataclass(frozen=True)
class GraphLayersConfig:
    """See `GraphLayers`; `version` 1 is GAT, 2 GATv2, "dot" a graph transformer.

    `edge_features` are the numbers of an edge.
    """

    dim: int
    layers: int
    heads: int = 4
    version: Literal[1, 2, "dot"] = 2
    activation: str = "elu"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    edge_features: int = 0

    @property
    def causal(self) -> bool:
        return False

    def build(self) -> GraphLayers:
        return GraphLayers(self)


class GraphLayers(nn.Module):
    """x ← x + dropout(act(attention(norm(x)))), layer after layer, and a last norm.

    x `[nodes, dim]`, edges as `prepare_edges` gives them, → `[nodes, dim]`.

    >>> import torch
    >>> layers = GraphLayersConfig(dim=8, layers=2, heads=2).build()
    >>> layers(torch.randn(3, 8), Edges(torch.tensor([[0, 1, 2], [1, 2, 2]]))).shape
    torch.Size([3, 8])
    """

    def __init__(self, config: GraphLayersConfig) -> None:
        super().__init__()
        self.activation = choose(config.activation, ACTIVATIONS, "activation")
        self.layers = nn.ModuleList(
            GraphAttention(
                config.dim,
                config.dim,
                config.heads,
                version=config.version,
                attention_dropout=config.attention_dropout,
                edge_dim=config.edge_features or None,
            )
            for _ in range(config.layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(config.dim) for _ in range(config.layers + 1))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, edges: Edges | FeaturedEdges | ShardedEdges) -> Tensor:
        *norms, last = self.norms
        for norm, layer in zip(norms, self.layers, strict=True):
            x = x + self.dropout(self.activation(layer(norm(x), edges)))
        return last(x)
