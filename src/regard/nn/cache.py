"""What a decoder remembers between calls: keys and values, memories of earlier segments, recurrent states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ROOM = 64


class Store:
    """Keys or values that grow: `[batch, kv_heads, capacity, head_dim]`, written up to `filled`.

    Views of one buffer share it; whoever appends to a view that is not its end gets a copy, so none sees another's.
    """

    def __init__(self, buffer: Tensor, filled: int | None = None) -> None:
        self.buffer, self.filled = buffer, buffer.shape[2] if filled is None else filled

    def append(self, x: Tensor, start: int, end: int) -> tuple[Store, int]:
        """The store with x after what stands from `start` to `end`, and where that begins now."""
        whole = end + x.shape[2]
        if torch.is_grad_enabled() and (x.requires_grad or self.buffer.requires_grad):
            return Store(torch.cat([self.buffer[:, :, start:end], x], dim=2)), 0
        if whole <= self.buffer.shape[2] and self.filled == end:
            self.buffer[:, :, end:whole] = x
            self.filled = whole
            return self, start
        return self.moved(x, start, end), 0

    def moved(self, x: Tensor, start: int, end: int) -> Store:
        """A larger store that begins with what stood from `start` to `end`, and x after it."""
        old, count = self.buffer[:, :, start:end], end - start + x.shape[2]
        store = Store(x.new_empty(*x.shape[:2], count + max(ROOM, count // 2), x.shape[3]), count)
        store.buffer[:, :, : end - start] = old
        store.buffer[:, :, end - start : count] = x
        return store

    def detached(self) -> Store:
        return Store(self.buffer.detach(), self.filled) if self.buffer.requires_grad else self

    def select(self, rows: Tensor, start: int, end: int) -> Store:
        """What stands from `start` to `end` in those rows, with room for as much more as here."""
        buffer = self.buffer.new_empty(rows.shape[0], *self.buffer.shape[1:])
        buffer[:, :, : end - start] = self.buffer[:, :, start:end][rows]
        return Store(buffer, end - start)


@dataclass(frozen=True)
class Kept:
    """The keys and values of one layer: what stands from `start` to `end` in their stores."""

    keys: Store
    values: Store
    start: int
    end: int

    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.keys.buffer[:, :, self.start : self.end], self.values.buffer[:, :, self.start : self.end]

    def append(self, k: Tensor, v: Tensor) -> Kept:
        keys, start = self.keys.append(k, self.start, self.end)
        values, _ = self.values.append(v, self.start, self.end)
        return Kept(keys, values, start, start + self.end - self.start + k.shape[2])

    def last(self, count: int) -> Kept:
        """The last `count` of them, which no gradient goes back to."""
        return Kept(self.keys.detached(), self.values.detached(), max(self.start, self.end - count), self.end)

    def select(self, rows: Tensor) -> Kept:
        keys, values = (store.select(rows, self.start, self.end) for store in (self.keys, self.values))
        return Kept(keys, values, 0, self.end - self.start)


class Cache:
    """What a decoder remembers. A call reads it and answers with the next; the one passed in stays as it was.

    `length` counts the tokens seen, padding included; `padding [batch]` those that stand before a row's first real
    token when prompts of different length end together. Layers keep what they need under a name, of the last `memory`
    tokens where that is a number.
    """

    def __init__(
        self,
        length: int = 0,
        padding: Tensor | None = None,
        kept: dict[str, Any] | None = None,
        memory: int | None = None,
    ) -> None:
        self.length, self.padding, self.kept, self.memory = length, padding, {} if kept is None else kept, memory

    def __repr__(self) -> str:
        return f"Cache(length={self.length}, {len(self.kept)} entries)"

    def next(self) -> Cache:
        """A cache that layers may write into, beginning as this one."""
        return Cache(self.length, self.padding, dict(self.kept), self.memory)

    @property
    def remembered(self) -> int:
        """How many of the tokens seen are still there."""
        return self.length if self.memory is None else min(self.length, self.memory)

    def extend(self, name: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values under that name, the new ones last; `[batch, kv_heads, keys, head_dim]`."""
        before = self.kept.get(name)
        every = Kept(Store(k), Store(v), 0, k.shape[2]) if before is None else before.append(k, v)
        self.kept[name] = every if self.memory is None else every.last(self.memory)
        return every.tensors()

    def get(self, name: str) -> Any:
        """What was put under that name; None when nothing was."""
        return self.kept.get(name)

    def put(self, name: str, value: Any) -> None:
        """Keep a tensor, or a tuple of tensors, whose first size is the batch; or another thing that all rows share."""
        self.kept[name] = value

    def at(self, layer: int | str) -> Slot:
        """The share of one layer."""
        return Slot(self, f"{layer}.")

    def real_keys(self, keys: int) -> Tensor | None:
        """Which of the first `keys` are real, `[batch, keys]`; None when all are."""
        if self.padding is None:
            return None
        return torch.arange(keys, device=self.padding.device) >= self.padding[:, None]

    def select(self, rows: Tensor) -> Cache:
        """The cache of those rows of the batch, in that order: how beams change places."""
        padding = None if self.padding is None else self.padding[rows]
        return Cache(self.length, padding, {n: select(value, rows) for n, value in self.kept.items()}, self.memory)


def select(value: Any, rows: Tensor) -> Any:
    """Those rows of a kept value."""
    if isinstance(value, Kept):
        return value.select(rows)
    if isinstance(value, tuple):
        return tuple(select(one, rows) for one in value)
    return value[rows] if isinstance(value, Tensor) else value


class Slot:
    """One layer's share of a cache."""

    def __init__(self, cache: Cache, prefix: str) -> None:
        self.cache, self.prefix = cache, prefix

    @property
    def length(self) -> int:
        """The tokens that were seen before this call."""
        return self.cache.length

    @property
    def memory(self) -> int | None:
        """How many of them are kept at most; None when all are."""
        return self.cache.memory

    def extend(self, name: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache.extend(self.prefix + name, k, v)

    def get(self, name: str) -> Any:
        return self.cache.get(self.prefix + name)

    def put(self, name: str, value: Any) -> None:
        self.cache.put(self.prefix + name, value)
