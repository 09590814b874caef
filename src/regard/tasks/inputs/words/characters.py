"""Characters of unsegmented text as indices of the character, of the pairs with its neighbours, and of its class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

import torch
from torch import Tensor

from ....data.json_values import JsonObject, ParsedObject
from ....nn.embeddings.words import WordEmbeddingConfig
from ...architecture import Architecture
from .character_vectors import character_vectors
from .features import PAD, UNKNOWN, frequent_items, word_shape

MIN_TEXT_COUNT = 5
COLUMNS = 4
"""Indices of a character: its own, of the pair with the one before it, with the one after it, and of its class."""


class CharacterFeatures:
    """Characters as indices: of the character itself, of the two pairs it forms with its neighbours, of its class.

    A pair says more about word boundaries than its characters do, and the class (digit, letter, punctuation mark) is
    known for every character. `counts` are the occurrences of characters and features in the training data; `texts` are
    texts without tags that `vectors` is computed from.
    """

    def __init__(
        self,
        characters: Sequence[str],
        features: Sequence[str],
        counts: Counter[str] | None = None,
        texts: Sequence[str] = (),
    ) -> None:
        self.texts = texts
        self.characters, self.features = list(characters), list(features)
        self.number = {item: n for n, item in enumerate((*characters, *features), 2)}
        occurrences = [0, 0, *((counts or Counter())[item] for item in (*characters, *features))]
        self.occurrences = torch.tensor(occurrences, dtype=torch.float)

    @classmethod
    def from_rows(cls, rows: Iterable[str], min_count: int, texts: Sequence[str] = ()) -> CharacterFeatures:
        """The characters that occur at least `min_count` times in these rows, and features that occur twice.

        Characters that only the texts have are included if they occur `MIN_TEXT_COUNT` times.
        """
        counts, features = Counter[str](), Counter[str]()
        for row in rows:
            counts.update(row)
            features.update(feature for names in features_of(row) for feature in names)
        others = Counter(c for text in texts for c in text if not c.isspace() and c not in counts)
        characters = frequent_items(counts, min_count) + frequent_items(others, MIN_TEXT_COUNT)
        return cls(characters, frequent_items(features, 2), counts + features, texts)

    def vectors(self, dim: int) -> Tensor:
        """Vectors of the characters, `[2 + characters, dim]`; zeros for those that the texts do not have."""
        return character_vectors(self.texts, {c: n for n, c in enumerate(self.characters, 2)}, dim)

    def as_dict(self) -> JsonObject:
        return {"characters": self.characters, "features": self.features}

    @classmethod
    def from_dict(cls, data: ParsedObject) -> CharacterFeatures:
        return cls(data["characters"], data["features"])

    @property
    def size(self) -> int:
        """Number of rows of the embedding table of characters and features."""
        return 2 + len(self.characters) + len(self.features)

    def embedding(self, a: Architecture, dim: int | None) -> WordEmbeddingConfig:
        """The configuration of the embedding of these indices."""
        positions = None if a.positions == "none" else "sinusoidal"
        columns = COLUMNS - 1
        return WordEmbeddingConfig(
            self.size, 0, a.dim, positions=positions, dropout=a.dropout, features=columns, word_dim=dim, norm=1e-5
        )

    def encode(self, row: Sequence[str]) -> list[list[int]]:
        """The indices of each character of a row; `UNKNOWN` for a new character, `PAD` for a new feature."""
        number = self.number
        return [
            [number.get(character, UNKNOWN), *(number.get(feature, PAD) for feature in features)]
            for character, features in zip(row, features_of(row), strict=True)
        ]

    def batch(
        self, rows: Sequence[Sequence[str]], rng: Random | None = None, dropout: float = 0.0, rare_dropout: float = 0.0
    ) -> dict[str, Tensor]:
        """Rows of characters as `tokens [batch, tokens, indices]` and `lengths`.

        In training (`rng` is given) characters are read as unknown and features are left out, each with probability
        max(dropout, a / (a + count)), a = `rare_dropout`.
        """
        lengths = torch.tensor([len(row) for row in rows])
        tokens = torch.full((len(rows), max(map(len, rows)), COLUMNS), PAD)
        indices = torch.tensor([numbers for row in rows for numbers in self.encode(row)])
        if rng is not None and (dropout or rare_dropout):
            generator = torch.Generator().manual_seed(rng.getrandbits(63))
            rare = rare_dropout / (rare_dropout + self.occurrences[indices]) if rare_dropout else torch.zeros(())
            dropped = torch.rand(indices.shape, generator=generator) < rare.clamp(min=dropout)
            replacement = torch.tensor([UNKNOWN, *[PAD] * (COLUMNS - 1)]).expand_as(indices)
            indices = torch.where(dropped, replacement, indices)
        tokens[torch.arange(tokens.shape[1]) < lengths[:, None]] = indices
        return {"tokens": tokens, "lengths": lengths}


def features_of(row: Sequence[str]) -> list[tuple[str, str, str]]:
    """(pair with the character before, pair with the one after, class) of each character; each has a mark.

    >>> features_of("A股")
    [('<^A', '>A股', '#X'), ('<A股', '>股$', '#c')]
    """
    around = ["^", *row, "$"]
    pairs = zip(around, row, around[2:], strict=False)
    return [("<" + before + c, ">" + c + after, "#" + word_shape(c)) for before, c, after in pairs]
