"""What tasks with a label for every token share: settings, features of words or characters, the loss, decoding."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...data.batching import batch_by_size
from ...data.json_values import JsonObject, ParsedObject
from ...data.tagged import Tagged, read_words
from ...data.text import read_lines
from ...errors import BadInput
from ...models.config import SequenceConfig
from ...models.heads import IGNORED, ClassificationHeadConfig
from ...models.tokenizers.tokenizer import Tokenizer, pad_rows
from ...settings import Settings, setting
from ..architecture import Architecture, stack_of
from ..inputs.given import as_text
from ..inputs.words.boundaries import best_labels, boundary_labels
from ..inputs.words.characters import CharacterFeatures
from ..inputs.words.features import WordFeatures
from ..inputs.words.splitting import WordSplitter
from ..losses.r_drop import r_drop_loss, repeat_batch
from ..pretrained.pretrained import Encoder, Pretrained
from ..pretrained.texts import SubwordTexts
from ..task import Batch, Task, require_tokenizer

E = TypeVar("E")

MAX_SENTENCES = 50_000
"""Sentences up to which convolutions stand below attention by default."""
FEW_SENTENCES: dict[str, str | float] = {
    "model": "cnn+attention",
    "positions": "none",
    "dropout": 0.3,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup": 50,
    "ema": 0.98,
}
"""Defaults for few sentences. Convolutions see the neighbours of a token from the first step, which attention has to
find: 91.0 to 87.0 percent of the tags of other sentences after six epochs of 2,000 sentences (EWT). Of unsegmented
Chinese, 81 to 72 percent F1 of tagged words after four epochs of 2,389 sentences."""


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
    punctuation_dropout: float = setting(
        0.0,
        "Share of sentences whose final punctuation mark is left out in training, as in texts people type.",
        ge=0,
        le=1,
        former="unpunctuated",
    )
    unlabelled_text: str | None = setting(
        None,
        "File of plain text from which vectors of characters are computed before training.",
        file=True,
        former="texts",
    )
    r_drop: float = setting(0.0, "Weight of R-Drop's consistency loss; 0 is off.", ge=0)


class TokenTagger(Task[TagSettings, E, E], Generic[E]):
    """A label for every token of examples that `as_tokens` divides: words, or characters of unsegmented text."""

    def __init__(self, settings: TagSettings, features: WordFeatures | CharacterFeatures, tags: list[str]) -> None:
        self.settings, self.features, self.tags = settings, features, tags
        self._labels = self.token_labels()
        self.tag_number = {tag: n for n, tag in enumerate(self._labels)}
        self.splitter = WordSplitter(set(features.words)) if isinstance(features, WordFeatures) else None
        self.subwords: SubwordTexts | None = None
        self.encoder: Encoder | None = None

    def token_labels(self) -> list[str]:
        """The labels of tokens: the tags of words, or of characters where they stand in a word and its tag."""
        return self.tags if self.word_features is not None else boundary_labels(self.tags)

    @property
    def has_boundaries(self) -> bool:
        """Whether the labels say where words or spans begin and end, so that not every sequence is one."""
        return self.word_features is None

    @property
    def labels(self) -> list[str]:
        return self._labels

    @property
    def word_features(self) -> WordFeatures | None:
        return self.features if isinstance(self.features, WordFeatures) else None

    @classmethod
    def suggest_settings(cls, examples: Sequence[E], settings: TagSettings) -> dict[str, str | float]:
        """Those for few sentences; batches are small, so that a small file still gives many steps."""
        if len(examples) > MAX_SENTENCES:
            return {}
        return {**FEW_SENTENCES, "batch_tokens": 512 if len(examples) <= 5000 else 1024}

    @classmethod
    @abstractmethod
    def prepare(cls, examples: Sequence[E], settings: TagSettings) -> Self:
        """The task for these training examples: its words or characters, their features, and its tags."""

    @classmethod
    def prepare_from(cls, examples: Sequence[E], settings: TagSettings, pretrained: Pretrained) -> Self:
        """The task with the subwords of a checkpoint, whose vectors are pooled to words, beside the word features."""
        task = cls.prepare(examples, settings)
        task.subwords, task.encoder = pretrained.texts(None), pretrained.encoder("tokens")
        return task

    @property
    def tokenizer(self) -> Tokenizer | None:
        return None if self.subwords is None else self.subwords.tokenizer

    def as_dict(self) -> JsonObject:
        subwords = {} if self.subwords is None else {"subwords": {"max_length": self.subwords.max_length}}
        return {**self.features.as_dict(), "tags": self.tags, **subwords}

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: TagSettings, tokenizer: Tokenizer | None = None) -> Self:
        if settings.unit == "characters":
            task = cls(settings, CharacterFeatures.from_dict(data), data["tags"])
        else:
            words = WordFeatures.from_dict(data, settings.max_affix, settings.max_word_length)
            task = cls(settings, words, data["tags"])
        if "subwords" in data:
            task.subwords = SubwordTexts(require_tokenizer(tokenizer), data["subwords"]["max_length"])
        return task

    def config(self, a: Architecture) -> SequenceConfig:
        head = ClassificationHeadConfig(len(self.labels), a.dim, per_token=True, dropout=a.dropout)
        if self.encoder is not None:
            features = replace(self.features.embedding(a, self.settings.word_dim), positions=None)
            return SequenceConfig(*self.encoder.layer_configs(a), head=head, word_embed=features)
        return SequenceConfig(self.features.embedding(a, self.settings.word_dim), stack_of(a), head=head)

    def initialize(self, model: nn.Module) -> None:
        """Start from the weights of a checkpoint, or the vectors of characters from those of the setting `texts`."""
        if self.encoder is not None:
            self.encoder.initialize(model)
            return
        if isinstance(self.features, CharacterFeatures) and self.features.texts:
            weight: Tensor = model.embed.words.weight.data  # type: ignore[union-attr]
            vectors = self.features.vectors(weight.shape[1]).to(weight)
            weight[: len(vectors)] = torch.where((vectors != 0).any(1, keepdim=True), vectors, weight[: len(vectors)])

    @abstractmethod
    def as_tokens(self, example: E) -> Tagged:
        """The tokens of an example and their labels."""

    def sizes(self, examples: Sequence[E]) -> list[int]:
        rows = [self.as_tokens(example).words for example in examples]
        return [len(row) for row in rows] if self.subwords is None else self.subwords.sizes(list(map(tuple, rows)))

    def training_length(self, examples: Sequence[E]) -> int | None:
        return max(self.sizes(examples), default=None)

    def batch(self, examples: Sequence[E], rng: Random | None = None) -> Batch:
        tokens = [self.as_tokens(example) for example in examples]
        labels = [[self.tag_number.get(tag, IGNORED) for tag in example.tags] for example in tokens]
        return {**self.inputs([example.words for example in tokens], rng), "labels": pad_rows(labels, IGNORED)}

    def inputs(self, rows: Sequence[Sequence[str]], rng: Random | None = None) -> Batch:
        """The model's arguments for rows of words or characters."""
        if isinstance(self.features, WordFeatures):
            inputs = self.features.batch(rows, self.sample_dropout(self.features, rng))
        else:
            inputs = self.features.batch(rows, rng, self.settings.word_dropout, self.settings.rare_word_dropout)
        if self.subwords is None:
            return inputs
        return {**self.subwords.word_batch(rows), "features": inputs["tokens"]}

    @property
    def token_inputs(self) -> tuple[str, ...]:
        """Words and their labels; with subwords of a checkpoint, the subwords and the word of each."""
        return ("tokens", "labels") if self.subwords is None else ("tokens", "words", "segments")

    def pad_for_cuda_graph(self, batch: Batch) -> Batch:
        """The batch padded to few shapes; word features have room for the longest words."""
        if self.subwords is None:
            return batch
        width = batch["features"].shape[2]
        batch = {**batch, "features": functional.pad(batch["features"], (0, -width % 32))}
        return self.subwords.pad_batch(batch)

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
            twice = repeat_batch({name: x for name, x in batch.items() if name != "labels"})
            logits = model(**twice).logits.flatten(0, 1).float()
            return r_drop_loss(logits, batch["labels"].flatten(), smoothing, self.settings.r_drop)
        logits = model(**{name: x for name, x in batch.items() if name != "labels"}).logits
        return functional.cross_entropy(
            logits.flatten(0, 1).float(),
            batch["labels"].flatten(),
            ignore_index=IGNORED,
            label_smoothing=smoothing,
            reduction="sum",
        )

    def tag(self, model: nn.Module, sentences: Sequence[Sequence[str]], tokens: int = 8192) -> list[list[str]]:
        """The labels of each sentence's words or characters; those of characters form whole words."""
        labels: dict[int, list[str]] = {}
        for numbers, logits in self.batch_logits(model, sentences, tokens):
            lengths = [len(sentences[n]) for n in numbers]
            for row, n in zip(self.decode(logits, lengths), numbers, strict=True):
                labels[n] = [self.labels[label] for label in row]
        return [labels.get(n, []) for n in range(len(sentences))]

    @torch.no_grad()
    def batch_logits(
        self, model: nn.Module, sentences: Sequence[Sequence[str]], tokens: int = 8192
    ) -> Iterator[tuple[list[int], Tensor]]:
        """The logits `[batch, tokens, labels]` of sentences, each batch with their indices; empty ones are left out."""
        device = next(model.parameters()).device
        filled = [n for n, words in enumerate(sentences) if words]
        for batch_indices in batch_by_size([len(sentences[n]) for n in filled], tokens):
            numbers = [filled[k] for k in batch_indices]
            inputs = self.inputs([sentences[n] for n in numbers])
            yield numbers, model(**{name: x.to(device) for name, x in inputs.items()}).logits

    def decode(self, logits: Tensor, lengths: Sequence[int]) -> list[list[int]]:
        """The labels of each sentence: the likeliest of each token, or of those that form whole words or spans."""
        if self.has_boundaries:
            return best_labels(logits, torch.tensor(lengths), self.labels)
        return [row[:length] for row, length in zip(logits.argmax(-1).tolist(), lengths, strict=True)]

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """The characters that each token of a text covers: words as in the training data, or single characters."""
        if self.splitter is not None:
            return self.splitter.spans(text)
        return [match.span() for match in re.finditer(r"\S", text)]

    def text_and_spans(self, given: object) -> tuple[str, list[tuple[int, int]]]:
        """The text of an input and the characters of each token; of {"words": […]} each word is a token."""
        words = given.get("words") if isinstance(given, Mapping) else None
        if not isinstance(words, list | tuple):
            text = as_text(given)
            return text, self.token_spans(text)
        if not words or not all(isinstance(word, str) and word.strip() for word in words):
            raise BadInput(f"The words are {words!r:.60}; wanted a list of words, none of them empty.")
        if self.splitter is None:
            text = "".join(words)
            return text, self.token_spans(text)
        ends = list(accumulate(len(word) + 1 for word in words))
        return " ".join(words), [(end - len(word) - 1, end - 1) for word, end in zip(words, ends, strict=True)]

    def sentences_of(self, path: Path) -> Sequence[Sequence[str]] | None:
        """The sentences of a file in the form of the training data: CoNLL-U, lists of words, or words with tags."""
        known = {"O", *self.tags}
        return read_words(path, lambda tag: tag in known or tag.partition("-")[2] in known)

    def text_inputs(self, text: str) -> Batch:
        return self.inputs([[text[start:end] for start, end in self.token_spans(text)]])

    def describe_tokens(self, rows: Sequence[Sequence[str]]) -> JsonObject:
        """Lengths of rows of tokens, the size of the vocabulary, and the share of unknown tokens."""
        lengths, tokens = sorted(map(len, rows)), [token for row in rows for token in row]
        known = self.features.words if isinstance(self.features, WordFeatures) else self.features.characters
        counts = Counter(tokens)
        unknown = len(tokens) - sum(counts[token] for token in known)
        return {
            "median length": lengths[len(lengths) // 2],
            "longest": lengths[-1],
            "vocabulary": len(known),
            "unknown": unknown / max(1, len(tokens)),
        }


AnyTagger: TypeAlias = TokenTagger[Any]
"""A tagger of any examples."""


def token_features(rows: Iterable[Sequence[str]], settings: TagSettings) -> WordFeatures | CharacterFeatures:
    """The features of these words, or of their characters."""
    if settings.unit == "characters":
        texts = read_lines([Path(settings.unlabelled_text)]).examples[0].lines if settings.unlabelled_text else ()
        return CharacterFeatures.from_rows(("".join(row) for row in rows), settings.min_count, texts)
    return WordFeatures.from_words(rows, settings.min_count, settings.max_affix, settings.max_word_length)
