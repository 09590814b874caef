"""Sinks after the fact: what one more logit in the softmax does to an output, its log-sum-exp and its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ..call import LoweredCall


def add_sink(output: Tensor, lse: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp with the sink `[heads]`, from those without:

    lse′ = log(exp(lse) + exp(sink)),   output′ = output · exp(lse − lse′)
    """
    if sink is None:
        return output, lse
    total = add_to_lse(lse, sink)
    return output * (lse - total.masked_fill(total == -torch.inf, 0.0)).exp()[..., None], total


def add_to_lse(lse: Tensor, sink: Tensor) -> Tensor:
    """log(exp(lse) + exp(sink)) for lse `[batch, heads, queries]`."""
    return torch.logaddexp(lse, sink.to(lse.dtype)[:, None])


def sink_gradient(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> Tensor | None:
    """−Σ p · δ over all rows, with the sink's weight p = exp(sink − lse) and δ = Σ output · d_output, `[heads]`."""
    if p.sink is None:
        return None
    delta = (grad * output.to(lse.dtype)).sum(-1)
    return -(sink_weight(p.sink, lse) * delta).sum((0, 2))


def sink_weight(sink: Tensor, lse: Tensor) -> Tensor:
    """The weight of the sink in each row, exp(sink − lse), `[batch, heads, queries]`."""
    return (sink.to(lse.dtype)[:, None] - lse.masked_fill(lse == -torch.inf, torch.inf)).exp()
