"""Additive attention in fused kernels: score = Σ_d weight · act(q + k) with act = tanh or leaky ReLU.

The score is no matrix product: its cost is an activation for each (query, key, d). Three ideas keep them cheap:

- tanh(q + k) = 1 − 2r with r = 1 / (1 + e^2q · e^2k): the exponentials are taken once a token, and two reciprocals cost
  one, w₁/m₁ + w₂/m₂ = (w₁m₂ + w₂m₁) / (m₁m₂); in forward four do. Where a tile's numbers leave no room for the product,
  it takes r = 1 / (1 + e^2(q+k)) for each element.
- leaky(x) = slope · x + (1 − slope) · max(x, 0): the first part is a number a query and one a key.
- A thread owns a patch of queries × keys, so that a step in d loads few numbers for many elements.

Backward works through the listed tiles in parts. It leaves each tile's ds (and weights, for dv) in scratch memory of a
fixed size; then a program that owns rows (or columns) and a few d walks the tiles with its sums in registers.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ...call import Problem
from ...dropout import kept_scale, threshold
from ..launch import begin, compile_together
from ..tile_lists import Lists, lists
from .kernels import (
    columns_kernel,
    delta_kernel,
    distances_kernel,
    forward_kernel,
    prepare_kernel,
    rows_kernel,
    scores_kernel,
    values_kernel,
)


class Patch(NamedTuple):
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


class Shapes(NamedTuple):
    """The patch of each kernel; the last three cut the same tiles, for they read each other's scratch."""

    forward: Patch
    scores: Patch
    by_row: Patch
    by_column: Patch


SHAPES = {  # by the bytes of a number
    2: Shapes(
        Patch(4, 8, 16, 16, 8),
        Patch(4, 8, 16, 16, 8, registers=128),
        Patch(2, 16, 32, 8, 8, registers=128),
        Patch(8, 4, 8, 32, 8, registers=128),
    ),
    4: Shapes(*[Patch(4, 4, 16, 16, 8)] * 4),
}
NARROW = Patch(8, 4, 8, 16, 4)  # forward, for half types and heads of at most 64
PRECISION = "tf32x3"  # of float32's products: three on tensor cores, as exact as one without them
PAIRS = 4  # pairs of d in one turn of the loop over d
OWNED = 8  # d that a program owns in backward
SCRATCH = 1 << 29  # bytes
LINES = 1024  # programs that add up scores by distance, over all batch rows and heads


