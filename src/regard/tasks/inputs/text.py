"""Texts as inputs: tokens of a vocabulary that is trained on the training texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from ...data.arrays import Arrays
from ...data.files import Paths, file_format
from ...data.json_values import JsonObject, ParsedObject
from ...data.reading import MalformedData, Reading
from ...data.text import LabelledText, read_texts
from ...errors import BadInput
from ...models.baselines.linear import NBLinearConfig
from ...models.interfaces import EmbeddingConfig, LayersConfig
from ...models.tokenizers.tokenizer import Tokenizer
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.embeddings.word_vectors import WordVectors, read_vectors
from ..architecture import Architecture, stack_of
from ..task import require_tokenizer
from .cache import MethodCache
from .given import as_text
from .words.features import ALL, PAD, UNKNOWN, WordFeatures
from .words.ngrams import NgramVocabulary

if TYPE_CHECKING:
    from ..classify import ClassifySettings
    from ..match import MatchSettings
    from ..pretrained.pretrained import Encoder, Pretrained
    from ..pretrained.texts import SubwordTexts

MAX_WORD_LENGTH = 20
"""Letters of a word that are read (see `WordFeatures`)."""
CACHED_TEXTS = 1 << 17
"""Texts whose words are cached."""


class WithText(Protocol):
    """An example with a text, such as `LabelledText` and `Captioned`."""

    @property
    def text(self) -> str: ...


class TextInputs:
    """Texts as tokens; with word vectors, the vocabulary also has all words with a vector.

    With `subwords` they are tokens of a checkpoint's tokenizer. With `ngrams`, outside of training, a text also has the
    features of the n-gram model beside the network.
    """

    kind = "text"
    SETTINGS = (
        "unit",
        "vocab_size",
        "lowercase",
        "max_length",
        "word_dropout",
        "vectors",
        "freeze_vectors",
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
        subwords: SubwordTexts | None = None,
    ) -> None:
        self.settings, self.tokenizer, self.vector_dim, self.vectors = settings, tokenizer, vector_dim, vectors
        self.word_features, self.subwords = word_features, subwords
        self.encoder: Encoder | None = None
        self.ngrams: NgramVocabulary | None = None
        self.cached_words = MethodCache(self.words, CACHED_TEXTS)

    @staticmethod
    def read(paths: Paths, settings: ClassifySettings) -> Reading[LabelledText]:
        text, label, target = settings.input, settings.label, settings.target
        return read_texts(paths, text=text, label=label, target=target)

    @classmethod
    def from_examples(cls, examples: Sequence[WithText], settings: ClassifySettings | MatchSettings) -> TextInputs:
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

    @classmethod
    def from_pretrained(cls, pretrained: Pretrained, settings: ClassifySettings | MatchSettings) -> TextInputs:
        """Texts as a checkpoint reads them: as its tokenizer divides them, or as the run did that it is."""
        encoder, before = pretrained.encoder("tokens"), pretrained.inputs
        if isinstance(before, TextInputs) and before.subwords is None:
            inputs = cls(settings, before.tokenizer, before.vector_dim, None, before.word_features)
        else:
            inputs = cls(settings, pretrained.tokenizer, subwords=pretrained.texts(settings.max_length))
        inputs.encoder = encoder
        return inputs

    def as_dict(self) -> JsonObject:
        ngrams = {} if self.ngrams is None else {"ngrams": self.ngrams.as_dict()}
        if self.subwords is not None:
            return {"vector_dim": None, "subwords": {"max_length": self.subwords.max_length}, **ngrams}
        features = {} if self.word_features is None else {"spelling": self.word_features.as_dict()}
        return {"vector_dim": self.vector_dim, **features, **ngrams}

    @classmethod
    def from_dict(
        cls, data: ParsedObject, settings: ClassifySettings | MatchSettings, tokenizer: Tokenizer | None
    ) -> TextInputs:
        tokenizer = require_tokenizer(tokenizer)
        if "subwords" in data:
            from ..pretrained.texts import SubwordTexts

            inputs = cls(settings, tokenizer, subwords=SubwordTexts(tokenizer, data["subwords"]["max_length"]))
        else:
            saved, sizes = data.get("spelling"), (settings.max_affix, MAX_WORD_LENGTH, settings.char_ngrams)
            features = None if saved is None else WordFeatures.from_dict(saved, *sizes)
            inputs = cls(settings, tokenizer, data["vector_dim"], word_features=features)
        inputs.ngrams = NgramVocabulary.from_dict(data["ngrams"]) if "ngrams" in data else None
        return inputs

    def layer_configs(self, a: Architecture) -> tuple[EmbeddingConfig, LayersConfig]:
        """(embedding, stack)."""
        if self.encoder is not None:
            return self.encoder.layer_configs(a)
        if self.word_features is not None:
            return self.word_features.embedding(a), stack_of(a)
        positions = a.position_embedding(self.settings.max_length)
        embed = TextEmbeddingConfig(
            self.tokenizer.size,
            a.dim,
            positions,
            scaled=self.vector_dim is None,
            inner=self.vector_dim,
            padding=self.tokenizer.pad,
            dropout=a.dropout,
        )
        return embed, stack_of(a)

    def nb_linear_config(self, classes: int, rows: int) -> NBLinearConfig:
        """The linear classifier over the same indices, and over pairs of words and of their longest prefixes."""
        if self.word_features is None:
            ignored = (self.tokenizer.pad or 0, self.tokenizer.unknown or 0)
            return NBLinearConfig(self.tokenizer.size, rows, classes, ignored=ignored)
        prefix = self.word_features.longest_prefix_column
        paired = (0,) if prefix is None else (0, prefix)
        return NBLinearConfig(
            self.word_features.size, rows, classes, 1 + self.word_features.columns, paired, ignored=(PAD, UNKNOWN)
        )

    def initialize(self, model: nn.Module) -> None:
        """Load the weights of a checkpoint, or word vectors into the embedding."""
        if self.encoder is not None:
            self.encoder.initialize(model)
        if self.vectors is None:
            return
        embedding = self.vectors.embedding(self.tokenizer.backend.get_vocab(), torch.Generator().manual_seed(0))
        weight: nn.Parameter = model.embed.tokens.weight  # type: ignore[union-attr]
        weight.data.copy_(embedding.weight)
        weight.requires_grad_(not self.settings.freeze_vectors)

    def sizes(self, examples: Sequence[WithText]) -> list[int]:
        if self.subwords is not None:
            return self.subwords.sizes([example.text for example in examples])
        return self.encode([example.text for example in examples])["lengths"].tolist()

    def batch(self, examples: Sequence[WithText], rng: Random | None) -> dict[str, Tensor]:
        inputs = self.token_batch(examples, rng)
        if self.ngrams is None or rng is not None:  # the n-gram model is not trained by steps
            return inputs
        return {**inputs, **self.ngrams.batch([example.text for example in examples])}

    def token_batch(self, examples: Sequence[WithText], rng: Random | None) -> dict[str, Tensor]:
        """What the network reads of texts."""
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
        unknown = self.tokenizer.mask if self.subwords is not None else self.tokenizer.unknown
        return {**inputs, "tokens": tokens.masked_fill(dropped & inside, unknown or 0)}

    def encode(self, texts: list[str]) -> dict[str, Tensor]:
        if self.subwords is not None:
            return self.subwords.batch(texts)
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

    def choices(self, texts: list[str]) -> list[str]:
        """How many texts are longer than what is read of them."""
        limit = self.settings.max_length
        if self.subwords is not None:
            lengths, limit = self.subwords.lengths(texts), self.subwords.max_length or limit
        elif self.word_features is not None:
            lengths = [len(self.split_text(text)) for text in texts]
        else:
            lengths = [len(encoding.ids) for encoding in self.tokenizer.backend.encode_batch_fast(texts)]
        return truncation_note(lengths, limit, "texts")

    def example_of(self, given: object) -> LabelledText:
        """An example for an input of `predict`."""
        return LabelledText(as_text(given, getattr(self.settings, "input", None)), "")

    def describe(self, examples: Sequence[LabelledText]) -> JsonObject:
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


def truncation_note(lengths: Sequence[int], limit: int, noun: str) -> list[str]:
    """A sentence that says how many of these lengths exceed the limit; none if none does.

    >>> truncation_note([3, 9], 5, "texts")
    ['1 of 2 texts is longer than max_length=5 tokens (the longest has 9): the rest of it is not read.']
    """
    count = sum(length > limit for length in lengths)
    if not count:
        return []
    verb, rest = ("is", "it") if count == 1 else ("are", "them")
    longest = f"max_length={limit:,} tokens (the longest has {max(lengths):,})"
    return [f"{count:,} of {len(lengths):,} {noun} {verb} longer than {longest}: the rest of {rest} is not read."]


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
