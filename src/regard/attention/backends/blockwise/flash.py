"""torch's fused kernel for one chunk of queries on a CPU: plain dot products, whose tiles need nothing but a mask."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .schedule import KeySpan, QueryChunk
from .tile import Gradients, TileInputs

flash_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
WIDTH = 2048  # keys of several spans that are copied together for one call of the kernel


def covers(inputs: TileInputs) -> bool:
    """Whether torch's kernel can compute the chunks of a call."""
    p = inputs.call
    scores = (p.weight, p.cap, p.rel_bias, p.rel_vectors, p.key_vectors, p.pair_bias, p.seed)
    plain = all(part is None for part in scores) and inputs.q.shape[-1] == inputs.v.shape[-1]
    return plain and inputs.q.device.type == "cpu" and not torch.compiler.is_compiling()


def forward_chunk(inputs: TileInputs, chunk: QueryChunk) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of one chunk's rows, first to last; those of several groups of spans are merged."""
    output = lse = None
    for spans in group_spans(chunk):
        q, k, v = chunk_tensors(inputs, chunk, spans)
        bias, dead = mask_bias(inputs, chunk, spans)
        other, other_lse = flash_forward(q, k, v, 0.0, False, attn_mask=bias, scale=inputs.scale)
        if dead is not None:  # for such rows the kernel gives zeros and a log-sum-exp of 0
            other_lse = other_lse.masked_fill(dead, -torch.inf)
        if output is None or lse is None:
            output, lse = other, other_lse
        else:
            merge(output, lse, other, other_lse)
    assert output is not None and lse is not None
    return output, lse


def backward_chunk(
    inputs: TileInputs, sums: Gradients, chunk: QueryChunk, grad: Tensor, output: Tensor, lse: Tensor
) -> None:
    """Add the gradients of q, k and v that follow from a chunk's rows; the lse of dead rows is ∞."""
    grad, output, lse = (dense_rows(x[chunk.batch, :, chunk.first : chunk.last]) for x in (grad, output, lse))
    for spans in group_spans(chunk):
        q, k, v = chunk_tensors(inputs, chunk, spans)
        bias, _ = mask_bias(inputs, chunk, spans)
        dq, dk, dv = flash_backward(grad, q, k, v, output, lse, 0.0, False, attn_mask=bias, scale=inputs.scale)
        sums.q[chunk.batch, :, chunk.first : chunk.last] += dq
        start = 0
        for span in spans:
            keys, width = (chunk.batch, slice(None), slice(span.first, span.last)), span.last - span.first
            sums.k[keys] += dk.narrow(2, start, width)
            sums.v[keys] += dv.narrow(2, start, width)
            start += width


def group_spans(chunk: QueryChunk) -> Iterator[tuple[KeySpan, ...]]:
    """The spans of a chunk, short ones together."""
    group: list[KeySpan] = []
    for span in chunk.spans:
        if group and sum(x.last - x.first for x in group) + span.last - span.first > WIDTH:
            yield tuple(group)
            group = []
        group.append(span)
    if group:
        yield tuple(group)


def chunk_tensors(inputs: TileInputs, chunk: QueryChunk, spans: tuple[KeySpan, ...]) -> tuple[Tensor, Tensor, Tensor]:
    q = dense_rows(inputs.q[chunk.batch, :, chunk.first : chunk.last])
    k, v = ([x[chunk.batch, :, span.first : span.last] for span in spans] for x in (inputs.k, inputs.v))
    return (q, k[0], v[0]) if len(spans) == 1 else (q, torch.cat(k, 2), torch.cat(v, 2))


def dense_rows(x: Tensor) -> Tensor:
    """x as the kernel reads it: the features of a row side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def mask_bias(inputs: TileInputs, chunk: QueryChunk, spans: tuple[KeySpan, ...]) -> tuple[Tensor | None, Tensor | None]:
    """0 or −∞ for each pair, `[batch or 1, heads or 1, rows, width]`, and the rows without allowed keys, if any."""
    mixed = [part for span in spans for part in span.mixed]
    if not mixed:
        return None, None
    grid = inputs.grid
    i = torch.arange(chunk.first, chunk.last, device=grid.device)[:, None] + grid.offset
    j = torch.cat([torch.arange(*part, device=grid.device) for part in mixed])
    allowed = inputs.call.mask.permits(i, j[None], grid)
    allowed = allowed.reshape(*(1,) * (4 - allowed.dim()), *allowed.shape)
    allowed = (allowed[chunk.batch] if allowed.shape[0] > 1 else allowed).expand(-1, -1, len(i), len(j))
    widths = [span.last - span.first for span in spans]
    if sum(widths) == len(j):
        bias = torch.where(allowed, 0.0, -torch.inf).to(inputs.exact)
        return bias, ~allowed.any(-1)
    bias = inputs.q.new_zeros(*allowed.shape[:3], sum(widths))
    start, done = 0, 0
    for span, width in zip(spans, widths, strict=True):
        for first, last in span.mixed:
            part = allowed[..., done : done + last - first]
            bias[..., start + first - span.first : start + last - span.first].masked_fill_(~part, -torch.inf)
            done += last - first
        start += width
    return bias, None


def merge(output: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Add other keys' part to the output and log-sum-exp of the same rows, in place."""
    total = torch.logaddexp(lse, other_lse)
    finite = total.masked_fill(total == -torch.inf, 0.0)
    output.mul_((lse - finite).exp_()[..., None]).add_(other * (other_lse - finite).exp_()[..., None])
    lse.copy_(total)
