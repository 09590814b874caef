"""What the gradient of a sink takes beside torch's kernels: δ of every row, summed by head, and the output rounded."""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportReturnType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..call import LoweredCall
from .launch import Launch, align, next_power, stride_arguments
from .pair_tiles import load_tokens
from .prelude import LOG2E, head_pointer, store_rows

ROWS = 64  # of a program


@triton.jit(do_not_specialize=["queries", "heads", "blocks"])
def sink_gradient_kernel(
    p_o, p_do, p_lse, p_sink, p_rounded, p_sums,
    stride_gb, stride_gh, stride_gn, queries, heads, blocks,
    DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """sums[head, batch, block] = −Σ_i p_i · δ_i over a block of rows, with the sink's weight p = exp(sink − lse) and
    δ = Σ o·do; and o in the type of `p_rounded`."""
    i_block, i_bh = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    i_b, i_h = i_bh // heads, i_bh % heads
    o_m = tl.arange(0, BM)
    first = i_block * BM
    p_o += i_bh.to(tl.int64) * queries * DV
    b_o = load_tokens(p_o, first, o_m, queries, DV, DV, BDV).to(tl.float32)
    p_do = head_pointer(p_do, i_b, i_h, stride_gb, stride_gh)
    b_do = load_tokens(p_do, first, o_m, queries, stride_gn, DV, BDV).to(tl.float32)
    store_rows(p_rounded + i_bh.to(tl.int64) * queries * DV, first + o_m, b_o, queries, DV, BDV)
    b_lse = tl.load(p_lse + i_bh.to(tl.int64) * queries + first + o_m, mask=first + o_m < queries, other=float("inf"))
    b_lse = tl.where(b_lse == -float("inf"), float("inf"), b_lse)  # neither keys nor a sink
    b_weight = tl.exp2((tl.load(p_sink + i_h).to(tl.float32) - b_lse) * LOG2E)
    i_out = (i_h * (tl.num_programs(0) // blocks // heads) + i_b) * blocks + i_block
    tl.store(p_sums + i_out, -tl.sum(b_weight * tl.sum(b_o * b_do, 1), 0))


def sink_gradient(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the sink, `[heads]`, float32, and the output in v's type; the same bits every time."""
    sink, grad, output = align(p.sink), align(grad), output.contiguous()
    batch, heads, queries, dim = output.shape
    blocks = -(-queries // ROWS)
    rounded = torch.empty_like(output, dtype=p.v.dtype)
    sums = torch.empty((heads, batch * blocks), dtype=torch.float32, device=output.device)
    key = (sink_gradient_kernel, output.shape, grad.stride(), sink.dtype)
    launch = p.plan.get(
        key,
        lambda: Launch(
            sink_gradient_kernel, batch * heads * blocks, queries=queries, heads=heads, blocks=blocks,
            DV=dim, BDV=next_power(dim), BM=ROWS, **stride_arguments(g=grad),
        ),
    )  # fmt: skip
    launch(output, grad, lse.contiguous(), sink, rounded, sums)
    return sums.sum(1), rounded
