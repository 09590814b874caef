"""Labelled spans of texts, such as names of people and places: a label of each token says where a span begins, ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from torch import nn

from ...data.annotations.spans import LabelledSpan, SpannedText, read_spans, spans_of_tags
from ...data.json_values import JsonObject, ParsedObject
from ...data.reading import Reading, split
from ...data.tables.column_profiles import CHINESE_LETTER
from ...data.tagged import Tagged
from ...errors import BadInput
from ...models.tokenizers.tokenizer import Tokenizer
from ...settings import setting
from ..inputs.cache import MethodCache
from ..inputs.words.boundaries import OUTSIDE, boundary_labels, places_of
from ..inputs.words.characters import CharacterFeatures
from ..inputs.words.features import WordFeatures
from ..metrics.spans import span_scores
from ..results import Span, Spans
from ..task import Scores
from .token_tagger import TagSettings, TokenTagger, token_features

WORD = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]|\d+(?:[.,:]\d+)*(?!\w)|[^\W_]+|[^\w\s]|_")
"""A word of a text without given words: a Chinese character, a number, a run of letters, or another character."""
RARE = 5
"""Spans of a label under which it is named before training."""


@dataclass(frozen=True)
class SpansSettings(TagSettings):
    """Settings of the task `spans`: those of `tag`, for tokens whose labels say where a span begins and ends.

    Sequences of labels that are no whole spans are never predicted.
    """

    unit: Literal["auto", "words", "characters"] = setting(  # type: ignore[assignment]
        "auto", "What a token is; auto takes the file's words, or characters where most letters are Chinese."
    )
    column: str | None = setting(None, "Column of the tags or spans: a name, or the number of a column of text.")
    punctuation_dropout: float = setting(0.0, "Not used by this task.", ge=0, le=0, former="unpunctuated")


class SpanTagger(TokenTagger[SpannedText]):
    """Spans of texts: `SpannedText` examples. The metric is F1 of spans, as seqeval computes it."""

    name = "spans"
    Settings = SpansSettings

    def __init__(
        self, settings: TagSettings, features: WordFeatures | CharacterFeatures, tags: list[str], words: bool = True
    ) -> None:
        super().__init__(settings, features, tags)
        self.given_words = words
        self.cached_tokens = MethodCache(self.label_tokens, 1 << 17)

    def token_labels(self) -> list[str]:
        return [OUTSIDE, *boundary_labels(self.tags)]

    @property
    def has_boundaries(self) -> bool:
        return True

    @classmethod
    def read(cls, paths: Sequence[Path], settings: TagSettings) -> Reading[SpannedText]:
        return read_spans(paths, column=settings.column)

    @classmethod
    def prepare(cls, examples: Sequence[SpannedText], settings: TagSettings) -> Self:
        """The task for these training examples: its tokens, their features, and the labels of spans."""
        labels = sorted({span.label for example in examples for span in example.spans})
        if not labels:
            raise BadInput(f"There is no span in {len(examples)} texts. Look at the file with `regard check`.")
        words = all(example.words is not None for example in examples)
        settings = replace(settings, unit=choose_unit(examples, settings.unit, words))
        rows = [token_texts(example, token_places(example, settings.unit)) for example in examples]
        return cls(settings, token_features(rows, settings), labels, words)

    def as_dict(self) -> JsonObject:
        return {**super().as_dict(), "given_words": self.given_words}

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: TagSettings, tokenizer: Tokenizer | None = None) -> Self:
        task = super().from_dict(data, settings, tokenizer)
        task.given_words = data["given_words"]
        return task

    def label_tokens(self, example: SpannedText) -> Tagged:
        """The tokens of a text and their labels; a span has all tokens that it has a character of."""
        places = token_places(example, self.settings.unit)
        labels = [OUTSIDE] * len(places)
        for span in example.spans:
            inside = [n for n, (start, end) in enumerate(places) if start < span.end and end > span.start]
            for n, place in zip(inside, places_of(len(inside)) if inside else "", strict=True):
                labels[n] = f"{place}-{span.label}"
        return Tagged(token_texts(example, places), tuple(labels))

    def as_tokens(self, example: SpannedText) -> Tagged:
        return self.cached_tokens(example)

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        if self.given_words:
            return super().token_spans(text)
        return token_places(SpannedText(text, ()), self.settings.unit)

    def find_spans(
        self, model: nn.Module, texts: Sequence[str], places: Sequence[Sequence[tuple[int, int]]]
    ) -> list[Spans]:
        """The spans of texts whose tokens are known; their probability is the mean over their tokens (geometric)."""
        rows = [[text[start:end] for start, end in own] for text, own in zip(texts, places, strict=True)]
        results = {n: Spans(text, ()) for n, text in enumerate(texts)}
        for numbers, logits in self.batch_logits(model, rows):
            chosen = self.decode(logits, [len(rows[n]) for n in numbers])
            logs = logits.float().log_softmax(-1).cpu()
            for n, labels, own in zip(numbers, chosen, logs, strict=True):
                of_label = own[range(len(labels)), labels]
                spans = []
                for first, last, label in spans_of_tags([self.labels[number] for number in labels]):
                    start, end = places[n][first][0], places[n][last - 1][1]
                    probability = float(of_label[first:last].mean().exp())
                    spans.append(Span(label, texts[n][start:end], start, end, probability))
                results[n] = Spans(texts[n], tuple(spans))
        return [results[n] for n in range(len(texts))]

    def evaluate(self, model: nn.Module, examples: Sequence[SpannedText]) -> Scores:
        """F1, precision and recall of spans; the same of each label."""
        places = [token_places(example, self.settings.unit) for example in examples]
        results = self.find_spans(model, [example.text for example in examples], places)
        gold = [[(span.start, span.end, span.label) for span in example.spans] for example in examples]
        predicted = [[(span.start, span.end, span.label) for span in result.spans] for result in results]
        metrics, per_label = span_scores(gold, predicted)
        lines = [format_spans(row.text, row.spans) for row in map(as_example, results)]
        return Scores(metrics, "F1", hypotheses=lines, details={"per label": per_label})

    def example_records(self, examples: Sequence[SpannedText]) -> list[dict[str, str]]:
        return [{"input": e.text, "gold": format_spans(e.text, e.spans)} for e in examples]

    def unknown_labels(self, examples: Sequence[SpannedText]) -> Counter[str]:
        labels = (span.label for example in examples for span in example.spans)
        return Counter(label for label in labels if label not in self.tags)

    @classmethod
    def split(
        cls, reading: Reading[SpannedText], share: float, seed: int
    ) -> tuple[Reading[SpannedText], Reading[SpannedText]]:
        """(training data, validation data), with about the same share of the texts with each label."""
        counts = Counter(span.label for example in reading.examples for span in example.spans)

        def rarest(example: SpannedText) -> str:
            return min((span.label for span in example.spans), key=lambda label: (counts[label], label), default="")

        return split(reading, share, seed, stratify=rarest)

    def choices(self, examples: Sequence[SpannedText]) -> list[str]:
        """What a token is, labels with few spans, and spans that begin or end inside a token."""
        sentences = [f"A token is a {'word' if self.settings.unit == 'words' else 'character'}."]
        counts = Counter(span.label for example in examples for span in example.spans)
        if rare := [f"{label!r} ({count})" for label, count in counts.most_common()[::-1] if count < RARE][:5]:
            sentences.append(f"Labels with fewer than {RARE} spans are hardly learned: {', '.join(rare)}.")
        cut = sum(count_cut_spans(example, token_places(example, self.settings.unit)) for example in examples)
        if cut:
            sentences.append(
                f"{cut:,} of {counts.total():,} spans begin or end inside a word and cannot be found exactly. Give "
                "unit=characters."
            )
        return sentences

    def predict(self, model: nn.Module, inputs: Sequence[object]) -> list[Spans]:
        """The spans of each text, by the offsets of their characters."""
        texts, spans = zip(*map(self.text_and_spans, inputs), strict=True) if inputs else ((), ())
        return self.find_spans(model, texts, spans)

    def describe(self, examples: Sequence[SpannedText]) -> JsonObject:
        """Facts that `check` shows: those of tokens, and the labels of spans."""
        counts = Counter(span.label for example in examples for span in example.spans)
        rows = [self.as_tokens(example).words for example in examples]
        return {
            "texts": len(examples),
            "words": sum(map(len, rows)),
            **self.describe_tokens(rows),
            "unit": self.settings.unit,
            "spans": counts.total(),
            "labels": dict(counts.most_common()),
            "examples": [format_spans(e.text, e.spans) for e in examples[:3]],
        }


def choose_unit(examples: Sequence[SpannedText], unit: str, words: bool) -> Literal["words", "characters"]:
    """The tokens of these texts: the file's words, or characters where most letters are Chinese."""
    if unit != "auto":
        return "characters" if unit == "characters" else "words"
    letters = "".join(example.text for example in examples[:1000])
    chinese = len(CHINESE_LETTER.findall(letters)) > sum(map(str.isalpha, letters)) / 2
    return "characters" if chinese and not words else "words"


