"""Graph attention: each node attends to its neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from ...attention.parts.edges import EdgeFeatures, Edges
from ...attention.parts.parts import DOT
from ...attention.parts.scores import Additive, Dot
from ...distributed.graphs import GraphLayout, ShardedEdges
from ...errors import BadInput
from ..attention import Attend, divide_heads


class GraphAttention(nn.Module):
    """One layer of a graph attention network: GAT (version 1), GATv2 (version 2) or a graph transformer ("dot").

        version 1:  score(i, j) = leaky_relu(target · W x_i + source · W x_j),  one number a head;  values W x_j
        version 2:  score(i, j) = weight · leaky_relu(W_q x_i + W_k x_j);                           values W_k x_j
        "dot":      score(i, j) = W_q x_i · W_k x_j / √head_dim;                                    values W_v x_j
        y_i = merge over heads of Σ_j softmax_j(score(i, j)) · value_j  (+ residual x_i) + bias

    j runs over the sources of the edges to i, and i itself with `self_loops`. nodes `[nodes, dim_in]`, edges
    `[2, edges]` (sources, then targets; an edge listed twice is one) → `[nodes, dim]`. With `merge="concat"` a head has
    dim / heads numbers, with `"mean"` each has dim. A node without incoming edges gets zeros. `dropout` applies to
    the input nodes, `attention_dropout` to the weights. Nodes may be a sparse tensor.

    With `edge_dim` an edge has so many numbers e_ij, which add a term to its score, and with "dot" to its value:

        version 1:  score(i, j) = leaky_relu(target · W x_i + source · W x_j + edge · W_e e_ij)
        version 2:  score(i, j) = weight · leaky_relu(W_q x_i + W_k x_j + W_e e_ij)
        "dot":      score(i, j) = W_q x_i · (W_k x_j + W_e e_ij) / √head_dim;   values W_v x_j + W_e e_ij

    With `edge_types` an edge has one of so many types (relations), each with a learned vector that stands for W_e e_ij,
    or is added to it. An edge listed twice then counts twice. A self-loop has the mean of the incoming edges' numbers,
    and a type of its own, the last.

    >>> layer = GraphAttention(dim_in=5, dim=8, heads=2)
    >>> layer(torch.randn(3, 5), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        dim_in: int,
        dim: int,
        heads: int = 1,
        *,
        version: Literal[1, 2, "dot"] = 1,
        merge: Literal["concat", "mean"] = "concat",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        bias: bool = True,
        residual: bool = False,
        self_loops: bool = True,
        slope: float = 0.2,
        edge_dim: int | None = None,
        edge_types: int | None = None,
    ) -> None:
        super().__init__()
        if version not in (1, 2, "dot"):
            raise BadInput(f"GraphAttention's version is {version!r}; it must be 1 (GAT), 2 (GATv2) or 'dot'.")
        if merge not in ("concat", "mean"):
            raise BadInput(f"GraphAttention's merge is {merge!r}; it must be 'concat' or 'mean'.")
        self.dim_in, self.heads, self.version, self.merge = dim_in, heads, version, merge
        self.attention_dropout, self.self_loops, self.slope = attention_dropout, self_loops, slope
        head_dim = divide_heads(dim, heads) if merge == "concat" else dim
        self.dropout = nn.Dropout(dropout)
        if version == 1:
            self.value = nn.Linear(dim_in, heads * head_dim, bias=False)
            self.source, self.target = (glorot(heads, head_dim) for _ in range(2))
        else:
            self.query, self.key = (nn.Linear(dim_in, heads * head_dim, bias=bias) for _ in range(2))
            if version == 2:
                self.weight = glorot(heads, head_dim)
            else:
                self.value = nn.Linear(dim_in, heads * head_dim, bias=bias)
        self.edge_dim, self.edge_types = edge_dim, edge_types
        if edge_dim is not None:
            self.edge_key = nn.Linear(edge_dim, heads * head_dim, bias=False)
        if edge_types is not None:
            self.type_key = nn.Embedding(edge_types + int(self_loops), heads * head_dim)
            nn.init.xavier_uniform_(self.type_key.weight)
        if edge_dim is not None or edge_types is not None:
            self.edge = glorot(heads, head_dim) if version == 1 else None
        self.residual = nn.Linear(dim_in, dim, bias=False) if residual else None
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None
        self.attend = Attend()
        for linear in (module for module in self.children() if isinstance(module, nn.Linear)):
            nn.init.xavier_uniform_(linear.weight)

    def forward(
        self,
        nodes: Tensor,
        edges: Tensor | Edges | FeaturedEdges | ShardedEdges,
        features: Tensor | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        """`[nodes, dim]`; `edges` from `prepare` are used as they are, sorted once for many layers.

        `features [edges, edge_dim]` are the numbers of the edges, `types [edges]` their types, 0 … edge_types − 1. With
        the edges of a `GraphLayout`, from `prepare_sharded`, the nodes are those of this process.
        """
        if nodes.dim() != 2 or nodes.shape[1] != self.dim_in:
            raise BadInput(f"nodes have shape {list(nodes.shape)}; they must be [nodes, {self.dim_in}].")
        graph = self.prepare(edges, nodes.shape[0], features, types) if isinstance(edges, Tensor) else edges
        self.check_features(graph)
        nodes = drop_features(nodes, self.dropout)
        target, source, value = self.project(nodes)
        if isinstance(graph, ShardedEdges | FeaturedEdges) and graph.layout is not None:
            source, *rest = graph.layout.exchange_all(*([source] if value is source else [source, value]))
            value = rest[0] if rest else source
            target = target.contiguous()  # a part of one product with values, which are copied with those of the halo
        of_edges = None
        if isinstance(graph, FeaturedEdges):
            terms = self.edge_terms(graph)
            if graph.sources is None:
                by_head = terms.transpose(0, 1)[None]  # [1, heads, edges, 1 or head_dim]
                of_edges = EdgeFeatures(keys=by_head, values=by_head if self.version == "dot" else None)
            else:  # the edges themselves are the keys: each has the terms of its source and its own
                source, value = source[graph.sources] + terms, value[graph.sources]
                value = value + terms if self.version == "dot" else value
        q, k = (x.transpose(0, 1)[None] for x in (target, source))  # [1, heads, nodes (or edges), 1 or head_dim]
        v = k if value is source else value.transpose(0, 1)[None]  # one tensor gets one gradient
        y = self.attend(
            q,
            k,
            v,
            score=self.score(v),
            mask=graph if isinstance(graph, Edges) else graph.mask,
            dropout=self.attention_dropout if self.training else 0.0,
            edges=of_edges,
        ).squeeze(0)  # an index would write its gradient out
        y = y.transpose(0, 1).flatten(1) if self.merge == "concat" else y.mean(0)
        y = y if self.residual is None else y + project_nodes(nodes, self.residual)
        return y if self.bias is None else y + self.bias

    def prepare(
        self, edges: Tensor, nodes: int, features: Tensor | None = None, types: Tensor | None = None
    ) -> Edges | FeaturedEdges:
        """The edges as a mask, with self-loops if the layer has them."""
        return prepare_edges(edges, nodes, features, self.self_loops, types=types, loop_type=self.edge_types)

    def check_features(self, graph: Edges | FeaturedEdges | ShardedEdges) -> None:
        """Raise unless the edges have the numbers and types that the layer reads."""
        features, types = (graph.features, graph.types) if isinstance(graph, FeaturedEdges) else (None, None)
        if (features is None) != (self.edge_dim is None):
            wanted = "no numbers" if self.edge_dim is None else f"{self.edge_dim} numbers"
            raise BadInput(
                f"The layer reads {wanted} of each edge. Give features [edges, edge_dim] with edge_dim only."
            )
        if features is not None and features.shape[1] != self.edge_dim:
            raise BadInput(f"features of edges are {features.shape[1]} numbers each; the layer reads {self.edge_dim}.")
        if (types is None) != (self.edge_types is None):
            wanted = "no types" if self.edge_types is None else f"{self.edge_types} types"
            raise BadInput(f"The layer reads {wanted} of edges. Give types [edges] with edge_types only.")

    def score(self, v: Tensor) -> Dot | Additive:
        if self.version == "dot":
            return DOT
        return Additive(self.weight if self.version == 2 else v.new_ones(self.heads, 1), "leaky_relu", self.slope)

    def edge_terms(self, graph: FeaturedEdges) -> Tensor:
        """What the edges add to the terms of their sources, `[edges, heads, 1 or head_dim]`."""
        terms = None
        if graph.features is not None:
            weight = self.reduce_terms(self.edge_key.weight.mT)  # [edge_dim, heads, 1 or head_dim]
            terms = (graph.features @ weight.flatten(1)).unflatten(-1, weight.shape[1:])
        if graph.types is None:
            if terms is None:
                raise BadInput("The edges have neither features nor types.")
            return terms
        table = self.reduce_terms(self.type_key.weight)  # [types, heads, 1 or head_dim]
        by_type = nn.functional.embedding(graph.types, table.flatten(1)).unflatten(-1, table.shape[1:])
        return by_type if terms is None else terms + by_type

    def reduce_terms(self, vectors: Tensor) -> Tensor:
        """Vectors `[…, heads · head_dim]` by head; in version 1 each is one number a head."""
        terms = vectors.unflatten(-1, (self.heads, -1))
        return terms if self.edge is None else (terms * self.edge).sum(-1, keepdim=True)

    def project(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The terms of the score for targets and for sources, and the values; each `[nodes, heads, …]`."""
        if self.version == 1:
            # target·(Wx) = (Wᵀtarget)·x: the two numbers of a head come with its values out of one product.
            by_head = self.value.weight.unflatten(0, (self.heads, -1))  # [heads, head_dim, features]
            sides = [(by_head * side[..., None]).sum(1) for side in (self.target, self.source)]
            projected = multiply(nodes, torch.cat([self.value.weight, *sides]))
            value, target, source = projected.split([len(self.value.weight), self.heads, self.heads], dim=-1)
            return target[..., None], source[..., None], value.unflatten(-1, (self.heads, -1))
        parts = (self.query, self.key, self.value) if self.version == "dot" else (self.query, self.key)
        query, key, *value = (project_nodes(nodes, part).unflatten(-1, (self.heads, -1)) for part in parts)
        return query, key, value[0] if value else key

    def extra_repr(self) -> str:
        return f"heads={self.heads}, version={self.version}, merge={self.merge!r}, self_loops={self.self_loops}"


@dataclass(frozen=True, eq=False)
class FeaturedEdges:
    """Edges with numbers, `features [edges, n]`, or types, `types [edges]`, in the order of the mask.

    `mask` is the graph. Where an edge is listed twice, every edge is a key of its own: `mask` leads from the number of
    an edge to its target, and `sources [edges]` are the nodes that edges come from. With a `layout` they are those of
    one process.
    """

    mask: Edges
    features: Tensor | None = None
    types: Tensor | None = None
    sources: Tensor | None = None
    layout: GraphLayout | None = None


def prepare_sharded(layout: GraphLayout) -> ShardedEdges | FeaturedEdges:
    """The edges of this process for all layers, with the numbers that they have in the layout."""
    if layout.edge_features is None:
        return layout.edges
    graph = prepare_edges(layout.edge_index, len(layout.own), layout.edge_features, layout.self_loops)
    assert isinstance(graph, FeaturedEdges)
    return replace(graph, layout=layout)


def prepare_edges(
    edges: Tensor,
    nodes: int,
    features: Tensor | None = None,
    self_loops: bool = True,
    *,
    types: Tensor | None = None,
    loop_type: int | None = None,
) -> Edges | FeaturedEdges:
    """The edges `[2, edges]` for all layers, with self-loops unless they are unwanted.

    A self-loop has the mean of the incoming edges' features, and `loop_type`.

    >>> graph = prepare_edges(torch.tensor([[0, 1], [1, 1]]), 2, torch.tensor([[2.0], [4.0]]))
    >>> graph.mask.edge_index.tolist(), graph.features[:, 0].tolist()
    ([[0, 0, 1], [0, 1, 1]], [0.0, 2.0, 2.0])
    """
    if features is None and types is None:
        return Edges(with_self_loops(edges, nodes) if self_loops else edges)
    check_edge_shapes(edges, features, types, loop_type)
    if self_loops and nodes:
        other = edges[0] != edges[1]
        edges = edges[:, other]
        if features is not None:
            features = torch.cat([features[other], mean_of_incoming(features[other], edges, nodes)])
        if types is not None:
            types = torch.cat([types[other], types.new_full((nodes,), loop_type or 0)])
        edges = with_self_loops(edges, nodes)
    keys = 1 + int(edges[0].max()) if edges.numel() else 1  # more than nodes where those of other processes follow
    codes, order = (edges[1].long() * keys + edges[0].long()).sort()
    if bool((codes.diff() == 0).any()):
        numbers = torch.arange(edges.shape[1], device=edges.device)
        return FeaturedEdges(Edges(torch.stack([numbers, edges[1].long()])), features, types, edges[0])
    features, types = (None if x is None else x.index_select(0, order) for x in (features, types))
    return FeaturedEdges(Edges(edges[:, order]), features, types)


def check_edge_shapes(edges: Tensor, features: Tensor | None, types: Tensor | None, loop_type: int | None) -> None:
    """Raise `BadInput` unless there are features and types for the edges."""
    if features is not None and (features.dim() != 2 or edges.dim() != 2 or features.shape[0] != edges.shape[1]):
        raise BadInput(
            f"features of edges have shape {list(features.shape)}; they must be [edges, n] for edges of shape "
            f"{list(edges.shape)}."
        )
    if types is None:
        return
    if types.dtype.is_floating_point or types.dim() != 1 or edges.dim() != 2 or types.shape[0] != edges.shape[1]:
        raise BadInput(
            f"types of edges are {types.dtype} {list(types.shape)}; they must be whole numbers [edges] for edges of "
            f"shape {list(edges.shape)}."
        )
    if loop_type is not None and types.numel() and not 0 <= int(types.min()) <= int(types.max()) < loop_type:
        raise BadInput(
            f"types of edges are {int(types.min())} to {int(types.max())}; they must be 0 … {loop_type - 1}."
        )


def mean_of_incoming(features: Tensor, edges: Tensor, nodes: int) -> Tensor:
    """The mean of the features of each node's incoming edges, `[nodes, n]`; zeros without edges."""
    order, counts = edges[1].argsort(stable=True), torch.bincount(edges[1], minlength=nodes)
    sums = torch.segment_reduce(features[order], "sum", lengths=counts, axis=0, initial=0.0)  # in a fixed order
    return sums / counts.clamp(min=1)[:, None]


def drop_features(nodes: Tensor, dropout: nn.Dropout) -> Tensor:
    """Dropout of the nodes' features; of sparse nodes only the stored values are drawn for."""
    if not nodes.is_sparse:
        return dropout(nodes)
    nodes = nodes.coalesce()
    kept = dropout(nodes.values())
    return torch.sparse_coo_tensor(nodes.indices(), kept, nodes.shape, is_coalesced=True, check_invariants=False)


def project_nodes(nodes: Tensor, linear: nn.Linear) -> Tensor:
    """`linear(nodes)`, `[nodes, out]`, also of sparse nodes."""
    y = multiply(nodes, linear.weight)
    return y if linear.bias is None else y + linear.bias


def multiply(nodes: Tensor, weight: Tensor) -> Tensor:
    """nodes · weightᵀ."""
    return torch.sparse.mm(nodes, weight.mT) if nodes.is_sparse else nn.functional.linear(nodes, weight)


def with_self_loops(edges: Tensor, nodes: int) -> Tensor:
    """The edges `[2, edges]` and an edge from every node to itself.

    >>> with_self_loops(torch.tensor([[0], [1]]), 2).tolist()
    [[0, 0, 1], [1, 0, 1]]
    """
    if edges.dim() != 2 or edges.shape[0] != 2:
        raise BadInput(f"edges have shape {list(edges.shape)}; they must be [2, edges]: sources, then targets.")
    return torch.cat([edges, torch.arange(nodes, device=edges.device, dtype=edges.dtype).expand(2, -1)], dim=1)


def glorot(heads: int, head_dim: int) -> nn.Parameter:
    """A parameter `[heads, head_dim]` with Glorot (Xavier) uniform initialisation."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, head_dim)))
