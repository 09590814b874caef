"""Forward and backward pass of additive attention: score = Σ_d weight · act(q + k) with act = tanh or leaky ReLU.

The score is no matrix product: it costs an activation for each (query, key, d). Three ideas keep them cheap:

- tanh(q + k) = 1 − 2r with r = 1 / (1 + e^2q · e^2k): the exponentials are taken once per token, and two reciprocals
  cost one, w₁/m₁ + w₂/m₂ = (w₁m₂ + w₂m₁) / (m₁m₂); in forward four do. Where the product could overflow,
  a tile takes r = 1 / (1 + e^2(q+k)) for each element.
- leaky(x) = slope · x + (1 − slope) · max(x, 0): the first part is one term per query and one per key.
- A thread owns a patch of queries × keys, so that a step in d loads few numbers for many elements.

Backward works through the listed tiles in ranges. It leaves each tile's ds (and weights, for dv) in scratch memory of a
fixed size; then a program that owns rows (or columns) and a few d sums over tiles in registers:

    dq = weight Σ_j ds · act′,   dk = weight Σ_i ds · act′,   dweight = Σ_ij ds · act,   dv = Σ_i keep·p·do
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...backends.sinks import add_sink
from ...call import LoweredCall
from ...dropout import keep_scale, threshold
from ...execution import mask_cache
from ..launch import LOG2E, PairLayout, PlacedTable, compile_together, next_power, pack_places, pad_dot, start, strides
from ..tile_lists import TileLists, tile_lists
from . import rows
from .kernels import (
    d_placed_bias_kernel,
    d_rel_bias_kernel,
    delta_kernel,
    dk_kernel,
    dq_kernel,
    ds_kernel,
    dv_kernel,
    forward_kernel,
    prepare_kernel,
)


class ThreadPatch(NamedTuple):
    """A tile of rm·tm queries × rn·tn keys; a thread has rm × rn of them, and at most `registers` (0: no limit)."""

    rm: int
    rn: int
    tm: int
    tn: int
    warps: int
    registers: int = 0

    @property
    def rows(self) -> int:
        return self.rm * self.tm

    @property
    def columns(self) -> int:
        return self.rn * self.tn

    def arguments(self) -> dict[str, int]:
        """The patch as a kernel's arguments; one stage: no load is worth a copy to shared memory."""
        limit = {"maxnreg": self.registers} if self.registers else {}
        return dict(RM=self.rm, RN=self.rn, TM=self.tm, TN=self.tn, num_warps=self.warps, num_stages=1) | limit


class AdditiveShapes(NamedTuple):
    """The patch of each kernel; the last three cut the same tiles, for they read each other's scratch memory."""

    forward: ThreadPatch
    ds: ThreadPatch
    dq: ThreadPatch
    dk: ThreadPatch


SHAPES = {  # by the bytes of a number
    2: AdditiveShapes(
        ThreadPatch(4, 8, 16, 16, 8),
        ThreadPatch(4, 8, 16, 16, 8, registers=128),
        ThreadPatch(2, 16, 32, 8, 8, registers=128),
        ThreadPatch(8, 4, 8, 32, 8, registers=128),
    ),
    4: AdditiveShapes(*[ThreadPatch(4, 4, 16, 16, 8)] * 4),
}
NARROW = ThreadPatch(8, 4, 8, 16, 4)  # forward, for half types and heads of at most 64, or at most 64 keys
VALUES = 256  # value dims that a program of forward owns
PRECISION = "tf32x3"  # float32 products: three on tensor cores, as exact as one without them
UNROLL = 4  # pairs of d in one step of the loop over d
OWNED = 8  # d that a program owns in backward
SCRATCH = 1 << 29  # bytes
REL_BIAS_PROGRAMS = 1024  # programs that sum ds by distance, over all batch rows and heads


