"""What the things to compare attention with share: padding, and attention plugged in after a layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...attention.parts.masks import Causal
from ...errors import BadInput
from ..attention import Memory, MultiHeadAttention, both
from ..block import padding_mask
from ..cache import Cache, Slot
from ..packing import real_tokens
from ..parts import read_mask
from ..pooling import Mean


class Plugged(nn.Module):
    """What may follow a layer, each added to x: attention to the own tokens, and what is read of a memory.

    x + attention(x)      when `attention`
    x + attention(memory) when `cross` and `attention`,   x + W · mean(memory) when `cross` alone

    `score`, `position`, `mask` and `method` are the lines of attention's parts; a memory is looked at by the score.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        attention: bool,
        cross: bool,
        causal: bool,
        score: str = "Dot()",
        position: str | None = None,
        mask: str | None = None,
        method: str = "Exact()",
    ) -> None:
        super().__init__()
        allowed = both(read_mask(mask), Causal() if causal else None)
        parts: dict[str, Any] = {"score": score, "position": position, "mask": allowed, "method": method}
        self.own = MultiHeadAttention(dim, heads, **parts) if attention else None
        self.cross = MultiHeadAttention(dim, heads, score=score) if attention and cross else None
        self.read = nn.Linear(dim, dim) if cross and not attention else None
        self.mean = Mean()

    def forward(
        self, x: Tensor, lengths: Tensor | None, memory: Memory | None, cache: Cache | None, layer: int
    ) -> Tensor:
        slot: Slot | None = None if cache is None else cache.at(layer)
        if self.own is not None:
            x = x + self.own(x, mask=padding_mask(lengths, cache, x.shape[1]), cache=slot)
        if memory is not None and self.cross is not None:
            x = x + self.cross(x, memory, cache=slot)
        if memory is not None and self.read is not None:
            x = x + self.read(self.mean(memory.x, memory.lengths))[:, None]
        return x


def real_now(x: Tensor, lengths: Tensor | None, cache: Cache | None) -> Tensor | None:
    """Which tokens of this call are no padding, `[batch, tokens]`; None when all are.

    Padding stands after a row's length or, in a cache, before its first token.
    """
    if lengths is not None and lengths.shape != x.shape[:1]:
        raise BadInput(f"lengths has shape {list(lengths.shape)}; it must be [{x.shape[0]}], one a row of the batch.")
    if lengths is not None:
        return real_tokens(x, lengths)
    seen = None if cache is None else cache.real_keys(cache.length + x.shape[1])
    return None if seen is None else seen[:, -x.shape[1] :]


def need_memory(memory: Memory | Tensor | None, cross: bool, name: str) -> Memory | None:
    """The memory, padded, where the layers read one; raise when one is given and not read, or read and not given."""
    if (memory is not None) != cross:
        what = "was given a memory and reads none" if memory is not None else "reads a memory and was given none"
        raise BadInput(f"{name}(cross={cross}) {what}. Build it with cross={not cross}, or change the call.")
    if memory is None:
        return None
    memory = Memory(memory) if isinstance(memory, Tensor) else memory
    if memory.rows is None:
        return memory
    return Memory(memory.rows.pad(memory.x), memory.lengths, memory.mask)


def need_tokens(x: Tensor, dim: int, place: Tensor | None) -> Tensor:
    """x `[batch, tokens, dim]` with its place added, or `BadInput`."""
    if x.dim() != 3 or x.shape[2] != dim:
        raise BadInput(f"x has shape {list(x.shape)}; it must be [batch, tokens, {dim}].")
    return x if place is None else x + place
