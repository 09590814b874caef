"""What attention costs on a GPU: by torch's kernels, by the tiles of ours, or by products of all pairs.

All were measured on one card: `gpu_costs.json` says which, and when. `regard bench --calibrate` measures another card
and writes a file that is read instead: the one that `REGARD_GPU_COSTS` names, or `regard/gpu_costs.json` in the user's
cache folder. A call costs what the host needs to start it or what the GPU needs for its pairs, whichever is more. What
does not follow from those costs (few queries, uneven work, learned tables) was fitted to 200 random calls on that card.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from typing import Any

import torch

from ..errors import BadInput
from .call import Call
from .parts.mask import NONE, Tiling
from .parts.masks import Causal, Everything
from .parts.scores import Additive
from .parts.tiles import tile_states
from .tracing import in_cuda_graph

RECORDED = Path(__file__).with_name("gpu_costs.json")
LAYERS = 12  # attentions that share the mask of a batch, as the layers of a model do
TABLE_COST = 1.25  # of a pair of tiles with a bias by distance, beside one without
MAKE_PAIR = 8.0  # ps for an element of a large tensor of biases, once for the layers that share it
WAIT = 400.0  # µs of a call with a tensor from which on the contents of a new mask decide
TILE = 64
BLOCKS_AT_ONCE = {2: 396, 4: 132}  # of queries that the card runs, by bytes of a number: fewer take as long
SPLIT_QUERIES = 16  # up to which our kernels split the keys, so that few queries keep every multiprocessor busy
UNEVEN = 0.33  # of the time of multiprocessors without work that our kernels lose: they split long rows
LEARNED_COST = 1.6  # of a pair of tiles with a table that is learned: its gradient is one more pass
LEARNED_PRODUCTS = 700.0  # µs of torch's operations for that gradient, where products are taken
OPERATIONS = 1.7  # times as long the host starts products with a bias, or with a mask whose rows may be without keys
# Few queries wait for the keys: ps for each number of the keys (and one of the values), and µs for each key head of the
# batch, and for each key where one program reads them all, by bytes of a number.
READ_BY_FUSED = {2: (1.0, 0.03, 0.0), 4: (26.0, 0.03, 0.09)}
READ_BY_TILES = {2: (0.9, 0.035, 0.0), 4: (5.0, 0.012, 0.0)}
READ_BY_PRODUCTS = {2: (2.0, 0.035, 0.0), 4: (3.5, 0.01, 0.0)}
REPEATED = 4.0  # times as long products of half types take where heads share keys
WIDEST_PLAIN = 256  # head_dim up to which torch's kernels without a mask take heads that share keys
REPEATED_NUMBERS = 1 << 24  # of keys that are repeated for heads that share them, at most
WEIGHTS = 1 << 25  # that products may store where our kernels could run the call in memory linear in the sequence
WEIGHTS_ALONE = 1 << 28  # the same where they could not
PRODUCTS_FASTER = "products of all pairs take less time"
FORMULA_ELEMENTS = 1 << 25  # pairs × head_dim of additive scores up to which a GPU computes the formula as written
CPU_FORMULA_PAIRS = 1 << 16  # pairs with a cap, sink or bias by pair up to which a CPU does so
FEW_QUERIES = 32  # up to which tiles of additive scores stay mostly empty, and few queries have kernels of their own
SOME_QUERIES = 64  # the same where there are few keys, or so many value dims that tiles compute scores twice
FEW_KEYS = 128
WIDE_VALUES = 256
WIDE_HEADS = 128  # beyond which tiles of float32 leave the registers in the gradient of a learned table
WIDE_PAIRS = 1 << 25  # pairs of such heads up to which a GPU computes the formula as written
MAX_TILES = 1 << 16  # tiles that are counted for a decision; more are taken to be worth a list


@dataclass(frozen=True)
class KernelCosts:
    """µs on the host, and ps for each pair of a head, by its dims."""

    host: float
    pair: Mapping[int, float]

    def time(self, pairs: float, dim: int) -> float:
        """µs of a call with so many pairs."""
        return max(self.host, self.pair_time(dim) * pairs * 1e-6)

    def pair_time(self, dim: int) -> float:
        """ps of a pair, on a line between the dims that were measured, and beyond the largest in proportion to it."""
        dims = sorted(self.pair)
        above = next((i for i, x in enumerate(dims) if x >= dim), len(dims))
        if above == len(dims):
            return self.pair[dims[-1]] * dim / dims[-1]
        low, high = dims[max(above - 1, 0)], dims[above]
        share = (dim - low) / (high - low) if dim > low else 0.0
        return self.pair[low] + share * (self.pair[high] - self.pair[low])

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> KernelCosts:
        """The costs that `dataclasses.asdict` made a record of, perhaps as JSON."""
        return cls(record["host"], {int(dim): float(time) for dim, time in record["pair"].items()})


@dataclass(frozen=True)
class PassCosts:
    """Of calls with one element size, forward or with backward.

    `tensor` is torch's fused kernels, `tiles` ours, `products` the formula by products of matrices. The `lists` of a
    mask's tiles take µs on the host once, a table by distance that is `learned` so many more of ours at each call.
    """

    tensor: KernelCosts
    tiles: KernelCosts
    products: KernelCosts
    lists: float
    learned: float

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> PassCosts:
        """The costs that `dataclasses.asdict` made a record of."""
        kernels = {name: KernelCosts.from_dict(record[name]) for name in ("tensor", "tiles", "products")}
        return cls(**kernels, lists=record["lists"], learned=record["learned"])


def costs_file() -> Path:
    """The file that a measurement on this machine is written to and read from."""
    named = os.environ.get("REGARD_GPU_COSTS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else cache / "regard" / "gpu_costs.json"


@functools.cache
def read_costs() -> dict[str, PassCosts]:
    """The measured costs, by `"2 forward"`, `"2 training"`, `"4 forward"`, `"4 training"` (bytes of an element)."""
    path = costs_file() if costs_file().is_file() else RECORDED
    try:
        return {kind: PassCosts.from_dict(values) for kind, values in json.loads(path.read_text())["costs"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{path} has no costs of attention ({error}). Delete it, or write it anew: regard bench --calibrate."
        ) from None


def fused_reason(call: Call, plain: bool, made: int, tiled: bool) -> str | None:
    """Why torch's fused kernels would not be fastest.

    They need no tensor besides q, k and v in a `plain` call. A tensor of biases of which only a few are kept costs the
    time that its `made` elements take. Our kernels can run the call if `tiled`.
    """
    if call.empty or call.sink is not None or (plain and call.q.dtype.itemsize == 2 and widest(call) <= WIDEST_PLAIN):
        return None
    if torch.compiler.is_compiling():  # a graph serves every length
        return "torch has no fused kernel for these" if tiled and not has_fused_kernel(call, plain) else None
    fused = fused_time(call, plain) + made * MAKE_PAIR * 1e-6 / LAYERS
    tiles = tiles_time(call, fused) if tiled else inf
    products = products_time(call, tiled)
    if fused <= min(tiles, products):
        return None
    return PRODUCTS_FASTER if products < tiles else "the tiles of the mask take less time than torch's kernels"


def tiles_reason(call: Call) -> str | None:
    """Why our kernels would not be fastest, where torch's cannot run the call or take longer."""
    if formula_is_faster(call):
        return "the formula is faster for so few pairs"
    if call.empty or isinstance(call.score, Additive) or torch.compiler.is_compiling():
        return None
    products = products_time(call, tiled=True)
    return PRODUCTS_FASTER if products < tiles_time(call, products) else None