@dataclass(frozen=True)
class Prepared:
    """A problem's tensors as kernels take them, for one size of tiles."""

    problem: Problem
    patch: Patch
    tiles: Lists
    weight: Tensor  # [heads, DP], float32, zeros beyond head_dim
    a: Tensor  # int64 [batch · heads, planes, DP / 2, padded queries]
    b: Tensor  # int64 [batch · kv_heads, planes, DP / 2, padded keys]
    top_a: Tensor  # [batch · heads, tile rows]
    top_b: Tensor  # [batch · kv_heads, tile columns]
    line_a: Tensor  # [batch · heads, padded queries]
    line_b: Tensor  # [batch · heads, padded keys]
    v: Tensor

    @property
    def tanh(self) -> bool:
        return self.problem.activation == "tanh"

    @property
    def dp(self) -> int:
        return self.weight.shape[1]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(padded queries, padded keys, tile rows, tile columns)."""
        return self.a.shape[-1], self.b.shape[-1], self.top_a.shape[1], self.top_b.shape[1]

    @property
    def shapes(self) -> Shapes:
        return SHAPES[self.v.element_size()]

    @property
    def tokens(self) -> tuple[Tensor, ...]:
        """What every kernel of backward reads of queries, keys and weight."""
        return self.a, self.b, self.weight, self.top_a, self.top_b

    @property
    def table(self) -> Tensor:
        """Numbers by distance; any tensor where there are none, and so for the seed."""
        return self.weight if self.problem.numbers is None else self.problem.numbers.table.contiguous()

    @property
    def seed(self) -> Tensor:
        return self.weight if self.problem.seed is None else self.problem.seed

    @property
    def settings(self) -> tuple[float, ...]:
        """(entries of the table, zero, threshold, scale, slope)."""
        p = self.problem
        zero = 0 if p.numbers is None else p.numbers.zero
        return self.table.shape[1], zero, threshold(p.dropout), kept_scale(p.dropout), p.slope

    @property
    def kinds(self) -> dict[str, object]:
        """What kernels that compute scores are compiled for."""
        p = self.problem
        parts = dict(TANH=self.tanh, NUMBERS=p.numbers is not None, DROPOUT=p.seed is not None, PRECISION=PRECISION)
        return parts | dict(DP=self.dp, DIM_V=p.v.shape[3], UP=min(PAIRS, self.dp // 2))


def prepare(p: Problem, patch: Patch) -> Prepared:
    """The exponentials (or the numbers themselves) with tokens last, and what can be summed once a token."""
    heads, kv_heads, head_dim = p.q.shape[1], p.k.shape[1], p.q.shape[3]
    dp = padded_dim(head_dim)
    weight = torch.nn.functional.pad(p.weight.float(), (0, dp - head_dim)).contiguous()  # type: ignore[union-attr]
    planes = 2 if p.activation == "tanh" else 1
    made = []
    for x, size, group, query in ((p.q, patch.rows, 1, True), (p.k, patch.columns, heads // kv_heads, False)):
        x = x if x.stride(-1) == 1 else x.contiguous()
        batch, own, tokens, _ = x.shape
        tiles = -(-tokens // size)
        out = x.new_empty(batch * own, planes, dp // 2, tiles * size, dtype=torch.int64)
        top = x.new_empty(batch * own, tiles, dtype=torch.float32)
        line = x.new_empty(batch * heads, tiles * size, dtype=torch.float32)
        begin(
            prepare_kernel, (tiles, batch * own),
            x, weight, out, top, line, *x.stride()[:3], own, group, tokens, tiles * size, head_dim, p.slope,
            TANH=planes == 2, QUERY=query, DP=dp, BT=size, BP=min(16, triton.next_power_of_2(dp // 2)), num_warps=4,
        )  # fmt: skip
        made.append((out, top, line))
    (a, top_a, line_a), (b, top_b, line_b) = made
    v = p.v if p.v.stride(-1) == 1 else p.v.contiguous()
    tiles = lists(p.mask, p.grid, patch.rows, patch.columns)
    return Prepared(p, patch, tiles, weight, a, b, top_a, top_b, line_a, line_b, v)


def padded_dim(head_dim: int) -> int:
    """head_dim as the loops over d take it: even, and a multiple of a turn."""
    turn = max(OWNED, 2 * PAIRS)
    return next((n for n in (2, 4) if head_dim <= n), -(-head_dim // turn) * turn)


@dataclass(frozen=True)
class Entries:
    """The listed tiles, numbered as in `Lists.tile`, and the same ones column by column."""

    owner: Tensor  # int32 [n]: group · tile rows + row
    order: Tensor  # int32 [n]: the tiles by (group, column, row)
    sorted: Tensor  # int64 [n]: (group · tile columns + column) · n + tile, in that order
    columns: int  # tile columns of all groups
    cuts: dict[tuple[int, int], tuple[Tensor, Tensor]]

    def between(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Where in `order` each column's tiles of number first … last − 1 begin and end."""
        if (first, last) not in self.cuts:
            lines = torch.arange(self.columns, device=self.order.device) * max(len(self.order), 1)
            self.cuts[first, last] = tuple(torch.searchsorted(self.sorted, lines + x).int() for x in (first, last))  # type: ignore[assignment]
        return self.cuts[first, last]


_entries: weakref.WeakKeyDictionary[Lists, Entries] = weakref.WeakKeyDictionary()


def entries_of(tiles: Lists, columns: int) -> Entries:
    """The entries of lists whose tiles stand in so many columns; remembered as long as the lists are."""
    if tiles not in _entries:
        starts, n = tiles.starts.long(), len(tiles.tile)
        rows = starts.shape[1] - 1
        owner = torch.repeat_interleave((starts[:, 1:] - starts[:, :-1]).flatten(), output_size=n)
        line = owner // rows * columns + tiles.tile
        found, order = torch.sort(line * n + torch.arange(n, device=line.device))
        _entries[tiles] = Entries(owner.int(), order.int(), found, columns * tiles.groups, {})
    return _entries[tiles]