@dataclass(frozen=True)
class AdditiveInputs:
    """A problem's tensors in the layout of the kernels, for one tile size."""

    problem: LoweredCall
    patch: ThreadPatch
    tiles: TileLists
    weight: Tensor  # [heads, DP], float32, zeros beyond head_dim
    q_pairs: Tensor  # int64 [batch · heads, planes, DP / 2, padded queries]
    k_pairs: Tensor  # int64 [batch · kv_heads, planes, DP / 2, padded keys]
    absmax_q: Tensor  # [batch · heads, tile rows]
    absmax_k: Tensor  # [batch · kv_heads, tile columns]
    term_q: Tensor  # [batch · heads, padded queries]
    term_k: Tensor  # [batch · heads, padded keys]
    v: Tensor
    places: Tensor  # any tensor where there are none

    @property
    def tanh(self) -> bool:
        return self.problem.activation == "tanh"

    @property
    def dp(self) -> int:
        return self.weight.shape[1]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(padded queries, padded keys, tile rows, tile columns)."""
        return self.q_pairs.shape[-1], self.k_pairs.shape[-1], self.absmax_q.shape[1], self.absmax_k.shape[1]

    @property
    def shapes(self) -> AdditiveShapes:
        return choose_shapes(self.problem)

    @property
    def tokens(self) -> tuple[Tensor, ...]:
        """What every kernel of backward reads of queries, keys and weight."""
        return self.q_pairs, self.k_pairs, self.weight, self.absmax_q, self.absmax_k

    @property
    def rel_bias(self) -> Tensor:
        """The distance bias; any tensor where there is none, and so for the seed."""
        bias = self.problem.rel_bias
        if bias is None:
            return self.weight
        return bias.slopes[:, None] if self.placed_table and bias.slopes is not None else bias.table.contiguous()

    @property
    def placed_table(self) -> PlacedTable | None:
        return PlacedTable.of(self.problem)

    @property
    def pairs(self) -> Tensor:
        """The bias by pair; any tensor where there is none."""
        return self.weight if self.problem.pair_bias is None else self.problem.pair_bias

    @property
    def seed(self) -> Tensor:
        return self.weight if self.problem.seed is None else self.problem.seed

    @property
    def settings(self) -> tuple[float | None, ...]:
        """(entries of rel_bias, zero, threshold, keep_scale, slope, cap in base 2, strides of the bias by pair, of the
        places)."""
        p = self.problem
        zero = 0 if p.rel_bias is None else p.rel_bias.zero
        cap = None if p.cap is None else p.cap * LOG2E
        layout = PairLayout.of(p.pair_bias)
        steps = (0,) * 4 if layout is None else layout.strides
        table = (self.rel_bias.shape[1], zero)
        return *table, threshold(p.dropout), keep_scale(p.dropout), p.slope, cap, *steps, self.place_stride

    @property
    def place_stride(self) -> int:
        return self.places.shape[1] if self.placed_table is not None and self.placed_table.by_batch else 0

    @property
    def constants(self) -> dict[str, Any]:
        """What kernels that compute scores are compiled for."""
        p = self.problem
        parts = dict(TANH=self.tanh, REL_BIAS=p.rel_bias is not None, PAIR_BIAS=p.pair_bias is not None)
        slopes = p.rel_bias is not None and p.rel_bias.slopes is not None
        parts |= dict(PLACED=0 if self.placed_table is None else 2 if slopes else 1)
        parts |= dict(DROPOUT=p.seed is not None, PRECISION=PRECISION)
        return parts | dict(DP=self.dp, DV=p.v.shape[3], UNROLL=min(UNROLL, self.dp // 2))


def choose_shapes(p: LoweredCall) -> AdditiveShapes:
    """The patches by the size of a number; small tiles for few keys, which would fill half of a large one."""
    size = p.v.element_size()
    few = p.k.shape[2] <= SHAPES[4].ds.columns < SHAPES[size].ds.columns
    return SHAPES[4] if few else SHAPES[size]


def prepare(p: LoweredCall, patch: ThreadPatch) -> AdditiveInputs:
    """The exponentials (or the numbers themselves) with tokens last, and the terms of single tokens."""
    heads, kv_heads, head_dim = p.q.shape[1], p.k.shape[1], p.q.shape[3]
    step = max(OWNED, 2 * UNROLL)
    dp = next((n for n in (2, 4) if head_dim <= n), -(-head_dim // step) * step)  # head_dim as the loops over d take it
    weight = torch.nn.functional.pad(require(p.weight).float(), (0, dp - head_dim)).contiguous()
    planes = 2 if p.activation == "tanh" else 1
    made = []
    for x, size, group_size, query in ((p.q, patch.rows, 1, True), (p.k, patch.columns, heads // kv_heads, False)):
        x = x if x.stride(-1) == 1 else x.contiguous()
        batch, own, tokens, _ = x.shape
        tiles = -(-tokens // size)
        pairs = x.new_empty(batch * own, planes, dp // 2, tiles * size, dtype=torch.int64)
        absmax = x.new_empty(batch * own, tiles, dtype=torch.float32)
        term = x.new_empty(batch * heads, tiles * size, dtype=torch.float32)
        start(
            prepare_kernel, (tiles, batch * own),
            x, weight, pairs, absmax, term, *strides(x), own, group_size, tokens, tiles * size, head_dim, p.slope,
            TANH=planes == 2, QUERY=query, DP=dp, BT=size, BP=min(16, next_power(dp // 2)), num_warps=4,
        )  # fmt: skip
        made.append((pairs, absmax, term))
    (q_pairs, absmax_q, term_q), (k_pairs, absmax_k, term_k) = made
    v = p.v if p.v.stride(-1) == 1 else p.v.contiguous()
    tiles = tile_lists(p.mask, p.grid, patch.rows, patch.columns)
    places = pack_places(p)
    places = weight if places is None else places
    return AdditiveInputs(p, patch, tiles, weight, q_pairs, k_pairs, absmax_q, absmax_k, term_q, term_k, v, places)


def require(x: Tensor | None) -> Tensor:
    """A tensor that every additive problem has."""
    if x is None:
        raise TypeError("Additive attention needs its weight.")
    return x


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """(output, lse) of an additive problem, both in float32 where gradients need them."""
    if rows.covers(p):
        return add_sink(*rows.forward(p), p.sink)
    needs_grad = any(p.needs_grad)

    def run_both() -> None:
        output, lse = run_forward(p)
        if needs_grad:
            backward(p, torch.empty_like(output, dtype=p.v.dtype), output, lse)

    parts = (p.activation, p.rel_bias is None, p.seed is None, needs_grad, p.cap is None, PairLayout.of(p.pair_bias))
    parts = (*parts, p.places is None)
    compile_together((forward, p.q.device, p.v.dtype, p.q.shape[3], p.v.shape[3], *parts), run_both)
    return add_sink(*run_forward(p), p.sink)


def run_forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """`forward` with kernels that are compiled one by one where they are new."""
    batch, heads, queries, _ = p.q.shape
    kv_heads, keys, dim_v = p.v.shape[1:]
    lse = p.v.new_empty(batch, heads, queries, dtype=torch.float32)
    if not queries * dim_v * batch * heads or not keys:
        return p.v.new_zeros(batch, heads, queries, dim_v, dtype=torch.float32), lse.fill_(-math.inf)
    narrow = p.v.element_size() == 2 and (p.q.shape[3] <= 64 or keys <= NARROW.columns)
    inputs = prepare(p, NARROW if narrow else choose_shapes(p).forward)
    tiles, outputs = inputs.tiles, []
    for v in inputs.v.split(VALUES, -1):  # scores are computed again for each
        outputs.append(v.new_empty(batch, heads, queries, v.shape[3], dtype=torch.float32))
        start(
            forward_kernel, (inputs.sizes[2] * batch * heads,),
            *inputs.tokens, inputs.term_q, inputs.term_k, v, inputs.rel_bias, inputs.pairs, inputs.places, inputs.seed,
            tiles.starts, tiles.tile, tiles.bits, tiles.packed, outputs[-1], lse, *strides(v),
            heads, kv_heads, queries, keys, *inputs.sizes, tiles.batch_stride, tiles.head_stride, *inputs.settings,
            **inputs.constants | dict(DV=v.shape[3], BDV=pad_dot(v.shape[3])), **inputs.patch.arguments(),
        )  # fmt: skip
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1), lse


def backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight, rel_bias and pair_bias; None for rel_q and rel_vectors, which these have not."""
    if not output.numel() or not p.k.shape[2]:
        table = None if p.rel_bias is None else p.rel_bias.table
        tensors = (p.q, p.k, p.v, p.weight, table, None, None, p.pair_bias)
        return [None if x is None else torch.zeros_like(x) for x in tensors]
    if rows.covers(p):
        return rows.backward(p, grad, output, lse)
    inputs = prepare(p, choose_shapes(p).ds)
    sums = GradientSums(inputs)
    kernels = AdditiveBackward(inputs, sums, grad.contiguous(), output.contiguous(), lse.contiguous())
    for tiles in kernels.ranges:
        kernels.ds(tiles)
        kernels.dq(tiles)
        kernels.dk(tiles)
        kernels.dv(tiles)
        if sums.by_distance is not None:
            kernels.d_rel_bias(tiles, sums.by_distance)
        if sums.pairs is not None:
            kernels.d_pair_bias(tiles, sums.pairs)
    return sums.gradients()


