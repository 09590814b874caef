"""Positions: what the distance between a query and a key adds to their score.

Every relative position reduces to a few forms, which are all that kernels take: a bias per head and distance
(`DistanceBias`), and a vector per head and distance that the query (`RelativeVectors`) or the key (`KeyVectors`) is
multiplied with. `Rotary` rotates q and k before the scores. `score_bias` is the definition over every pair, used by the
reference; `rel_bias`, `rel_vectors`, `key_vectors` and `transform` give the form that kernels take.

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
from .mask import PlacePair
from .part import Part, check_count, check_tensor


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

    def score_bias(self, q: Tensor, k: Tensor, scale: float, distance: Tensor) -> Tensor | float:
        """What is added to the scores, from untransformed q and k; `distance` is i − j, `[queries, keys]`."""
        return 0.0

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q and k as the dot product should see them."""
        return q, k

    def transform_at(self, q: Tensor, k: Tensor, places: PlacePair) -> tuple[Tensor, Tensor]:
        """`transform` at explicit places."""
        return self.transform(q, k)

    def rel_bias(self, q: Tensor, k: Tensor) -> DistanceBias | None:
        """The bias by distance; None for other positions."""
        return None

    def rel_bias_at(self, q: Tensor, k: Tensor, places: PlacePair) -> DistanceBias | None:
        """`rel_bias` with a table for the distances of explicit places."""
        return self.rel_bias(q, k)

    def rel_vectors(self, q: Tensor, k: Tensor) -> RelativeVectors | None:
        """The relative queries and the vectors by distance; None for other positions."""
        return None

    def key_vectors(self, q: Tensor, k: Tensor) -> KeyVectors | None:
        """The vectors by distance that keys are multiplied with; None for other positions."""
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
    dot_only = transforms = keeps_dtype = rotates = True

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

    def transform_at(self, q: Tensor, k: Tensor, places: PlacePair) -> tuple[Tensor, Tensor]:
        q_angles, k_angles = (self.angles_at(x, place) for x, place in zip((q, k), places, strict=True))
        return rotate_pairs(q, *q_angles), rotate_pairs(k, *k_angles)

    def angles_at(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines at places `[batch or 1, tokens]`, `[batch or 1, 1, tokens, dim / 2]` each."""
        exact, dim = torch.promote_types(x.dtype, torch.float32), self.dim or x.shape[-1]
        angle = places[:, None, :, None].to(torch.float64) * frequencies(self.base, dim, x.device)
        return angle.cos().to(exact), angle.sin().to(exact)

    def rotate(self, x: Tensor, first: int) -> Tensor:
        """x `[..., tokens, d]` rotated by the positions first, first + 1, …"""
        dim = self.dim or x.shape[-1]
        exact = torch.promote_types(x.dtype, torch.float32)
        return rotate_pairs(x, *rotations(self.base, dim, first, x.shape[-2], exact, x.device))


@dataclass(frozen=True, eq=False, repr=False)
class AxialRotary(Position):
    """`Rotary` over several axes: each pair of coordinates of q and k turns by where its token is on one of them.

    `keys` has the coordinates of the keys, `[tokens, axes]` or `[batch or 1, tokens, axes]`, or is the sizes of a grid
    whose cells are the keys, row by row: `(14, 14)`. Without `queries`, those are the last of the keys.
    Vision transformers give every axis dim / 2 / axes pairs, with θ_m = base^(−2m·axes/dim). With `sections`, the
    number of pairs of each axis, pair m has θ_m = base^(−2m/dim), as in the M-RoPE of Qwen2-VL; they are `interleaved`
    if pairs take the axes in turn, as in Qwen3-VL. A token at 0 on all axes (a class token, say) is left as it is.

    >>> import torch, regard as rg
    >>> x = torch.randn(1, 2, 6, 8)                                   # an image of 2 × 3 patches
    >>> rg.attend(x, x, x, position=rg.AxialRotary((2, 3))).shape
    torch.Size([1, 2, 6, 8])
    """

    keys: Tensor | tuple[int, ...]
    queries: Tensor | None = None
    base: float = 10000.0
    dim: int | None = None
    sections: tuple[int, ...] | None = None
    interleaved: bool = False
    formula = "q·k → (R_{x(i)} q)·(R_{x(j)} k)"
    dot_only = transforms = keeps_dtype = rotates = True

    def __post_init__(self) -> None:
        Rotary(self.base, self.dim)  # raises for a base or a dim that cannot be
        if isinstance(self.keys, tuple | list):
            object.__setattr__(self, "keys", tuple(self.keys))
            for size in self.keys:
                check_count(size, "a size of AxialRotary's grid", 1)
        else:
            check_tensor(self.keys, "AxialRotary's keys", (2, 3), "[tokens, axes] or [batch, tokens, axes]", False)
        if self.queries is not None:
            check_tensor(
                self.queries, "AxialRotary's queries", (2, 3), "[tokens, axes] or [batch, tokens, axes]", False
            )
            if self.queries.shape[-1] != self.axes:
                raise BadInput(f"AxialRotary's queries are {list(self.queries.shape)}; its keys have {self.axes} axes.")
        if self.sections is not None:
            object.__setattr__(self, "sections", tuple(self.sections))
            if len(self.sections) != self.axes or min(self.sections) < 0:
                raise BadInput(
                    f"AxialRotary's sections are {self.sections}; give the number of pairs of each of {self.axes} axes."
                )
        elif self.interleaved:
            raise BadInput("AxialRotary interleaves the pairs of sections; give sections=(...), or leave it out.")

    @property
    def axes(self) -> int:
        return self.keys.shape[-1] if isinstance(self.keys, Tensor) else len(self.keys)

    @property
    def by_rows(self) -> bool:
        return True

    def check(self, q: Tensor, k: Tensor) -> None:
        dim = self.dim or q.shape[-1]
        if dim > q.shape[-1] or dim % 2 or (self.sections is None and dim % (2 * self.axes)):
            raise BadInput(
                f"AxialRotary has {self.axes} axes and was to rotate {dim} of {q.shape[-1]} coordinates. Axes "
                f"share them in pairs: give a dim that fits and is a multiple of {2 * self.axes}, or sections."
            )
        if self.sections is not None and sum(self.sections) != dim // 2:
            raise BadInput(f"AxialRotary's sections {self.sections} have {sum(self.sections)} pairs; {dim // 2} turn.")
        pair = (("queries", self.queries, q), ("keys", self.coordinates(k.device), k))
        for name, value, x in pair:
            if value is None:
                continue
            batch, tokens = (1, *value.shape)[-3:-1]
            if batch not in (1, x.shape[0]) or tokens != x.shape[2]:
                raise BadInput(
                    f"AxialRotary's {name} have coordinates of {tokens} tokens of {batch} rows; there are "
                    f"{x.shape[2]} {name} of {x.shape[0]} rows."
                )
        if self.queries is None and q.shape[2] > k.shape[2]:
            raise BadInput(
                f"AxialRotary has the coordinates of {k.shape[2]} keys; {q.shape[2]} queries need their own: queries=."
            )

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        keys = self.coordinates(k.device)
        queries = keys[..., k.shape[2] - q.shape[2] :, :] if self.queries is None else self.queries
        return rotate_pairs(q, *self.angles(q, queries)), rotate_pairs(k, *self.angles(k, keys))

    def coordinates(self, device: torch.device) -> Tensor:
        """The coordinates of the keys, `[..., tokens, axes]`."""
        return self.keys if isinstance(self.keys, Tensor) else grid_cells(self.keys, device)

    def angles(self, x: Tensor, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of every pair, `[batch or 1, 1, tokens, dim / 2]` each."""
        exact, dim = torch.promote_types(x.dtype, torch.float32), self.dim or x.shape[-1]
        axis, rates = axial_pairs(self.axes, self.base, dim, self.sections, self.interleaved, x.device)
        by_batch = coordinates.reshape(-1, 1, *coordinates.shape[-2:])  # [batch or 1, 1, tokens, axes]
        angle = by_batch[..., axis].to(torch.float64) * rates
        return angle.cos().to(exact), angle.sin().to(exact)


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

    def check(self, q: Tensor, k: Tensor) -> None:
        check_heads("Bias's table", self.table, q)

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

    def check(self, q: Tensor, k: Tensor) -> None:
        check_heads("T5Bias's table", self.table, q)

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


@tensor_cache
def rotations(
    base: float, dim: int, first: int, tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Rotary's cosines and sines at the positions first, first + 1, …, `[tokens, dim / 2]` each."""
    position = torch.arange(first, first + tokens, device=device).to(torch.float64)
    angle = position[:, None] * frequencies(base, dim, device)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x `[..., tokens, d]` with its first pairs (m and m + dim / 2) rotated by angles with these cosines and sines."""
    half, exact = cos.shape[-1], cos.dtype
    a, b, rest = x[..., :half].to(exact), x[..., half : 2 * half].to(exact), x[..., 2 * half :]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], dim=-1)


@tensor_cache
def grid_cells(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """The coordinates of a grid's cells, the last axis first to move, `[cells, axes]`."""
    return torch.cartesian_prod(*(torch.arange(size, device=device) for size in sizes)).view(-1, len(sizes))


@tensor_cache
def axial_pairs(
    axes: int, base: float, dim: int, sections: tuple[int, ...] | None, interleaved: bool, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The axis of each pair and its frequency, `[dim / 2]` each."""
    pairs = dim // 2
    if sections is None:
        own = pairs // axes
        return torch.arange(pairs, device=device) // own, frequencies(base, 2 * own, device).repeat(axes)
    if interleaved:
        axis = [m % axes if m < axes * sections[m % axes] else 0 for m in range(pairs)]
    else:
        axis = [n for n, count in enumerate(sections) for _ in range(count)]
    return torch.tensor(axis, device=device), frequencies(base, dim, device)


def frequencies(base: float, dim: int, device: torch.device) -> Tensor:
    """Rotary's angle of one step of each pair of coordinates, `[dim / 2]`."""
    return base ** -(torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim)


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
    return every.gather(-1, index.expand(*every.shape[:2], *index.shape[-2:]))


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """table[head, index] for every pair: index `[queries, keys]` → `[heads, ...]`, or `[batch, 1, ...]` → all four."""
    return table[:, index] if index.dim() == 2 else table[:, index[:, 0]].transpose(0, 1)


def distances_at(places: PlacePair) -> tuple[Tensor, int]:
    """Every distance from the least to the greatest between explicit places, and the index of 0 (perhaps beyond)."""
    queries, keys = places
    least, most = int(queries.min() - keys.max()), int(queries.max() - keys.min())
    return torch.arange(least, most + 1, device=queries.device), -least


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
