"""Masks: which queries may attend to which keys.

A mask is written once, as a predicate over index tensors: `allow(i, j)`, True where query i may attend to key j. Masks
combine with `&`, `|`, `~`. A mask also has a state for whole tiles of queries × keys: `NONE` of the pairs are allowed,
`ALL` of them, or `MIXED`. With these as 0, 2 and 1, `&` is the minimum, `|` the maximum and `~` is 2 − x (Kleene's
three-valued logic), so the tiles of any combination follow without evaluating the pairs.

A mask of your own needs `allow` alone: backends evaluate it once in every tile (`parts.tiles`) and cache the states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import BadInput
from .part import Part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONE, MIXED, ALL = 0, 1, 2
MASK_CLASSES: dict[str, type[Mask]] = {}


PlacePair = tuple[Tensor, Tensor]
"""Explicit places of the queries and of the keys, `[batch or 1, tokens]` each."""


@dataclass(frozen=True)
class PairGrid:
    """The pairs of one call. Queries are the last of the keys: query row r has position i = r + keys − queries.

    Where it has `places`, i and j still count rows (`i − offset` is the query's row), and `at_places` translates them.
    """

    queries: int
    keys: int
    batch: int = 1
    heads: int = 1
    device: torch.device | str = "cpu"
    places: PlacePair | None = field(default=None, compare=False, repr=False)

    @property
    def offset(self) -> int:
        return self.keys - self.queries

    def at_places(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        """The places of i and j: themselves, unless others are given; `[batch, 1, ...]` where those differ by batch."""
        if self.places is None:
            return i, j
        queries, keys = self.places
        row = i - self.offset
        if queries.shape[0] == keys.shape[0] == 1:
            return queries[0, row], keys[0, j]
        return queries[:, row][:, None], keys[:, j][:, None]

    def indices(self) -> tuple[Tensor, Tensor]:
        """i `[queries, 1]` and j `[1, keys]` of every pair."""
        rows = torch.arange(self.queries, device=self.device)
        return (rows + self.offset)[:, None], torch.arange(self.keys, device=self.device)[None, :]


@dataclass(frozen=True)
class Tiling:
    """A grid cut into tiles of `rows` × `columns` pairs; the first and last index of each, inclusive.

    `row_tiles` and `column_tiles` are the numbers of the tile rows and columns that are meant, all of them by default.
    """

    grid: PairGrid
    rows: int
    columns: int
    row_tiles: Tensor | None = field(default=None, compare=False, repr=False)
    column_tiles: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        down, across = -(-self.grid.queries // self.rows), -(-self.grid.keys // self.columns)
        return (
            down if self.row_tiles is None else len(self.row_tiles),
            across if self.column_tiles is None else len(self.column_tiles),
        )

    def select_rows(self, x: Tensor) -> Tensor:
        """Of something for each tile row of the grid, `[..., tile rows]`, that of the rows that are meant."""
        return x if self.row_tiles is None else x[..., self.row_tiles]

    def select_columns(self, x: Tensor) -> Tensor:
        """Of something for each tile column of the grid, `[..., tile columns]`, that of the columns that are meant."""
        return x if self.column_tiles is None else x[..., self.column_tiles]

    def numbers(self, tiles: Tensor) -> Tensor:
        """The numbers of tiles in the grid, from those among the tiles that are meant, `[tiles, 2]` each."""
        row, column = tiles.unbind(1)
        row = row if self.row_tiles is None else self.row_tiles[row]
        return torch.stack([row, column if self.column_tiles is None else self.column_tiles[column]], 1)

    def row_numbers(self) -> tuple[Tensor, Tensor]:
        """First and last row number of each tile row, `[tile rows, 1]`."""
        first = self.select_rows(torch.arange(0, self.grid.queries, self.rows, device=self.grid.device))[:, None]
        return first, (first + self.rows - 1).clamp(max=self.grid.queries - 1)

    def queries(self) -> tuple[Tensor, Tensor]:
        """First and last position i of each tile row, `[tile rows, 1]`."""
        first, last = self.row_numbers()
        return first + self.grid.offset, last + self.grid.offset

    def keys(self) -> tuple[Tensor, Tensor]:
        """First and last key j of each tile column, `[1, tile columns]`."""
        first = self.select_columns(torch.arange(0, self.grid.keys, self.columns, device=self.grid.device))[None, :]
        return first, (first + self.columns - 1).clamp(max=self.grid.keys - 1)

    def place_ranges(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Least and greatest i of each tile row and j of each tile column, at explicit places if there are any."""
        if self.grid.places is None:
            return self.queries(), self.keys()
        queries, keys = self.grid.places
        i = [self.select_rows(x) for x in run_ranges(queries, self.rows)]  # [batch or 1, tiles] each
        j = [self.select_columns(x) for x in run_ranges(keys, self.columns)]
        if queries.shape[0] == keys.shape[0] == 1:
            return (i[0][0, :, None], i[1][0, :, None]), (j[0][:1], j[1][:1])
        return (i[0][:, None, :, None], i[1][:, None, :, None]), (j[0][:, None, None], j[1][:, None, None])

    def distances(self) -> tuple[Tensor, Tensor]:
        """Bounds of the i − j of each tile, its least and greatest where rows and keys are in order."""
        (i_first, i_last), (j_first, j_last) = self.place_ranges()
        return i_first - j_last, i_last - j_first


def run_ranges(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Least and greatest of each run of `size` along the last axis of x `[batch, n]`; the last may be shorter."""
    padded = torch.cat([x, x[:, -1:].expand(-1, -x.shape[1] % size)], dim=1).unflatten(1, (-1, size))
    return padded.amin(-1), padded.amax(-1)


KeyBounds = tuple[float, float]
"""The first and last of a range of keys; infinite where it has no bound."""


class Mask(Part):
    """Which queries may attend to which keys. Subclass it and write `allow(i, j)`; everything else works.

    >>> import regard as rg
    >>> class Even(rg.Mask):
    ...     def allow(self, i, j):
    ...         return (i + j) % 2 == 0
    >>> (Even() & rg.Causal()).dense(3, 3).int().tolist()
    [[1, 0, 0], [0, 1, 0], [1, 0, 1]]
    """

    class_id = ""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.class_id = str(len(MASK_CLASSES) + 1)  # how a compiled graph names the class
        MASK_CLASSES[cls.class_id] = cls

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        """True where query i may attend to key j; i and j are integer tensors that broadcast.

        The result may have two dimensions more in front, `[batch, heads, ...]` (either may be 1).
        """
        raise BadInput(
            f"{type(self).__name__} has no allow(i, j); write it: it returns True where query i may attend to key j."
        )

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        """`allow` for masks that depend on the sizes of the call, such as those that use row numbers."""
        return self.allow(*grid.at_places(i, j))

    def tiles(self, tiling: Tiling) -> Tensor:
        """`NONE`, `MIXED` or `ALL` for each tile, `[batch or 1, heads or 1, tile rows, tile columns]`, int8.

        `NONE` and `ALL` are exact; `MIXED` is always allowed.
        """
        return torch.full((1, 1, *tiling.shape), MIXED, dtype=torch.int8, device=tiling.grid.device)

    @property
    def has_tiles(self) -> bool:
        """Whether `tiles` answers without evaluating pairs; where it does not, every tile is `MIXED`."""
        return type(self).tiles is not Mask.tiles

    def key_span(self, first: int, last: int) -> KeyBounds | None:
        """The keys that the queries first … last may attend to at most, where the mask depends on i − j alone.

        None where it depends on more, or where that is not known: `attend` then leaves all keys in the call. A mask
        may also stay the same only when i and j shift by multiples of its `key_period`.
        """
        return None

    @property
    def key_period(self) -> int:
        """By multiples of how much i and j may shift together without a change, where there is a `key_span`."""
        return 1

    def check(self, grid: PairGrid) -> None:
        """Raise `BadInput` when the mask does not fit a call of these sizes."""

    @property
    def checked_by_shape(self) -> bool:
        """Whether `check` reads the shapes of the mask's tensors and not their contents."""
        return True

    def at_layer(self, layer: int, training: bool) -> Mask | None:
        """The mask of one layer of a stack: this one, unless it specifies one for each layer."""
        return self

    @property
    def by_rows(self) -> bool:
        """Whether the mask reads row numbers and contents alone, so that explicit places change nothing."""
        return False

    @property
    def causal(self) -> bool:
        """Whether no query may attend to a later key. False where that is not known from the mask's fields.

        >>> import regard as rg
        >>> rg.Window(before=3).causal, (rg.Causal() & rg.Global(1)).causal, (rg.Causal() | rg.Global(1)).causal
        (True, True, False)
        """
        return False

    @property
    def allows_future(self) -> bool:
        """Whether every query may attend to every later key, so that `~mask` is causal. False where not known."""
        return False

    def dense(self, queries: int, keys: int) -> Tensor:
        """The mask of every pair: `[queries, keys]`, or `[batch, heads, queries, keys]` when it depends on those."""
        grid = PairGrid(queries, keys, device=self.device())
        pairs = self.permits(*grid.indices(), grid)
        return pairs.expand(*pairs.shape[:-2], queries, keys)

    def device(self) -> torch.device | str:
        """The device of the mask's tensors; the CPU if it has none."""
        return next((tensor.device for tensor in self.tensors()), "cpu")

    def tensors(self) -> list[Tensor]:
        """The mask's tensors, including those of the masks it combines."""
        tensors: list[Tensor] = []
        for value in vars(self).values():
            tensors += value.tensors() if isinstance(value, Mask) else [value] if isinstance(value, Tensor) else []
        return tensors

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its tensors on `device`."""
        fields = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor | Mask)}
        return replace(self, **fields) if fields else self  # type: ignore[type-var]

    def plot(
        self,
        queries: int | list[str],
        keys: int | list[str] | None = None,
        *,
        batch: int = 0,
        head: int = 0,
        title: str | None = None,
    ) -> Figure:
        """The mask as a picture; give sizes, or words to write on the axes in place of numbers."""
        from ..plotting import plot_mask

        return plot_mask(self, queries, keys, batch=batch, head=head, title=title)

    def __and__(self, other: Mask) -> Mask:
        return And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        return Not(self)


@dataclass(frozen=True, eq=False, repr=False)
class Combination(Mask):
    """Two masks, of which `And` allows the pairs that both allow, and `Or` those that either does."""

    left: Mask
    right: Mask

    @property
    def has_tiles(self) -> bool:
        return self.left.has_tiles and self.right.has_tiles

    @property
    def key_period(self) -> int:
        return math.lcm(self.left.key_period, self.right.key_period)

    @property
    def by_rows(self) -> bool:
        return self.left.by_rows and self.right.by_rows

    def check(self, grid: PairGrid) -> None:
        self.left.check(grid)
        self.right.check(grid)

    @property
    def checked_by_shape(self) -> bool:
        return self.left.checked_by_shape and self.right.checked_by_shape


@dataclass(frozen=True, eq=False, repr=False)
class And(Combination):
    """Pairs that both masks allow."""

    @property
    def formula(self) -> str:  # type: ignore[override]
        return f"({self.left.formula}) and ({self.right.formula})"

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.left.allow(i, j) & self.right.allow(i, j)

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        return self.left.permits(i, j, grid) & self.right.permits(i, j, grid)

    def tiles(self, tiling: Tiling) -> Tensor:
        return torch.minimum(self.left.tiles(tiling), self.right.tiles(tiling))

    def key_span(self, first: int, last: int) -> KeyBounds | None:
        left, right = self.left.key_span(first, last), self.right.key_span(first, last)
        return None if left is None or right is None else (max(left[0], right[0]), min(left[1], right[1]))

    @property
    def causal(self) -> bool:
        return self.left.causal or self.right.causal

    @property
    def allows_future(self) -> bool:
        return self.left.allows_future and self.right.allows_future

    def __repr__(self) -> str:
        return f"{parenthesize(self.left, Or)} & {parenthesize(self.right, Combination)}"


@dataclass(frozen=True, eq=False, repr=False)
class Or(Combination):
    """Pairs that either mask allows."""

    @property
    def formula(self) -> str:  # type: ignore[override]
        return f"({self.left.formula}) or ({self.right.formula})"

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.left.allow(i, j) | self.right.allow(i, j)

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        return self.left.permits(i, j, grid) | self.right.permits(i, j, grid)

    def tiles(self, tiling: Tiling) -> Tensor:
        return torch.maximum(self.left.tiles(tiling), self.right.tiles(tiling))

    def key_span(self, first: int, last: int) -> KeyBounds | None:
        left, right = self.left.key_span(first, last), self.right.key_span(first, last)
        return None if left is None or right is None else (min(left[0], right[0]), max(left[1], right[1]))

    @property
    def causal(self) -> bool:
        return self.left.causal and self.right.causal

    @property
    def allows_future(self) -> bool:
        return self.left.allows_future or self.right.allows_future

    def __repr__(self) -> str:
        return f"{parenthesize(self.left, And)} | {parenthesize(self.right, Combination)}"


@dataclass(frozen=True, eq=False, repr=False)
class Not(Mask):
    """Pairs that the mask does not allow."""

    mask: Mask

    @property
    def formula(self) -> str:  # type: ignore[override]
        return f"not ({self.mask.formula})"

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return ~self.mask.allow(i, j)

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        return ~self.mask.permits(i, j, grid)

    def tiles(self, tiling: Tiling) -> Tensor:
        return ALL - self.mask.tiles(tiling)

    @property
    def has_tiles(self) -> bool:
        return self.mask.has_tiles

    @property
    def by_rows(self) -> bool:
        return self.mask.by_rows

    @property
    def causal(self) -> bool:
        return self.mask.allows_future

    @property
    def allows_future(self) -> bool:
        return self.mask.causal

    def check(self, grid: PairGrid) -> None:
        self.mask.check(grid)

    @property
    def checked_by_shape(self) -> bool:
        return self.mask.checked_by_shape

    def __repr__(self) -> str:
        return f"~{parenthesize(self.mask, Combination)}"


def parenthesize(mask: Mask, combination: type[Combination]) -> str:
    """The mask as text, in parentheses where it is such a combination."""
    return f"({mask!r})" if isinstance(mask, combination) else repr(mask)