def products_reason(call: Call, tiled: bool) -> str | None:
    """Why the products of all pairs would not be fastest, where torch's fused kernels cannot run the call."""
    if torch.compiler.is_compiling():
        return "a compiled graph serves every length"
    if isinstance(call.score, Additive):
        return "additive scores are no products"
    products = products_time(call, tiled)
    if products == inf:
        return f"it would store more than {WEIGHTS if tiled else WEIGHTS_ALONE:,} weights"
    return "tiles take less time" if tiled and tiles_time(call, products) <= products else None


def fused_time(call: Call, plain: bool) -> float:
    """µs of torch's fused kernels, which compute every pair, or half of them under a plain causal mask."""
    if not has_fused_kernel(call, plain):
        return inf
    share = 0.5 if plain and isinstance(call.mask, Causal) else 1.0
    time = pass_costs(call).tensor.time(share * count_pairs(call, whole_blocks=True), widest(call))
    return max(time, read_time(call, READ_BY_FUSED))


def has_fused_kernel(call: Call, plain: bool) -> bool:
    """Whether torch has a fused kernel for the call: where heads share keys it often stores every weight instead."""
    shared = plain and call.q.dtype.itemsize < 4 and widest(call) <= WIDEST_PLAIN
    return call.q.shape[1] == call.k.shape[1] or shared or repeats_heads(call)


