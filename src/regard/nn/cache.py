"""The cache of a decoder between calls: keys and values, inputs of earlier segments, recurrent states."""

from __future__ import annotations

import math
from typing import TypeVar, overload

import torch
from torch import Tensor

from ..attention.parts.mask import Mask
from .caches.buffers import KeyValueBuffers
from .caches.config import CacheConfig, CacheKind, CachePlan, PagePools, plan_entries

T = TypeVar("T")
DYNAMIC = CacheConfig()


class Cache:
    """The cache of a decoder. A call returns the next cache and leaves its own argument unchanged.

    `length` counts the tokens so far, padding included; `padding [batch]` counts those before a row's first real token,
    where prompts of different length end together. Layers put `entries` under a name, of the last `memory_length`
    tokens where that is a number. `config` is how keys and values are kept, a word its kind; dynamic unless given.

    >>> import regard as rg
    >>> model = rg.models.gpt2(layers=2, dim=8, heads=2, vocabulary=11, positions=64).build().eval()
    >>> with torch.no_grad():
    ...     cache = model(tokens=torch.ones(1, 40, dtype=torch.long), cache=Cache(config="int8")).cache
    >>> planned = cache.plan()
    >>> planned.tokens, 0 < planned.key_error < 0.02, planned.bytes < planned.in_full
    (40, True, True)
    """

    def __init__(
        self,
        length: int = 0,
        padding: Tensor | None = None,
        entries: dict[str, object] | None = None,
        memory_length: int | None = None,
        config: CacheConfig | CacheKind | None = None,
    ) -> None:
        self.length, self.padding = length, padding
        self.entries: dict[str, object] = {} if entries is None else entries
        self.memory_length = memory_length
        # a default that is an object cannot be traced by torch.compile; a global can
        self.config = DYNAMIC if config is None else config if isinstance(config, CacheConfig) else CacheConfig(config)
        self.pools = PagePools()

    def __repr__(self) -> str:
        kind = "" if self.config == DYNAMIC else f", {self.config}"
        return f"Cache(length={self.length}, {len(self.entries)} entries{kind})"

    def copy(self, padding: Tensor | None, entries: dict[str, object]) -> Cache:
        """A cache of the same length and configuration."""
        copied = Cache(self.length, padding, entries, self.memory_length, self.config)
        copied.pools = self.pools
        return copied

    def next(self) -> Cache:
        """A copy that layers may write into."""
        return self.copy(self.padding, dict(self.entries))

    @property
    def cached_tokens(self) -> int:
        """How many of the tokens so far are still cached, by layers whose mask allows all of them."""
        return self.count_cached(None)

    def count_cached(self, mask: Mask | None) -> int:
        """How many of the tokens so far are still cached by layers with that mask."""
        most = self.most_cached(mask, self.length)
        return self.length if most is None else min(self.length, most)

    def most_cached(self, mask: Mask | None, tokens: int) -> int | None:
        """The most of so many tokens that layers with that mask keep; None where they keep all.

        Tokens are dropped by multiples of the mask's `key_period`, so that those that are left are where they were in
        it. Where rows have padding before them, each row is elsewhere in it, and as many more are kept.
        """
        span = mask.key_span(tokens, tokens) if self.config.sliding and mask is not None else None
        if mask is None or span is None or math.isinf(span[0]):
            return self.memory_length
        period = mask.key_period
        seen = max(tokens - int(span[0]) // period * period, 0) + (0 if self.padding is None else period - 1)
        return seen if self.memory_length is None else min(self.memory_length, seen)

    def extend(self, name: str, k: Tensor, v: Tensor, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
        """All keys and values under that name, the new ones last; `[batch, kv_heads, keys, head_dim]`.

        `mask` is the layer's; a sliding cache drops what it will never allow again.
        """
        before = self.get(name, KeyValueBuffers)
        extended = self.config.begin(k, v, self.padding, self.pools) if before is None else before.append(k, v)
        most = self.most_cached(mask, self.length + k.shape[2])
        self.entries[name] = extended if most is None else extended.last(most)
        return (k, v) if before is None else extended.tensors()

    def plan(self) -> CachePlan:
        """What the cache holds, in tokens and bytes, and how much its keys and values err."""
        entries = [entry for entry in self.entries.values() if isinstance(entry, KeyValueBuffers)]
        return plan_entries(self.config.kind, entries)

    @overload
    def get(self, name: str) -> object: ...
    @overload
    def get(self, name: str, entry_type: type[T]) -> T | None: ...
    def get(self, name: str, entry_type: type = object) -> object:
        """The value under that name, or None; also None for a value of another type."""
        entry = self.entries.get(name)
        return entry if isinstance(entry, entry_type) else None

    def put(self, name: str, value: object) -> None:
        """Store a tensor, or a tuple of tensors, with the batch first; or any other value, shared by all rows."""
        self.entries[name] = value

    def layer(self, layer: int | str, mask: Mask | None = None) -> LayerCache:
        """The cache of one layer, which has that mask in every call."""
        return LayerCache(self, f"{layer}.", mask)

    def real_keys(self, keys: int) -> Tensor | None:
        """Which of the first `keys` are not padding, `[batch, keys]`; None when all are real."""
        if self.padding is None:
            return None
        return torch.arange(keys, device=self.padding.device) >= self.padding[:, None]

    def select(self, rows: Tensor) -> Cache:
        """The cache of those rows of the batch, in that order, as beam search needs it."""
        padding = None if self.padding is None else self.padding[rows]
        entries = {name: select_rows(value, rows) for name, value in self.entries.items()}
        return self.copy(padding, entries)


def select_rows(value: object, rows: Tensor) -> object:
    """Those rows of a cached value."""
    if isinstance(value, KeyValueBuffers):
        return value.select(rows)
    if isinstance(value, tuple):
        return tuple(select_rows(item, rows) for item in value)
    return value[rows] if isinstance(value, Tensor) else value


class LayerCache:
    """The entries of one layer in a cache."""

    def __init__(self, cache: Cache, prefix: str, mask: Mask | None = None) -> None:
        self.cache, self.prefix, self.mask = cache, prefix, mask

    @property
    def length(self) -> int:
        """The number of tokens before this call."""
        return self.cache.length

    @property
    def memory_length(self) -> int | None:
        """How many of them are cached at most; None when all are."""
        return self.cache.memory_length

    def extend(self, name: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache.extend(self.prefix + name, k, v, self.mask)

    def get(self, name: str, entry_type: type[T]) -> T | None:
        return self.cache.get(self.prefix + name, entry_type)

    def put(self, name: str, value: object) -> None:
        self.cache.put(self.prefix + name, value)
