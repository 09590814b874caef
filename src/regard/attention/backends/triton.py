"""Fused Triton kernels on a GPU: every score, position and mask, in memory linear in the sequence."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor

from ..call import Call, LoweredCall, device_guard, lower, without_autocast
from ..costs import tiles_reason
from ..execution import AttentionFunction
from ..parts.masks import Everything
from ..parts.positions import Alibi, Disentangled, Shaw, TransformerXL
from ..parts.scores import Additive, Dot
from ..tracing import in_cuda_graph
from .backend import EDGES_ONLY
from .custom_op import cast, define_operator

name = "triton"

F = TypeVar("F", bound=Callable[..., object])

# The greatest head_dim whose tiles fit a multiprocessor, by bytes of an element; and with relative vectors.
MAX_HEAD_DIM, MAX_HEAD_DIM_RELATIVE = {2: 256, 4: 256}, {2: 128, 4: 64}
MAX_HEAD_DIM_ADDITIVE = 1024  # which is computed dim by dim, a few values at once


def assume_constant(function: F) -> F:
    """Mark a function as torch.compiler.assume_constant_result does, without importing the compiler."""
    setattr(function, "_dynamo_marked_constant", True)  # noqa: B010, callables have no such attribute
    return function


def unsupported_reason(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    why = unsupported_device(call.q.device)
    if why is not None:
        return why
    if call.q.dtype == torch.bfloat16 and interpreting():
        return "Triton's interpreter computes bfloat16 wrongly"
    if call.q.dtype == torch.float64:
        return "these kernels compute in float32 at most, and the tensors are float64"
    return EDGES_ONLY if call.edges is not None else unsupported_head_dim(call)


@assume_constant
def unsupported_device(device: torch.device) -> str | None:
    """Why kernels cannot run on a device; None when they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; torch for CUDA brings it"
    if interpreting():
        return None
    if device.type != "cuda":
        return f"the tensors are on {device.type}, and these kernels run on a GPU"
    if torch.version.cuda and torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is older than compute capability 8.0, which these kernels need"
    return None


def unsupported_head_dim(call: Call) -> str | None:
    """Why kernels cannot take the head dims; None when they can."""
    widest = max(call.q.shape[-1], call.v.shape[-1])
    relative = isinstance(call.position, Shaw | TransformerXL | Disentangled)
    limit = (MAX_HEAD_DIM_RELATIVE if relative else MAX_HEAD_DIM)[call.q.dtype.itemsize]
    limit = MAX_HEAD_DIM_ADDITIVE if isinstance(call.score, Additive) else limit
    if widest <= limit:
        return None
    part = f" with {type(call.position).__name__} in {str(call.q.dtype).removeprefix('torch.')}" if relative else ""
    return f"a head_dim of {widest} is more than the {limit} whose tiles fit a multiprocessor{part}"


def slower_reason(call: Call) -> str | None:
    """Why another backend would be faster; None when none would."""
    if interpreting():
        return "Triton's interpreter is for tests"
    return tiles_reason(call)


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with without_autocast(call.q.device):
        p = lower(call)
        if not isinstance(call.score, Dot | Additive):
            p = replace(p, v=p.v.to(call.exact))  # what the score makes of q and k may not fit the type
        if p.q.dtype != p.v.dtype:
            p = round_inputs(p, call)
        return cast(solve(p)[0], call.v.dtype)


def prepare(call: Call) -> AttentionFunction | None:
    """`run` as a function of q, k and v for all calls of the same kind, whatever the contents of their parts, or None.

    Where the position learns a table, that is a fourth argument.
    """
    stays = call.position is None or (isinstance(call.position, Alibi) and call.position.slopes is None)
    own = type(call.score) is Dot and not call.mask.tensors()
    return prepare_fixed(call) if own and (stays or call.learns_position) else None


def prepare_fixed(call: Call) -> AttentionFunction | None:
    """`run` as a function of q, k and v, and of a table that is learned, as long as nothing else changes; or None."""
    if call.dropout or any(x is not None for x in (call.sink, call.bias, call.places)):
        return None
    stays = call.position is not None and call.position.tensors() and not call.learns_position
    if in_cuda_graph() and (call.mask.tensors() or stays):  # whose contents may differ when the graph runs
        return None
    if isinstance(call.score, Additive):
        from ..kernels.additive import rows

        if call.position is not None or (in_cuda_graph() and not isinstance(call.mask, Everything)):
            return None  # in each graph the mask's bytes are made anew
        p = lower(call)
        return rows.RowStep(p) if has_one_type(p) and rows.covers(p) else None
    position = call.position
    if type(call.score) is not Dot or (position and (position.transforms or position.rotates or position.dot_only)):
        return None
    from ..kernels.decode import passes as decode
    from ..kernels.dot import step

    p = lower(call)
    if call.learns_position:
        table = step.learned_table(call.position, call.q, call.k)
        return None if table is None or not step.reads_little(p) else step.DotStep(p, solve, table)
    if not has_one_type(p):
        return None
    if decode.covers(p) is not None:
        return step.DotStep(p, solve) if step.covers(p) else None
    return None if any(p.needs_grad) or not decode.is_kept(p) else decode.DecodeStep(p)


def has_one_type(p: LoweredCall) -> bool:
    return p.q.dtype == p.k.dtype == p.v.dtype


def round_inputs(p: LoweredCall, call: Call) -> LoweredCall:
    """The call with what was computed exactly from q and k rounded for the tensor cores."""
    dtype = p.v.dtype
    leaves_k = isinstance(call.position, TransformerXL | Disentangled)
    transformed = call.position is not None and not leaves_k
    k = p.k.to(dtype) if transformed or call.k.dtype != dtype else call.k
    vectors = None if p.rel_vectors is None else p.rel_vectors._replace(queries=p.rel_vectors.queries.to(dtype))
    return replace(p, q=p.q.to(dtype), k=k, rel_vectors=vectors)


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    if p.q.dtype != p.v.dtype:
        p = replace(p, q=p.q.to(p.v.dtype), k=p.k.to(p.v.dtype))
    with device_guard(p.q):
        return p.plan.get(forward_kernels, lambda: forward_kernels(p)).forward(p)


def backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight, rel_bias, rel_q, rel_vectors, pair_bias, and for dot products key_vectors."""
    with device_guard(p.q):
        return score_kernels(p).backward(p, grad, output, lse.contiguous())  # kernels read lse without strides


def forward_kernels(p: LoweredCall) -> ModuleType:
    """The kernels of decoding where they take the call, else those of its score."""
    from ..kernels.decode import passes as decode

    return decode if decode.covers(p) is None else score_kernels(p)


def score_kernels(p: LoweredCall) -> ModuleType:
    """The kernels of the call's score. Triton is imported only here, when it is needed."""
    if p.weight is None:
        from ..kernels.dot import passes

        return passes
    from ..kernels.additive import passes as additive

    return additive


@assume_constant
def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


solve = define_operator("triton", forward, backward, rounds=True)
"""(output, log-sum-exp) of a lowered call."""