@dataclass(frozen=True)
class TilesByColumn:
    """The listed tiles, numbered as in `TileLists.tile`, and the same tiles column by column."""

    owner: Tensor  # int32 [n]: group · tile rows + row
    order: Tensor  # int32 [n]: the tiles by (group, column, row)
    key: Tensor  # int64 [n]: (group · tile columns + column) · n + tile, in that order
    columns: int  # tile columns of all groups
    ranges: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def between(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Where in `order` each column's tiles of number first … last − 1 begin and end."""
        if (first, last) not in self.ranges:
            base = torch.arange(self.columns, device=self.order.device) * max(len(self.order), 1)
            begin, end = (torch.searchsorted(self.key, base + x).int() for x in (first, last))
            self.ranges[first, last] = begin, end
        return self.ranges[first, last]


def order_by_column(tiles: TileLists, columns: int) -> TilesByColumn:
    """The tiles of lists with `columns` columns of tiles, by column."""
    owner, count = tiles.owners(), len(tiles.tile)
    column = owner // tiles.lists * columns + tiles.tile
    key, order = torch.sort(column * count + torch.arange(count, device=owner.device))
    return TilesByColumn(owner.int(), order.int(), key, columns * tiles.groups)


class TileRange(NamedTuple):
    """Tiles first … last − 1 of each of some instances: the (batch, head) that share a group's lists."""

    instance: int
    instances: int
    first: int
    last: int


def make_ranges(instances: int, tiles: int, capacity: int) -> Iterator[TileRange]:
    """All tiles of several instances while they fit, else ranges of one instance's tiles."""
    step = min(max(capacity // max(tiles, 1), 1), 65535)
    for instance in range(0, instances, step):
        for first in range(0, tiles, capacity):
            yield TileRange(instance, min(step, instances - instance), first, min(first + capacity, tiles))


class GradientSums:
    """The sums of backward over all ranges, in float32; tokens last where a program owns a few d."""

    def __init__(self, inputs: AdditiveInputs):
        p = self.problem = inputs.problem
        padded_q, padded_k, tile_rows, _ = inputs.sizes
        front = p.q.shape[0] * p.q.shape[1]
        zeros = lambda *sizes: p.q.new_zeros(front, *sizes, dtype=torch.float32)  # noqa: E731
        self.q, self.k, self.v = zeros(inputs.dp, padded_q), zeros(inputs.dp, padded_k), zeros(*p.v.shape[2:])
        self.weight = zeros(tile_rows, inputs.dp)
        self.edge = inputs.patch.columns
        self.distances = next_power(inputs.patch.rows + inputs.patch.columns - 1)  # of a tile
        placed = inputs.placed_table
        length = padded_q + p.k.shape[2] + self.edge + self.distances if placed is None else placed.entries
        programs = min(max(REL_BIAS_PROGRAMS // front, 1), tile_rows)
        needs_bias = p.rel_bias is not None and p.needs_grad[4]
        self.by_distance = zeros(programs, length) if needs_bias else None
        self.pairs = None
        if p.pair_bias is not None and p.needs_grad[7]:
            self.pairs = p.pair_bias.new_zeros(p.pair_bias.shape, dtype=torch.float32)

    def gradients(self) -> list[Tensor | None]:
        """The sums in the shapes and types of the tensors whose gradients they are."""
        p = self.problem
        batch, heads, queries, head_dim = p.q.shape
        keys = p.k.shape[2]
        weight = self.weight.view(batch, heads, -1, self.weight.shape[-1]).sum((0, 2))[:, :head_dim]
        dq = self.q.unflatten(0, (batch, heads))[:, :, :head_dim, :queries].mT
        dk = self.by_key_head(self.k)[:, :, :head_dim, :keys].mT
        pairs = [(dq, p.q), (dk, p.k), (self.by_key_head(self.v), p.v), (weight, require(p.weight))]
        grads: list[Tensor | None] = [x.to(like.dtype).contiguous() for x, like in pairs]
        return [*grads, self.rel_bias(), None, None, self.pairs]

    def by_key_head(self, x: Tensor) -> Tensor:
        """x `[batch · heads, ...]` summed over the query heads that read one key head."""
        batch, kv_heads = self.problem.k.shape[:2]
        x = x.unflatten(0, (batch, kv_heads, -1))
        return x.squeeze(2) if x.shape[2] == 1 else x.sum(2)

    def rel_bias(self) -> Tensor | None:
        """Sums by distance as the gradient of the table, whose ends serve the distances beyond them."""
        p = self.problem
        if p.rel_bias is None or self.by_distance is None:
            return None
        (heads, n), queries = p.rel_bias.table.shape, p.q.shape[2]
        if p.places is not None:
            return self.by_distance.unflatten(0, (-1, heads)).sum((0, 2))
        count = queries + p.k.shape[2] - 1
        line = self.by_distance.unflatten(0, (-1, heads)).sum((0, 2))[:, self.edge : self.edge + count]
        shift = p.rel_bias.zero - queries + 1
        low, high = (min(max(x, 0), count) for x in (-shift, n - shift))
        table = line.new_zeros(heads, n)
        table[:, low + shift : high + shift] = line[:, low:high]
        table[:, 0] += line[:, :low].sum(1)
        table[:, -1] += line[:, high:].sum(1)
        return table.to(p.rel_bias.table.dtype).contiguous()


class AdditiveBackward:
    """Backward's kernels, each over one range of the tiles at a time."""

    def __init__(self, inputs: AdditiveInputs, sums: GradientSums, grad: Tensor, output: Tensor, lse: Tensor):
        p, tiles, patch = inputs.problem, inputs.tiles, inputs.patch
        self.inputs, self.sums, self.grad, self.tiles = inputs, sums, grad.to(p.v.dtype), tiles
        self.sizes = (p.q.shape[1], p.k.shape[1], p.q.shape[2], p.k.shape[2])  # heads, kv_heads, queries, keys
        self.width = pad_dot(p.v.shape[3])
        self.owned = min(OWNED, inputs.dp)
        columns = inputs.sizes[3]
        self.by_column = mask_cache(p.mask).get(
            (TilesByColumn, p.grid, patch.rows, patch.columns), lambda: order_by_column(tiles, columns)
        )
        capacity = max(SCRATCH // (patch.rows * patch.columns * (4 + p.v.element_size())), 1)
        self.ranges = list(make_ranges(p.q.shape[0] * p.q.shape[1] // tiles.groups, len(tiles.tile), capacity))
        # batch · heads = group · first step + instance · second step
        heads = p.q.shape[1]
        if tiles.batch_stride:
            self.steps = (1, 0) if tiles.head_stride else (heads, 1)
        else:
            self.steps = (1, heads) if tiles.head_stride else (0, 1)
        slots = max((x.instances * (x.last - x.first) for x in self.ranges), default=0)
        self.scratch_ds = p.v.new_empty(slots, patch.rows, patch.columns, dtype=torch.float32)
        self.scratch_p = torch.empty_like(self.scratch_ds, dtype=p.v.dtype)
        self.scratch_capped = self.scratch_ds if p.cap is None else torch.empty_like(self.scratch_ds)
        self.delta, self.lse2 = torch.empty_like(inputs.term_q), torch.empty_like(inputs.term_q)
        start(
            delta_kernel, (inputs.sizes[2], inputs.q_pairs.shape[0]),
            grad, output, lse, inputs.term_q, self.delta, self.lse2, p.q.shape[2], inputs.sizes[0],
            CAP=p.cap is not None, DV=p.v.shape[3], BT=patch.rows, BDV=min(self.width, 64), num_warps=4,
        )  # fmt: skip

    def range_arguments(self, tiles: TileRange) -> tuple[int, ...]:
        return *self.steps, tiles.instance, tiles.first, tiles.last

    def ds(self, tiles: TileRange) -> None:
        inputs, listed = self.inputs, self.tiles
        start(
            ds_kernel, (tiles.last - tiles.first, tiles.instances),
            *inputs.tokens, inputs.term_q, inputs.term_k, inputs.v, inputs.rel_bias, inputs.pairs, inputs.places,
            inputs.seed,
            self.by_column.owner, listed.tile, listed.bits, listed.packed,
            self.grad, self.delta, self.lse2, self.scratch_ds, self.scratch_capped, self.scratch_p, *strides(inputs.v),
            *self.sizes, *inputs.sizes, *self.range_arguments(tiles)[:4], *inputs.settings,
            **inputs.constants, BDV=min(self.width, 64), **inputs.patch.arguments(),
        )  # fmt: skip

    def dq(self, tiles: TileRange) -> None:
        inputs, listed, sums = self.inputs, self.tiles, self.sums
        start(
            dq_kernel, (inputs.dp // self.owned * inputs.sizes[2] * listed.groups, tiles.instances),
            *inputs.tokens, self.scratch_ds, listed.starts, listed.tile, sums.q, sums.weight,
            *self.sizes[:2], *inputs.sizes, *self.range_arguments(tiles), inputs.problem.slope,
            TANH=inputs.tanh, DP=inputs.dp, BD=self.owned, **inputs.shapes.dq.arguments(),
        )  # fmt: skip

    def dk(self, tiles: TileRange) -> None:
        inputs, listed = self.inputs, self.by_column
        start(
            dk_kernel, (inputs.dp // self.owned * listed.columns, tiles.instances),
            *inputs.tokens, self.scratch_ds, *listed.between(tiles.first, tiles.last), listed.order, listed.owner,
            self.sums.k, *self.sizes[:2], *inputs.sizes, *self.range_arguments(tiles), inputs.problem.slope,
            TANH=inputs.tanh, DP=inputs.dp, BD=self.owned, **inputs.shapes.dk.arguments(),
        )  # fmt: skip

    def dv(self, tiles: TileRange) -> None:
        inputs, listed, dim_v = self.inputs, self.by_column, self.grad.shape[3]
        start(
            dv_kernel, (listed.columns, tiles.instances, -(-dim_v // min(self.width, 128))),
            self.scratch_p, self.grad, *listed.between(tiles.first, tiles.last), listed.order, listed.owner,
            self.sums.v, *self.sizes[2:], *inputs.sizes[2:], *self.range_arguments(tiles), DV=dim_v,
            PRECISION=PRECISION, BM=inputs.patch.rows, BN=inputs.patch.columns, BDV=min(self.width, 128),
            num_warps=8, num_stages=2,
        )  # fmt: skip

    def d_rel_bias(self, tiles: TileRange, sums: Tensor) -> None:
        inputs, listed = self.inputs, self.tiles
        programs, length = sums.shape[1:]
        if inputs.placed_table is not None:
            start(
                d_placed_bias_kernel, (programs * listed.groups, tiles.instances),
                self.scratch_capped, inputs.places, listed.starts, listed.tile, sums, inputs.place_stride,
                *self.sizes[2:], self.sizes[0], inputs.sizes[2], programs, length, inputs.placed_table.zero,
                *self.range_arguments(tiles), BM=inputs.patch.rows, BN=inputs.patch.columns, num_warps=8,
            )  # fmt: skip
            return
        start(
            d_rel_bias_kernel, (programs * listed.groups, tiles.instances),
            self.scratch_capped, listed.starts, listed.tile, sums, self.sizes[3], inputs.sizes[2], programs, length,
            *self.range_arguments(tiles), BM=inputs.patch.rows, BN=inputs.patch.columns, BX=self.sums.distances,
            num_warps=8,
        )  # fmt: skip

    def d_pair_bias(self, tiles: TileRange, total: Tensor) -> None:
        """Add a range's ds to the gradient of the bias by pair, one batch row and head after another."""
        p, patch, (_, _, queries, keys) = self.inputs.problem, self.inputs.patch, self.sizes
        rows = self.inputs.sizes[2]
        count = tiles.last - tiles.first
        owner = self.by_column.owner[tiles.first : tiles.last].long()
        group, row, column = owner // rows, owner % rows, self.tiles.tile[tiles.first : tiles.last].long()
        i = row[:, None] * patch.rows + torch.arange(patch.rows, device=row.device)  # [tiles, rows]
        j = column[:, None] * patch.columns + torch.arange(patch.columns, device=row.device)
        ds = self.scratch_capped[: tiles.instances * count].unflatten(0, (tiles.instances, count))
        for instance in range(tiles.instances):
            for g in group.unique().tolist():
                index = g * self.steps[0] + (tiles.instance + instance) * self.steps[1]
                own = group == g
                d = ds[instance][own]
                if total.shape[2] == 1:
                    pairs = sum_tiles(d.sum(1), column[own], self.inputs.sizes[3])[None, :keys]
                elif total.shape[3] == 1:
                    pairs = sum_tiles(d.sum(2), row[own], rows)[:queries, None]
                else:
                    pairs = d.new_zeros(self.inputs.sizes[:2])  # one head's, padded to tiles
                    pairs[i[own][:, :, None], j[own][:, None]] = d
                    pairs = pairs[:queries, :keys]
                slot = total[index // p.q.shape[1] % total.shape[0], index % p.q.shape[1] % total.shape[1]]
                slot += pairs.sum_to_size(slot.shape)


def sum_tiles(x: Tensor, line: Tensor, lines: int) -> Tensor:
    """Sums of x `[tiles, size]` over the tiles of each line, one after another, `[lines · size]`."""
    return x.new_zeros(lines, x.shape[1]).index_put_((line,), x, accumulate=True).flatten()
