"""Masks by what is known of each token or pair: global tokens, padding, packed documents, any boolean tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ....errors import BadInput
from ..mask import Mask, PairGrid, Tiling
from ..part import check_count, check_tensor
from .tile_states import (
    add_batch_heads,
    check_batch_heads,
    check_batch_tokens,
    check_boolean,
    states_from,
    tile_counts,
    tile_sizes,
)


@dataclass(frozen=True, eq=False, repr=False)
class Global(Mask):
    """Global tokens attend to all and are attended to by all: i or j is one of them.

    `tokens` is a count (the first ones), indices, or a boolean `[batch, keys]`.
    """

    tokens: int | tuple[int, ...] | Tensor
    formula = "i or j is one of the tokens"

    def __post_init__(self) -> None:
        if isinstance(self.tokens, list | range):
            object.__setattr__(self, "tokens", tuple(self.tokens))
        if isinstance(self.tokens, tuple):
            for token in self.tokens:
                check_count(token, "an index of Global's tokens")
        elif isinstance(self.tokens, Tensor):
            boolean = self.tokens.dtype == torch.bool
            check_tensor(
                self.tokens, "Global's tokens", (2,) if boolean else (1,), "boolean [batch, keys] or indices [n]", False
            )
            if self.tokens.dtype.is_floating_point:
                raise BadInput(f"Global's tokens are {self.tokens.dtype}; give indices or a boolean [batch, keys].")
        else:
            check_count(self.tokens, "Global's tokens")

    def check(self, grid: PairGrid) -> None:
        if isinstance(self.tokens, Tensor) and self.tokens.dtype == torch.bool:
            check_batch_tokens("Global's tokens", self.tokens, "[batch, keys]", grid, grid.keys)
        elif isinstance(self.tokens, tuple | Tensor) and len(self.tokens) and grid.places is None:
            least, most = int(min(self.tokens)), int(max(self.tokens))
            if least < 0 or most >= grid.keys:
                raise BadInput(f"Global's tokens reach from {least} to {most}; the keys are 0 … {grid.keys - 1}.")

    @property
    def checked_by_shape(self) -> bool:
        return self.by_rows or not isinstance(self.tokens, Tensor)

    @property
    def by_rows(self) -> bool:
        return isinstance(self.tokens, Tensor) and self.tokens.dtype == torch.bool

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.contains(i) | self.contains(j)

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        return self.allow(i, j) if self.by_rows else super().permits(i, j, grid)

    def contains(self, place: Tensor) -> Tensor:
        """Whether each position is one of the tokens; `[batch, 1, ...]` when they differ by batch."""
        if isinstance(self.tokens, int):
            return (place >= 0) & (place < self.tokens)
        if isinstance(self.tokens, Tensor) and self.tokens.dtype == torch.bool:
            return ((place >= 0) & self.tokens[:, place.clamp(min=0)])[:, None]
        return torch.isin(place, torch.as_tensor(self.tokens, device=place.device))

    def tiles(self, tiling: Tiling) -> Tensor:
        rows, columns = self.tile_members(tiling)
        row_sizes, column_sizes = tile_sizes(tiling)
        return states_from((rows == row_sizes) | (columns == column_sizes), (rows == 0) & (columns == 0))

    def tile_members(self, tiling: Tiling) -> tuple[Tensor, Tensor]:
        """How many of the tokens are among the rows `[..., tile rows, 1]` and columns `[..., 1, tile columns]`."""
        if tiling.grid.places is None and not self.by_rows:
            return self.count_between(*tiling.queries()), self.count_between(*tiling.keys())
        i, j = tiling.grid.indices()
        i, j = i[:, 0], j[0]
        if tiling.grid.places is not None and not self.by_rows:
            i, j = (x[:, None] for x in tiling.grid.places)  # [batch or 1, 1, tokens]
        rows = tiling.select_rows(tile_counts(self.contains(i), tiling.rows))[..., :, None]
        return rows, tiling.select_columns(tile_counts(self.contains(j), tiling.columns))[..., None, :]

    def count_between(self, first: Tensor, last: Tensor) -> Tensor:
        """How many of the tokens, which are a number or indices, are from `first` to `last`."""
        if isinstance(self.tokens, int):
            return (last.clamp(max=self.tokens - 1) - first.clamp(min=0) + 1).clamp(min=0)
        tokens = torch.as_tensor(self.tokens, dtype=torch.int64, device=first.device).sort().values
        new = tokens.diff(prepend=tokens[:1] - 1) != 0  # an index that is given twice is one token
        before = pad(new.cumsum(0), (1, 0))
        return before[torch.searchsorted(tokens, last, right=True)] - before[torch.searchsorted(tokens, first)]


@dataclass(frozen=True, eq=False, repr=False)
class Lengths(Mask):
    """Padding: key row j < keys[b], and query row < queries[b] when given; both are `[batch]`."""

    keys: Tensor
    queries: Tensor | None = None
    formula = "j < keys[b] (and row(i) < queries[b])"

    @property
    def by_rows(self) -> bool:
        return True

    def __post_init__(self) -> None:
        for name, value in (("keys", self.keys), ("queries", self.queries)):
            if value is not None:
                check_tensor(value, f"Lengths' {name}", (1,), "whole numbers [batch]", False)
                if value.dtype.is_floating_point or value.dtype == torch.bool:
                    raise BadInput(f"Lengths' {name} are {value.dtype}; they must be whole numbers [batch].")

    def check(self, grid: PairGrid) -> None:
        for name, value in (("keys", self.keys), ("queries", self.queries)):
            if value is not None and value.shape[0] != grid.batch:
                raise BadInput(
                    f"Lengths' {name} are {list(value.shape)}; the batch is {grid.batch}. Give one for each row."
                )

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.permits(i, j, PairGrid(0, 0))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        inside = j < self.keys[:, None, None, None]
        if self.queries is not None:
            inside = inside & (i - grid.offset < self.queries[:, None, None, None])
        return inside

    def tiles(self, tiling: Tiling) -> Tensor:
        first, last = tiling.keys()
        keys = self.keys[:, None, None, None]
        full, empty = last < keys, first >= keys
        if self.queries is not None:
            first, last = tiling.row_numbers()
            rows = self.queries[:, None, None, None]
            full, empty = full & (last < rows), empty | (first >= rows)
        return states_from(full, empty).expand(-1, -1, *tiling.shape)


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """Packed documents: a query attends to the keys of its own document; negative ids attend to none.

    `ids [batch, keys]`; `query_ids [batch, queries]` when the queries' differ from those of the last keys.
    """

    ids: Tensor
    query_ids: Tensor | None = None
    formula = "ids[i] = ids[j] ≥ 0"

    @property
    def by_rows(self) -> bool:
        return True

    def __post_init__(self) -> None:
        for name, value in (("ids", self.ids), ("query_ids", self.query_ids)):
            if value is not None:
                check_tensor(value, f"Documents' {name}", (2,), "whole numbers [batch, tokens]", False)
                if value.dtype.is_floating_point or value.dtype == torch.bool:
                    raise BadInput(f"Documents' {name} are {value.dtype}; they must be whole numbers.")

    def check(self, grid: PairGrid) -> None:
        check_batch_tokens("Documents' ids", self.ids, "[batch, keys]", grid, grid.keys)
        if self.query_ids is not None:
            check_batch_tokens("Documents' query_ids", self.query_ids, "[batch, queries]", grid, grid.queries)
        elif grid.queries > grid.keys:
            raise BadInput(
                f"Documents has the ids of {grid.keys} keys; {grid.queries} queries need ids of their own: "
                "query_ids [batch, queries]."
            )

    def query_documents(self, grid: PairGrid) -> Tensor:
        return self.query_ids if self.query_ids is not None else self.ids[:, grid.offset :]

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.permits(i, j, PairGrid(0, 0))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        mine, theirs = self.query_documents(grid)[:, i - grid.offset], self.ids[:, j]
        return ((mine == theirs) & (theirs >= 0))[:, None]

    def tiles(self, tiling: Tiling) -> Tensor:
        mine, theirs = id_ranges(self.query_documents(tiling.grid), tiling.rows), id_ranges(self.ids, tiling.columns)
        q_least, q_most, q_holes = (tiling.select_rows(x)[:, None, :, None] for x in mine)
        k_least, k_most, k_holes = (tiling.select_columns(x)[:, None, None, :] for x in theirs)
        same = (q_least == q_most) & (k_least == k_most) & (q_least == k_least) & ~q_holes & ~k_holes
        return states_from(same, (q_most < k_least) | (k_most < q_least))


@dataclass(frozen=True, eq=False, repr=False)
class Pairs(Mask):
    """Any mask as a boolean tensor that broadcasts to `[batch, heads, queries, keys]`."""

    allowed: Tensor
    formula = "allowed[b, h, row(i), j]"

    @property
    def by_rows(self) -> bool:
        return True

    def __post_init__(self) -> None:
        check_boolean(
            self.allowed, "Pairs' allowed", (2, 3, 4), "boolean, broadcasting to [batch, heads, queries, keys]"
        )

    def check(self, grid: PairGrid) -> None:
        sizes = (grid.queries, grid.keys)
        if any(size not in (1, full) for size, full in zip(self.allowed.shape[-2:], sizes, strict=True)):
            raise BadInput(
                f"Pairs' allowed is {list(self.allowed.shape)}; it must broadcast to "
                f"{[grid.batch, grid.heads, *sizes]} (batch, heads, queries, keys)."
            )
        check_batch_heads("Pairs' allowed", self.allowed, grid)

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.permits(i, j, PairGrid(0, 0))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        pairs = add_batch_heads(self.allowed)
        row, column = i - grid.offset, j
        row = torch.zeros_like(row) if pairs.shape[-2] == 1 else row
        column = torch.zeros_like(column) if pairs.shape[-1] == 1 else column
        return pairs[..., row, column]

    def tiles(self, tiling: Tiling) -> Tensor:
        pairs = add_batch_heads(self.allowed)
        rows = tile_counts(pairs.expand(-1, -1, tiling.grid.queries, -1), tiling.rows, dim=-2)
        rows = tiling.select_rows(rows.mT).mT
        count = tiling.select_columns(tile_counts(rows.expand(*rows.shape[:3], tiling.grid.keys), tiling.columns))
        row_sizes, column_sizes = tile_sizes(tiling)
        return states_from(count == row_sizes * column_sizes, count == 0)

    def __repr__(self) -> str:
        return f"Pairs(<bool {list(self.allowed.shape)}>)"


def id_ranges(ids: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Least and greatest id of each run of `size` (negative ones aside), and whether it has negative ones."""
    ids = ids.long()
    ids = torch.cat([ids, ids[:, -1:].expand(-1, -ids.shape[1] % size)], dim=1).unflatten(1, (-1, size))
    low = torch.where(ids < 0, torch.iinfo(torch.int64).max, ids)
    return low.amin(-1), ids.clamp(min=-1).amax(-1), (ids < 0).any(-1)  # each [batch, runs]
