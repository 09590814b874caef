"""Texts as inputs: tokens of a vocabulary that is trained on the training texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...data.arrays import Arrays
from ...data.files import Paths, file_format
from ...data.reading import MalformedData, Reading
from ...data.text import LabelledText, read_texts
from ...errors import BadInput
from ...models.baselines.linear import NBLinearConfig
from ...models.tokenizers.tokenizer import Tokenizer
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.embeddings.word_vectors import WordVectors, read_vectors
from ..architecture import Architecture, stack_of
from .word_features import ALL, PAD, UNKNOWN, WordFeatures

if TYPE_CHECKING:
    from ..classify import ClassifySettings
    from ..match import MatchSettings

MAX_WORD_LENGTH = 20
"""Letters of a word that are read (see `WordFeatures`)."""
CACHED_TEXTS = 1 << 17
"""Texts whose words are cached."""


class TextInputs:
    """Texts as tokens; with word vectors, the vocabulary also has all words with a vector."""

    kind = "text"
    SETTINGS = (
        "unit",
        "vocab_size",
        "lowercase",
        "max_length",
        "word_dropout",
        "vectors",
        "frozen",
        "max_affix",
        "char_ngrams",
        "nb_linear",
        "rare_word_dropout",
    )

    def __init__(
        self,
        settings: ClassifySettings | MatchSettings,
        tokenizer: Tokenizer,
        vector_dim: int | None = None,
        vectors: WordVectors | None = None,
        word_features: WordFeatures | None = None,
    ) -> None:
        self.settings, self.tokenizer, self.vector_dim, self.vectors = settings, tokenizer, vector_dim, vectors
        self.word_features = word_features
        self.cached_words = lru_cache(CACHED_TEXTS)(self.words)

    @staticmethod
    def read(paths: Paths, settings: ClassifySettings) -> Reading[LabelledText]:
        return read_texts(paths, text=settings.input, label=settings.label)

    @classmethod
    def from_examples(cls, examples: Sequence[LabelledText], settings: ClassifySettings | MatchSettings) -> TextInputs:
        """The vocabulary of these texts."""
        texts = [example.text for example in examples]
        max_affix, char_ngrams = settings.max_affix, settings.char_ngrams
        if (max_affix or char_ngrams) and (settings.unit != "words" or settings.vectors is not None):
            raise BadInput(
                "max_affix and char_ngrams are features of words without word vectors. Give unit='words' and no "
                "vectors, or max_affix=0 and char_ngrams=0."
            )
        if settings.vectors is None:
            inputs = cls(settings, Tokenizer.train(texts, settings.unit, settings.vocab_size, settings.lowercase))
            if max_affix or char_ngrams:
                rows = map(inputs.words, texts)
                inputs.word_features = WordFeatures.from_words(rows, 1, max_affix, MAX_WORD_LENGTH, char_ngrams)
            return inputs
        if settings.unit != "words":
            raise BadInput(f"Vectors of words go with unit 'words', not {settings.unit!r}. Leave out one of the two.")
        vectors = open_vectors(Path(settings.vectors))
        size = settings.vocab_size + 2 * len(vectors.words)
        tokenizer = Tokenizer.train([*texts, " ".join(vectors.words)], "words", size, settings.lowercase)
        return cls(settings, tokenizer, vectors.dim, vectors)

    def as_dict(self) -> dict[str, Any]:
        features = {} if self.word_features is None else {"spelling": self.word_features.as_dict()}
        return {"vector_dim": self.vector_dim, **features}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: ClassifySettings | MatchSettings, tokenizer: Any) -> TextInputs:
        saved, sizes = data.get("spelling"), (settings.max_affix, MAX_WORD_LENGTH, settings.char_ngrams)
        features = None if saved is None else WordFeatures.from_dict(saved, *sizes)
        return cls(settings, tokenizer, data["vector_dim"], word_features=features)

    def layer_configs(self, a: Architecture) -> tuple[Any, Any]:
        """(embedding, stack)."""
        if self.word_features is not None:
            return self.word_features.embedding(a), stack_of(a)
        positions = {"sinusoidal": "sinusoidal", "learned": self.settings.max_length, "none": None}[a.positions]
        embed = TextEmbeddingConfig(
            self.tokenizer.size,
            a.dim,
            positions,  # type: ignore[arg-type]
            scaled=self.vector_dim is None,
            inner=self.vector_dim,
            padding=self.tokenizer.pad,
            dropout=a.dropout,
        )
        return embed, stack_of(a)

    def nb_linear_config(self, classes: int) -> NBLinearConfig:
        """The linear classifier over the same indices, and over pairs of words and of their longest prefixes."""
        rows = self.settings.nb_linear
        if self.word_features is None:
            ignored = (self.tokenizer.pad or 0, self.tokenizer.unknown or 0)
            return NBLinearConfig(self.tokenizer.size, rows, classes, ignored=ignored)
        prefix = self.word_features.longest_prefix_column
        paired = (0,) if prefix is None else (0, prefix)
        return NBLinearConfig(
            self.word_features.size, rows, classes, 1 + self.word_features.columns, paired, ignored=(PAD, UNKNOWN)
        )

    def initialize(self, model: nn.Module) -> None:
        """Load word vectors into the embedding."""
        if self.vectors is None:
            return
        embedding = self.vectors.embedding(self.tokenizer.backend.get_vocab(), torch.Generator().manual_seed(0))
        weight: nn.Parameter = model.embed.tokens.weight  # type: ignore[union-attr]
        weight.data.copy_(embedding.weight)
        weight.requires_grad_(not self.settings.frozen)

    def sizes(self, examples: Sequence[LabelledText]) -> list[int]:
        return self.encode([example.text for example in examples])["lengths"].tolist()

    def batch(self, examples: Sequence[LabelledText], rng: Random | None) -> dict[str, Tensor]:
        if self.word_features is not None:
            rows = [self.cached_words(example.text) or [""] for example in examples]
            return self.word_features.batch(rows, self.sample_dropout(self.word_features, rng))
        inputs = self.encode([example.text for example in examples])
        if rng is None or not self.settings.word_dropout:
            return inputs
        tokens, lengths = inputs["tokens"], inputs["lengths"]
        dropped = torch.tensor([[rng.random() < self.settings.word_dropout for _ in row] for row in tokens.tolist()])
        positions = torch.arange(tokens.shape[1])
        inside = (positions > 0) & (positions < lengths[:, None] - 1)  # the first and last tokens are special
        return {**inputs, "tokens": tokens.masked_fill(dropped & inside, self.tokenizer.unknown or 0)}

    def encode(self, texts: list[str]) -> dict[str, Tensor]:
        encoding = self.tokenizer(texts, max_length=self.settings.max_length)
        return {"tokens": encoding.tokens, "lengths": encoding.lengths}

    def words(self, text: str) -> list[str]:
        """The words of a text that are read."""
        return self.split_text(text)[: self.settings.max_length]

    def split_text(self, text: str) -> list[str]:
        """All words of a text as the tokenizer splits them."""
        backend = self.tokenizer.backend
        text = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]

    def sample_dropout(self, features: WordFeatures, rng: Random | None) -> Callable[[str], int] | None:
        """In training (`rng` is given), a function that samples what is dropped of a word; None in evaluation."""
        share, rare = self.settings.word_dropout, self.settings.rare_word_dropout
        if rng is None:
            return None
        return lambda word: ALL if rng.random() < share else features.sample_dropout(word, rng, 0.0, rare)

    def choices(self, examples: Sequence[LabelledText]) -> list[str]:
        """How many texts are longer than what is read of them."""
        limit = self.settings.max_length
        if self.word_features is not None:
            lengths = [len(self.split_text(example.text)) for example in examples]
        else:
            texts = [example.text for example in examples]
            lengths = [len(encoding.ids) for encoding in self.tokenizer.backend.encode_batch_fast(texts)]
        return truncation_note(lengths, limit, "texts")

    def example_of(self, text: str) -> LabelledText:
        """An example for an argument of `predict`."""
        return LabelledText(text, "")

    def describe(self, examples: Sequence[LabelledText]) -> dict[str, Any]:
        encoding = self.encode([example.text for example in examples])
        lengths = sorted(encoding["lengths"].tolist())
        counts = Counter(encoding["tokens"].flatten().tolist())
        total = sum(lengths)
        return {
            "tokens": total,
            "median length": lengths[len(lengths) // 2],
            "longest": lengths[-1],
            "vocabulary": self.tokenizer.size,
            "unknown": counts[self.tokenizer.unknown or 0] / max(1, total),
            "examples": [f"{example.label}: {example.text[:70]}" for example in examples[:3]],
        }


def truncation_note(lengths: Sequence[int], limit: int, what: str) -> list[str]:
    """A sentence that says how many of these lengths exceed the limit; none if none does.

    >>> truncation_note([3, 9], 5, "texts")
    ['1 of 2 texts is longer than max_length=5 tokens (the longest has 9): the rest of it is not read.']
    """
    count = sum(length > limit for length in lengths)
    if not count:
        return []
    verb, rest = ("is", "it") if count == 1 else ("are", "them")
    longest = f"max_length={limit:,} tokens (the longest has {max(lengths):,})"
    return [f"{count:,} of {len(lengths):,} {what} {verb} longer than {longest}: the rest of {rest} is not read."]


def open_vectors(path: Path) -> WordVectors:
    """Word vectors from a GloVe or word2vec file, or from NPZ with the arrays `words` and `vectors`."""
    if file_format(path) != "npz":
        return read_vectors(path)
    try:
        arrays = Arrays(path)
        vectors = torch.from_numpy(arrays.get("vectors", "vectors").astype("float32"))
        return WordVectors(arrays.texts("words", len(vectors), "word"), vectors)
    except MalformedData as error:
        raise BadInput(str(error)) from None
