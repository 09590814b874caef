"""Graph attention networks that classify nodes (GAT, GATv2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ..attention.parts.edges import Edges
from ..distributed.graphs import ShardedEdges
from ..errors import BadInput
from ..nn.activations import ACTIVATIONS, choose
from ..nn.graphs.attention import FeaturedEdges, GraphAttention, prepare_edges
from .heads import supervised_loss
from .model import Model, Output


@dataclass(frozen=True)
class GATConfig:
    """Layers of graph attention over nodes of `features` numbers.

    All but the last have `heads` heads that share `dim` numbers, and `activation` after them; the last has `out_heads`
    heads, each with a logit a class, and takes their mean. `version` 1 is GAT, 2 GATv2, "dot" a graph transformer.
    `dropout` acts on the input of every layer, `attention_dropout` on its weights; `residual` adds a linear
    map of a layer's input. `edge_features` numbers of each edge add a term to its scores.
    """

    features: int
    classes: int
    dim: int = 64
    layers: int = 2
    heads: int = 8
    out_heads: int = 1
    version: Literal[1, 2, "dot"] = 1
    activation: str = "elu"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    residual: bool = False
    self_loops: bool = True
    slope: float = 0.2
    edge_features: int = 0
    family: str | None = None

    def build(self) -> GATModel:
        return GATModel(self)


class GATModel(Model):
    """A class for every node of a graph (GAT, GATv2).

    `nodes [nodes, features]`, `edges [2, edges]` (sources, then targets), `edge_features [edges, n]`. Returns `logits
    [nodes, classes]` and `hidden [nodes, dim]`, the input of the last layer. `labels [nodes]` are −100 for nodes to
    ignore.

    >>> import torch
    >>> from regard.models.families.gat import gat
    >>> model = gat(features=5, classes=3, dim=8, heads=2).build()
    >>> model(nodes=torch.randn(4, 5), edges=torch.tensor([[0, 1, 2], [1, 2, 3]])).logits.shape
    torch.Size([4, 3])
    """

    config: GATConfig

    def __init__(self, config: GATConfig) -> None:
        super().__init__(config)
        if config.layers < 1:
            raise BadInput(f"A graph model has {config.layers} layers; it needs one at least.")
        self.activation = choose(config.activation, ACTIVATIONS, "activation")
        read = [config.features, *[config.dim] * (config.layers - 1)]
        self.layers = nn.ModuleList(make_layer(config, dim, last=n == len(read) - 1) for n, dim in enumerate(read))

    def forward(
        self,
        *,
        nodes: Tensor,
        edges: Tensor | Edges | FeaturedEdges | ShardedEdges,
        edge_features: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Output:
        *before, last = self.layers
        graph = self.prepare(edges, nodes.shape[0], edge_features) if isinstance(edges, Tensor) else edges
        x = nodes
        for layer in before:
            x = self.activation(layer(x, graph))
        logits = last(x, graph)
        return Output(x, logits, loss=None if labels is None else supervised_loss(logits, labels, shift=False))

    def prepare(self, edges: Tensor, nodes: int, features: Tensor | None = None) -> Edges | FeaturedEdges:
        """The edges for all layers, sorted once, with self-loops if the configuration has them."""
        return prepare_edges(edges, nodes, features, self.config.self_loops)


def make_layer(config: GATConfig, dim_in: int, last: bool) -> GraphAttention:
    """A layer with `dim_in` features for each node; the last gives logits."""
    return GraphAttention(
        dim_in,
        config.classes if last else config.dim,
        config.out_heads if last else config.heads,
        version=config.version,
        merge="mean" if last else "concat",
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        residual=config.residual,
        self_loops=config.self_loops,
        slope=config.slope,
        edge_dim=config.edge_features or None,
    )
