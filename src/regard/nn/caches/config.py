"""How a cache keeps keys and values, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from ...errors import BadInput
from ...machine import format_bytes
from .buffers import KeyValueBuffers, TokenBuffer
from .pages import PagedBuffer, PagePool
from .quantized import CodeType, QuantizedBuffer

CacheKind = Literal["dynamic", "static", "paged", "int8", "fp8"]
KINDS: tuple[str, ...] = get_args(CacheKind)


@dataclass(frozen=True)
class CacheConfig:
    """How a cache keeps keys and values.

    - `"dynamic"`: buffers that grow. `"static"`: buffers for `tokens` tokens, allocated once.
    - `"int8"`, `"fp8"`: 8 bits a number, with a scale for each head and token; `Cache.plan` says how much they err.
    - `"paged"`: pages of `block` tokens. Rows of different length take the pages they need, free pages are used again,
      and rows that `Cache.select` makes of one share its pages.

    With `sliding` each layer drops the keys that its mask will never allow again: those before the window of the next
    query, where the mask depends on distance alone (`Causal() & Window(127)`); other masks keep all. The output is the
    same.

    >>> CacheConfig("int8", sliding=True)
    CacheConfig(kind='int8', sliding=True, tokens=None, block=16)
    """

    kind: CacheKind = "dynamic"
    sliding: bool = False
    tokens: int | None = None
    block: int = 16

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"A cache's kind is {self.kind!r}; it must be one of {', '.join(map(repr, KINDS))}.")
        for name, value in (("tokens", self.tokens), ("block", self.block)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise BadInput(f"A cache's {name} is {value!r}; it must be a whole number of at least 1.")
        if self.tokens is not None and self.kind != "static":
            raise BadInput(f"A {self.kind} cache grows; leave out tokens={self.tokens}, or make the cache 'static'.")

    def begin(self, k: Tensor, v: Tensor, padding: Tensor | None, pools: PagePools) -> KeyValueBuffers:
        """An entry with the first keys and values, `[batch, kv_heads, tokens, head_dim]` each."""
        if self.kind == "paged":
            keys, values = (PagedBuffer.allocate(pools.find(x, self.block), x, padding) for x in (k, v))
        elif self.kind in ("int8", "fp8"):
            code_type: CodeType = self.kind
            keys = QuantizedBuffer.allocate(k, code_type, by_channel=True)
            values = QuantizedBuffer.allocate(v, code_type, by_channel=False)
        elif self.kind == "static":
            if self.tokens is None:
                raise BadInput("A static cache needs its size. Give it: CacheConfig('static', tokens=2048).")
            keys, values = (TokenBuffer.allocate(x.detach(), self.tokens) for x in (k, v))
        else:
            keys, values = TokenBuffer(k), TokenBuffer(v)
        return KeyValueBuffers(keys, values, 0, k.shape[2])


class PagePools:
    """The pools of a paged cache: one for each shape and type of page, for all layers and for caches made of it."""

    def __init__(self) -> None:
        self.pools: dict[object, PagePool] = {}

    def find(self, x: Tensor, block: int) -> PagePool:
        """The pool for tokens like those of x `[batch, kv_heads, tokens, head_dim]`."""
        key = (x.shape[1], x.shape[3], x.dtype, x.device)
        if key not in self.pools:
            self.pools[key] = PagePool(x, block)
        return self.pools[key]


@dataclass(frozen=True)
class CachePlan:
    """What a cache holds: `tokens` of the longest layer, the `bytes` that are allocated, those that the same tokens of
    all rows take `in_full`, and the most by which a cached key or value differs from the one that was computed."""

    kind: str
    tokens: int
    bytes: int
    in_full: int
    key_error: float
    value_error: float

    def __str__(self) -> str:
        rows = [("cache", self.kind), ("tokens", f"{self.tokens:,}")]
        rows += [("bytes", format_bytes(self.bytes)), ("in full", format_bytes(self.in_full))]
        rows += [("key error", f"≤ {self.key_error:.2g}"), ("value error", f"≤ {self.value_error:.2g}")]
        return "\n".join(f"{name:<11}  {value}" for name, value in rows)


def plan_entries(kind: str, entries: list[KeyValueBuffers]) -> CachePlan:
    """What the entries of a cache hold together; memory that they share is counted once."""
    allocated = {key: size for entry in entries for x in (entry.keys, entry.values) for key, size in x.allocations()}
    errors = [entry.errors() for entry in entries] or [(0.0, 0.0)]
    in_full = sum(x.numel() * x.itemsize for entry in entries for x in entry.tensors())
    return CachePlan(
        kind,
        max((entry.end - entry.start for entry in entries), default=0),
        sum(allocated.values()),
        in_full,
        max(key for key, _ in errors),
        max(value for _, value in errors),
    )
