"""What every position has: the forms that kernels take, the base class, and lookups by distance.

Distances are i − j, looked up at distance + zero in a table whose nearest end serves distances beyond it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ....errors import BadInput
from ..mask import PairGrid, PlacePair
from ..part import Part


class DistanceBias(NamedTuple):
    """A bias per head and distance: `table [heads, n]`, read at clamp(i − j + zero).

    With `slopes [heads]` it is −slope·|i − j| throughout, which a kernel may compute instead of reading; at explicit
    places it must, for the table is not there.
    """

    table: Tensor
    zero: int
    slopes: Tensor | None = None


class RelativeVectors(NamedTuple):
    """A vector per head and distance: scale · queries·table[clamp(i − j + zero)], `table [heads, n, d]`."""

    queries: Tensor
    table: Tensor
    zero: int


class KeyVectors(NamedTuple):
    """A vector per head and distance for keys: scale · k·table[clamp(i − j + zero)], `table [heads, n, d]`."""

    table: Tensor
    zero: int


class Position(Part):
    """What the distance adds to a score.

    `dot_only` positions are part of a dot product. Those that `transforms` change q or k before it; the result stays in
    float32 at least, unless the position `keeps_dtype`. `score_scale` multiplies the whole product.
    Those that `rotates` turn q and k beforehand and add nothing. Those with `exact_inputs` use q or k twice, so that
    the sum of two gradients is rounded once.
    """

    dot_only = False
    transforms = False
    keeps_dtype = False
    rotates = False
    exact_inputs = False

    @property
    def by_rows(self) -> bool:
        """Whether the position has something for each row of keys, so that none may be cut off."""
        return False

    @property
    def score_scale(self) -> float:
        return 1.0

    @property
    def multiplies_keys(self) -> bool:
        """Whether the position has `key_vectors`."""
        return False

    def check(self, q: Tensor, k: Tensor) -> None:
        """Raise `BadInput` when these queries and keys do not fit."""

    def tensors(self) -> dict[str, Tensor]:
        """The part's tensors, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def tables(self) -> list[Tensor]:
        """The tables by distance that may be learned, `[heads, entries, ...]`."""
        return []

    def score_bias(self, q: Tensor, k: Tensor, scale: float, distance: Tensor) -> Tensor | float:
        """What is added to the scores, from untransformed q and k; `distance` is i − j, `[queries, keys]`."""
        return 0.0

    def vector_scores(self, q: Tensor, k: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor | float:
        """What vectors by distance add to q·k before the scale. They are read in a type, that of the call's q and k."""
        return 0.0

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q and k as the dot product should see them."""
        return q, k

    def transform_at(self, q: Tensor, k: Tensor, places: PlacePair) -> tuple[Tensor, Tensor]:
        """`transform` at explicit places."""
        return self.transform(q, k)

    def exact_in(self, dtype: torch.dtype, grid: PairGrid) -> bool:
        """Whether the type represents exactly what is added to the scores of a call of these sizes."""
        return False

    def rel_bias(self, q: Tensor, k: Tensor) -> DistanceBias | None:
        """The bias by distance; None for other positions."""
        return None

    def rel_bias_at(self, q: Tensor, k: Tensor, places: PlacePair) -> DistanceBias | None:
        """`rel_bias` with a table for the distances of explicit places."""
        return self.rel_bias(q, k)

    def rel_vectors(self, q: Tensor, k: Tensor, dtype: torch.dtype) -> RelativeVectors | None:
        """The relative queries and the vectors by distance, read in a type; None for other positions."""
        return None

    def key_vectors(self, q: Tensor, k: Tensor, dtype: torch.dtype) -> KeyVectors | None:
        """The vectors by distance that keys are multiplied with, read in a type; None for other positions."""
        return None

    def count_vectors(self, q: Tensor, k: Tensor) -> int:
        """How many products with vectors by distance a score has."""
        return sum(vectors(q, k, q.dtype) is not None for vectors in (self.rel_vectors, self.key_vectors))


def all_distances(q: Tensor, k: Tensor) -> tuple[Tensor, int]:
    """Every distance i − j of a call, smallest first, and the index of distance 0 among them."""
    queries, keys = q.shape[-2], k.shape[-2]
    return torch.arange(1 - queries, keys, device=q.device), queries - 1


def distances_at(places: PlacePair) -> tuple[Tensor, int]:
    """Every distance from the least to the greatest between explicit places, and the index of 0 (perhaps beyond)."""
    queries, keys = places
    least, most = int(queries.min() - keys.max()), int(queries.max() - keys.min())
    return torch.arange(least, most + 1, device=queries.device), -least


def read_as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x rounded to a type, as a product reads it; it keeps a wider one of its own, in which gradients are summed."""
    return x if x.dtype == dtype else x.to(dtype).to(torch.promote_types(x.dtype, dtype))


def gather_by_distance(q: Tensor, table: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """q_i · table[head, clamp(index[i, j])] for every pair, both read in a type, `[batch, heads, queries, keys]`."""
    q, table = read_as(q, dtype), read_as(table, dtype).to(q.dtype)
    every = q @ table.mT  # [batch, heads, queries, n]
    index = index.clamp(0, table.shape[1] - 1)
    return every.gather(-1, index.expand(*every.shape[:2], *index.shape[-2:]))


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """table[head, index] for every pair: index `[queries, keys]` → `[heads, ...]`, or `[batch, 1, ...]` → all four."""
    return table[:, index] if index.dim() == 2 else table[:, index[:, 0]].transpose(0, 1)


def check_heads(name: str, value: Tensor, q: Tensor) -> None:
    if value.shape[0] != q.shape[1]:
        raise BadInput(
            f"{name} is {list(value.shape)}; q {list(q.shape)} has {q.shape[1]} heads. Its first size must be the "
            "heads (expand a shared table: table.expand(heads, ...))."
        )


def check_dim(name: str, value: Tensor, q: Tensor) -> None:
    if value.shape[-1] != q.shape[-1]:
        raise BadInput(f"{name} is {list(value.shape)}; its last size must be q's head_dim, {q.shape[-1]}.")


def check_entries(name: str, table: Tensor, zero: int) -> None:
    if not isinstance(zero, int):
        raise BadInput(f"{name}: zero is {zero!r}; it must be a whole number, the index of distance 0 in the table.")
    if table.shape[1] == 0:
        raise BadInput(f"{name} is {list(table.shape)}; it must have at least one distance.")
