"""Frames of sound as a stack's tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import BadInput
from ..nn.embeddings.audio import SoundConvolutions, SoundFrames, strided_lengths
from ..nn.embeddings.text import SinusoidalPositions


@dataclass(frozen=True)
class SoundEmbeddingConfig:
    """Frames `[batch, frames, bins]` as fewer vectors, with their places, then a norm and dropout if asked.

    `stack` frames beside each other become one token; None takes Whisper's two convolutions, which halve the frames.
    `places` "sinusoidal" computes them; a number is how many tokens there may be, whose places are kept with the
    weights as Whisper keeps them; None adds none.
    """

    bins: int
    dim: int
    stack: int | None = 4
    places: int | Literal["sinusoidal"] | None = None
    norm: float | None = None
    dropout: float = 0.0

    def build(self) -> SoundEmbedding:
        return SoundEmbedding(self)


class StoredSinusoids(nn.Module):
    """A table of sin and cos of place · 10000^(−m/(dim/2 − 1)), all sines first: not learned, but kept."""

    table: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        rate = torch.exp(-math.log(10000.0) / (dim // 2 - 1) * torch.arange(dim // 2))
        angle = torch.arange(size)[:, None] * rate  # [size, dim / 2]
        self.register_buffer("table", torch.cat([angle.sin(), angle.cos()], dim=1))

    def forward(self, places: Tensor) -> Tensor:
        if places.shape[0] > (size := self.table.shape[0]):
            raise BadInput(f"The sound has {places.shape[0]} tokens; this model has {size} places. Cut it into pieces.")
        return self.table[places]


class SoundEmbedding(nn.Module):
    """See `Sound`. `(sound [batch, frames, bins], lengths [batch] or None)` → `[batch, tokens, dim]`."""

    reads = "sound"

    def __init__(self, config: SoundEmbeddingConfig) -> None:
        super().__init__()
        bins, dim = config.bins, config.dim
        self.stride = config.stack or 2
        self.frames = SoundFrames(bins, dim, config.stack) if config.stack else SoundConvolutions(bins, dim)
        self.places = places_of(config)
        self.norm = nn.LayerNorm(dim, eps=config.norm) if config.norm is not None else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, sound: Tensor, lengths: Tensor | None = None) -> Tensor:
        x, _ = self.frames(sound, lengths)
        if self.places is not None:
            x = x + self.places(torch.arange(x.shape[1], device=x.device)).to(x.dtype)
        return self.dropout(x if self.norm is None else self.norm(x))

    def lengths_after(self, lengths: Tensor) -> Tensor | None:
        """How many tokens so many frames become."""
        return strided_lengths(lengths, self.stride)


def places_of(config: SoundEmbeddingConfig) -> nn.Module | None:
    if isinstance(config.places, int):
        return StoredSinusoids(config.places, config.dim)
    return None if config.places is None else SinusoidalPositions(config.dim)