def repeats_heads(call: Call) -> bool:
    """Whether keys that heads share are repeated for torch's kernels on a GPU, where few take them as they are."""
    plain = call.position is call.bias is None and isinstance(call.mask, Everything | Causal)
    shared = plain and call.q.dtype.itemsize < 4 and widest(call) <= WIDEST_PLAIN
    numbers = call.k.shape[0] * call.q.shape[1] * call.k.shape[2] * widest(call)
    return call.q.is_cuda and not shared and numbers <= REPEATED_NUMBERS and not torch.compiler.is_compiling()


def tiles_time(call: Call, limit: float) -> float:
    """µs of the mask's tiles. They are counted only where the call could take less than the limit."""
    costs, new_mask = pass_costs(call), bool(call.mask.tensors())
    learns = call.learns_position and trains(call)
    few = call.grid.queries <= SPLIT_QUERIES  # which need no lists
    least = (costs.lists / LAYERS if new_mask and not few else 0.0) + (costs.learned if learns else 0.0)
    if few:
        padded = (1 << (widest(call) - 1).bit_length()) / widest(call)  # which tiles are padded to
        return max(least + costs.tiles.host, read_time(call, READ_BY_TILES) * padded)
    if least + costs.tiles.host >= limit:
        return least + costs.tiles.host
    counted = not isinstance(call.mask, Everything) and (not new_mask or reads_contents(call))
    pairs = max(count_pairs(call), count_pairs(call, whole_blocks=True) * UNEVEN)
    pairs *= visited_share(call) if counted else 1.0
    pairs *= (TABLE_COST if call.adds_bias else 1.0) * (LEARNED_COST if learns else 1.0)
    return least + costs.tiles.time(pairs, 1 << (widest(call) - 1).bit_length())  # which tiles are padded to


def products_time(call: Call, tiled: bool) -> float:
    """µs of the products of all pairs; ∞ where that needs too much memory, or scores are more than numbers by pair."""
    vectors = call.position is not None and call.position.dot_only and not call.position.rotates
    pairs = count_pairs(call)
    if vectors or call.edges is not None or isinstance(call.score, Additive) or in_cuda_graph():
        return inf
    if pairs > (WEIGHTS if tiled else WEIGHTS_ALONE):
        return inf
    kernels = pass_costs(call).products
    learned = LEARNED_PRODUCTS if call.learns_position and trains(call) else 0.0
    made = OPERATIONS if call.mask.tensors() or call.adds_bias else 1.0
    repeated = REPEATED if call.q.dtype.itemsize == 2 and call.q.shape[1] != call.k.shape[1] else 1.0
    read = read_time(call, READ_BY_PRODUCTS) * repeated
    return learned + max(kernels.host * made, kernels.time(pairs, widest(call)), read)


