"""What batches of a large graph are made of: the nodes that a process owns, or labelled nodes with their neighbours."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar, overload

import torch
import torch.distributed as dist
from torch import Tensor

from ...data.graphs import Graph
from ...distributed.graphs import GraphLayout, ShardedEdges, shard_graph
from ...distributed.partition import METIS_EDGES
from ...nn.graphs.attention import FeaturedEdges, prepare_sharded

E = TypeVar("E")


class Seed(NamedTuple, Generic[E]):
    """A labelled node of an example, which a sampled graph is made around."""

    example: E
    node: int


class SeedNodes(Sequence[Seed[E]]):
    """The labelled `nodes` of an example, made as they are read: there may be millions."""

    def __init__(self, example: E, nodes: Tensor) -> None:
        self.example, self.nodes = example, nodes

    def __len__(self) -> int:
        return len(self.nodes)

    @overload
    def __getitem__(self, index: int) -> Seed[E]: ...
    @overload
    def __getitem__(self, index: slice) -> SeedNodes[E]: ...

    def __getitem__(self, index: int | slice) -> Seed[E] | SeedNodes[E]:
        if isinstance(index, slice):
            return SeedNodes(self.example, self.nodes[index])
        return Seed(self.example, int(self.nodes[index]))


@dataclass(frozen=True, eq=False)
class GraphShard:
    """The nodes of a graph that a process owns, and the layout by which it exchanges those of others."""

    graph: Graph
    layout: GraphLayout

    @property
    def own(self) -> Tensor:
        return self.layout.own


def make_shard(graph: Graph, scale_edges: Callable[[Graph, slice | None], Tensor] | None) -> GraphShard:
    """This process's shard of a graph, with the numbers of its edges if a model reads them.

    All processes call it together. Of many edges each process reads some, which are sent to the owners of their ends.
    """
    edges, parts, mine = graph.edges, graph.partial, None
    if not parts and edges.shape[1] > METIS_EDGES:
        mine, parts = rank_slice(edges.shape[1], dist.get_rank(), dist.get_world_size()), True
        edges = edges[:, mine]
    features = None if scale_edges is None else scale_edges(graph, mine)
    return GraphShard(graph, shard_graph(edges, len(graph.nodes), features=features, parts=parts))


def launched_part() -> tuple[int, int]:
    """(rank, ranks) of this process among those that a launcher started; (0, 1) for one that runs alone."""
    rank, ranks = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return (int(rank), int(ranks)) if rank.isdecimal() and ranks.isdecimal() else (0, 1)


def rank_slice(count: int, rank: int, ranks: int) -> slice:
    """The part of `count` items that is a rank's.

    >>> [rank_slice(7, rank, 3) for rank in range(3)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
    """
    return slice(count * rank // ranks, count * (rank + 1) // ranks)


def place_edges(shard: GraphShard, device: torch.device, with_features: Hashable) -> ShardedEdges | FeaturedEdges:
    """The shard's edges on a device, with their numbers for a model that reads them."""
    layout = shard.layout.to(device)
    return prepare_sharded(layout) if with_features else layout.edges
