"""The fully connected baseline: every number of every token is connected to every other."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Unpack

from torch import Tensor, nn
from torch.nn.functional import pad

from ...attention.parts.parts import DEFAULT_PARTS, Parts
from ...errors import BadInput, Unsupported
from ..attention import EncoderOutput
from ..block import FeedForward
from ..cache import Cache
from ..packing import zero_padding
from ..parts.config import PartArguments, PartsByName, set_fields, update_parts
from .residual_attention import ResidualAttention, add_positions, check_memory, real_tokens_of_call


@dataclass(frozen=True, init=False)
class FullyConnectedConfig(PartsByName):
    """See `FullyConnected`."""

    dim: int
    layers: int
    tokens: int | None
    hidden: int | None
    activation: str | None
    position_wise: bool
    attention: bool
    heads: int
    cross: bool
    causal: bool
    parts: Parts

    def __init__(
        self,
        dim: int,
        layers: int,
        tokens: int | None = None,
        hidden: int | None = None,
        activation: str | None = "relu",
        position_wise: bool = False,
        attention: bool = False,
        heads: int = 1,
        cross: bool = False,
        causal: bool = False,
        parts: Parts = DEFAULT_PARTS,
        attention_dropout: float | None = None,
        **given: Unpack[PartArguments],
    ) -> None:
        parts = update_parts(parts, given, dropout=attention_dropout)
        set_fields(self, locals())

    def build(self) -> FullyConnected:
        return FullyConnected(**{field.name: getattr(self, field.name) for field in fields(self)})


class FullyConnectedSettings(PartArguments, total=False):
    """The fields of `FullyConnectedConfig` that `FullyConnected` takes by name."""

    position_wise: bool
    attention: bool
    heads: int
    cross: bool
    causal: bool
    parts: Parts
    attention_dropout: float | None


class FullyConnected(nn.Module):
    """Fully connected layers over all tokens of a row, a baseline for attention: weights belong to positions.

        x ← x + down(act(up(x)))

    x is all `tokens` · dim numbers of a row at once, so the weights grow with the tokens: a shorter input is padded
    with zeros, a longer one is refused. With `position_wise` x is one token, which sees no other. `activation=None`
    leaves a linear map. `attention` adds self-attention after each layer, with the parts `score`, `position`, `mask`
    and `method`; `cross` adds cross-attention to a memory. `settings` are the other fields of `FullyConnectedConfig`.

    `[batch, tokens, dim]` in and out; padding does not change the output.

    >>> import torch
    >>> FullyConnected(dim=8, layers=2, tokens=10, hidden=32)(torch.randn(3, 7, 8)).shape
    torch.Size([3, 7, 8])
    """

    def __init__(
        self,
        dim: int,
        layers: int,
        tokens: int | None = None,
        hidden: int | None = None,
        activation: str | None = "relu",
        **settings: Unpack[FullyConnectedSettings],
    ) -> None:
        super().__init__()
        config = FullyConnectedConfig(dim, layers, tokens, hidden, activation, **settings)
        if config.position_wise == (tokens is not None):
            raise BadInput("FullyConnected needs tokens, the number it is built for, or position_wise=True; not both.")
        if config.causal and not config.position_wise:
            raise BadInput(
                "FullyConnected connects all tokens, later ones too. For causal=True, use position_wise=True."
            )
        self.config, size = config, dim * (tokens or 1)
        self.layers = nn.ModuleList(FeedForward(size, hidden or 4 * dim, activation or "none") for _ in range(layers))
        self.plugged = nn.ModuleList(ResidualAttention(config) for _ in range(layers))

    def forward(
        self,
        x: Tensor,
        *,
        lengths: Tensor | None = None,
        memory: EncoderOutput | Tensor | None = None,
        cache: Cache | None = None,
        position_embedding: Tensor | None = None,
    ) -> Tensor:
        """`[batch, tokens, dim]`: the tokens after the last layer, zero in the padding."""
        memory = check_memory(memory, self.config.cross, "FullyConnected")
        x = add_positions(x, self.config.dim, position_embedding)
        if cache is not None and not self.config.causal:
            raise Unsupported(
                "FullyConnected cannot go token by token: each layer needs all tokens. Leave out the cache."
            )
        real = real_tokens_of_call(x, lengths, cache)
        for n, (layer, plugged) in enumerate(zip(self.layers, self.plugged, strict=True)):
            x = x + self.connect_tokens(layer, zero_padding(x, real))
            x = plugged(x, lengths, memory, cache, n)
        return zero_padding(x, real)

    def connect_tokens(self, layer: nn.Module, x: Tensor) -> Tensor:
        """The output of a layer for all tokens of a row, `[batch, tokens, dim]`."""
        tokens, count = self.config.tokens, x.shape[1]
        if tokens is None:
            return layer(x)
        if count > tokens:
            raise BadInput(
                f"x has {count} tokens; this FullyConnected has weights for {tokens} positions. "
                f"Cut x, or build it with tokens={count}."
            )
        flat = pad(x, (0, 0, 0, tokens - count)).flatten(1)
        return layer(flat).unflatten(1, (tokens, self.config.dim))[:, :count]
