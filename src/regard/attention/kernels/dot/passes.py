"""Forward and backward pass of the dot family: which tiles each kernel computes, with which arguments.

All of that follows from a problem's `DotConfig` and its mask. It is worked out at the first call and kept in the call's
plan, so that a warm call allocates its results and starts its kernels. With s = scale·(q·k + …) and p = exp(s − lse):

    o = Σ_j keep·p·v,     δ = Σ o·do,     ds = p · (keep·do·vᵀ − δ)
    dq = scale · Σ_j ds·k,   dk = scale · Σ_i ds·q,   dv = Σ_i keep·p·do,   d rel_bias[x] = Σ_{j − i = x} ds
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ...backends.sinks import sink_weight
from ...call import LoweredCall
from ...execution import mask_cache, tensor_cache
from ...parts.mask import Mask
from ...parts.positions import DistanceBias, RelativeVectors
from ..launch import (
    Launch,
    PairLayout,
    PlacedTable,
    TileShape,
    align,
    compile_together,
    next_power,
    pack_places,
    strides,
)
from ..tile_lists import TileLists, by_diagonal, tile_lists
from .kernels import d_pair_bias_kernel, d_rel_bias_kernel, delta_kernel, dkdv_kernel, dq_kernel, forward_kernel
from .pairs import pair_gradients, stores_ds
from .placed import placed_bias_gradient
from .relative import RelativeSchedule, relative_gradients, relative_schedule
from .schedule import DotConfig, PassShapes, TileSchedule

T = TypeVar("T")
FORWARD = PassShapes(
    {
        2: {64: TileShape(64, 64, 4, 2), 128: TileShape(128, 128, 8, 3), 256: TileShape(128, 64, 8, 2)},
        4: {64: TileShape(64, 64, 4, 1), 128: TileShape(64, 32, 4, 1), 256: TileShape(16, 32, 4, 1)},
    },
    {2: {64: TileShape(64, 64, 4, 3), 128: TileShape(64, 64, 8, 2)}, 4: {64: TileShape(32, 32, 4, 1)}},
)
DQ = PassShapes(
    {
        2: {64: TileShape(64, 64, 4, 3), 128: TileShape(128, 64, 8, 3), 256: TileShape(64, 32, 8, 2)},
        4: {64: TileShape(64, 64, 4, 1), 128: TileShape(64, 32, 4, 1), 256: TileShape(16, 32, 4, 1)},
    },
    {},
)
DKDV = PassShapes(
    {
        2: {64: TileShape(32, 64, 4, 3), 128: TileShape(64, 128, 8, 3), 256: TileShape(32, 64, 8, 2)},
        4: {64: TileShape(64, 64, 4, 1), 128: TileShape(32, 64, 4, 1), 256: TileShape(16, 32, 4, 1)},
    },
    {2: {64: TileShape(64, 64, 4, 2), 128: TileShape(64, 64, 8, 2)}, 4: {64: TileShape(32, 32, 4, 1)}},
)
D_REL_BIAS = PassShapes(
    {
        2: {64: TileShape(64, 64, 4, 3), 128: TileShape(64, 64, 4, 2), 256: TileShape(32, 32, 4, 2)},
        4: {64: TileShape(64, 64, 4, 1), 128: TileShape(32, 32, 4, 1), 256: TileShape(32, 32, 8, 1)},
    },
    {},
)
FORWARD_PAIRS = PassShapes(
    {
        2: {64: TileShape(64, 64, 4, 3, 168), 128: TileShape(128, 128, 8, 2), 256: TileShape(128, 64, 8, 2)},
        4: FORWARD.plain[4],
    },
    {},
)
DELTA_ROWS = 64  # rows of a program of `delta_kernel`
TABLE_PROGRAMS = 512  # programs that the gradient of a table should have at least
PAIR_PROGRAMS = 1024  # programs that the gradient of a bias by pair should have at least


class DotPlan:
    """What was worked out for problems of one configuration and mask: sizes, and the schedule of each pass.

    It does not refer to the mask, whose tensors it may outlive.
    """

    def __init__(self, config: DotConfig):
        c = self.config = config
        self.device, self.dtype = c.grid.device, c.dtype
        self.output = (*c.front, c.grid.queries, c.value_dim)
        self.rows, self.padded_rows = (*c.front, c.grid.queries), (*c.front, c.padded_queries)
        self.queries = (*c.front, c.grid.queries, c.head_dim)
        self.output_dtype = torch.float32 if c.exact_output else c.dtype
        self.schedules: dict[Hashable, Any] = {}
        self.compiled = False  # or about to be

    def empty32(self, size: tuple[int, ...]) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=self.device)

    def empty(self, size: tuple[int, ...]) -> Tensor:
        return torch.empty(size, dtype=self.dtype, device=self.device)


class DotInputs:
    """A problem's tensors in the layout of the kernels, and the plan of such problems."""

    def __init__(self, p: LoweredCall):
        p = add_rel_vectors(p)
        q, k, v = p.q, p.k, p.v
        rel_q = None if p.rel_vectors is None else p.rel_vectors.queries
        self.sign = (p.scale > 0) - (p.scale < 0)
        self.mask, self.seed = p.mask, p.seed
        rel_stride = None if rel_q is None else rel_q.stride()
        self.sink, self.pairs = None if p.sink is None else align(p.sink), p.pair_bias
        layout, placed = PairLayout.of(p.pair_bias), PlacedTable.of(p)
        self.places = pack_places(p)
        key = (DotPlan, q.stride(), k.stride(), v.stride(), rel_stride, q.dtype, p.needs_grad, layout, placed)
        plan = p.plan.values.get(key)
        addresses = q.data_ptr() | k.data_ptr() | v.data_ptr() | (0 if rel_q is None else rel_q.data_ptr())
        if plan is None or addresses & 15:
            dtype = v.dtype
            self.q, self.k, self.v = pad_align(self.apply_sign(q), dtype), pad_align(k, dtype), pad_align(v, dtype)
            self.rel_q = None if rel_q is None else pad_align(self.apply_sign(rel_q), dtype)
            config = make_config(p, self.q, self.k, self.v, self.rel_q)
            plan = mask_cache(p.mask).get(config, lambda: DotPlan(config))
            if self.q is q and self.k is k and self.v is v and self.rel_q is rel_q:
                p.plan.put(key, plan)
        else:
            self.q, self.k, self.v, self.rel_q = q, k, v, rel_q
        self.plan: DotPlan = plan
        self.config = c = plan.config
        self.rel_bias = self.rel_vectors = self.key_vectors = None
        if p.rel_bias is not None:  # slopes, or a table along lines in units of the scale, [heads, 8, length]
            table, zero, slopes = p.rel_bias
            if slopes is not None:
                self.rel_bias = slopes.float()
            elif placed is not None:
                self.rel_bias = align(table.float())  # [heads, entries]
            else:
                self.rel_bias = along_line(c, table.float() / c.scale, zero, 8)
        if p.rel_vectors is not None:
            self.rel_vectors = self.arrange_vectors(p.rel_vectors.table, p.rel_vectors.zero)
        if p.key_vectors is not None:
            self.key_vectors = self.arrange_vectors(self.apply_sign(p.key_vectors.table), p.key_vectors.zero)

    def arrange_vectors(self, table: Tensor, zero: int) -> Tensor:
        """Vectors by distance as kernels read them: along a line, or at explicit places as they are."""
        c = self.config
        rows = table if c.placed is not None else along_line(c, table, zero, 1)[:, 0]
        return pad_align(rows, c.dtype).contiguous()

    def operands(self) -> tuple[Tensor | None, ...]:
        """What scores are computed from."""
        parts = (self.rel_bias, self.rel_q, self.rel_vectors, self.key_vectors, self.pairs, self.places)
        return self.q, self.k, self.v, *parts

    def plain_operands(self) -> tuple[Tensor | None, ...]:
        """What scores without relative vectors are computed from."""
        return self.q, self.k, self.v, self.rel_bias, self.pairs, self.places

    def schedule(self, make: Callable[[DotConfig, Mask], T]) -> T:
        """The schedule that `make` makes for the configuration and the mask, cached in the plan."""
        schedule = self.plan.schedules.get(make)
        if schedule is None:
            schedule = self.plan.schedules[make] = make(self.config, self.mask)
        return schedule

    def apply_sign(self, x: Tensor) -> Tensor:
        """Queries or their gradient with the scale's sign: kernels take the maximum before they scale."""
        return x if self.sign > 0 else -x if self.sign < 0 else torch.zeros_like(x)


