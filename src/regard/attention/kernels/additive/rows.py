"""Additive attention of few queries, as in a decoder's step: the scores of all pairs are stored, and little else.

The tiles of `passes.py` want many queries: one with 60 keys fills a small part of a tile, and its preparation takes
longer than the work. Here a program computes the scores of a few queries and keys over all dims, with the
exponential and the reciprocal of each tanh(q + k); a second kernel takes the softmax and mixes the values. Backward
computes the scores again:

    ds = p · (do·v − δ),   dv = Σ_i p · do
    dq = weight Σ_j ds · act′,   dk = weight Σ_i ds · act′,   dweight = Σ_ij ds · act

Queries are so few that scores, ds and p, one number for each pair and head, are linear in the keys.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...call import LoweredCall, device_guard
from ...costs import few_additive_queries
from ...execution import mask_cache, new_plan
from ...parts.masks import Everything
from ...tracing import in_cuda_graph
from ..launch import Launch, compile_together, next_power, pad_dot, stride_arguments
from .row_kernels import dqk_kernel, ds_kernel, dv_kernel, mix_kernel, mix_one_kernel, scores_kernel

MAX_SCORES = 1 << 27  # of a call
PRECISION = "tf32x3"  # float32 products: three on tensor cores, as exact as one without them
ROWS = 16  # queries of a product with values: the least that a tensor core takes
VALUES = 128  # value dims of a program


def covers(p: LoweredCall) -> bool:
    """Whether these kernels run an additive problem, and faster than tiles."""
    (batch, heads, queries, _), (keys, dim_v) = p.q.shape, p.v.shape[2:]
    others = (p.seed, p.cap, p.rel_bias, p.pair_bias)
    if any(x is not None for x in others) or not 0 < batch * heads * queries * keys <= MAX_SCORES or not dim_v:
        return False
    return few_additive_queries(queries, keys, dim_v)


class RowLaunches:
    """The kernels for tensors of one layout: of forward, and of backward where gradients are needed."""

    def __init__(self, p: LoweredCall, q: Tensor, k: Tensor, v: Tensor, mask: Tensor):
        (batch, heads, queries, head_dim), (kv_heads, keys, dim_v) = q.shape, v.shape[1:]
        self.rows, self.pairs, self.output = q.shape[:3], (*q.shape[:3], keys), (*q.shape[:3], dim_v)
        masked = not isinstance(p.mask, Everything)
        steps = mask.stride() if masked else (0,) * 4
        mask_steps = {f"stride_m{axis}": step for axis, step in zip("bhqn", steps, strict=True)}
        fixed = dict(
            stride_arguments(q=q, k=k, v=v), **mask_steps, heads=heads, group_size=heads // kv_heads, queries=queries,
            keys=keys, slope=p.slope, TANH=p.activation == "tanh", MASK=masked, D=head_dim, DV=dim_v,
            PRECISION=PRECISION if v.dtype == torch.float32 else "tf32",
        )  # fmt: skip
        few = 1 if queries == 1 else 4
        width, near = min(max(next_power(head_dim), 16), 64), min(pad_dot(keys), 64)
        columns, values = min(near, 32 if few == 1 else 16), min(pad_dot(dim_v), VALUES)
        self.tiles = -(-keys // near)
        row_tiles, chunks = -(-queries // ROWS), -(-dim_v // values)
        of_values = {"BM": ROWS, "BN": near, "BDV": values, "num_warps": 4}
        self.scores = Launch(
            scores_kernel, batch * heads * -(-queries // few) * -(-keys // columns),
            **fixed, BQ=few, BN=columns, BD=width, num_warps=4,
        )  # fmt: skip
        mix = mix_one_kernel if queries == 1 else mix_kernel
        self.mix = Launch(mix, batch * heads * row_tiles * chunks, **fixed, **of_values)
        self.ds = Launch(
            ds_kernel, batch * heads * row_tiles * self.tiles, **fixed, **(of_values | {"BDV": min(values, 64)})
        )
        self.dv = Launch(dv_kernel, batch * kv_heads * self.tiles * chunks, **fixed, **of_values)
        narrow = min(width, 32)
        self.dqk = Launch(
            dqk_kernel, batch * kv_heads * self.tiles * -(-head_dim // narrow), **fixed, BN=near, BD=narrow, num_warps=4
        )

    def compute_scores(self, q: Tensor, k: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
        scores = q.new_empty(self.pairs, dtype=torch.float32)
        self.scores(q, k, weight, mask, scores)
        return scores

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, mask: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp."""
        scores = self.compute_scores(q, k, weight, mask)
        output, lse = q.new_empty(self.output, dtype=dtype), q.new_empty(self.rows, dtype=torch.float32)
        self.mix(scores, v, output, lse)
        return output, lse

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, mask: Tensor, grad: Tensor, output: Tensor, lse: Tensor
    ) -> list[Tensor]:
        """Gradients of q, k, v and weight."""
        scores = self.compute_scores(q, k, weight, mask)
        grad = grad.to(v.dtype).contiguous()
        weights = torch.empty_like(scores, dtype=v.dtype)
        self.ds(scores, v, grad, output.contiguous(), lse, scores, weights)  # ds takes the scores' place
        dk, dv = (x.new_empty(x.shape) for x in (k, v))
        self.dv(weights, grad, dv)
        whole = self.tiles == 1
        dq_parts = q.new_empty(*self.rows, self.tiles, q.shape[3], dtype=q.dtype if whole else torch.float32)
        dw_parts = q.new_empty(*self.rows[:2], self.tiles, q.shape[3], dtype=torch.float32)
        self.dqk(q, k, weight, scores, dq_parts, dk, dw_parts)
        dq = dq_parts.view(q.shape) if whole else dq_parts.sum(3).to(q.dtype)
        return [dq, dk, dv, dw_parts.sum((0, 2))]

    @classmethod
    def of(cls, p: LoweredCall) -> tuple[RowLaunches, tuple[Tensor, ...]]:
        """The launches for a problem, and the tensors that they read: (q, k, v, weight, mask)."""
        if p.weight is None:
            raise TypeError("Additive attention needs its weight.")
        q, k, v = (with_unit_stride(x) for x in (p.q, p.k, p.v))
        weight, mask = with_unit_stride(p.weight), q if isinstance(p.mask, Everything) else mask_bytes(p)
        layout = tuple([(x.shape, x.stride(), x.dtype, x.data_ptr() % 16 == 0) for x in (q, k, v, weight, mask)])
        return p.plan.get((RowLaunches, layout), lambda: cls(p, q, k, v, mask)), (q, k, v, weight, mask)


