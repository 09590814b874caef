"""Sequence labelling: a tag for every word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data.batching import batch_by_size
from ..data.reading import Reading
from ..data.tagged import Tagged, read_tagged
from ..errors import BadInput
from ..models.config import SequenceConfig
from ..models.heads import IGNORED, ClassificationHeadConfig
from ..models.tokenizers.tokenizer import pad_rows
from ..settings import Settings, setting
from .architecture import Architecture, stack_of
from .inputs.word_features import WordFeatures
from .task import Batch, Scores, Task


@dataclass(frozen=True)
class TagSettings(Settings):
    """Settings of the task `tag`.

    A word that occurs less than `min_count` times has no embedding of its own: it is read by its characters and by its
    word features (prefixes, suffixes, shape, lower case). In training, known words are replaced the same way at random
    (`word_dropout`, `rare_word_dropout`), so that the model learns to read unknown words.
    """

    column: str | None = setting(
        None, "Column of the tags: upos (the default), xpos, deprel, … of CoNLL-U, or the number of a column of text."
    )
    min_count: int = setting(1, "Occurrences that a word needs for an embedding of its own.", ge=0, former="least")
    max_word_length: int = setting(
        20, "Characters of a word that are read, from its start and its end.", ge=1, former="letters"
    )
    max_affix: int = setting(
        4, "Longest prefix and suffix that are word features; 0 reads characters alone.", ge=0, former="affixes"
    )
    word_dim: int | None = setting(128, "Size of word embeddings; none is the model's dim.", ge=1)
    word_dropout: float = setting(0.0, "Share of known words that are read as unknown in training.", ge=0, lt=1)
    rare_word_dropout: float = setting(
        1.0, "A word seen n times is read as unknown with probability a / (a + n) in training.", ge=0, former="rare"
    )


class Tag(Task[TagSettings]):
    """A tag for every word: `Tagged(words, tags)` examples, accuracy over words."""

    name = "tag"
    Settings = TagSettings

    def __init__(self, settings: TagSettings, word_features: WordFeatures, tags: list[str]) -> None:
        self.settings, self._word_features, self._labels = settings, word_features, tags
        self.tag_number = {tag: n for n, tag in enumerate(tags)}

    @property
    def labels(self) -> list[str]:
        return self._labels

    @property
    def word_features(self) -> WordFeatures:
        return self._word_features

    @classmethod
    def read(cls, paths: Sequence[Path], settings: TagSettings) -> Reading[Tagged]:
        return read_tagged(paths, column=settings.column)

    @classmethod
    def prepare(cls, examples: Sequence[Tagged], settings: TagSettings) -> Tag:
        """The task for these training examples: its words, their features, and its tags."""
        tags = sorted({tag for example in examples for tag in example.tags})
        if not tags:
            raise BadInput("No tag was read. Look at the file with `regard check --task tag`.")
        rows = (example.words for example in examples)
        return cls(
            settings,
            WordFeatures.from_words(rows, settings.min_count, settings.max_affix, settings.max_word_length),
            tags,
        )

    def as_dict(self) -> dict[str, Any]:
        return {**self.word_features.as_dict(), "tags": self.labels}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: TagSettings, tokenizer: Any = None) -> Tag:
        return cls(settings, WordFeatures.from_dict(data, settings.max_affix, settings.max_word_length), data["tags"])

    def config(self, a: Architecture) -> SequenceConfig:
        head = ClassificationHeadConfig(len(self.labels), a.dim, per_token=True, dropout=a.dropout)
        return SequenceConfig(self.word_features.embedding(a, self.settings.word_dim), stack_of(a), head=head)

    def sizes(self, examples: Sequence[Tagged]) -> list[int]:
        return [len(example.words) for example in examples]

    def batch(self, examples: Sequence[Tagged], rng: Random | None = None) -> dict[str, Tensor]:
        batch = self.word_features.batch([example.words for example in examples], self.sample_dropout(rng))
        labels = [[self.tag_number.get(tag, IGNORED) for tag in example.tags] for example in examples]
        return {**batch, "labels": pad_rows(labels, IGNORED)}

    def sample_dropout(self, rng: Random | None) -> Callable[[str], int] | None:
        """In training (`rng` is given), a function that samples what is dropped of a word; None in evaluation."""
        if rng is None:
            return None
        return lambda word: self.word_features.sample_dropout(
            word, rng, self.settings.word_dropout, self.settings.rare_word_dropout
        )

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
        predictions = list(zip(examples, self.tag(model, [example.words for example in examples]), strict=True))
        pairs = Counter(pair for e, tags in predictions for pair in zip(e.tags, tags, strict=True))
        total, correct = Counter[str](), Counter[str]()
        for (gold, tag), count in pairs.items():
            total[gold] += count
            correct[gold] += count * (gold == tag)
        per_tag = {tag: correct[tag] / total[tag] for tag in sorted(total)}
        lines = [format_tagged(e.words, tags) for e, tags in predictions]
        metrics = {"accuracy": sum(correct.values()) / max(1, sum(total.values()))}
        return Scores(metrics, "accuracy", hypotheses=lines, details={"per tag": per_tag})

    def unknown_labels(self, examples: Sequence[Tagged]) -> Counter[str]:
        """Tags of these examples that the training data does not have, with their counts."""
        return Counter(tag for example in examples for tag in example.tags if tag not in self.tag_number)

    @torch.no_grad()
    def tag(self, model: nn.Module, sentences: Sequence[Sequence[str]], tokens: int = 8192) -> list[list[str]]:
        """The tags of each sentence's words."""
        tags: dict[int, list[str]] = {}
        device = next(model.parameters()).device
        filled = [n for n, words in enumerate(sentences) if words]
        for batch_indices in batch_by_size([len(sentences[n]) for n in filled], tokens):
            numbers = [filled[k] for k in batch_indices]
            batch = self.batch([Tagged(tuple(sentences[n]), ("",) * len(sentences[n])) for n in numbers])
            output = model(tokens=batch["tokens"].to(device), lengths=batch["lengths"].to(device))
            best = output.logits.argmax(-1).tolist()
            for row, n in zip(best, numbers, strict=True):
                tags[n] = [self.labels[tag] for tag in row[: len(sentences[n])]]
        return [tags.get(n, []) for n in range(len(sentences))]

    def text_inputs(self, text: str) -> Batch:
        words = tuple(text.split())
        return self.word_features.batch([words])

    def predict(self, model: nn.Module, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """Words and tags of each text; words are separated by blanks."""
        sentences = [text.split() for text in inputs]
        pairs = zip(sentences, self.tag(model, sentences), strict=True)
        return [{"words": words, "tags": tags} for words, tags in pairs]

    def describe(self, examples: Sequence[Tagged]) -> dict[str, Any]:
        """Facts that `check` shows: sizes, tags, share of unknown words, examples."""
        words = [word for example in examples for word in example.words]
        lengths = sorted(len(example.words) for example in examples)
        unknown = sum(word not in self.word_features.word_number for word in words)
        return {
            "sentences": len(examples),
            "words": len(words),
            "median length": lengths[len(lengths) // 2],
            "longest": lengths[-1],
            "vocabulary": len(self.word_features.words),
            "unknown": unknown / max(1, len(words)),
            "tags": dict(Counter(tag for example in examples for tag in example.tags).most_common()),
            "examples": [format_tagged(e.words, e.tags) for e in examples[:3]],
        }


def format_tagged(words: Sequence[str], tags: Sequence[str]) -> str:
    """`word/tag word/tag …`"""
    return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
