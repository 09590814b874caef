"""What attention with a mask costs on a GPU: every pair by torch's kernels, or the mask's tiles by ours.

Both were measured on one card: `gpu_costs.json` says which, and when. `regard bench --calibrate` measures another card
and writes a file that is read instead: the one that `REGARD_GPU_COSTS` names, or `regard/gpu_costs.json` in the user's
cache folder. A call costs what the host needs to start it or what the GPU needs for its pairs, whichever is more.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..errors import BadInput
from .call import Call
from .parts.mask import NONE, Tiling
from .parts.scores import Additive
from .parts.tiles import tile_states

RECORDED = Path(__file__).with_name("gpu_costs.json")
HEAD_DIM = 64  # of the calls that were measured; the cost of a pair is proportional to it
LAYERS = 12  # attentions that share the mask of a batch, as the layers of a model do
TABLE_COST = 1.25  # of a pair with a table by distance: what ours takes more than torch's kernels with a tensor do
MAKE_PAIR = 8.0  # ps for an element of a large tensor of biases, once for the layers that share it
WAIT = 400.0  # µs of a dense call from which on the contents of a new mask decide
TILE = 64
ASSUMED: ContextVar[Mapping[str, PassCosts] | None] = ContextVar("costs in place of the measured ones", default=None)
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
class PassCosts:
    """Of calls with one element size, forward or with backward: µs on the host, and ps for each pair of a head."""

    dense_host: float
    dense_pair: float
    tiles_host: float
    tiles_pair: float
    lists: float  # µs, once for a mask

    def dense(self, pairs: float) -> float:
        """µs for all pairs with the mask as a tensor."""
        return max(self.dense_host, self.dense_pair * pairs * 1e-6)

    def tiles(self, pairs: float, new_mask: bool) -> float:
        """µs for the pairs of the visited tiles, with a share of the lists where every batch has a new mask."""
        return max(self.tiles_host, self.tiles_pair * pairs * 1e-6) + (self.lists / LAYERS if new_mask else 0.0)


def costs_file() -> Path:
    """The file that a measurement on this machine is written to and read from."""
    named = os.environ.get("REGARD_GPU_COSTS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else cache / "regard" / "gpu_costs.json"


@contextmanager
def assume_costs(costs: Mapping[str, PassCosts]) -> Iterator[None]:
    """While open, calls that are planned for the first time are planned with these costs."""
    token = ASSUMED.set(costs)
    try:
        yield
    finally:
        ASSUMED.reset(token)


@functools.cache
def read_costs() -> dict[str, PassCosts]:
    """The measured costs, by `"2 forward"`, `"2 training"`, `"4 forward"`, `"4 training"` (bytes of an element)."""
    path = costs_file() if costs_file().is_file() else RECORDED
    try:
        return {kind: PassCosts(**values) for kind, values in json.loads(path.read_text())["costs"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{path} has no costs of attention ({error}). Delete it, or write it anew: regard bench --calibrate."
        ) from None


def dense_is_faster(call: Call, made: int = 0) -> bool:
    """Whether torch's kernels, with the mask as a tensor, are expected to run a call faster than the mask's tiles.

    A tensor of biases of which only a few are kept costs the time that its `made` elements take.
    """
    costs, pairs, new_mask = pass_costs(call), weighted_pairs(call), bool(call.mask.tensors())
    dense = costs.dense(pairs) + made * MAKE_PAIR * 1e-6 / LAYERS
    if dense <= costs.tiles(0.0, new_mask) or (new_mask and not reads_contents(call)):
        return True
    table = call.position is not None and bool(call.position.tensors())
    return dense <= costs.tiles(pairs * visited_share(call) * (TABLE_COST if table else 1.0), new_mask)


def reads_contents(call: Call) -> bool:
    """Whether it is worth waiting for the GPU to learn how many tiles a new mask with tensors has."""
    return bool(call.mask.tensors()) and pass_costs(call).dense(weighted_pairs(call)) > WAIT


def pass_costs(call: Call) -> PassCosts:
    """The costs of calls such as this one."""
    training = torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v))
    size = min(call.q.dtype.itemsize, 4)  # float64, which no kernel is timed with, costs at least what float32 does
    return (ASSUMED.get() or read_costs())[f"{size} {'training' if training else 'forward'}"]


def weighted_pairs(call: Call) -> float:
    """Pairs of all heads, each as many times as its head_dim is that of the calls that were measured."""
    grid, width = call.grid, max(call.q.shape[-1], call.v.shape[-1]) / HEAD_DIM
    return grid.batch * grid.heads * grid.queries * grid.keys * width


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
    return call.learns_position and call.q.dtype.itemsize >= 4 and max(call.q.shape[-1], call.v.shape[-1]) > WIDE_HEADS


def visited_share(call: Call) -> float:
    """The share of a mask's tiles that are not empty."""
    grid = call.grid
    on_cpu = call.mask.has_tiles and not call.mask.tensors()  # else pairs are evaluated, or contents are on the GPU
    tiling = Tiling(replace(grid, device="cpu") if on_cpu else grid, TILE, TILE)
    if tiling.shape[0] * tiling.shape[1] > MAX_TILES:
        return 0.0
    return float((tile_states(call.mask, tiling) != NONE).float().mean())
