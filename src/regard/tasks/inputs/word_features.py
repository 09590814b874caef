"""Words as word, feature and letter numbers, so that unknown words are read by their prefixes, suffixes and letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ...nn.embeddings.words import WordEmbeddingConfig
from ..architecture import Architecture

PAD, UNKNOWN = 0, 1
KEPT, WORD, BOTH, ALL = range(4)
"""What is hidden of a word in training: nothing, the word, its lower case too, or everything."""


class WordFeatures:
    """Words as numbers of the word itself, of features that it shares with other words, and of its letters.

    The features are the lower case, the shape, prefixes and suffixes of up to `affixes` letters, and character n-grams
    of three to `grams` letters, which then replace the letters. Of a word longer than `longest` letters the first and
    the last are read. `seen` are the counts of the words.
    """

    def __init__(
        self,
        words: Sequence[str],
        letters: Sequence[str],
        features: Sequence[str] = (),
        *,
        affixes: int = 4,
        grams: int = 0,
        longest: int = 20,
        seen: Counter[str] | None = None,
    ) -> None:
        self.words, self.letters, self.features = list(words), list(letters), list(features)
        self.affixes, self.grams, self.longest, self.seen = affixes, grams, longest, seen or Counter()
        self.word_number = {word: n for n, word in enumerate(words, 2)}
        self.feature_number = {feature: n for n, feature in enumerate(features, 2 + len(words))}
        self.letter_number = {letter: n for n, letter in enumerate(letters, 2)}
        self.columns = 1 + len(extract_features("", affixes, grams, longest)) if features else 0
        self.table = WordTable(self.encode, 1 + self.columns + (0 if grams else longest))

    @classmethod
    def from_words(
        cls, rows: Iterable[Sequence[str]], least: int, affixes: int, longest: int, grams: int = 0
    ) -> WordFeatures:
        """The features of these words; a word seen less than `least` times has no number of its own."""
        words = Counter(word for row in rows for word in row)
        seen = Counter(words)
        letters = Counter[str]()
        for word, count in words.items():
            seen[word.lower()] += count if word != word.lower() else 0
            letters.update({letter: count * word.count(letter) for letter in set(word)})
        features = Counter(one for word in words for one in set(extract_features(word, affixes, grams, longest)) if one)
        # A feature of a single word says nothing about unknown words.
        known = frequent_items(words, least), frequent_items(letters, 1), frequent_items(features, 2)
        return cls(*known, affixes=affixes, grams=grams, longest=longest, seen=seen)

    def as_dict(self) -> dict[str, Any]:
        return {"words": self.words, "letters": self.letters, "features": self.features}

    @classmethod
    def from_dict(cls, data: dict[str, Any], affixes: int, longest: int, grams: int = 0) -> WordFeatures:
        known = data["words"], data["letters"], data.get("features", ())
        return cls(*known, affixes=affixes, grams=grams, longest=longest)

    def embedding(self, a: Architecture, word_dim: int | None = None) -> WordEmbeddingConfig:
        """The configuration of the embedding that reads these numbers."""
        return WordEmbeddingConfig(
            self.size,
            0 if self.grams else 2 + len(self.letters),
            a.dim,
            filters=max(64, a.dim // 2),
            positions=None if a.positions == "none" else "sinusoidal",
            dropout=a.dropout,
            features=self.columns,
            word_dim=word_dim,
            norm=1e-5,
        )

    @property
    def size(self) -> int:
        """How many rows the table of words and features has."""
        return 2 + len(self.words) + len(self.features)

    @property
    def longest_prefix_column(self) -> int | None:
        """Which of a word's numbers is that of its beginning of `affixes` letters: after itself, lower case, shape."""
        return 2 + self.affixes if self.features and self.affixes else None

    def encode(self, word: str) -> list[int]:
        """A word's number, its features', then its letters' where these are read."""
        letters = [] if self.grams else self.letter_numbers(word)
        return [self.word_number.get(word, UNKNOWN), *self.feature_numbers(word), *letters]

    def feature_numbers(self, word: str) -> list[int]:
        if not self.features:
            return []
        lower = self.word_number.get(word.lower(), PAD) if word != word.lower() else PAD
        features = extract_features(word, self.affixes, self.grams, self.longest)
        return [lower, *(self.feature_number.get(one, PAD) for one in features)]

    def letter_numbers(self, word: str) -> list[int]:
        """The numbers of a word's letters."""
        return [self.letter_number.get(letter, UNKNOWN) for letter in truncate_word(word, self.longest)]

    def sample_dropout(self, word: str, rng: Random, share: float, rare: float) -> int:
        """What is hidden of a word in training: `KEPT`, the `WORD` itself, or its lower case too, `BOTH`.

        It is hidden with probability `share`, or rare / (rare + count) where that is larger.
        """
        if rng.random() >= self.dropout_probability(word, share, rare):
            return KEPT
        lower = word.lower()
        capital = self.features and word != lower and lower in self.word_number
        return BOTH if capital and rng.random() < self.dropout_probability(lower, share, rare) else WORD

    def dropout_probability(self, word: str, share: float, rare: float) -> float:
        return max(share, rare / (rare + self.seen[word]) if rare else 0.0)

    def batch(self, rows: Sequence[Sequence[str]], dropout: Callable[[str], int] | None = None) -> dict[str, Tensor]:
        """Rows of words as `tokens [batch, tokens, numbers]` and `lengths`; `dropout` says what is hidden of a word."""
        words, lengths = [word for row in rows for word in row], torch.tensor([len(row) for row in rows])
        found = self.table.rows(words)
        if dropout is not None:
            kinds = torch.tensor([dropout(word) for word in words], dtype=torch.long)
            found[:, 0].masked_fill_(kinds != KEPT, UNKNOWN)
            if self.columns:
                found[:, 1].masked_fill_(kinds == BOTH, PAD)
            found[:, 1:].masked_fill_((kinds == ALL)[:, None], PAD)
        width = 1 + self.columns + (0 if self.grams else longest_row(found[:, 1 + self.columns :]))
        tokens = found.new_full((len(rows), max(map(len, rows)), width), PAD)
        tokens[torch.arange(tokens.shape[1]) < lengths[:, None]] = found[:, :width]
        return {"tokens": tokens, "lengths": lengths}


