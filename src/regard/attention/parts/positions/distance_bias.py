"""Biases by distance: ALiBi's slopes, any table, and T5's buckets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ....errors import BadInput
from ...execution import tensor_cache
from ..mask import PairGrid, PlacePair
from ..part import check_count, check_tensor
from .position import DistanceBias, Position, all_distances, check_entries, check_heads, distances_at, look_up


@dataclass(frozen=True, eq=False, repr=False)
class Alibi(Position):
    """−slope · |i − j|; slopes `[heads]` default to the paper's geometric ones."""

    slopes: Tensor | None = None
    formula = "−slope · |i − j|"

    def __post_init__(self) -> None:
        if self.slopes is not None:
            check_tensor(self.slopes, "Alibi's slopes", (1,), "[heads]")

    def check(self, q: Tensor, k: Tensor) -> None:
        if self.slopes is not None:
            check_heads("Alibi's slopes", self.slopes, q)

    def tables(self) -> list[Tensor]:
        return [] if self.slopes is None else [self.slopes[:, None]]  # of one number, which serves every distance

    def score_bias(self, q: Tensor, k: Tensor, scale: float, distance: Tensor) -> Tensor:
        return -self.head_slopes(q)[:, None, None] * distance.abs().to(q.dtype)

    def rel_bias(self, q: Tensor, k: Tensor) -> DistanceBias:
        exact = torch.promote_types(q.dtype, torch.float32)
        if self.slopes is None:
            return alibi_bias(q.shape[1], q.shape[2], k.shape[2], exact, q.device)
        slopes = self.slopes.to(exact)
        distance, zero = all_distances(q, k)
        computed = None if slopes.requires_grad else slopes  # a gradient goes through the table
        return DistanceBias(-slopes[:, None] * distance.abs().to(exact), zero, computed)

    def exact_in(self, dtype: torch.dtype, grid: PairGrid) -> bool:
        if self.slopes is not None or max(grid.queries, grid.keys) > 2.0 / torch.finfo(dtype).eps:
            return False
        # A slope that is a power of two leaves the digits of the distance as they are.
        return all(math.frexp(slope)[0] == 0.5 for slope in alibi_slopes(grid.heads))

    def rel_bias_at(self, q: Tensor, k: Tensor, places: PlacePair) -> DistanceBias:
        slopes = self.head_slopes(q)
        if not slopes.requires_grad:
            return DistanceBias(slopes.new_zeros(len(slopes), 1), 0, slopes)  # places may be as far apart as they like
        distance, zero = distances_at(places)
        return DistanceBias(-slopes[:, None] * distance.abs().to(slopes.dtype), zero)

    def head_slopes(self, q: Tensor) -> Tensor:
        dtype = torch.promote_types(q.dtype, torch.float32)
        if self.slopes is not None:
            return self.slopes.to(dtype)
        return torch.tensor(alibi_slopes(q.shape[1]), dtype=dtype, device=q.device)


@dataclass(frozen=True, eq=False, repr=False)
class Bias(Position):
    """table[head, i − j + zero]: any bias by distance, learned or not; `table` is `[heads, n]`."""

    table: Tensor
    zero: int = 0
    formula = "table[i − j + zero]"

    def __post_init__(self) -> None:
        check_tensor(self.table, "Bias's table", (2,), "[heads, n]")
        check_entries("Bias's table", self.table, self.zero)

    def tables(self) -> list[Tensor]:
        return [self.table]

    def check(self, q: Tensor, k: Tensor) -> None:
        check_heads("Bias's table", self.table, q)

    def exact_in(self, dtype: torch.dtype, grid: PairGrid) -> bool:
        return self.table.dtype == dtype

    def score_bias(self, q: Tensor, k: Tensor, scale: float, distance: Tensor) -> Tensor:
        return look_up(self.table.to(q.dtype), (distance + self.zero).clamp(0, self.table.shape[1] - 1))

    def rel_bias(self, q: Tensor, k: Tensor) -> DistanceBias:
        return DistanceBias(self.table.to(torch.promote_types(q.dtype, torch.float32)), self.zero)


