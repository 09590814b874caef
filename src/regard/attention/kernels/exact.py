"""Exact attention as a step of an approximate method: many queries over few keys, or few over many."""

from __future__ import annotations

from torch import Tensor

from ..backends import triton as backend
from ..call import LoweredCall
from ..execution import ExecutionPlan
from ..parts.masks import Everything

EVERYTHING = Everything()
NEEDS_GRAD = (*[True] * 3, *[False] * 10)  # q, k and v


class ExactStep:
    """softmax(scale · q kᵀ) v by the Triton kernels, for calls of one kind."""

    def __init__(self, scale: float):
        self.scale, self.plan = scale, ExecutionPlan()

    def lower(self, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall:
        return LoweredCall(q, k, v, EVERYTHING, self.scale, needs_grad=NEEDS_GRAD, plan=self.plan)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp."""
        return backend.forward(self.lower(q, k, v))

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, output: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk and dv."""
        dq, dk, dv, *_ = backend.backward(self.lower(q, k, v), grad, output, lse)
        if dq is None or dk is None or dv is None:
            raise TypeError("The backward pass must return the gradients of q, k and v.")
        return dq, dk, dv
