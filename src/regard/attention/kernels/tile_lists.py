"""Lists of tiles: which tiles of queries × keys a kernel visits, and the packed bits of those that the mask cuts.

A row of tiles has a list of the tiles in it that allow anything, ascending; a tile is full, or it has its pairs'
answers as bits. `lists` makes them from a mask's answers for tiles and asks the predicate in the mixed tiles only.
`items` cuts the lists into pieces of work of like size.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import BadInput
from ..cache import Memory
from ..parts.mask import MIXED, NONE, Grid, Mask, Tiling

PAIRS = 1 << 24  # pairs that the predicate is asked at once


@dataclass(frozen=True, eq=False)
class Lists:
    """The tiles that each row of tiles visits (transposed: each column), in groups of batch and head.

    The list of row r of group b · batch_stride + h · head_stride is `tile[starts[group, r] : starts[group, r + 1]]`.
    """

    rows: int
    columns: int
    starts: Tensor  # int32 [groups, tile rows + 1]
    tile: Tensor  # int32 [n]: the key tile of each listed tile (transposed: the query tile), ascending within a row
    bits: Tensor  # int32 [n]: −1 where the tile is full, else its index in packed
    packed: Tensor  # int32 [mixed, rows, columns // 32]: bit c % 32 of word c // 32 where (row r, column c) is allowed
    batch_stride: int
    head_stride: int

    @property
    def groups(self) -> int:
        return self.starts.shape[0]


class Items(NamedTuple):
    """Pieces of work, longest first: tiles `first … last − 1` of a list. Those of a cut row leave their sums in slots.

    `cuts` has a line for each row that is cut: (group, row, first slot, last slot + 1).
    """

    group: Tensor  # int32 [items]
    row: Tensor  # int32 [items]
    first: Tensor  # int32 [items], offsets into Lists.tile
    last: Tensor  # int32 [items]
    slot: Tensor  # int32 [items]: −1 where the row is whole
    cuts: Tensor  # int32 [cut rows, 4]
    slots: int


def lists(mask: Mask, grid: Grid, rows: int, columns: int, transposed: bool = False) -> Lists:
    """The lists of a mask for tiles of `rows` queries × `columns` keys; those of the same mask are remembered."""
    make = lambda: turned(lists(mask, grid, rows, columns), grid) if transposed else build(mask, grid, rows, columns)  # noqa: E731
    return REMEMBERED.find(mask, (grid, rows, columns, transposed), make)


def build(mask: Mask, grid: Grid, rows: int, columns: int) -> Lists:
    """The lists by rows of queries."""
    if columns % 32:
        raise BadInput(f"Tiles have {columns} columns; bits come in words of 32.")
    states = mask.tiles(Tiling(grid, rows, columns))  # [batch or 1, heads or 1, tile rows, tile columns]
    batch, heads = front_of(mask, grid, states)
    states = states.expand(batch, heads, -1, -1)
    states = with_edges(states.flatten(0, 1).contiguous(), grid, rows, columns)
    group, row, tile = (states != NONE).nonzero(as_tuple=True)
    mixed = states[group, row, tile] == MIXED
    bits = torch.where(mixed, mixed.cumsum(0) - 1, -1)
    line = group * states.shape[1] + row
    starts = torch.searchsorted(line, torch.arange(states.shape[0] * states.shape[1] + 1, device=line.device))
    packed = pack_mixed(mask, grid, states, (batch, heads), rows, columns)
    return Lists(
        rows,
        columns,
        by_group(starts, *states.shape[:2]),
        tile.int(),
        bits.int(),
        packed,
        heads if batch > 1 else 0,
        1 if heads > 1 else 0,
    )


def front_of(mask: Mask, grid: Grid, states: Tensor) -> tuple[int, int]:
    """The batch and heads that the mask tells apart, in its tiles or, where those say nothing, in its pairs."""
    i, j = grid.places()
    pair = mask.permits(i[:1], j[:, :1], grid)
    batch, heads = torch.broadcast_shapes(states.shape[:2], pair.shape[:2] if pair.dim() == 4 else (1, 1))
    return batch, heads


def by_group(starts: Tensor, groups: int, rows: int) -> Tensor:
    """Offsets `[groups · rows + 1]` as `[groups, rows + 1]`: a group's last is the next one's first."""
    return starts.int().unfold(0, rows + 1, rows)[:groups].contiguous() if rows else starts.int().expand(groups, 1)


def with_edges(states: Tensor, grid: Grid, rows: int, columns: int) -> Tensor:
    """Answers for tiles where a full one that crosses the edge of the grid is mixed."""
    states = states.clone()
    for edge, crossed in ((states[:, -1:], grid.queries % rows), (states[:, :, -1:], grid.keys % columns)):
        if crossed:
            edge.clamp_(max=MIXED)
    return states


def pack_mixed(mask: Mask, grid: Grid, states: Tensor, front: tuple[int, int], rows: int, columns: int) -> Tensor:
    """The bits of the mixed tiles, in the order of (group, row, tile)."""
    mixed = states == MIXED
    slot = mixed.flatten().cumsum(0).view_as(mixed) - 1
    places = mixed.any(0).nonzero() if len(states) > 1 else mixed[0].nonzero()  # [places, 2]
    count = int(slot[-1, -1, -1]) + 1 if len(states) > 1 and slot.numel() else len(places)
    packed = torch.empty(count + 1, rows, columns // 32, dtype=torch.int32, device=states.device)
    step = max(PAIRS // (len(states) * rows * columns), 1)
    for some in (places[at : at + step] for at in range(0, len(places), step)):
        found = pack(ask(mask, grid, some, front, rows, columns))
        where = some.unbind(1)
        # What is asked for all groups at once but is mixed in some of them only goes to the line after the last.
        packed[torch.where(mixed[:, *where], slot[:, *where], count)] = found
    return packed[:count]


def ask(mask: Mask, grid: Grid, places: Tensor, front: tuple[int, int], rows: int, columns: int) -> Tensor:
    """The answers in tiles at `places [tiles, 2]`, `[groups, tiles, rows, columns]`; False beyond the edge."""
    r, c = (
        places[:, x, None] * size + torch.arange(size, device=places.device) for x, size in ((0, rows), (1, columns))
    )
    row, column = r.reshape(-1, 1), c.repeat_interleave(rows, 0)  # [tiles · rows, 1 or columns]
    i, j = row.clamp(max=grid.queries - 1) + grid.offset, column.clamp(max=grid.keys - 1)
    allowed = mask.permits(i, j, grid) & (row < grid.queries) & (column < grid.keys)
    return allowed.expand(*front, *column.shape).reshape(-1, len(places), rows, columns)


def pack(allowed: Tensor) -> Tensor:
    """Booleans `[..., columns]` as words `[..., columns // 32]`, the first in the lowest bit."""
    weight = torch.ones(32, dtype=torch.int64, device=allowed.device) << torch.arange(32, device=allowed.device)
    words = (allowed.unflatten(-1, (-1, 32)) * weight).sum(-1)
    return (words - ((words >> 31) << 32)).to(torch.int32)


def turned(by_row: Lists, grid: Grid) -> Lists:
    """The same tiles listed by columns of keys; the packed bits are shared."""
    return sorted_by(by_row, -(-grid.keys // by_row.columns), lambda _, column: column)


def sorted_by(by_row: Lists, lines: int, line_of: Callable[[Tensor, Tensor], Tensor]) -> Lists:
    """The tiles in lists by `line_of(row, column)`, one of `lines`; `tile` holds the row of each."""
    groups, rows = by_row.starts.shape[0], max(by_row.starts.shape[1] - 1, 1)
    starts = by_row.starts.long()
    lengths = (starts[:, 1:] - starts[:, :-1]).flatten()
    owner = torch.repeat_interleave(lengths, output_size=len(by_row.tile))  # the row of each, over all groups
    row = owner % rows
    line = torch.div(owner, rows, rounding_mode="floor") * lines + line_of(row, by_row.tile)
    line, order = torch.sort(line, stable=True)
    starts = torch.searchsorted(line, torch.arange(groups * lines + 1, device=line.device))
    return replace(by_row, starts=by_group(starts, groups, lines), tile=row[order].int(), bits=by_row.bits[order])


def diagonals(by_row: Lists, grid: Grid) -> Lists:
    """The same (square) tiles listed by diagonals, from the last row's first tile up; `tile` holds the row of each.

    Diagonal d has the tiles at column = row + d − (tile rows − 1).
    """
    known = _diagonals.get(by_row)
    if known is None:
        rows, columns = by_row.starts.shape[1] - 1, -(-grid.keys // by_row.columns)
        known = _diagonals[by_row] = sorted_by(by_row, rows + columns - 1, lambda row, column: column - row + rows - 1)
    return known


def items(tiles: Lists, limit: int) -> Items:
    """The lists as pieces of at most `limit` tiles; a row without tiles is a piece of none."""
    known = _items.setdefault(tiles, {})
    if limit not in known:
        known[limit] = cut(tiles.starts[:, :-1].long(), tiles.starts[:, 1:].long(), limit)
    return known[limit]


def cut(begin: Tensor, end: Tensor, limit: int) -> Items:
    """The same of lists that begin and end so, `[groups, rows]`."""
    rows = begin.shape[1]
    first = begin.flatten()
    length = end.flatten() - first
    pieces = torch.div(length + limit - 1, limit, rounding_mode="floor").clamp(min=1)
    slotted = torch.where(pieces > 1, pieces, 0)
    count, slots, lines = torch.stack([pieces.sum(), slotted.sum(), (pieces > 1).sum()]).tolist()
    line = torch.repeat_interleave(pieces, output_size=count)  # the row of each piece, over all groups
    piece = torch.arange(count, device=line.device) - (pieces.cumsum(0) - pieces)[line]
    start = first[line] + torch.div(piece * length[line], pieces[line], rounding_mode="floor")
    stop = first[line] + torch.div((piece + 1) * length[line], pieces[line], rounding_mode="floor")
    slot = torch.where(pieces[line] > 1, (slotted.cumsum(0) - slotted)[line] + piece, -1)
    order = torch.argsort(stop - start, descending=True, stable=True)
    where = torch.argsort((pieces > 1).int(), descending=True, stable=True)[:lines]
    last = slotted.cumsum(0)[where]
    cuts = torch.stack([where // max(rows, 1), where % max(rows, 1), last - slotted[where], last], 1).int()
    numbers = (line // max(rows, 1), line % max(rows, 1), start, stop, slot)
    return Items(*(x[order].int() for x in numbers), cuts, slots)


REMEMBERED = Memory(64)
_items: weakref.WeakKeyDictionary[Lists, dict[int, Items]] = weakref.WeakKeyDictionary()
_diagonals: weakref.WeakKeyDictionary[Lists, Lists] = weakref.WeakKeyDictionary()
