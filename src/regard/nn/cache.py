"""The cache of a decoder between calls: keys and values, inputs of earlier segments, recurrent states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MINIMUM_GROWTH = 64  # tokens


class TokenBuffer:
    """Keys or values that grow: `[batch, kv_heads, capacity, head_dim]`, written up to `filled`.

    Several entries may share one buffer. Appending to an entry that is not the end of its buffer makes a copy, so no
    entry sees what another appends.
    """

    def __init__(self, buffer: Tensor, filled: int | None = None) -> None:
        self.buffer, self.filled = buffer, buffer.shape[2] if filled is None else filled

    def append(self, x: Tensor, start: int, end: int) -> tuple[TokenBuffer, int]:
        """A buffer with x after the tokens from `start` to `end`, and where those tokens start in it."""
        whole = end + x.shape[2]
        if torch.is_grad_enabled() and (x.requires_grad or self.buffer.requires_grad):
            return TokenBuffer(torch.cat([self.buffer[:, :, start:end], x], dim=2)), 0
        if whole <= self.buffer.shape[2] and self.filled == end:
            self.buffer[:, :, end:whole] = x
            self.filled = whole
            return self, start
        return self.grow(x, start, end), 0

    def grow(self, x: Tensor, start: int, end: int) -> TokenBuffer:
        """A larger buffer with the tokens from `start` to `end`, and x after them."""
        old, count = self.buffer[:, :, start:end], end - start + x.shape[2]
        grown = TokenBuffer(x.new_empty(*x.shape[:2], count + max(MINIMUM_GROWTH, count // 2), x.shape[3]), count)
        grown.buffer[:, :, : end - start] = old
        grown.buffer[:, :, end - start : count] = x
        return grown

    def detach(self) -> TokenBuffer:
        return TokenBuffer(self.buffer.detach(), self.filled) if self.buffer.requires_grad else self

    def select(self, rows: Tensor, start: int, end: int) -> TokenBuffer:
        """The tokens from `start` to `end` of those rows, with the same capacity."""
        buffer = self.buffer.new_empty(rows.shape[0], *self.buffer.shape[1:])
        buffer[:, :, : end - start] = self.buffer[:, :, start:end][rows]
        return TokenBuffer(buffer, end - start)


@dataclass(frozen=True)
class KeyValueBuffers:
    """The keys and values of one layer: the tokens from `start` to `end` of their buffers."""

    keys: TokenBuffer
    values: TokenBuffer
    start: int
    end: int

    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.keys.buffer[:, :, self.start : self.end], self.values.buffer[:, :, self.start : self.end]

    def append(self, k: Tensor, v: Tensor) -> KeyValueBuffers:
        keys, start = self.keys.append(k, self.start, self.end)
        values, _ = self.values.append(v, self.start, self.end)
        return KeyValueBuffers(keys, values, start, start + self.end - self.start + k.shape[2])

    def last(self, count: int) -> KeyValueBuffers:
        """The last `count` tokens, without gradient."""
        start = max(self.start, self.end - count)
        return KeyValueBuffers(self.keys.detach(), self.values.detach(), start, self.end)

    def select(self, rows: Tensor) -> KeyValueBuffers:
        keys, values = (buffer.select(rows, self.start, self.end) for buffer in (self.keys, self.values))
        return KeyValueBuffers(keys, values, 0, self.end - self.start)


class Cache:
    """The cache of a decoder. A call returns the next cache and leaves its own argument unchanged.

    `length` counts the tokens so far, padding included; `padding [batch]` counts those before a row's first real token,
    where prompts of different length end together. Layers put `entries` under a name, of the last `memory_length`
    tokens where that is a number.
    """

    def __init__(
        self,
        length: int = 0,
        padding: Tensor | None = None,
        entries: dict[str, Any] | None = None,
        memory_length: int | None = None,
    ) -> None:
        self.length, self.padding = length, padding
        self.entries, self.memory_length = {} if entries is None else entries, memory_length

    def __repr__(self) -> str:
        return f"Cache(length={self.length}, {len(self.entries)} entries)"

    def next(self) -> Cache:
        """A copy that layers may write into."""
        return Cache(self.length, self.padding, dict(self.entries), self.memory_length)

    @property
    def cached_tokens(self) -> int:
        """How many of the tokens so far are still cached."""
        return self.length if self.memory_length is None else min(self.length, self.memory_length)

    def extend(self, name: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values under that name, the new ones last; `[batch, kv_heads, keys, head_dim]`."""
        before = self.entries.get(name)
        if before is None:
            extended = KeyValueBuffers(TokenBuffer(k), TokenBuffer(v), 0, k.shape[2])
        else:
            extended = before.append(k, v)
        self.entries[name] = extended if self.memory_length is None else extended.last(self.memory_length)
        return extended.tensors()

    def get(self, name: str) -> Any:
        """The value under that name, or None."""
        return self.entries.get(name)

    def put(self, name: str, value: Any) -> None:
        """Store a tensor, or a tuple of tensors, with the batch first; or any other value, shared by all rows."""
        self.entries[name] = value

    def layer(self, layer: int | str) -> LayerCache:
        """The cache of one layer."""
        return LayerCache(self, f"{layer}.")

    def real_keys(self, keys: int) -> Tensor | None:
        """Which of the first `keys` are not padding, `[batch, keys]`; None when all are real."""
        if self.padding is None:
            return None
        return torch.arange(keys, device=self.padding.device) >= self.padding[:, None]

    def select(self, rows: Tensor) -> Cache:
        """The cache of those rows of the batch, in that order, as beam search needs it."""
        padding = None if self.padding is None else self.padding[rows]
        entries = {name: select_rows(value, rows) for name, value in self.entries.items()}
        return Cache(self.length, padding, entries, self.memory_length)


def select_rows(value: Any, rows: Tensor) -> Any:
    """Those rows of a cached value."""
    if isinstance(value, KeyValueBuffers):
        return value.select(rows)
    if isinstance(value, tuple):
        return tuple(select_rows(item, rows) for item in value)
    return value[rows] if isinstance(value, Tensor) else value


class LayerCache:
    """The entries of one layer in a cache."""

    def __init__(self, cache: Cache, prefix: str) -> None:
        self.cache, self.prefix = cache, prefix

    @property
    def length(self) -> int:
        """The number of tokens before this call."""
        return self.cache.length

    @property
    def memory_length(self) -> int | None:
        """How many of them are cached at most; None when all are."""
        return self.cache.memory_length

    def extend(self, name: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache.extend(self.prefix + name, k, v)

    def get(self, name: str) -> Any:
        return self.cache.get(self.prefix + name)

    def put(self, name: str, value: Any) -> None:
        self.cache.put(self.prefix + name, value)
