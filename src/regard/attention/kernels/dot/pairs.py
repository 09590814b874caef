"""Backward pass beside a bias by pair that is learned: ds is computed once, stored, and read by what needs it.

Where no two heads or rows of the batch share a number, the stored ds is the gradient. Otherwise ds of every head and
row of the batch goes to scratch memory, from which the gradient is summed in a fixed order. The scratch memory has a
fixed size, or that of the gradient where it is larger. What does not fit is done in chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...parts.mask import Mask
from ..launch import Launch, TileShape
from ..tile_lists import TileLists, renumber, split_ranges, tile_lists
from .pair_kernels import dkdv_pairs_kernel, dq_pairs_kernel, sum_pairs_kernel
from .relative import SCRATCH
from .schedule import DotConfig, PassShapes, TileSchedule, split_limit

if TYPE_CHECKING:
    from .passes import DotInputs, OutputGrad

DKDV = PassShapes(
    {
        2: {64: TileShape(64, 64, 4, 3), 128: TileShape(64, 64, 8, 2)},
        4: {64: TileShape(32, 32, 4, 1), 128: TileShape(32, 32, 4, 1)},
    },
    {},
)
DQ = PassShapes(
    {
        2: {64: TileShape(128, 64, 4, 4), 128: TileShape(128, 64, 8, 3)},
        4: {64: TileShape(64, 64, 4, 2), 128: TileShape(64, 32, 4, 2)},
    },
    {},
)
MAX_HEAD_DIM = 128  # whose sums of a tile fit the registers
SUM_SIZE = 2048  # numbers of a row that are summed at once


class PairGradient(NamedTuple):
    """How the gradient of a bias is stored: its slots `[batch or 1, heads or 1]`, and ds of the `terms` of each."""

    slots: tuple[int, int]
    terms: int
    dtype: torch.dtype  # of ds
    keys: int  # the length of its rows

    @classmethod
    def of(cls, c: DotConfig, bias: Tensor) -> PairGradient:
        dtype = c.dtype if bias.dtype == c.dtype else torch.float32
        slots = (bias.shape[0], bias.shape[1])
        terms = c.instances // (slots[0] * slots[1])
        step = 1 if terms == 1 else 16 // dtype.itemsize
        return cls(slots, terms, dtype, -(-c.grid.keys // step) * step)

    @property
    def is_aligned(self) -> bool:
        """Whether rows are whole vectors of 16 bytes."""
        return self.keys * self.dtype.itemsize % 16 == 0

    def order(self, c: DotConfig) -> list[int]:
        """batch · heads + head of all, slot by slot."""
        batch, heads = self.slots
        pairs = [(b, h) for b in range(c.grid.batch) for h in range(c.grid.heads)]
        slot = lambda b, h: (b if batch > 1 else 0) * heads + (h if heads > 1 else 0)  # noqa: E731
        return [b * c.grid.heads + h for b, h in sorted(pairs, key=lambda pair: (slot(*pair), pair))]

    def chunks(self, c: DotConfig) -> list[tuple[int, int]]:
        """Ranges of `order` whose ds is in memory at the same time: whole slots, or some terms of one."""
        count = self.slots[0] * self.slots[1]
        if self.terms == 1:
            return [(0, count)]
        size = c.grid.queries * self.keys * self.dtype.itemsize
        limit = max(SCRATCH // size, count)
        if limit >= self.terms:
            step, total = limit // self.terms * self.terms, count * self.terms
            return [(x, min(x + step, total)) for x in range(0, total, step)]
        return [
            (slot * self.terms + x, slot * self.terms + min(x + limit, self.terms))
            for slot in range(count)
            for x in range(0, self.terms, limit)
        ]


class PairChunk(NamedTuple):
    """The kernels of a chunk, and where the ds of its heads is, `[batch · heads]`."""

    base: Tensor
    dkdv: TileSchedule
    dq: TileSchedule
    first: int  # the slot of its first term
    last: int
    sum: Launch | None


class PairSchedule(NamedTuple):
    """All chunks. `zeros` says whether ds of pairs is read that no tile stores; those of each chunk may be `others`."""

    chunks: list[PairChunk]
    numbers: int  # whose ds is stored at the same time
    zeros: bool
    others: bool
    single: bool  # whether a slot is summed in one chunk


def stores_ds(c: DotConfig, bias: Tensor) -> bool:
    """Whether a bias with a gradient is of every pair and is all that is added to the scores."""
    if not c.pairs_alone or c.cap is not None or max(c.head_dim, c.value_dim) > MAX_HEAD_DIM:
        return False
    return bias.shape[2:] == (c.grid.queries, c.grid.keys) and min(bias.shape[2:]) > 1


def room_ahead(c: DotConfig) -> bool:
    """Whether the registers hold the bias of the next tile, which is loaded before the work on this one."""
    return c.dtype.itemsize == 2 and max(c.head_dim, c.value_dim) <= 64


def pair_schedule(c: DotConfig, mask: Mask, gradient: PairGradient) -> PairSchedule:
    shape, dq_shape = c.shape(DKDV), c.shape(DQ)
    by_column = tile_lists(mask, c.grid, shape.rows, shape.columns, transposed=True)
    by_row = tile_lists(mask, c.grid, dq_shape.rows, dq_shape.columns)
    order, ranges, device = gradient.order(c), gradient.chunks(c), by_row.starts.device
    sizes = {"ds_keys": gradient.keys, "DS_ALIGNED": gradient.is_aligned}
    chunks = []
    for first, last in ranges:
        members = order[first:last]
        base = torch.zeros(c.instances, dtype=torch.int64)
        base[members] = torch.arange(last - first)
        terms = min(gradient.terms, last - first)
        slots = (first // gradient.terms, (last - 1) // gradient.terms + 1)
        total = Launch(
            sum_pairs_kernel, (slots[1] - slots[0]) * c.grid.queries, queries=c.grid.queries, keys=c.grid.keys,
            terms=terms, ADD=first % gradient.terms > 0, SIZE=SUM_SIZE, num_warps=8,
            OUT_ALIGNED=gradient.is_aligned and gradient.keys == c.grid.keys, **sizes,
        )  # fmt: skip
        listed = {"p_bits": by_column.bits, "p_packed": by_column.packed, "PAIRS_AHEAD": room_ahead(c), **sizes}
        chunks.append(
            PairChunk(
                base.to(device),
                chunk_schedule(c, dkdv_pairs_kernel, shape, by_column, members, listed),
                chunk_schedule(c, dq_pairs_kernel, dq_shape, by_row, members, sizes),
                *slots,
                None if gradient.terms == 1 else total,
            )
        )
    whole = by_column.groups == 1 and len(by_column.tile) == by_column.lists * -(-c.grid.queries // shape.rows)
    numbers = max(last - first for first, last in ranges)
    single = all((last - first) % gradient.terms == 0 for first, last in ranges)
    return PairSchedule(chunks, numbers, not whole, by_column.groups > 1, single)


def chunk_schedule(
    c: DotConfig, kernel: object, shape: TileShape, tiles: TileLists, members: list[int], arguments: dict[str, object]
) -> TileSchedule:
    """The schedule of all lists of some heads, each batch · heads + head."""
    instances = torch.tensor(members, device=tiles.starts.device)
    b, h = instances // c.grid.heads, instances % c.grid.heads
    starts = tiles.starts.long()[b * tiles.batch_stride + h * tiles.head_stride]
    limit = split_limit(c, len(tiles.tile) // tiles.groups * len(members))
    items = renumber(split_ranges(starts[:, :-1], starts[:, 1:], limit), instances)
    return TileSchedule(c, kernel, shape, items, {"p_tile": tiles.tile, **arguments})


def pair_gradients(inputs: DotInputs, rows: OutputGrad, bias: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk and dv (for each query head), and d pair_bias."""
    c, plan, gradient = inputs.config, inputs.plan, PairGradient.of(inputs.config, bias)
    key = (pair_schedule, gradient)
    schedule: PairSchedule | None = plan.schedules.get(key)
    if schedule is None:
        schedule = plan.schedules[key] = pair_schedule(c, inputs.mask, gradient)
    empty = plan.empty if c.group_size == 1 else plan.empty32
    dk, dv = empty((*c.front, c.grid.keys, c.head_dim)), empty((*c.front, c.grid.keys, c.value_dim))
    dq = plan.empty(plan.queries)
    make = torch.zeros if schedule.zeros else torch.empty
    ds = make((schedule.numbers, c.grid.queries, gradient.keys), dtype=gradient.dtype, device=plan.device)
    slots = gradient.slots[0] * gradient.slots[1]
    out = ds
    if gradient.terms > 1:
        dtype = gradient.dtype if schedule.single else torch.float32
        out = torch.empty((slots, c.grid.queries, c.grid.keys), dtype=dtype, device=plan.device)
    tensors = (inputs.q, inputs.k, inputs.v, inputs.pairs, inputs.seed, *rows)
    for number, x in enumerate(schedule.chunks):
        if number and schedule.others:
            ds.zero_()
        x.dkdv.sum_lists(tensors, (dk, dv), x.dkdv.shape.columns, extra=(ds, x.base))
        x.dq.sum_lists((inputs.k, ds, x.base), (dq,), x.dq.shape.rows, c.scale)
        if x.sum is not None:
            x.sum(ds, out[x.first : x.last])
    return dq, dk, dv, out.view(*gradient.slots, c.grid.queries, c.grid.keys)