class Part(NamedTuple):
    """Tiles first … last − 1 of each of some copies: the (batch, head) that share a group's lists."""

    copy: int
    copies: int
    first: int
    last: int


def parts(ready: Prepared) -> tuple[list[Part], int, int]:
    """The work of backward in parts that fit the scratch; and (batch · heads) = group · group_x + copy · copy_x."""
    p, tiles, n = ready.problem, ready.tiles, len(ready.tiles.tile)
    batch, heads = p.q.shape[:2]
    room = max(SCRATCH // (ready.patch.rows * ready.patch.columns * (4 + p.v.element_size())), 1)
    copies = batch * heads // tiles.groups
    if tiles.batch_stride and tiles.head_stride:
        steps = (1, 0)
    elif tiles.batch_stride:
        steps = (heads, 1)
    else:
        steps = (1, heads) if tiles.head_stride else (0, 1)
    return list(cut(copies, n, room)), *steps


def cut(copies: int, n: int, room: int) -> Iterator[Part]:
    """Whole copies while they fit, else stretches of one copy's tiles."""
    step = min(max(room // max(n, 1), 1), 65535)
    for copy in range(0, copies, step):
        for first in range(0, n, room):
            yield Part(copy, min(step, copies - copy), first, min(first + room, n))


def forward(p: Problem) -> tuple[Tensor, Tensor]:
    """(output, lse) of an additive problem, both in float32."""
    kinds = (p.activation, p.numbers is None, p.seed is None, any(p.wanted))
    kind = (forward, p.q.device, p.v.dtype, p.q.shape[3], p.v.shape[3], *kinds)
    compile_together(kind, functools.partial(there_and_back, p))
    return attended(p)


def there_and_back(p: Problem) -> None:
    """Everything that begins a kernel, backward too where it will come."""
    output, lse = attended(p)
    if any(p.wanted):
        backward(p, torch.empty_like(output, dtype=p.v.dtype), output, lse)


def attended(p: Problem) -> tuple[Tensor, Tensor]:
    """`forward`, its kernels started as they come."""
    batch, heads, queries, _ = p.q.shape
    kv_heads, keys, dim_v = p.v.shape[1:]
    output = p.v.new_empty(batch, heads, queries, dim_v, dtype=torch.float32)
    lse = p.v.new_empty(batch, heads, queries, dtype=torch.float32)
    if not output.numel() or not keys:
        return output.zero_(), lse.fill_(-math.inf)
    narrow = p.v.element_size() == 2 and p.q.shape[3] <= 64
    ready = prepare(p, NARROW if narrow else SHAPES[p.v.element_size()].forward)
    tiles = ready.tiles
    begin(
        forward_kernel, (ready.sizes[2] * batch * heads,),
        ready.a, ready.b, ready.weight, ready.top_a, ready.top_b, ready.line_a, ready.line_b, ready.v, ready.table,
        ready.seed, tiles.starts, tiles.tile, tiles.bits, tiles.packed, output, lse, *ready.v.stride()[:3],
        heads, kv_heads, queries, keys, *ready.sizes, tiles.batch_stride, tiles.head_stride, *ready.settings,
        **ready.kinds, BV=max(triton.next_power_of_2(dim_v), 16), **axes(ready.patch),
    )  # fmt: skip
    return output, lse


def backward(p: Problem, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight and numbers; None for asking and table, which additive scores do not have."""
    if not output.numel() or not p.k.shape[2]:
        table = None if p.numbers is None else p.numbers.table
        return [None if x is None else torch.zeros_like(x) for x in (p.q, p.k, p.v, p.weight, table, None, None)]
    ready = prepare(p, SHAPES[p.v.element_size()].scores)
    sums = Sums(ready)
    walk = Walk(ready, sums, grad.contiguous(), output.contiguous(), lse.contiguous())
    for part in walk.parts:
        walk.scores(part)
        walk.rows(part)
        walk.columns(part)
        walk.values(part)
        if sums.distances is not None:
            walk.distances(part)
    return sums.gradients()


class Sums:
    """What backward adds up, part by part, in float32; tokens last where a program owns a few d."""

    def __init__(self, ready: Prepared):
        p = self.problem = ready.problem
        padded_q, padded_k, tile_rows, _ = ready.sizes
        front = p.q.shape[0] * p.q.shape[1]
        zeros = lambda *sizes: p.q.new_zeros(front, *sizes, dtype=torch.float32)  # noqa: E731
        self.q, self.k, self.v = zeros(ready.dp, padded_q), zeros(ready.dp, padded_k), zeros(*p.v.shape[2:])
        self.weight = zeros(tile_rows, ready.dp)
        self.edge = ready.patch.columns
        self.reach = triton.next_power_of_2(ready.patch.rows + ready.patch.columns - 1)  # distances in a tile
        length = padded_q + p.k.shape[2] + self.edge + self.reach
        lines = min(max(LINES // front, 1), tile_rows)
        self.distances = None if p.numbers is None else zeros(lines, length)

    def gradients(self) -> list[Tensor | None]:
        """The sums in the shapes and types of what they are gradients of."""
        p = self.problem
        batch, heads, queries, head_dim = p.q.shape
        keys = p.k.shape[2]
        weight = self.weight.view(batch, heads, -1, self.weight.shape[-1]).sum((0, 2))[:, :head_dim]
        dq = self.q.unflatten(0, (batch, heads))[:, :, :head_dim, :queries].mT
        dk = self.by_key_head(self.k)[:, :, :head_dim, :keys].mT
        table = None if self.distances is None else self.folded()
        found = (dq, dk, self.by_key_head(self.v), weight, table)
        like = (p.q, p.k, p.v, p.weight, p.numbers and p.numbers.table)
        return [*(x if x is None else x.to(y.dtype).contiguous() for x, y in zip(found, like, strict=True)), None, None]  # type: ignore[union-attr]

    def by_key_head(self, x: Tensor) -> Tensor:
        """x `[batch · heads, ...]` summed over the query heads that read one key head."""
        batch, kv_heads = self.problem.k.shape[:2]
        x = x.unflatten(0, (batch, kv_heads, -1))
        return x.squeeze(2) if x.shape[2] == 1 else x.sum(2)

    def folded(self) -> Tensor:
        """Sums by distance as the gradient of the table, whose ends serve the distances beyond them."""
        p = self.problem
        (heads, n), queries = p.numbers.table.shape, p.q.shape[2]  # type: ignore[union-attr]
        count = queries + p.k.shape[2] - 1
        line = self.distances.unflatten(0, (-1, heads)).sum((0, 2))[:, self.edge : self.edge + count]  # type: ignore[union-attr]
        shift = p.numbers.zero - queries + 1  # type: ignore[union-attr]
        low, high = (min(max(x, 0), count) for x in (-shift, n - shift))
        found = line.new_zeros(heads, n)
        found[:, low + shift : high + shift] = line[:, low:high]
        found[:, 0] += line[:, :low].sum(1)
        found[:, -1] += line[:, high:].sum(1)
        return found


class Walk:
    """Backward's kernels, each over one part of the tiles at a time."""

    def __init__(self, ready: Prepared, sums: Sums, grad: Tensor, output: Tensor, lse: Tensor):
        p = ready.problem
        self.ready, self.sums, self.grad, self.tiles = ready, sums, grad.to(p.v.dtype), ready.tiles
        self.sizes = (p.q.shape[1], p.k.shape[1], p.q.shape[2], p.k.shape[2])  # heads, kv_heads, queries, keys
        self.wide = max(triton.next_power_of_2(p.v.shape[3]), 16)
        self.owned = min(OWNED, ready.dp)
        self.listed = entries_of(ready.tiles, ready.sizes[3])
        self.parts, *self.steps = parts(ready)
        slots = max((part.copies * (part.last - part.first) for part in self.parts), default=0)
        self.ds = p.v.new_empty(slots, ready.patch.rows, ready.patch.columns, dtype=torch.float32)
        self.p = torch.empty_like(self.ds, dtype=p.v.dtype)
        self.delta, self.level = torch.empty_like(ready.line_a), torch.empty_like(ready.line_a)
        begin(
            delta_kernel, (ready.sizes[2], ready.a.shape[0]),
            grad, output, lse, ready.line_a, self.delta, self.level, p.q.shape[2], ready.sizes[0],
            DIM_V=p.v.shape[3], BT=ready.patch.rows, BV=min(self.wide, 64), num_warps=4,
        )  # fmt: skip

    def span(self, part: Part) -> tuple[int, ...]:
        """Which tiles are meant, as kernels take it."""
        return *self.steps, part.copy, part.first, part.last

    def scores(self, part: Part) -> None:
        ready, tiles = self.ready, self.tiles
        begin(
            scores_kernel, (part.last - part.first, part.copies),
            *ready.tokens, ready.line_b, ready.v, ready.table, ready.seed, self.listed.owner, tiles.tile, tiles.bits,
            tiles.packed, self.grad, self.delta, self.level, self.ds, self.p, *ready.v.stride()[:3],
            *self.sizes, *ready.sizes, *self.span(part)[:4], *ready.settings, **ready.kinds, BV=min(self.wide, 64),
            **axes(ready.patch),
        )  # fmt: skip

    def rows(self, part: Part) -> None:
        ready, tiles, sums = self.ready, self.tiles, self.sums
        begin(
            rows_kernel, (ready.dp // self.owned * ready.sizes[2] * tiles.groups, part.copies),
            *ready.tokens, self.ds, tiles.starts, tiles.tile, sums.q, sums.weight, *self.sizes[:2], *ready.sizes,
            *self.span(part), ready.problem.slope,
            TANH=ready.tanh, DP=ready.dp, DU=self.owned, **axes(ready.shapes.by_row),
        )  # fmt: skip

    def columns(self, part: Part) -> None:
        ready, listed = self.ready, self.listed
        begin(
            columns_kernel, (ready.dp // self.owned * listed.columns, part.copies),
            *ready.tokens, self.ds, *listed.between(part.first, part.last), listed.order, listed.owner, self.sums.k,
            *self.sizes[:2], *ready.sizes, *self.span(part), ready.problem.slope,
            TANH=ready.tanh, DP=ready.dp, DU=self.owned, **axes(ready.shapes.by_column),
        )  # fmt: skip

    def values(self, part: Part) -> None:
        ready, listed, dim_v = self.ready, self.listed, self.grad.shape[3]
        begin(
            values_kernel, (listed.columns, part.copies, -(-dim_v // min(self.wide, 128))),
            self.p, self.grad, *listed.between(part.first, part.last), listed.order, listed.owner, self.sums.v,
            *self.sizes[2:], *ready.sizes[2:], *self.span(part), DIM_V=dim_v, PRECISION=PRECISION,
            BM=ready.patch.rows, BN=ready.patch.columns, BV=min(self.wide, 128), num_warps=8, num_stages=2,
        )  # fmt: skip

    def distances(self, part: Part) -> None:
        ready, tiles, sums = self.ready, self.tiles, self.sums
        lines, length = sums.distances.shape[1:]  # type: ignore[union-attr]
        begin(
            distances_kernel, (lines * tiles.groups, part.copies),
            self.ds, tiles.starts, tiles.tile, sums.distances, self.sizes[3], ready.sizes[2], lines, length,
            *self.span(part), BM=ready.patch.rows, BN=ready.patch.columns, BX=sums.reach, num_warps=8,
        )  # fmt: skip


def axes(patch: Patch) -> dict[str, int]:
    """A patch as a kernel's arguments; one stage, for nothing is worth a copy to shared memory ahead of its use."""
    limit = {"maxnreg": patch.registers} if patch.registers else {}
    return dict(RM=patch.rm, RN=patch.rn, TM=patch.tm, TN=patch.tn, num_warps=patch.warps, num_stages=1) | limit
