"""Explicit places: where the queries and keys of a call stand, for all parts that read i and j.

Without them key row j stands at j, and the queries are the last of the keys. With them, masks and positions read the
given places. Parts that are defined by row numbers are not concerned: `Lengths`, `Documents`, `Edges`, `Pairs`,
`Blocks`, a boolean `Global`, `PairBias`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import BadInput
from .mask import Mask, PairGrid, PlacePair, Tiling
from .part import Part, check_tensor


@dataclass(frozen=True, eq=False, repr=False)
class Places(Part):
    """The places of keys and queries: i and j of `Causal`, `Window`, `Rotary`, `Alibi`, and all that read a distance.

    `keys` is `[batch or 1, keys]` or `[keys]`, whole numbers; `queries` likewise. Without `queries` they are the last
    of the keys. Packed sequences count from 0 in each (with `Documents`); rows padded on the left begin later; drafts
    in a tree share places.

    >>> import torch, regard as rg
    >>> places = rg.Places(torch.tensor([0, 1, 2, 0, 1]))       # two sequences in one row
    >>> mask = rg.Documents(torch.tensor([[0, 0, 0, 1, 1]])) & rg.Causal()
    >>> x = torch.randn(1, 2, 5, 8)
    >>> packed = rg.attend(x, x, x, position=rg.Rotary(), mask=mask, places=places)
    >>> alone = rg.attend(x[:, :, 3:], x[:, :, 3:], x[:, :, 3:], position=rg.Rotary(), mask=rg.Causal())
    >>> torch.allclose(packed[:, :, 3:], alone, atol=1e-6)
    True
    """

    keys: Tensor
    queries: Tensor | None = None
    formula = "i = queries[b, row], j = keys[b, row]"

    def __post_init__(self) -> None:
        for name, value in (("keys", self.keys), ("queries", self.queries)):
            if value is not None:
                check_tensor(value, f"Places' {name}", (1, 2), "whole numbers [batch or 1, tokens]", False)
                if value.dtype.is_floating_point or value.dtype == torch.bool:
                    raise BadInput(f"Places' {name} are {value.dtype}; they must be whole numbers.")

    def check(self, grid: PairGrid) -> None:
        """Raise `BadInput` unless there is a place for each query and key."""
        for name, value, tokens in (("keys", self.keys, grid.keys), ("queries", self.queries, grid.queries)):
            if value is None:
                continue
            shape = (1, *value.shape)[-2:]
            if shape[0] not in (1, grid.batch) or shape[1] != tokens:
                raise BadInput(
                    f"Places' {name} are {list(value.shape)}; they must be [batch or 1, {name}] = "
                    f"{[grid.batch, tokens]}."
                )
        if self.queries is None and grid.queries > grid.keys:
            raise BadInput(
                f"Places has the places of {grid.keys} keys; {grid.queries} queries need their own: "
                "Places(keys, queries)."
            )

    def tensors(self) -> dict[str, Tensor]:
        """The part's tensors, by name."""
        return {name: x for name, x in (("keys", self.keys), ("queries", self.queries)) if x is not None}

    def pair(self, queries: int) -> PlacePair:
        """The places of the queries and of the keys, int64 `[batch or 1, tokens]` each."""
        keys = torch.atleast_2d(self.keys).long()
        own = keys[:, keys.shape[1] - queries :] if self.queries is None else torch.atleast_2d(self.queries).long()
        return own, keys

    def place(self, mask: Mask) -> Mask:
        """The mask with its i and j at these places; the mask itself where it reads row numbers alone."""
        return mask if mask.by_rows else PlacedMask(mask, self.keys, self.queries)


@dataclass(frozen=True, eq=False, repr=False)
class PlacedMask(Mask):
    """A mask whose queries and keys stand at the places that a `Places` has.

    It holds the same tensors, so that what is cached for a mask is found again.
    """

    mask: Mask
    keys: Tensor
    queries: Tensor | None

    @property
    def formula(self) -> str:  # type: ignore[override]
        return f"{self.mask.formula} at the given places"

    @property
    def by_rows(self) -> bool:
        return True

    def at_grid(self, grid: PairGrid) -> PairGrid:
        """The grid with the places."""
        return replace(grid, places=Places(self.keys, self.queries).pair(grid.queries))

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        keys = self.keys.shape[-1]
        return self.permits(i, j, PairGrid(keys if self.queries is None else self.queries.shape[-1], keys))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        return self.mask.permits(i, j, self.at_grid(grid))

    def tiles(self, tiling: Tiling) -> Tensor:
        return self.mask.tiles(replace(tiling, grid=self.at_grid(tiling.grid)))

    @property
    def has_tiles(self) -> bool:
        return self.mask.has_tiles

    def check(self, grid: PairGrid) -> None:
        self.mask.check(self.at_grid(grid))

    @property
    def checked_by_shape(self) -> bool:
        return self.mask.checked_by_shape

    def __repr__(self) -> str:
        return repr(self.mask)
