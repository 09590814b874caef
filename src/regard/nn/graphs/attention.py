"""Graph attention: each node attends to its neighbours."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ...attention.parts.edges import Edges
from ...attention.parts.scores import Additive
from ...errors import BadInput
from ..attention import Attend, divide_heads


class GraphAttention(nn.Module):
    """One layer of a graph attention network, GAT (version 1) or GATv2 (version 2).

        version 1:  score(i, j) = leaky_relu(target · W x_i + source · W x_j),  one number a head;  values W x_j
        version 2:  score(i, j) = weight · leaky_relu(W_q x_i + W_k x_j);                           values W_k x_j
        y_i = merge over heads of Σ_j softmax_j(score(i, j)) · value_j  (+ residual x_i) + bias

    j runs over the sources of the edges to i, and i itself with `self_loops`. nodes `[nodes, dim_in]`, edges
    `[2, edges]` (sources, then targets; an edge listed twice is one) → `[nodes, dim]`. With `merge="concat"` a head has
    dim / heads numbers, with `"mean"` each has dim. A node without incoming edges gets zeros. `dropout` applies to
    the input nodes, `attention_dropout` to the weights. Nodes may be a sparse tensor.

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
        version: Literal[1, 2] = 1,
        merge: Literal["concat", "mean"] = "concat",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        bias: bool = True,
        residual: bool = False,
        self_loops: bool = True,
        slope: float = 0.2,
    ) -> None:
        super().__init__()
        if version not in (1, 2):
            raise BadInput(f"GraphAttention's version is {version!r}; it must be 1 (GAT) or 2 (GATv2).")
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
            self.weight = glorot(heads, head_dim)
        self.residual = nn.Linear(dim_in, dim, bias=False) if residual else None
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None
        self.attend = Attend()
        for linear in (module for module in self.children() if isinstance(module, nn.Linear)):
            nn.init.xavier_uniform_(linear.weight)

    def forward(self, nodes: Tensor, edges: Tensor | Edges) -> Tensor:
        """`[nodes, dim]`; `edges` from `prepare` are used as they are, sorted once for many layers."""
        if nodes.dim() != 2 or nodes.shape[1] != self.dim_in:
            raise BadInput(f"nodes have shape {list(nodes.shape)}; they must be [nodes, {self.dim_in}].")
        graph = edges if isinstance(edges, Edges) else self.prepare(edges, nodes.shape[0])
        nodes = drop_features(nodes, self.dropout)
        target, source, value = self.project(nodes)
        q, k = (x.transpose(0, 1)[None] for x in (target, source))  # [1, heads, nodes, 1 or head_dim]
        v = k if value is source else value.transpose(0, 1)[None]  # one tensor gets one gradient
        weight = self.weight if self.version == 2 else v.new_ones(self.heads, 1)
        y = self.attend(
            q,
            k,
            v,
            score=Additive(weight, "leaky_relu", self.slope),
            mask=graph,
            dropout=self.attention_dropout if self.training else 0.0,
        ).squeeze(0)  # an index would write its gradient out
        y = y.transpose(0, 1).flatten(1) if self.merge == "concat" else y.mean(0)
        y = y if self.residual is None else y + project_nodes(nodes, self.residual)
        return y if self.bias is None else y + self.bias

    def prepare(self, edges: Tensor, nodes: int) -> Edges:
        """The edges as a mask, with self-loops if the layer has them."""
        return Edges(with_self_loops(edges, nodes) if self.self_loops else edges)

    def project(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The terms of the score for targets and for sources, and the values; each `[nodes, heads, …]`."""
        if self.version == 1:
            # target·(Wx) = (Wᵀtarget)·x: the two numbers of a head come with its values out of one product.
            by_head = self.value.weight.unflatten(0, (self.heads, -1))  # [heads, head_dim, features]
            sides = [(by_head * side[..., None]).sum(1) for side in (self.target, self.source)]
            projected = multiply(nodes, torch.cat([self.value.weight, *sides]))
            value, target, source = projected.split([len(self.value.weight), self.heads, self.heads], dim=-1)
            return target[..., None], source[..., None], value.unflatten(-1, (self.heads, -1))
        query, key = (project_nodes(nodes, part).unflatten(-1, (self.heads, -1)) for part in (self.query, self.key))
        return query, key, key

    def extra_repr(self) -> str:
        return f"heads={self.heads}, version={self.version}, merge={self.merge!r}, self_loops={self.self_loops}"


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
