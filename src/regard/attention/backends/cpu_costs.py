"""What attention costs on a CPU: by torch's fused kernel, by a few products (`dense`), or by the tiles of a mask.

Measured with one thread of an AMD EPYC (Zen 5) and torch 2.13, float32: random calls of 8 to 1,448 queries, 16 to
1,024 keys and heads of 16 to 256 dims for the first two, 64 to 2,048 tokens and heads of 64 dims for the tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch

from ..call import Call
from ..parts.mask import NONE, Tiling
from ..parts.masks import Causal, Everything
from ..parts.scores import Additive
from ..parts.tiles import tile_states
from .blockwise import schedule

ROWS, COLUMNS = 128, 64  # of a tile of `blockwise`
FEW_QUERIES = 32  # below which the tiles of a mask leave out too little
ONE_BLOCK = 8  # queries below which torch's fused kernel is faster than products
BLOCK = 32  # queries whose later keys it skips together under a causal mask
MADE = 5.0  # ns for each element of a bias that is made for the call
WAIT = 2000.0  # µs of a call from which on the contents of a new mask decide
DIM, SOFTMAX = (
    64,
    32,
)  # of tiles: the measured head_dim, and how many dims of products take as long as the rest of a pair
ELEMENTS = 1 << 20  # weights that `dense` may store; more leave the caches
ADDITIVE_ELEMENTS = 1 << 22  # pairs × head_dim of additive scores, likewise


@dataclass(frozen=True)
class MatrixCosts:
    """µs of a call over all pairs; ns of each row, each pair and each number of a product, the queries and the keys."""

    call: float
    row: float
    pair: float
    product: float
    query_dim: float
    key_dim: float

    def time(self, call: Call, share: float = 1.0) -> float:
        """µs of the call with that share of its pairs."""
        grid, dim = call.grid, (call.q.shape[-1] + call.v.shape[-1]) / 2
        rows = grid.batch * grid.heads * grid.queries
        pairs = rows * grid.keys * share
        products = (self.pair + self.product * dim) * pairs
        return self.call + 1e-3 * (self.row * rows + products) + self.numbers(call)

    def numbers(self, call: Call) -> float:
        """µs for reading the queries and keys, and for writing their gradients."""
        return 1e-3 * (self.query_dim * call.q.numel() + self.key_dim * call.k.numel())


@dataclass(frozen=True)
class TileCosts:
    """µs of a call, µs of each chunk of queries, and ns for each visited pair of a head."""

    call: float
    chunk: float
    pair: float

    def time(self, pairs: float, chunks: int = 0) -> float:
        """µs of a call with so many pairs."""
        return self.call + self.chunk * chunks + self.pair * pairs * 1e-3


# forward, and forward + backward
FUSED = MatrixCosts(3.9, 78.0, 0.18, 0.039, 0.1, 0.3), MatrixCosts(23.0, 96.0, 0.81, 0.13, 1.8, 0.76)
FUSED_MASKED = MatrixCosts(8.0, 40.0, 0.52, 0.041, 0.38, 0.12), MatrixCosts(25.0, 140.0, 0.77, 0.14, 0.97, 0.71)
FUSED_LEARNED = MatrixCosts(25.0, 0.0, 1.0, 0.033, 0.0, 0.0), MatrixCosts(400.0, 0.0, 5.3, 0.167, 0.0, 0.0)
DENSE = MatrixCosts(9.1, 18.0, 0.44, 0.036, 0.29, 0.21), MatrixCosts(48.0, 40.0, 0.5, 0.12, 0.69, 1.0)
DENSE_MASKED = MatrixCosts(12.0, 19.0, 0.56, 0.035, 0.27, 0.2), MatrixCosts(64.0, 21.0, 1.6, 0.11, 1.3, 0.57)
TILES = TileCosts(100.0, 80.0, 3.7), TileCosts(400.0, 250.0, 13.0)
TILES_BIASED = TileCosts(150.0, 80.0, 4.0), TileCosts(400.0, 250.0, 13.5)
TILES_BIASED_MASKED = TileCosts(150.0, 80.0, 5.0), TileCosts(400.0, 250.0, 17.0)
ADDITIVE, ADDITIVE_TILES = (  # for each dim of a pair instead of each pair
    (TileCosts(60.0, 0.0, 0.7), TileCosts(90.0, 0.0, 3.7)),
    (TileCosts(100.0, 80.0, 1.15), TileCosts(400.0, 250.0, 3.4)),
)


def fused_reason(call: Call, plain: bool, made: int) -> str | None:
    """Why torch's fused kernel would not be fastest.

    It needs no tensor besides q, k and v in a `plain` call; else `made` elements of a bias are made for each call.
    """
    if call.empty:
        return None
    few = count_weights(call) <= ELEMENTS
    if few and call.q.dtype == torch.bfloat16 and trains(call):
        return "torch's fused kernel rounds the weights to bfloat16 before their gradients"
    make = MADE * made * 1e-3
    fused, dense = fused_time(call, plain) + make, dense_time(call) + make
    tiles = None if plain else tiles_time(call, fused)
    if few and dense < fused and (tiles is None or dense <= tiles) and call.grid.queries >= ONE_BLOCK:
        return "the products of all pairs take less time than torch's fused kernel"
    if tiles is None or fused <= tiles:
        return None
    return "the tiles of the mask take less time than torch's kernels with a tensor"


def dense_reason(call: Call) -> str | None:
    """Why another backend would be faster than the products of all pairs."""
    weights = count_weights(call)
    if not weights:
        return None
    if weights > ELEMENTS:
        return f"it would store more than {ELEMENTS:,} weights"
    if isinstance(call.score, Additive):
        elements, step = weights * call.q.shape[-1], trains(call)
        tiles, dense = ADDITIVE_TILES[step].time(elements, count_chunks(call)), ADDITIVE[step].time(elements)
        many = elements > ADDITIVE_ELEMENTS or tiles < dense
        return "tiles take less time for additive scores of many pairs" if many else None
    dense = dense_time(call)
    return "the tiles of the mask take less time" if tiles_time(call, dense) < dense else None


def fused_time(call: Call, plain: bool) -> float:
    """µs of torch's fused kernel, with a tensor of mask and bias where it needs one."""
    queries = call.grid.queries
    if call.learns_position:
        return FUSED_LEARNED[trains(call)].time(call)
    if not plain:
        return FUSED_MASKED[trains(call)].time(call)
    share = min((queries + BLOCK) / (2 * queries), 1.0) if isinstance(call.mask, Causal) else 1.0
    return FUSED[trains(call)].time(call, share)


