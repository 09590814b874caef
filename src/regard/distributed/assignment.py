"""Which rank owns which tiles of a sequence: four ways to share them out.

Each takes the work of every tile of queries (the number of key tiles that its rows visit) and returns the rank of each.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import torch
from torch import Tensor

Runs = tuple[tuple[int, int], ...]
"""Consecutive tokens as (first, last + 1), in order."""


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
    """One run for each rank, cut where the work before it reaches the rank's share; every rank has a tile if it can."""
    done = work.double().cumsum(0) - work.double() / 2
    wanted = (done * ranks / work.double().sum().clamp(min=1)).long().tolist()
    owner, rank = [], -1
    for tile, ideal in enumerate(wanted):
        left = ranks - (len(wanted) - tile)  # the least rank that leaves a tile for each of those after it
        rank = min(max(ideal, rank, left, 0), rank + 1, ranks - 1)
        owner.append(rank)
    return torch.tensor(owner, dtype=torch.long)


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
    runs: list[tuple[int, int]] = []
    for first in (tiles * tile).tolist():
        last = min(first + tile, tokens)
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], last)
        else:
            runs.append((first, last))
    return tuple(runs)