def token_places(example: SpannedText, unit: str) -> list[tuple[int, int]]:
    """(start, end) of the tokens of a text.

    >>> token_places(SpannedText("Ada's 1.5 猫", ()), "words")
    [(0, 3), (3, 4), (4, 5), (6, 9), (10, 11)]
    """
    if unit == "characters":
        return [match.span() for match in re.finditer(r"\S", example.text)]
    return list(example.words) if example.words is not None else [m.span() for m in WORD.finditer(example.text)]


def token_texts(example: SpannedText, places: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    return tuple(example.text[start:end] for start, end in places)


def count_cut_spans(example: SpannedText, places: Sequence[tuple[int, int]]) -> int:
    starts, ends = {start for start, _ in places}, {end for _, end in places}
    return sum(span.start not in starts or span.end not in ends for span in example.spans)


def as_example(result: Spans) -> SpannedText:
    return SpannedText(result.input, tuple(LabelledSpan(s.start, s.end, s.label) for s in result.spans))


def format_spans(text: str, spans: Sequence[LabelledSpan]) -> str:
    """The text with its spans in brackets.

    >>> format_spans("Ada wrote", [LabelledSpan(0, 3, "PER")])
    '[Ada]/PER wrote'
    """
    for span in sorted(spans, reverse=True):
        text = f"{text[: span.start]}[{text[span.start : span.end]}]/{span.label}{text[span.end :]}"
    return text
