"""Sequence labelling: a tag for every word, of words or of unsegmented text."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Self

from torch import nn

from ...data.json_values import JsonObject
from ...data.reading import Reading
from ...data.tagged import Tagged, read_tagged
from ...errors import BadInput
from ..inputs.words.boundaries import join_characters, split_words
from ..metrics.segmentation import segmentation_scores
from ..results import Tagging
from ..task import Batch, Scores
from .token_tagger import TagSettings, TokenTagger, token_features


class Tag(TokenTagger[Tagged]):
    """A tag for every word: `Tagged(words, tags)` examples.

    The metric is accuracy over words or, of unsegmented text, F1 of tagged words.
    """

    name = "tag"
    Settings = TagSettings

    @classmethod
    def read(cls, paths: Sequence[Path], settings: TagSettings) -> Reading[Tagged]:
        reading = read_tagged(paths, column=settings.column)
        if settings.unit == "words":
            return reading
        unspaced = (Tagged(tuple("".join(word.split()) for word in e.words), e.tags) for e in reading.examples)
        return replace(reading, examples=tuple(unspaced))

    @classmethod
    def prepare(cls, examples: Sequence[Tagged], settings: TagSettings) -> Self:
        """The task for these training examples: its words or characters, their features, and its tags."""
        tags = sorted({tag for example in examples for tag in example.tags})
        if not tags:
            raise BadInput("No tag was read. Look at the file with `regard check --task tag`.")
        return cls(settings, token_features((example.words for example in examples), settings), tags)

    def as_tokens(self, example: Tagged) -> Tagged:
        """The tokens of an example and their labels: its words and tags, or its characters and their labels."""
        return example if self.word_features is not None else split_words(example)

    def batch(self, examples: Sequence[Tagged], rng: Random | None = None) -> Batch:
        if rng is not None and self.settings.punctuation_dropout:
            examples = [strip_end(e) if rng.random() < self.settings.punctuation_dropout else e for e in examples]
        return super().batch(examples, rng)

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

    def example_records(self, examples: Sequence[Tagged]) -> list[dict[str, str]]:
        return [{"input": " ".join(e.words), "gold": format_tagged(e.words, e.tags)} for e in examples]

    def unknown_labels(self, examples: Sequence[Tagged]) -> Counter[str]:
        """Tags of these examples that the training data does not have, with their counts."""
        return Counter(tag for example in examples for tag in example.tags if tag not in self.tags)

    def tag_texts(self, model: nn.Module, texts: Sequence[str]) -> list[Tagged]:
        """The words of unsegmented texts and their tags; a blank in a text ends a word."""
        rows = ["".join(text.split()) for text in texts]
        sentences = []
        for text, row, labels in zip(texts, rows, self.tag(model, rows), strict=True):
            breaks = {*accumulate(map(len, text.split()))}
            sentences.append(join_characters(row, labels, breaks))
        return sentences

    def predict(self, model: nn.Module, inputs: Sequence[object]) -> list[Tagging]:
        """Words and tags of each text; words are split as in the training data, or found in unsegmented text."""
        given = [self.text_and_spans(item) for item in inputs]
        if self.word_features is None:
            return [Tagging(s.words, s.tags) for s in self.tag_texts(model, [text for text, _ in given])]
        rows = [[text[start:end] for start, end in spans] for text, spans in given]
        return [Tagging(tuple(words), tuple(tags)) for words, tags in zip(rows, self.tag(model, rows), strict=True)]

    def describe(self, examples: Sequence[Tagged]) -> JsonObject:
        """Facts that `check` shows: sizes, tags, share of unknown words or characters, examples."""
        rows = [self.as_tokens(example).words for example in examples]
        return {
            "sentences": len(examples),
            "words": sum(len(example.words) for example in examples),
            **({"characters": sum(map(len, rows))} if self.word_features is None else {}),
            **self.describe_tokens(rows),
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
