"""Padding, and the exact attentions that the approximate methods are made of."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...call import Call, lower
from ...execution import ExecutionPlan
from ...parts.masks import Everything
from ...parts.scores import Dot
from .. import choose_backend, triton
from ..backend import reason_against
from ..reference import per_query_head, softmax
from .requirements import product_dtype


def lower_real(call: Call, keys: Tensor | None) -> tuple[Tensor, Tensor, Tensor, float]:
    """(q, k, v, scale) with the score equal to scale · q·k, padding zero, in the type of products."""
    lowered = lower(replace(call, k=zero_padding(call.k, keys), v=zero_padding(call.v, keys)))
    dtype = product_dtype(call)
    return lowered.q.to(dtype), lowered.k.to(dtype), lowered.v.to(dtype), lowered.scale


def real_mask(count: Tensor, tokens: int) -> Tensor:
    """Whether each token is real, `[batch, 1, 1, tokens]`."""
    return torch.arange(tokens, device=count.device) < count[:, None, None, None]


def zero_padding(x: Tensor, count: Tensor | None) -> Tensor:
    """x `[batch, heads, tokens, d]` with zeros beyond the count."""
    return x if count is None else x.masked_fill(~real_mask(count, x.shape[2]).mT, 0.0)


def attend_exactly(call: Call) -> Tensor:
    """The exact output, by the backend that `auto` chooses."""
    return choose_backend(call, "auto").run(call)


def attend_repeatably(call: Call) -> Tensor:
    """The exact output of many queries over few keys, or of few over many, with the same bits every time.

    Triton kernels take few queries, for torch's do not spread the work over the keys; and they take everything that
    needs gradients, for torch's split such sums of backward and add them up in no fixed order.
    """
    tensors = [call.q, call.k, call.v, *call.score.tensors().values()]
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    ours = (needs_grad or call.q.shape[2] < call.k.shape[2]) and reason_against(triton, call) is None
    return triton.run(call) if ours else attend_exactly(call)


def attend_softmax(q: Tensor, k: Tensor, v: Tensor, scale: float, allowed: Tensor | None, call: Call) -> Tensor:
    """softmax(scale · q kᵀ) v over the allowed keys, a boolean that broadcasts, or all."""
    call = replace(call, q=q, k=k, v=v, score=Dot(scale=scale), position=None, mask=Everything(), plan=ExecutionPlan())
    if allowed is None:
        return attend_repeatably(call)
    scores = scale * (q.to(call.exact) @ per_query_head(k, call).to(call.exact).mT)
    weights = softmax(scores.masked_fill(~allowed, -torch.inf))
    return weights.to(v.dtype) @ per_query_head(v, call)
