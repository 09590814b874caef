"""Decoding: few queries over many keys, at the speed of memory (split-k, as in flash-decoding).

A tile's rows are the queries of all heads that share a key head, so every key and value is read once. The keys are
split over many programs; each stores its split's output with its maximum and sum, and a second kernel merges them. The
queries are so few that the mask of all pairs, and their products with relative vectors, are linear in the keys. Both
kernels' arguments are kept in the call's plan.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from ...call import LoweredCall, device_guard
from ...dropout import keep_scale, threshold
from ...execution import mask_cache, new_plan
from ...parts.masks import Causal, Everything
from ...parts.positions import DistanceBias
from ...tracing import in_cuda_graph
from ..launch import (
    LOG2E,
    Launch,
    PairLayout,
    PlacedTable,
    ShapeTable,
    TileShape,
    align,
    multiprocessors,
    next_power,
    pack_places,
    pad_dot,
    select_shape,
    stride_arguments,
)
from .kernels import merge_kernel, split_kernel

MAX_HEAD_DIM = 256
MAX_QUERIES = 16
PROGRAMS_PER_SM = 3  # that a multiprocessor runs at once
WAVES = 3  # of programs, at most: with more of them the multiprocessors finish together, but more is merged
WAVE_COST = 0.02  # of the time, for each
MIN_KEYS = 256  # keys of a program, unless there are fewer
MERGED_NUMBERS = 1 << 13  # numbers of splits that are merged at once: each step waits for memory
CACHED = 1 << 16  # pairs up to which the bytes of a mask without tensors are cached
PAIR_STRIDES = ("stride_pb", "stride_ph", "stride_pq", "stride_pn")
MASK_STRIDES = ("stride_mb", "stride_mh", "stride_mq", "stride_mn", "stride_bounds")

# By bytes of a number and padded head_dim, the nearest above. More rows than these go to other programs.
SHAPES: ShapeTable = {
    2: {64: TileShape(64, 128, 4, 3), 128: TileShape(64, 64, 4, 3), 256: TileShape(64, 32, 4, 3)},
    4: {64: TileShape(16, 64, 4, 2), 128: TileShape(16, 32, 4, 2), 256: TileShape(16, 16, 4, 2)},
}


def covers(problem: LoweredCall) -> str | None:
    """Why these kernels cannot run the problem; None when they can."""
    if problem.weight is not None:
        return "the score is additive"
    if problem.key_vectors is not None:
        return "keys are multiplied with vectors by distance"
    queries, keys = problem.q.shape[2], problem.k.shape[2]
    if queries > MAX_QUERIES:
        return f"there are {queries} queries, more than {MAX_QUERIES}"
    if torch.float64 in (problem.q.dtype, problem.v.dtype):
        return "the kernels compute in float32, and the call is in float64"
    if max(problem.q.shape[-1], problem.v.shape[-1]) > MAX_HEAD_DIM:
        return f"the head_dim is more than {MAX_HEAD_DIM}"
    if not problem.q.numel() * keys * problem.v.shape[-1]:
        return "there are no pairs, or the values have no elements"
    return None


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output, in float32 where gradients need it, and log-sum-exp."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (p.q, p.k, p.v))
    rel_bias = q
    if p.rel_bias is not None:
        rel_bias = bias_numbers(p.rel_bias) if p.rel_bias.slopes is None else p.rel_bias.slopes
    rel_scores, rel_zero = relative_scores(p)
    pairs, places = (q if x is None else x for x in (p.pair_bias, pack_places(p)))
    tensors = (q, k, v, rel_bias, rel_scores, pairs, places, *evaluate_mask(p), q if p.seed is None else p.seed)
    exact_output = p.exact_output
    layout = tuple([(x.shape, x.stride(), x.dtype, x.data_ptr() % 16 == 0) for x in tensors])
    launches = p.plan.get(
        (DecodeLaunches, layout, PlacedTable.of(p), exact_output, p.exact_weights),
        lambda: DecodeLaunches(p, tensors, rel_zero, exact_output),
    )
    return launches.forward(None if p.sink is None else align(p.sink), *tensors)


class DecodeLaunches:
    """The kernels for tensors of one layout: (q, k, v, rel_bias, rel_scores, pairs, places, mask, bounds, seed)."""

    def __init__(self, p: LoweredCall, tensors: tuple[Tensor, ...], rel_zero: int, exact_output: bool):
        q, k, v, rel_bias, rel_scores, pairs, places, mask, bounds, _ = tensors
        placed = PlacedTable.of(p)
        layout = PairLayout.of(pairs)
        pair_steps = (0,) * 4 if layout is None else layout.strides
        grid, kv_heads, head_dim, value_dim = p.grid, k.shape[1], q.shape[3], v.shape[3]
        group_size, masked, drops = grid.heads // kv_heads, not isinstance(p.mask, Everything), p.seed is not None
        width, value_width = pad_dot(head_dim), pad_dot(value_dim)
        shape = select_shape(SHAPES, max(q.element_size(), v.element_size()), max(width, value_width))
        shape = shape._replace(rows=min(pad_dot(group_size * grid.queries), shape.rows))
        row_tiles = -(-group_size * grid.queries // shape.rows)
        programs = grid.batch * kv_heads * row_tiles
        splits = count_splits(programs, grid.keys, shape.columns, multiprocessors(q.device, 2))
        rows = grid.batch * grid.heads * grid.queries
        self.acc_parts, self.row_parts = (rows, splits, value_dim), (rows, splits)
        self.output, self.output_dtype = (*q.shape[:3], value_dim), torch.float32 if exact_output else v.dtype
        mask_strides = (*mask.stride(), 2 if len(bounds) > 1 else 0) if masked else (0,) * 5
        self.start_splits = Launch(
            split_kernel, programs * splits,
            **stride_arguments(q=q, k=k, v=v), **dict(zip(MASK_STRIDES, mask_strides, strict=True)),
            **dict(zip(PAIR_STRIDES, pair_steps, strict=True)), cap=(p.cap or 1.0) * LOG2E, CAP=p.cap is not None,
            PAIR_BIAS=p.pair_bias is not None, PLACED=placed is not None,
            stride_places=places.shape[1] if placed is not None and placed.by_batch else 0,
            batch=grid.batch, queries=grid.queries, keys=grid.keys, kv_heads=kv_heads, group_size=group_size,
            row_tiles=row_tiles, splits=splits, offset=grid.offset, scale=p.scale * LOG2E,
            bias_zero=0 if p.rel_bias is None else p.rel_bias.zero, bias_entries=rel_bias.shape[-1],
            rel_zero=rel_zero, rel_entries=rel_scores.shape[-1], threshold=threshold(p.dropout),
            D=head_dim, BD=width, DV=value_dim, BDV=value_width, MASK=masked, REL_BIAS=bias_form(p),
            REL_VECTORS=p.rel_vectors is not None, DROPOUT=drops,
            RENORMALIZE=self.output_dtype != v.dtype and not p.exact_weights,
            EXACT=self.output_dtype != v.dtype and p.exact_weights,
            **shape.arguments(),
        )  # fmt: skip
        merged = max(min(MERGED_NUMBERS // value_width, next_power(splits)), 16)
        sizes = {"DV": value_dim, "BDV": value_width, "BS": merged, "num_warps": 4, "SINK": p.sink is not None}
        sizes |= {"queries": grid.queries, "heads": grid.heads}
        self.merge = Launch(
            merge_kernel, rows, splits=splits, keep_scale=keep_scale(p.dropout) if drops else 1.0, **sizes
        )

        sizes = (self.acc_parts, self.row_parts, self.row_parts, (rows,))  # the last is the log-sum-exp
        *self.offsets, self.bytes = accumulate((align_up(4 * math.prod(size)) for size in sizes), initial=0)

    def output_alone(self, q: Tensor, *tensors: Tensor) -> Tensor:
        """`forward` without a sink and without the log-sum-exp: all else that kernels write is one piece of memory."""
        if self.merge.run is None:
            return self.forward(None, q, *tensors)[0]
        scratch = q.new_empty(self.bytes, dtype=torch.uint8)
        first = scratch.data_ptr()
        *parts, lse = [first + offset for offset in self.offsets]
        self.start_splits(q, *tensors, *parts)
        output = q.new_empty(self.output, dtype=self.output_dtype)
        self.merge(*parts, None, output, lse)
        return output

    def forward(self, sink: Tensor | None, q: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        parts = [q.new_empty(size, dtype=torch.float32) for size in (self.acc_parts, self.row_parts, self.row_parts)]
        self.start_splits(q, *tensors, *parts)
        output, lse = q.new_empty(self.output, dtype=self.output_dtype), q.new_empty(q.shape[:3], dtype=torch.float32)
        self.merge(*parts, sink, output, lse)
        return output, lse


class DecodeStep:
    """Calls that differ in the contents and layout of q, k and v alone, without gradients: few checks before kernels.

    The mask's bytes and the numbers by distance are made once. Nothing in it refers to the tensors of the call that it
    was made of.
    """

    def __init__(self, p: LoweredCall):
        empty = p.q.new_empty(0)
        none, mask, rel_bias = dict.fromkeys("qkv", empty), p.mask, p.rel_bias
        self.mask = None if isinstance(mask, Everything) else evaluate_mask(p)
        self.bias = None if rel_bias is None else bias_numbers(rel_bias)
        if rel_bias is not None and self.bias is not None:
            copied = None if rel_bias.slopes is None else self.bias
            rel_bias = rel_bias._replace(table=self.bias, slopes=copied)
        kept = mask if self.mask is None else Causal()  # which says that there is one
        self.problem = replace(p, **none, mask=kept, rel_bias=rel_bias, plan=new_plan())  # type: ignore[arg-type]
        self.launches: dict[tuple[object, ...], DecodeLaunches] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layout = (q.stride(), k.stride(), v.stride(), q.data_ptr() % 16, k.data_ptr() % 16, v.data_ptr() % 16)
        with device_guard(q):
            launches = self.launches.get(layout)
            if launches is None:
                if not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
                    return self(q.contiguous(), k.contiguous(), v.contiguous())
                launches = DecodeLaunches(replace(self.problem, q=q, k=k, v=v), self.tensors(q, k, v), 0, False)
                self.launches[layout] = launches
            return launches.output_alone(*self.tensors(q, k, v))

    def tensors(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """What the kernels take; q stands for what this step has not."""
        mask, bounds = (q, q) if self.mask is None else self.mask
        return q, k, v, q if self.bias is None else self.bias, q, q, q, mask, bounds, q


def bias_numbers(rel_bias: DistanceBias) -> Tensor:
    """The slopes, or the table in base 2: new tensors."""
    return (rel_bias.table.float() * LOG2E).contiguous() if rel_bias.slopes is None else rel_bias.slopes.clone()


def is_kept(p: LoweredCall) -> bool:
    """Whether the mask's bytes may be kept: as long as its tensors are, or of few pairs."""
    if isinstance(p.mask, Everything):
        return True
    return not in_cuda_graph() and (bool(p.mask.tensors()) or p.q.shape[2] * p.k.shape[2] <= CACHED)


