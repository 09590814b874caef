"""Attention of q, k and v alone, for a mask and slopes that stay: few steps of the host before the kernels start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...call import LoweredCall, device_guard
from .passes import DotInputs, DotPlan, key_gradients, query_gradient, row_sums, weighted_sums


class DotStep:
    """Calls that differ in the contents and layout of q, k and v alone, forward and backward.

    `solve` runs the first call of each layout, and all of those that the kernels cannot read as they are. The mask must
    have no tensors, because a step may outlive them.
    """

    def __init__(self, p: LoweredCall, solve: Callable[[LoweredCall], tuple[Tensor, Tensor]]):
        empty = p.q.new_empty(0)
        self.solve, self.problem = solve, replace(p, q=empty, k=empty, v=empty)
        self.trains = any(p.needs_grad)
        self.slopes = None if p.rel_bias is None or p.rel_bias.slopes is None else p.rel_bias.slopes.float()
        self.plans: dict[tuple[object, ...], DotPlan] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        aligned = (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15 == 0
        layout = (q.stride(), k.stride(), v.stride(), aligned)
        plan = self.plans.get(layout)
        if plan is None:
            return self.run_first(q, k, v, layout)
        if self.trains:
            return DotFunction.apply(self, plan, q, k, v)  # type: ignore[return-value]
        with device_guard(q):
            return weighted_sums(WarmInputs(self, plan, q, k, v))[0]

    def run_first(self, q: Tensor, k: Tensor, v: Tensor, layout: tuple[object, ...]) -> Tensor:
        p = replace(self.problem, q=q, k=k, v=v)
        output = self.solve(p)[0]
        inputs = DotInputs(p)
        if inputs.q is q and inputs.k is k and inputs.v is v:
            self.plans[layout] = inputs.plan
        return output


class WarmInputs(DotInputs):
    """The inputs of a layout whose plan is known."""

    def __init__(self, step: DotStep, plan: DotPlan, q: Tensor, k: Tensor, v: Tensor):
        self.q, self.k, self.v, self.plan, self.config, self.mask = q, k, v, plan, plan.config, step.problem.mask
        self.rel_bias, self.sign = step.slopes, 1
        self.rel_q = self.rel_vectors = self.key_vectors = self.pairs = self.places = self.sink = self.seed = None


class DotFunction(torch.autograd.Function):
    """A step with its gradients."""

    @staticmethod
    def forward(ctx: Any, step: DotStep, plan: DotPlan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with device_guard(q):
            output, lse = weighted_sums(WarmInputs(step, plan, q, k, v))
        ctx.step, ctx.plan = step, plan
        ctx.save_for_backward(q, k, v, output, lse)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, output, lse = ctx.saved_tensors
        with device_guard(q):
            inputs = WarmInputs(ctx.step, ctx.plan, q, k, v)
            rows = row_sums(inputs, grad, output, lse)
            dq, (dk, dv) = query_gradient(inputs, rows), key_gradients(inputs, rows)
        return None, None, dq, per_key_head(dk, k), per_key_head(dv, v)


def per_key_head(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of keys or values, where it was computed for each query head."""
    return grad if grad.shape[1] == x.shape[1] else grad.unflatten(1, (x.shape[1], -1)).sum(2).to(x.dtype)


def covers(p: LoweredCall) -> bool:
    """Whether a problem is a step: a dot product of q, k and v, a mask without tensors, perhaps slopes."""
    others = (p.weight, p.rel_vectors, p.key_vectors, p.pair_bias, p.sink, p.places, p.seed, p.edge_bias, p.cap)
    slopes = p.rel_bias is None or (p.rel_bias.slopes is not None and not p.rel_bias.slopes.requires_grad)
    same_type = p.q.dtype == p.k.dtype == p.v.dtype
    return slopes and same_type and p.scale > 0 and all(x is None for x in others) and not p.mask.tensors()
