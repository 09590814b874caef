"""Words as vectors of their own, of their features and of their letters, so that a word never seen says something."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadInput
from ..old_names import accept_old_names
from .text import make_positions


@accept_old_names(places="positions")
@dataclass(frozen=True)
class WordEmbeddingConfig:
    """A word's vector beside what a convolution over its letters found, brought to `dim`, plus its place.

    `tokens [batch, tokens, 1 + features + letters]`: the word's number, those of its features (its endings, its shape,
    …: rows of the same table, added to the word's), then its letters' (0 is none, and padding). With `letters=0` none
    are read. Tables begin small, so that what was seldom seen says little; `norm` then brings all to the size of the
    positions.
    """

    vocabulary: int
    letters: int
    dim: int
    letter_dim: int = 32
    filters: int = 64
    kernel: int = 3
    positions: str | None = "sinusoidal"
    dropout: float = 0.0
    features: int = 0
    word_dim: int | None = None
    norm: float | None = None

    def build(self) -> WordEmbedding:
        return WordEmbedding(self)


class WordEmbedding(nn.Module):
    """See `Words`. → `[batch, tokens, dim]`."""

    def __init__(self, config: WordEmbeddingConfig) -> None:
        super().__init__()
        self.features = config.features
        word_dim = config.word_dim or config.dim
        self.words = nn.Embedding(config.vocabulary, word_dim, padding_idx=0)
        nn.init.normal_(self.words.weight, std=word_dim**-0.5)
        nn.init.zeros_(self.words.weight[0])
        self.letters = self.filters = None
        if config.letters:
            self.letters = nn.Embedding(config.letters, config.letter_dim, padding_idx=0)
            self.filters = nn.Conv1d(config.letter_dim, config.filters, config.kernel, padding=config.kernel // 2)
        self.join = nn.Linear(word_dim + (config.filters if config.letters else 0), config.dim)
        self.norm = nn.LayerNorm(config.dim, eps=config.norm) if config.norm is not None else None
        self.places = make_positions(config.positions, config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, tokens: Tensor, *, segments: Tensor | None = None, start: int = 0, padding: Tensor | None = None
    ) -> Tensor:
        if tokens.dim() != 3 or tokens.shape[2] < 1 + self.features:
            raise BadInput(
                f"tokens has shape {list(tokens.shape)}; it must be [batch, tokens, 1 + {self.features} features + "
                "letters]. The task that trained this model makes them: `regard predict`, or its batch()."
            )
        rows, letters = tokens[..., : 1 + self.features], tokens[..., 1 + self.features :]
        x = self.join(self.dropout(torch.cat([self.sum_features(rows), self.encode_letters(letters)], dim=-1)))
        x = x if self.norm is None else self.norm(x)
        if self.places is not None:
            x = x + self.places(torch.arange(start, start + tokens.shape[1], device=tokens.device)).to(x.dtype)
        return self.dropout(x)

    def sum_features(self, rows: Tensor) -> Tensor:
        """What the table has for a word and its features, added, `[batch, tokens, word_dim]`: never side by side."""
        each = rows.flatten(0, -2)
        return functional.embedding_bag(each, self.words.weight, mode="sum", padding_idx=0).unflatten(
            0, rows.shape[:-1]
        )

    def encode_letters(self, letters: Tensor) -> Tensor:
        """The strongest answer of each filter over a word's letters, `[batch, tokens, filters]`."""
        batch, tokens, count = letters.shape
        if not count or self.letters is None or self.filters is None:
            filters = 0 if self.filters is None else self.filters.out_channels
            return self.words.weight.new_zeros(batch, tokens, filters)
        found = self.filters(self.letters(letters.flatten(0, 1)).transpose(1, 2))  # [words, filters, letters]
        found = found.masked_fill((letters.flatten(0, 1) == 0)[:, None], -torch.inf).amax(-1)
        found = found.masked_fill(found == -torch.inf, 0.0)  # a word of no letters, which padding is
        return found.relu().unflatten(0, (batch, tokens))
