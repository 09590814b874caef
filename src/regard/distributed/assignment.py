"""Which rank owns which tiles of a sequence: four ways to share them out.

Each takes the work of every tile of queries (the number of key tiles that its rows visit) and returns the rank of each.
"""

from __future__ import annotations

import functools
import heapq
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Runs = tuple[tuple[int, int], ...]
"""Consecutive tokens as (first, last + 1), in order."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """The rank of every tile of queries and of keys; `tokens` are the queries and keys of the whole."""

    query_owner: Tensor  # [query tiles]
    key_owner: Tensor  # [key tiles]
    ranks: int
    tile: int
    tokens: tuple[int, int]

    @property
    def query_sizes(self) -> Tensor:
        """Queries of each tile, `[query tiles]`; the last may have fewer."""
        return tile_tokens(len(self.query_owner), self.tile, self.tokens[0])

    @property
    def key_sizes(self) -> Tensor:
        """Keys of each tile, `[key tiles]`."""
        return tile_tokens(len(self.key_owner), self.tile, self.tokens[1])

    def sum_by_rank(self, values: Tensor, *, keys: bool = False) -> Tensor:
        """Sums of a number of each tile of queries (or of keys) over those of each rank, `[ranks]`."""
        owner = self.key_owner if keys else self.query_owner
        return values.new_zeros(self.ranks).index_add_(0, owner, values)

    @functools.cached_property
    def query_runs(self) -> tuple[Runs, ...]:
        """The queries of every rank."""
        return owned_runs(self.query_owner, self.ranks, self.tile, self.tokens[0])

    @functools.cached_property
    def key_runs(self) -> tuple[Runs, ...]:
        """The keys of every rank."""
        return owned_runs(self.key_owner, self.ranks, self.tile, self.tokens[1])


def equal_runs(work: Tensor, ranks: int) -> Tensor:
    """One run of tiles for each rank, of equal length: neighbours stay together."""
    tiles = len(work)
    return torch.arange(tiles) * ranks // max(tiles, 1)


def zigzag(work: Tensor, ranks: int) -> Tensor:
    """Two runs for each rank, one from each end, so that early and late queries of a causal mask balance."""
    if len(work) < 2 * ranks:
        return equal_runs(work, ranks)
    half = equal_runs(work, 2 * ranks)
    return torch.minimum(half, 2 * ranks - 1 - half)


def equal_work(work: Tensor, ranks: int) -> Tensor:
    """One run for each rank, such that the greatest work of a rank is as small as runs of whole tiles allow."""
    tiles = len(work)
    if tiles <= ranks:
        return torch.arange(tiles)
    done = [0.0, *work.double().cumsum(0).tolist()]
    low, high = done[-1] / ranks, done[-1] / ranks + float(work.max())
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if fill_runs(done, middle, ranks) >= tiles else (middle, high)
    limit, left = high * (1 + 1e-12), [done[-1] - x for x in reversed(done)]
    earliest = [tiles]  # where each run may begin at the earliest, so that those after it can take the rest
    for rank in range(1, ranks):
        earliest.append(tiles - max(bisect_right(left, left[tiles - earliest[-1]] + limit) - 1, rank))
    cuts, total = [0], done[-1]
    for rank in range(1, ranks):
        most = bisect_right(done, done[cuts[-1]] + limit) - 1
        ideal = bisect_right(done, done[cuts[-1]] + (total - done[cuts[-1]]) / (ranks - rank + 1)) - 1
        end = min(max(ideal, earliest[ranks - rank]), most)
        cuts.append(min(max(end, cuts[-1] + 1), tiles - (ranks - rank)))
    return torch.searchsorted(torch.tensor(cuts), torch.arange(tiles), right=True) - 1


def fill_runs(done: list[float], limit: float, ranks: int) -> int:
    """How many tiles so many runs of at most `limit` work take; `done [tiles + 1]` is the work before each tile."""
    end = 0
    for _ in range(ranks):
        end = max(bisect_right(done, done[end] + limit) - 1, end)
    return end


def longest_first(work: Tensor, ranks: int) -> Tensor:
    """Tile by tile, the longest first, to the rank with the least work: best balance, least locality."""
    owner = torch.zeros(len(work), dtype=torch.long)
    loads = [(0.0, rank) for rank in range(ranks)]
    for tile in torch.argsort(work, descending=True, stable=True).tolist():
        load, rank = heapq.heappop(loads)
        owner[tile] = rank
        heapq.heappush(loads, (load + float(work[tile]) + 1e-3, rank))
    return owner


STRATEGIES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "equal runs": equal_runs,
    "equal work": equal_work,
    "zigzag": zigzag,
    "longest first": longest_first,
}
"""Ways to share tiles out, in the order in which equals are preferred."""


def merge_tiles(tiles: Tensor, tile: int, tokens: int) -> Runs:
    """The tokens of some tiles (by number, in order) as runs."""
    if not len(tiles):
        return ()
    breaks = (tiles.diff() != 1).nonzero()[:, 0]
    starts = torch.cat([tiles[:1], tiles[breaks + 1]]) * tile
    ends = ((torch.cat([tiles[breaks], tiles[-1:]]) + 1) * tile).clamp(max=tokens)
    return tuple(zip(starts.tolist(), ends.tolist(), strict=True))


def owned_runs(owner: Tensor, ranks: int, tile: int, tokens: int) -> tuple[Runs, ...]:
    """The tokens of each rank, as runs."""
    return tuple(merge_tiles((owner == rank).nonzero()[:, 0], tile, tokens) for rank in range(ranks))


def tile_tokens(tiles: int, tile: int, tokens: int) -> Tensor:
    """Tokens of each tile; the last may have fewer."""
    first = torch.arange(tiles) * tile
    return (first + tile).clamp(max=tokens) - first
