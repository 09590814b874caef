"""Convolutions over tokens: each sees its neighbours, and through many layers those further away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...errors import BadInput, Unsupported
from ..attention import Memory
from ..block import ACTIVATIONS
from ..cache import Cache
from ..packing import cleared
from ..parts import known
from .plugged import Plugged, need_memory, need_tokens, real_now


@dataclass(frozen=True)
class ConvolutionConfig:
    """See `Convolution`."""

    dim: int
    layers: int
    kernel: int = 3
    dilation: str = "none"
    causal: bool = False
    activation: str | None = "relu"
    residual: bool = True
    attention: bool = False
    heads: int = 1
    cross: bool = False
    score: str = "Dot()"
    position: str | None = None
    mask: str | None = None
    method: str = "Exact()"

    def build(self) -> Convolution:
        return Convolution(**vars(self))


class Convolution(nn.Module):
    """What attention is compared with: layers that look `kernel` tokens wide, the same at every place.

        x ← x + act(Σ_n W_n x_{i + (n − (kernel − 1) / 2) · step} + b)      causal: x_{i + (n − kernel + 1) · step}

    `dilation="doubling"` takes steps 1, 2, 4, … in successive layers, so that what a token sees doubles with each.
    Without `residual` the sum replaces x. `attention` plugs self-attention in after each layer, made of the parts that
    `score`, `position`, `mask` and `method` name; `cross` lets layers read a memory. A causal one can go token by token
    through a cache.

    `[batch, tokens, dim]` in and out; padding never matters.

    >>> import torch
    >>> stack = Convolution(dim=8, layers=3, dilation="doubling")
    >>> stack(torch.randn(2, 10, 8)).shape, stack.reach
    (torch.Size([2, 10, 8]), 15)
    """

    def __init__(
        self,
        dim: int,
        layers: int,
        kernel: int = 3,
        dilation: str = "none",
        *,
        causal: bool = False,
        activation: str | None = "relu",
        residual: bool = True,
        attention: bool = False,
        heads: int = 1,
        cross: bool = False,
        score: str = "Dot()",
        position: str | None = None,
        mask: str | None = None,
        method: str = "Exact()",
    ) -> None:
        super().__init__()
        if dilation not in ("none", "doubling"):
            raise BadInput(f"Convolution's dilation is {dilation!r}; it must be 'none' or 'doubling'.")
        if kernel < 1 or (kernel % 2 == 0 and not causal):
            raise BadInput(
                f"Convolution's kernel is {kernel}; it must be odd, so that it has a middle (or causal=True)."
            )
        self.dim, self.kernel, self.causal, self.cross, self.residual = dim, kernel, causal, cross, residual
        self.activation = known(activation or "none", ACTIVATIONS, str(activation))
        self.steps = [1 << n if dilation == "doubling" else 1 for n in range(layers)]
        self.layers = nn.ModuleList(nn.Conv1d(dim, dim, kernel, dilation=step) for step in self.steps)
        parts: dict[str, Any] = {"score": score, "position": position, "mask": mask, "method": method}
        self.plugged = nn.ModuleList(
            Plugged(dim, heads, attention=attention, cross=cross, causal=causal, **parts) for _ in range(layers)
        )

    @property
    def reach(self) -> int:
        """How many tokens one of the last layer depends on, attention aside."""
        return 1 + sum((self.kernel - 1) * step for step in self.steps)

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
        memory = need_memory(memory, self.cross, "Convolution")
        x = need_tokens(x, self.dim, place)
        if cache is not None and not self.causal:
            raise Unsupported(
                "This Convolution sees later tokens and cannot go token by token. Build it with causal=True."
            )
        real = real_now(x, lengths, cache)
        for n, (layer, plugged) in enumerate(zip(self.layers, self.plugged, strict=True)):
            y = self.activation(layer(self.around(cleared(x, real), n, cache).mT).mT)
            x = plugged(x + y if self.residual else y, lengths, memory, cache, n)
        return cleared(x, real)

    def around(self, x: Tensor, n: int, cache: Cache | None) -> Tensor:
        """x with what a layer's kernel sees beyond its ends: what came before it, or zeros."""
        width = (self.kernel - 1) * self.steps[n]
        if not self.causal:
            return pad(x, (0, 0, width // 2, width // 2))
        before = None if cache is None else cache.get(f"convolution.{n}")
        x = pad(x, (0, 0, width, 0)) if before is None else torch.cat([before, x], 1)
        if cache is not None:
            cache.put(f"convolution.{n}", x[:, x.shape[1] - width :])
        return x