def add_rel_vectors(p: LoweredCall) -> LoweredCall:
    """The call with relative vectors of zeros where keys have vectors by distance and queries have none."""
    if p.key_vectors is None or p.rel_vectors is not None:
        return p
    table, zero = p.key_vectors
    table, zero = (table[:, :1], 0) if p.places is None else (table, zero)  # at places both have the same entries
    return replace(p, rel_vectors=RelativeVectors(p.q, table.detach() * 0.0, zero))


def make_config(p: LoweredCall, q: Tensor, k: Tensor, v: Tensor, rel_q: Tensor | None) -> DotConfig:
    """The configuration of a problem whose tensors are in the layout of the kernels."""
    steps = (*strides(q), *strides(k), *strides(v), *strides(q if rel_q is None else rel_q))
    return DotConfig(
        p.grid, v.dtype, p.q.shape[1] // p.k.shape[1], q.shape[3], v.shape[3], steps, abs(p.scale) or 1.0,
        None if p.seed is None else p.dropout, 0 if p.rel_bias is None else 1 if p.rel_bias.slopes is None else 2,
        p.rel_vectors is not None, p.exact_output, p.cap, p.sink is not None,
        PairLayout.of(p.pair_bias), p.key_vectors is not None, p.exact_weights, PlacedTable.of(p), p.exact_ds,
    )  # fmt: skip


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output, in float32 where gradients need it, and log-sum-exp."""
    inputs = DotInputs(p)
    if not inputs.plan.compiled:
        compile_first(inputs.plan, p)
    output, lse = weighted_sums(inputs)
    width = p.v.shape[-1]
    return output if inputs.config.value_dim == width else output[..., :width].contiguous(), lse


def weighted_sums(inputs: DotInputs) -> tuple[Tensor, Tensor]:
    """Output, as wide as the kernels' values, and log-sum-exp."""
    plan, schedule = inputs.plan, inputs.schedule(forward_schedule)
    output, lse = torch.empty(plan.output, dtype=plan.output_dtype, device=plan.device), plan.empty32(plan.rows)
    partials = schedule.output_partials() if schedule.merges_parts else (lse, lse, lse)
    schedule.start(*inputs.operands(), inputs.sink, inputs.seed, output, lse, *partials)
    if schedule.merges_parts:
        schedule.merge_outputs(output, lse, *partials, inputs.sink)
    return output, lse


