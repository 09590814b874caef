"""N-grams of words and of characters as inputs of a linear model: which are features, and those of each text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ....data.json_values import JsonObject, ParsedObject
from ...task import Batch

WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+|[^\w\s]")
"""A run of letters and digits, a Chinese or Japanese character, or a sign."""
WORDS = 2
"""Longest n-gram of words."""
CHARACTERS = 5
"""Longest n-gram of the characters of a word; of Chinese ones, which are words, it is one less."""
MIN_TEXTS = 2
"""Texts that a feature occurs in at least: one that occurs in a single text says little of others."""
MAX_FEATURES = 100_000
"""Features of each kind; the most frequent ones are taken."""


class NgramVocabulary:
    """The n-grams of words and of characters that are features, each kind by falling number of texts.

    Words are numbered from 1, then come characters; 0 is padding.

    >>> vocabulary = NgramVocabulary.from_texts(["a cat", "a dog", "the cat"])
    >>> vocabulary.words
    ['</s>', '<s>', '<s> a', 'a', 'cat', 'cat </s>']
    >>> batch = vocabulary.batch(["cat cat dog"])
    >>> batch["ngrams"].tolist()[0][:3], batch["ngram_counts"].tolist()[0][:3]
    ([2, 5, 1], [1, 2, 1])
    """

    def __init__(self, words: Sequence[str], characters: Sequence[str]) -> None:
        self.words, self.characters = list(words), list(characters)
        self.word_rows = {ngram: n for n, ngram in enumerate(self.words, 1)}
        self.character_rows = {ngram: n for n, ngram in enumerate(self.characters, len(self.words) + 1)}

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> NgramVocabulary:
        """The features of these texts."""
        words, characters = Counter[str](), Counter[str]()
        for text in texts:
            tokens = split_words(text)
            words.update(set(word_ngrams(tokens)))
            characters.update(set(character_ngrams(tokens)))
        return cls(most_frequent(words), most_frequent(characters))

    def as_dict(self) -> JsonObject:
        return {"words": self.words, "characters": self.characters}

    @classmethod
    def from_dict(cls, data: ParsedObject) -> NgramVocabulary:
        return cls(data["words"], data["characters"])

    def __len__(self) -> int:
        """The rows of a table of features, row 0 included."""
        return 1 + len(self.words) + len(self.characters)

    def count(self, text: str) -> Counter[int]:
        """How often each feature occurs in a text."""
        tokens = split_words(text)
        found = [self.word_rows.get(ngram, 0) for ngram in word_ngrams(tokens)]
        counts = Counter(found + [self.character_rows.get(ngram, 0) for ngram in character_ngrams(tokens)])
        del counts[0]
        return counts

    def batch(self, texts: Sequence[str]) -> Batch:
        """`ngrams [batch, features]`: the different features of each text, padded; `ngram_counts`: how often."""
        counts = [self.count(text) for text in texts]
        width = max(1, *map(len, counts)) if counts else 1
        rows: list[Tensor] = []
        for numbers in ([list(row) for row in counts], [list(row.values()) for row in counts]):
            rows.append(torch.tensor([row + [0] * (width - len(row)) for row in numbers]).view(len(texts), width))
        return {"ngrams": rows[0], "ngram_counts": rows[1]}


def most_frequent(documents: Counter[str]) -> list[str]:
    """The n-grams that occur in enough texts, the most frequent first."""
    enough = [(ngram, count) for ngram, count in documents.items() if count >= MIN_TEXTS]
    return [ngram for ngram, _ in sorted(enough, key=lambda item: (-item[1], item[0]))[:MAX_FEATURES]]


def split_words(text: str) -> list[str]:
    """The words and signs of a text in lower case.

    >>> split_words("Cats, 猫!")
    ['cats', ',', '猫', '!']
    """
    return WORD.findall(text.lower())


def word_ngrams(words: Sequence[str]) -> list[str]:
    """The words of a text and its runs of up to `WORDS` words, with marks for its beginning and end.

    >>> word_ngrams(["a", "cat"])
    ['<s>', 'a', 'cat', '</s>', '<s> a', 'a cat', 'cat </s>']
    """
    marked = ["<s>", *words, "</s>"]
    return [" ".join(marked[i : i + n]) for n in range(1, WORDS + 1) for i in range(len(marked) - n + 1)]


def character_ngrams(words: Sequence[str]) -> list[str]:
    """The runs of up to `CHARACTERS` characters of each word and the blanks around it; Chinese characters are one word.

    >>> character_ngrams(["ab"])
    [' ', 'a', 'b', ' ', ' a', 'ab', 'b ', ' ab', 'ab ', ' ab ']
    """
    ngrams = []
    for run, longest in character_runs(words):
        ngrams += [run[i : i + n] for n in range(1, longest + 1) for i in range(len(run) - n + 1)]
    return ngrams


def character_runs(words: Sequence[str]) -> Iterable[tuple[str, int]]:
    """The texts whose character n-grams are taken, and how long these may be: words between blanks, or a run of
    Chinese characters and the signs between them."""
    run = ""
    for word in words:
        if len(word) == 1 and not word.isascii():
            run += word
            continue
        if run:
            yield run, CHARACTERS - 1
        run = ""
        yield f" {word} ", CHARACTERS
    if run:
        yield run, CHARACTERS - 1
