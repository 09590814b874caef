"""Shared by the baselines: padding, and attention after a layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ...attention.parts.masks import Causal
from ...attention.parts.parts import Parts
from ...errors import BadInput
from ..attention import EncoderOutput, MultiHeadAttention, intersect
from ..block import padding_mask
from ..cache import Cache
from ..packing import real_tokens
from ..pooling import Mean

if TYPE_CHECKING:
    from .convolution import ConvolutionConfig
    from .fully_connected import FullyConnectedConfig


class ResidualAttention(nn.Module):
    """Self-attention and cross-attention after a layer of a baseline, each with a residual connection.

    x + attention(x)      when `attention`
    x + attention(memory) when `cross` and `attention`,   x + W · mean(memory) when `cross` alone

    Cross-attention has the score and the dropout of the configuration, and no other of its parts.
    """

    def __init__(self, config: ConvolutionConfig | FullyConnectedConfig) -> None:
        super().__init__()
        dim, heads = config.dim, config.heads
        parts = config.parts
        mask = intersect(parts.mask, Causal() if config.causal else None)
        self.own = self.cross = None
        if config.attention:
            self.own = MultiHeadAttention(dim, heads, parts=replace(parts, mask=mask))
        if config.attention and config.cross:
            self.cross = MultiHeadAttention(dim, heads, parts=Parts(parts.score, dropout=parts.dropout))
        self.read = nn.Linear(dim, dim) if config.cross and not config.attention else None
        self.mean = Mean()

    def forward(
        self, x: Tensor, lengths: Tensor | None, memory: EncoderOutput | None, cache: Cache | None, layer: int
    ) -> Tensor:
        layer_cache = None if cache is None else cache.layer(layer)
        if self.own is not None:
            x = x + self.own(x, mask=padding_mask(lengths, cache, x.shape[1]), cache=layer_cache)
        if memory is not None and self.cross is not None:
            x = x + self.cross(x, memory, cache=layer_cache)
        if memory is not None and self.read is not None:
            x = x + self.read(self.mean(memory.x, memory.lengths))[:, None]
        return x


def real_tokens_of_call(x: Tensor, lengths: Tensor | None, cache: Cache | None) -> Tensor | None:
    """Which tokens of this call are not padding, `[batch, tokens]`; None when all are real.

    Padding comes after a row's length or, in a cache, before its first token.
    """
    if lengths is not None and lengths.shape != x.shape[:1]:
        raise BadInput(f"lengths has shape {list(lengths.shape)}; it must be [{x.shape[0]}], one for each row.")
    if lengths is not None:
        return real_tokens(x, lengths)
    real = None if cache is None else cache.real_keys(cache.length + x.shape[1])
    return None if real is None else real[:, -x.shape[1] :]


def check_memory(memory: EncoderOutput | Tensor | None, cross: bool, name: str) -> EncoderOutput | None:
    """The memory with its padding; raise when it is given without cross-attention, or missing with it."""
    if (memory is not None) != cross:
        fault = "was given a memory and reads none" if memory is not None else "reads a memory and was given none"
        raise BadInput(f"{name}(cross={cross}) {fault}. Build it with cross={not cross}, or change the call.")
    if memory is None:
        return None
    memory = EncoderOutput(memory) if isinstance(memory, Tensor) else memory
    if memory.packing is None:
        return memory
    return EncoderOutput(memory.packing.pad(memory.x), memory.lengths, memory.mask)


def add_positions(x: Tensor, dim: int, position_embedding: Tensor | None) -> Tensor:
    """x `[batch, tokens, dim]` with the position embedding added, or `BadInput`."""
    if x.dim() != 3 or x.shape[2] != dim:
        raise BadInput(f"x has shape {list(x.shape)}; it must be [batch, tokens, {dim}].")
    return x if position_embedding is None else x + position_embedding
