"""Which rank owns each node of a graph."""

from __future__ import annotations

import torch
from torch import Tensor

METIS_EDGES = 10_000_000
"""Edges up to which METIS cuts a graph, in one process: so many take about 2 GB."""


def partition_edges(edges: Tensor, nodes: int, ranks: int) -> Tensor:
    """The rank of each node, `[nodes]`: by `pymetis` where it is installed, else runs of nodes with equal work."""
    try:
        import pymetis  # pyright: ignore[reportMissingImports]
    except ImportError:
        pymetis = None
    work = torch.bincount(edges[1].long(), minlength=nodes)
    if pymetis is None or ranks == 1 or edges.shape[1] > METIS_EDGES:
        return partition_runs(work, ranks)
    source, target = edges[:, edges[0] != edges[1]].long()
    both = torch.cat([source * nodes + target, target * nodes + source]).unique()
    starts = torch.searchsorted(both, torch.arange(nodes + 1) * nodes)
    adjacency, kind = (getattr(pymetis, name, None) for name in ("CSRAdjacency", "zero_copy_dtype"))  # from 2025.2
    arrays = [x.numpy().astype("int64" if kind is None else kind()) for x in (starts, both % nodes, work + 1)]
    graph = dict(zip(("xadj", "adjncy"), arrays, strict=False))
    graph = graph if adjacency is None else {"adjacency": adjacency(*arrays[:2])}
    _, parts = pymetis.part_graph(ranks, **graph, vweights=arrays[2])
    owner = torch.tensor(parts, dtype=torch.long)
    return owner if len(torch.unique(owner)) == ranks else partition_runs(work, ranks)


def partition_runs(work: Tensor, ranks: int) -> Tensor:
    """Runs of nodes with an equal share of `work [nodes]`, the edges to each, and of the nodes; none is empty.

    >>> partition_runs(torch.tensor([4, 0, 0, 0, 1]), 2).tolist()
    [0, 1, 1, 1, 1]
    """
    nodes = len(work)
    weight = work.double().add_(1.0)
    total, done = weight.sum(), weight.cumsum(0).sub_(weight.div_(2))
    runs = done.mul_(ranks).div_(total).long().clamp_(max=ranks - 1)
    some = bool((torch.bincount(runs, minlength=ranks) > 0).all())
    return runs if some else torch.arange(nodes) * ranks // nodes
