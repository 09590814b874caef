"""Decoding: few queries over many keys, at the speed of memory (split-k, as in flash-decoding).

A tile's rows are the queries of all heads that share a key head, so every key and value is read once. The keys are
split over many programs; each stores its split's output with its maximum and sum, and a second kernel merges them. The
queries are so few that the mask of all pairs, and their products with relative vectors, are linear in the keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...call import LoweredCall
from ...dropout import keep_scale, threshold
from ...parts.masks import Everything
from ..launch import LOG2E, ShapeTable, TileShape, multiprocessors, pad_dot, select_shape, start, strides
from .kernels import merge_kernel, split_kernel

MAX_HEAD_DIM = 256
MAX_QUERIES = 16
PROGRAMS_PER_SM = 16  # over the whole run
MIN_KEYS = 256  # keys of a program, unless there are fewer
MERGED = 16  # splits that are merged at once

# By bytes of a number and padded head_dim, the nearest above. More rows than these go to other programs.
SHAPES: ShapeTable = {
    2: {64: TileShape(64, 128, 4, 3), 128: TileShape(64, 64, 4, 3), 256: TileShape(64, 32, 4, 3)},
    4: {64: TileShape(16, 64, 4, 2), 128: TileShape(16, 32, 4, 2), 256: TileShape(16, 16, 4, 2)},
}


def covers(problem: LoweredCall) -> str | None:
    """Why these kernels cannot run the problem; None when they can."""
    if problem.weight is not None:
        return "the score is additive"
    queries, keys = problem.q.shape[2], problem.k.shape[2]
    if queries > MAX_QUERIES:
        return f"there are {queries} queries, more than {MAX_QUERIES}"
    if torch.float64 in (problem.q.dtype, problem.v.dtype):
        return "the kernels compute in float32, and the call is in float64"
    if max(problem.q.shape[-1], problem.v.shape[-1]) > MAX_HEAD_DIM:
        return f"the head_dim is more than {MAX_HEAD_DIM}"
    if not problem.q.numel() * keys * problem.v.shape[-1]:
        return "there is nothing to compute"
    return None


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output, in float32 where gradients need it, and log-sum-exp."""
    grid, kv_heads, value_dim = p.grid, p.k.shape[1], p.v.shape[-1]
    group_size = grid.heads // kv_heads
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (p.q, p.k, p.v))
    width, value_width = pad_dot(q.shape[-1]), pad_dot(value_dim)
    shape = select_shape(SHAPES, max(q.element_size(), v.element_size()), max(width, value_width))
    shape = shape._replace(rows=min(pad_dot(group_size * grid.queries), shape.rows))
    row_tiles = -(-group_size * grid.queries // shape.rows)
    programs = grid.batch * kv_heads * row_tiles
    splits = count_splits(programs, grid.keys, shape.columns, multiprocessors(p.q.device, 2))
    rows = grid.batch * grid.heads * grid.queries
    acc_parts = q.new_empty(rows, splits, value_dim, dtype=torch.float32)
    max_parts, sum_parts = (q.new_empty(rows, splits, dtype=torch.float32) for _ in range(2))
    mask, bounds, mask_strides = evaluate_mask(p)
    output_dtype = torch.float32 if p.has_part_tensors and any(p.needs_grad) else v.dtype
    rel_bias, bias_zero = p.q, 0
    if p.rel_bias is not None:
        rel_bias, bias_zero = (p.rel_bias.table.float() * LOG2E).contiguous(), p.rel_bias.zero
    rel_scores, rel_zero = relative_scores(p)
    start(
        split_kernel, (programs * splits,),
        q, k, v, rel_bias, rel_scores, mask, bounds, q if p.seed is None else p.seed,
        acc_parts, max_parts, sum_parts, *strides(q), *strides(k), *strides(v), *mask_strides,
        grid.batch, grid.queries, grid.keys, kv_heads, group_size, row_tiles, splits, grid.offset, p.scale * LOG2E,
        bias_zero, rel_bias.shape[-1], rel_zero, rel_scores.shape[-1], threshold(p.dropout),
        D=q.shape[-1], BD=width, DV=value_dim, BDV=value_width,
        MASK=not isinstance(p.mask, Everything), REL_BIAS=p.rel_bias is not None,
        REL_VECTORS=p.rel_vectors is not None, DROPOUT=p.seed is not None, RENORMALIZE=output_dtype != v.dtype,
        **shape.arguments(),
    )  # fmt: skip
    output = v.new_empty(*q.shape[:3], value_dim, dtype=output_dtype)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    start(
        merge_kernel, (rows,),
        acc_parts, max_parts, sum_parts, output, lse, splits, keep_scale(p.dropout) if p.seed is not None else 1.0,
        DV=value_dim, BDV=value_width, BS=MERGED, num_warps=2,
    )  # fmt: skip
    return output, lse


def count_splits(programs: int, keys: int, columns: int, processors: int) -> int:
    """Splits of the keys: enough programs for every multiprocessor, enough keys for each."""
    splits = min(-(-processors * PROGRAMS_PER_SM // programs), keys // MIN_KEYS)
    tiles = -(-keys // columns)
    size = -(-tiles // max(splits, 1))
    return -(-tiles // size)


def evaluate_mask(p: LoweredCall) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """The mask of every pair as bytes, the first and last + 1 allowed key of each row, and the strides of both."""
    if isinstance(p.mask, Everything):
        return p.q, p.q, (0,) * 5
    grid = p.grid
    pairs = p.mask.permits(*grid.indices(), grid)
    pairs = pairs.reshape(*(1,) * (4 - pairs.dim()), *pairs.shape)
    j = torch.arange(grid.keys, device=pairs.device)
    seen = pairs.any(2).any(1)  # [batch or 1, keys]
    bounds = torch.stack([torch.where(seen, j, grid.keys).amin(-1), torch.where(seen, j + 1, 0).amax(-1)], -1).int()
    mask = pairs.view(torch.uint8).expand(grid.batch, grid.heads, grid.queries, grid.keys)
    return mask, bounds, (*mask.stride(), 2 if len(bounds) > 1 else 0)


def relative_scores(p: LoweredCall) -> tuple[Tensor, int]:
    """rel_q · rel_vectors in base 2, `[heads, batch · queries, n]`, and the index of distance 0."""
    if p.rel_vectors is None:
        return p.q, 0
    rel_q, table, zero = p.rel_vectors
    last = table.shape[1] - 1
    low, high = (min(max(x + zero, 0), last) for x in (1 - p.grid.queries, p.grid.keys - 1))
    rows = rel_q.transpose(0, 1).flatten(1, 2)  # [heads, batch · queries, head_dim]
    return matmul_float32(rows, table[:, low : high + 1].mT) * (p.scale * LOG2E), zero - low


def matmul_float32(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32, whatever their type."""
    if a.is_cuda and a.dtype == b.dtype and a.dtype in (torch.float16, torch.bfloat16):
        return torch.bmm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()
