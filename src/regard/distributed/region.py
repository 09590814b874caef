"""A rectangle of a larger attention: some queries × some keys, both consecutive, as a lowered call of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.execution import mask_cache
from ..attention.parts.mask import ALL, MIXED, NONE, Mask, PairGrid, Tiling
from ..attention.parts.tiles import tile_states


@dataclass(frozen=True, eq=False, repr=False)
class Region(Mask):
    """A mask of `queries` × `keys` tokens, seen from row `row` and key `column` on."""

    mask: Mask
    queries: int
    keys: int
    row: int
    column: int

    def whole(self, grid: PairGrid) -> PairGrid:
        """The grid that the region is a part of."""
        return PairGrid(self.queries, self.keys, grid.batch, grid.heads, grid.device)

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        whole = self.whole(grid)
        return self.mask.permits(i - grid.offset + self.row + whole.offset, j + self.column, whole)

    def tiles(self, tiling: Tiling) -> Tensor:
        """States from those of the whole mask, of which each tile of the region overlaps four at most."""
        whole = Tiling(self.whole(tiling.grid), tiling.rows, tiling.columns)
        states = whole_states(self.mask, whole)
        rows, columns = tiling.row_numbers(), tiling.keys()
        up, down = ((x[:, 0] + self.row) // tiling.rows for x in rows)
        left, right = ((x[0] + self.column) // tiling.columns for x in columns)
        corners = [states[:, :, r][..., c] for r in (up, down) for c in (left, right)]
        least, most = torch.stack(corners).amin(0), torch.stack(corners).amax(0)
        return torch.where(most == NONE, NONE, torch.where(least == ALL, ALL, MIXED)).to(torch.int8)

    @property
    def has_tiles(self) -> bool:
        return True


def whole_states(mask: Mask, tiling: Tiling) -> Tensor:
    """`tile_states`, cached with the mask: every region of it reads them."""
    key = ("states", tiling.grid.queries, tiling.grid.keys, tiling.rows, tiling.columns, str(tiling.grid.device))
    return mask_cache(mask).get(key, lambda: tile_states(mask, tiling))
