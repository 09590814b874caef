"""Keys and values of one layer: buffers that grow with the tokens, or that are allocated once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...errors import BadInput, Unsupported

MINIMUM_GROWTH = 64  # tokens


class TokenStore(Protocol):
    """Keys or values, `[batch, kv_heads, tokens, head_dim]`, of which an entry reads those from `start` to `end`.

    Several entries may share one store: no entry sees what another appends.
    """

    def append(self, x: Tensor, start: int, end: int) -> tuple[TokenStore, int]:
        """A store with x after the tokens from `start` to `end`, and where those tokens start in it."""
        ...

    def keep(self, start: int, end: int) -> tuple[TokenStore, int]:
        """A store in which only the tokens from `start` to `end` need to be, and where they start; no gradient."""
        ...

    def select(self, rows: Tensor, start: int, end: int) -> tuple[TokenStore, int]:
        """The tokens from `start` to `end` of those rows, and where they start."""
        ...

    def read(self, start: int, end: int) -> Tensor:
        """The tokens from `start` to `end`."""
        ...

    def error(self, start: int, end: int) -> float:
        """The most by which a number that `read` returns can differ from the one that was appended."""
        ...

    def allocations(self) -> Iterator[tuple[object, int]]:
        """What is allocated: a key that is equal for shared memory, and its bytes."""
        ...


class TokenBuffer:
    """Keys or values that grow: `[batch, kv_heads, capacity, head_dim]`, written up to `filled`.

    Appending to an entry that is not the end of its buffer makes a copy. A buffer with a `limit` has room for so many
    tokens from the start and for no more.
    """

    def __init__(self, buffer: Tensor, filled: int | None = None, limit: int | None = None) -> None:
        self.buffer, self.filled = buffer, buffer.shape[2] if filled is None else filled
        self.limit = limit

    @staticmethod
    def allocate(x: Tensor, limit: int) -> TokenBuffer:
        """A buffer for `limit` tokens that begins with x."""
        return TokenBuffer(x[:, :, :0], limit=limit).grow(x, 0, 0)

    def append(self, x: Tensor, start: int, end: int) -> tuple[TokenBuffer, int]:
        whole = end + x.shape[2]
        if torch.is_grad_enabled() and (x.requires_grad or self.buffer.requires_grad):
            if self.limit is not None:
                refuse_gradients("static")
            return TokenBuffer(torch.cat([self.buffer[:, :, start:end], x], dim=2)), 0
        if whole <= self.buffer.shape[2] and self.filled == end:
            self.buffer[:, :, end:whole] = x
            self.filled = whole
            return self, start
        return self.grow(x, start, end), 0

    def grow(self, x: Tensor, start: int, end: int) -> TokenBuffer:
        """A larger buffer with the tokens from `start` to `end`, and x after them."""
        old, count = self.buffer[:, :, start:end], end - start + x.shape[2]
        capacity = count + max(MINIMUM_GROWTH, count // 2) if self.limit is None else self.limit
        if count > capacity:
            raise BadInput(
                f"The static cache has room for {capacity} tokens, and these are {count}. Make it larger: "
                f"CacheConfig('static', tokens={count}), or use 'dynamic'."
            )
        grown = TokenBuffer(x.new_empty(*x.shape[:2], capacity, x.shape[3]), count, self.limit)
        grown.buffer[:, :, : end - start] = old
        grown.buffer[:, :, end - start : count] = x
        return grown

    def keep(self, start: int, end: int) -> tuple[TokenBuffer, int]:
        kept = TokenBuffer(self.buffer.detach(), self.filled, self.limit) if self.buffer.requires_grad else self
        unused = self.buffer.shape[2] - (end - start)
        if self.limit is None and start > 0 and unused > max(2 * MINIMUM_GROWTH, 2 * (end - start)):
            return TokenBuffer(kept.buffer[:, :, start:end].clone()), 0
        return kept, start

    def select(self, rows: Tensor, start: int, end: int) -> tuple[TokenBuffer, int]:
        """The tokens of those rows, with the same capacity."""
        buffer = self.buffer.new_empty(rows.shape[0], *self.buffer.shape[1:])
        buffer[:, :, : end - start] = self.buffer[:, :, start:end][rows]
        return TokenBuffer(buffer, end - start, self.limit), 0

    def read(self, start: int, end: int) -> Tensor:
        return self.buffer[:, :, start:end]

    def error(self, start: int, end: int) -> float:
        return 0.0

    def allocations(self) -> Iterator[tuple[object, int]]:
        storage = self.buffer.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()


@dataclass(frozen=True)
class KeyValueBuffers:
    """The keys and values of one layer: the tokens from `start` to `end` of their buffers."""

    keys: TokenStore
    values: TokenStore
    start: int
    end: int

    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.keys.read(self.start, self.end), self.values.read(self.start, self.end)

    def append(self, k: Tensor, v: Tensor) -> KeyValueBuffers:
        keys, start = self.keys.append(k, self.start, self.end)
        values, _ = self.values.append(v, self.start, self.end)
        return KeyValueBuffers(keys, values, start, start + self.end - self.start + k.shape[2])

    def last(self, count: int) -> KeyValueBuffers:
        """The last `count` tokens, without gradient."""
        first = max(self.start, self.end - count)
        keys, start = self.keys.keep(first, self.end)
        values, _ = self.values.keep(first, self.end)
        return KeyValueBuffers(keys, values, start, start + self.end - first)

    def select(self, rows: Tensor) -> KeyValueBuffers:
        keys, start = self.keys.select(rows, self.start, self.end)
        values, _ = self.values.select(rows, self.start, self.end)
        return KeyValueBuffers(keys, values, start, start + self.end - self.start)

    def errors(self) -> tuple[float, float]:
        """The most by which keys and values can differ from those that were appended."""
        return self.keys.error(self.start, self.end), self.values.error(self.start, self.end)


def refuse_gradients(kind: str) -> None:
    raise Unsupported(
        f"A {kind} cache keeps no gradients. Call the model under torch.no_grad(), or use the dynamic cache: Cache()."
    )
