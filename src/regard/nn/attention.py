"""Multi-head attention: project, attend, mix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.attend import attend
from ..attention.parts.mask import Mask
from ..attention.parts.masks import Lengths
from ..attention.parts.part import Part
from ..errors import BadInput
from .cache import Slot
from .linear import Linear
from .packing import Rows, rows_of
from .parts import METHODS, POSITIONS, SCORES, LearnedLinformer, Rotary, Turn, part_module, read_mask


class Attend(nn.Module):
    """`regard.attend` as a module of its own, so that whoever wants to look or to change something can hook it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **parts: Any) -> Tensor:
        return attend(q, k, v, **parts)


@dataclass(frozen=True)
class Memory:
    """What a decoder reads: `x [batch, keys, dim]` with its lengths or mask, and what `place` adds to make keys."""

    x: Tensor
    lengths: Tensor | None = None
    mask: Mask | None = None
    place: Tensor | None = None
    rows: Rows | None = None
    allowed: Mask | None = field(init=False)
    """Which of its tokens may be seen: one mask for all layers."""

    def __post_init__(self) -> None:
        allowed = both(self.mask, None if self.lengths is None else Lengths(self.lengths))
        object.__setattr__(self, "allowed", allowed)

    def packed(self) -> Memory:
        """The same without its padding."""
        rows = None if self.rows is not None else rows_of(self.x, self.lengths)
        if rows is None:
            return self
        place = None if self.place is None else rows.pack(self.place)
        return replace(self, x=rows.pack(self.x), place=place, rows=rows)


class MultiHeadAttention(nn.Module):
    """Every token asks the others (or a memory) with several heads, and mixes what they answer.

        out( concat over heads of attend(q(x), k(source), v(source)) ),   source = memory or x

    `score`, `position`, `method` and `mask` are parts, or the lines that make them; those with learned tensors become
    parameters. `bias` says which of q, k, v, out ("o") have one. Query head h reads key head h // (heads // kv_heads).

    >>> import torch, regard as rg
    >>> layer = rg.nn.MultiHeadAttention(dim=32, heads=4, position="Alibi()", mask="Causal() & Window(before=7)")
    >>> layer(torch.randn(2, 10, 32)).shape
    torch.Size([2, 10, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        source_dim: int | None = None,
        bias: str = "qkvo",
        score: str | Part | nn.Module = "Dot()",
        position: str | Part | nn.Module | None = None,
        method: str | Part | nn.Module = "Exact()",
        mask: str | Mask | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dropout = heads, kv_heads or heads, dropout
        self.head_dim = head_dim or whole(dim, heads)
        inner, shared = heads * self.head_dim, self.kv_heads * self.head_dim
        self.q = Linear(dim, inner, bias="q" in bias)
        self.k = Linear(source_dim or dim, shared, bias="k" in bias)
        self.v = Linear(source_dim or dim, shared, bias="v" in bias)
        self.out = Linear(inner, dim, bias="o" in bias)
        self.score = part_module(score, SCORES, heads, self.head_dim)
        self.method = part_module(method, METHODS, heads, self.head_dim)
        self.position = None if position is None else part_module(position, POSITIONS, heads, self.head_dim)
        self.mask = read_mask(mask)
        self.attend = Attend()

    def forward(
        self,
        x: Tensor,
        memory: Tensor | Memory | None = None,
        *,
        lengths: Tensor | None = None,
        mask: Mask | None = None,
        position: Part | Turn | None = None,
        place: Tensor | None = None,
        rows: Rows | None = None,
        cache: Slot | None = None,
    ) -> Tensor:
        """`[batch, tokens, dim]` (or without padding, when `rows` says where it was): what each token took in.

        `lengths [batch]` hides padded keys; `position` replaces the layer's own; `place` is added to what makes
        queries and keys, not values; keys and values are remembered in `cache`.
        """
        if isinstance(memory, Tensor):
            memory = Memory(memory, lengths)
        mask = both(self.mask, mask)
        q = self.split(self.q(x if place is None else x + place), self.heads, rows)
        if memory is None:
            k, v = self.keys_and_values(self.with_memory(x, cache), place, rows)
            mask = both(mask, None if lengths is None else Lengths(lengths))
        else:
            k, v = self.recalled(memory, cache)
            mask = both(mask, memory.allowed)
        position = self.placed(q, position, cache)
        if isinstance(position, Turn):
            q, k, position = position(q), position(k), None
        if memory is None and cache is not None and not self.learns_from(cache):
            k, v = cache.extend("self", k, v)
        mixed = self.attend(q, k, v, position=position, mask=mask, **self.parts(k.shape[2]))
        mixed = mixed.transpose(1, 2).flatten(2)  # [batch, tokens, heads · head_dim]
        return self.out(mixed if rows is None else rows.pack(mixed))

    def learns_from(self, cache: Slot | None) -> bool:
        """Whether what is kept are the layer's inputs: while weights change, keys and values made earlier are stale."""
        return self.training and cache is not None and cache.memory is not None

    def with_memory(self, x: Tensor, cache: Slot | None) -> Tensor:
        """The layer's input after that of earlier segments, which no gradient goes back to."""
        if cache is None or not self.learns_from(cache):
            return x
        before = cache.get("inputs")
        if before is None and cache.get("self") is not None:
            raise BadInput("This cache was made in evaluation mode. Begin a new one for training.")
        whole = x if before is None else torch.cat([before, x], dim=1)
        cache.put("inputs", whole[:, max(whole.shape[1] - (cache.memory or 0), 0) :].detach())
        return whole

    def parts(self, keys: int) -> dict[str, Any]:
        """Score, method and dropout, as `attend` takes them with so many keys."""
        method = self.method(keys) if isinstance(self.method, LearnedLinformer) else self.method()
        return {"score": self.score(), "method": method, "dropout": self.dropout if self.training else 0.0}

    def split(self, x: Tensor, heads: int, rows: Rows | None) -> Tensor:
        """`[batch, tokens, heads · head_dim]` → `[batch, heads, tokens, head_dim]`."""
        x = x if rows is None else rows.pad(x)
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def keys_and_values(self, x: Tensor, place: Tensor | None, rows: Rows | None) -> tuple[Tensor, Tensor]:
        k = self.k(x if place is None else x + place)
        return self.split(k, self.kv_heads, rows), self.split(self.v(x), self.kv_heads, rows)

    def recalled(self, memory: Memory, cache: Slot | None) -> tuple[Tensor, Tensor]:
        """Keys and values of a memory, computed once for all the steps that share a cache."""
        found = None if cache is None else cache.get("memory")
        if found is None:
            memory = memory.packed()
            found = self.keys_and_values(memory.x, memory.place, memory.rows)
            if cache is not None:
                cache.put("memory", found)
        return found

    def placed(self, q: Tensor, position: Part | Turn | None, cache: Slot | None) -> Part | Turn | None:
        """The position of this call: the one given, or the layer's own."""
        if position is not None or self.position is None:
            return position
        if isinstance(self.position, Rotary):
            start = 0 if cache is None else cache.length
            return self.position.turn(torch.arange(start, start + q.shape[2], device=q.device), q.dtype)
        return self.position()


def both(a: Mask | None, b: Mask | None) -> Mask | None:
    """What both masks allow."""
    if a is None or b is None:
        return a if b is None else b
    return a & b


def whole(dim: int, heads: int) -> int:
    """dim / heads, or `BadInput`."""
    if dim % heads:
        raise BadInput(f"dim {dim} cannot be shared by {heads} heads. Choose heads that divide it, or give head_dim.")
    return dim // heads
