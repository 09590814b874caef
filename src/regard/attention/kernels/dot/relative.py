"""Gradients with vectors by distance: ds is computed once, kept, and read by all who want it.

The pass over columns of tiles makes dk and dv and leaves every tile's ds in scratch memory. A tile has two blocks of
distances: on and above its diagonal, and below. Two more passes turn ds so that each row has its distances in columns:

    dq = scale · Σ_j ds·k,   d asking = scale · Σ_x ds[x]·table[x],   d table[x] = scale · Σ_i ds[x]ᵀ·asking

The scratch is of a fixed size. What does not fit is done in parts: heads, then rows of the batch, then columns of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...parts.mask import Mask
from ..prelude import unsheared
from ..tile_lists import Items, Lists, cut, lists
from .kernels import SIZES, backward_columns, put_part, put_tokens, tokens_at
from .walks import Facts, Shape, Walk, limit, power

if TYPE_CHECKING:
    from .passes import Flow, Work

SCRATCH = 1 << 29  # bytes
UNCUT = 1 << 30


@triton.jit(do_not_specialize=SIZES)
def rows_of_bands(
    p_k, p_table, p_kept, p_dq, p_dasking, p_dq_parts, p_dasking_parts,
    p_group, p_row, p_first, p_last, p_slot, p_tile, p_number, p_base,
    kb, kh, kn, queries, keys, heads, share, origin, length, d_scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq and d asking of a row of tiles, or of a piece of it; ADD to what the columns before have given."""
    i_item = tl.program_id(0)
    i_x = tl.load(p_group + i_item)
    i_b, i_h = i_x // heads, i_x % heads
    i_row = tl.load(p_row + i_item)
    i_slot = tl.load(p_slot + i_item)
    p_kept += tl.load(p_base + i_x) * (BM * BN)
    p_k += i_b.to(tl.int64) * kb + (i_h // share).to(tl.int64) * kh
    p_table += (i_h.to(tl.int64) * length + origin - i_row * BM) * D
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    b_dq = tl.zeros([BM, BD], tl.float32)
    b_da = tl.zeros([BM, BD], tl.float32)
    i_first, i_last = tl.load(p_first + i_item), tl.load(p_last + i_item)
    i_next = tl.load(p_tile + i_first, mask=i_first < i_last, other=0)
    n_next = tl.load(p_number + i_first, mask=i_first < i_last, other=0)
    for x in range(i_first, i_last):
        i_tile, i_number = i_next, n_next
        i_next = tl.load(p_tile + x + 1, mask=x + 1 < i_last, other=0)
        n_next = tl.load(p_number + x + 1, mask=x + 1 < i_last, other=0)
        b_d = tokens_at(p_kept + i_number.to(tl.int64) * (BM * BN), o_m, BN, BN, BN)
        o_k = tl.minimum(o_n, keys - 1 - i_tile * BN)
        b_k = tokens_at(p_k + (i_tile * BN).to(tl.int64) * kn, o_k, kn, D, BD)
        p_band = p_table + i_tile * BN * D
        b_above, b_below = tokens_at(p_band, o_n, D, D, BD), tokens_at(p_band - BN * D, o_n, D, D, BD)
        b_dq = tl.dot(b_d, b_k, b_dq, input_precision=PRECISION)
        b_low, b_high = unsheared(b_d.to(tl.float32), BN)
        b_da = tl.dot(b_low.to(b_d.dtype), b_below, b_da, input_precision=PRECISION)
        b_da = tl.dot(b_high.to(b_d.dtype), b_above, b_da, input_precision=PRECISION)
    if i_slot >= 0:
        put_part(p_dq_parts, i_slot, b_dq, BM, BD)
        put_part(p_dasking_parts, i_slot, b_da, BM, BD)
    else:
        o_q = i_row * BM + o_m
        first = i_x.to(tl.int64) * queries * D
        b_dq, b_da = b_dq * d_scale, b_da * d_scale
        if ADD:
            o_last = tl.minimum(o_q, queries - 1)
            b_dq += tokens_at(p_dq + first, o_last, D, D, BD)
            b_da += tokens_at(p_dasking + first, o_last, D, D, BD)
        put_tokens(p_dq + first, o_q, b_dq, queries, D, BD)
        put_tokens(p_dasking + first, o_q, b_da, queries, D, BD)


@triton.jit(do_not_specialize=SIZES)
def lines_of_bands(
    p_asking, p_kept, p_out, p_group, p_first, p_last, p_slot, p_tile, p_number, p_base,
    ab, ah, an, queries, heads, d_scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d table of the distances that one diagonal of tiles has, low half and high half, for one row of the batch."""
    i_item = tl.program_id(0)
    i_x = tl.load(p_group + i_item)
    i_b, i_h = i_x // heads, i_x % heads
    p_kept += tl.load(p_base + i_x) * (BM * BN)
    p_asking += i_b.to(tl.int64) * ab + i_h.to(tl.int64) * ah
    o_m, o_n = tl.arange(0, BM), tl.arange(0, BN)
    b_dlow = tl.zeros([BN, BD], tl.float32)
    b_dhigh = tl.zeros([BN, BD], tl.float32)
    i_first, i_last = tl.load(p_first + i_item), tl.load(p_last + i_item)
    i_next = tl.load(p_tile + i_first, mask=i_first < i_last, other=0)
    n_next = tl.load(p_number + i_first, mask=i_first < i_last, other=0)
    for x in range(i_first, i_last):
        i_tile, i_number = i_next, n_next
        i_next = tl.load(p_tile + x + 1, mask=x + 1 < i_last, other=0)
        n_next = tl.load(p_number + x + 1, mask=x + 1 < i_last, other=0)
        b_d = tokens_at(p_kept + i_number.to(tl.int64) * (BM * BN), o_m, BN, BN, BN)
        o_q = tl.minimum(o_m, queries - 1 - i_tile * BM)
        b_a = tokens_at(p_asking + (i_tile * BM).to(tl.int64) * an, o_q, an, D, BD)
        b_low, b_high = unsheared(b_d.to(tl.float32), BN)
        b_dlow = tl.dot(tl.trans(b_low.to(b_d.dtype)), b_a, b_dlow, input_precision=PRECISION)
        b_dhigh = tl.dot(tl.trans(b_high.to(b_d.dtype)), b_a, b_dhigh, input_precision=PRECISION)
    p_out += tl.load(p_slot + i_item).to(tl.int64) * (2 * BN * D)
    put_tokens(p_out, o_n, b_dlow * d_scale, BN, D, BD)
    put_tokens(p_out + BN * D, o_n, b_dhigh * d_scale, BN, D, BD)


class Order(NamedTuple):
    """The listed tiles in lists of one order, by row of tiles or by diagonal, ascending by column.

    `number` is a tile's place in the lists of columns, in whose order ds is kept. A tile is found by its key:
    (group · lists + list) · columns + column.
    """

    tile: Tensor  # its column, or its row in lists by diagonal
    number: Tensor
    key: Tensor
    lists: int
    columns: int

    def between(self, groups: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Where the tiles of columns first … last − 1 begin and end in each list."""
        lines = groups[:, None] * self.lists + torch.arange(self.lists, device=groups.device)
        begin, end = (torch.searchsorted(self.key, lines * self.columns + x) for x in (first, last))
        return begin, end

    def arguments(self) -> dict[str, Tensor]:
        return {"p_tile": self.tile, "p_number": self.number}


def orders_of(by_row: Lists, columns: int) -> tuple[Order, Order]:
    """The tiles by row, and by diagonal (column − row + rows − 1)."""
    starts, rows, n = by_row.starts.long(), by_row.starts.shape[1] - 1, len(by_row.tile)
    owner = torch.repeat_interleave((starts[:, 1:] - starts[:, :-1]).flatten(), output_size=n)  # over all groups
    group, row, column = owner // rows, owner % rows, by_row.tile.long()
    number = torch.empty_like(owner)
    number[torch.sort(group * columns + column, stable=True).indices] = torch.arange(n, device=owner.device)
    lines = rows + columns - 1
    key, order = torch.sort((group * lines + column - row + rows - 1) * columns + column)
    return (
        Order(by_row.tile, number.int(), owner * columns + column, rows, columns),
        Order(row[order].int(), number[order].int(), key, lines, columns),
    )


class Part(NamedTuple):
    """Some heads of some rows of the batch, and of those some columns of tiles."""

    head: int
    heads: int
    row: int
    rows: int
    first: int
    last: int

    def places(self) -> list[tuple[int, int]]:
        """(batch row, head) of all, head by head."""
        heads, rows = range(self.head, self.head + self.heads), range(self.row, self.row + self.rows)
        return [(b, h) for h in heads for b in rows]


def parts_of(bytes_of: list[list[list[int]]]) -> Iterator[Part]:
    """Parts that fit the scratch: as many heads as do, or of one head as many batch rows, or of one of those columns.

    `bytes_of[b][h]` has the bytes that each column of tiles needs.
    """
    batch, heads, columns = len(bytes_of), len(bytes_of[0]), len(bytes_of[0][0])
    each = [[sum(column) for column in row] for row in bytes_of]
    whole, one = max(sum(row[h] for row in each) for h in range(heads)), max(map(max, each))
    if whole <= SCRATCH:
        step = SCRATCH // max(whole, 1)
        yield from (Part(h, min(step, heads - h), 0, batch, 0, columns) for h in range(0, heads, step))
    elif one <= SCRATCH:
        step = SCRATCH // one
        yield from (
            Part(h, 1, b, min(step, batch - b), 0, columns) for h in range(heads) for b in range(0, batch, step)
        )
    else:
        for h in range(heads):
            for b in range(batch):
                for first, last in stretches(bytes_of[b][h]):
                    yield Part(h, 1, b, 1, first, last)


def stretches(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Neighbours whose sizes add up to no more than the scratch; one that is larger stands alone."""
    first, total = 0, 0
    for x, size in enumerate(sizes):
        if x > first and total + size > SCRATCH:
            yield first, x
            first, total = x, 0
        total += size
    yield first, len(sizes)


class Passes(NamedTuple):
    """What is run for a part, and how many tiles it keeps."""

    part: Part
    base: Tensor  # where the tiles of each batch row and head begin, less their first number
    tiles: int
    columns: Walk
    rows: Walk
    lines: Walk


class Bands(NamedTuple):
    """All parts; they leave `lines` diagonals of tiles with two halves of distances each, from `first` on."""

    passes: list[Passes]
    shape: Shape
    lines: int
    first: int
    added: bool  # whether a row of tiles is the sum of several parts


def over_bands(f: Facts, mask: Mask, shape: Shape) -> Bands:
    """The parts of a problem's backward, with tiles of a (square) shape."""
    by_row, by_column = (lists(mask, f.grid, shape.rows, shape.columns, transposed=x) for x in (False, True))
    by_tile, by_line = orders_of(by_row, by_column.starts.shape[1] - 1)
    starts = by_column.starts.tolist()
    group = lambda b, h: b * by_column.batch_stride + h * by_column.head_stride  # noqa: E731
    size = shape.rows * shape.columns * f.dtype.itemsize
    counts = [[size * (last - first) for first, last in pairwise(x)] for x in starts]
    parts = list(parts_of([[counts[group(b, h)] for h in range(f.grid.heads)] for b in range(f.grid.batch)]))
    passes = []
    for part in parts:
        places = part.places()
        groups = torch.tensor([group(b, h) for b, h in places], device=by_column.starts.device)
        copies = torch.tensor([b * f.grid.heads + h for b, h in places], device=groups.device)
        base, total = [0] * f.instances, 0
        for b, h in places:
            first, last = (starts[group(b, h)][x] for x in (part.first, part.last))
            base[b * f.grid.heads + h] = total - first
            total += last - first
        added = part.last - part.first < len(starts[0]) - 1
        bases = torch.tensor(base, device=groups.device)
        passes.append(
            Passes(
                part, bases, total,
                walk_columns(f, shape, by_column, part, groups, copies),
                walk_rows(f, shape, by_tile, part, groups, copies, bases, added),
                walk_lines(f, shape, by_line, part, groups, copies, bases),
            )
        )  # fmt: skip
    added = any(part.first for part in parts)
    return Bands(passes, shape, by_line.lists, f.origin - (by_row.starts.shape[1] - 2) * shape.rows, added)


def walk_columns(f: Facts, shape: Shape, tiles: Lists, part: Part, groups: Tensor, copies: Tensor) -> Walk:
    starts = tiles.starts.long()[groups]
    begin, end = (starts[:, part.first + x : part.last + x] for x in (0, 1))
    pieces = cut(begin, end, limit(f, len(tiles.tile) // tiles.groups * len(groups)))
    listed = {"p_tile": tiles.tile, "p_bits": tiles.bits, "p_packed": tiles.packed}
    return Walk.over(f, backward_columns, shape, placed(pieces, copies, part.first), PARTS=1, **listed)


def walk_rows(
    f: Facts, shape: Shape, order: Order, part: Part, groups: Tensor, copies: Tensor, base: Tensor, added: bool
) -> Walk:
    begin, end = order.between(groups, part.first, part.last)
    most = UNCUT if added else 2 * limit(f, int((end - begin).sum()))
    pieces = placed(cut(begin, end, most), copies)
    return Walk.over(f, rows_of_bands, light(shape), pieces, p_base=base, ADD=added, **order.arguments())


def walk_lines(f: Facts, shape: Shape, order: Order, part: Part, groups: Tensor, copies: Tensor, base: Tensor) -> Walk:
    pieces = cut(*order.between(groups, part.first, part.last), UNCUT)
    pieces = placed(pieces, copies)._replace(slot=pieces.group * order.lists + pieces.row)
    return Walk.over(f, lines_of_bands, light(shape), pieces, p_base=base, **order.arguments())


def light(shape: Shape) -> Shape:
    """The same tiles for kernels that do little with them and wait for memory."""
    return shape._replace(warps=4, stages=2)


def placed(pieces: Items, copies: Tensor, first: int = 0) -> Items:
    """Pieces whose groups were numbers in `copies` and whose rows began at `first`."""
    cuts = pieces.cuts.clone()
    cuts[:, 0] = copies[cuts[:, 0].long()].int()
    cuts[:, 1] += first
    return pieces._replace(group=copies[pieces.group.long()].int(), row=pieces.row + first, cuts=cuts)


def by_bands(work: Work, flow: Flow, bands: Bands) -> tuple[Tensor, ...]:
    """dq, dk and dv (for each query head), d asking, and d table along the line, `[heads, length, d]`."""
    f, known, wide = work.facts, work.known, power(work.facts.dim)
    make = known.rounded if f.share == 1 else known.exact
    dk, dv = make((*f.front, f.grid.keys, f.dim)), make((*f.front, f.grid.keys, f.value_dim))
    dq, da = ((f.zeros if bands.added else known.rounded)(known.queries) for _ in range(2))
    line = f.zeros((f.grid.heads, f.length, f.dim))
    size, stretch = bands.shape.rows, bands.lines * bands.shape.rows
    kept = known.rounded((max(x.tiles for x in bands.passes), size * size))
    found = known.exact((max(x.part.heads * x.part.rows for x in bands.passes), 2 * stretch * f.dim))
    given = (work.q, work.k, work.v, work.numbers, work.asking, work.table, work.seed, *flow)
    for part, base, _, columns, rows, lines in bands.passes:
        room = [columns.room(flow.delta, size, power(d)) for d in (f.dim, f.value_dim)]
        columns.start(*given, dk, dv, *room, kept, base)
        columns.add(dk, room[0], size, wide)
        columns.add(dv, room[1], size, power(f.value_dim))
        room = [rows.room(flow.delta, size, wide) for _ in range(2)]
        rows.start(work.k, work.table, kept, dq, da, *room)
        rows.add(dq, room[0], size, wide, f.scale)
        rows.add(da, room[1], size, wide, f.scale)
        lines.start(work.asking, kept, found)
        each = found[: part.heads * part.rows].view(part.heads, part.rows, bands.lines, 2, size * f.dim)
        each = each[:, 0] if part.rows == 1 else each.sum(1)
        for half, first in enumerate((bands.first - size, bands.first)):
            target = line[part.head : part.head + part.heads, first : first + stretch]
            target += each[:, :, half].reshape(part.heads, stretch, f.dim)
    return dq, dk, dv, da, line
