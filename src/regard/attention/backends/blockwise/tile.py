"""One tile of scores and its adjoint, for any combination of parts: what `blockwise` and `look` walk over.

Rows of a tile are taken last to first. Then the distance i − j falls by one with each step right *and* each step down,
so a number by distance is a strided view of a short vector, and a vector by distance a strided view of one matrix
product: nothing is gathered and nothing of the tile's size is built beside the scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...call import LoweredCall
from ...dropout import keep_mask, keep_scale, row_keys
from .schedule import Chunk, Shape, Span

ELEMENTS = 1 << 20  # scores held at once
FEATURES = 1 << 18  # activations of an additive score held at once
TANH_ROOM = 20.0  # |q| and |k| below which e^2q · e^2k is finite in float32
TANH_SMALL = 0.25  # |q| and |k| below which tanh(q + k) is small, and 1 − 2 / (1 + e^2q e^2k) would lose its digits


def shape_for(problem: LoweredCall) -> tuple[Shape, int]:
    """How to cut the work, and how many batch rows to take together."""
    heads, queries, keys = problem.q.shape[1], problem.q.shape[2], problem.k.shape[2]
    rows = 128 if queries > 128 else max(queries, 1)
    columns = 64
    width = max(ELEMENTS // max(heads * rows, 1) // columns, 4) * columns
    width = min(width, 2048, -(-keys // columns) * columns)
    return Shape(rows, columns, width), max(1, ELEMENTS // max(heads * rows * width, 1))


@dataclass(frozen=True)
class Table:
    """Entries by distance, nearest last: entry x of `at(high, count)` is that of distance high − x."""

    entries: Tensor  # [heads, n, ...], reversed
    zero: int

    def cut(self, high: int, count: int) -> tuple[int, int, int, int]:
        """(first, last + 1, repeats of the first, repeats of the last) for distances high, high − 1, …"""
        n = self.entries.shape[1]
        start = n - 1 - (high + self.zero)
        first, last = min(max(start, 0), n - 1), min(max(start + count - 1, 0), n - 1)
        before = min(max(-start, 0), count - 1)
        after = min(max(start + count - n, 0), count - 1)
        return first, last + 1, before, after


def spread(x: Tensor, before: int, after: int) -> Tensor:
    """x with its first and last entry along the last axis repeated."""
    if not before and not after:
        return x
    first, last = x[..., :1].expand(*x.shape[:-1], before), x[..., -1:].expand(*x.shape[:-1], after)
    return torch.cat([first, x, last], dim=-1)


def gather(x: Tensor, before: int, after: int) -> Tensor:
    """The adjoint of `spread`."""
    if not before and not after:
        return x
    size = x.shape[-1] - before - after
    kept = x[..., before : before + size].clone()
    kept[..., 0] += x[..., :before].sum(-1)
    kept[..., -1] += x[..., before + size :].sum(-1)
    return kept


class Walker:
    """A problem made ready to be walked in tiles: exact types, heads in groups, tables reversed."""

    def __init__(self, problem: LoweredCall):
        exact = torch.promote_types(problem.v.dtype, torch.float32)
        self.problem = problem
        self.exact = exact
        self.grid = problem.grid
        self.scale = problem.scale
        self.q, self.k, self.v = (x.to(exact) for x in (problem.q, problem.k.contiguous(), problem.v.contiguous()))
        self.group = self.q.shape[1] // max(self.k.shape[1], 1)
        self.numbers: Table | None = None
        self.vectors: Table | None = None
        self.asking = self.q
        if problem.rel_bias is not None:
            self.numbers = Table(problem.rel_bias.table.to(exact).flip(1), problem.rel_bias.zero)
        if problem.rel_vectors is not None:
            self.asking = problem.rel_vectors.queries.to(exact)
            self.vectors = Table(problem.rel_vectors.table.to(exact).flip(1), problem.rel_vectors.zero)
        self.additive = problem.weight is not None
        self.weight = self.q.new_empty(0) if problem.weight is None else problem.weight.to(exact)
        self.form = additive_form(problem, self.q, self.k) if self.additive else "dot"
        if self.form == "exponential":
            self.q, self.k = (2 * self.q).exp(), (2 * self.k).exp()
        if self.form == "small":
            self.q, self.k = (2 * self.q).expm1(), (2 * self.k).expm1()
        self.one = torch.ones((), dtype=exact, device=self.q.device)
        self.rooms = [self.q.new_empty(0)] * 2

    def tile(self, chunk: Chunk) -> Tile:
        """The chunk's queries, last to first."""
        rows = torch.arange(chunk.last - 1, chunk.first - 1, -1, device=self.grid.device)
        return Tile(self, chunk, rows + self.grid.offset)

    def rows(self, x: Tensor, chunk: Chunk) -> Tensor:
        """The chunk's rows of x `[batch, heads, queries, ...]`, last to first."""
        return x[chunk.batch, :, chunk.first : chunk.last].flip(2)

    def grouped(self, x: Tensor) -> Tensor:
        """x `[batch, heads, rows, ...]` with the rows of each group of heads together, `[batch · kv_heads, ...]`."""
        batch, heads, rows, last = x.shape
        return x.reshape(batch * heads // self.group, self.group * rows, last)

    def keys(self, x: Tensor, chunk: Chunk, span: Span) -> Tensor:
        """The span's rows of keys or values, `[batch · kv_heads, width, ...]`, without a copy."""
        return x[chunk.batch].flatten(0, 1)[:, span.first : span.last]


@dataclass(frozen=True)
class Tile:
    """A chunk of queries, to be met with spans of keys."""

    walker: Walker
    chunk: Chunk
    places: Tensor  # [rows], i of each, last to first

    def scores(self, span: Span) -> Tensor:
        """Scores of the chunk's rows on the span's keys, −∞ where forbidden, `[batch, heads, rows, width]`."""
        w = self.walker
        s = additive_scores(self, span) if w.additive else self.dot(span)
        if w.numbers is not None:
            s += self.numbers(span, w.numbers)
        if w.vectors is not None:
            s += self.vectors(span, w.vectors)
        self.forbid(s, span)
        return s

    def dot(self, span: Span) -> Tensor:
        w = self.walker
        q = w.grouped(w.rows(w.q, self.chunk)) * w.scale
        s = torch.bmm(q, w.keys(w.k, self.chunk, span).mT)
        return s.view(-1, w.grid.heads, len(self.places), span.last - span.first)

    def forbid(self, s: Tensor, span: Span) -> None:
        for first, last in span.mixed:
            pairs = self.permitted(first, last)
            s[..., first - span.first : last - span.first].masked_fill_(~pairs, -torch.inf)

    def permitted(self, first: int, last: int) -> Tensor:
        """The mask's answer for keys first … last − 1."""
        w = self.walker
        j = torch.arange(first, last, device=w.grid.device)
        pairs = w.problem.mask.permits(self.places[:, None], j[None, :], w.grid)
        return pairs[self.chunk.batch] if pairs.dim() == 4 and pairs.shape[0] > 1 else pairs

    def cut(self, table: Table, span: Span) -> tuple[int, int, int, int]:
        highest = self.chunk.last - 1 + self.walker.grid.offset - span.first
        return table.cut(highest, len(self.places) + span.last - span.first - 1)

    def numbers(self, span: Span, table: Table) -> Tensor:
        """What distance adds, `[heads, rows, width]`: a view of one vector a head."""
        first, last, before, after = self.cut(table, span)
        line = spread(table.entries[:, first:last], before, after)
        return line.unfold(1, span.last - span.first, 1)

    def vectors(self, span: Span, table: Table) -> Tensor:
        """What distance adds when the query is asked, `[batch, heads, rows, width]`."""
        w = self.walker
        first, last, before, after = self.cut(table, span)
        asking = w.rows(w.asking, self.chunk) * w.scale
        return sheared(spread(asking @ table.entries[:, first:last].mT, before, after), span.last - span.first)

    def kept(self, span: Span) -> Tensor | None:
        """What the weights are multiplied with by dropout; None without it."""
        p = self.walker.problem
        if p.seed is None:
            return None
        device = self.places.device
        batch = torch.arange(self.chunk.batch.start, self.chunk.batch.stop, device=device)
        rows = row_keys(p.seed, batch, torch.arange(self.walker.grid.heads, device=device), self.places)
        j = torch.arange(span.first, span.last, device=device)
        return keep_mask(rows, j, p.dropout).to(self.walker.exact) * keep_scale(p.dropout)


class Gradients:
    """Sums of the gradients of everything that a tile's scores came from."""

    def __init__(self, walker: Walker):
        self.walker = walker
        self.q, self.k, self.v = (torch.zeros_like(x) for x in (walker.q, walker.k, walker.v))
        self.weight = torch.zeros_like(walker.weight)
        wanted = walker.problem.needs_grad[4]
        self.numbers = torch.zeros_like(walker.numbers.entries) if walker.numbers and wanted else None
        self.vectors = None if walker.vectors is None else torch.zeros_like(walker.vectors.entries)
        self.asking = None if walker.vectors is None else torch.zeros_like(walker.asking)

    def add(self, tile: Tile, span: Span, d: Tensor) -> None:
        """Push the gradient `d` of a tile's scores, `[batch, heads, rows, width]`, to where they came from."""
        w = self.walker
        if w.additive:
            additive_gradients(self, tile, span, d)
        else:
            self.add_dot(tile, span, w.grouped(d))
        if self.numbers is not None and w.numbers is not None:
            first, last, before, after = tile.cut(w.numbers, span)
            self.numbers[:, first:last] += gather(unsheared(d.sum(0)).sum(-2), before, after)
        if self.vectors is not None and self.asking is not None and w.vectors is not None:
            first, last, before, after = tile.cut(w.vectors, span)
            band = gather(unsheared(d), before, after) * w.scale  # [batch, heads, rows, entries]
            self.to_rows(self.asking, tile, band @ w.vectors.entries[:, first:last])
            self.vectors[:, first:last] += (band.mT @ w.rows(w.asking, tile.chunk)).sum(0)

    def add_dot(self, tile: Tile, span: Span, d: Tensor) -> None:
        w = self.walker
        dq = torch.bmm(d, w.keys(w.k, tile.chunk, span)) * w.scale
        self.to_rows(self.q, tile, dq.view(-1, w.grid.heads, len(tile.places), w.q.shape[-1]))
        q = w.grouped(w.rows(w.q, tile.chunk)) * w.scale
        w.keys(self.k, tile.chunk, span).baddbmm_(d.mT, q)

    def to_rows(self, total: Tensor, tile: Tile, d: Tensor) -> None:
        total[tile.chunk.batch, :, tile.chunk.first : tile.chunk.last] += d.flip(2)

    def found(self) -> list[Tensor | None]:
        """Gradients of q, k, v, weight, numbers, asking, table."""
        numbers, vectors = (None if x is None else x.flip(1) for x in (self.numbers, self.vectors))
        return [self.q, self.k, self.v, self.weight, numbers, self.asking, vectors]


def sheared(band: Tensor, width: int) -> Tensor:
    """band[..., r, r + c] for c < width, as a view."""
    band = band.contiguous()
    *front, rows, size = band.shape
    strides = [*band.stride()[:-2], size + 1, 1]
    return band.as_strided((*front, rows, width), strides)


def unsheared(d: Tensor) -> Tensor:
    """The adjoint of `sheared`: d[..., r, c] at column r + c."""
    *front, rows, width = d.shape
    band = d.new_zeros(*front, rows, rows + width - 1)
    sheared(band, width).copy_(d)
    return band


def additive_form(problem: LoweredCall, q: Tensor, k: Tensor) -> str:
    """How to compute the activations; tanh by exponentials of q and k alone, as long as their product is finite."""
    if problem.activation != "tanh":
        return problem.activation
    largest = max((float(x.abs().amax()) for x in (q, k) if x.numel()), default=0.0)
    return "small" if largest < TANH_SMALL else "exponential" if largest < TANH_ROOM else "tanh"


def activations(tile: Tile, span: Span, rows: slice) -> Tensor:
    """tanh(q + k), or for leaky ReLU q + k itself, of some of the chunk's rows, `[batch, heads, rows, width, d]`.

    tanh(q + k) = 1 − 2 / (1 + e^2q e^2k) needs no more than a division, for the powers are a token's own. Near zero it
    is x / (x + 2) with x = a + (a + 1)·b, where a = e^2q − 1 and b = e^2k − 1. The answer lies in room that the next
    call overwrites.
    """
    w = tile.walker
    q = w.rows(w.q, tile.chunk)[:, :, rows, None]
    k = w.k[tile.chunk.batch, :, span.first : span.last].repeat_interleave(w.group, dim=1)[:, :, None]
    room = room_for(w, 0, torch.broadcast_shapes(q.shape, k.shape))
    if w.form == "exponential":
        inverse = torch.addcmul(w.one, q, k, out=room).reciprocal_()
        return torch.add(w.one, inverse, alpha=-2.0, out=room)
    if w.form == "small":
        x = torch.addcmul(q, q + 1.0, k, out=room)
        return x.div_(torch.add(x, 2.0, out=room_for(w, 1, x.shape)))
    both = torch.add(q, k, out=room)
    return both.tanh_() if w.form == "tanh" else both


def room_for(w: Walker, which: int, shape: torch.Size) -> Tensor:
    """Room for a tensor of this shape, kept for the next one: fresh memory costs more than the arithmetic."""
    if w.rooms[which].numel() < shape.numel():
        w.rooms[which] = w.q.new_empty(shape.numel())
    return w.rooms[which][: shape.numel()].view(shape)


def row_steps(tile: Tile, span: Span) -> list[slice]:
    """The chunk's rows in steps that keep the activations small."""
    w = tile.walker
    each = max(
        (tile.chunk.batch.stop - tile.chunk.batch.start) * w.grid.heads * (span.last - span.first) * w.q.shape[-1], 1
    )
    step = max(FEATURES // each, 1)
    return [slice(r, min(r + step, len(tile.places))) for r in range(0, len(tile.places), step)]


def additive_scores(tile: Tile, span: Span) -> Tensor:
    w = tile.walker
    weight = w.weight[:, None, :, None]  # [heads, 1, d, 1]
    parts = []
    for rows in row_steps(tile, span):
        act = activations(tile, span, rows)
        if w.form == "leaky_relu":
            act = torch.nn.functional.leaky_relu_(act, w.problem.slope)
        parts.append((act @ weight).squeeze(-1))
    return torch.cat(parts, dim=2)


def additive_gradients(sums: Gradients, tile: Tile, span: Span, d: Tensor) -> None:
    """dq = weight Σ_j d · act′, dk = weight Σ_i d · act′, dweight = Σ_ij d · act, with act′ from act alone."""
    w = tile.walker
    dq: list[Tensor] = []
    dk = torch.zeros_like(d[:, :, 0, :, None])
    for rows in row_steps(tile, span):
        act, part = activations(tile, span, rows), d[:, :, rows]
        slope = act_slope(sums, w, act, part)
        dq.append((part[..., None, :] @ slope).squeeze(3))
        dk = dk + slope.mul_(part[..., None]).sum(2)
    factor = w.weight[:, None, :]  # [heads, 1, d]
    sums.to_rows(sums.q, tile, torch.cat(dq, dim=2) * factor)
    sums.k[tile.chunk.batch, :, span.first : span.last] += (dk * factor).unflatten(1, (-1, w.group)).sum(2)


def act_slope(sums: Gradients, w: Walker, act: Tensor, d: Tensor) -> Tensor:
    """act′, in place of the activations; their share of dweight is added."""
    if w.form == "leaky_relu":
        slope = (act > 0).to(act.dtype).mul_(1.0 - w.problem.slope).add_(w.problem.slope)
        sums.weight += weighed(d, act.mul_(slope))
        return slope
    sums.weight += weighed(d, act)
    return torch.addcmul(w.one, act, act, value=-1.0, out=act)  # 1 − tanh²


def weighed(d: Tensor, act: Tensor) -> Tensor:
    """Σ over batch, rows and keys of d · act, `[heads, d]`."""
    return (d.flatten(2)[:, :, None] @ act.flatten(2, 3)).sum(0).squeeze(1)
