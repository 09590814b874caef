"""One tile of scores and its gradient, for any combination of parts. `blockwise` and `look` loop over such tiles.

Rows of a tile are taken last to first. Then the distance i − j falls by one with each step right *and* each step down,
so a bias by distance is a strided view of a short vector, and the products with vectors by distance are a strided view
of one matrix product: nothing is gathered, and nothing of the tile's size is built beside the scores. Products of keys
with vectors by distance are the same with rows and columns exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...call import LoweredCall
from ...dropout import keep_mask, keep_scale, row_keys
from .schedule import KeySpan, QueryChunk

FEATURES = 1 << 18  # activations of an additive score held at once
WIDE = 4096  # keys of one matrix product
TANH_MAX = 20.0  # |q| and |k| below which e^2q · e^2k is finite in float32
TANH_SMALL = 0.25  # |q| and |k| below which tanh(q + k) is small, and 1 − 2 / (1 + e^2q e^2k) would lose its digits


@dataclass(frozen=True)
class DistanceTable:
    """Entries by distance in reverse order: entry n − 1 − x is that of distance x − zero."""

    entries: Tensor  # [heads, n, ...], reversed
    zero: int

    def entry_range(self, high: int, count: int) -> tuple[int, int, int, int]:
        """(first, last + 1, repeats of the first, repeats of the last) for distances high, high − 1, …"""
        n = self.entries.shape[1]
        start = n - 1 - (high + self.zero)
        first, last = min(max(start, 0), n - 1), min(max(start + count - 1, 0), n - 1)
        before = min(max(-start, 0), count - 1)
        after = min(max(start + count - n, 0), count - 1)
        return first, last + 1, before, after


def repeat_ends(x: Tensor, before: int, after: int) -> Tensor:
    """x with its first and last entry along the last axis repeated."""
    if not before and not after:
        return x
    first, last = x[..., :1].expand(*x.shape[:-1], before), x[..., -1:].expand(*x.shape[:-1], after)
    return torch.cat([first, x, last], dim=-1)


def sum_ends(x: Tensor, before: int, after: int) -> Tensor:
    """The adjoint of `repeat_ends`."""
    if not before and not after:
        return x
    size = x.shape[-1] - before - after
    sums = x[..., before : before + size].clone()
    sums[..., 0] += x[..., :before].sum(-1)
    sums[..., -1] += x[..., before + size :].sum(-1)
    return sums


class TileInputs:
    """A lowered call prepared for tiles: exact types, heads in groups, tables reversed."""

    def __init__(self, call: LoweredCall):
        exact = torch.promote_types(call.v.dtype, torch.float32)
        self.call = call
        self.exact = exact
        self.grid = call.grid
        self.scale = call.scale
        self.q, self.k, self.v = (x.to(exact) for x in (call.q, call.k.contiguous(), call.v.contiguous()))
        self.group = self.q.shape[1] // max(self.k.shape[1], 1)
        self.rel_bias: DistanceTable | None = None
        self.rel_vectors: DistanceTable | None = None
        self.key_vectors: DistanceTable | None = None
        self.rel_q = self.q
        self.slopes: Tensor | None = None  # at explicit places, where they stand for a table
        if call.rel_bias is not None:
            self.rel_bias = DistanceTable(call.rel_bias.table.to(exact).flip(1), call.rel_bias.zero)
            if call.places is not None and call.rel_bias.slopes is not None:
                self.slopes = call.rel_bias.slopes.to(exact)
        if call.rel_vectors is not None:
            self.rel_q = call.rel_vectors.queries.to(exact)
            self.rel_vectors = DistanceTable(call.rel_vectors.table.to(exact).flip(1), call.rel_vectors.zero)
        if call.key_vectors is not None:
            self.key_vectors = DistanceTable(call.key_vectors.table.to(exact).flip(1), call.key_vectors.zero)
        self.cap, self.pair_bias = call.cap, call.pair_bias
        self.additive = call.weight is not None
        self.weight = self.q.new_empty(0) if call.weight is None else call.weight.to(exact)
        self.form = additive_form(call, self.q, self.k) if self.additive else "dot"
        if self.form == "exponential":
            self.q, self.k = (2 * self.q).exp(), (2 * self.k).exp()
        if self.form == "small":
            self.q, self.k = (2 * self.q).expm1(), (2 * self.k).expm1()
        self.one = torch.ones((), dtype=exact, device=self.q.device)
        self.buffers = [self.q.new_empty(0)] * 2

    def tile(self, chunk: QueryChunk) -> QueryTile:
        """The chunk's queries, last to first."""
        rows = torch.arange(chunk.last - 1, chunk.first - 1, -1, device=self.grid.device)
        return QueryTile(self, chunk, rows + self.grid.offset)

    def rows(self, x: Tensor, chunk: QueryChunk) -> Tensor:
        """The chunk's rows of x `[batch, heads, queries, ...]`, last to first."""
        return x[chunk.batch, :, chunk.first : chunk.last].flip(2)

    def group_heads(self, x: Tensor) -> Tensor:
        """x `[batch, heads, rows, ...]` with the rows of each group of heads together, `[batch · kv_heads, ...]`."""
        batch, heads, rows, last = x.shape
        return x.reshape(batch * heads // self.group, self.group * rows, last)

    def keys(self, x: Tensor, chunk: QueryChunk, span: KeySpan) -> Tensor:
        """The span's rows of keys or values, `[batch · kv_heads, width, ...]`, without a copy."""
        return x[chunk.batch].flatten(0, 1)[:, span.first : span.last]

    def head_keys(self, chunk: QueryChunk, span: KeySpan) -> Tensor:
        """The span's keys for every query head, `[batch, heads, width, d]`."""
        k = self.k[chunk.batch, :, span.first : span.last]
        return k if self.group == 1 else k.repeat_interleave(self.group, dim=1)

    def buffer(self, index: int, shape: torch.Size) -> Tensor:
        """Memory for a tensor of this shape, reused by the next: fresh memory costs more than the arithmetic."""
        if self.buffers[index].numel() < shape.numel():
            self.buffers[index] = self.q.new_empty(shape.numel())
        return self.buffers[index][: shape.numel()].view(shape)


@dataclass(frozen=True)
class QueryTile:
    """A chunk of queries, scored against spans of keys."""

    inputs: TileInputs
    chunk: QueryChunk
    i: Tensor  # [rows], i of each, last to first

    def scores(self, span: KeySpan) -> Tensor:
        """Scores of the chunk's rows on the span's keys, −∞ where masked, `[batch, heads, rows, width]`."""
        return self.scores_and_slope(span)[0]

    def scores_and_slope(self, span: KeySpan) -> tuple[Tensor, Tensor | None]:
        """The same scores, and the derivative of their cap, 1 − tanh²; None without a cap."""
        x, slope = self.inputs, None
        if x.additive:
            s = additive_scores(self, span)
        else:
            q = x.group_heads(x.rows(x.q, self.chunk)) * x.scale
            s = products(q, x.keys(x.k, self.chunk, span))
            s = s.view(-1, x.grid.heads, len(self.i), span.last - span.first)
        if x.rel_vectors is not None:
            s += self.rel_scores(span, x.rel_vectors)
        if x.key_vectors is not None:
            for part in self.square_spans(span):
                s[..., part.first - span.first : part.last - span.first] += self.key_scores(part, x.key_vectors)
        if x.cap is not None:
            capped = s.div_(x.cap).tanh_()
            slope = torch.addcmul(x.one, capped, capped, value=-1.0)
            s = capped.mul_(x.cap)
        if x.rel_bias is not None:
            s += self.bias(span, x.rel_bias)
        if x.pair_bias is not None:
            s += self.pairs(x.pair_bias, span).flip(2)
        for first, last in span.mixed:
            s[..., first - span.first : last - span.first].masked_fill_(~self.mask_keys(first, last), -torch.inf)
        return s, slope

    def pairs(self, x: Tensor, span: KeySpan) -> Tensor:
        """The tile's part of x `[batch or 1, heads or 1, queries or 1, keys or 1]`, rows first to last, as a view."""
        rows, keys = (self.chunk.first, self.chunk.last), (span.first, span.last)
        x = x if x.shape[0] == 1 else x[self.chunk.batch]
        x = x if x.shape[2] == 1 else x[:, :, rows[0] : rows[1]]
        return x if x.shape[3] == 1 else x[..., keys[0] : keys[1]]

    def distances(self, first: int, last: int) -> Tensor:
        """i − j of the chunk's rows, first to last, and keys first … last − 1, `[rows, width]` or `[batch, 1, …]`."""
        x = self.inputs
        if x.call.places is None and x.call.numbers is not None:
            i, j = x.call.numbers
            return i[self.chunk.first : self.chunk.last, None] - j[first:last]
        grid = replace(x.grid, places=x.call.places)
        i, j = grid.at_places(self.i.flip(0)[:, None], torch.arange(first, last, device=self.i.device)[None, :])
        distance = i - j
        return distance[self.chunk.batch] if distance.dim() == 4 else distance

    def reversed_distances(self, span: KeySpan) -> Tensor:
        """|i − j| of the tile, `[rows, width]` as a view of a short vector; `[batch, 1, …]` at explicit places."""
        x, rows, width = self.inputs, len(self.i), span.last - span.first
        if x.call.places is not None or x.call.numbers is not None:
            return self.distances(span.first, span.last).flip(-2).abs()
        highest = self.chunk.last - 1 + x.grid.offset - span.first
        distance = torch.arange(highest, highest - rows - width + 1, -1, dtype=x.exact, device=self.i.device).abs_()
        return distance.as_strided((rows, width), (1, 1))

    def mask_keys(self, first: int, last: int) -> Tensor:
        """The mask for keys first … last − 1."""
        x = self.inputs
        j = torch.arange(first, last, device=x.grid.device)
        pairs = x.call.mask.permits(self.i[:, None], j[None, :], x.grid)
        return pairs[self.chunk.batch] if pairs.dim() == 4 and pairs.shape[0] > 1 else pairs

    def entry_range(self, table: DistanceTable, span: KeySpan) -> tuple[int, int, int, int]:
        """The table's entries for the distances of the tile."""
        highest = self.chunk.last - 1 + self.inputs.grid.offset - span.first
        return table.entry_range(highest, len(self.i) + span.last - span.first - 1)

    def entries_at_places(self, table: DistanceTable, span: KeySpan) -> Tensor | None:
        """The table's entry of every pair, `[batch or 1, rows, width]`, at explicit places; None without them."""
        places = self.inputs.call.places
        if places is None:
            return None
        i, j = (x if x.shape[0] == 1 else x[self.chunk.batch] for x in places)
        i, j = i[:, self.chunk.first : self.chunk.last].flip(1), j[:, span.first : span.last]
        last = table.entries.shape[1] - 1
        return last - (i[:, :, None] - j[:, None] + table.zero).clamp(0, last)

    def bias(self, span: KeySpan, table: DistanceTable) -> Tensor:
        """The bias by distance, `[heads, rows, width]`: a view of one vector a head; gathered at explicit places."""
        slopes = self.inputs.slopes
        if slopes is not None:
            distance = self.distances(span.first, span.last).flip(-2).abs()
            return -slopes[:, None, None] * distance.to(slopes.dtype)
        entries = self.entries_at_places(table, span)
        if entries is not None:
            return table.entries[:, entries].transpose(0, 1)
        first, last, before, after = self.entry_range(table, span)
        line = repeat_ends(table.entries[:, first:last], before, after)
        return line.unfold(1, span.last - span.first, 1)

    def rel_scores(self, span: KeySpan, table: DistanceTable) -> Tensor:
        """Products of the relative queries with the vectors by distance, `[batch, heads, rows, width]`."""
        x = self.inputs
        rel_q = x.rows(x.rel_q, self.chunk) * x.scale
        entries = self.entries_at_places(table, span)
        if entries is not None:
            return gather_entries(rel_q @ table.entries.mT, entries)
        first, last, before, after = self.entry_range(table, span)
        return shear(repeat_ends(rel_q @ table.entries[:, first:last].mT, before, after), span.last - span.first)

    def square_spans(self, span: KeySpan) -> list[KeySpan]:
        """The span in parts of about as many keys as the chunk has rows: a key meets rows + keys − 1 distances."""
        step = max(len(self.i), 32)
        return [KeySpan(first, min(first + step, span.last), ()) for first in range(span.first, span.last, step)]

    def key_scores(self, span: KeySpan, table: DistanceTable) -> Tensor:
        """Products of the keys with their vectors by distance, `[batch, heads, rows, width]`."""
        x = self.inputs
        k = x.head_keys(self.chunk, span) * x.scale
        entries = self.entries_at_places(table, span)
        if entries is not None:
            return gather_entries(k @ table.entries.mT, entries.mT).mT
        first, last, before, after = self.entry_range(table, span)
        return shear(repeat_ends(k @ table.entries[:, first:last].mT, before, after), len(self.i)).mT

    def dropout_scale(self, span: KeySpan) -> Tensor | None:
        """What dropout multiplies the weights with; None without it."""
        call = self.inputs.call
        if call.seed is None:
            return None
        device = self.i.device
        batch = torch.arange(self.chunk.batch.start, self.chunk.batch.stop, device=device)
        i, j = self.i, torch.arange(span.first, span.last, device=device)
        if call.numbers is not None:
            i, j = call.numbers[0][self.chunk.first : self.chunk.last].flip(0), call.numbers[1][j]
        rows = row_keys(call.seed, batch, torch.arange(self.inputs.grid.heads, device=device), i)
        return keep_mask(rows, j, call.dropout).to(self.inputs.exact) * keep_scale(call.dropout)


class Gradients:
    """Sums of the gradients of everything that a tile's scores came from."""

    def __init__(self, inputs: TileInputs):
        self.inputs = inputs
        self.q, self.k, self.v = (torch.zeros_like(x) for x in (inputs.q, inputs.k, inputs.v))
        self.weight = torch.zeros_like(inputs.weight)
        bias, vectors, needs_bias = inputs.rel_bias, inputs.rel_vectors, inputs.call.needs_grad[4]
        self.rel_bias = torch.zeros_like(bias.entries) if bias and needs_bias else None
        self.rel_vectors = None if vectors is None else torch.zeros_like(vectors.entries)
        self.rel_q = None if vectors is None else torch.zeros_like(inputs.rel_q)
        self.key_vectors = None if inputs.key_vectors is None else torch.zeros_like(inputs.key_vectors.entries)
        pairs, needs_pairs = inputs.pair_bias, inputs.call.needs_grad[7]
        self.pair_bias = pairs.new_zeros(pairs.shape, dtype=inputs.exact) if pairs is not None and needs_pairs else None

    def add(self, tile: QueryTile, span: KeySpan, d: Tensor, slope: Tensor | None = None) -> None:
        """Add the gradients that follow from the gradient `d` of a tile's scores, `[batch, heads, rows, width]`.

        `slope` is the derivative of their cap.
        """
        x = self.inputs
        if self.rel_bias is not None and x.rel_bias is not None:
            entries = tile.entries_at_places(x.rel_bias, span)
            if entries is not None:
                self.rel_bias += sum_entries(d, entries, self.rel_bias.shape[1]).sum((0, 2))
            else:
                first, last, before, after = tile.entry_range(x.rel_bias, span)
                self.rel_bias[:, first:last] += sum_ends(unshear(d.sum(0)).sum(-2), before, after)
        if self.pair_bias is not None:
            total = tile.pairs(self.pair_bias, span)
            total += d.flip(2).sum_to_size(total.shape)
        d = d if slope is None else d * slope
        if x.additive:
            additive_gradients(self, tile, span, d)
        else:
            self.add_dot(tile, span, x.group_heads(d))
        if self.rel_vectors is not None and self.rel_q is not None and x.rel_vectors is not None:
            entries = tile.entries_at_places(x.rel_vectors, span)
            if entries is not None:
                first, last = 0, x.rel_vectors.entries.shape[1]
                band = sum_entries(d, entries, last) * x.scale
            else:
                first, last, before, after = tile.entry_range(x.rel_vectors, span)
                band = sum_ends(unshear(d), before, after) * x.scale  # [batch, heads, rows, entries]
            self.add_rows(self.rel_q, tile, band @ x.rel_vectors.entries[:, first:last])
            self.rel_vectors[:, first:last] += (band.mT @ x.rows(x.rel_q, tile.chunk)).sum(0)
        if self.key_vectors is not None and x.key_vectors is not None:
            for part in tile.square_spans(span):
                self.add_keys(tile, part, d[..., part.first - span.first : part.last - span.first], x.key_vectors)

    def add_keys(self, tile: QueryTile, span: KeySpan, d: Tensor, table: DistanceTable) -> None:
        """Add the gradients of the keys and of their vectors by distance."""
        x, entries = self.inputs, tile.entries_at_places(table, span)
        if entries is not None:
            first, last = 0, table.entries.shape[1]
            band = sum_entries(d.mT, entries.mT, last) * x.scale
        else:
            first, last, before, after = tile.entry_range(table, span)
            band = sum_ends(unshear(d.mT), before, after) * x.scale  # [batch, heads, width, entries]
        dk = (band @ table.entries[:, first:last]).unflatten(1, (-1, x.group)).sum(2)
        self.k[tile.chunk.batch, :, span.first : span.last] += dk
        assert self.key_vectors is not None
        self.key_vectors[:, first:last] += (band.mT @ x.head_keys(tile.chunk, span)).sum(0)

    def add_dot(self, tile: QueryTile, span: KeySpan, d: Tensor) -> None:
        x = self.inputs
        dq = torch.bmm(d, x.keys(x.k, tile.chunk, span)) * x.scale
        self.add_rows(self.q, tile, dq.view(-1, x.grid.heads, len(tile.i), x.q.shape[-1]))
        q = x.group_heads(x.rows(x.q, tile.chunk)) * x.scale
        x.keys(self.k, tile.chunk, span).baddbmm_(d.mT, q)

    def add_rows(self, total: Tensor, tile: QueryTile, d: Tensor) -> None:
        total[tile.chunk.batch, :, tile.chunk.first : tile.chunk.last] += d.flip(2)

    def result(self) -> list[Tensor | None]:
        """Gradients of q, k, v, weight, rel_bias, rel_q, rel_vectors, pair_bias, key_vectors."""
        tables = (self.rel_bias, self.rel_vectors, self.key_vectors)
        bias, vectors, keys = (None if x is None else x.flip(1) for x in tables)
        return [self.q, self.k, self.v, self.weight, bias, self.rel_q, vectors, self.pair_bias, keys]


def products(q: Tensor, k: Tensor) -> Tensor:
    """q · k of every pair, `[batch, queries, keys]`; for many keys part by part, which a CPU's caches hold."""
    if k.shape[1] <= WIDE or q.is_cuda:
        return torch.bmm(q, k.mT)
    s = q.new_empty(*q.shape[:2], k.shape[1])
    for part, keys in zip(s.split(WIDE, dim=2), k.split(WIDE, dim=1), strict=True):
        torch.bmm(q, keys.mT, out=part)
    return s


def shear(band: Tensor, width: int) -> Tensor:
    """band[..., r, r + c] for c < width, as a view."""
    band = band.contiguous()
    *front, rows, size = band.shape
    strides = [*band.stride()[:-2], size + 1, 1]
    return band.as_strided((*front, rows, width), strides)


def unshear(d: Tensor) -> Tensor:
    """The adjoint of `shear`: d[..., r, c] at column r + c."""
    *front, rows, width = d.shape
    band = d.new_zeros(*front, rows, rows + width - 1)
    shear(band, width).copy_(d)
    return band


def gather_entries(x: Tensor, entries: Tensor) -> Tensor:
    """x[b, h, r, entries[b, r, c]] of x `[batch, heads, rows, n]`."""
    return x.gather(-1, entries[:, None].expand(*x.shape[:3], -1))


def sum_entries(d: Tensor, entries: Tensor, count: int) -> Tensor:
    """The adjoint of `gather_entries`, `[batch, heads, rows, count]`, added in a fixed order."""
    band = d.new_zeros(*d.shape[:3], count)
    index = entries[:, None].expand(d.shape)
    if not d.is_cuda:
        return band.scatter_add_(-1, index, d)
    row = torch.arange(d.shape[:3].numel(), device=d.device).view(*d.shape[:3], 1)  # sorted there, and not by atomics
    return band.view(-1).index_put_(((row * count + index).flatten(),), d.flatten(), accumulate=True).view_as(band)


def additive_form(call: LoweredCall, q: Tensor, k: Tensor) -> str:
    """How to compute the activations; tanh by exponentials of q and k alone, as long as their product is finite."""
    if call.activation != "tanh":
        return call.activation
    largest = max((float(x.abs().amax()) for x in (q, k) if x.numel()), default=0.0)
    return "small" if largest < TANH_SMALL else "exponential" if largest < TANH_MAX else "tanh"


def activations(tile: QueryTile, span: KeySpan, rows: slice) -> Tensor:
    """tanh(q + k), or for leaky ReLU q + k itself, of some of the chunk's rows, `[batch, heads, rows, width, d]`.

    tanh(q + k) = 1 − 2 / (1 + e^2q e^2k) needs no more than a division, for the powers are a token's own. Near zero it
    is x / (x + 2) with x = a + (a + 1)·b, where a = e^2q − 1 and b = e^2k − 1. The result is in a buffer that the next
    call overwrites.
    """
    x = tile.inputs
    q = x.rows(x.q, tile.chunk)[:, :, rows, None]
    k = x.k[tile.chunk.batch, :, span.first : span.last].repeat_interleave(x.group, dim=1)[:, :, None]
    buffer = x.buffer(0, torch.broadcast_shapes(q.shape, k.shape))
    if x.form == "exponential":
        inverse = torch.addcmul(x.one, q, k, out=buffer).reciprocal_()
        return torch.add(x.one, inverse, alpha=-2.0, out=buffer)
    if x.form == "small":
        both = torch.addcmul(q, q + 1.0, k, out=buffer)
        return both.div_(torch.add(both, 2.0, out=x.buffer(1, both.shape)))
    both = torch.add(q, k, out=buffer)
    return both.tanh_() if x.form == "tanh" else both


def row_steps(tile: QueryTile, span: KeySpan) -> list[slice]:
    """The chunk's rows in steps that keep the activations small."""
    x, batch = tile.inputs, tile.chunk.batch
    per_row = max((batch.stop - batch.start) * x.grid.heads * (span.last - span.first) * x.q.shape[-1], 1)
    step = max(FEATURES // per_row, 1)
    return [slice(r, min(r + step, len(tile.i))) for r in range(0, len(tile.i), step)]


def additive_scores(tile: QueryTile, span: KeySpan) -> Tensor:
    x = tile.inputs
    weight = x.weight[:, None, :, None]  # [heads, 1, d, 1]
    steps = []
    for rows in row_steps(tile, span):
        act = activations(tile, span, rows)
        if x.form == "leaky_relu":
            act = torch.nn.functional.leaky_relu_(act, x.call.slope)
        steps.append((act @ weight).squeeze(-1))
    return torch.cat(steps, dim=2)


def additive_gradients(sums: Gradients, tile: QueryTile, span: KeySpan, d: Tensor) -> None:
    """dq = weight Σ_j d · act′, dk = weight Σ_i d · act′, dweight = Σ_ij d · act, with act′ from act alone."""
    x = tile.inputs
    dq: list[Tensor] = []
    dk = torch.zeros_like(d[:, :, 0, :, None])
    for rows in row_steps(tile, span):
        act, d_rows = activations(tile, span, rows), d[:, :, rows]
        slope = activation_slope(sums, x, act, d_rows)
        dq.append((d_rows[..., None, :] @ slope).squeeze(3))
        dk = dk + slope.mul_(d_rows[..., None]).sum(2)
    factor = x.weight[:, None, :]  # [heads, 1, d]
    sums.add_rows(sums.q, tile, torch.cat(dq, dim=2) * factor)
    sums.k[tile.chunk.batch, :, span.first : span.last] += (dk * factor).unflatten(1, (-1, x.group)).sum(2)


def activation_slope(sums: Gradients, x: TileInputs, act: Tensor, d: Tensor) -> Tensor:
    """act′, in place of the activations; the gradient of the weight, Σ d · act, is added to the sums."""
    slope = None
    if x.form == "leaky_relu":
        slope = (act > 0).to(act.dtype).mul_(1.0 - x.call.slope).add_(x.call.slope)
        act = act.mul_(slope)
    sums.weight += (d.flatten(2)[:, :, None] @ act.flatten(2, 3)).sum(0).squeeze(1)  # [heads, d]
    return torch.addcmul(x.one, act, act, value=-1.0, out=act) if slope is None else slope  # 1 − tanh²
