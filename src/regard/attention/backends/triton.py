"""Fused kernels on a GPU, in Triton's language: every score, position and mask, in memory linear in the sequence."""

from __future__ import annotations

import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..call import Call, LoweredCall, lower, without_autocast
from ..parts.positions import Shaw, TransformerXL
from ..parts.scores import Additive, Dot
from .custom_op import as_type, operator

name = "triton"

# The greatest head_dim whose tiles fit a multiprocessor, by bytes of an element; and with vectors by distance.
WIDEST, WIDEST_VECTORS = {2: 256, 4: 256}, {2: 128, 4: 64}


def traced_as_constant(function: Any) -> Any:
    """As torch.compiler.assume_constant_result marks a function, which would import the compiler with the package."""
    function._dynamo_marked_constant = True
    return function


def unsupported_reason(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    why = unfit(call.q.device)
    if why is not None:
        return why
    if call.q.dtype == torch.bfloat16 and interpreting():
        return "Triton's interpreter computes bfloat16 wrongly"
    if call.q.dtype == torch.float64:
        return "these kernels compute in float32 at most, and the tensors are float64"
    return too_wide(call)


@traced_as_constant
def unfit(device: torch.device) -> str | None:
    """Why kernels cannot run on a device; None when they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; torch for CUDA brings it"
    if interpreting():
        return None
    if device.type != "cuda":
        return f"the tensors are on {device.type}, and these kernels run on a GPU"
    if torch.version.cuda and torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is older than these kernels know (compute capability 8.0)"
    return None


def too_wide(call: Call) -> str | None:
    """What is wrong with the head dims; None when tiles of them fit."""
    widest = max(call.q.shape[-1], call.v.shape[-1])
    vectors = call.position is not None and isinstance(call.position, Shaw | TransformerXL)
    limit = (WIDEST_VECTORS if vectors else WIDEST)[call.q.dtype.itemsize]
    if widest <= limit:
        return None
    what = f" with {type(call.position).__name__} in {str(call.q.dtype).removeprefix('torch.')}" if vectors else ""
    return f"a head_dim of {widest} is more than the {limit} whose tiles fit a multiprocessor{what}"


def slower_reason(call: Call) -> str | None:
    """Why another backend would do it faster; None when this one is the best."""
    return "Triton's interpreter is for tests" if interpreting() else None


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with without_autocast(call.q.device):
        p = lower(call)
        if not isinstance(call.score, Dot | Additive):
            p = replace(p, v=p.v.to(call.exact))  # what the score makes of q and k may not fit the type
        return as_type(solve(rounded(p, call))[0], call.v.dtype)


def rounded(p: LoweredCall, call: Call) -> LoweredCall:
    """The problem with what was computed exactly from q and k rounded for the tensor cores."""
    dtype = p.v.dtype
    if p.q.dtype == dtype:
        return p
    turned = call.position is not None and not isinstance(call.position, TransformerXL)  # which leaves k as it was
    k = p.k.to(dtype) if turned or call.k.dtype != dtype else call.k
    vectors = None if p.rel_vectors is None else p.rel_vectors._replace(queries=p.rel_vectors.queries.to(dtype))
    return replace(p, q=p.q.to(dtype), k=k, rel_vectors=vectors)


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    if p.q.dtype != p.v.dtype:
        p = replace(p, q=p.q.to(p.v.dtype), k=p.k.to(p.v.dtype))
    with on_its_device(p.q):
        return (few(p) or family(p)).forward(p)


def backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight, numbers, asking, table."""
    with on_its_device(p.q):
        return family(p).backward(p, grad, output, lse)


def few(p: LoweredCall) -> ModuleType | None:
    """The kernels for few queries over many keys, where the problem is one of those."""
    from ..kernels.decode import passes as decode

    return decode if decode.covers(p) is None else None


def family(p: LoweredCall) -> ModuleType:
    """The kernels of the problem's score. Triton is imported only here, when it is needed."""
    if p.weight is None:
        from ..kernels.dot import passes

        return passes
    from ..kernels.additive import passes as additive

    return additive


def on_its_device(x: Tensor) -> AbstractContextManager:
    """Where kernels start on the tensor's own GPU, which need not be the current one."""
    there = not x.is_cuda or x.device.index == torch.cuda.current_device()
    return nullcontext() if there else torch.cuda.device(x.device)


@traced_as_constant
def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


solve = operator("triton", forward, backward, rounded=True)
"""(output, log-sum-exp) of a lowered problem."""
