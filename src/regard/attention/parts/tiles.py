"""States of tiles from the pairs themselves, for masks that only define `allow`.

`Mask.tiles` answers without evaluating pairs. A mask of a user's own has no such answer: there every tile is evaluated
once, in pieces of a fixed size, and the states are cached with the mask. Its empty tiles are then skipped and its full
ones computed without a mask, as those of the built-in masks are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .mask import ALL, MIXED, NONE, Mask, PairGrid, Tiling

PAIRS = 1 << 24  # pairs that a mask is evaluated for at once


def tile_states(mask: Mask, tiling: Tiling) -> Tensor:
    """`mask.tiles`, with every tile evaluated where the mask itself cannot say; int8.

    `[batch or 1, heads or 1, tile rows, tile columns]`, with the batch and heads that the mask's pairs depend on.
    """
    states = mask.tiles(tiling)
    if mask.has_tiles:
        return states
    front = pair_dims(mask, tiling.grid, states)
    states = states.expand(*front, -1, -1).clone(memory_format=torch.contiguous_format)
    groups = states.flatten(0, 1)
    unknown = (groups == MIXED).any(0).nonzero()
    size = tiling.rows * tiling.columns
    step = max(PAIRS // (len(groups) * size), 1)
    for chunk in unknown.split(step):
        pairs, inside = evaluate_tiles(mask, tiling.grid, tiling.numbers(chunk), front, tiling.rows, tiling.columns)
        some, every = pairs.flatten(2).any(2), (pairs | ~inside).flatten(2).all(2)
        row, column = chunk.unbind(1)
        exact = torch.where(every, ALL, torch.where(some, MIXED, NONE)).to(torch.int8)
        groups[:, row, column] = exact
    return groups.view_as(states)


def pair_dims(mask: Mask, grid: PairGrid, states: Tensor) -> tuple[int, int]:
    """(batch, heads) that the states or the pairs of a mask depend on; 1 where they do not."""
    i, j = grid.indices()
    pair = mask.permits(i[:1], j[:, :1], grid)
    batch, heads = torch.broadcast_shapes(states.shape[:2], pair.shape[:2] if pair.dim() == 4 else (1, 1))
    return batch, heads


def evaluate_tiles(
    mask: Mask, grid: PairGrid, tiles: Tensor, front: tuple[int, int], rows: int, columns: int
) -> tuple[Tensor, Tensor]:
    """The mask in tiles `[tiles, 2]`, boolean `[groups, tiles, rows, columns]`, and which of them are pairs at all.

    The mask is False beyond the last query or key.
    """
    r, c = (tiles[:, x, None] * size + torch.arange(size, device=tiles.device) for x, size in ((0, rows), (1, columns)))
    row, column = r.reshape(-1, 1), c.repeat_interleave(rows, 0)  # [tiles · rows, 1 or columns]
    i, j = row.clamp(max=grid.queries - 1) + grid.offset, column.clamp(max=grid.keys - 1)
    inside = (row < grid.queries) & (column < grid.keys)
    allowed = mask.permits(i, j, grid) & inside
    shape = (len(tiles), rows, columns)
    groups = allowed.expand(*front, *column.shape).reshape(front[0] * front[1], *shape)
    return groups, inside.expand(column.shape).reshape(shape)
