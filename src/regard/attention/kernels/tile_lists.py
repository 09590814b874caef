"""Tile lists: the tiles of queries × keys that a kernel computes, and the packed bits of the tiles that are mixed.

Each row of tiles has an ascending list of its tiles that allow any pair. A tile is full, or its pairs' answers are
stored as bits. `tile_lists` makes the lists from the mask's answers for tiles and evaluates the mask in mixed tiles
only. `split_ranges` cuts the lists into work items of similar length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import BadInput
from ..dropout import to_int32
from ..execution import mask_cache
from ..parts.mask import MIXED, NONE, Mask, PairGrid, Tiling
from ..parts.tiles import PAIRS, evaluate_tiles, pair_dims, tile_states


@dataclass(frozen=True, eq=False)
class TileLists:
    """The tiles of each row of tiles (transposed: of each column), for each group of batch and head.

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

    @property
    def lists(self) -> int:
        """Lists of each group: tile rows, columns or diagonals."""
        return self.starts.shape[1] - 1

    def owners(self) -> Tensor:
        """group · lists + list of each tile, int64 `[n]`."""
        starts = self.starts.long()
        return torch.repeat_interleave((starts[:, 1:] - starts[:, :-1]).flatten(), output_size=len(self.tile))


class WorkItems(NamedTuple):
    """Work items, longest first: tiles `first … last − 1` of a list. Items of a split list write to `splits` slots.

    `split_rows` has a line for each list that is split: (group, row, first slot, last slot + 1).
    """

    group: Tensor  # int32 [items]
    row: Tensor  # int32 [items]
    first: Tensor  # int32 [items], offsets into TileLists.tile
    last: Tensor  # int32 [items]
    slot: Tensor  # int32 [items]: −1 where the list is not split
    split_rows: Tensor  # int32 [split lists, 4]
    splits: int


