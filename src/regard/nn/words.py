"""Words as vectors of their own and of their letters, so that a word never seen still says something."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .embeddings import make_places


@dataclass(frozen=True)
class Words:
    """A word's vector beside what a convolution over its letters found, brought to `dim`, plus its place.

    `tokens [batch, tokens, 1 + letters]`: the word's number, then its letters' (0 is padding).
    """

    vocabulary: int
    letters: int
    dim: int
    letter_dim: int = 32
    filters: int = 64
    kernel: int = 3
    places: str | None = "sinusoidal"
    dropout: float = 0.0

    def build(self) -> WordsEmbedding:
        return WordsEmbedding(self)


class WordsEmbedding(nn.Module):
    """See `Words`. → `[batch, tokens, dim]`."""

    def __init__(self, config: Words) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.dim)
        nn.init.normal_(self.words.weight, std=config.dim**-0.5)
        self.letters = nn.Embedding(config.letters, config.letter_dim, padding_idx=0)
        self.filters = nn.Conv1d(config.letter_dim, config.filters, config.kernel, padding=config.kernel // 2)
        self.join = nn.Linear(config.dim + config.filters, config.dim)
        self.places = make_places(config.places, config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, tokens: Tensor, *, segments: Tensor | None = None, start: int = 0, padding: Tensor | None = None
    ) -> Tensor:
        word, letters = tokens[..., 0], tokens[..., 1:]
        x = self.join(self.dropout(torch.cat([self.words(word), self.spelt(letters)], dim=-1)))
        if self.places is not None:
            x = x + self.places(torch.arange(start, start + tokens.shape[1], device=tokens.device)).to(x.dtype)
        return self.dropout(x)

    def spelt(self, letters: Tensor) -> Tensor:
        """The strongest answer of each filter over a word's letters, `[batch, tokens, filters]`."""
        batch, tokens, _ = letters.shape
        found = self.filters(self.letters(letters.flatten(0, 1)).transpose(1, 2))  # [words, filters, letters]
        found = found.masked_fill((letters.flatten(0, 1) == 0)[:, None], -torch.inf).amax(-1)
        found = found.masked_fill(found == -torch.inf, 0.0)  # a word of no letters, which padding is
        return found.relu().unflatten(0, (batch, tokens))
