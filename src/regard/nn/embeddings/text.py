"""Text embeddings: token, position and segment embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ...attention.sharding import token_positions, whole_tokens
from ...errors import BadInput
from ..old_names import accept_old_names
from .embedding import Embedding, Input


def sinusoids(positions: Tensor, dim: int, *, layout: str = "interleaved", base: float = 10000.0) -> Tensor:
    """`[…, dim]`: sin and cos of position · base^(−2m/dim), interleaved or (`"halves"`) all sines first.

    >>> sinusoids(torch.tensor([0, 1]), 4).shape
    torch.Size([2, 4])
    """
    rate = base ** -(torch.arange(0, dim, 2, device=positions.device, dtype=torch.float64) / dim)
    angle = positions[..., None].to(torch.float64) * rate  # […, dim / 2 rounded up]
    if layout == "interleaved":
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :dim].float()
    return torch.cat([angle.sin(), angle.cos()[..., : dim // 2]], dim=-1).float()


class SinusoidalPositions(nn.Module):
    """Sinusoidal position embeddings, for any number of positions."""

    def __init__(self, dim: int, layout: str = "interleaved") -> None:
        super().__init__()
        self.dim, self.layout = dim, layout

    def forward(self, positions: Tensor) -> Tensor:
        return sinusoids(positions, self.dim, layout=self.layout)


class LearnedPositions(nn.Module):
    """Learned position embeddings, one vector for each of `size` positions."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, dim) * 0.02)

    def forward(self, positions: Tensor) -> Tensor:
        return nn.functional.embedding(positions, self.weight)


@accept_old_names(places="positions")
@dataclass(frozen=True)
class TextEmbeddingConfig:
    """`embedding[token] · (√dim if scaled) + position + segment`, then a norm (its ε) and dropout if given.

    `positions` is the number of learned positions; `"sinusoidal"` and `"sinusoidal halves"` compute them; None adds
    none (for relative positions in attention). `unused` rows of the table come before that of the first position.
    `inner` embeds in fewer dims, and projects the "tokens" up to dim before positions are added, or the "sum" of all
    after its norm (`projected`; with a bias if `projection_bias`). `padding` is the token of the padding, whose vector
    gets no gradient.
    """

    reads: ClassVar[Input] = "tokens"
    vocabulary: int
    dim: int
    positions: int | Literal["sinusoidal", "sinusoidal halves"] | None = None
    segments: int = 0
    scaled: bool = False
    norm: float | None = None
    inner: int | None = None
    padding: int | None = None
    unused: int = 0
    dropout: float = 0.0
    projected: Literal["tokens", "sum"] = "tokens"
    norm_bias: bool = True
    projection_bias: bool = True

    @property
    def max_positions(self) -> int | None:
        """The number of learned positions; None where there is no limit."""
        return self.positions if isinstance(self.positions, int) else None

    def build(self) -> TextEmbedding:
        return TextEmbedding(self)


class TextEmbedding(Embedding):
    """See `TextEmbeddingConfig`. `tokens [batch, tokens]` → `[batch, tokens, dim]`."""

    def __init__(self, config: TextEmbeddingConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.inner or config.dim, padding_idx=config.padding)
        nn.init.normal_(self.tokens.weight, std=config.dim**-0.5 if config.scaled else 0.02)
        self.up = nn.Linear(config.inner, config.dim, config.projection_bias) if config.inner else None
        # `places` is the name of these weights in checkpoints
        dim = config.inner if config.inner and config.projected == "sum" else config.dim
        self.places = make_positions(config.positions, dim, config.unused)
        self.segments = nn.Embedding(config.segments, dim) if config.segments else None
        self.norm = None if config.norm is None else nn.LayerNorm(dim, eps=config.norm, bias=config.norm_bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, tokens: Tensor, *, segments: Tensor | None = None, start: int = 0, padding: Tensor | None = None
    ) -> Tensor:
        """`start` is the position of the first column; `padding [batch]` counts columns before a row's first token."""
        need_tokens(tokens, self.config.vocabulary)
        x = self.tokens(tokens) * (math.sqrt(self.config.dim) if self.config.scaled else 1.0)
        last = self.up if self.config.projected == "sum" else None
        x = x if self.up is None or last is not None else self.up(x)
        if self.places is not None:
            positions = token_positions(tokens.shape[1], start, tokens.device)
            positions = positions if padding is None else (positions - padding[:, None]).clamp(min=0)
            end = start + whole_tokens(tokens.shape[1])
            if isinstance(self.config.positions, int) and end > self.config.positions:
                raise BadInput(
                    f"The text has {end} tokens; this model has {self.config.positions} position embeddings. Cut it, "
                    "or use a model with relative positions."
                )
            x = x + self.places(positions + self.config.unused).to(x.dtype)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(tokens) if segments is None else segments)
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if last is None else last(x)


def make_positions(positions: int | str | None, dim: int, unused: int = 0) -> nn.Module | None:
    if isinstance(positions, int):
        return LearnedPositions(positions + unused, dim)
    if positions is None:
        return None
    return SinusoidalPositions(dim, "halves" if positions.endswith("halves") else "interleaved")


def need_tokens(tokens: Tensor, vocabulary: int) -> None:
    """Raise unless `tokens` are whole numbers `[batch, tokens]` (their range is torch's to check on a GPU)."""
    if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.is_floating_point():
        got = f"{tokens.dtype} {list(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise BadInput(f"tokens is {got}; it must be whole numbers [batch, tokens]. Use the model's tokenizer.")
    if tokens.device.type == "cpu" and tokens.numel() and not torch.compiler.is_compiling():
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= vocabulary:
            raise BadInput(
                f"tokens has {low if low < 0 else high}; this model's vocabulary is 0 to {vocabulary - 1}. "
                "Use the tokenizer that belongs to it."
            )
