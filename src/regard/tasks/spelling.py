"""Words as numbers of what they are made of, so that a word never seen is still read: by its endings, as people do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from ..nn.words import Words
from .architecture import Architecture

PAD, UNKNOWN = 0, 1


class Spelling:
    """Words known as themselves, by the features that they share with others, and by their letters.

    The features are a word's lower case, its shape, its beginnings and endings of up to `affixes` letters, and all its
    runs of three to `grams` letters, which then stand for the letters themselves; of a word longer than `longest`
    letters the first and the last are read. `seen` says how often each word was seen.
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
        self.columns = 1 + len(features_of("", affixes, grams, longest)) if features else 0
        self.known: dict[str, list[int]] = {}

    @classmethod
    def learn(cls, rows: Iterable[Sequence[str]], least: int, affixes: int, longest: int, grams: int = 0) -> Spelling:
        """What these words are made of; a word seen less than `least` times has no number of its own."""
        words = Counter(word for row in rows for word in row)
        seen = Counter(words)
        letters = Counter[str]()
        for word, count in words.items():
            seen[word.lower()] += count if word != word.lower() else 0
            letters.update({letter: count * word.count(letter) for letter in set(word)})
        features = Counter(one for word in words for one in set(features_of(word, affixes, grams, longest)) if one)
        # What one word alone has is its name: learned, it would say nothing about words that are not known.
        known = frequent(words, least), frequent(letters, 1), frequent(features, 2)
        return cls(*known, affixes=affixes, grams=grams, longest=longest, seen=seen)

    def as_dict(self) -> dict[str, Any]:
        return {"words": self.words, "letters": self.letters, "features": self.features}

    @classmethod
    def from_dict(cls, data: dict[str, Any], affixes: int, longest: int, grams: int = 0) -> Spelling:
        known = data["words"], data["letters"], data.get("features", ())
        return cls(*known, affixes=affixes, grams=grams, longest=longest)

    def embedding(self, a: Architecture, word_dim: int | None = None) -> Words:
        """The embedding that reads these numbers."""
        return Words(
            self.size,
            0 if self.grams else 2 + len(self.letters),
            a.dim,
            filters=max(64, a.dim // 2),
            places=None if a.places == "none" else "sinusoidal",
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
    def longest_start(self) -> int | None:
        """Which of a word's numbers is that of its beginning of `affixes` letters: after itself, lower case, shape."""
        return 2 + self.affixes if self.features and self.affixes else None

    @property
    def nothing(self) -> list[int]:
        """A word of which nothing is told."""
        return [UNKNOWN, *[PAD] * self.columns]

    def numbers(self, word: str) -> list[int]:
        """A word's number, its features', then its letters' where these are read."""
        if word not in self.known:
            letters = [] if self.grams else self.spelt(word)
            self.known[word] = [self.word_number.get(word, UNKNOWN), *self.feature_numbers(word), *letters]
        return self.known[word]

    def feature_numbers(self, word: str) -> list[int]:
        if not self.features:
            return []
        lower = self.word_number.get(word.lower(), PAD) if word != word.lower() else PAD
        features = features_of(word, self.affixes, self.grams, self.longest)
        return [lower, *(self.feature_number.get(one, PAD) for one in features)]

    def spelt(self, word: str) -> list[int]:
        """The numbers of a word's letters; of a long word its beginning and its end."""
        return [self.letter_number.get(letter, UNKNOWN) for letter in shortened(word, self.longest)]

    def forgotten(self, word: str, draw: Random, share: float, rare: float) -> list[int]:
        """A word's numbers as they are or, by chance, as if it (and then perhaps its lower case) had not been seen.

        It is forgotten with probability `share`, or rare / (rare + times seen) where that is more.
        """
        numbers = self.numbers(word)
        if draw.random() >= self.chance(word, share, rare):
            return numbers
        numbers = [UNKNOWN, *numbers[1:]]
        if self.features and numbers[1] and draw.random() < self.chance(word.lower(), share, rare):
            numbers[1] = PAD
        return numbers

    def chance(self, word: str, share: float, rare: float) -> float:
        return max(share, rare / (rare + self.seen[word]) if rare else 0.0)


def stacked(rows: Sequence[Sequence[list[int]]]) -> dict[str, Tensor]:
    """Rows of words' numbers as `tokens [batch, tokens, numbers]` and `lengths`, filled up with `PAD`."""
    width = max((len(numbers) for row in rows for numbers in row), default=0)
    tokens = torch.full((len(rows), max(map(len, rows)), width), PAD)
    for n, row in enumerate(rows):
        if row:
            tokens[n, : len(row)] = torch.tensor([numbers + [PAD] * (width - len(numbers)) for numbers in row])
    return {"tokens": tokens, "lengths": torch.tensor([len(row) for row in rows])}


def features_of(word: str, affixes: int, grams: int = 0, longest: int = 20) -> list[str]:
    """A word's shape, beginnings, endings and runs of letters, each with a mark; "" for what it is too short for.

    >>> features_of("Don'ts", 2)
    ["#Xx'x", '<d', '<do', '>s', '>ts']
    >>> features_of("Ants", 0, grams=3, longest=5)
    ['~^an', '~ant', '~nts', '~ts$', '']
    """
    lower, sizes = word.lower(), range(1, affixes + 1)
    starts = ["<" + lower[:n] if n <= len(lower) else "" for n in sizes]
    ends = [">" + lower[-n:] if n <= len(lower) else "" for n in sizes]
    return (["#" + shape(word), *starts, *ends] if affixes else []) + runs(lower, grams, longest)


def runs(word: str, grams: int, longest: int) -> list[str]:
    """The runs of 3 to `grams` letters of a word between ^ and $, each once; "" up to as many as `longest` allow."""
    whole, sizes = f"^{shortened(word, longest)}$", range(3, grams + 1)
    found = dict.fromkeys("~" + whole[n : n + size] for size in sizes for n in range(len(whole) - size + 1))
    room = sum(longest + 3 - size for size in sizes)
    return [*found, *[""] * (room - len(found))]


def shortened(word: str, longest: int) -> str:
    """A word of at most so many letters: of a long one its beginning and its end."""
    half = longest // 2
    return word if len(word) <= longest else word[:half] + word[half - longest :]


def shape(word: str) -> str:
    """Upper case, lower case, digits and other letters, a run of them as one; other signs as they are.

    >>> shape("B-52s"), shape("WiFi"), shape("你好2")
    ('X-dx', 'XxXx', 'cd')
    """
    kinds = [kind_of_letter(letter) for letter in word]
    return "".join(kind for n, kind in enumerate(kinds) if n == 0 or kind != kinds[n - 1])


def kind_of_letter(letter: str) -> str:
    kinds = {"X": letter.isupper(), "x": letter.islower(), "d": letter.isdigit(), "c": letter.isalpha()}
    return next((kind for kind, holds in kinds.items() if holds), letter)


def frequent(counts: Counter[str], least: int) -> list[str]:
    """What occurs at least so often, by falling frequency."""
    return [word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count >= least]
