"""The formula in few operations of torch, with every weight in memory: for short sequences, and few pairs of a GPU.

    S = scale · q kᵀ (or additive scores) + bias,   P = softmax(S),   output = P v

torch's fused kernel works row by row. Products of whole matrices are faster as long as the weights stay in a
processor's caches, and on a GPU where fused kernels have only a few rows, or heads too wide for tiles. Mask and bias by
distance are one tensor, made once where neither is learned nor new with every batch. Gradients are autograd's.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..call import Call, LoweredCall, lower, without_autocast
from ..costs import formula_is_faster, products_reason
from ..execution import AttentionFunction, FunctionOfMask, tensor_cache
from ..parts.masks import Everything
from ..parts.positions import DistanceBias
from ..parts.scores import Dot
from . import cpu_costs, sdpa, triton
from .backend import EDGES_ONLY
from .blockwise.tile import additive_form
from .reference import drop

name = "dense"

HALF = (torch.float16, torch.bfloat16)
Bias = Tensor | None


def unsupported_reason(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    if call.edges is not None:
        return EDGES_ONLY
    if call.position is not None and call.position.dot_only and not call.position.rotates:
        return f"{type(call.position).__name__} has vectors by distance, and this backend only numbers"
    return None


def slower_reason(call: Call) -> str | None:
    """Why another backend would run the call faster; None when none would."""
    if call.q.is_cuda:
        return products_reason(call, triton.unsupported_reason(call) is None and not formula_is_faster(call))
    if call.q.device.type != "cpu":
        return "its costs were measured on a CPU and on a GPU of NVIDIA"
    if torch.compiler.is_compiling():
        return "a compiled graph serves every length"
    return cpu_costs.dense_reason(call)


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with without_autocast(call.q.device):
        p = lower(call)
        bias, dead = bias_tensor(call, p)
        q, k, v = p.q, p.k, p.v
        if p.weight is not None or not has_tensor_cores(q, k, v):
            q, k, v = q.to(call.exact), k.to(call.exact), v.to(call.exact)
        weights = softmax(scores(q, k, bias, p), p.sink)
        output = mix(drop(weights, call), v.to(call.exact) if p.exact_weights else v)
        return (output if dead is None else output.masked_fill(dead, 0.0)).to(call.v.dtype)


def prepare(call: Call) -> AttentionFunction | None:
    """`run` as a function of q, k and v alone, for all calls of the same kind; None where it needs more than them."""
    position = call.position
    return None if position is not None and position.tensors() else prepare_fixed(call)


def prepare_fixed(call: Call) -> AttentionFunction | None:
    """`run` as a function of q, k and v alone, for calls of the same kind with the same contents of the position."""
    if type(call.score) is not Dot or call.score.cap is not None:
        return None
    position = call.position
    if position is not None and (position.transforms or call.places is not None or call.learns_position):
        return None
    if isinstance(call.mask, Everything) and position is None:
        return functools.partial(attention, tensor=None, dead=None, scale=call.score.factor(call.q.shape[-1]))
    return sdpa.fixed_function(call, mask_as_bias(call))


def function_of_mask(call: Call) -> FunctionOfMask | None:
    """What makes the function of `prepare` for a mask with other contents; None where there is no such function."""
    masked = call.position is None and not isinstance(call.mask, Everything)
    return mask_as_bias(call).function if masked and prepare(call) is not None else None


def mask_as_bias(call: Call) -> sdpa.MaskAsTensor:
    """How the mask becomes 0 and −∞, for `attention`."""
    grouped = call.q.shape[1] != call.k.shape[1]
    return replace(sdpa.MaskAsTensor.of(call), grouped=grouped, repeated=False, bias=call.exact, compute=attention)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, tensor: Bias, dead: Tensor | None, scale: float, grouped: bool = False
) -> Tensor:
    """softmax(scale · q kᵀ + tensor) v; `dead` rows are zeros."""
    if v.dtype in HALF and not has_tensor_cores(q, k, v):
        with without_autocast(q.device):
            return attention(q.float(), k.float(), v.float(), tensor=tensor, dead=dead, scale=scale).to(v.dtype)
    output = mix(products(q, k, tensor, scale).softmax(-1), v)
    return output if dead is None else output.masked_fill(dead, 0.0)


def products(q: Tensor, k: Tensor, bias: Bias, scale: float) -> Tensor:
    """scale · q kᵀ + bias, `[batch, heads, queries, keys]`; grouped heads are rows of one product."""
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    rows = q.reshape(batch * kv_heads, heads // kv_heads * queries, dim)
    columns = k.reshape(batch * kv_heads, keys, dim).mT
    if q.dtype in HALF:
        s = multiply(rows, columns, torch.float32).view(batch, heads, queries, keys)
        return s * scale if bias is None else torch.add(bias, s, alpha=scale)
    s = torch.baddbmm(unused_input(q.dtype, q.device), rows, columns, beta=0, alpha=scale).view(
        batch, heads, queries, keys
    )
    return s if bias is None else s.add_(bias)


@tensor_cache
def unused_input(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The summand that `baddbmm` wants and, with beta = 0, does not read."""
    return torch.zeros((1, 1, 1), dtype=dtype, device=device)


