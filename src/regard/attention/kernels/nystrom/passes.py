"""Forward and backward pass of Nyström attention, for rows whose segments are all of one size.

    q̃, k̃ = means of segments,   a = softmax(scale · q̃ k̃ᵀ),   Z ≈ a⁺ (`inverse.py`)
    context = softmax(scale · q̃ kᵀ) v,   output = softmax(scale · q k̃ᵀ) (Z context)

The two attentions are the dot family's; the rest are many small steps, for which autograd and the start of each
operation would cost more than the work. The inverse starts from Z = aᵀ / c with c = max_j Σ_i a_ij, so backward has

    da_ij += dZ_ji / c − [j is the largest] Σ dZ ∘ Z / c,      d scores = a ∘ (da − Σ_j da ∘ a)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..exact import ExactStep
from ..launch import Launch, align, compile_together, next_power, pad_dot, stride_arguments
from .inverse import InverseIteration, InverseStep
from .kernels import d_landmarks_kernel, d_scores_kernel, init_kernel, landmarks_kernel

ROWS = 64  # tokens that are summed at once
CELLS = 8192  # elements of a matrix that are held at once


class NystromState(NamedTuple):
    """What backward needs; tensors of landmarks end in `_marks`, in float32 or rounded to the type of the call."""

    lse: Tensor
    q_marks32: Tensor
    k_marks32: Tensor
    q_marks: Tensor
    k_marks: Tensor
    a: Tensor
    column_sums: Tensor
    inverse: Tensor
    context: Tensor
    context_lse: Tensor
    mixed: Tensor  # Z context


class NystromKernels:
    """Nyström attention for one kind of call, with as many key heads as query heads."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, landmarks: int, iterations: int, scale: float):
        self.batch, self.heads, self.queries, self.head_dim = q.shape
        self.keys, self.value_dim = v.shape[2:]
        self.landmarks, self.iterations, self.scale = landmarks, iterations, scale
        self.instances = self.batch * self.heads
        self.marks = (self.batch, self.heads, landmarks, self.head_dim)
        self.inverse = InverseIteration(self.instances, landmarks, "tf32" if q.itemsize == 2 else "tf32x3")
        columns = next_power(landmarks)
        tile = {"size": landmarks, "plane": self.inverse.plane, "BR": max(CELLS // columns, 1), "BC": columns}
        self.init = Launch(init_kernel, self.instances, num_warps=8, **tile)
        self.d_scores = Launch(d_scores_kernel, self.instances, scale=scale, num_warps=8, **tile)
        self.mean_launches: dict[tuple[int, ...], Launch] = {}  # by layout
        self.d_means = [self.over_segments(d_landmarks_kernel, tokens) for tokens in (self.queries, self.keys)]
        self.few_queries, self.few_keys = ExactStep(scale), ExactStep(scale)

    def over_segments(self, kernel: Any, tokens: int, **strides: int) -> Launch:
        sizes = {"D": self.head_dim, "BD": pad_dot(self.head_dim), "BN": ROWS, "num_warps": 4}
        sizes |= {"heads": self.heads, "size": tokens // self.landmarks}
        return Launch(kernel, self.landmarks, self.instances, **strides, **sizes)

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The means of x's segments in float32, and in its own type."""
        key = (x.shape[2], *x.stride())
        launch = self.mean_launches.get(key)
        if launch is None:
            launch = self.over_segments(landmarks_kernel, x.shape[2], **stride_arguments(x=x))
            self.mean_launches[key] = launch
        float32 = x.new_empty(self.marks, dtype=torch.float32)
        rounded = float32 if x.dtype == torch.float32 else x.new_empty(self.marks)
        launch(x, float32, rounded)
        return float32, rounded

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        needs_grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        q, k, v = align(q), align(k), align(v)
        compile_key = (NystromKernels, q.device, q.dtype, self.head_dim, self.value_dim, needs_grad)
        compile_together(compile_key, lambda: self.run_all(q, k, v))
        if needs_grad:
            return NystromAttention.apply(self, q, k, v)
        return self.forward(q, k, v, False)[0]

    def run_all(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Start every kernel of this family once, for them to be compiled; the exact attentions compile theirs."""
        float32, rounded = self.mean(q)
        self.mean(k)
        a, z = self.inverse.empty(float32, 2)
        column_sums = a.new_empty(self.instances, self.landmarks)
        self.init(a, a, z, column_sums)
        self.inverse.run_all(a)
        self.d_scores(a, a, z, z, column_sums, a)
        for d_mean, x in zip(self.d_means, (q, k), strict=True):
            d_mean(torch.empty_like(x, memory_format=torch.contiguous_format), float32, rounded)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, needs_grad: bool
    ) -> tuple[Tensor, NystromState | None, list[InverseStep]]:
        """The output, and what backward needs where there will be one."""
        (q_marks32, q_marks), (k_marks32, k_marks) = self.mean(q), self.mean(k)
        flat_q, flat_k = q_marks32.flatten(0, 1), k_marks32.flatten(0, 1)
        scores = flat_q.new_empty(self.instances, self.landmarks, self.landmarks)
        scores = torch.baddbmm(scores, flat_q, flat_k.mT, beta=0, alpha=self.scale)
        (a,), steps = (
            self.inverse.empty(flat_q, 1),
            self.inverse.empty_steps(flat_q, self.iterations + 1 if needs_grad else 2),
        )
        column_sums = flat_q.new_empty(self.instances, self.landmarks)
        self.init(scores, a, steps[0].z, column_sums)
        inverse = self.inverse.matrix(self.inverse.forward(a, steps, self.iterations))
        context, context_lse = self.few_queries.forward(q_marks, k, v)
        mixed = torch.bmm(inverse, context.flatten(0, 1).float()).to(v.dtype).view_as(context)
        if not needs_grad and self.head_dim == self.value_dim:
            return scaled_dot_product_attention(q, k_marks, mixed, scale=self.scale), None, []
        output, lse = self.few_keys.forward(q, k_marks, mixed)
        marks = (q_marks32, k_marks32, q_marks, k_marks)
        state = NystromState(lse, *marks, a, column_sums, inverse, context, context_lse, mixed)
        return output, state, steps[: self.iterations]

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, s: NystromState, steps: list[InverseStep]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk and dv."""
        dq, dk_marks, d_mixed = self.few_keys.backward(q, s.k_marks, s.mixed, grad, output, s.lse)
        d_mixed = d_mixed.flatten(0, 1).float()
        (d_inverse,), context = self.inverse.empty(s.a, 1), s.context.flatten(0, 1).float()
        torch.bmm(d_mixed, context.mT, out=self.inverse.matrix(d_inverse))
        torch.bmm(context, d_mixed.mT, out=self.inverse.matrix(d_inverse, transposed=True))
        d_context = torch.bmm(s.inverse.mT, d_mixed).to(v.dtype).view_as(s.context)
        da, dz = self.inverse.backward(s.a, steps, d_inverse)
        ds = s.a.new_empty(self.instances, self.landmarks, self.landmarks)
        self.d_scores(s.a, da, dz, steps[0].z, s.column_sums, ds)
        dq_marks, dk, dv = self.few_queries.backward(s.q_marks, k, v, d_context, s.context, s.context_lse)
        flat_q, flat_k = s.q_marks32.flatten(0, 1), s.k_marks32.flatten(0, 1)
        dq, dk = dq.contiguous(), dk.contiguous()
        self.d_means[0](dq, torch.bmm(ds, flat_k), dq_marks.contiguous())
        self.d_means[1](dk, torch.bmm(ds.mT, flat_q), dk_marks.contiguous())
        return dq, dk, dv


class NystromAttention(torch.autograd.Function):
    """The output, differentiable once in q, k and v."""

    @staticmethod
    def forward(ctx: Any, kernels: NystromKernels, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output, state, steps = kernels.forward(q, k, v, True)
        ctx.kernels = kernels
        ctx.save_for_backward(q, k, v, output, *(state or ()), *(x for step in steps for x in step))
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, output, *rest = ctx.saved_tensors
        count = len(NystromState._fields)
        state, matrices = NystromState._make(rest[:count]), rest[count:]
        steps = [InverseStep._make(matrices[i : i + 4]) for i in range(0, len(matrices), 4)]
        return None, *ctx.kernels.backward(align(grad.contiguous()), q, k, v, output, state, steps)
