"""Sinks with torch's fused kernels, which have none.

Forward, the sink is added to a kernel's output and log-sum-exp. Backward, a kernel gets both as they are with the sink:

    p = exp(s − lse),   δ = Σ output · d_output,   ds = p · (d_output vᵀ − δ)

is the gradient of a softmax with one more logit, whose value is zero. Where the sink is learned, kernels of ours
compute the output of half types: its gradient is a sum of δ, in which what torch rounds does not cancel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..call import Call, LoweredCall, device_guard
from ..parts.masks import Causal, Everything
from ..parts.scores import Dot
from . import triton
from .blockwise.flash import dense_rows
from .custom_op import GRADIENTS, define_operator, pad
from .sinks import add_to_lse

aten = torch.ops.aten
FLASH, CUDNN = 1, 3  # torch.nn.attention.SDPBackend
HEAD_DIM, STEP = 128, 8  # the greatest head_dim of a GPU's kernels in both passes, and what it is a multiple of
QUERIES = 128  # below which kernels of ours, which may split the keys, take less time


def unsupported_reason(call: Call) -> str | None:
    """Why these kernels cannot run a call with a sink; None when they can."""
    grid, dims = call.grid, {call.k.shape[-1], call.v.shape[-1]}  # of k: a score may turn queries of another dim to it
    causal = isinstance(call.mask, Causal) and grid.queries == grid.keys
    rotates = call.position is None or call.position.rotates
    if not (causal or isinstance(call.mask, Everything)) or not rotates or call.bias is not None or call.dropout:
        return "torch's kernels take a sink with a causal mask or none, and nothing that is added to scores"
    if isinstance(call.score, Dot) and call.score.factor(call.q.shape[-1]) <= 0:  # torch masks before it scales
        return "torch's kernels take a sink with a positive scale"
    if len(dims) > 1 or call.empty or torch.compiler.is_compiling():
        return "torch's kernels take a sink outside compiled graphs, where k and v have one head_dim"
    return None if call.q.device.type == "cpu" else gpu_reason(call)


def gpu_reason(call: Call) -> str | None:
    """Why the kernels of a GPU cannot run a call with a sink, or not as fast as ours."""
    if torch.are_deterministic_algorithms_enabled() and torch.is_grad_enabled():
        return "the gradients of torch's kernels may differ from call to call"
    if call.v.dtype not in (torch.float16, torch.bfloat16) or call.q.dtype != call.v.dtype:
        return "torch's fast kernels compute in half types"
    if call.k.shape[-1] > HEAD_DIM or call.k.shape[-1] % STEP:
        return f"torch's kernels take a head_dim of at most {HEAD_DIM}, a multiple of {STEP}, with a sink"
    if min(call.grid.queries, call.grid.keys) < QUERIES:
        return f"kernels of ours are faster with a sink and fewer than {QUERIES} queries or keys"
    if (why := triton.unsupported_reason(call)) is not None:
        return why
    choice = choose_kernel(call.q, call.k, call.v, isinstance(call.mask, Causal))
    return None if choice in (FLASH, CUDNN) else "torch has no fast kernel for these tensors"


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, with the sink."""
    half = p.v.dtype in (torch.float16, torch.bfloat16)
    if half and p.needs_grad[8] and p.q.is_cuda:
        return triton.forward(p)
    q, k, v = kernel_inputs(p)
    causal, scale = isinstance(p.mask, Causal), p.scale
    if not q.is_cuda:
        output, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    elif choose_kernel(q, k, v, causal) == CUDNN:
        output, lse = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, scale=scale)[:2]
        lse = lse.reshape(q.shape[:3])
    else:
        output, lse = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[:2]
    total = add_to_lse(lse, p.sink)  # type: ignore[arg-type]
    return torch.mul(output, (lse - total).exp()[..., None], out=output), total


def backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k and v, and on a GPU that of the sink."""
    q, k, v = kernel_inputs(p)
    grad, causal, scale, sink = dense_rows(grad.to(q.dtype)), isinstance(p.mask, Causal), p.scale, None
    if p.needs_grad[8] and q.is_cuda:
        from ..kernels import sinks

        with device_guard(q):
            sink, output = sinks.sink_gradient(p, grad, output, lse)
    output = output.to(q.dtype)
    saved, lse = (grad, q, k, v, output), lse.contiguous()
    sizes = (None, None, q.shape[2], k.shape[2], 0.0, causal)
    if not q.is_cuda:
        kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward
        grads = kernel(*saved, lse, 0.0, causal, scale=scale)
    elif choose_kernel(q, k, v, causal) == CUDNN:
        unused = torch.zeros((), dtype=torch.int64, device=q.device)  # the state of dropout
        kernel = aten._scaled_dot_product_cudnn_attention_backward
        grads = kernel(*saved, lse[..., None], unused, unused, None, *sizes, scale=scale)
    else:
        unused = torch.zeros(2, dtype=torch.int64, device=q.device)
        kernel = aten._scaled_dot_product_flash_attention_backward
        grads = kernel(*saved, lse, *sizes, unused, unused, scale=scale)
    return [*pad(grads, GRADIENTS - 1), sink]


def kernel_inputs(p: LoweredCall) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as the kernel reads them: in the type of v on a GPU, in float32 at least on a CPU, as a learned sink
    needs it; and each token's numbers one after another, which the CPU's kernel takes for granted."""
    dtype = p.v.dtype if p.v.is_cuda else torch.promote_types(p.v.dtype, torch.float32)
    q, k, v = (x.to(dtype) for x in (p.q, p.k, p.v))
    return dense_rows(q), dense_rows(k), dense_rows(v)


def choose_kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> int:
    """torch's choice of a kernel on a GPU, a number of `SDPBackend`."""
    return int(torch._fused_sdp_choice(q, k, v, None, 0.0, causal, enable_gqa=q.shape[1] != k.shape[1]))


solve = define_operator("fused_sinks", forward, backward)
"""(output, log-sum-exp) of a lowered call with a sink."""
