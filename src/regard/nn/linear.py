"""The linear layer, fast for a few rows on a CPU too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn import functional

MAX_ROWS = 16
MIN_WEIGHTS = 1 << 18  # fewer fit the processor's cache, where calling oneDNN takes longer than reading them
_many_rows: ContextVar[bool] = ContextVar("many rows", default=False)
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear(nn.Linear):
    """x Wᵀ + b, as `torch.nn.Linear` has it.

    >>> Linear(3, 2)(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b; `x […, in]`, `weight [out, in]`, `bias [out]`.

    A decoding step multiplies one or a few rows with every weight, so reading the weights takes most of the time. On a
    CPU torch's product reads them with one thread, oneDNN's with all.
    """
    if HAS_ONEDNN and suits_onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return functional.linear(x, weight, bias)


@contextmanager
def onednn_products() -> Iterator[None]:
    """While open, oneDNN computes all products without gradients on a CPU, also of many rows.

    For a few hundred rows and layers of a few hundred units it takes about a tenth less time than torch's own.
    """
    token = _many_rows.set(True)
    try:
        yield
    finally:
        _many_rows.reset(token)


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN's product applies: few rows on a CPU, without gradients, tracing or autocast."""
    return (
        not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype is weight.dtype is torch.float32
        and x.numel() > 0
        and (_many_rows.get() or (x.numel() <= MAX_ROWS * weight.shape[1] and weight.numel() >= MIN_WEIGHTS))
        and weight.is_contiguous()
        and not torch.is_autocast_enabled("cpu")
    )


def fused_linear(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Several linear layers of the same x, `[…, out]` of each, as one product in training on many tokens.

    Backward then has one product for x instead of a sum of several. Concatenating the weights costs as much as a few
    tokens. A layer with hooks, or of another class, is called by itself.
    """
    fuses = (
        torch.is_grad_enabled()
        and all(type(y) in (nn.Linear, Linear) and not y._forward_hooks and not y._forward_pre_hooks for y in layers)
        and len({y.bias is None for y in layers}) == 1
        and x.numel() >= x.shape[-1] * sum(y.out_features for y in layers)
    )
    if not fuses:
        return tuple([layer(x) for layer in layers])
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return functional.linear(x, weight, bias).split([layer.out_features for layer in layers], -1)
