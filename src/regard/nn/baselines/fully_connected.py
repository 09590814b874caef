"""Fully connected layers over tokens: every number of every token reaches every other, for one number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import pad

from ...errors import BadInput, Unsupported
from ..attention import Memory
from ..block import FeedForward
from ..cache import Cache
from ..packing import cleared
from .plugged import Plugged, need_memory, need_tokens, real_now


@dataclass(frozen=True)
class FullyConnectedConfig:
    """See `FullyConnected`."""

    dim: int
    layers: int
    tokens: int | None = None
    hidden: int | None = None
    activation: str | None = "relu"
    position_wise: bool = False
    attention: bool = False
    heads: int = 1
    cross: bool = False
    causal: bool = False
    score: str = "Dot()"
    position: str | None = None
    mask: str | None = None
    method: str = "Exact()"

    def build(self) -> FullyConnected:
        return FullyConnected(**vars(self))


class FullyConnected(nn.Module):
    """What attention is compared with: layers whose weights belong to places, not to what stands there.

        x ← x + down(act(up(x)))

    where x is all the `tokens` · dim numbers of a row at once, so that the weights grow with the tokens and an input
    must fit them: a shorter one is padded with zeros, a longer one is refused. With `position_wise` x is one token,
    which then sees no other. `activation=None` leaves a linear map. `attention` plugs self-attention in after each
    layer, made of the parts that `score`, `position`, `mask` and `method` name; `cross` lets layers read a memory.

    `[batch, tokens, dim]` in and out; padding never matters.

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
        *,
        position_wise: bool = False,
        attention: bool = False,
        heads: int = 1,
        cross: bool = False,
        causal: bool = False,
        score: str = "Dot()",
        position: str | None = None,
        mask: str | None = None,
        method: str = "Exact()",
    ) -> None:
        super().__init__()
        if position_wise == (tokens is not None):
            raise BadInput("FullyConnected needs tokens, the number it is built for, or position_wise=True; not both.")
        if causal and not position_wise:
            raise BadInput(
                "FullyConnected connects all tokens, later ones too. For causal=True, use position_wise=True."
            )
        self.dim, self.tokens, self.causal, self.cross = dim, tokens, causal, cross
        size = dim * (tokens or 1)
        self.layers = nn.ModuleList(FeedForward(size, hidden or 4 * dim, activation or "none") for _ in range(layers))
        parts: dict[str, Any] = {"score": score, "position": position, "mask": mask, "method": method}
        self.plugged = nn.ModuleList(
            Plugged(dim, heads, attention=attention, cross=cross, causal=causal, **parts) for _ in range(layers)
        )

    def forward(
        self,
        x: Tensor,
        *,
        lengths: Tensor | None = None,
        memory: Memory | Tensor | None = None,
        cache: Cache | None = None,
        place: Tensor | None = None,
    ) -> Tensor:
        """`[batch, tokens, dim]`: the tokens after the last layer, zero where there is padding."""
        memory = need_memory(memory, self.cross, "FullyConnected")
        x = need_tokens(x, self.dim, place)
        if cache is not None and not self.causal:
            raise Unsupported(
                "FullyConnected cannot go token by token: each layer needs all tokens. Leave out the cache."
            )
        real = real_now(x, lengths, cache)
        for n, (layer, plugged) in enumerate(zip(self.layers, self.plugged, strict=True)):
            x = x + self.connected(layer, cleared(x, real))
            x = plugged(x, lengths, memory, cache, n)
        return cleared(x, real)

    def connected(self, layer: nn.Module, x: Tensor) -> Tensor:
        """What a layer makes of the row's numbers, as many tokens as came in."""
        if self.tokens is None:
            return layer(x)
        given = x.shape[1]
        if given > self.tokens:
            raise BadInput(
                f"x has {given} tokens; this FullyConnected has weights for {self.tokens} places and none for more. "
                f"Cut x, or build it with tokens={given}."
            )
        flat = pad(x, (0, 0, 0, self.tokens - given)).flatten(1)
        return layer(flat).unflatten(1, (self.tokens, self.dim))[:, :given]
