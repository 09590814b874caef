"""The convolutional baseline: a token sees its neighbours, and through many layers tokens further away."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...attention.parts.parts import DEFAULT_PARTS, Parts
from ...errors import BadInput, Unsupported
from ..activations import ACTIVATIONS, choose
from ..attention import EncoderOutput
from ..cache import Cache
from ..packing import zero_padding
from ..parts.config import PartArguments, PartsByName, set_fields, update_parts
from .residual_attention import ResidualAttention, add_positions, check_memory, real_tokens_of_call


@dataclass(frozen=True, init=False)
class ConvolutionConfig(PartsByName):
    """See `Convolution`."""

    dim: int
    layers: int
    kernel: int
    dilation: str
    causal: bool
    activation: str | None
    residual: bool
    attention: bool
    heads: int
    cross: bool
    parts: Parts

    def __init__(
        self,
        dim: int,
        layers: int,
        kernel: int = 3,
        dilation: str = "none",
        causal: bool = False,
        activation: str | None = "relu",
        residual: bool = True,
        attention: bool = False,
        heads: int = 1,
        cross: bool = False,
        parts: Parts = DEFAULT_PARTS,
        attention_dropout: float | None = None,
        **given: Unpack[PartArguments],
    ) -> None:
        parts = update_parts(parts, given, dropout=attention_dropout)
        set_fields(self, locals())

    def build(self) -> Convolution:
        return Convolution(**{field.name: getattr(self, field.name) for field in fields(self)})


class ConvolutionSettings(PartArguments, total=False):
    """The fields of `ConvolutionConfig` that `Convolution` takes by name."""

    causal: bool
    activation: str | None
    residual: bool
    attention: bool
    heads: int
    cross: bool
    parts: Parts
    attention_dropout: float | None


class Convolution(nn.Module):
    """Layers of one-dimensional convolutions over the tokens, a baseline for attention.

        x ← x + act(Σ_n W_n x_{i + (n − (kernel − 1) / 2) · step} + b)      causal: x_{i + (n − kernel + 1) · step}

    `dilation="doubling"` takes steps 1, 2, 4, … in successive layers, so that the receptive field doubles with each.
    Without `residual` the sum replaces x. `attention` adds self-attention after each layer, with the parts `score`,
    `position`, `mask` and `method`; `cross` adds cross-attention to a memory. A causal one can run token by token
    through a cache. `settings` are the other fields of `ConvolutionConfig`.

    `[batch, tokens, dim]` in and out; padding does not change the output.

    >>> import torch
    >>> stack = Convolution(dim=8, layers=3, dilation="doubling")
    >>> stack(torch.randn(2, 10, 8)).shape, stack.reach
    (torch.Size([2, 10, 8]), 15)
    """

    def __init__(
        self, dim: int, layers: int, kernel: int = 3, dilation: str = "none", **settings: Unpack[ConvolutionSettings]
    ) -> None:
        super().__init__()
        config = ConvolutionConfig(dim, layers, kernel, dilation, **settings)
        if dilation not in ("none", "doubling"):
            raise BadInput(f"Convolution's dilation is {dilation!r}; it must be 'none' or 'doubling'.")
        if kernel < 1 or (kernel % 2 == 0 and not config.causal):
            raise BadInput(
                f"Convolution's kernel is {kernel}; it must be odd, so that it has a middle (or causal=True)."
            )
        self.config = config
        self.activation = choose(config.activation or "none", ACTIVATIONS, "activation")
        self.steps = [1 << n if dilation == "doubling" else 1 for n in range(layers)]
        self.layers = nn.ModuleList(nn.Conv1d(dim, dim, kernel, dilation=step) for step in self.steps)
        self.plugged = nn.ModuleList(ResidualAttention(config) for _ in range(layers))

    @property
    def reach(self) -> int:
        """The receptive field in tokens, without attention."""
        return 1 + sum((self.config.kernel - 1) * step for step in self.steps)

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
        memory = check_memory(memory, self.config.cross, "Convolution")
        x = add_positions(x, self.config.dim, position_embedding)
        if cache is not None and not self.config.causal:
            raise Unsupported(
                "This Convolution sees later tokens and cannot go token by token. Build it with causal=True."
            )
        real = real_tokens_of_call(x, lengths, cache)
        for n, (layer, plugged) in enumerate(zip(self.layers, self.plugged, strict=True)):
            y = self.activation(layer(self.pad_tokens(zero_padding(x, real), n, cache).mT).mT)
            x = plugged(x + y if self.config.residual else y, lengths, memory, cache, n)
        return zero_padding(x, real)

    def pad_tokens(self, x: Tensor, n: int, cache: Cache | None) -> Tensor:
        """x with the tokens that the kernel of layer n needs beyond its ends: cached ones, or zeros."""
        width = (self.config.kernel - 1) * self.steps[n]
        if not self.config.causal:
            return pad(x, (0, 0, width // 2, width // 2))
        before = None if cache is None else cache.get(f"convolution.{n}", Tensor)
        x = pad(x, (0, 0, width, 0)) if before is None else torch.cat([before, x], 1)
        if cache is not None:
            cache.put(f"convolution.{n}", x[:, x.shape[1] - width :])
        return x
