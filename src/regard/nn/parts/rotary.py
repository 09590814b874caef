"""Rotary position embeddings of a layer: q and k are rotated before the keys are cached."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...attention.execution import tensor_cache
from ...attention.parts.part import PartSpec
from ...attention.parts.positions import Position, Rotary
from ...attention.sharding import token_positions, whole_tokens

Layout = Literal["halves", "interleaved"]
"""Which coordinates are a pair: m and m + dim/2, or 2m and 2m + 1."""


@dataclass(frozen=True, eq=False, repr=False)
class RotarySpec(PartSpec, Position):
    """`Rotary` with frequencies of its own. Subclasses write `rates`; `magnitude` multiplies the rotated q and k."""

    base: float = 10000.0
    dim: int | None = None
    by_length = False
    """Whether the frequencies depend on the number of tokens."""

    @property
    def pairs(self) -> Layout:
        return "halves"

    @property
    def magnitude(self) -> float:
        return 1.0

    def rates(self, dim: int, tokens: int) -> tuple[float, ...]:
        """The dim / 2 frequencies for a text of so many tokens."""
        return default_rates(self.base, dim)

    def build(self, heads: int, head_dim: int, layer: int = 0) -> RotaryEmbedding:
        return RotaryEmbedding(head_dim, self)


def default_rates(base: float, dim: int) -> tuple[float, ...]:
    return tuple(base ** -(m / dim) for m in range(0, dim, 2))


@dataclass(frozen=True, eq=False, repr=False)
class ScaledRotary(RotarySpec):
    """`Rotary` with scaled frequencies, for contexts longer than those of training.

    `linear` divides every position. `factor`, `low`, `high` and `original` scale the low frequencies as Llama 3.1 does:
    a frequency with at least `high` periods in `original` tokens stays, one with at most `low` is divided by `factor`,
    those between are interpolated. `layout` says which coordinates are a pair.

    >>> ScaledRotary(base=500.0, linear=4.0)
    ScaledRotary(base=500.0, linear=4.0)
    """

    linear: float = 1.0
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    layout: Layout = "halves"

    @property
    def pairs(self) -> Layout:
        return self.layout

    def rates(self, dim: int, tokens: int) -> tuple[float, ...]:
        return tuple(self.scale(rate / self.linear) for rate in default_rates(self.base, dim))

    def scale(self, rate: float) -> float:
        """Llama 3.1's scaling of one frequency."""
        periods = self.original * rate / (2 * math.pi)
        weight = min(max((periods - self.low) / (self.high - self.low), 0.0), 1.0)
        return rate * (weight + (1 - weight) / self.factor)


@dataclass(frozen=True, eq=False, repr=False)
class YarnRotary(RotarySpec):
    """YaRN (Peng et al. 2023): pairs that turn more than `fast` times in `original` tokens stay as they are, those that
    turn less than `slow` times are divided by `factor`, and the pairs between are interpolated by their number.

    `scale` multiplies q and k; None is the paper's 0.1 ln(factor) + 1. `truncate` rounds the ends of the range to whole
    pairs.
    """

    factor: float = 1.0
    original: int = 4096
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True
    scale: float | None = None
    layout: Layout = "halves"

    @property
    def pairs(self) -> Layout:
        return self.layout

    @property
    def magnitude(self) -> float:
        if self.scale is not None:
            return self.scale
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def rates(self, dim: int, tokens: int) -> tuple[float, ...]:
        def pair_of(turns: float) -> float:
            return dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        first, last = pair_of(self.fast), pair_of(self.slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        width = last - first or 0.001
        weights = [1 - min(max((m - first) / width, 0.0), 1.0) for m in range(dim // 2)]
        every = zip(default_rates(self.base, dim), weights, strict=True)
        return tuple(rate * (weight + (1 - weight) / self.factor) for rate, weight in every)


@dataclass(frozen=True, eq=False, repr=False)
class DynamicRotary(RotarySpec):
    """NTK-aware scaling by length: a text of n > `original` tokens takes the base times
    (factor·n/original − factor + 1)^(dim/(dim − 2))."""

    factor: float = 1.0
    original: int = 2048
    by_length = True

    def rates(self, dim: int, tokens: int) -> tuple[float, ...]:
        longer = self.factor * max(tokens, self.original) / self.original - (self.factor - 1)
        return default_rates(self.base * longer ** (dim / (dim - 2)), dim)


@dataclass(frozen=True, eq=False, repr=False)
class LongRotary(RotarySpec):
    """LongRoPE (Ding et al. 2024): each frequency is divided by a number of its own, of `short` for texts of at most
    `original` tokens, of `long` for longer ones. `scale` multiplies q and k."""

    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    original: int = 4096
    scale: float = 1.0
    by_length = True

    @property
    def magnitude(self) -> float:
        return self.scale

    def rates(self, dim: int, tokens: int) -> tuple[float, ...]:
        divisors = self.long if tokens > self.original else self.short
        return tuple(rate / by for rate, by in zip(default_rates(self.base, dim), divisors, strict=True))


class RotaryAngles:
    """Cosines and sines of the positions of one call, `[tokens, dim / 2]` each; every layer rotates q and k by them."""

    def __init__(self, cos: Tensor, sin: Tensor, layout: Layout = "halves") -> None:
        self.cos, self.sin, self.layout = cos, sin, layout

    def __call__(self, x: Tensor) -> Tensor:
        """x `[batch, heads, tokens, head_dim]`, rotated."""
        half = self.cos.shape[-1]
        cos, sin = self.cos.to(x.device), self.sin.to(x.device)
        if self.layout == "halves":
            a, b = x[..., :half].to(cos.dtype), x[..., half : 2 * half].to(cos.dtype)
            rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
        else:
            a, b = x[..., 0 : 2 * half : 2].to(cos.dtype), x[..., 1 : 2 * half : 2].to(cos.dtype)
            rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x.dtype)
        rest = x[..., 2 * half :]
        return torch.cat([rotated, rest], dim=-1) if rest.shape[-1] else rotated


class RotaryEmbedding(nn.Module):
    """Computes the angles of `Rotary` or of a `RotarySpec`. A cache then holds rotated keys."""

    def __init__(self, head_dim: int, rotary: Rotary | RotarySpec) -> None:
        super().__init__()
        self.rotary = rotary
        self.spec = ScaledRotary(rotary.base, rotary.dim) if isinstance(rotary, Rotary) else rotary
        self.dim = self.spec.dim or head_dim
        Rotary(self.spec.base, self.dim)  # raises for a base or a dim that cannot be
        self.rates = self.spec.rates(self.dim, 0)

    def angles(self, start: int, tokens: int, device: torch.device, dtype: torch.dtype) -> RotaryAngles:
        """The angles of the positions from `start` on."""
        positions = token_positions(tokens, start, device)
        rates = self.spec.rates(self.dim, start + whole_tokens(tokens)) if self.spec.by_length else self.rates
        angle = positions.to(torch.float64)[:, None] * rates_on(rates, device)  # [tokens, dim / 2]
        exact, magnitude = torch.promote_types(dtype, torch.float32), self.spec.magnitude
        cos, sin = angle.cos(), angle.sin()
        if magnitude != 1.0:
            cos, sin = cos * magnitude, sin * magnitude
        return RotaryAngles(cos.to(exact), sin.to(exact), self.spec.pairs)

    def extra_repr(self) -> str:
        return repr(self.rotary)


@tensor_cache
def rates_on(rates: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(rates, dtype=torch.float64, device=device)