def tile_lists(mask: Mask, grid: PairGrid, rows: int, columns: int, transposed: bool = False) -> TileLists:
    """The lists of a mask for tiles of `rows` queries × `columns` keys, from the mask's cache."""

    def make() -> TileLists:
        if not transposed:
            return build_lists(mask, grid, rows, columns)
        by_row = tile_lists(mask, grid, rows, columns)
        return regroup(by_row, -(-grid.keys // columns), lambda _, column: column)

    return mask_cache(mask).get((TileLists, grid, rows, columns, transposed), make)


def build_lists(mask: Mask, grid: PairGrid, rows: int, columns: int) -> TileLists:
    """The lists by rows of tiles."""
    if columns % 32:
        raise BadInput(f"Tiles have {columns} columns; bits come in words of 32.")
    states = tile_states(mask, Tiling(grid, rows, columns))  # [batch or 1, heads or 1, tile rows, tile columns]
    batch, heads = pair_dims(mask, grid, states)  # only its pairs may depend on batch or head
    states = states.expand(batch, heads, -1, -1).flatten(0, 1)  # [groups, tile rows, tile columns]
    states = states.clone(memory_format=torch.contiguous_format)
    for boundary, partial in ((states[:, -1:], grid.queries % rows), (states[:, :, -1:], grid.keys % columns)):
        if partial:  # a full tile that crosses the last query or key is mixed
            boundary.clamp_(max=MIXED)
    group, row, tile = (states != NONE).nonzero(as_tuple=True)
    mixed = states[group, row, tile] == MIXED
    owner = group * states.shape[1] + row
    starts = torch.searchsorted(owner, torch.arange(states.shape[0] * states.shape[1] + 1, device=owner.device))
    return TileLists(
        rows,
        columns,
        group_starts(starts, *states.shape[:2]),
        tile.int(),
        torch.where(mixed, mixed.cumsum(0) - 1, -1).int(),
        pack_mixed(mask, grid, states, (batch, heads), rows, columns),
        heads if batch > 1 else 0,
        1 if heads > 1 else 0,
    )


def group_starts(starts: Tensor, groups: int, lists: int) -> Tensor:
    """Offsets `[groups · lists + 1]` as `[groups, lists + 1]`: a group's last is the next one's first."""
    return starts.int().unfold(0, lists + 1, lists)[:groups].contiguous() if lists else starts.int().expand(groups, 1)


def pack_mixed(mask: Mask, grid: PairGrid, states: Tensor, front: tuple[int, int], rows: int, columns: int) -> Tensor:
    """The bits of the mixed tiles, in the order of (group, row, tile)."""
    mixed = states == MIXED
    index = mixed.flatten().cumsum(0).view_as(mixed) - 1
    tiles = mixed.any(0).nonzero() if len(states) > 1 else mixed[0].nonzero()  # [tiles, 2]
    count = int(index[-1, -1, -1]) + 1 if len(states) > 1 and index.numel() else len(tiles)
    packed = torch.empty(count + 1, rows, columns // 32, dtype=torch.int32, device=states.device)
    step = max(PAIRS // (len(states) * rows * columns), 1)
    for chunk in (tiles[at : at + step] for at in range(0, len(tiles), step)):
        words = pack_bits(evaluate_tiles(mask, grid, chunk, front, rows, columns)[0])
        at = chunk.unbind(1)
        # A tile is evaluated for all groups at once; where a group's is not mixed, its words go to a spare last entry.
        packed[torch.where(mixed[:, *at], index[:, *at], count)] = words
    return packed[:count]


def pack_bits(allowed: Tensor) -> Tensor:
    """Booleans `[..., columns]` as words `[..., columns // 32]`, the first in the lowest bit."""
    weight = torch.ones(32, dtype=torch.int64, device=allowed.device) << torch.arange(32, device=allowed.device)
    words = (allowed.unflatten(-1, (-1, 32)) * weight).sum(-1)
    return to_int32(words)


def regroup(by_row: TileLists, lists: int, list_of: Callable[[Tensor, Tensor], Tensor]) -> TileLists:
    """The tiles in `lists` other lists, each tile in `list_of(row, column)`; `tile` holds its row. Bits are shared."""
    groups, rows = by_row.groups, max(by_row.lists, 1)
    owner = by_row.owners()
    row = owner % rows
    line = torch.div(owner, rows, rounding_mode="floor") * lists + list_of(row, by_row.tile)
    line, order = torch.sort(line, stable=True)
    starts = torch.searchsorted(line, torch.arange(groups * lists + 1, device=line.device))
    return replace(by_row, starts=group_starts(starts, groups, lists), tile=row[order].int(), bits=by_row.bits[order])


def by_diagonal(by_row: TileLists, grid: PairGrid) -> TileLists:
    """The same (square) tiles in lists by diagonal, from the last row's first tile up; `tile` holds the row of each.

    Diagonal d has the tiles at column = row + d − (tile rows − 1).
    """
    rows, columns = by_row.lists, -(-grid.keys // by_row.columns)
    return regroup(by_row, rows + columns - 1, lambda row, column: column - row + rows - 1)


def split_ranges(begin: Tensor, end: Tensor, limit: int) -> WorkItems:
    """Work items of lists that begin and end at these offsets, `[groups, lists]`."""
    lists = max(begin.shape[1], 1)
    first = begin.flatten()
    length = end.flatten() - first
    pieces = torch.div(length + limit - 1, limit, rounding_mode="floor").clamp(min=1)
    slots = torch.where(pieces > 1, pieces, 0)
    count, splits, split_lists = torch.stack([pieces.sum(), slots.sum(), (pieces > 1).sum()]).tolist()
    owner = torch.repeat_interleave(pieces, output_size=count)  # the list of each item, over all groups
    piece = torch.arange(count, device=owner.device) - (pieces.cumsum(0) - pieces)[owner]
    start = first[owner] + torch.div(piece * length[owner], pieces[owner], rounding_mode="floor")
    stop = first[owner] + torch.div((piece + 1) * length[owner], pieces[owner], rounding_mode="floor")
    slot = torch.where(pieces[owner] > 1, (slots.cumsum(0) - slots)[owner] + piece, -1)
    order = torch.argsort(stop - start, descending=True, stable=True)
    split = torch.argsort((pieces > 1).int(), descending=True, stable=True)[:split_lists]
    last = slots.cumsum(0)[split]
    split_rows = torch.stack([split // lists, split % lists, last - slots[split], last], 1).int()
    items = [x[order].int() for x in (owner // lists, owner % lists, start, stop, slot)]
    return WorkItems(items[0], items[1], items[2], items[3], items[4], split_rows, splits)


def renumber(items: WorkItems, instances: Tensor, first: int = 0) -> WorkItems:
    """Work items whose groups index `instances` and whose rows begin at `first`, with the groups and rows meant."""
    split_rows = items.split_rows.clone()
    split_rows[:, 0] = instances[split_rows[:, 0].long()].int()
    split_rows[:, 1] += first
    group = instances[items.group.long()].int()
    return items._replace(group=group, row=items.row + first, split_rows=split_rows)
