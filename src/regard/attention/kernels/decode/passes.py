"""Few queries over many keys, at the speed of memory: decoding with a cache.

A tile's rows are the queries of all heads that share a head of keys, so every key and value is read once. The keys are
cut into spans for many programs; each leaves its span's output with its maximum and sum, and a second kernel merges
them. Queries are so few that the mask's answers, and their products with vectors by distance, are linear in the keys.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...call import Problem
from ...dropout import kept_scale, threshold
from ...parts.masks import Everything
from ..prelude import kept, row_keys

LN2 = tl.constexpr(math.log(2.0))
LOG2E = 1.0 / math.log(2.0)
LOWEST = tl.constexpr(-1.0e30)
FORBIDDEN = tl.constexpr(-3.0e30)
LARGEST_DIM = 256
MOST_QUERIES = 16
MOST_ROWS = {2: 64, 4: 16}  # rows of a tile, by bytes of a number; more go to other programs
PROGRAMS = 16  # a multiprocessor, over the whole run
LEAST_KEYS = 256  # keys of a program, unless there are fewer
MERGED = 16  # spans that are merged at once


class Shape(NamedTuple):
    """Keys of a tile, and how a program runs."""

    columns: int
    warps: int
    stages: int


# By bytes of a number and padded head dim, the nearest above.
SHAPES = {
    2: {64: Shape(128, 4, 3), 128: Shape(64, 4, 3), 256: Shape(32, 4, 3)},
    4: {64: Shape(64, 4, 2), 128: Shape(32, 4, 2), 256: Shape(16, 4, 2)},
}


@triton.jit
def by_distance(p_table, o_table, o_distance, zero, entries):
    """A number for each pair, from its row's table."""
    return tl.load(p_table + o_table[:, None] + tl.minimum(tl.maximum(o_distance + zero, 0), entries - 1))


@triton.jit(
    do_not_specialize=[
        "queries", "keys", "kv_heads", "group", "row_tiles", "spans", "offset", "scale",
        "n_zero", "n_entries", "v_zero", "v_entries", "batch", "threshold",
        "m_batch", "m_head", "m_query", "m_key", "m_bounds",
    ]
)  # fmt: skip
def decode_spans(
    p_q, p_k, p_v, p_numbers, p_bias, p_allowed, p_bounds, p_seed, p_part, p_top, p_sum,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    m_batch, m_head, m_query, m_key, m_bounds,
    batch, queries, keys, kv_heads, group, row_tiles, spans, offset, scale,
    n_zero, n_entries, v_zero, v_entries, threshold,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    MASKED: tl.constexpr, NUMBERS: tl.constexpr, VECTORS: tl.constexpr, DROPOUT: tl.constexpr,
    SHARP: tl.constexpr,
):  # fmt: skip
    """One span of keys for BM rows, (head of the group, query), in base 2 with a running maximum m:

        p = 2^(s − m),   l = Σ p,   part = Σ p · v

    SHARP scales the part by l over the sum of the weights as they were rounded for the product with v.
    Backward is that of any exact attention with this output and log-sum-exp.
    """
    i_span = tl.program_id(0) % spans
    i_rest = tl.program_id(0) // spans
    i_tile = i_rest % row_tiles
    i_kv = (i_rest // row_tiles) % kv_heads
    i_b = i_rest // row_tiles // kv_heads
    o_r = i_tile * BM + tl.arange(0, BM)
    m_r = o_r < group * queries
    o_h = i_kv * group + o_r // queries
    o_query = o_r % queries
    o_i = o_query + offset
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    o_v = tl.arange(0, BDV)
    i_b = tl.cast(i_b, tl.int64)
    p_rows = p_q + i_b * q_batch + (o_h.to(tl.int64) * q_head + o_query * q_token)[:, None] + o_d[None, :]
    b_q = tl.load(p_rows, mask=m_r[:, None] & (o_d < D)[None, :], other=0.0)
    p_k += i_b * k_batch + tl.cast(i_kv, tl.int64) * k_head
    p_v += i_b * v_batch + tl.cast(i_kv, tl.int64) * v_head
    if MASKED:
        p_pairs = p_allowed + i_b * m_batch + (o_h.to(tl.int64) * m_head + o_query * m_query)[:, None]
        low = tl.load(p_bounds + i_b * m_bounds)
        high = tl.load(p_bounds + i_b * m_bounds + 1)
        low = low // BN * BN
    else:
        low = 0
        high = keys
    if NUMBERS:
        o_numbers = tl.where(m_r, o_h, 0) * n_entries
    if VECTORS:
        o_bias = ((tl.where(m_r, o_h, 0).to(tl.int64) * batch + i_b) * queries + o_query) * v_entries
    if DROPOUT:
        b_keys = row_keys(p_seed, i_b, o_h, o_i)
    each = tl.cdiv(tl.cdiv(high - low, BN), spans) * BN
    first = low + i_span * each
    last = tl.minimum(first + each, high)
    m = tl.full([BM], LOWEST, tl.float32)
    total = tl.zeros([BM], tl.float32)
    sharp = tl.zeros([BM], tl.float32)
    b_part = tl.zeros([BM, BDV], tl.float32)
    for n in tl.range(first, last, BN):
        o_j = n + o_n
        m_j = o_j < last
        p_keys = p_k + tl.cast(n, tl.int64) * k_token + o_n[None, :] * k_token + o_d[:, None]
        b_k = tl.load(p_keys, mask=m_j[None, :] & (o_d < D)[:, None], other=0.0)
        s = tl.dot(b_q, b_k, input_precision="ieee") * scale
        if NUMBERS:
            s += by_distance(p_numbers, o_numbers, o_i[:, None] - o_j[None, :], n_zero, n_entries)
        if VECTORS:
            s += by_distance(p_bias, o_bias, o_i[:, None] - o_j[None, :], v_zero, v_entries)
        if MASKED:
            p_tile = p_pairs + o_j[None, :].to(tl.int64) * m_key
            b_allowed = tl.load(p_tile, mask=m_r[:, None] & m_j[None, :], other=0)
            s = tl.where(b_allowed != 0, s, FORBIDDEN)
        else:
            s = tl.where(m_j[None, :], s, FORBIDDEN)
        grown = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - grown[:, None])
        fade = tl.exp2(m - grown)
        total = total * fade + tl.sum(p, 1)
        if SHARP:
            sharp = sharp * fade + tl.sum(p.to(p_v.dtype.element_ty).to(tl.float32), 1)
        if DROPOUT:
            p = tl.where(kept(b_keys, o_j, threshold, False), p, 0.0)
        p_values = p_v + tl.cast(n, tl.int64) * v_token + o_n[:, None] * v_token + o_v[None, :]
        b_v = tl.load(p_values, mask=m_j[:, None] & (o_v < DV)[None, :], other=0.0)
        b_part = tl.dot(p.to(b_v.dtype), b_v, b_part * fade[:, None], input_precision="ieee")
        m = grown
    if SHARP:
        b_part *= (total / tl.where(sharp > 0, sharp, 1.0))[:, None]
    o_out = (i_b * kv_heads + i_kv) * group * queries + o_r
    tl.store(p_top + o_out * spans + i_span, m, mask=m_r)
    tl.store(p_sum + o_out * spans + i_span, total, mask=m_r)
    p_out = p_part + (o_out * spans + i_span)[:, None] * DV + o_v[None, :]
    tl.store(p_out, b_part, mask=m_r[:, None] & (o_v < DV)[None, :])


