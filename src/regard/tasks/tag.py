"""N → N: a tag for every word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention.errors import BadInput
from ..data.order import Order
from ..data.reading import Reading
from ..data.tagged import Tagged, read_tagged
from ..models.config import Sequence as SequenceConfig
from ..models.heads import IGNORED, Classes
from ..nn.words import Words
from .architecture import Architecture, stack_of
from .task import Scores

PAD, UNKNOWN = 0, 1


@dataclass(frozen=True)
class TagSettings:
    """How words are read. A word seen less than `least` times is known by its letters alone.

    `word_dropout` does the same to a share of the others while training. `column` is the CoNLL-U column of the tags.
    """

    column: str = "upos"
    least: int = 2
    letters: int = 20
    word_dropout: float = 0.1


class Tag:
    """A tag for every word: `Tagged(words, tags)` examples, accuracy over words."""

    name = "tag"
    Settings = TagSettings

    def __init__(self, settings: TagSettings, words: list[str], letters: list[str], tags: list[str]) -> None:
        self.settings, self.words, self.letters, self.tags = settings, words, letters, tags
        self.word_number = {word: n for n, word in enumerate(words, 2)}
        self.letter_number = {letter: n for n, letter in enumerate(letters, 2)}
        self.tag_number = {tag: n for n, tag in enumerate(tags)}

    @staticmethod
    def read(paths: Sequence[Path], settings: TagSettings) -> Reading[Tagged]:
        return read_tagged(paths, column=settings.column)

    @classmethod
    def prepare(cls, examples: Sequence[Tagged], settings: TagSettings) -> Tag:
        """The task for these training examples: its words, letters and tags."""
        words = Counter(word for example in examples for word in example.words)
        letters = Counter(letter for word, count in words.items() for letter in word for _ in range(count))
        tags = sorted({tag for example in examples for tag in example.tags})
        if not tags:
            raise BadInput("No tag was read. Look at the file with `regard check --task tag`.")
        return cls(settings, frequent(words, settings.least), frequent(letters, 1), tags)

    def as_dict(self) -> dict[str, Any]:
        return {"words": self.words, "letters": self.letters, "tags": self.tags}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: dict[str, Any], tokenizer: Any = None) -> Tag:
        return cls(TagSettings(**settings), data["words"], data["letters"], data["tags"])

    def config(self, a: Architecture) -> SequenceConfig:
        places = None if a.places == "none" else "sinusoidal"
        embed = Words(len(self.words) + 2, len(self.letters) + 2, a.dim, places=places, dropout=a.dropout)
        head = Classes(len(self.tags), a.dim, per_token=True, dropout=a.dropout)
        return SequenceConfig(embed, stack_of(a), head=head)

    def sizes(self, examples: Sequence[Tagged]) -> list[int]:
        return [len(example.words) for example in examples]

    def batch(self, examples: Sequence[Tagged], draw: Random | None = None) -> dict[str, Tensor]:
        lengths = [len(example.words) for example in examples]
        tokens = torch.zeros(len(examples), max(lengths), 1 + self.settings.letters, dtype=torch.long)
        labels = torch.full((len(examples), max(lengths)), IGNORED)
        for n, example in enumerate(examples):
            tokens[n, : lengths[n]] = torch.tensor([self.numbers(word, draw) for word in example.words])
            labels[n, : lengths[n]] = torch.tensor([self.tag_number.get(tag, IGNORED) for tag in example.tags])
        return {"tokens": tokens, "lengths": torch.tensor(lengths), "labels": labels}

    def numbers(self, word: str, draw: Random | None = None) -> list[int]:
        """A word's number, then its letters'; a long word by its beginning and its end."""
        size = self.settings.letters
        number = self.word_number.get(word, UNKNOWN)
        if draw is not None and draw.random() < self.settings.word_dropout:
            number = UNKNOWN
        spelt = word if len(word) <= size else word[: size // 2] + word[-(size - size // 2) :]
        letters = [self.letter_number.get(letter, UNKNOWN) for letter in spelt]
        return [number, *letters, *[PAD] * (size - len(letters))]

    def count(self, batch: dict[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        logits = model(tokens=batch["tokens"], lengths=batch["lengths"]).logits
        return functional.cross_entropy(
            logits.flatten(0, 1).float(),
            batch["labels"].flatten(),
            ignore_index=IGNORED,
            label_smoothing=smoothing,
            reduction="sum",
        )

    def evaluate(self, model: nn.Module, examples: Sequence[Tagged]) -> Scores:
        """Accuracy over all words, and of each tag."""
        said = self.tag(model, [example.words for example in examples])
        pairs = Counter(pair for e, tags in zip(examples, said, strict=True) for pair in zip(e.tags, tags, strict=True))
        total, right = Counter[str](), Counter[str]()
        for (gold, tag), count in pairs.items():
            total[gold] += count
            right[gold] += count * (gold == tag)
        each = {tag: right[tag] / total[tag] for tag in sorted(total)}
        lines = [joined(e.words, tags) for e, tags in zip(examples, said, strict=True)]
        metrics = {"accuracy": sum(right.values()) / max(1, sum(total.values()))}
        return Scores(metrics, "accuracy", hypotheses=lines, details={"per tag": each})

    @torch.no_grad()
    def tag(self, model: nn.Module, sentences: Sequence[Sequence[str]], tokens: int = 8192) -> list[list[str]]:
        """The tags of each sentence's words."""
        found: dict[int, list[str]] = {}
        device = next(model.parameters()).device
        filled = [n for n, words in enumerate(sentences) if words]
        order = Order([len(sentences[n]) for n in filled], tokens=tokens) if filled else None
        for places in order.cut(sorted(range(len(filled)), key=lambda p: len(sentences[filled[p]]))) if order else []:
            numbers = [filled[p] for p in places]
            batch = self.batch([Tagged(tuple(sentences[n]), ("",) * len(sentences[n])) for n in numbers])
            output = model(tokens=batch["tokens"].to(device), lengths=batch["lengths"].to(device))
            best = output.logits.argmax(-1).tolist()
            for row, n in zip(best, numbers, strict=True):
                found[n] = [self.tags[tag] for tag in row[: len(sentences[n])]]
        return [found.get(n, []) for n in range(len(sentences))]

    def predict(self, model: nn.Module, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """Words and tags of each text; words are separated by blanks."""
        sentences = [text.split() for text in inputs]
        tags = self.tag(model, sentences)
        return [{"words": words, "tags": found} for words, found in zip(sentences, tags, strict=True)]

    def describe(self, examples: Sequence[Tagged]) -> dict[str, Any]:
        """What `check` shows: sizes, tags, how many words are unknown, examples."""
        words = [word for example in examples for word in example.words]
        unknown = sum(word not in self.word_number for word in words)
        return {
            "sentences": len(examples),
            "words": len(words),
            "vocabulary": len(self.words),
            "unknown": unknown / max(1, len(words)),
            "tags": dict(Counter(tag for example in examples for tag in example.tags).most_common()),
            "examples": [joined(e.words, e.tags) for e in examples[:3]],
        }


def joined(words: Sequence[str], tags: Sequence[str]) -> str:
    """`word/tag word/tag …`"""
    return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))


def frequent(counts: Counter[str], least: int) -> list[str]:
    """What occurs at least so often, by falling frequency."""
    return [word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count >= least]
