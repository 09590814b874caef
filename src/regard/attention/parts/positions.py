"""Positions: what the distance between a query and a key adds to their score.

Every relative position reduces to one of two forms, which are all that kernels take: a bias per head and distance
(`DistanceBias`), and a vector per head and distance that the query is multiplied with (`RelativeVectors`). `Rotary`
rotates q and k before the scores. `score_bias` is the definition over every pair, used by the reference; `rel_bias`,
`rel_vectors` and `transform` give the form that kernels take.

Distances are i − j, looked up at distance + zero in a table whose nearest end serves distances beyond it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import BadInput
from ..execution import tensor_cache
from .part import Part, check_count, check_tensor


class DistanceBias(NamedTuple):
    """A bias per head and distance: `table [heads, n]`, read at clamp(i − j + zero).

    With `slopes [heads]` it is −slope·|i − j| throughout, which a kernel may compute instead of reading.
    """

    table: Tensor
    zero: int
    slopes: Tensor | None = None


class RelativeVectors(NamedTuple):
    """A vector per head and distance: scale · queries·table[clamp(i − j + zero)], `table [heads, n, d]`."""

    queries: Tensor
    table: Tensor
    zero: int


class Position(Part):
    """What the distance adds to a score.

    `dot_only` positions are part of a dot product. Those that `transforms` change q or k before it; the result stays in
    float32 at least, unless the position `keeps_dtype`.
    """

    dot_only = False
    transforms = False
    keeps_dtype = False

    def check(self, q: Tensor, k: Tensor) -> None:
        """Raise `BadInput` when these queries and keys do not fit."""

    def tensors(self) -> dict[str, Tensor]:
        """The part's tensors, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def score_bias(self, q: Tensor, k: Tensor, scale: float, distance: Tensor) -> Tensor | float:
        """What is added to the scores, from untransformed q and k; `distance` is i − j, `[queries, keys]`."""
        return 0.0

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q and k as the dot product should see them."""
        return q, k

    def rel_bias(self, q: Tensor, k: Tensor) -> DistanceBias | None:
        """The bias by distance; None for other positions."""
        return None

    def rel_vectors(self, q: Tensor, k: Tensor) -> RelativeVectors | None:
        """The relative queries and the vectors by distance; None for other positions."""
        return None


@dataclass(frozen=True, eq=False, repr=False)
class Rotary(Position):
    """Rotates pairs of coordinates of q by i·θ and of k by j·θ, so that q·k depends on i − j (halves layout).

    θ_m = base^(−2m/dim) for the first `dim` coordinates (all of them unless given); the rest are left alone. Angles
    are exact, and the rotated q and k are rounded to their type again.
    """

    base: float = 10000.0
    dim: int | None = None
    formula = "q·k → (R_i q)·(R_j k)"
    dot_only = transforms = keeps_dtype = True

    def __post_init__(self) -> None:
        if not self.base > 0:
            raise BadInput(f"Rotary's base is {self.base!r}; it must be a positive number.")
        if self.dim is not None and (self.dim < 2 or self.dim % 2):
            raise BadInput(f"Rotary's dim is {self.dim!r}; it must be an even number of at least 2.")

    def check(self, q: Tensor, k: Tensor) -> None:
        dim = self.dim or q.shape[-1]
        if dim % 2 or dim > q.shape[-1]:
            raise BadInput(
                f"Rotary rotates pairs of coordinates: head_dim is {q.shape[-1]}, of which it was to rotate {dim}. "
                "Use an even head_dim, or give an even dim that fits: Rotary(dim=...)."
            )

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotate(q, k.shape[-2] - q.shape[-2]), self.rotate(k, 0)

    def rotate(self, x: Tensor, first: int) -> Tensor:
        """x `[..., tokens, d]` rotated by the positions first, first + 1, …"""
        dim = self.dim or x.shape[-1]
        exact = torch.promote_types(x.dtype, torch.float32)
        cos, sin = rotations(self.base, dim, first, x.shape[-2], exact, x.device)
        a, b, rest = x[..., : dim // 2].to(exact), x[..., dim // 2 : dim].to(exact), x[..., dim:]
        return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], dim=-1)


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

    def check(self, q: Tensor, k: Tensor) -> None:
        check_heads("Bias's table", self.table, q)

    def score_bias(self, q: Tensor, k: Tensor, scale: float, distance: Tensor) -> Tensor:
        return self.table.to(q.dtype)[:, (distance + self.zero).clamp(0, self.table.shape[1] - 1)]

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

    def check(self, q: Tensor, k: Tensor) -> None:
        check_heads("T5Bias's table", self.table, q)

    def score_bias(self, q: Tensor, k: Tensor, scale: float, distance: Tensor) -> Tensor:
        return self.table.to(q.dtype)[:, self.bucket(-distance)]

    def rel_bias(self, q: Tensor, k: Tensor) -> DistanceBias:
        distance, zero = all_distances(q, k)
        return DistanceBias(self.table.to(torch.promote_types(q.dtype, torch.float32))[:, self.bucket(-distance)], zero)

    def bucket(self, relative: Tensor) -> Tensor:
        """T5's bucket of j − i."""
        buckets = self.table.shape[1]
        start = torch.zeros_like(relative)
        if self.bidirectional:
            buckets //= 2
            start = (relative > 0).long() * buckets
            far = relative.abs()
        else:
            far = (-relative).clamp(min=0)
        exact = buckets // 2
        ratio = torch.log(far.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        wide = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
        return start + torch.where(far < exact, far, wide)


@dataclass(frozen=True, eq=False, repr=False)
class Shaw(Position):
    """scale · q·keys[head, i − j + zero]: a vector by distance beside the key; `keys` is `[heads, n, d]`."""

    keys: Tensor
    zero: int = 0
    formula = "scale · q·keys[i − j + zero]"
    dot_only = True

    def __post_init__(self) -> None:
        check_tensor(self.keys, "Shaw's keys", (3,), "[heads, n, d]")
        check_entries("Shaw's keys", self.keys, self.zero)

    def check(self, q: Tensor, k: Tensor) -> None:
        check_heads("Shaw's keys", self.keys, q)
        check_dim("Shaw's keys", self.keys, q)

    def score_bias(self, q: Tensor, k: Tensor, scale: float, distance: Tensor) -> Tensor:
        return scale * gather_by_distance(q, self.keys.to(q.dtype), distance + self.zero)

    def rel_vectors(self, q: Tensor, k: Tensor) -> RelativeVectors:
        return RelativeVectors(q, self.keys.to(torch.promote_types(q.dtype, self.keys.dtype)), self.zero)


@dataclass(frozen=True, eq=False, repr=False)
class TransformerXL(Position):
    """scale · ((q + content_bias)·k + (q + position_bias)·embedding[i − j + zero]).

    `embedding [heads, n, d]`, the biases (the paper's u and v) `[heads, d]`.
    """

    embedding: Tensor
    content_bias: Tensor
    position_bias: Tensor
    zero: int = 0
    formula = "scale · ((q + u)·k + (q + v)·embedding[i − j + zero])"
    dot_only = transforms = True

    def __post_init__(self) -> None:
        check_tensor(self.embedding, "TransformerXL's embedding", (3,), "[heads, n, d]")
        check_tensor(self.content_bias, "TransformerXL's content_bias", (2,), "[heads, d]")
        check_tensor(self.position_bias, "TransformerXL's position_bias", (2,), "[heads, d]")
        check_entries("TransformerXL's embedding", self.embedding, self.zero)

    def check(self, q: Tensor, k: Tensor) -> None:
        for name, value in self.tensors().items():
            check_heads(f"TransformerXL's {name}", value, q)
            check_dim(f"TransformerXL's {name}", value, q)

    def score_bias(self, q: Tensor, k: Tensor, scale: float, distance: Tensor) -> Tensor:
        rel_q = q + self.position_bias.to(q.dtype)[:, None]  # [batch, heads, queries, d]
        return scale * gather_by_distance(rel_q, self.embedding.to(q.dtype), distance + self.zero)

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q + self.content_bias.to(q.dtype)[:, None], k

    def rel_vectors(self, q: Tensor, k: Tensor) -> RelativeVectors:
        return RelativeVectors(q + self.position_bias.to(q.dtype)[:, None], self.embedding.to(q.dtype), self.zero)


@tensor_cache
def rotations(
    base: float, dim: int, first: int, tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Rotary's cosines and sines at the positions first, first + 1, …, `[tokens, dim / 2]` each."""
    steps = torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim
    position = torch.arange(first, first + tokens, device=device).to(torch.float64)
    angle = position[:, None] * base**-steps
    return angle.cos().to(dtype), angle.sin().to(dtype)


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


def all_distances(q: Tensor, k: Tensor) -> tuple[Tensor, int]:
    """Every distance i − j of a call, smallest first, and the index of distance 0 among them."""
    queries, keys = q.shape[-2], k.shape[-2]
    return torch.arange(1 - queries, keys, device=q.device), queries - 1


def gather_by_distance(q: Tensor, table: Tensor, index: Tensor) -> Tensor:
    """q_i · table[head, clamp(index[i, j])] for every pair, `[batch, heads, queries, keys]`."""
    every = q @ table.mT  # [batch, heads, queries, n]
    index = index.clamp(0, table.shape[1] - 1)
    return every.gather(-1, index.expand(*every.shape[:2], *index.shape))


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