def read_time(call: Call, read: dict[int, tuple[float, float, float]]) -> float:
    """µs for reading the keys, which takes longer than the pairs of few queries."""
    number, head, key = read[min(call.q.dtype.itemsize, 4)]
    time = number * call.k.numel() * 1e-6 + head * call.k.shape[0] * call.k.shape[1]
    return max(time, key * call.k.shape[2])


def reads_contents(call: Call) -> bool:
    """Whether it is worth waiting for the GPU to learn how many tiles a new mask with tensors has."""
    return bool(call.mask.tensors()) and WAIT < fused_time(call, plain=False) < inf


def pass_costs(call: Call) -> PassCosts:
    """The costs of calls such as this one."""
    size = min(call.q.dtype.itemsize, 4)  # float64, which no kernel is timed with, costs at least what float32 does
    return read_costs()[f"{size} {'training' if trains(call) else 'forward'}"]


def trains(call: Call) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v))


def widest(call: Call) -> int:
    return max(call.q.shape[-1], call.v.shape[-1])


def count_pairs(call: Call, whole_blocks: bool = False) -> float:
    """Pairs of all heads; in `whole_blocks` the card is never left with fewer than it runs at once."""
    grid = call.grid
    if not whole_blocks:
        return grid.batch * grid.heads * grid.queries * grid.keys
    blocks, at_once = grid.batch * grid.heads * ceil(grid.queries / TILE), BLOCKS_AT_ONCE[min(call.q.dtype.itemsize, 4)]
    return ceil(blocks / at_once) * at_once * TILE * grid.keys


def formula_is_faster(call: Call) -> bool:
    """Whether the formula as it is written is expected to be faster than kernels, for few pairs.

    So it is on a GPU with additive scores, and with a learned table beside wide heads of float32; and on a CPU with
    vectors by distance and a cap, a sink or a bias by pair (without vectors, the products of `dense` come first).
    """
    if torch.compiler.is_compiling():
        return False
    grid = call.grid
    pairs = grid.batch * grid.heads * grid.queries * grid.keys
    others = call.score.cap is not None or call.sink is not None or call.bias is not None
    if not call.q.is_cuda:
        return others and pairs <= CPU_FORMULA_PAIRS and not isinstance(call.score, Additive)
    if not isinstance(call.score, Additive):
        return pairs <= WIDE_PAIRS and learns_wide_table(call)
    alone = call.position is call.bias is call.score.cap is None and not call.dropout
    if alone and few_additive_queries(grid.queries, grid.keys, call.v.shape[-1]):
        return False
    return pairs * call.q.shape[-1] <= FORMULA_ELEMENTS


def few_additive_queries(queries: int, keys: int, value_dim: int) -> bool:
    """Whether additive scores of so few queries are computed pair by pair, without tiles."""
    few = queries <= SOME_QUERIES and (value_dim > WIDE_VALUES or keys <= FEW_KEYS)
    return queries <= FEW_QUERIES or few


def learns_wide_table(call: Call) -> bool:
    """Whether a gradient of the position's own tensors is needed beside heads that are too wide for float32 tiles."""
    return call.learns_position and call.q.dtype.itemsize >= 4 and widest(call) > WIDE_HEADS


def visited_share(call: Call) -> float:
    """The share of a mask's tiles that are not empty."""
    grid = call.grid
    on_cpu = call.mask.has_tiles and not call.mask.tensors()  # else pairs are evaluated, or contents are on the GPU
    tiling = Tiling(replace(grid, device="cpu") if on_cpu else grid, TILE, TILE)
    if tiling.shape[0] * tiling.shape[1] > MAX_TILES:
        return 0.0
    return float((tile_states(call.mask, tiling) != NONE).float().mean())