def scores(q: Tensor, k: Tensor, bias: Bias, p: LoweredCall) -> Tensor:
    """Every pair's score with its cap and bias."""
    if p.weight is None and p.cap is None:
        return products(q, k, bias, p.scale)
    s = products(q, k, None, p.scale) if p.weight is None else additive_scores(q, k, p.weight, p)
    s = s if p.cap is None else p.cap * torch.tanh(s / p.cap)
    return s if bias is None else s + bias


def additive_scores(q: Tensor, k: Tensor, weight: Tensor, p: LoweredCall) -> Tensor:
    """Σ weight · act(q + k) of every pair; without gradients tanh by exponentials of q and k alone, as tiles do."""
    k = k if k.shape[1] == q.shape[1] else k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    q, k = q[:, :, :, None], k[:, :, None]  # [batch, heads, queries, 1, d], [batch, heads, 1, keys, d]
    if p.activation != "tanh":
        act = torch.nn.functional.leaky_relu(q + k, p.slope)
    elif not any(p.needs_grad) and additive_form(p, q, k) == "exponential":
        one = q.new_ones(())
        act = torch.add(one, torch.addcmul(one, (2 * q).exp(), (2 * k).exp()).reciprocal_(), alpha=-2.0)
    else:
        act = (q + k).tanh_()
    return (act * weight.to(q.dtype)[:, None, None]).sum(-1)


def softmax(s: Tensor, sink: Tensor | None) -> Tensor:
    """Weights over the keys; the sink takes its share and is left out."""
    if sink is None:
        return s.softmax(-1)
    logits = sink.to(s.dtype)[:, None, None].expand(*s.shape[:3], 1)
    return torch.cat([s, logits], dim=-1).softmax(-1)[..., :-1]


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """Σ_j weight(i, j) · v_j."""
    batch, heads, queries, keys = weights.shape
    kv_heads = v.shape[1]
    rows = weights.reshape(batch * kv_heads, heads // kv_heads * queries, keys)
    return multiply(rows, v.reshape(batch * kv_heads, keys, -1), v.dtype).view(batch, heads, queries, -1)


def has_tensor_cores(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether products of these tensors are summed in float32 by tensor cores."""
    return q.is_cuda and q.dtype == k.dtype == v.dtype and v.dtype in HALF


def multiply(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a · b in a type, by batches; a is rounded to b's type."""
    return torch.bmm(a, b) if a.dtype == b.dtype == dtype else MixedProduct.apply(a, b, dtype)  # type: ignore[return-value]


class MixedProduct(torch.autograd.Function):
    """The product of half types as float32, or of float32 with a half type, which it is rounded to."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        rounded = a.to(b.dtype)
        ctx.save_for_backward(rounded, b)
        ctx.dtype = a.dtype
        return product(rounded, b, dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, b = ctx.saved_tensors
        grad = grad.to(b.dtype)
        needs_a, needs_b, _ = ctx.needs_input_grad
        return product(grad, b.mT, ctx.dtype) if needs_a else None, torch.bmm(a.mT, grad) if needs_b else None, None


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a · b of one type in the same or another, which sums are not rounded to before."""
    if dtype == a.dtype:
        return torch.bmm(a, b)
    return torch.bmm(a, b, out_dtype=dtype) if a.is_cuda else torch.bmm(a.to(dtype), b.to(dtype))


def bias_tensor(call: Call, p: LoweredCall) -> tuple[Bias, Tensor | None]:
    """What is added to the scores: numbers by distance and by pair, −∞ at masked pairs; and the rows without keys."""
    masked = not isinstance(call.mask, Everything)
    bias, dead = mask_as_bias(call).tensor(call.mask) if masked else (None, None)
    pairs = None if p.pair_bias is None else p.pair_bias.to(call.exact)
    for other in (distance_bias(call, p), pairs):
        if other is not None:
            bias = other if bias is None else bias + other
    return bias, dead


def distance_bias(call: Call, p: LoweredCall) -> Bias:
    """The numbers by distance of every pair; None where the position adds none."""
    if p.rel_bias is None or call.position is None:
        return None
    if p.places is None:
        return by_line(call, p.rel_bias)
    q, k = call.q.to(call.exact), call.k.to(call.exact)
    return torch.as_tensor(call.position.score_bias(q, k, 1.0, call.distances()))


def by_line(call: Call, rel_bias: DistanceBias) -> Tensor:
    """The bias of every pair, `[heads, queries, keys]`: a view of each head's numbers in the order of distances."""
    grid = call.grid
    entries = line_entries(grid.queries, grid.keys, rel_bias.zero, rel_bias.table.shape[1], rel_bias.table.device)
    return rel_bias.table.index_select(1, entries).to(call.exact).unfold(1, grid.keys, 1).flip(2)


@tensor_cache
def line_entries(queries: int, keys: int, zero: int, entries: int, device: torch.device) -> Tensor:
    """The table's entry of every distance i − j of a call, from the lowest on."""
    return (torch.arange(1 - queries, keys, device=device) + zero).clamp(0, entries - 1)
