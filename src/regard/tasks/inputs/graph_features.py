"""Features of graphs besides those of their files: structure of the nodes, standardized numbers of the edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...data.graphs import Graph
from ...data.graphs.structure import degree_features, spectral_features, walk_features
from ...errors import BadInput
from .cache import TensorCache
from .graph_batches import GraphShard

Normalization = Literal["sum", "length", "none"]

DEGREES = 3
SPARSE = 0.1
"""Share of nonzero features below which they are stored as a sparse tensor."""


@dataclass(frozen=True)
class StructureFeatures:
    """Features of nodes from the edges alone: `size` eigenvectors or steps of a walk, or a learned vector for each of
    `size` nodes; `kind` is none, degree, spectral, walk or learned."""

    kind: str
    size: int

    @property
    def count(self) -> int:
        """How many features a node has."""
        sizes = {"none": 0, "degree": DEGREES, "learned": self.size}
        return sizes.get(self.kind, DEGREES + self.size)

    def compute(self, edges: Tensor, nodes: int) -> Tensor:
        """float32 `[nodes, count]`; of learned vectors the one-hot rows that choose them.

        >>> StructureFeatures("spectral", 4).compute(torch.tensor([[0, 1], [1, 2]]), 3).shape
        torch.Size([3, 7])
        """
        if self.kind == "learned":
            if nodes != self.size:
                raise BadInput(
                    f"The model learned a vector for each of {self.size:,} nodes, and this graph has {nodes:,}. Train "
                    "with structure=spectral for other graphs."
                )
            return torch.eye(nodes)
        degrees = degree_features(edges, nodes)
        if self.kind == "degree":
            return degrees
        compute = spectral_features if self.kind == "spectral" else walk_features
        return torch.cat([degrees, compute(edges, nodes, self.size)], dim=1)


class NodeInputs:
    """Nodes as a model reads them: `features` numbers of the files, normalized, and those of the structure."""

    def __init__(self, features: int, normalization: Normalization, structure: StructureFeatures) -> None:
        self.features, self.normalization, self.structure = features, normalization, structure
        self.structures = TensorCache(self.compute_structure)

    def make(self, graph: Graph | GraphShard) -> Tensor:
        """float32 `[nodes, features]`, sparse if few are nonzero, of a graph's nodes or of those that a shard owns."""
        nodes = self.rows(graph.graph, graph.own) if isinstance(graph, GraphShard) else self.rows(graph)
        return nodes.to_sparse() if int(nodes.count_nonzero()) < SPARSE * nodes.numel() else nodes

    def rows(self, graph: Graph, rows: Tensor | None = None) -> Tensor:
        """float32 `[nodes, features]` of all nodes, or of these."""
        if graph.nodes.shape[1] != self.features:
            raise BadInput(f"The graph's nodes have {graph.nodes.shape[1]} features; this model reads {self.features}.")
        nodes = (graph.nodes if rows is None else graph.nodes[rows]).float()
        total = torch.ones(1)
        if self.normalization == "sum":
            total = nodes.sum(1, keepdim=True)
        elif self.normalization == "length":
            total = nodes.norm(dim=1, keepdim=True)
        nodes = nodes / torch.where(total == 0, 1.0, total)
        if self.structure.kind == "none":
            return nodes
        structure = self.structures(graph)
        return torch.cat([nodes, structure if rows is None else structure[rows]], dim=1)

    def compute_structure(self, graph: Graph) -> Tensor:
        return self.structure.compute(graph.edges, len(graph.nodes))


def densify_on_gpu(nodes: Tensor) -> Tensor:
    """The nodes, dense on a GPU: its sparse matrix products are not deterministic."""
    return nodes.to_dense() if nodes.is_sparse and nodes.is_cuda else nodes


@dataclass(frozen=True)
class EdgeScale:
    """Mean and deviation of the numbers of edges, by which they are standardized."""

    mean: Sequence[float]
    std: Sequence[float]

    @classmethod
    def fit(cls, features: Tensor) -> EdgeScale:
        std = features.std(0, correction=0)
        return cls(features.mean(0).tolist(), torch.where(std == 0, 1.0, std).tolist())

    def apply(self, features: Tensor) -> Tensor:
        """float32 `[edges, numbers]`.

        >>> EdgeScale([1.0], [2.0]).apply(torch.tensor([[5.0]])).tolist()
        [[2.0]]
        """
        return (features - torch.tensor(self.mean)) / torch.tensor(self.std)


def reads_edge_features(model: nn.Module) -> bool:
    """Whether a model has the numbers of edges as an argument."""
    config = getattr(getattr(model, "module", model), "config", None)
    reads = getattr(config, "edge_features", 0) or getattr(getattr(config, "stack", None), "edge_features", 0)
    return bool(reads)


def edge_arguments(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The numbers of edges as an argument of models that read them; of others nothing."""
    reads = "edge_features" in batch and reads_edge_features(model)
    return {"edge_features": batch["edge_features"]} if reads else {}