@triton.jit(do_not_specialize=["spans", "kept_scale"])
def decode_merge(
    p_part, p_top, p_sum, p_output, p_lse, spans, kept_scale,
    DV: tl.constexpr, BDV: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """One row's spans together, with M = max m:

    L = Σ 2^(m − M) · l,   output = Σ 2^(m − M) · part / L,   lse = M + log2 L
    """
    i_row = tl.cast(tl.program_id(0), tl.int64)
    o_s = tl.arange(0, BS)
    o_v = tl.arange(0, BDV)
    high = tl.full([BS], LOWEST, tl.float32)
    for at in range(0, spans, BS):
        high = tl.maximum(high, tl.load(p_top + i_row * spans + at + o_s, mask=at + o_s < spans, other=LOWEST))
    high = tl.max(high, 0)
    b_sums = tl.zeros([BS], tl.float32)
    b_output = tl.zeros([BS, BDV], tl.float32)
    for at in range(0, spans, BS):
        m_s = at + o_s < spans
        b_share = tl.exp2(tl.load(p_top + i_row * spans + at + o_s, mask=m_s, other=LOWEST) - high)
        b_sums += b_share * tl.load(p_sum + i_row * spans + at + o_s, mask=m_s, other=0.0)
        p_rows = p_part + (i_row * spans + at + o_s)[:, None] * DV + o_v[None, :]
        b_output += b_share[:, None] * tl.load(p_rows, mask=m_s[:, None] & (o_v < DV)[None, :], other=0.0)
    total = tl.sum(b_sums, 0)
    alive = total > 0
    safe = tl.where(alive, total, 1.0)
    b_row = tl.sum(b_output, 0) * (kept_scale / safe)
    tl.store(p_output + i_row * DV + o_v, b_row.to(p_output.dtype.element_ty), mask=o_v < DV)
    tl.store(p_lse + i_row, tl.where(alive, (high + tl.log2(safe)) * LN2, -float("inf")))


def covers(problem: Problem) -> str | None:
    """Why these kernels cannot run the problem; None when they can."""
    if problem.weight is not None:
        return "the score is additive"
    queries, keys = problem.q.shape[2], problem.k.shape[2]
    if queries > MOST_QUERIES:
        return f"there are {queries} queries, more than {MOST_QUERIES}"
    if torch.float64 in (problem.q.dtype, problem.v.dtype):
        return "the kernels compute in float32, and the call is in float64"
    if max(problem.q.shape[-1], problem.v.shape[-1]) > LARGEST_DIM:
        return f"the head dim is more than {LARGEST_DIM}"
    if not problem.q.numel() * keys * problem.v.shape[-1]:
        return "there is nothing to compute"
    return None


def forward(p: Problem) -> tuple[Tensor, Tensor]:
    """Output, in float32 where the problem wants it exact, and log-sum-exp."""
    grid, kv_heads, values = p.grid, p.k.shape[1], p.v.shape[-1]
    group = grid.heads // kv_heads
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (p.q, p.k, p.v))
    padded = [max(triton.next_power_of_2(x.shape[-1]), 16) for x in (q, v)]
    size = max(q.element_size(), v.element_size())
    shape = shape_for(size, max(padded))
    rows = min(max(triton.next_power_of_2(group * grid.queries), 16), MOST_ROWS[size])
    row_tiles = -(-group * grid.queries // rows)
    spans = spans_for(grid.batch * kv_heads * row_tiles, grid.keys, shape.columns, processors(p.q.device))
    lines = grid.batch * grid.heads * grid.queries
    part = q.new_empty(lines, spans, values, dtype=torch.float32)
    top, total = (q.new_empty(lines, spans, dtype=torch.float32) for _ in range(2))
    allowed, bounds, pair_strides = answers(p)
    exact = torch.float32 if p.summed and any(p.wanted) else v.dtype
    numbers, n_zero = numbers_of(p)
    bias, v_zero = products(p)
    decode_spans[(grid.batch * kv_heads * row_tiles * spans,)](
        q, k, v, numbers, bias, allowed, bounds, q if p.seed is None else p.seed, part, top, total,
        *steps(q), *steps(k), *steps(v), *pair_strides,
        grid.batch, grid.queries, grid.keys, kv_heads, group, row_tiles, spans, grid.offset, p.scale * LOG2E,
        n_zero, numbers.shape[-1], v_zero, bias.shape[-1], threshold(p.dropout),
        D=q.shape[-1], BD=padded[0], DV=values, BDV=padded[1], BM=rows, BN=shape.columns,
        MASKED=not isinstance(p.mask, Everything), NUMBERS=p.numbers is not None, VECTORS=p.vectors is not None,
        DROPOUT=p.seed is not None, SHARP=exact != v.dtype, num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    output = v.new_empty(*q.shape[:3], values, dtype=exact)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    scale = kept_scale(p.dropout) if p.seed is not None else 1.0
    decode_merge[(lines,)](
        part, top, total, output, lse, spans, scale, DV=values, BDV=padded[1], BS=MERGED, num_warps=2
    )
    return output, lse


def shape_for(size: int, dim: int) -> Shape:
    by_dim = SHAPES[size]
    return by_dim[min(x for x in by_dim if x >= dim)]


def spans_for(programs: int, keys: int, columns: int, processors: int) -> int:
    """Into how many spans the keys are cut: enough programs for every multiprocessor, enough keys for each."""
    wanted = min(-(-processors * PROGRAMS // programs), keys // LEAST_KEYS)
    tiles = -(-keys // columns)
    each = -(-tiles // max(wanted, 1))
    return -(-tiles // each)


@functools.cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def steps(x: Tensor) -> list[int]:
    """Strides of batch, heads and tokens; what is there once has none."""
    return [0 if size == 1 else step for step, size in zip(x.stride()[:3], x.shape[:3], strict=True)]


def answers(p: Problem) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """The mask's answer for every pair as bytes, the first and last + 1 key that a batch row sees, and all strides."""
    if isinstance(p.mask, Everything):
        return p.q, p.q, (0,) * 5
    grid = p.grid
    pairs = p.mask.permits(*grid.places(), grid)
    pairs = pairs.reshape(*(1,) * (4 - pairs.dim()), *pairs.shape)
    j = torch.arange(grid.keys, device=pairs.device)
    seen = pairs.any(2).any(1)  # [batch or 1, keys]
    bounds = torch.stack([torch.where(seen, j, grid.keys).amin(-1), torch.where(seen, j + 1, 0).amax(-1)], -1).int()
    allowed = pairs.view(torch.uint8).expand(grid.batch, grid.heads, grid.queries, grid.keys)
    return allowed, bounds, (*allowed.stride(), 2 if len(bounds) > 1 else 0)


def numbers_of(p: Problem) -> tuple[Tensor, int]:
    """The numbers by distance in base 2, `[heads, n]`, and where distance 0 is."""
    if p.numbers is None:
        return p.q, 0
    return (p.numbers.table.float() * LOG2E).contiguous(), p.numbers.zero


def products(p: Problem) -> tuple[Tensor, int]:
    """Each query's products with vectors by distance in base 2, `[heads, batch · queries, n]`; and distance 0's."""
    if p.vectors is None:
        return p.q, 0
    asking, table, zero = p.vectors
    last = table.shape[1] - 1
    ends = [min(max(x + zero, 0), last) for x in (1 - p.grid.queries, p.grid.keys - 1)]
    rows = asking.transpose(0, 1).flatten(1, 2)  # [heads, batch · queries, head_dim]
    return product(rows, table[:, ends[0] : ends[1] + 1].mT) * (p.scale * LOG2E), zero - ends[0]


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32, whatever their type."""
    if a.is_cuda and a.dtype == b.dtype and a.dtype in (torch.float16, torch.bfloat16):
        return torch.bmm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()
