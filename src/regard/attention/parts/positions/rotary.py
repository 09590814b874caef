"""Rotary positions: q and k are rotated before the scores, by one number or by several coordinates of each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ....errors import BadInput
from ...execution import tensor_cache
from ..mask import PlacePair
from ..part import check_count, check_tensor
from .position import Position


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
