"""Some queries × some keys of a larger attention, as an attention of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...attention.parts.mask import ALL, MIXED, NONE, Mask, PairGrid, Tiling
from ...attention.parts.tiles import tile_states


@dataclass(frozen=True, eq=False, repr=False)
class MaskSelection(Mask):
    """A mask of `whole = (queries, keys)` tokens for the queries `rows` and the keys `columns`, by number.

    Both come in tiles of `tile` that are whole but for the last of the sequence, which then comes last; `row_tile` is
    that of the rows, 1 where they are any. Where `hidden [rows]` is True a row has no keys.
    """

    mask: Mask
    whole: tuple[int, int]
    rows: Tensor
    columns: Tensor
    tile: int
    row_tile: int
    hidden: Tensor | None = None

    def whole_grid(self, grid: PairGrid) -> PairGrid:
        """The grid that the selection is a part of."""
        return PairGrid(*self.whole, grid.batch, grid.heads, grid.device)

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        whole, row = self.whole_grid(grid), i - grid.offset
        allowed = self.mask.permits(self.rows[row] + whole.offset, self.columns[j], whole)
        return allowed if self.hidden is None else allowed & ~self.hidden[row]

    def tiles(self, tiling: Tiling) -> Tensor:
        """States from those of the whole mask, for tiles that divide both these and its own."""
        height, width = math.gcd(tiling.rows, self.row_tile), math.gcd(tiling.columns, self.tile)
        rows, columns = self.rows[::height] // height, self.columns[::width] // width
        states = tile_states(self.mask, Tiling(self.whole_grid(tiling.grid), height, width, rows, columns))
        least = reduce_tiles(states, tiling.rows // height, tiling.columns // width, torch.amin)
        most = reduce_tiles(states, tiling.rows // height, tiling.columns // width, torch.amax)
        states = torch.where(most == NONE, NONE, torch.where(least == ALL, ALL, MIXED)).to(torch.int8)
        if self.hidden is not None:
            full = torch.nn.functional.pad(self.hidden, (0, -len(self.hidden) % tiling.rows))
            some = full.unflatten(0, (-1, tiling.rows)).any(1)[:, None]
            states = torch.where(some, states.clamp(max=MIXED), states)
        return tiling.select_columns(tiling.select_rows(states.mT).mT)

    @property
    def has_tiles(self) -> bool:
        return True

    @property
    def by_rows(self) -> bool:
        return True


def reduce_tiles(states: Tensor, rows: int, columns: int, reduce) -> Tensor:
    """The least or the greatest state of blocks of so many rows and columns; those at the ends may have fewer."""
    if rows == columns == 1:
        return states
    down, across = -states.shape[2] % rows, -states.shape[3] % columns
    if down or across:  # repeated: a state is as good as the one beside it, which is in the same block
        states = torch.cat([states, states[:, :, -1:].expand(-1, -1, down, -1)], 2)
        states = torch.cat([states, states[..., -1:].expand(-1, -1, -1, across)], 3)
    return reduce(states.unflatten(3, (-1, columns)).unflatten(2, (-1, rows)), (3, 5))
