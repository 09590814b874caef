"""Word embeddings from the word, its features and its letters, so that unknown words have a vector too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...attention.sharding import token_positions
from ...errors import BadInput
from ..old_names import accept_old_names
from .embedding import Embedding, Input
from .text import make_positions


@accept_old_names(places="positions")
@dataclass(frozen=True)
class WordEmbeddingConfig:
    """The word's vector and a convolution over its letters, concatenated and projected to `dim`, plus its position.

    `tokens [batch, tokens, 1 + features + letters]`: the index of the word, those of its features (suffixes, shape, …:
    rows of the same table, added to the word's), then of its letters (0 is padding). With `letters=0` none are read.
    Tables start small, so that rare words have small vectors; `norm` then scales all to the size of the positions.
    """

    reads: ClassVar[Input] = "tokens"
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


class WordEmbedding(Embedding):
    """See `WordEmbeddingConfig`. → `[batch, tokens, dim]`."""

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
                "letters]. Use the task that trained this model: `regard predict`, or its batch()."
            )
        rows, letters = tokens[..., : 1 + self.features], tokens[..., 1 + self.features :]
        x = self.join(self.dropout(torch.cat([self.sum_features(rows), self.encode_letters(letters)], dim=-1)))
        x = x if self.norm is None else self.norm(x)
        if self.places is not None:
            x = x + self.places(token_positions(tokens.shape[1], start, tokens.device)).to(x.dtype)
        return self.dropout(x)

    def sum_features(self, rows: Tensor) -> Tensor:
        """The sum of the vectors of a word and its features, `[batch, tokens, word_dim]`."""
        flat = rows.flatten(0, -2)  # [batch · tokens, 1 + features]
        sums = functional.embedding_bag(flat, self.words.weight, mode="sum", padding_idx=0)
        return sums.unflatten(0, rows.shape[:-1])

    def encode_letters(self, letters: Tensor) -> Tensor:
        """The maximum of each filter over a word's letters, `[batch, tokens, filters]`."""
        batch, tokens, count = letters.shape
        if not count or self.letters is None or self.filters is None:
            filters = 0 if self.filters is None else self.filters.out_channels
            return self.words.weight.new_zeros(batch, tokens, filters)
        features = self.filters(self.letters(letters.flatten(0, 1)).transpose(1, 2))  # [words, filters, letters]
        features = features.masked_fill((letters.flatten(0, 1) == 0)[:, None], -torch.inf).amax(-1)
        features = features.masked_fill(features == -torch.inf, 0.0)  # a word without letters, such as padding
        return features.relu().unflatten(0, (batch, tokens))
