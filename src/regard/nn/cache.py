"""What a decoder remembers between calls: keys and values, memories of earlier segments, recurrent states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROOM = 64


class Store:
    """Keys or values that grow: `[batch, kv_heads, capacity, head_dim]`, of which the first `length` are there.

    Views of one buffer share it; whoever appends to a view that is not its end gets a copy, so none sees another's.
    """

    def __init__(self, buffer: Tensor) -> None:
        self.buffer, self.filled = buffer, buffer.shape[2]

    def append(self, x: Tensor, length: int) -> tuple[Store, Tensor]:
        """The store and the tensor with x after the first `length`."""
        end = length + x.shape[2]
        if torch.is_grad_enabled() and (x.requires_grad or self.buffer.requires_grad):
            whole = torch.cat([self.buffer[:, :, :length], x], dim=2)
            return Store(whole), whole
        store = self
        if end > self.buffer.shape[2] or self.filled != length:
            room = max(end + ROOM, end + end // 2)
            store = Store(x.new_empty(*x.shape[:2], room, x.shape[3]))
            store.buffer[:, :, :length] = self.buffer[:, :, :length]
        store.buffer[:, :, length:end] = x
        store.filled = end
        return store, store.buffer[:, :, :end]


class Cache:
    """What a decoder remembers. A call reads it and answers with the next; the one passed in stays as it was.

    `length` counts the tokens seen, padding included; `padding [batch]` those that stand before a row's first real
    token when prompts of different length end together. Layers keep what they need under a name.
    """

    def __init__(self, length: int = 0, padding: Tensor | None = None, kept: dict[str, Any] | None = None) -> None:
        self.length, self.padding, self.kept = length, padding, {} if kept is None else kept

    def __repr__(self) -> str:
        return f"Cache(length={self.length}, {len(self.kept)} entries)"

    def next(self) -> Cache:
        """A cache that layers may write into, beginning as this one."""
        return Cache(self.length, self.padding, dict(self.kept))

    def extend(self, name: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values under that name, the new ones last; `[batch, kv_heads, keys, head_dim]`."""
        if name not in self.kept:
            self.kept[name] = (Store(k), Store(v), k.shape[2])
            return k, v
        keys, values, length = self.kept[name]
        keys, k = keys.append(k, length)
        values, v = values.append(v, length)
        self.kept[name] = (keys, values, k.shape[2])
        return k, v

    def get(self, name: str) -> Any:
        """What was put under that name; None when nothing was."""
        return self.kept.get(name)

    def put(self, name: str, value: Any) -> None:
        """Keep a tensor, or a tuple of tensors, whose first size is the batch."""
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
        return Cache(self.length, padding, {name: select(value, rows) for name, value in self.kept.items()})


def select(value: Any, rows: Tensor) -> Any:
    """Those rows of a kept value."""
    if isinstance(value, tuple) and value and isinstance(value[0], Store):
        keys, values, length = value
        return Store(keys.buffer[:, :, :length][rows]), Store(values.buffer[:, :, :length][rows]), length
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

    def extend(self, name: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache.extend(self.prefix + name, k, v)

    def get(self, name: str) -> Any:
        return self.cache.get(self.prefix + name)

    def put(self, name: str, value: Any) -> None:
        self.cache.put(self.prefix + name, value)
