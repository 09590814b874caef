"""Neighbour sampling: small graphs around seed nodes, drawn from one that is too large to be computed whole.

Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs" (2017).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import BadInput
from ..batching import BatchSampler

BLOCK = 1 << 22
"""Edges that are sorted at a time."""


class SampledGraph(NamedTuple):
    """A graph around seeds: `nodes` by their numbers in the large graph, first the `seeds`, then hop after hop.

    `edges [2, edges]` by the numbers in `nodes`, `edge_numbers [edges]` in the large graph; `seeds` is their number.
    """

    nodes: Tensor
    edges: Tensor
    edge_numbers: Tensor
    seeds: int


@dataclass(frozen=True, eq=False)
class NeighbourSampler:
    """Draws the incoming edges of nodes. `starts [nodes + 1]` are the first of each node's edges among `sources` and
    `numbers [edges]`, which are sorted by target."""

    starts: Tensor
    sources: Tensor
    numbers: Tensor

    @classmethod
    def from_edges(cls, edges: Tensor, nodes: int, block: int = BLOCK) -> NeighbourSampler:
        """The sampler of a graph with `edges [2, edges]`, perhaps in a memory map, of which blocks are read in turn."""
        count = edges.shape[1]
        kind = torch.int32 if max(nodes, count) < 2**31 else torch.int64
        starts = torch.zeros(nodes + 1, dtype=torch.int64)
        for first in range(0, count, block):
            targets = edges[1, first : first + block].long()
            if int(edges[:, first : first + block].min()) < 0 or int(edges[:, first : first + block].max()) >= nodes:
                raise BadInput(f"edges name nodes that are not there; there are 0 … {nodes - 1}.")
            starts[1:] += torch.bincount(targets, minlength=nodes)
        starts = starts.cumsum(0)
        following, sources, numbers = starts[:-1].clone(), *(torch.empty(count, dtype=kind) for _ in range(2))
        for first in range(0, count, block):
            targets, order = edges[1, first : first + block].long().sort(stable=True)
            place = torch.arange(len(targets)) - torch.searchsorted(targets, targets) + following[targets]
            sources[place] = edges[0, first : first + block][order].to(kind)
            numbers[place] = (order + first).to(kind)
            following += torch.bincount(targets, minlength=nodes)
        return cls(starts, sources, numbers)

    def sample(self, seeds: Tensor, neighbours: Sequence[int], generator: torch.Generator) -> SampledGraph:
        """A graph around distinct seeds: as many incoming edges of each node of a hop as `neighbours` says.

        Hop after hop from the seeds, nodes that are new in one have their edges drawn in the next: uniformly without
        replacement, all of them where a node has no more, or for −1. An edge that is listed twice counts twice.
        """
        nodes = frontier = seeds.long()
        places, targets = [], []
        for count in neighbours:
            rows, drawn = self.draw(frontier, count, generator)
            places.append(drawn)
            targets.append(frontier[rows])
            reached = self.sources[drawn].long().unique()
            frontier = reached[~torch.isin(reached, nodes)]
            nodes = torch.cat([nodes, frontier])
        place, target = torch.cat(places), torch.cat(targets)
        ordered, order = nodes.sort()
        ends = torch.stack([self.sources[place].long(), target])
        return SampledGraph(nodes, order[torch.searchsorted(ordered, ends)], self.numbers[place].long(), len(seeds))

    def draw(self, nodes: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(index into `nodes`, place among the sorted edges) of each drawn edge."""
        starts, degrees = self.starts[nodes], self.starts[nodes + 1] - self.starts[nodes]
        whole = degrees <= count if count >= 0 else torch.ones_like(degrees, dtype=torch.bool)
        rows = torch.repeat_interleave(whole.nonzero()[:, 0], degrees[whole])
        before = degrees[whole].cumsum(0) - degrees[whole]
        within = torch.arange(len(rows)) - torch.repeat_interleave(before, degrees[whole])
        many = (~whole).nonzero()[:, 0]
        chosen = draw_distinct(degrees[many], count, generator) if len(many) else degrees.new_empty(0, max(count, 0))
        offsets = torch.cat([within, chosen.flatten()])
        rows = torch.cat([rows, many.repeat_interleave(chosen.shape[1])])
        return rows, starts[rows] + offsets


def draw_distinct(sizes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` distinct whole numbers below each of `sizes`, uniformly, `[sizes, count]` (Floyd's algorithm).

    >>> draw_distinct(torch.tensor([3, 4]), 3, torch.Generator().manual_seed(0)).sort(1).values[0].tolist()
    [0, 1, 2]
    """
    chosen = sizes.new_empty(len(sizes), count)
    for n in range(count):
        last = sizes - count + n
        number = (torch.rand(len(sizes), generator=generator, dtype=torch.float64) * (last + 1)).long()
        taken = (chosen[:, :n] == number[:, None]).any(1)
        chosen[:, n] = torch.where(taken, last, number)
    return chosen


class NeighbourLoader:
    """Sampled graphs around the seeds of an epoch, in batches.

    Order and draws are functions of `seed`, epoch and batch, so that an epoch continues at any batch with the same
    graphs.

    >>> edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    >>> loader = NeighbourLoader(edges, nodes=4, seeds=torch.arange(4), neighbours=(1, 1), batch_size=2)
    >>> [len(graph.nodes) >= 2 for graph in loader.epoch(0)]
    [True, True]
    >>> torch.equal(next(loader.epoch(0, first=1)).nodes, list(loader.epoch(0))[1].nodes)
    True
    """

    def __init__(
        self,
        edges: Tensor | NeighbourSampler,
        nodes: int,
        *,
        seeds: Tensor,
        neighbours: Sequence[int],
        batch_size: int = 1024,
        seed: int = 0,
    ) -> None:
        check_neighbours("neighbours", neighbours)
        self.sampler = NeighbourSampler.from_edges(edges, nodes) if isinstance(edges, Tensor) else edges
        self.seeds, self.neighbours, self.seed = seeds.long(), tuple(neighbours), seed
        self.batches = BatchSampler([1] * len(seeds), examples=batch_size, seed=seed)

    def epoch(self, number: int, first: int = 0) -> Iterator[SampledGraph]:
        """The graphs of an epoch, from batch `first` on."""
        for n, batch in enumerate(self.batches.batches(number)[first:], first):
            generator = make_generator(Random(f"{self.seed} {number} {n}"))
            yield self.sampler.sample(self.seeds[torch.tensor(batch)], self.neighbours, generator)


def make_generator(rng: Random) -> torch.Generator:
    """A generator of torch that is seeded by one of Python."""
    return torch.Generator().manual_seed(rng.getrandbits(63))


def check_neighbours(name: str, neighbours: Sequence[int] | None) -> None:
    """`BadInput` unless every number of neighbours is at least 1, or −1 for all."""
    if neighbours is not None and (not neighbours or any(count < 1 and count != -1 for count in neighbours)):
        raise BadInput(f"{name} is {tuple(neighbours)}; it must be numbers of at least 1, or -1 for all neighbours.")
