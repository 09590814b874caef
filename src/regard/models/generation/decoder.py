"""The logits of the next token from decoders and encoder–decoders alike, with or without a cache."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...errors import BadInput
from ...nn.cache import Cache
from ...nn.caches.buffers import KeyValueBuffers
from ...nn.caches.config import CacheConfig
from ..model import EncoderDecoderModel, Model


class CachedDecoder:
    """Returns the logits of the next token, `[batch, vocabulary]`, and caches keys and values."""

    def __init__(self, model: Model, source: dict[str, Tensor], cache: Cache | None = None) -> None:
        self.model, self.source, self.cache = model, source, cache
        self.reads = "targets" if isinstance(model, EncoderDecoderModel) else "tokens"

    def begin(self, prompt: Tensor, lengths: Tensor | None) -> Tensor:
        """The logits after the prompt `[batch, tokens]`, of which row b has `lengths[b]`."""
        optional = {} if lengths is None else {"lengths": lengths}
        output = self.model(**{self.reads: prompt}, **self.source, **optional, cache=self.cache)
        self.cache = output.cache
        return select_last(output.logits, lengths)

    def next(self, tokens: Tensor) -> Tensor:
        """The logits after one more token a row, `[batch]`."""
        output = self.model(**{self.reads: tokens[:, None]}, cache=self.cache)
        self.cache = output.cache
        return output.logits[:, -1]

    def select(self, rows: Tensor) -> None:
        """Continue with those rows, in that order."""
        if self.cache is not None:
            self.cache = self.cache.select(rows)


class UncachedDecoder:
    """Returns the same logits, computed from the first token on at each step."""

    def __init__(self, model: Model, source: dict[str, Tensor]) -> None:
        self.model, self.source = model, source
        self.paired = isinstance(model, EncoderDecoderModel)

    def begin(self, prompt: Tensor, lengths: Tensor | None) -> Tensor:
        self.tokens, self.lengths = prompt, lengths
        return self.last_logits()

    def next(self, tokens: Tensor) -> Tensor:
        if self.lengths is None:
            self.tokens = torch.cat([self.tokens, tokens[:, None]], dim=1)
        else:
            room = torch.zeros_like(tokens)[:, None]
            self.tokens = torch.cat([self.tokens, room], dim=1).scatter(1, self.lengths[:, None], tokens[:, None])
            self.lengths = self.lengths + 1
        return self.last_logits()

    def last_logits(self) -> Tensor:
        if self.paired:
            return self.model(targets=self.tokens, **self.source).logits[:, -1]
        return select_last(self.model(tokens=self.tokens, lengths=self.lengths).logits, self.lengths)

    def select(self, rows: Tensor) -> None:
        self.tokens = self.tokens[rows]
        self.lengths = None if self.lengths is None else self.lengths[rows]
        self.source = {name: value[rows] for name, value in self.source.items()}


Decoder = CachedDecoder | UncachedDecoder


def make_cache(setting: bool | str | CacheConfig | Cache, prompt: Tensor, max_new: int) -> Cache:
    """The cache to begin with: an empty one, or one that holds a prefix, with a row for each row of the prompt."""
    if isinstance(setting, Cache):
        return repeat_prefix(setting, prompt)
    if setting is True:
        return Cache()
    if setting == "sliding":
        config = CacheConfig(sliding=True)
    else:
        config = setting if isinstance(setting, CacheConfig) else CacheConfig(setting)  # type: ignore[arg-type]
    if config.kind == "static" and config.tokens is None:
        config = replace(config, tokens=prompt.shape[1] + max_new)
    return Cache(config=config)


def repeat_prefix(cache: Cache, prompt: Tensor) -> Cache:
    """The cache of a prefix for every row of the prompt; pages are shared, other kinds are copied."""
    batches = {entry.tensors()[0].shape[0] for entry in cache.entries.values() if isinstance(entry, KeyValueBuffers)}
    rows = prompt.shape[0]
    if batches <= {rows}:
        return cache
    if batches == {1}:
        return cache.select(torch.zeros(rows, dtype=torch.long, device=prompt.device))
    raise BadInput(
        f"The cache has {max(batches)} rows, and tokens has {rows}. Give a cache of one row, or one for each prompt."
    )


def select_last(logits: Tensor, lengths: Tensor | None) -> Tensor:
    """The logits of each row's last token, `[batch, vocabulary]`."""
    if lengths is None:
        return logits[:, -1]
    return logits[torch.arange(logits.shape[0], device=logits.device), lengths - 1]
