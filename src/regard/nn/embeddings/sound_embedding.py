"""The embedding of sound: frames of a spectrogram as a stack's tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ...errors import BadInput
from ..old_names import accept_old_names
from .audio import SoundConvolutions, SoundFrames, strided_lengths
from .embedding import Embedding, Input
from .text import SinusoidalPositions


@accept_old_names(places="positions")
@dataclass(frozen=True)
class SoundEmbeddingConfig:
    """Frames `[batch, frames, bins]` as fewer tokens, position embeddings, then a norm and dropout if given.

    `stack` successive frames become one token; None takes Whisper's two convolutions, which halve the frames.
    `positions="sinusoidal"` computes them; a number is the most tokens, for which a table of sinusoids is stored with
    the weights, as in Whisper; None adds none.
    """

    reads: ClassVar[Input] = "sound"
    bins: int
    dim: int
    stack: int | None = 4
    positions: int | Literal["sinusoidal"] | None = None
    norm: float | None = None
    dropout: float = 0.0

    @property
    def max_positions(self) -> int | None:
        """The number of learned positions; None where there is no limit."""
        return self.positions if isinstance(self.positions, int) else None

    def build(self) -> SoundEmbedding:
        return SoundEmbedding(self)


class StoredSinusoids(nn.Module):
    """A table of sin and cos of position · 10000^(−m/(dim/2 − 1)), all sines first, stored with the weights."""

    table: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        rate = torch.exp(-math.log(10000.0) / (dim // 2 - 1) * torch.arange(dim // 2))
        angle = torch.arange(size)[:, None] * rate  # [size, dim / 2]
        self.register_buffer("table", torch.cat([angle.sin(), angle.cos()], dim=1))

    def forward(self, positions: Tensor) -> Tensor:
        if positions.shape[0] > (size := self.table.shape[0]):
            raise BadInput(
                f"The sound has {positions.shape[0]} tokens; this model has {size} positions. Cut it into pieces."
            )
        return self.table[positions]


class SoundEmbedding(Embedding):
    """See `SoundEmbeddingConfig`. `(sound [batch, frames, bins], lengths [batch] or None)` → `[batch, tokens, dim]`."""

    reads = "sound"

    def __init__(self, config: SoundEmbeddingConfig) -> None:
        super().__init__()
        bins, dim = config.bins, config.dim
        self.stride = config.stack or 2
        self.frames = SoundFrames(bins, dim, config.stack) if config.stack else SoundConvolutions(bins, dim)
        self.places: nn.Module | None = None  # the name of these weights in checkpoints
        if isinstance(config.positions, int):
            self.places = StoredSinusoids(config.positions, dim)
        elif config.positions is not None:
            self.places = SinusoidalPositions(dim)
        self.norm = nn.LayerNorm(dim, eps=config.norm) if config.norm is not None else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, sound: Tensor, lengths: Tensor | None = None) -> Tensor:
        x, _ = self.frames(sound, lengths)
        if self.places is not None:
            x = x + self.places(torch.arange(x.shape[1], device=x.device)).to(x.dtype)
        return self.dropout(x if self.norm is None else self.norm(x))

    def lengths_after(self, lengths: Tensor) -> Tensor:
        """The number of tokens that so many frames become."""
        return strided_lengths(lengths, self.stride)