def compile_first(plan: DotPlan, p: LoweredCall) -> None:
    """Compile the kernels of a new configuration, those of backward too where gradients are needed."""
    plan.compiled = True
    c, needs_grad = plan.config, any(p.needs_grad)

    def run_both() -> None:
        output, lse = forward(p)
        if needs_grad:
            backward(p, torch.empty_like(output, dtype=p.v.dtype), output, lse)

    sizes, exact = (c.head_dim, c.value_dim, c.group_size), (c.exact_output, c.exact_weights, c.exact_ds, c.precision)
    parts = (
        c.dropout is None,
        c.rel_bias,
        c.rel_vectors,
        c.key_vectors,
        c.cap is None,
        c.sink,
        c.pairs,
        c.placed is None,
    )
    compile_together((forward, c.grid.device, c.dtype, *sizes, *parts, *exact, needs_grad), run_both)


def forward_schedule(c: DotConfig, mask: Mask) -> TileSchedule:
    """Rows of tiles."""
    shape = c.shape(FORWARD_PAIRS if c.pairs_alone else FORWARD)
    tiles = tile_lists(mask, c.grid, shape.rows, shape.columns)
    ends = run_ends(tiles) if c.rel_vectors and c.placed is None else None
    return TileSchedule.over_lists(c, forward_kernel, shape, tiles, c.instances, p_run_end=ends)


class OutputGrad(NamedTuple):
    """What backward's kernels read of each row: d output, lse in base 2, and δ."""

    do: Tensor
    lse2: Tensor
    delta: Tensor


def backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight (None here), rel_bias, rel_q, rel_vectors, pair_bias, key_vectors; last the sink."""
    p = add_rel_vectors(p)
    inputs = DotInputs(p)
    c = inputs.config
    rows = row_sums(inputs, grad, output, lse)
    drel_bias = drel_q = drel_vectors = dpairs = dkey_vectors = None
    learns_pairs = p.pair_bias is not None and p.needs_grad[7]
    if p.pair_bias is not None and learns_pairs and stores_ds(c, p.pair_bias):
        dq, dk, dv, dpairs = pair_gradients(inputs, rows, p.pair_bias)
    elif p.rel_vectors is None:
        dq, (dk, dv) = query_gradient(inputs, rows), key_gradients(inputs, rows)
        if p.rel_bias is not None and p.needs_grad[4]:
            if c.placed is None:
                drel_bias = rel_bias_gradient(inputs, rows, p.rel_bias)
            else:
                drel_bias = placed_bias_gradient(inputs, rows, c.shape(D_REL_BIAS))
    else:
        schedule = inputs.schedule(dkdv_relative_schedule)
        dq, dk, dv, drel_q, drel_vectors, dkey_vectors = relative_gradients(inputs, rows, schedule)
        if c.placed is None:
            drel_vectors = fold_line(c, drel_vectors, p.rel_vectors.table.shape[1], p.rel_vectors.zero)
        if p.key_vectors is not None:
            dkey_vectors = inputs.apply_sign(dkey_vectors)
            if c.placed is None:
                dkey_vectors = fold_line(c, dkey_vectors, p.key_vectors.table.shape[1], p.key_vectors.zero)
    if p.pair_bias is not None and learns_pairs and dpairs is None:
        dpairs = pair_bias_gradient(inputs, rows, lse, p.pair_bias, p.merged)
    dk, dv = (x if x.shape[1] == p.k.shape[1] else x.unflatten(1, (-1, c.group_size)).sum(2) for x in (dk, dv))
    if inputs.sign <= 0:
        dq, drel_q = inputs.apply_sign(dq), None if drel_q is None else inputs.apply_sign(drel_q)
    if p.q.shape[-1] != c.head_dim or p.v.shape[-1] != c.value_dim:
        cut = lambda x, like: None if x is None else x[..., : like.shape[-1]]  # noqa: E731
        dq, drel_q, dk, drel_vectors = (cut(x, p.q) for x in (dq, drel_q, dk, drel_vectors))
        dkey_vectors = cut(dkey_vectors, p.q)
        dv = cut(dv, p.v)
    dsink = None
    if p.sink is not None and p.needs_grad[8]:
        dsink = -(sink_weight(p.sink, lse) * rows.delta[..., : c.grid.queries]).sum((0, 2))
    return [dq, dk, dv, None, drel_bias, drel_q, drel_vectors, dpairs, dkey_vectors, *[None] * 3, dsink]


def row_sums(inputs: DotInputs, grad: Tensor, output: Tensor, lse: Tensor) -> OutputGrad:
    """d output in the layout of the kernels, with lse in base 2 and δ of every row."""
    plan = inputs.plan
    grad, output = pad_align(grad.contiguous(), plan.dtype), pad_align(output.contiguous(), plan.output_dtype)
    rows = OutputGrad(grad, plan.empty32(plan.padded_rows), plan.empty32(plan.padded_rows))
    inputs.schedule(delta_launch)(output, lse, *rows)
    return rows


def delta_launch(c: DotConfig, mask: Mask) -> Launch:
    """lse in base 2 and δ of every row."""
    sizes = {"DV": c.value_dim, "BDV": next_power(c.value_dim), "BM": DELTA_ROWS}
    programs = c.padded_queries // DELTA_ROWS * c.instances
    return Launch(delta_kernel, programs, queries=c.grid.queries, instances=c.instances, **sizes)


def query_gradient(inputs: DotInputs, rows: OutputGrad) -> Tensor:
    """dq."""
    schedule, dq = inputs.schedule(dq_schedule), inputs.plan.empty(inputs.plan.queries)
    tensors = (*inputs.plain_operands(), inputs.seed, *rows)
    schedule.sum_lists(tensors, (dq,), schedule.shape.rows, inputs.config.scale)
    return dq


def dq_schedule(c: DotConfig, mask: Mask) -> TileSchedule:
    """Rows of tiles."""
    shape = c.shape(DQ)
    tiles = tile_lists(mask, c.grid, shape.rows, shape.columns)
    return TileSchedule.over_lists(c, dq_kernel, shape, tiles, c.instances)


def key_gradients(inputs: DotInputs, rows: OutputGrad) -> tuple[Tensor, Tensor]:
    """dk and dv; in float32 for each query head where heads that share keys have different masks."""
    c, plan, (schedule, heads) = inputs.config, inputs.plan, inputs.schedule(dkdv_schedule)
    front = (c.grid.batch, c.grid.heads // heads, c.grid.keys)
    empty = plan.empty if heads == c.group_size else plan.empty32
    dk, dv = empty((*front, c.head_dim)), empty((*front, c.value_dim))
    tensors = (*inputs.operands(), inputs.seed, *rows)
    schedule.sum_lists(tensors, (dk, dv), schedule.shape.columns, extra=(None, None))
    return dk, dv


def dkdv_schedule(c: DotConfig, mask: Mask) -> tuple[TileSchedule, int]:
    """Columns of tiles, and the query heads that a program sums over: those of a key head, if their masks agree."""
    shape = c.shape(DKDV)
    tiles = tile_lists(mask, c.grid, shape.rows, shape.columns, transposed=True)
    heads = 1 if tiles.head_stride else c.group_size
    return TileSchedule.over_lists(c, dkdv_kernel, shape, tiles, c.instances // heads, HEADS=heads), heads


def dkdv_relative_schedule(c: DotConfig, mask: Mask) -> RelativeSchedule:
    return relative_schedule(c, mask, c.shape(DKDV))


class DiagonalSchedule(NamedTuple):
    """Diagonals of tiles. The result has two halves of distances for each, from `first` on, for `batch` rows."""

    tiles: TileSchedule
    batch: int
    diagonals: int
    first: int


def rel_bias_gradient(inputs: DotInputs, rows: OutputGrad, rel_bias: DistanceBias) -> Tensor:
    """d rel_bias."""
    c, (schedule, batch, diagonals, first) = inputs.config, inputs.schedule(rel_bias_schedule)
    size = schedule.shape.columns
    out = inputs.plan.empty32((batch, c.grid.heads, diagonals * 2 * size, 1))
    tensors = (inputs.q, inputs.k, inputs.v, inputs.rel_bias, inputs.pairs, inputs.seed, *rows)
    schedule.sum_lists(tensors, (out,), 2 * size)
    low, high = out.unflatten(2, (diagonals, 2 * size)).sum(0).split(size, 2)  # [heads, diagonals, size, 1]
    line = out.new_zeros(c.grid.heads, c.length, 1)
    count = diagonals * size
    line[:, first : first + count] += high.flatten(1, 2)
    line[:, first - size : first - size + count] += low.flatten(1, 2)
    return fold_line(c, line, rel_bias.table.shape[1], rel_bias.zero)[..., 0]


def rel_bias_schedule(c: DotConfig, mask: Mask) -> DiagonalSchedule:
    """Diagonals of tiles. A program sums over rows of the batch, if their masks agree and enough programs are left."""
    shape = c.shape(D_REL_BIAS)
    by_row = tile_lists(mask, c.grid, shape.rows, shape.columns)
    tiles = by_diagonal(by_row, c.grid)
    batches = 1 if tiles.batch_stride else batches_of_a_program(c.grid.batch, c.grid.heads * tiles.lists)
    sizes = {"batches": batches, "tile_rows": by_row.lists, "lists": tiles.lists}
    schedule = TileSchedule.over_lists(c, d_rel_bias_kernel, shape, tiles, c.instances // batches, **sizes)
    return DiagonalSchedule(
        schedule, c.grid.batch // batches, tiles.lists, c.origin - (by_row.lists - 1) * shape.columns
    )


def batches_of_a_program(batch: int, lists: int) -> int:
    """The most rows of a batch, of those that divide it, that leave as many programs as there should be."""
    fits = [rows for rows in range(1, batch + 1) if batch % rows == 0 and batch // rows * lists >= TABLE_PROGRAMS]
    return max(fits, default=1)


def pair_bias_gradient(inputs: DotInputs, rows: OutputGrad, lse: Tensor, bias: Tensor, merged: bool) -> Tensor:
    """d pair_bias, float32, in the bias's shape: each number is written by one program.

    Where all keys of a row share a number, Σ_j ds = δ · (1 − Σ_j p): nothing but the sink's weight is left. Not so in a
    part of a call, whose p are those of whole rows: a number for each of its keys it has even where it has one key.
    """
    c, (batch, heads, queries, keys) = inputs.config, bias.shape
    assert not merged or keys == c.grid.keys, "whoever merges sums over whole rows"
    if keys == 1 and not merged:
        weight = 0.0 if inputs.sink is None else sink_weight(inputs.sink, lse)
        return (rows.delta[..., : c.grid.queries] * weight)[..., None].sum_to_size(bias.shape)
    over_queries, shape = queries == 1, c.shape(DKDV if c.rel_vectors else DQ)
    tiles = tile_lists(inputs.mask, c.grid, shape.rows, shape.columns, transposed=over_queries)
    splits = 1 if over_queries else min(max(PAIR_PROGRAMS // (batch * heads * tiles.lists), 1), 64)
    one_list = not tiles.batch_stride and not tiles.head_stride
    shape = shape._replace(stages=min(shape.stages, 2)) if one_list else shape  # few steps, but room for more programs
    count = -(-c.grid.queries // shape.rows) * -(-c.grid.keys // shape.columns)
    writes_all = one_list and len(tiles.tile) == count
    make = torch.empty if writes_all else torch.zeros
    out = make((batch, heads, queries, keys), dtype=torch.float32, device=inputs.plan.device)
    launch = Launch(
        d_pair_bias_kernel, batch * heads * tiles.lists * splits, p_starts=tiles.starts, p_tile=tiles.tile,
        p_bits=tiles.bits, p_packed=tiles.packed, stride_gb=tiles.batch_stride, stride_gh=tiles.head_stride,
        lists=tiles.lists, batches=c.grid.batch // batch, shared_heads=c.grid.heads // heads, splits=splits,
        OVER_QUERIES=over_queries, ONE_LIST=one_list, **shape.arguments(), **c.arguments(),
    )  # fmt: skip
    launch(*inputs.operands(), inputs.seed, *rows, out)
    return out


def along_line(c: DotConfig, table: Tensor, zero: int, copies: int) -> Tensor:
    """The table's entries along the line, `[heads, copies, length, ...]`."""
    start = c.origin + c.grid.offset + zero
    return table[:, line_entries(c.length, start, table.shape[1], copies, table.device)]


