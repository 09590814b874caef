"""What a mask makes ranks compute and exchange. Every rank works it out alone: nothing is asked of another.

A pair of tiles is computed where its queries are, and the keys that they visit travel there. Rows that visit far more
than others (global tokens) may be computed where the keys are instead: the queries travel, and what each rank makes of
its own keys is merged by log-sum-exp.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from .assignment import Assignment, Runs, merge_tiles
from .links import Link
from .visited import TileRuns, Visited


@dataclass(frozen=True, eq=False)
class Traffic:
    """The visited tiles of a mask, by rank.

    `light` are the tiles that are computed where their queries are, `heavy` the numbers of the queries that are
    computed where the keys are, and `heavy_runs` what they visit.
    """

    light: TileRuns
    heavy: Tensor
    heavy_runs: TileRuns
    assignment: Assignment

    @property
    def ranks(self) -> int:
        return self.assignment.ranks

    @functools.cached_property
    def needed(self) -> Tensor:
        """The key tiles that each rank's light rows visit, boolean `[ranks, key tiles]`."""
        return self.light.visited_by(self.assignment.query_owner, self.ranks)

    @functools.cached_property
    def received_keys(self) -> Tensor:
        """Keys that each rank receives of each, `[ranks, sources]`."""
        sizes = self.needed.int() * self.assignment.key_sizes.int()
        counts = sizes.new_zeros(self.ranks, self.ranks).index_add_(1, self.assignment.key_owner, sizes)
        return counts.fill_diagonal_(0).long()

    @functools.cached_property
    def heavy_owner(self) -> Tensor:
        """The rank of each heavy row."""
        return self.assignment.query_owner[self.heavy // self.assignment.tile]

    @functools.cached_property
    def heavy_counts(self) -> list[int]:
        """Heavy rows of each rank."""
        return torch.bincount(self.heavy_owner, minlength=self.ranks).tolist()

    def keys_between(self, source: int, rank: int) -> Runs:
        """The keys of `source` that `rank` needs."""
        tiles = (self.needed[rank] & (self.assignment.key_owner == source)).nonzero()[:, 0]
        return merge_tiles(tiles, self.assignment.tile, self.assignment.tokens[1])

    def work(self) -> Tensor:
        """Tiles that each rank computes, `[ranks]`; a heavy row is a part of one."""
        light = self.assignment.sum_by_rank(self.light.counts().double())
        columns = self.heavy_runs.column_counts().double() / self.assignment.tile
        return light + self.assignment.sum_by_rank(columns, keys=True)

    def pieces(self) -> Tensor:
        """Runs of queries and of needed keys of each rank, `[ranks]`: what is copied and scheduled one by one."""
        rows, keys = (
            torch.nn.functional.pad(owner.diff() != 0, (1, 0), value=True)
            for owner in (self.assignment.query_owner, self.assignment.key_owner)
        )
        before = torch.nn.functional.pad(self.needed, (1, 0))[:, :-1]
        return self.assignment.sum_by_rank(rows.long()) + (self.needed & (~before | keys)).sum(1)

    @functools.cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """The steps of each stage: at step s rank r receives from rank r − s. The same on all ranks.

        A stage has as many steps as bring no rank more keys than it owns, or one step.
        """
        ranks, own = torch.arange(self.ranks), self.assignment.sum_by_rank(self.assignment.key_sizes, keys=True)
        stages: list[tuple[int, ...]] = []
        held = torch.zeros_like(own)
        for step in range(1, self.ranks):
            counts = self.received_keys[ranks, (ranks - step) % self.ranks]
            if not bool(counts.any()):
                continue
            if stages and bool((held + counts <= own).all()):
                stages[-1], held = (*stages[-1], step), held + counts
            else:
                stages.append((step,))
                held = counts
        return tuple(stages)


def find_traffic(visited: Visited, assignment: Assignment, heavy: bool = True) -> Traffic:
    """What each rank computes and receives for one mask; `heavy` rows are computed where the keys are, or as others."""
    if heavy:
        return Traffic(visited.light, visited.heavy, visited.heavy_runs, assignment)
    none = TileRuns(0, visited.tiles.columns, *[visited.tiles.row[:0]] * 3)
    return Traffic(visited.tiles, visited.heavy[:0], none, assignment)


def best_traffic(visited: Visited, assignment: Assignment, sizes: Sizes, link: Link) -> tuple[Traffic, Tensor]:
    """The faster of both ways to compute heavy rows, with the seconds of each rank."""
    options = [True, False] if len(visited.heavy) and assignment.ranks > 1 else [False]
    both = [find_traffic(visited, assignment, heavy) for heavy in options]
    times = [rank_seconds(traffic, sizes, link) for traffic in both]
    best = min(range(len(both)), key=lambda n: float(times[n].max()))
    return both[best], times[best]


@dataclass(frozen=True)
class Sizes:
    """What a call weighs: bytes of one key with its value, of one query, of one output, and operations of one pair.

    `token` are the operations of a token outside attention, which a rank has for each of its queries.
    """

    key: int
    query: int
    output: int
    pair: int
    token: float = 0.0


@dataclass(frozen=True)
class RankCost:
    """What one rank holds, computes and exchanges in a forward pass."""

    rank: int
    rows: int
    tiles: float
    received: int  # bytes
    sent: int  # bytes
    seconds: float


def rank_costs(traffic: Traffic, sizes: Sizes, link: Link) -> list[RankCost]:
    """The cost of every rank."""
    received, sent = traffic_bytes(traffic, sizes)
    rows, seconds = traffic.assignment.sum_by_rank(traffic.assignment.query_sizes), rank_seconds(traffic, sizes, link)
    columns = (x.tolist() for x in (rows, traffic.work(), received, sent, seconds))
    return [RankCost(rank, *row) for rank, row in enumerate(zip(*columns, strict=True))]


def rank_seconds(traffic: Traffic, sizes: Sizes, link: Link) -> Tensor:
    """Seconds of each rank; messages travel while tiles are computed, so the longer of the two counts."""
    received, _ = traffic_bytes(traffic, sizes)
    rows = traffic.assignment.sum_by_rank(traffic.assignment.query_sizes)
    operations = traffic.work() * (traffic.assignment.tile**2 * sizes.pair) + rows * sizes.token
    pieces = traffic.pieces() + 1 + len(traffic.stages)
    messages = (traffic.received_keys > 0).sum(1)
    if len(traffic.heavy):
        messages = messages + 2 * (traffic.ranks - 1)
    compute = operations / link.flops + pieces * link.piece
    transfer = messages * link.latency + received / link.bandwidth
    return torch.maximum(compute, transfer)


def traffic_bytes(traffic: Traffic, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Bytes that each rank receives and sends in a forward pass, `[ranks]` each."""
    keys = traffic.received_keys * sizes.key
    own = torch.tensor(traffic.heavy_counts, dtype=torch.long)
    others = own.sum() - own  # heavy rows of other ranks: their queries come, what was made of them goes
    back = own * (traffic.ranks - 1)
    received = keys.sum(1) + others * sizes.query + back * sizes.output
    return received, keys.sum(0) + others * sizes.output + back * sizes.query
