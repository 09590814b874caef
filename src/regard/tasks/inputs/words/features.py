"""Words as indices of the word, its features and its letters, so that unknown words have features too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from random import Random
from threading import Lock

import torch
from torch import Tensor

from ....data.json_values import JsonObject, ParsedObject
from ....errors import BadInput
from ....limits import WORD_LETTERS
from ....nn.embeddings.words import WordEmbeddingConfig
from ...architecture import Architecture

PAD, UNKNOWN = 0, 1
KEPT, WORD, BOTH, ALL = range(4)
"""What is dropped of a word in training: nothing, the word, also its lower case, or all features."""


class WordFeatures:
    """Words as indices: of the word itself, of features that it shares with other words, and of its letters.

    The features are the lower case, the shape, prefixes and suffixes of up to `max_affix` letters, and character
    n-grams of three to `char_ngrams` letters, which then replace the letters. A word of more than `max_word_length`
    letters is read by its first and last letters. `counts` are the occurrences of words in the training data.
    """

    def __init__(
        self,
        words: Sequence[str],
        letters: Sequence[str],
        features: Sequence[str] = (),
        *,
        max_affix: int = 4,
        char_ngrams: int = 0,
        max_word_length: int = 20,
        counts: Counter[str] | None = None,
    ) -> None:
        if message := WORD_LETTERS.excess(max(max_affix, char_ngrams, max_word_length)):
            raise BadInput(f"Word features cannot be made: {message}")
        self.words, self.letters, self.features = list(words), list(letters), list(features)
        self.max_affix, self.char_ngrams, self.max_word_length = max_affix, char_ngrams, max_word_length
        self.counts = counts or Counter()
        self.word_number = {word: n for n, word in enumerate(words, 2)}
        self.feature_number = {feature: n for n, feature in enumerate(features, 2 + len(words))}
        self.letter_number = {letter: n for n, letter in enumerate(letters, 2)}
        self.columns = 1 + len(extract_features("", max_affix, char_ngrams, max_word_length)) if features else 0
        self.table = WordTable(self.encode, 1 + self.columns + (0 if char_ngrams else max_word_length))

    @classmethod
    def from_words(
        cls, rows: Iterable[Sequence[str]], min_count: int, max_affix: int, max_word_length: int, char_ngrams: int = 0
    ) -> WordFeatures:
        """The features of these words; a word that occurs less than `min_count` times has no index of its own."""
        words = Counter(word for row in rows for word in row)
        counts = Counter(words)
        letters, features = Counter[str](), Counter[str]()
        sizes = {"max_affix": max_affix, "char_ngrams": char_ngrams, "max_word_length": max_word_length}
        for word, count in words.items():
            counts[word.lower()] += count if word != word.lower() else 0
            letters.update({letter: count * word.count(letter) for letter in set(word)})
            features.update({feature for feature in extract_features(word, **sizes) if feature})
        # A feature of a single word says nothing about unknown words.
        frequent = frequent_items(words, min_count), frequent_items(letters, 1), frequent_items(features, 2)
        return cls(*frequent, **sizes, counts=counts)

    def as_dict(self) -> JsonObject:
        return {"words": self.words, "letters": self.letters, "features": self.features}

    @classmethod
    def from_dict(cls, data: ParsedObject, max_affix: int, max_word_length: int, char_ngrams: int = 0) -> WordFeatures:
        vocabularies = data["words"], data["letters"], data.get("features", ())
        return cls(*vocabularies, max_affix=max_affix, char_ngrams=char_ngrams, max_word_length=max_word_length)

    def embedding(self, a: Architecture, word_dim: int | None = None) -> WordEmbeddingConfig:
        """The configuration of the embedding of these indices."""
        return WordEmbeddingConfig(
            self.size,
            0 if self.char_ngrams else 2 + len(self.letters),
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
        """Number of rows of the embedding table of words and features."""
        return 2 + len(self.words) + len(self.features)

    @property
    def longest_prefix_column(self) -> int | None:
        """Position of the prefix of `max_affix` letters among the indices of a word: after word, lower case, shape."""
        return 2 + self.max_affix if self.features and self.max_affix else None

    def encode(self, word: str) -> list[int]:
        """The indices of a word: its own, those of its features, and without n-grams those of its letters."""
        letters = [] if self.char_ngrams else self.letter_numbers(word)
        return [self.word_number.get(word, UNKNOWN), *self.feature_numbers(word), *letters]

    def feature_numbers(self, word: str) -> list[int]:
        if not self.features:
            return []
        lower = self.word_number.get(word.lower(), PAD) if word != word.lower() else PAD
        features = extract_features(word, self.max_affix, self.char_ngrams, self.max_word_length)
        return [lower, *(self.feature_number.get(feature, PAD) for feature in features)]

    def letter_numbers(self, word: str) -> list[int]:
        return [self.letter_number.get(letter, UNKNOWN) for letter in truncate_word(word, self.max_word_length)]

    def sample_dropout(self, word: str, rng: Random, word_dropout: float, rare_word_dropout: float) -> int:
        """What is dropped of a word in training: nothing (`KEPT`), the `WORD`, or the word and its lower case (`BOTH`).

        The probability is max(word_dropout, a / (a + count)) with a = `rare_word_dropout`.
        """
        if rng.random() >= self.dropout_probability(word, word_dropout, rare_word_dropout):
            return KEPT
        lower = word.lower()
        if not self.features or word == lower or lower not in self.word_number:
            return WORD
        return BOTH if rng.random() < self.dropout_probability(lower, word_dropout, rare_word_dropout) else WORD

    def dropout_probability(self, word: str, word_dropout: float, rare_word_dropout: float) -> float:
        if not rare_word_dropout:
            return word_dropout
        return max(word_dropout, rare_word_dropout / (rare_word_dropout + self.counts[word]))

    def batch(self, rows: Sequence[Sequence[str]], dropout: Callable[[str], int] | None = None) -> dict[str, Tensor]:
        """Rows of words as `tokens [batch, tokens, indices]` and `lengths`; `dropout(word)` is what to drop of it."""
        words, lengths = [word for row in rows for word in row], torch.tensor([len(row) for row in rows])
        indices = self.table.rows(words)
        if dropout is not None:
            dropped = torch.tensor([dropout(word) for word in words], dtype=torch.long)
            indices[:, 0].masked_fill_(dropped != KEPT, UNKNOWN)
            if self.columns:
                indices[:, 1].masked_fill_(dropped == BOTH, PAD)
            indices[:, 1:].masked_fill_((dropped == ALL)[:, None], PAD)
        width, letters = 1 + self.columns, indices[:, 1 + self.columns :]  # [words, letters]
        if not self.char_ngrams and letters.numel():
            width += int((letters != PAD).sum(1).max())
        tokens = indices.new_full((len(rows), max(map(len, rows)), width), PAD)
        tokens[torch.arange(tokens.shape[1]) < lengths[:, None]] = indices[:, :width]
        return {"tokens": tokens, "lengths": lengths}


class WordTable:
    """A cache of the indices of words, one row per word.

    Batches are made in one thread while another evaluates, so access is locked.
    """

    def __init__(self, encode: Callable[[str], list[int]], width: int) -> None:
        self.encode, self.indices = encode, torch.empty(0, width, dtype=torch.long)
        self.row_number: dict[str, int] = {}
        self.lock = Lock()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, lock=Lock())

    def rows(self, words: Sequence[str]) -> Tensor:
        """The indices of the words, `[words, width]`, padded with `PAD`."""
        with self.lock:
            self.add([word for word in dict.fromkeys(words) if word not in self.row_number])
            return self.indices[torch.tensor([self.row_number[word] for word in words], dtype=torch.long)]

    def add(self, new: list[str]) -> None:
        begin, end, width = len(self.row_number), len(self.row_number) + len(new), self.indices.shape[1]
        if end > len(self.indices):
            room = self.indices.new_full((2 * end - len(self.indices), width), PAD)
            self.indices = torch.cat([self.indices, room])
        for n, word in enumerate(new, begin):
            self.row_number[word] = n
        if new:
            rows = [self.encode(word) for word in new]
            self.indices[begin:end] = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def extract_features(word: str, max_affix: int, char_ngrams: int = 0, max_word_length: int = 20) -> list[str]:
    """The shape, prefixes, suffixes and character n-grams of a word, each with a mark; "" if the word is too short.

    >>> extract_features("Don'ts", 2)
    ["#Xx'x", '<d', '<do', '>s', '>ts']
    >>> extract_features("Ants", 0, char_ngrams=3, max_word_length=5)
    ['~^an', '~ant', '~nts', '~ts$', '']
    """
    lower, sizes = word.lower(), range(1, max_affix + 1)
    prefixes = ["<" + lower[:n] if n <= len(lower) else "" for n in sizes]
    suffixes = [">" + lower[-n:] if n <= len(lower) else "" for n in sizes]
    ngrams = char_ngrams_of(lower, char_ngrams, max_word_length)
    return (["#" + word_shape(word), *prefixes, *suffixes] if max_affix else []) + ngrams


def char_ngrams_of(word: str, max_ngram: int, max_word_length: int) -> list[str]:
    """The distinct character n-grams of 3 to `max_ngram` letters of ^word$, padded with "" to a fixed number."""
    text, sizes = f"^{truncate_word(word, max_word_length)}$", range(3, max_ngram + 1)
    ngrams = dict.fromkeys("~" + text[n : n + size] for size in sizes for n in range(len(text) - size + 1))
    most = sum(max_word_length + 3 - size for size in sizes)
    return [*ngrams, *[""] * (most - len(ngrams))]


def truncate_word(word: str, max_length: int) -> str:
    """A word of at most `max_length` letters: the first and the last ones of a longer word."""
    half = max_length // 2
    return word if len(word) <= max_length else word[:half] + word[half - max_length :]


def word_shape(word: str) -> str:
    """A word with its characters replaced by their class: X upper case, x lower case, d digits, c other letters.

    Runs of one class are shortened to one character; other characters are unchanged.

    >>> word_shape("B-52s"), word_shape("WiFi"), word_shape("你好2")
    ('X-dx', 'XxXx', 'cd')
    """
    tests = {"X": str.isupper, "x": str.islower, "d": str.isdigit, "c": str.isalpha}
    classes = (next((name for name, test in tests.items() if test(letter)), letter) for letter in word)
    return "".join(name for name, _ in groupby(classes))


def frequent_items(counts: Counter[str], min_count: int) -> list[str]:
    """The items with at least this count, by decreasing count."""
    return [item for item, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])) if count >= min_count]