@tensor_cache
def line_entries(length: int, start: int, entries: int, copies: int, device: torch.device) -> Tensor:
    """The table entry at each place of the line: start − x at x, the nearest where there is none.

    One copy, `[1, length]`; or eight, `[8, length]`: four that are each one place further right than the last, and four
    of the line reversed (the entry of length − x at x).
    """
    x = torch.arange(length, device=device)
    if copies > 1:
        shifted = (x - torch.arange(4, device=device)[:, None]) % length
        x = torch.cat([shifted, (length - shifted) % length])
    return (start - x.view(copies, length)).clamp(0, entries - 1)


def fold_line(c: DotConfig, line: Tensor, size: int, zero: int) -> Tensor:
    """The adjoint of `along_line`: line `[heads, length, d]` as a table of `size` entries."""
    start = c.origin + c.grid.offset + zero  # the entry at x is that of start − x
    low, high = (min(max(x, 0), c.length) for x in (start - size + 2, start))  # entries 1 … size − 2 lie between
    table = line.new_zeros(line.shape[0], size, line.shape[2])
    if size == 1:
        table[:, 0] = line.sum(1)
        return table
    table[:, -1] = line[:, :low].sum(1)
    table[:, 0] = line[:, high:].sum(1)
    if low < high:
        table[:, start - high + 1 : start - low + 1] = line[:, low:high].flip(1)
    return table


def pad_align(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the type, its last axis contiguous and padded to a multiple of 16, its rows aligned to 16 bytes."""
    if x.dtype != dtype:
        x = x.to(dtype)
    if x.shape[-1] % 16:
        return torch.nn.functional.pad(x, (0, -x.shape[-1] % 16))
    *outer, last = x.stride()
    if last == 1 and not any(step % 8 for step in outer) and not x.data_ptr() % 16:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def run_ends(tiles: TileLists) -> Tensor:
    """The end of the run of neighbouring tiles that each listed tile is in; runs may cross into the next row's list."""
    count = len(tiles.tile)
    at = torch.arange(1, count + 1, dtype=torch.int32, device=tiles.tile.device)
    last = torch.ones(count, dtype=torch.bool, device=at.device)
    last[:-1] = tiles.tile[1:] != tiles.tile[:-1] + 1
    return torch.where(last, at, count).flip(0).cummin(0).values.flip(0)
