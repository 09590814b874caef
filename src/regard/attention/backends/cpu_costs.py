"""What attention costs on a CPU: all pairs by torch, with mask and bias as a tensor, or the tiles of the mask by ours.

Measured with one thread of an AMD EPYC (Zen 5) and torch 2.13, float32, heads of 64 dims, 64 to 2,048 tokens, 1 to 32
heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch

from ..call import Call
from ..parts.mask import NONE, Tiling
from ..parts.masks import Everything
from ..parts.tiles import tile_states
from .blockwise import schedule

ROWS, COLUMNS = 128, 64  # of a tile of `blockwise`
FEW_QUERIES = 32  # below which the tiles of a mask leave out too little
MADE = 5.0  # ns for each element of a bias that is made for the call
WAIT = 2000.0  # µs of a dense call from which on the contents of a new mask decide
DIM, SOFTMAX = 64, 32  # the measured head_dim, and how many dims of products take as long as the rest of a pair


@dataclass(frozen=True)
class CpuCosts:
    """µs of a call, µs of each chunk of queries, and ns for each pair of a head."""

    call: float
    chunk: float
    pair: float

    def time(self, pairs: float, chunks: int = 0) -> float:
        """µs of a call with so many pairs."""
        return self.call + self.chunk * chunks + self.pair * pairs * 1e-3


# forward, and forward + backward
DENSE = CpuCosts(25.0, 0.0, 3.1), CpuCosts(100.0, 0.0, 10.3)
DENSE_LEARNED = CpuCosts(25.0, 0.0, 3.1), CpuCosts(400.0, 0.0, 16.0)  # with the gradient of a bias
TILES = CpuCosts(100.0, 80.0, 3.7), CpuCosts(400.0, 250.0, 13.0)
TILES_BIASED = CpuCosts(150.0, 80.0, 4.0), CpuCosts(400.0, 250.0, 13.5)
TILES_BIASED_MASKED = CpuCosts(150.0, 80.0, 5.0), CpuCosts(400.0, 250.0, 17.0)


def dense_is_faster(call: Call, biased: bool, learned: bool, made: int) -> bool:
    """Whether a mask or bias as a tensor, of which `made` elements are made for each call, is expected to be faster."""
    grid = call.grid
    if grid.queries < FEW_QUERIES:
        return True
    masked, pairs = not isinstance(call.mask, Everything), weighted_pairs(call)
    dense = (DENSE_LEARNED if learned else DENSE)[trains(call)].time(pairs) + MADE * made * 1e-3
    share = 1.0 if call.mask.tensors() and not reads_contents(call) else visited_share(call)
    costs = (TILES_BIASED_MASKED if masked else TILES_BIASED) if biased else TILES
    return dense <= costs[trains(call)].time(pairs * share, count_chunks(call))


def reads_contents(call: Call) -> bool:
    """Whether the choice is worth looking at the contents of a mask, which every batch has anew."""
    return bool(call.mask.tensors()) and call.mask.has_tiles and DENSE[trains(call)].time(weighted_pairs(call)) > WAIT


def trains(call: Call) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v))


def weighted_pairs(call: Call) -> float:
    """Pairs of all heads, in pairs of heads of the measured size."""
    grid, dim = call.grid, max(call.q.shape[-1], call.v.shape[-1])
    return grid.batch * grid.heads * grid.queries * grid.keys * (SOFTMAX + dim) / (SOFTMAX + DIM)


def count_chunks(call: Call) -> int:
    """The chunks of queries, with a batch row each where masks differ by it."""
    grid = call.grid
    together = 1 if call.mask.tensors() else max(schedule.ELEMENTS // (grid.heads * ROWS * min(grid.keys, 2048)), 1)
    return ceil(grid.queries / ROWS) * ceil(grid.batch / together)


def visited_share(call: Call) -> float:
    """The share of a mask's tiles that are not empty."""
    if not call.mask.has_tiles:
        return 1.0
    return float((tile_states(call.mask, Tiling(call.grid, ROWS, COLUMNS)) != NONE).float().mean())
