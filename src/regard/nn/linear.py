"""The linear layer, quick also for a handful of rows on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

MAX_ROWS = 16
MIN_WEIGHTS = 1 << 18  # fewer stay in the processor's cache, and calling oneDNN takes longer than reading them
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear(nn.Linear):
    """x Wᵀ + b, as `torch.nn.Linear` has it.

    >>> Linear(3, 2)(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b; `x […, in]`, `weight [out, in]`, `bias [out]`.

    A decoder's step multiplies one row, or a few, with every weight: it takes as long as reading them does. There
    torch's product on a CPU reads with one thread, and oneDNN's with all.
    """
    if HAS_ONEDNN and suits_onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return functional.linear(x, weight, bias)


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN's product suits: few rows on a CPU, nothing to be differentiated, traced or cast."""
    return (
        not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype is weight.dtype is torch.float32
        and 0 < x.numel() <= MAX_ROWS * weight.shape[1]
        and weight.numel() >= MIN_WEIGHTS
        and weight.is_contiguous()
        and not torch.is_autocast_enabled("cpu")
    )


def fused_linear(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Several layers of the same x, `[…, out]` of each: while they learn from many tokens, as one product.

    Backward then has one product for x and no sums of several. Putting the weights together costs as much as a few
    tokens do. A layer with hooks, or of another class, is called by itself.
    """
    if (
        not torch.is_grad_enabled()
        or not fusable(layers)
        or x.numel() < x.shape[-1] * sum(y.out_features for y in layers)
    ):
        return tuple([layer(x) for layer in layers])
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return functional.linear(x, weight, bias).split([layer.out_features for layer in layers], -1)


def fusable(layers: tuple[nn.Linear, ...]) -> bool:
    """Whether layers are plain ones that a product of all their weights can stand for."""
    plain = all(type(y) in (nn.Linear, Linear) and not y._forward_hooks and not y._forward_pre_hooks for y in layers)
    return plain and len({y.bias is None for y in layers}) == 1
