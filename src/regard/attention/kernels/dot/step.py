"""Attention of q, k and v, and perhaps of a table that is learned, without what the host does for a first call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...backends.custom_op import cast
from ...call import LoweredCall, device_guard
from ...parts.masks import Everything
from ...parts.positions import Bias, Position, T5Bias
from .passes import (
    DotInputs,
    DotPlan,
    delta_launch,
    dkdv_schedule,
    dq_schedule,
    forward_schedule,
    key_gradients,
    query_gradient,
    rel_bias_schedule,
    row_sums,
    weighted_sums,
)
from .table import MAX_ENTRIES, LearnedTable

SCHEDULES, TABLE = (forward_schedule, delta_launch, dq_schedule, dkdv_schedule), rel_bias_schedule


class DotStep:
    """Calls that differ in the contents and layout of q, k and v alone, forward and backward.

    `solve` runs the first call of each layout, and all of those that the kernels cannot read as they are. A step refers
    to no tensor of a part, which it may outlive: with a mask that has tensors it runs the layout of its first call
    alone. A step with a `learned` table is called with that table, whose contents change.
    """

    def __init__(
        self,
        p: LoweredCall,
        solve: Callable[[LoweredCall], tuple[Tensor, Tensor]],
        learned: LearnedTable | None = None,
    ):
        self.solve, self.learned, self.trains = solve, learned, any(p.needs_grad)
        self.numbers: Tensor | None = None  # slopes, or the line of a table that stays
        self.plans: dict[tuple[object, ...], DotPlan] = {}
        self.problem: LoweredCall | None = None
        if p.mask.tensors():
            self.add_layout(p)
            return
        empty, bias = p.q.new_empty(0), None if learned is not None else p.rel_bias
        if bias is not None:  # whose tensors may be the position's own
            slopes = None if bias.slopes is None else bias.slopes.detach().clone()
            bias = bias._replace(table=bias.table.detach().clone(), slopes=slopes)
        self.problem = replace(p, q=empty, k=empty, v=empty, rel_bias=bias)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None = None) -> Tensor:
        plan = self.plans.get(layout_of(q, k, v))
        if plan is None:
            return self.run_first(q, k, v, table)
        if self.trains:
            return DotFunction.apply(self, plan, q, k, v, table)  # type: ignore[return-value]
        with device_guard(q):
            return weighted_sums(WarmInputs(self, plan, q, k, v, self.numbers))[0]

    def run_first(self, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None) -> Tensor:
        if self.problem is None:
            raise RuntimeError("The mask of this step may be gone.")
        p = replace(self.problem, q=q, k=k, v=v)
        if self.learned is not None and table is not None:
            p = replace(p, rel_bias=replace(self.learned.position, table=table).rel_bias(q, k))
        output = self.solve(p)[0]
        self.add_layout(p)
        return output

    def add_layout(self, p: LoweredCall) -> None:
        """Remember how tensors of this layout are run, where kernels can read them as they are."""
        inputs = DotInputs(p)
        if inputs.q is not p.q or inputs.k is not p.k or inputs.v is not p.v:
            return
        for make in (*(SCHEDULES if self.trains else SCHEDULES[:1]), *([] if self.learned is None else [TABLE])):
            inputs.schedule(make)
        self.plans[layout_of(p.q, p.k, p.v)] = inputs.plan
        if self.learned is None and inputs.rel_bias is not None:
            self.numbers = inputs.rel_bias.detach().clone()


def layout_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[object, ...]:
    """What decides how the kernels of a step read q, k and v."""
    return q.stride(), k.stride(), v.stride(), (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15 == 0


class WarmInputs(DotInputs):
    """The inputs of a layout whose plan is known, with all schedules."""

    def __init__(self, step: DotStep, plan: DotPlan, q: Tensor, k: Tensor, v: Tensor, numbers: Tensor | None):
        self.q, self.k, self.v, self.plan, self.config, self.mask = q, k, v, plan, plan.config, Everything()
        self.rel_bias, self.sign = numbers, 1
        self.rel_q = self.rel_vectors = self.key_vectors = self.pairs = self.places = self.sink = self.seed = None


class DotFunction(torch.autograd.Function):
    """A step with its gradients."""

    @staticmethod
    def forward(
        ctx: Any, step: DotStep, plan: DotPlan, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None
    ) -> Tensor:
        with device_guard(q):
            learned = step.learned
            numbers = step.numbers if learned is None or table is None else learned.line(plan.config, table)
            output, lse = weighted_sums(WarmInputs(step, plan, q, k, v, numbers))
        ctx.step, ctx.plan, ctx.dtype = step, plan, None if table is None else table.dtype
        ctx.save_for_backward(q, k, v, output, lse, numbers)
        return cast(output, v.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, output, lse, numbers = ctx.saved_tensors
        with device_guard(q):
            inputs = WarmInputs(ctx.step, ctx.plan, q, k, v, numbers)
            rows = row_sums(inputs, grad, output, lse)
            dq, (dk, dv) = query_gradient(inputs, rows), key_gradients(inputs, rows)
            learned = ctx.step.learned
            dtable = None if learned is None else learned.gradient(inputs, rows, ctx.dtype)
        return None, None, dq, per_key_head(dk, k), per_key_head(dv, v), dtable


def per_key_head(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of keys or values, where it was computed for each query head."""
    return grad if grad.shape[1] == x.shape[1] else grad.unflatten(1, (x.shape[1], -1)).sum(2).to(x.dtype)


def covers(p: LoweredCall) -> bool:
    """Whether a problem is a step: dot products, a mask, and perhaps numbers by distance that are not learned."""
    numbers = None if p.rel_bias is None else p.rel_bias.table if p.rel_bias.slopes is None else p.rel_bias.slopes
    return (numbers is None or not numbers.requires_grad) and reads_little(p)


def reads_little(p: LoweredCall) -> bool:
    """Whether scores are of dot products alone, and of numbers by distance."""
    others = (p.weight, p.rel_vectors, p.key_vectors, p.pair_bias, p.sink, p.places, p.seed, p.edge_bias, p.cap)
    return p.q.dtype == p.k.dtype == p.v.dtype and p.scale > 0 and all(x is None for x in others)


def learned_table(position: Position | None, q: Tensor, k: Tensor) -> LearnedTable | None:
    """The table of a position that is being learned; None where it has more to learn, or too many entries."""
    if not isinstance(position, Bias | T5Bias) or not position.table.requires_grad:
        return None
    return LearnedTable(position, q, k) if position.table.shape[1] <= MAX_ENTRIES else None