@dataclass(frozen=True, eq=False, repr=False)
class T5Bias(Position):
    """table[head, bucket(j − i)] with T5's buckets: exact ones nearby, logarithmic ones up to `max_distance`."""

    table: Tensor
    bidirectional: bool = True
    max_distance: int = 128
    formula = "table[bucket(j − i)]"

    def __post_init__(self) -> None:
        check_tensor(self.table, "T5Bias's table", (2,), "[heads, buckets]")
        least = 4 if self.bidirectional else 2
        if self.table.shape[1] < least:
            raise BadInput(f"T5Bias's table is {list(self.table.shape)}; it needs at least {least} buckets.")
        check_count(self.max_distance, "T5Bias's max_distance", 1)
        one_side = self.table.shape[1] // 2 if self.bidirectional else self.table.shape[1]
        if self.max_distance <= one_side // 2:
            raise BadInput(
                f"T5Bias's max_distance is {self.max_distance}; with {self.table.shape[1]} buckets the exact ones "
                f"already reach {one_side // 2 - 1}. Give a larger max_distance, or fewer buckets."
            )

    def tables(self) -> list[Tensor]:
        return [self.table]

    def check(self, q: Tensor, k: Tensor) -> None:
        check_heads("T5Bias's table", self.table, q)

    def exact_in(self, dtype: torch.dtype, grid: PairGrid) -> bool:
        return self.table.dtype == dtype

    def score_bias(self, q: Tensor, k: Tensor, scale: float, distance: Tensor) -> Tensor:
        return look_up(self.table.to(q.dtype), self.bucket(-distance))

    def rel_bias(self, q: Tensor, k: Tensor) -> DistanceBias:
        sizes = (self.table.shape[1], self.bidirectional, self.max_distance)
        buckets = buckets_by_distance(*sizes, q.shape[2], k.shape[2], q.device)
        table = self.table.to(torch.promote_types(q.dtype, torch.float32))
        return DistanceBias(table[:, buckets], q.shape[2] - 1)

    def rel_bias_at(self, q: Tensor, k: Tensor, places: PlacePair) -> DistanceBias:
        sizes = (self.table.shape[1], self.bidirectional, self.max_distance)
        side = self.max_distance + 1  # beyond it all distances have the last bucket
        table = self.table.to(torch.promote_types(q.dtype, torch.float32))
        return DistanceBias(table[:, buckets_by_distance(*sizes, side, side, q.device)], self.max_distance)

    def bucket(self, relative: Tensor) -> Tensor:
        """T5's bucket of j − i."""
        return t5_bucket(relative, self.table.shape[1], self.bidirectional, self.max_distance)


def t5_bucket(relative: Tensor, buckets: int, bidirectional: bool, max_distance: int) -> Tensor:
    """T5's bucket of j − i."""
    start = torch.zeros_like(relative)
    if bidirectional:
        buckets //= 2
        start = (relative > 0).long() * buckets
        far = relative.abs()
    else:
        far = (-relative).clamp(min=0)
    exact = buckets // 2
    ratio = torch.log(far.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    wide = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return start + torch.where(far < exact, far, wide)


@tensor_cache
def buckets_by_distance(
    buckets: int, bidirectional: bool, max_distance: int, queries: int, keys: int, device: torch.device
) -> Tensor:
    """T5's buckets of every distance i − j of a call, from 1 − queries on."""
    distance = torch.arange(1 - queries, keys, device=device)
    return t5_bucket(-distance, buckets, bidirectional, max_distance)


def alibi_slopes(heads: int) -> list[float]:
    """The paper's slopes: 2^(−8h/heads) for a power of two, otherwise those and every other one of the next power."""
    power = 2 ** math.floor(math.log2(max(heads, 1)))
    slopes = [2.0 ** (-8.0 * (h + 1) / power) for h in range(power)]
    between = [2.0 ** (-8.0 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return (slopes + between)[:heads]


@tensor_cache
def alibi_bias(heads: int, queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> DistanceBias:
    """The paper's slopes at every distance of a call."""
    slopes = torch.tensor(alibi_slopes(heads), dtype=dtype, device=device)
    distance = torch.arange(1 - queries, keys, device=device)
    return DistanceBias(-slopes[:, None] * distance.abs().to(dtype), queries - 1, slopes)