class WordTable:
    """A cache of the numbers of words, a row each.

    Batches are made in a thread while another evaluates, so access is locked.
    """

    def __init__(self, numbers: Callable[[str], list[int]], width: int) -> None:
        self.encode, self.known = numbers, torch.empty(0, width, dtype=torch.long)
        self.place: dict[str, int] = {}
        self.lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, lock=Lock())

    def rows(self, words: Sequence[str]) -> Tensor:
        """`[words, width]`, filled up with `PAD`."""
        with self.lock:
            self.add([word for word in dict.fromkeys(words) if word not in self.place])
            return self.known[torch.tensor([self.place[word] for word in words], dtype=torch.long)]

    def add(self, new: list[str]) -> None:
        begin, end, width = len(self.place), len(self.place) + len(new), self.known.shape[1]
        if end > len(self.known):
            self.known = torch.cat([self.known, self.known.new_full((2 * end - len(self.known), width), PAD)])
        for n, word in enumerate(new, begin):
            self.place[word] = n
        if new:
            numbers = [self.encode(word) for word in new]
            self.known[begin:end] = torch.tensor([row + [PAD] * (width - len(row)) for row in numbers])


def longest_row(letters: Tensor) -> int:
    """Letters of the longest word of `[words, letters]`."""
    return int((letters != PAD).sum(1).max()) if letters.numel() else 0


def extract_features(word: str, affixes: int, grams: int = 0, longest: int = 20) -> list[str]:
    """A word's shape, prefixes, suffixes and character n-grams, each with a mark; "" where the word is too short.

    >>> extract_features("Don'ts", 2)
    ["#Xx'x", '<d', '<do', '>s', '>ts']
    >>> extract_features("Ants", 0, grams=3, longest=5)
    ['~^an', '~ant', '~nts', '~ts$', '']
    """
    lower, sizes = word.lower(), range(1, affixes + 1)
    starts = ["<" + lower[:n] if n <= len(lower) else "" for n in sizes]
    ends = [">" + lower[-n:] if n <= len(lower) else "" for n in sizes]
    return (["#" + word_shape(word), *starts, *ends] if affixes else []) + char_ngrams_of(lower, grams, longest)


def char_ngrams_of(word: str, grams: int, longest: int) -> list[str]:
    """The character n-grams of 3 to `grams` letters of ^word$, each once, padded with "" to a fixed number."""
    whole, sizes = f"^{truncate_word(word, longest)}$", range(3, grams + 1)
    found = dict.fromkeys("~" + whole[n : n + size] for size in sizes for n in range(len(whole) - size + 1))
    room = sum(longest + 3 - size for size in sizes)
    return [*found, *[""] * (room - len(found))]


def truncate_word(word: str, longest: int) -> str:
    """A word of at most so many letters: the first and the last of a longer one."""
    half = longest // 2
    return word if len(word) <= longest else word[:half] + word[half - longest :]


def word_shape(word: str) -> str:
    """Upper case, lower case, digits and other letters, repetitions once; other characters as they are.

    >>> word_shape("B-52s"), word_shape("WiFi"), word_shape("你好2")
    ('X-dx', 'XxXx', 'cd')
    """
    kinds = [character_class(letter) for letter in word]
    return "".join(kind for n, kind in enumerate(kinds) if n == 0 or kind != kinds[n - 1])


def character_class(letter: str) -> str:
    kinds = {"X": letter.isupper(), "x": letter.islower(), "d": letter.isdigit(), "c": letter.isalpha()}
    return next((kind for kind, holds in kinds.items() if holds), letter)


def frequent_items(counts: Counter[str], least: int) -> list[str]:
    """The items with at least this count, by decreasing count."""
    return [word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count >= least]
