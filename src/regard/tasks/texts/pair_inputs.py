"""Pairs of texts as inputs: both in one row of tokens, so that every token attends to both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...data.annotations.pairs import FIRST_NAMES, POSITIVE_NAMES, SECOND_NAMES, LabelledPair
from ...data.json_values import JsonObject, ParsedObject
from ...data.tables import ColumnSpec
from ...errors import BadInput
from ...models.interfaces import EmbeddingConfig, LayersConfig
from ...models.tokenizers.tokenizer import Tokenizer, pad_rows
from ...nn.embeddings.text import TextEmbeddingConfig
from ..architecture import Architecture, stack_of
from ..inputs.cache import MethodCache
from ..inputs.text import truncation_note
from ..pretrained.texts import SubwordTexts
from ..task import require_tokenizer

if TYPE_CHECKING:
    from ..pretrained.pretrained import Encoder, Pretrained
    from .pairs import PairsSettings

SEGMENTS = 4
"""Segments of a new model: a token of the first or the second text, which the other text has (2, 3) or has not."""
CACHED_PAIRS = 1 << 17


class PairInputs:
    """`[CLS] first [SEP] second [SEP]` with segments.

    The segments of a new model also say which tokens both texts have. Those of a checkpoint are its own.
    """

    kind = "pair"

    def __init__(self, settings: PairsSettings, tokenizer: Tokenizer, subwords: SubwordTexts | None = None) -> None:
        self.settings, self.tokenizer, self.subwords = settings, tokenizer, subwords
        self.encoder: Encoder | None = None
        self.cached_rows = MethodCache(self.encode_pair, CACHED_PAIRS)

    @classmethod
    def from_examples(cls, examples: Sequence[LabelledPair], settings: PairsSettings) -> PairInputs:
        """The vocabulary of these texts."""
        texts = [text for example in examples for text in (example.first, example.second)]
        return cls(settings, Tokenizer.train(texts, settings.unit, settings.vocab_size, settings.lowercase))

    @classmethod
    def from_pretrained(cls, pretrained: Pretrained, settings: PairsSettings) -> PairInputs:
        """Pairs as a checkpoint reads them."""
        inputs = cls(settings, pretrained.tokenizer, pretrained.texts(settings.max_length))
        inputs.encoder = pretrained.encoder("tokens")
        return inputs

    def as_dict(self) -> JsonObject:
        return {} if self.subwords is None else {"subwords": {"max_length": self.subwords.max_length}}

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: PairsSettings, tokenizer: Tokenizer | None) -> PairInputs:
        tokenizer, saved = require_tokenizer(tokenizer), data.get("subwords")
        return cls(settings, tokenizer, None if saved is None else SubwordTexts(tokenizer, saved["max_length"]))

    def layer_configs(self, a: Architecture) -> tuple[EmbeddingConfig, LayersConfig]:
        """(embedding, stack)."""
        if self.encoder is not None:
            return self.encoder.layer_configs(a)
        positions = a.position_embedding(self.settings.max_length)
        size, pad = self.tokenizer.size, self.tokenizer.pad
        embed = TextEmbeddingConfig(size, a.dim, positions, SEGMENTS, scaled=True, padding=pad, dropout=a.dropout)
        return embed, stack_of(a)

    def initialize(self, model: nn.Module) -> None:
        """Load the weights of a checkpoint."""
        if self.encoder is not None:
            self.encoder.initialize(model)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """(tokens, segments) of a pair."""
        encoded = self.tokenizer([first], [second], self.settings.max_length)
        tokens = encoded.tokens[0].tolist()
        sides = encoded.segments[0].tolist() if encoded.segments is not None else [0] * len(tokens)
        special = {self.tokenizer.start, self.tokenizer.end}
        words = [{token for token, side in zip(tokens, sides, strict=True) if side == n} - special for n in (0, 1)]
        return tokens, [side + 2 * (token in words[1 - side]) for token, side in zip(tokens, sides, strict=True)]

    def sizes(self, examples: Sequence[LabelledPair]) -> list[int]:
        if self.subwords is not None:
            return self.subwords.sizes([e.first for e in examples], [e.second for e in examples])
        return [len(self.cached_rows(example.first, example.second)[0]) for example in examples]

    def batch(self, examples: Sequence[LabelledPair], rng: Random | None) -> dict[str, Tensor]:
        """The pairs; in training half of the symmetric ones are swapped, and tokens are hidden."""
        if rng is not None and self.settings.symmetric:
            examples = [swap(example) if rng.random() < 0.5 else example for example in examples]
        if self.subwords is not None:
            return self.subwords.batch([e.first for e in examples], [e.second for e in examples])
        rows = [self.cached_rows(example.first, example.second) for example in examples]
        tokens = [list(row) for row, _ in rows]
        if rng is not None and self.settings.word_dropout:
            special = {self.tokenizer.start, self.tokenizer.end}
            for row in tokens:
                for n, token in enumerate(row):
                    if token not in special and rng.random() < self.settings.word_dropout:
                        row[n] = self.tokenizer.unknown or 0
        return {
            "tokens": pad_rows(tokens, self.tokenizer.pad or 0),
            "lengths": torch.tensor([len(row) for row in tokens]),
            "segments": pad_rows([segments for _, segments in rows], 0),
        }

    def example_of(self, given: object) -> LabelledPair:
        """An example for an input of `predict`: a dictionary of two texts, or a text with a tab between them."""
        first, second = pair_of(given, self.settings.first, self.settings.second)
        return LabelledPair(first, second, "")

    def choices(self, examples: Sequence[LabelledPair]) -> list[str]:
        """How many pairs are longer than what is read of them."""
        firsts, seconds = [e.first for e in examples], [e.second for e in examples]
        if self.subwords is not None:
            limit = self.subwords.max_length or self.settings.max_length
            return truncation_note(self.subwords.lengths(firsts, seconds), limit, "pairs")
        encoded = self.tokenizer.backend.encode_batch_fast(list(zip(firsts, seconds, strict=True)))
        return truncation_note([len(row.ids) for row in encoded], self.settings.max_length, "pairs")

    def describe(self, examples: Sequence[LabelledPair]) -> JsonObject:
        lengths = sorted(self.sizes(examples))
        counts = Counter(token for e in examples for token in self.cached_rows(e.first, e.second)[0])
        return {
            "tokens": sum(lengths),
            "median length": lengths[len(lengths) // 2],
            "longest": lengths[-1],
            "vocabulary": self.tokenizer.size,
            "unknown": counts[self.tokenizer.unknown or 0] / max(1, counts.total()),
            "examples": [f"{e.label}: {e.first:.40} | {e.second:.40}" for e in examples[:3]],
        }


def swap(pair: LabelledPair) -> LabelledPair:
    return replace(pair, first=pair.second, second=pair.first)


def parse_object(given: object) -> object:
    """The dictionary of a text that is a JSON object; anything else as it is."""
    if not isinstance(given, str) or not given.lstrip().startswith("{"):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{given!r:.60} is no JSON object ({error}). Mend it, or give the texts themselves.") from None


def pair_columns(first: str | None, second: str | None) -> tuple[ColumnSpec, ColumnSpec]:
    """The columns of the two texts in a table of inputs."""
    return (
        ColumnSpec("first text", first, FIRST_NAMES, "first", "text"),
        ColumnSpec("second text", second, (*POSITIVE_NAMES, *SECOND_NAMES), "second", "text"),
    )


def pair_of(given: object, first: str | None = None, second: str | None = None) -> tuple[str, str]:
    """The two texts of an input: a dictionary, a JSON object, a sequence of two, or a text with a tab between them.

    >>> pair_of("a cat\\ta dog") == pair_of({"premise": "a cat", "hypothesis": "a dog"}) == pair_of(("a cat", "a dog"))
    True
    """
    given = parse_object(given)
    if isinstance(given, str):
        given = tuple(given.split("\t"))
    if isinstance(given, Mapping):
        folded = {str(name).casefold(): value for name, value in given.items()}
        specs = pair_columns(first, second)
        names = [(str(spec.given),) if spec.given else spec.names for spec in specs]
        picked = [next((folded[n.casefold()] for n in own if n.casefold() in folded), None) for own in names]
        if None in picked:
            raise BadInput(
                f"An input has the keys {', '.join(map(str, given))}; wanted two texts. Name them first and second, or "
                "as the columns of the training data were named."
            )
        given = tuple(picked)
    parts = list(given) if isinstance(given, tuple | list) else []
    texts = [text.strip() for text in parts if isinstance(text, str)]
    if len(parts) != 2 or len(texts) != 2:
        raise BadInput(
            f"An input is {given!r:.60}. This model reads pairs of texts: give two with a tab between them, or "
            '{"first": ..., "second": ...}.'
        )
    return texts[0], texts[1]
