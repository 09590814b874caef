"""Question answering: the part of a passage that answers a question, by pointers to its first and last token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...data.annotations.answers import CONTEXT_NAMES, QUESTION_NAMES, QuestionAnswer, read_answers
from ...data.batching import batch_by_size
from ...data.json_values import JsonObject, ParsedObject
from ...data.reading import Reading, split
from ...errors import BadInput
from ...models.config import SequenceConfig
from ...models.heads import SpanHeadConfig
from ...models.tokenizers.tokenizer import Tokenizer, pad_rows
from ...nn.embeddings.text import TextEmbeddingConfig
from ...settings import Settings, setting
from ..architecture import Architecture, stack_of
from ..inputs.cache import MethodCache
from ..metrics.answers import answer_f1, exact_match
from ..pretrained.pretrained import Encoder, Pretrained
from ..results import Answer
from ..task import Batch, Scores, Task, require_tokenizer
from .pair_inputs import SEGMENTS, parse_object

if TYPE_CHECKING:
    from tokenizers import Encoding

Place = tuple[int, int]


@dataclass(frozen=True)
class AnswerSettings(Settings):
    """Settings of the task `answer`. A passage that does not fit is read in windows that overlap."""

    question: str | None = setting(None, "Column of the questions.")
    context: str | None = setting(None, "Column of the passages.")
    answer: str | None = setting(None, "Column of the answers, which are parts of the passages.")
    unit: Literal["words", "wordpiece", "bpe", "unigram", "characters"] = setting(
        "words", "What a token of a text is: words, characters, or subwords of a trained tokenizer."
    )
    vocab_size: int = setting(20000, "Size of the texts' vocabulary.", ge=1)
    lowercase: bool = setting(True, "Turn texts to lower case.")
    max_length: int = setting(384, "Tokens of question and passage that are read at once.", ge=16)
    stride: int = setting(128, "Tokens that two windows of a passage have in common.", ge=0)
    max_answer: int = setting(30, "Tokens of the longest answer.", ge=1)
    word_dropout: float = setting(0.1, "Share of the tokens that are hidden in training.", ge=0, lt=1)


@dataclass(frozen=True)
class AnswerWindow:
    """A question with a part of its passage. `places` are the characters of the passage that a token covers, None for
    the question and special tokens; `first` and `last` the tokens of the answer, 0 where the window has none."""

    tokens: tuple[int, ...]
    segments: tuple[int, ...]
    places: tuple[Place | None, ...]
    first: int = 0
    last: int = 0


class AnswerQuestions(Task[AnswerSettings, QuestionAnswer, AnswerWindow]):
    """The answer in a passage: exact match and F1 as SQuAD defines them."""

    name = "answer"
    Settings = AnswerSettings
    reads_rows = True

    def __init__(self, settings: AnswerSettings, tokenizer: Tokenizer, own: bool, unanswered: bool) -> None:
        self.settings, self._tokenizer, self.own, self.unanswered = settings, tokenizer, own, unanswered
        self.max_length = settings.max_length
        self.encoder: Encoder | None = None
        self.cached_windows = MethodCache(self.encode_windows, 1 << 16)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @classmethod
    def read(cls, paths: Sequence[Path], settings: AnswerSettings) -> Reading[QuestionAnswer]:
        return read_answers(paths, question=settings.question, context=settings.context, answer=settings.answer)

    @classmethod
    def prepare(cls, examples: Sequence[QuestionAnswer], settings: AnswerSettings) -> AnswerQuestions:
        """The task for these training examples: its vocabulary, and whether some questions have no answer."""
        check_answers(examples)
        texts = [*{example.context for example in examples}, *(example.question for example in examples)]
        tokenizer = Tokenizer.train(sorted(texts), settings.unit, settings.vocab_size, settings.lowercase)
        return cls(settings, tokenizer, True, any(not example.answers for example in examples))

    @classmethod
    def prepare_from(
        cls, examples: Sequence[QuestionAnswer], settings: AnswerSettings, pretrained: Pretrained
    ) -> AnswerQuestions:
        check_answers(examples)
        task = cls(settings, pretrained.tokenizer, False, any(not example.answers for example in examples))
        task.encoder = pretrained.encoder("tokens")
        task.max_length = min(settings.max_length, task.encoder.max_length or settings.max_length)
        return task

    def as_dict(self) -> JsonObject:
        return {"own_tokenizer": self.own, "unanswered": self.unanswered, "max_length": self.max_length}

    @classmethod
    def from_dict(
        cls, data: ParsedObject, settings: AnswerSettings, tokenizer: Tokenizer | None = None
    ) -> AnswerQuestions:
        task = cls(settings, require_tokenizer(tokenizer), data["own_tokenizer"], data["unanswered"])
        task.max_length = data["max_length"]
        return task

    def config(self, a: Architecture) -> SequenceConfig:
        if self.encoder is not None:
            return SequenceConfig(*self.encoder.layer_configs(a), head=SpanHeadConfig(a.dim))
        positions = a.position_embedding(self.max_length or self.settings.max_length)
        size, pad = self.tokenizer.size, self.tokenizer.pad
        embed = TextEmbeddingConfig(size, a.dim, positions, SEGMENTS, scaled=True, padding=pad, dropout=a.dropout)
        return SequenceConfig(embed, stack_of(a), head=SpanHeadConfig(a.dim))

    def initialize(self, model: nn.Module) -> None:
        if self.encoder is not None:
            self.encoder.initialize(model)

    def encode_windows(self, example: QuestionAnswer) -> tuple[AnswerWindow, ...]:
        """The windows of an example, each with the question and the tokens of the answer, if it is inside."""
        backend, limit = self.tokenizer.backend, self.max_length or self.settings.max_length
        question = backend.encode(example.question, add_special_tokens=False)
        text = example.question
        if len(question.ids) > limit // 2:
            text = text[: question.offsets[limit // 2][0]]
        room = limit - min(len(question.ids), limit // 2) - backend.num_special_tokens_to_add(True)
        backend.enable_truncation(limit, stride=min(self.settings.stride, room // 2), strategy="only_second")
        try:
            whole = backend.encode(text, example.context)
        finally:
            backend.no_truncation()
        span = None
        if example.answers:
            start, text = example.answers[0]
            span = start, start + len(text)
        return tuple(self.make_window(encoding, span) for encoding in (whole, *whole.overflowing))

    def make_window(self, encoding: Encoding, span: Place | None) -> AnswerWindow:
        inside = [side == 1 for side in encoding.sequence_ids]
        places = tuple(place if own else None for place, own in zip(encoding.offsets, inside, strict=True))
        segments = self.make_segments(encoding)
        tokens = tuple(encoding.ids)
        return AnswerWindow(tokens, segments, places, *find_tokens(places, span))

    def make_segments(self, encoding: Encoding) -> tuple[int, ...]:
        """The segments of a checkpoint, or for a new model which text a token is of and whether both have it."""
        if not self.own:
            return tuple(encoding.type_ids)
        rows = list(zip(encoding.ids, encoding.sequence_ids, strict=True))
        words = [{token for token, side in rows if side == n} for n in (0, 1)]
        return tuple(0 if side is None else side + 2 * (token in words[1 - side]) for token, side in rows)

    def epoch_examples(self, examples: Sequence[QuestionAnswer], rng: Random) -> Sequence[AnswerWindow]:
        return [window for example in examples for window in self.cached_windows(example)]

    def sizes(self, examples: Sequence[QuestionAnswer | AnswerWindow]) -> list[int]:
        return [
            len(example.tokens) if isinstance(example, AnswerWindow) else sum(map(len, self.token_rows(example)))
            for example in examples
        ]

    def token_rows(self, example: QuestionAnswer) -> list[tuple[int, ...]]:
        return [window.tokens for window in self.cached_windows(example)]

    def batch(self, examples: Sequence[QuestionAnswer | AnswerWindow], rng: Random | None = None) -> Batch:
        """The windows of a batch; `allowed` tokens are those of the passage, and the first, which means no answer."""
        windows = [
            window
            for example in examples
            for window in ([example] if isinstance(example, AnswerWindow) else self.cached_windows(example))
        ]
        tokens = [list(window.tokens) for window in windows]
        if rng is not None and self.settings.word_dropout:
            hidden = self.tokenizer.unknown if self.own else self.tokenizer.mask
            for row, window in zip(tokens, windows, strict=True):
                for n, place in enumerate(window.places):
                    if place is not None and rng.random() < self.settings.word_dropout:
                        row[n] = hidden or 0
        allowed = [[n == 0 or place is not None for n, place in enumerate(window.places)] for window in windows]
        batch = {
            "tokens": pad_rows(tokens, self.tokenizer.pad or 0),
            "lengths": torch.tensor([len(row) for row in tokens]),
            "allowed": pad_rows([[int(flag) for flag in row] for row in allowed], 0).bool(),
            "labels": torch.tensor([[window.first, window.last] for window in windows]),
        }
        if self.own or self.tokenizer.segments:
            batch["segments"] = pad_rows([list(window.segments) for window in windows], 0)
        return batch

    def count(self, batch: Batch) -> int:
        return batch["labels"].numel()

    def pointers(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits of the first and the last token, `[batch, 2, tokens]`; −∞ where no answer can be."""
        given = {name: batch[name] for name in ("tokens", "lengths", "segments") if name in batch}
        return model(**given).logits.float().mT.masked_fill(~batch["allowed"][:, None], -torch.inf)

    def loss(self, model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
        logits = self.pointers(model, batch)
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")

    @torch.no_grad()
    def find_answers(self, model: nn.Module, examples: Sequence[QuestionAnswer], tokens: int = 16384) -> list[Answer]:
        """The best answer of each question over the windows of its passage."""
        windows = [(n, window) for n, example in enumerate(examples) for window in self.cached_windows(example)]
        device = next(model.parameters()).device
        best: dict[int, tuple[float, float, Place | None]] = {}
        for numbers in batch_by_size([len(window.tokens) for _, window in windows], tokens):
            batch = {name: x.to(device) for name, x in self.batch([windows[k][1] for k in numbers]).items()}
            for k, row in zip(numbers, self.pointers(model, batch).cpu(), strict=True):
                n, window = windows[k]
                span = self.best_span(row[:, : len(window.tokens)], window)
                if n not in best or span[0] > best[n][0]:
                    best[n] = span
        return [make_answer(example, *best[n][1:]) for n, example in enumerate(examples)]

    def best_span(self, logits: Tensor, window: AnswerWindow) -> tuple[float, float, Place | None]:
        """(score, probability, characters) of the best span of a window; None where no answer is more likely.

        The score is the sum of the two logits less that of no answer, so that windows can be compared.
        """
        first, last = logits
        place = torch.arange(len(first))
        distance = place[None, :] - place[:, None]
        pairs = first[:, None] + last[None, :]
        pairs = pairs.masked_fill((distance < 0) | (distance >= self.settings.max_answer), -torch.inf)
        pairs[0], pairs[:, 0] = -torch.inf, -torch.inf
        empty = float(first[0] + last[0])
        probabilities = logits.softmax(-1)
        start, end = divmod(int(pairs.argmax()), len(first))
        score = float(pairs[start, end])
        if score == -torch.inf or (self.unanswered and empty > score):
            return (score - empty if score > -torch.inf else -torch.inf), float(probabilities[:, 0].prod()), None
        a, b = window.places[start], window.places[end]
        assert a is not None and b is not None
        return score - empty, float(probabilities[0, start] * probabilities[1, end]), (a[0], b[1])

    def evaluate(self, model: nn.Module, examples: Sequence[QuestionAnswer]) -> Scores:
        """Exact match and F1 of words, each the best over the gold answers of a question."""
        predicted = [answer.text for answer in self.find_answers(model, examples)]
        gold = [[text for _, text in example.answers] for example in examples]
        count = max(1, len(examples))
        metrics = {
            "F1": sum(map(answer_f1, predicted, gold)) / count,
            "exact match": sum(map(exact_match, predicted, gold)) / count,
        }
        return Scores(metrics, "F1", hypotheses=predicted)

    def example_records(self, examples: Sequence[QuestionAnswer]) -> list[dict[str, str]]:
        return [
            {"input": example.question, "gold": example.answers[0][1] if example.answers else ""}
            for example in examples
        ]

    @classmethod
    def split(
        cls, reading: Reading[QuestionAnswer], share: float, seed: int
    ) -> tuple[Reading[QuestionAnswer], Reading[QuestionAnswer]]:
        """(training data, validation data): a passage is in one of them with all its questions."""
        return split(reading, share, seed, by=lambda example: example.context)

    def choices(self, examples: Sequence[QuestionAnswer]) -> list[str]:
        """Passages in several windows, answers that are too long, questions without an answer."""
        windows = [self.cached_windows(example) for example in examples]
        sentences = []
        if many := sum(len(own) > 1 for own in windows):
            sentences.append(f"{many:,} of {len(examples):,} passages are read in several windows (max_length).")
        lengths = [window.last - window.first + 1 for own in windows for window in own if window.first]
        if long := sum(length > self.settings.max_answer for length in lengths):
            sentences.append(f"{long:,} answers are longer than max_answer={self.settings.max_answer} tokens.")
        if none := sum(not example.answers for example in examples):
            sentences.append(f"{none:,} questions have no answer; the model may answer with nothing.")
        return sentences

    def text_inputs(self, text: str) -> Batch:
        question, _, context = text.partition("\t")
        window = self.encode_windows(QuestionAnswer(question, context or question, ()))[0]
        batch = self.batch([window])
        return {name: batch[name] for name in ("tokens", "lengths", "segments") if name in batch}

    def predict(self, model: nn.Module, inputs: Sequence[object]) -> list[Answer]:
        """The answer of each question with its passage."""
        return self.find_answers(model, [self.question_of(given) for given in inputs])

    def question_of(self, given: object) -> QuestionAnswer:
        """The question and the passage of an input: a dictionary, or a text with a tab between them."""
        given = parse_object(given)
        if isinstance(given, Mapping):
            folded = {str(name).casefold(): value for name, value in given.items()}
            names = ((self.settings.question, *QUESTION_NAMES), (self.settings.context, *CONTEXT_NAMES))
            given = tuple(next((folded[n] for n in own if n in folded), None) for own in names)
        elif isinstance(given, str):
            given = tuple(given.split("\t", 1))
        parts = list(given) if isinstance(given, tuple | list) else []
        texts = [text for text in parts if isinstance(text, str) and text]
        if len(parts) != 2 or len(texts) != 2:
            raise BadInput(
                f"An input is {given!r:.60}. This model answers questions about passages: give both with a tab "
                'between them, or {"question": ..., "context": ...}.'
            )
        return QuestionAnswer(texts[0].strip(), texts[1], ())

    def describe(self, examples: Sequence[QuestionAnswer]) -> JsonObject:
        """Facts that `check` shows."""
        windows = [self.cached_windows(example) for example in examples]
        answered = [example for example in examples if example.answers]
        return {
            "questions": len(examples),
            "passages": len({example.context for example in examples}),
            "without answer": len(examples) - len(answered),
            "windows": sum(map(len, windows)),
            "longest": max(len(window.tokens) for own in windows for window in own),
            "vocabulary": self.tokenizer.size,
            "examples": [f"{e.question:.60} → {e.answers[0][1]:.40}" for e in answered[:3]],
        }


def check_answers(examples: Sequence[QuestionAnswer]) -> None:
    if not any(example.answers for example in examples):
        raise BadInput(f"None of the {len(examples)} questions has an answer. Look at the file with `regard check`.")


def find_tokens(places: Sequence[Place | None], span: Place | None) -> Place:
    """The first and the last token of a span, (0, 0) where not all of its characters are there.

    >>> find_tokens([None, (0, 3), (4, 7), (8, 9)], (4, 9)), find_tokens([None, (0, 3)], (0, 9))
    ((2, 3), (0, 0))
    """
    if span is None:
        return 0, 0
    covered = [(n, p) for n, p in enumerate(places) if p is not None and p[0] < span[1] and p[1] > span[0]]
    if not covered or covered[0][1][0] > span[0] or covered[-1][1][1] < span[1]:
        return 0, 0
    return covered[0][0], covered[-1][0]


def make_answer(example: QuestionAnswer, probability: float, place: Place | None) -> Answer:
    start, end = place or (0, 0)
    return Answer(example.question, example.context[start:end], start, end, probability)
