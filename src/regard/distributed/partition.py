"""Which rank owns each node of a graph."""

from __future__ import annotations

import torch
from torch import Tensor

METIS_EDGES = 10_000_000
"""Edges up to which METIS cuts a graph: its Python interface takes lists."""


def partition_edges(edges: Tensor, nodes: int, ranks: int) -> Tensor:
    """The rank of each node, `[nodes]`: by `pymetis` where it is installed, else runs of nodes with equal work."""
    try:
        import pymetis  # pyright: ignore[reportMissingImports]
    except ImportError:
        pymetis = None
    work = torch.bincount(edges[1].long(), minlength=nodes)
    if pymetis is None or ranks == 1 or edges.shape[1] > METIS_EDGES:
        return partition_runs(work, ranks)
    both = torch.cat([edges, edges.flip(0)], dim=1).long()
    both = torch.unique(both[:, both[0] != both[1]], dim=1)
    starts = torch.searchsorted(both[0].contiguous(), torch.arange(nodes + 1)).tolist()
    adjacency = getattr(pymetis, "CSRAdjacency", None)  # from 2025.2
    graph = {"xadj": starts, "adjncy": both[1].tolist()}
    graph = graph if adjacency is None else {"adjacency": adjacency(*graph.values())}
    _, parts = pymetis.part_graph(ranks, **graph, vweights=(work + 1).tolist())
    owner = torch.tensor(parts, dtype=torch.long)
    return owner if len(torch.unique(owner)) == ranks else partition_runs(work, ranks)


def partition_runs(work: Tensor, ranks: int) -> Tensor:
    """Runs of nodes with an equal share of `work [nodes]`, the edges to each, and of the nodes; none is empty.

    >>> partition_runs(torch.tensor([4, 0, 0, 0, 1]), 2).tolist()
    [0, 1, 1, 1, 1]
    """
    nodes = len(work)
    weight = work.double() + 1.0
    done = weight.cumsum(0) - weight / 2
    runs = (done * ranks / weight.sum()).long().clamp(max=ranks - 1)
    return runs if len(torch.unique(runs)) == ranks else torch.arange(nodes) * ranks // nodes
