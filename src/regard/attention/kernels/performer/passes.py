"""Forward and backward pass of Performer: weights as sums of features, none of which is stored.

With the logarithms of features a_if = ω_f·x_i of queries and b_jf = ω_f·y_j − ‖y_j‖²/2 of keys, where x and y are the
queries and keys times √|scale|, the formula is two softmaxes:

    context_f = Σ_j softmax_j(b_jf) v_j,      lse_f = log Σ_j e^b_jf          features attend to keys
    output_i  = Σ_f softmax_f(a_if + lse_f) context_f                          queries attend to features

Backward, with p_if and r_jf for the two softmaxes:

    da = p (do·context − δ_i),            d context = Σ_i p do,    d lse = Σ_i da,      δ_i = Σ o·do
    db = r (v·d context − δ_f + d lse),   dv = Σ_f r d context,    δ_f = Σ context · d context

Sums over tokens are split, and the parts are added in order: the same call gives the same bits. The types are float32,
and bfloat16 with an ω of two parts, so that rounding does not change the directions that were drawn.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..launch import Launch, TileShape, align, compile_together, pad_dot, split_tokens, stride_arguments
from .kernels import (
    context_kernel,
    d_context_kernel,
    dkdv_kernel,
    dq_kernel,
    merge_context_kernel,
    merge_d_context_kernel,
    output_kernel,
)

SHAPES = {2: TileShape(128, 64, 8, 2), 4: TileShape(64, 32, 4, 2)}  # by bytes of a number; a program owns rows
PROGRAMS_PER_SM = 4  # over which the sums of features are split


class PerformerState(NamedTuple):
    """What forward computes: of features (log-sum-exp in base 2), and of queries."""

    feature_lse2: Tensor
    context: Tensor
    context_rounded: Tensor  # in the type of the call
    output: Tensor
    lse2: Tensor


class PerformerAttention(torch.autograd.Function):
    """The output, differentiable once in q, k and v."""

    @staticmethod
    def forward(ctx: Any, launches: PerformerLaunches, *tensors: Tensor) -> Tensor:
        state = launches.forward(*tensors)
        ctx.launches = launches
        ctx.save_for_backward(*tensors, *state)
        return state.output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, omega, counts, *state = ctx.saved_tensors
        grads = ctx.launches.backward(q, k, v, omega, counts, PerformerState(*state), align(grad.contiguous()))
        return None, *grads, None, None


class PerformerKernels:
    """Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j) by kernels, for one number of features and scale.

    Called with q, k, v, `omega` from `pad_omega`, and `counts [batch]`, how many keys are real, in int32.
    Differentiable once in q, k and v.
    """

    def __init__(self, features: int, scale: float):
        self.features, self.scale = features, scale
        self.launches: dict[Hashable, PerformerLaunches] = {}  # by layout

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, omega: Tensor, counts: Tensor) -> Tensor:
        needs_grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        q, k, v = align(q), align(k), align(v)
        key = (q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), v.dtype, needs_grad)
        launches = self.launches.get(key)
        if launches is None:
            launches = self.launches[key] = PerformerLaunches(q, k, v, self.features, omega.shape[1], self.scale)
            compile_key = (PerformerKernels, v.device, v.dtype, q.shape[3], v.shape[3], needs_grad)
            compile_together(compile_key, lambda: launches.run_all(q, k, v, omega, counts, needs_grad))
        if needs_grad:
            return PerformerAttention.apply(launches, q, k, v, omega, counts)
        return launches.forward(q, k, v, omega, counts).output


class PerformerLaunches:
    """The kernels for tensors of one layout, aligned to 16 bytes.

    Tensors of features are `[batch, kv_heads, padded features, …]`; splits have more axes in front.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, features: int, padded: int, scale: float):
        batch, heads, queries, dim = q.shape
        kv_heads, keys, dim_v = v.shape[1:]
        dtype, device = v.dtype, v.device
        shape = SHAPES[dtype.itemsize]
        group_size, instances, kv_instances = heads // kv_heads, batch * heads, batch * kv_heads
        blocks = -(-padded // shape.rows)
        key_splits, key_size = split_tokens(keys, shape.columns, blocks * kv_instances, PROGRAMS_PER_SM, device)
        query_splits, query_size = split_tokens(queries, shape.columns, blocks * instances, PROGRAMS_PER_SM, device)
        self.dtype, self.shapes = dtype, (q.shape, k.shape, v.shape)
        self.output, self.rows = (*q.shape[:3], dim_v), q.shape[:3]
        self.context, self.features = (kv_instances, padded, dim_v), (kv_instances, padded)
        self.context_parts, self.lse2_parts = (key_splits, *self.context), (key_splits, *self.features)
        front = (query_splits, group_size)
        self.d_context_parts, self.d_lse_parts = (*front, *self.context), (*front, *self.features)
        sqrt_scale = math.sqrt(abs(scale))
        flat = {"padded": padded, "DV": dim_v, "BDV": pad_dot(dim_v), "BN": shape.columns}
        tile = {**flat, "D": dim, "BD": pad_dot(dim), "TWO_PARTS": dtype.itemsize == 2}
        tile |= shape.arguments()
        of_keys = tile | stride_arguments(k=k, v=v)
        of_keys |= {"heads": kv_heads, "tokens": keys, "split_size": key_size, "sqrt_scale": sqrt_scale}
        of_queries = tile | stride_arguments(q=q)
        of_queries |= {"heads": heads, "group_size": group_size, "queries": queries, "split_size": query_size}
        of_queries["sqrt_scale"] = math.copysign(sqrt_scale, scale)
        query_blocks, flat_blocks = -(-queries // shape.rows), padded // shape.columns
        self.start_context = Launch(context_kernel, blocks, key_splits, kv_instances, **of_keys)
        self.merge_context = Launch(
            merge_context_kernel, flat_blocks, kv_instances, features=features, splits=key_splits, **flat
        )
        self.start_output = Launch(output_kernel, query_blocks, instances, **of_queries)
        self.start_dq = Launch(dq_kernel, query_blocks, instances, **of_queries)
        self.start_d_context = Launch(d_context_kernel, blocks, query_splits, instances, **of_queries)
        self.merge_d_context = Launch(
            merge_d_context_kernel, flat_blocks, kv_instances, group_size=group_size, splits=query_splits, **flat
        )
        self.start_dkdv = Launch(dkdv_kernel, -(-keys // shape.rows), kv_instances, **of_keys)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, omega: Tensor, counts: Tensor) -> PerformerState:
        float32 = functools.partial(v.new_empty, dtype=torch.float32)
        context_parts, lse2_parts = float32(self.context_parts), float32(self.lse2_parts)
        self.start_context(k, v, omega, counts, context_parts, lse2_parts)
        context, feature_lse2 = float32(self.context), float32(self.features)
        rounded = context if self.dtype == torch.float32 else v.new_empty(self.context)
        self.merge_context(context_parts, lse2_parts, context, rounded, feature_lse2)
        output, lse2 = v.new_empty(self.output), float32(self.rows)
        self.start_output(q, omega, feature_lse2, rounded, output, lse2)
        return PerformerState(feature_lse2, context, rounded, output, lse2)

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, omega: Tensor, counts: Tensor, state: PerformerState, grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk and dv, from a contiguous gradient of the output."""
        float32 = functools.partial(v.new_empty, dtype=torch.float32)
        feature_lse2, context, rounded, output, lse2 = state
        dq, dk, dv = (v.new_empty(shape) for shape in self.shapes)
        delta = float32(self.rows)
        self.start_dq(q, omega, feature_lse2, rounded, output, grad, lse2, delta, dq)
        d_context_parts, d_lse_parts = float32(self.d_context_parts), float32(self.d_lse_parts)
        self.start_d_context(q, omega, feature_lse2, rounded, grad, lse2, delta, d_context_parts, d_lse_parts)
        d_context, neg_lse2, feature_delta = v.new_empty(self.context), float32(self.features), float32(self.features)
        self.merge_d_context(d_context_parts, d_lse_parts, context, feature_lse2, d_context, feature_delta, neg_lse2)
        self.start_dkdv(k, v, omega, counts, neg_lse2, d_context, feature_delta, dk, dv)
        return dq, dk, dv

    def run_all(self, q: Tensor, k: Tensor, v: Tensor, omega: Tensor, counts: Tensor, needs_grad: bool) -> None:
        """Start every kernel once, for them to be compiled."""
        state = self.forward(q, k, v, omega, counts)
        if needs_grad:
            self.backward(q, k, v, omega, counts, state, state.output)


def pad_omega(omega: Tensor, dtype: torch.dtype) -> Tensor:
    """ω `[features, head_dim]` as kernels read it: `[2, padded features, head_dim]` in the type.

    The second part is the rounding error of the first; float32 does not use it.
    """
    step = SHAPES[dtype.itemsize].columns
    omega = torch.nn.functional.pad(omega, (0, 0, 0, -omega.shape[0] % step))
    high = omega.to(dtype)
    return torch.stack([high, (omega - high.to(omega.dtype)).to(dtype)])
