"""What a mask makes ranks compute and exchange. Every rank works it out alone: nothing is asked of another.

A pair of tiles is computed where its queries are, and the keys that they visit travel there. Rows that visit far more
than their share (global tokens) are computed where the keys are instead: the queries travel, and what each rank makes
of its own keys is merged by log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.parts.mask import NONE, Mask, PairGrid, Tiling
from .assignment import Runs, merge_tiles
from .links import Link
from .region import whole_states

HEAVY_SHARE = 0.25  # of a rank's work: what one tile of rows must exceed to be computed where the keys are
HEAVY_ROWS = 4.0  # times the mean tile of rows, which it must exceed too


@dataclass(frozen=True, eq=False)
class Traffic:
    """Tiles of a mask, by rank.

    `visited [query tiles, key tiles]` says which tiles have allowed pairs; `heavy [query tiles]` which rows are
    computed where the keys are; `needed [ranks, key tiles]` the key tiles that a rank's other rows visit.
    """

    visited: Tensor
    heavy: Tensor
    needed: Tensor
    query_owner: Tensor  # [query tiles]
    key_owner: Tensor  # [key tiles]
    ranks: int

    def received_keys(self) -> Tensor:
        """Key tiles that each rank receives, `[ranks]`."""
        return (self.needed & (self.key_owner != torch.arange(self.ranks)[:, None])).sum(1)

    def keys_between(self, source: int, rank: int) -> Tensor:
        """The key tiles of `source` that `rank` needs, by number."""
        return (self.needed[rank] & (self.key_owner == source)).nonzero()[:, 0]

    def work(self) -> Tensor:
        """Tiles that each rank computes, `[ranks]`."""
        light = (self.visited & ~self.heavy[:, None]).sum(1).double()
        total = torch.zeros(self.ranks, dtype=torch.float64).index_add_(0, self.query_owner, light)
        columns = (self.visited & self.heavy[:, None]).sum(0).double()
        return total.index_add_(0, self.key_owner, columns)

    def heavy_tiles(self, rank: int) -> Tensor:
        """The tiles of rows of `rank` that are computed where the keys are, by number."""
        return (self.heavy & (self.query_owner == rank)).nonzero()[:, 0]


def visited_tiles(masks: tuple[Mask, ...], grid: PairGrid, tile: int) -> list[Tensor]:
    """For each mask which tiles have allowed pairs in some row of the batch and some head."""
    tiling = Tiling(grid, tile, tile)
    return [(whole_states(mask, tiling) != NONE).flatten(0, 1).any(0).cpu() for mask in masks]


def find_heavy(visited: Tensor, ranks: int) -> Tensor:
    """The tiles of rows that are worth computing where the keys are, `[query tiles]`."""
    rows = visited.sum(1).double()
    if ranks == 1 or not len(rows):
        return torch.zeros(len(rows), dtype=torch.bool)
    share = rows.sum() / ranks
    return (rows > HEAVY_SHARE * share) & (rows > HEAVY_ROWS * rows.median().clamp(min=1))


def find_traffic(visited: Tensor, query_owner: Tensor, key_owner: Tensor, ranks: int) -> Traffic:
    """What each rank computes and receives for one mask."""
    heavy = find_heavy(visited, ranks)
    light = visited & ~heavy[:, None]
    needed = torch.zeros(ranks, visited.shape[1], dtype=torch.bool)
    for rank in range(ranks):
        needed[rank] = light[query_owner == rank].any(0)
    return Traffic(visited, heavy, needed, query_owner, key_owner, ranks)


@dataclass(frozen=True)
class Sizes:
    """What a call weighs: bytes of one key with its value, of one query, of one output, and operations of one pair."""

    key: int
    query: int
    output: int
    pair: int


@dataclass(frozen=True)
class RankCost:
    """What one rank holds, computes and exchanges in a forward pass."""

    rank: int
    rows: int
    tiles: int
    received: int  # bytes
    sent: int  # bytes
    seconds: float


def rank_costs(traffic: Traffic, tile: int, tokens: tuple[int, int], sizes: Sizes, link: Link) -> list[RankCost]:
    """The cost of every rank; communication runs while tiles are computed, so the longer of the two counts."""
    received, sent = traffic_bytes(traffic, tile, tokens, sizes)
    work = traffic.work()
    sizes_of_tiles = tile_tokens(len(traffic.query_owner), tile, tokens[0])
    rows = torch.zeros(traffic.ranks, dtype=torch.long).index_add_(0, traffic.query_owner, sizes_of_tiles)
    costs = []
    for rank in range(traffic.ranks):
        messages = int((traffic.key_owner[traffic.needed[rank]].unique() != rank).sum())
        compute = link.compute(float(work[rank]) * tile * tile * sizes.pair)
        transfer = link.transfer(float(received[rank]), max(messages, int(received[rank] > 0)))
        moved = int(received[rank]), int(sent[rank])
        costs.append(RankCost(rank, int(rows[rank]), int(work[rank]), *moved, max(compute, transfer)))
    return costs


def traffic_bytes(traffic: Traffic, tile: int, tokens: tuple[int, int], sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Bytes that each rank receives and sends in a forward pass, `[ranks]` each."""
    ranks = torch.arange(traffic.ranks)
    received, sent = torch.zeros(traffic.ranks, dtype=torch.long), torch.zeros(traffic.ranks, dtype=torch.long)
    foreign = traffic.needed & (traffic.key_owner != ranks[:, None])
    key_sizes = tile_tokens(traffic.visited.shape[1], tile, tokens[1]) * sizes.key
    received += (foreign * key_sizes).sum(1)
    sent.index_add_(0, traffic.key_owner, (foreign * key_sizes).sum(0))
    heavy = traffic.heavy.nonzero()[:, 0]
    if len(heavy):
        rows = tile_tokens(len(traffic.query_owner), tile, tokens[0])[heavy]
        for owner, count in zip(traffic.query_owner[heavy].tolist(), rows.tolist(), strict=True):
            others = ranks != owner  # they receive the queries and send what they made of them
            received += torch.where(others, count * sizes.query, count * sizes.output * (traffic.ranks - 1))
            sent += torch.where(others, count * sizes.output, count * sizes.query * (traffic.ranks - 1))
    return received, sent


def tile_tokens(tiles: int, tile: int, tokens: int) -> Tensor:
    """Tokens of each tile; the last may have fewer."""
    first = torch.arange(tiles) * tile
    return (first + tile).clamp(max=tokens) - first


def owned_runs(owner: Tensor, ranks: int, tile: int, tokens: int) -> tuple[Runs, ...]:
    """The tokens of each rank, as runs."""
    return tuple(merge_tiles((owner == rank).nonzero()[:, 0], tile, tokens) for rank in range(ranks))
