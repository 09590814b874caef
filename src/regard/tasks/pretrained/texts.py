"""Texts as the tokenizer of a checkpoint divides them: rows of subwords, of one text, of two, or of words."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from ...models.heads import IGNORED
from ...models.tokenizers.tokenizer import Tokenizer, pad_rows
from ..task import Batch

if TYPE_CHECKING:
    from tokenizers import Encoding

CACHED_TEXTS = 1 << 18
"""Texts whose tokens are cached."""

Given = str | tuple[str, ...]
"""A text, or a sentence of words."""
Row = tuple[list[int], list[int], list[int | None]]
"""Tokens, segments, and the word of each token (None for special ones)."""


class SubwordTexts:
    """Texts as tokens of a trained tokenizer, each divided once and cut to `max_length` tokens.

    >>> texts = SubwordTexts(Tokenizer.train(["the cat sat"], unit="words", size=20), max_length=4)
    >>> texts.batch(["the cat", "the cat sat"])["lengths"].tolist(), texts.lengths(["the cat sat"])
    ([4, 4], [5])
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int | None = None) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.cache: dict[Hashable, Row] = {}
        self.lock = Lock()  # batches are prepared in another thread while the model is evaluated
        backend = tokenizer.backend
        backend.no_padding()
        backend.no_truncation()
        self.special = backend.num_special_tokens_to_add(False), backend.num_special_tokens_to_add(True)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, lock=Lock())

    def batch(self, firsts: Sequence[str], seconds: Sequence[str] | None = None) -> Batch:
        """`tokens`, `lengths`, and `segments` where the model has them, of texts or of pairs of texts."""
        return self.collate(self.rows(firsts, seconds))

    def word_batch(self, sentences: Sequence[Sequence[str]]) -> Batch:
        """`batch` of sentences of words, and `words [batch, tokens]`: the word of each token, −1 for special ones.

        Words that do not fit into `max_length` tokens have no token.
        """
        rows = self.rows([tuple(sentence) for sentence in sentences])
        numbers = [[-1 if word is None else word for word in words] for _, _, words in rows]
        return {**self.collate(rows), "words": pad_rows(numbers, -1)}

    def sizes(self, firsts: Sequence[Given], seconds: Sequence[str] | None = None) -> list[int]:
        """How many tokens of each text, pair or sentence of words are read."""
        return [len(tokens) for tokens, _, _ in self.rows(firsts, seconds)]

    def lengths(self, firsts: Sequence[Given], seconds: Sequence[str] | None = None) -> list[int]:
        """How many tokens each text, pair or sentence of words has, before it is cut."""
        return [len(encoding.ids) for encoding in self.encode(firsts, seconds)]

    def rows(self, firsts: Sequence[Given], seconds: Sequence[str] | None = None) -> list[Row]:
        """The tokens of each input, from the cache where it has them."""
        others = [None] * len(firsts) if seconds is None else seconds
        keys = list(zip(firsts, others, strict=True))
        numbers = {key: n for n, key in enumerate(keys)}
        new = [n for key, n in numbers.items() if key not in self.cache]
        if new and len(self.cache) + len(new) > CACHED_TEXTS:
            self.cache.clear()
            new = list(numbers.values())
        if new:
            second = None if seconds is None else [seconds[n] for n in new]
            for n, encoding in zip(new, self.encode([firsts[n] for n in new], second, self.max_length), strict=True):
                self.cache[keys[n]] = (encoding.ids, encoding.type_ids, encoding.word_ids)
        return [self.cache[key] for key in keys]

    def encode(
        self, firsts: Sequence[Given], seconds: Sequence[str] | None, max_length: int | None = None
    ) -> list[Encoding]:
        """The encodings of the `tokenizers` library; a text that is a tuple is a sentence of words."""
        backend = self.tokenizer.backend
        inputs: Sequence[object] = list(firsts) if seconds is None else list(zip(firsts, seconds, strict=True))
        words = bool(inputs) and seconds is None and not isinstance(inputs[0], str)
        if words and "ByteLevel" in str(backend.pre_tokenizer):  # its words begin with their space
            inputs = [[word if n == 0 else f" {word}" for n, word in enumerate(sentence)] for sentence in firsts]
        with self.lock:
            if max_length is not None:
                backend.enable_truncation(max_length=max(max_length, self.special[seconds is not None] + 1))
            try:
                return backend.encode_batch(inputs, is_pretokenized=words)
            finally:
                backend.no_truncation()

    def pad_batch(self, batch: Batch, models: int = 1) -> Batch:
        """The batch padded to few shapes for CUDA graphs: 32 rows for each model and 16 tokens, or multiples of them.

        Words and their features are padded to as many columns as there are tokens.
        """
        fills = {"tokens": self.fill, "words": -1, "labels": IGNORED}
        sizes = zip(batch["tokens"].shape, (32 * models, 16), strict=True)
        rows, tokens = (-(-size // step) * step for size, step in sizes)
        padded = {}
        for name, x in batch.items():
            added = [0, 0] * (x.dim() - 2) + ([0, tokens - x.shape[1]] if x.dim() > 1 else []) + [0, rows - x.shape[0]]
            padded[name] = functional.pad(x, added, value=fills.get(name, 0))
        return padded

    @property
    def fill(self) -> int:
        """The token that fills rows."""
        return next((token for token in (self.tokenizer.pad, self.tokenizer.end) if token is not None), 0)

    def collate(self, rows: Sequence[Row]) -> Batch:
        """Rows of different lengths as one batch."""
        batch = {
            "tokens": pad_rows([tokens for tokens, _, _ in rows], self.fill),
            "lengths": torch.tensor([len(tokens) for tokens, _, _ in rows]),
        }
        if self.tokenizer.segments and any(any(segments) for _, segments, _ in rows):
            batch["segments"] = pad_rows([segments for _, segments, _ in rows], 0)
        return batch