def with_unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


class RowStep:
    """Calls that differ in the contents and layout of q, k and v alone: few steps of the host before the kernels.

    It does not hold the weight, whose changes end it.
    """

    def __init__(self, p: LoweredCall):
        if p.weight is None:
            raise TypeError("Additive attention needs its weight.")
        self.weight, self.trains, self.exact = weakref.ref(p.weight), any(p.needs_grad), p.exact_output
        self.mask = None if isinstance(p.mask, Everything) else mask_bytes(p)
        self.compiled = False
        none = dict.fromkeys(("q", "k", "v", "weight"), p.q.new_empty(0))
        self.problem = replace(p, **none, plan=new_plan())  # type: ignore[arg-type]
        self.launches: dict[tuple[object, ...], RowLaunches] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weight = self.weight()
        if weight is None:
            raise RuntimeError("The weight is gone.")
        layout = (q.stride(), k.stride(), v.stride(), (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15)
        launches = self.launches.get(layout)
        with device_guard(q):
            if launches is None:
                if not q.stride(-1) == k.stride(-1) == v.stride(-1) == weight.stride(-1) == 1:
                    return self(q.contiguous(), k.contiguous(), v.contiguous())
                p = replace(self.problem, q=q, k=k, v=v, weight=weight)
                launches = self.launches[layout] = RowLaunches(p, q, k, v, q if self.mask is None else self.mask)
                if self.trains:
                    compile_both(p)
            if self.trains:
                return RowFunction.apply(self, launches, q, k, v, weight)  # type: ignore[return-value]
            return launches.forward(q, k, v, weight, q if self.mask is None else self.mask, v.dtype)[0]


class RowFunction(torch.autograd.Function):
    """A step with its gradients."""

    @staticmethod
    def forward(
        ctx: Any, step: RowStep, launches: RowLaunches, q: Tensor, k: Tensor, v: Tensor, weight: Tensor
    ) -> Tensor:
        mask = q if step.mask is None else step.mask
        output, lse = launches.forward(q, k, v, weight, mask, torch.float32 if step.exact else v.dtype)
        ctx.step, ctx.launches = step, launches
        ctx.save_for_backward(q, k, v, weight, output, lse)
        return output if output.dtype == v.dtype else output.to(v.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, weight, output, lse = ctx.saved_tensors
        mask = q if ctx.step.mask is None else ctx.step.mask
        with device_guard(q):
            dq, dk, dv, dw = ctx.launches.backward(q, k, v, weight, mask, grad, output, lse)
        return None, None, dq, dk, dv, dw.to(weight.dtype)


def mask_bytes(p: LoweredCall) -> Tensor:
    """The mask of every pair as bytes, `[batch, heads, queries, keys]`; cached for layers that share the mask."""
    grid = p.grid

    def make() -> Tensor:
        pairs = p.mask.permits(*grid.indices(), grid)
        pairs = pairs.reshape(*(1,) * (4 - pairs.dim()), *pairs.shape)
        return pairs.view(torch.uint8).expand(grid.batch, grid.heads, grid.queries, grid.keys)

    return make() if in_cuda_graph() else mask_cache(p.mask).get((mask_bytes, grid), make)


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output, in float32 where gradients need it, and log-sum-exp; without the sink."""
    if any(p.needs_grad):
        compile_both(p)
    return run_forward(p)


def compile_both(p: LoweredCall) -> None:
    """Compile the kernels of both passes together, the first time for such problems."""
    keys, masked = p.k.shape[2], not isinstance(p.mask, Everything)
    key = (compile_both, p.q.device, p.q.dtype, p.q.shape[3], p.v.shape[3], p.activation, masked)

    def run_both() -> None:
        output, lse = run_forward(p)
        backward(p, torch.empty_like(output, dtype=p.v.dtype), output, lse)

    compile_together((*key, p.q.shape[2] == 1, min(pad_dot(keys), 64)), run_both)


def run_forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """`forward` with kernels that are compiled one by one where they are new."""
    launches, (q, k, v, weight, mask) = RowLaunches.of(p)
    return launches.forward(q, k, v, weight, mask, torch.float32 if p.exact_output else v.dtype)


def backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v and weight; None for the others, which these problems have not."""
    launches, (q, k, v, weight, mask) = RowLaunches.of(p)
    return [*launches.backward(q, k, v, weight, mask, grad, output, lse), None, None, None, None]