def align_up(count: int) -> int:
    """The least multiple of 256 bytes that is not below the count."""
    return -(-count // 256) * 256


def bias_form(p: LoweredCall) -> int:
    """How the kernel gets the bias by distance: 0 none, 1 from a table, 2 from slopes."""
    return 0 if p.rel_bias is None else 1 if p.rel_bias.slopes is None else 2


def count_splits(programs: int, keys: int, columns: int, processors: int) -> int:
    """Splits of the keys: about as many programs as run at once, or some times as many where they share out evenly."""

    def cost(splits: int) -> float:
        load = splits * programs / processors
        return math.ceil(load) / load + WAVE_COST * load / PROGRAMS_PER_SM

    most = max(keys // MIN_KEYS, 1)
    room = processors * PROGRAMS_PER_SM
    splits = min((min(max(wave * room // programs, 1), most) for wave in range(1, WAVES + 1)), key=cost)
    tiles = -(-keys // columns)
    size = -(-tiles // max(splits, 1))
    return -(-tiles // size)


def evaluate_mask(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """The mask of every pair as bytes, and the first and last + 1 allowed key of each row; any tensors without one.

    Those of small masks without tensors are cached in the plan.
    """
    if isinstance(p.mask, Everything):
        return p.q, p.q
    if in_cuda_graph():
        return make_mask_bytes(p)
    if p.mask.tensors():  # for layers that share the mask, as long as its tensors are
        return mask_cache(p.mask).get((make_mask_bytes, p.grid), lambda: make_mask_bytes(p))
    if p.q.shape[2] * p.k.shape[2] > CACHED:
        return make_mask_bytes(p)
    return p.plan.get(make_mask_bytes, lambda: make_mask_bytes(p))


def make_mask_bytes(p: LoweredCall) -> tuple[Tensor, Tensor]:
    grid = p.grid
    pairs = p.mask.permits(*grid.indices(), grid)
    pairs = pairs.reshape(*(1,) * (4 - pairs.dim()), *pairs.shape)
    j = torch.arange(grid.keys, device=pairs.device)
    seen = pairs.any(2).any(1)  # [batch or 1, keys]
    bounds = torch.stack([torch.where(seen, j, grid.keys).amin(-1), torch.where(seen, j + 1, 0).amax(-1)], -1).int()
    return pairs.view(torch.uint8).expand(grid.batch, grid.heads, grid.queries, grid.keys), bounds


def relative_scores(p: LoweredCall) -> tuple[Tensor, int]:
    """rel_q · rel_vectors in base 2, `[heads, batch · queries, n]`, and the index of distance 0."""
    if p.rel_vectors is None:
        return p.q, 0
    rel_q, table, zero = p.rel_vectors
    last = table.shape[1] - 1
    low, high = (min(max(x + zero, 0), last) for x in (1 - p.grid.queries, p.grid.keys - 1))
    low, high = (low, high) if p.places is None else (0, last)
    rows, vectors = rel_q.transpose(0, 1).flatten(1, 2), table[:, low : high + 1].mT  # [heads, batch · queries, d]
    if rows.is_cuda and rows.dtype == vectors.dtype and rows.dtype in (torch.float16, torch.bfloat16):
        scores = torch.bmm(rows, vectors, out_dtype=torch.float32)
    else:
        scores = rows.float() @ vectors.float()
    return scores * (p.scale * LOG2E), zero - low
