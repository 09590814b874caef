"""Rotary position embeddings of a layer: q and k are rotated before the keys are cached."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...attention.execution import tensor_cache
from ...attention.parts.part import PartSpec
from ...attention.parts.positions import Position, Rotary


@dataclass(frozen=True, eq=False, repr=False)
class ScaledRotary(PartSpec, Position):
    """`Rotary` with scaled frequencies, for contexts longer than those of training.

    `linear` divides every position. `factor`, `low`, `high` and `original` scale the low frequencies as Llama 3.1 does:
    a frequency with at least `high` periods in `original` tokens stays, one with at most `low` is divided by `factor`,
    those between are interpolated.

    >>> ScaledRotary(base=500.0, linear=4.0)
    ScaledRotary(base=500.0, linear=4.0)
    """

    base: float = 10000.0
    dim: int | None = None
    linear: float = 1.0
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def build(self, heads: int, head_dim: int, layer: int = 0) -> RotaryEmbedding:
        return RotaryEmbedding(head_dim, self)


class RotaryAngles:
    """Cosines and sines of the positions of one call, `[tokens, dim / 2]` each; every layer rotates q and k by them."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = cos, sin

    def __call__(self, x: Tensor) -> Tensor:
        """x `[batch, heads, tokens, head_dim]`, rotated (halves layout)."""
        half = self.cos.shape[-1]
        cos, sin = self.cos.to(x.device), self.sin.to(x.device)
        a, b, rest = x[..., :half].to(cos.dtype), x[..., half : 2 * half].to(cos.dtype), x[..., 2 * half :]
        rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
        return torch.cat([rotated, rest], dim=-1) if rest.shape[-1] else rotated


class RotaryEmbedding(nn.Module):
    """Computes the angles of `Rotary` or `ScaledRotary`. A cache then holds rotated keys."""

    def __init__(self, head_dim: int, rotary: Rotary | ScaledRotary) -> None:
        super().__init__()
        self.rotary = rotary
        scaled = ScaledRotary(rotary.base, rotary.dim) if isinstance(rotary, Rotary) else rotary
        dim = scaled.dim or head_dim
        Rotary(scaled.base, dim)  # raises for a base or a dim that cannot be
        rates = [scaled.base ** -(m / dim) / scaled.linear for m in range(0, dim, 2)]
        self.rates = tuple(scale_rate(rate, scaled) for rate in rates)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> RotaryAngles:
        """The angles of `positions [tokens]`."""
        angle = positions.to(torch.float64)[:, None] * rates_on(self.rates, positions.device)  # [tokens, dim / 2]
        exact = torch.promote_types(dtype, torch.float32)
        return RotaryAngles(angle.cos().to(exact), angle.sin().to(exact))

    def extra_repr(self) -> str:
        return repr(self.rotary)


def scale_rate(rate: float, scaled: ScaledRotary) -> float:
    """Llama 3.1's scaling of one frequency."""
    periods = scaled.original * rate / (2 * math.pi)
    weight = min(max((periods - scaled.low) / (scaled.high - scaled.low), 0.0), 1.0)
    return rate * (weight + (1 - weight) / scaled.factor)


@tensor_cache
def rates_on(rates: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(rates, dtype=torch.float64, device=device)
