"""Sequence labelling: a tag for every word, of words or of unsegmented text."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data.batching import batch_by_size
from ..data.reading import Reading
from ..data.tagged import Tagged, read_tagged
from ..data.text import read_lines
from ..errors import BadInput
from ..models.config import SequenceConfig
from ..models.heads import IGNORED, ClassificationHeadConfig
from ..models.tokenizers.tokenizer import pad_rows
from ..settings import Settings, setting
from .architecture import Architecture, stack_of
from .inputs.character_features import CharacterFeatures
from .inputs.word_boundaries import best_labels, boundary_labels, join_characters, split_words
from .inputs.word_features import WordFeatures
from .inputs.word_splitting import WordSplitter
from .losses.r_drop import r_drop_loss, repeat_batch
from .metrics.segmentation import segmentation_scores
from .task import Batch, Scores, Task


@dataclass(frozen=True)
class TagSettings(Settings):
    """Settings of the task `tag`.

    A word that occurs less than `min_count` times has no embedding of its own: it is read by its characters and by its
    word features (prefixes, suffixes, shape, lower case). In training, known words are replaced the same way at random
    (`word_dropout`, `rare_word_dropout`), so that the model learns to read unknown words.

    With `unit` characters the model reads unsegmented text, such as Chinese: the label of a character says where it
    stands in its word and which tag the word has. The settings of words then apply to characters and their pairs.
    """

    unit: Literal["words", "characters"] = setting(
        "words", "What a token is: a word, or a character of unsegmented text, whose words are then found too."
    )

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
    unpunctuated: float = setting(
        0.0,
        "Share of sentences whose final punctuation mark is left out in training, as in texts people type.",
        ge=0,
        le=1,
    )
    texts: str | None = setting(
        None, "File of plain text from which vectors of characters are computed before training.", file=True
    )
    r_drop: float = setting(0.0, "Weight of R-Drop's consistency loss; 0 is off.", ge=0)


class Tag(Task[TagSettings]):
    """A tag for every word: `Tagged(words, tags)` examples.

    The metric is accuracy over words or, of unsegmented text, F1 of tagged words.
    """

    name = "tag"
    Settings = TagSettings

    def __init__(self, settings: TagSettings, features: WordFeatures | CharacterFeatures, tags: list[str]) -> None:
        self.settings, self.features, self.tags = settings, features, tags
        self._labels = tags if isinstance(features, WordFeatures) else boundary_labels(tags)
        self.tag_number = {tag: n for n, tag in enumerate(self._labels)}
        self.splitter = WordSplitter(set(features.words)) if isinstance(features, WordFeatures) else None

    @property
    def labels(self) -> list[str]:
        return self._labels

    @property
    def word_features(self) -> WordFeatures | None:
        return self.features if isinstance(self.features, WordFeatures) else None

    @classmethod
    def read(cls, paths: Sequence[Path], settings: TagSettings) -> Reading[Tagged]:
        reading = read_tagged(paths, column=settings.column)
        if settings.unit == "words":
            return reading
        unspaced = (Tagged(tuple("".join(word.split()) for word in e.words), e.tags) for e in reading.examples)
        return replace(reading, examples=tuple(unspaced))

    @classmethod
    def prepare(cls, examples: Sequence[Tagged], settings: TagSettings) -> Tag:
        """The task for these training examples: its words or characters, their features, and its tags."""
        tags = sorted({tag for example in examples for tag in example.tags})
        if not tags:
            raise BadInput("No tag was read. Look at the file with `regard check --task tag`.")
        if settings.unit == "characters":
            rows = ("".join(example.words) for example in examples)
            texts = read_lines([Path(settings.texts)]).examples[0].lines if settings.texts else ()
            return cls(settings, CharacterFeatures.from_rows(rows, settings.min_count, texts), tags)
        sizes = settings.min_count, settings.max_affix, settings.max_word_length
        return cls(settings, WordFeatures.from_words((example.words for example in examples), *sizes), tags)

    def as_dict(self) -> dict[str, Any]:
        return {**self.features.as_dict(), "tags": self.tags}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: TagSettings, tokenizer: Any = None) -> Tag:
        if settings.unit == "characters":
            return cls(settings, CharacterFeatures.from_dict(data), data["tags"])
        return cls(settings, WordFeatures.from_dict(data, settings.max_affix, settings.max_word_length), data["tags"])

    def config(self, a: Architecture) -> SequenceConfig:
        head = ClassificationHeadConfig(len(self.labels), a.dim, per_token=True, dropout=a.dropout)
        return SequenceConfig(self.features.embedding(a, self.settings.word_dim), stack_of(a), head=head)

    def initialize(self, model: nn.Module) -> None:
        """Start the vectors of characters from those of the setting `texts`."""
        if isinstance(self.features, CharacterFeatures) and self.features.texts:
            weight: Tensor = model.embed.words.weight.data  # type: ignore[union-attr]
            vectors = self.features.vectors(weight.shape[1]).to(weight)
            weight[: len(vectors)] = torch.where((vectors != 0).any(1, keepdim=True), vectors, weight[: len(vectors)])

    def as_tokens(self, example: Tagged) -> Tagged:
        """The tokens of an example and their labels: its words and tags, or its characters and their labels."""
        return example if self.word_features is not None else split_words(example)

    def sizes(self, examples: Sequence[Tagged]) -> list[int]:
        return [len(self.as_tokens(example).words) for example in examples]

    def batch(self, examples: Sequence[Tagged], rng: Random | None = None) -> dict[str, Tensor]:
        if rng is not None and self.settings.unpunctuated:
            examples = [strip_end(e) if rng.random() < self.settings.unpunctuated else e for e in examples]
        tokens = [self.as_tokens(example) for example in examples]
        labels = [[self.tag_number.get(tag, IGNORED) for tag in example.tags] for example in tokens]
        return {**self.inputs([example.words for example in tokens], rng), "labels": pad_rows(labels, IGNORED)}

    def inputs(self, rows: Sequence[Sequence[str]], rng: Random | None = None) -> Batch:
        """The model's arguments for rows of words or characters."""
        if isinstance(self.features, WordFeatures):
            return self.features.batch(rows, self.sample_dropout(self.features, rng))
        return self.features.batch(rows, rng, self.settings.word_dropout, self.settings.rare_word_dropout)

    def sample_dropout(self, features: WordFeatures, rng: Random | None) -> Callable[[str], int] | None:
        """In training (`rng` is given), a function that samples what is dropped of a word; None in evaluation."""
        if rng is None:
            return None
        shares = self.settings.word_dropout, self.settings.rare_word_dropout
        return lambda word: features.sample_dropout(word, rng, *shares)

    def count(self, batch: dict[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        if self.settings.r_drop and model.training:
            twice = repeat_batch({name: batch[name] for name in ("tokens", "lengths")})
            logits = model(**twice).logits.flatten(0, 1).float()
            return r_drop_loss(logits, batch["labels"].flatten(), smoothing, self.settings.r_drop)
        logits = model(tokens=batch["tokens"], lengths=batch["lengths"]).logits
        return functional.cross_entropy(
            logits.flatten(0, 1).float(),
            batch["labels"].flatten(),
            ignore_index=IGNORED,
            label_smoothing=smoothing,
            reduction="sum",
        )

    def evaluate(self, model: nn.Module, examples: Sequence[Tagged]) -> Scores:
        """Accuracy over words and of each tag; of unsegmented text F1 of words, of tagged words and of each tag."""
        if self.word_features is None:
            predictions = self.tag_texts(model, ["".join(example.words) for example in examples])
            metrics, per_tag = segmentation_scores(examples, predictions)
            lines = [format_tagged(sentence.words, sentence.tags) for sentence in predictions]
            return Scores(metrics, "tagged_f1", hypotheses=lines, details={"per tag": per_tag})
        predicted = list(zip(examples, self.tag(model, [example.words for example in examples]), strict=True))
        pairs = Counter(pair for e, tags in predicted for pair in zip(e.tags, tags, strict=True))
        total, correct = Counter[str](), Counter[str]()
        for (gold, tag), count in pairs.items():
            total[gold] += count
            correct[gold] += count * (gold == tag)
        per_tag = {tag: correct[tag] / total[tag] for tag in sorted(total)}
        lines = [format_tagged(e.words, tags) for e, tags in predicted]
        metrics = {"accuracy": sum(correct.values()) / max(1, sum(total.values()))}
        return Scores(metrics, "accuracy", hypotheses=lines, details={"per tag": per_tag})

    def example_records(self, examples: Sequence[Tagged]) -> list[dict[str, Any]]:
        return [{"input": " ".join(e.words), "gold": format_tagged(e.words, e.tags)} for e in examples]

    def unknown_labels(self, examples: Sequence[Tagged]) -> Counter[str]:
        """Tags of these examples that the training data does not have, with their counts."""
        return Counter(tag for example in examples for tag in example.tags if tag not in self.tags)

    @torch.no_grad()
    def tag(self, model: nn.Module, sentences: Sequence[Sequence[str]], tokens: int = 8192) -> list[list[str]]:
        """The labels of each sentence's words or characters; those of characters form whole words."""
        labels: dict[int, list[str]] = {}
        device = next(model.parameters()).device
        filled = [n for n, words in enumerate(sentences) if words]
        for batch_indices in batch_by_size([len(sentences[n]) for n in filled], tokens):
            numbers = [filled[k] for k in batch_indices]
            inputs = self.inputs([sentences[n] for n in numbers])
            logits = model(**{name: x.to(device) for name, x in inputs.items()}).logits
            if self.word_features is None:
                best = best_labels(logits, inputs["lengths"], self.labels)
            else:
                best = logits.argmax(-1).tolist()
            for row, n in zip(best, numbers, strict=True):
                labels[n] = [self.labels[label] for label in row[: len(sentences[n])]]
        return [labels.get(n, []) for n in range(len(sentences))]

    def tag_texts(self, model: nn.Module, texts: Sequence[str]) -> list[Tagged]:
        """The words of unsegmented texts and their tags; a blank in a text ends a word."""
        rows = ["".join(text.split()) for text in texts]
        sentences = []
        for text, row, labels in zip(texts, rows, self.tag(model, rows), strict=True):
            breaks = {*accumulate(map(len, text.split()))}
            sentences.append(join_characters(row, labels, breaks))
        return sentences

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """The characters that each token of a text covers: words as in the training data, or single characters."""
        if self.splitter is not None:
            return self.splitter.spans(text)
        return [match.span() for match in re.finditer(r"\S", text)]

    def text_inputs(self, text: str) -> Batch:
        return self.inputs([[text[start:end] for start, end in self.token_spans(text)]])

    def predict(self, model: nn.Module, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """Words and tags of each text; words are split as in the training data, or found in unsegmented text."""
        if self.word_features is None:
            sentences = self.tag_texts(model, inputs)
            return [{"words": list(sentence.words), "tags": list(sentence.tags)} for sentence in sentences]
        rows = [[text[start:end] for start, end in self.token_spans(text)] for text in inputs]
        return [{"words": words, "tags": tags} for words, tags in zip(rows, self.tag(model, rows), strict=True)]

    def describe(self, examples: Sequence[Tagged]) -> dict[str, Any]:
        """Facts that `check` shows: sizes, tags, share of unknown words or characters, examples."""
        rows = [self.as_tokens(example).words for example in examples]
        lengths, tokens = sorted(map(len, rows)), [token for row in rows for token in row]
        known = self.features.words if isinstance(self.features, WordFeatures) else self.features.characters
        counts = Counter(tokens)
        unknown = len(tokens) - sum(counts[token] for token in known)
        return {
            "sentences": len(examples),
            "words": sum(len(example.words) for example in examples),
            **({"characters": len(tokens)} if self.word_features is None else {}),
            "median length": lengths[len(lengths) // 2],
            "longest": lengths[-1],
            "vocabulary": len(known),
            "unknown": unknown / max(1, len(tokens)),
            "tags": dict(Counter(tag for example in examples for tag in example.tags).most_common()),
            "examples": [format_tagged(e.words, e.tags) for e in examples[:3]],
        }


def strip_end(sentence: Tagged) -> Tagged:
    """The sentence without its last word, if that is a punctuation mark behind other words.

    >>> strip_end(Tagged(("猫", "睡", "。"), ("NOUN", "VERB", "PUNCT"))).words
    ('猫', '睡')
    """
    ended = len(sentence.words) > 1 and all(unicodedata.category(c)[0] == "P" for c in sentence.words[-1])
    return Tagged(sentence.words[:-1], sentence.tags[:-1]) if ended else sentence


def format_tagged(words: Sequence[str], tags: Sequence[str]) -> str:
    """`word/tag word/tag …`"""
    return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