def dense_time(call: Call) -> float:
    """µs of the products of all pairs."""
    plain = isinstance(call.mask, Everything) and call.bias is None and not call.adds_bias
    return (DENSE if plain else DENSE_MASKED)[trains(call)].time(call)


def tiles_time(call: Call, limit: float) -> float:
    """µs of the mask's tiles; more than the limit where there are too few queries for them."""
    if call.grid.queries < FEW_QUERIES:
        return limit + 1.0
    biased, masked = call.adds_bias, not isinstance(call.mask, Everything)
    share = 1.0 if call.mask.tensors() and not reads_contents(call) else visited_share(call)
    costs = (TILES_BIASED_MASKED if masked else TILES_BIASED) if biased else TILES
    tiles = costs[trains(call)].time(weighted_pairs(call) * share, count_chunks(call))
    return tiles + DENSE_MASKED[trains(call)].numbers(call)


def reads_contents(call: Call) -> bool:
    """Whether the choice is worth looking at the contents of a mask, which every batch has anew."""
    new = bool(call.mask.tensors()) and call.mask.has_tiles
    return new and FUSED_MASKED[trains(call)].time(call) > WAIT


def trains(call: Call) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v))


def count_weights(call: Call) -> int:
    return call.grid.batch * call.grid.heads * call.grid.queries * call.grid.keys


def weighted_pairs(call: Call) -> float:
    """Pairs of all heads, in pairs of heads of the size that tiles were measured with."""
    dim = max(call.q.shape[-1], call.v.shape[-1])
    return count_weights(call) * (SOFTMAX + dim) / (SOFTMAX + DIM)


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
