"""Backends with a backward pass of their own as torch operators.

A `LoweredCall` is flattened into the arguments that torch.library takes, so that compiled graphs, autocast and autograd
see an ordinary operator: `regard::NAME` and `regard::NAME_backward`. Outside compiled graphs a plain
`torch.autograd.Function` does the same with less bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..call import LoweredCall
from ..parts.positions import DistanceBias, KeyVectors, RelativeVectors
from . import mask_codec
from .sinks import sink_gradient

ForwardPass = Callable[[LoweredCall], tuple[Tensor, Tensor]]
BackwardPass = Callable[[LoweredCall, Tensor, Tensor, Tensor], list[Tensor | None]]
Tensors = Sequence[Tensor | None]
TENSORS = 17  # tensors of a lowered call, its mask's aside; gradients go to the first GRADIENTS
GRADIENTS = 13
SEQUENCE_GRADIENTS = 10  # those of calls without features of edges


def define_operator(name: str, forward: ForwardPass, backward: BackwardPass, rounds: bool = False) -> ForwardPass:
    """A function from a `LoweredCall` to (output, log-sum-exp), differentiable in the call's tensors.

    `forward(call)` returns both; `backward(call, d_output, output, lse)` returns the gradients of q, k, v, weight,
    rel_bias, rel_q, rel_vectors and pair_bias, with any value for a tensor that is absent or not in `call.needs_grad`,
    and, if it takes any, after them those of key_vectors and of the bias, keys and values of edges. The sink's may be
    the last; otherwise it follows from the others' arguments. Where k and v are `tied`, it may return their sum as k's
    and None as v's. The output is rounded to v's type only for the caller: backward gets what forward returned, float32
    at least, because Σ output · d_output decides all gradients. An operator that `rounds` returns v's type where the
    call has no tensors of parts: the gradients of q, k and v tolerate it, and memory is saved.
    """

    def output_dtype(tensors: Tensors) -> torch.dtype:
        v, weight, rel_bias, rel_vectors, slopes = (tensors[i] for i in (2, 3, 4, 6, 14))
        part_tensors = any(x is not None for x in (weight, rel_vectors, *tensors[7:13]))
        part_tensors = part_tensors or (rel_bias is not None and slopes is None)
        dtype = require(v).dtype
        return dtype if rounds and not part_tensors else torch.promote_types(dtype, torch.float32)

    def all_gradients(call: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
        *grads, sink = pad(backward(call, grad, output, lse), GRADIENTS)
        if sink is None and call.sink is not None and call.needs_grad[8]:
            sink = sink_gradient(call, grad, output, lse)
        return [*grads[:8], sink, *grads[8:]]

    @torch.library.custom_op(f"regard::{name}", mutates_args=())
    def forward_op(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        weight: Tensor | None,
        rel_bias: Tensor | None,
        rel_q: Tensor | None,
        rel_vectors: Tensor | None,
        pair_bias: Tensor | None,
        sink: Tensor | None,
        key_vectors: Tensor | None,
        edge_bias: Tensor | None,
        edge_keys: Tensor | None,
        edge_values: Tensor | None,
        seed: Tensor | None,
        slopes: Tensor | None,
        query_places: Tensor | None,
        key_places: Tensor | None,
        mask_tensors: list[Tensor],
        mask: str,
        activation: str,
        floats: list[float],
        integers: list[int],
    ) -> tuple[Tensor, Tensor]:
        tensors = (q, k, v, weight, rel_bias, rel_q, rel_vectors, pair_bias, sink, key_vectors)
        tensors = (*tensors, edge_bias, edge_keys, edge_values)
        tensors = (*tensors, seed, slopes, query_places, key_places)
        output, lse = forward(from_arguments(tensors, mask_tensors, mask, activation, floats, integers))
        dtype = output_dtype(tensors)
        return match_layout(output.to(dtype), output_layout(q, v, dtype)), lse.contiguous()

    @forward_op.register_fake
    def _(*arguments: Any) -> tuple[Tensor, Tensor]:
        q, _, v, *_ = tensors = arguments[:TENSORS]
        exact = torch.promote_types(v.dtype, torch.float32)
        layout = output_layout(q, v, output_dtype(tensors))
        return torch.empty_like(layout, device=v.device), v.new_empty(q.shape[:3], dtype=exact)

    @torch.library.custom_op(f"regard::{name}_backward", mutates_args=())
    def backward_op(
        grad: Tensor,
        output: Tensor,
        lse: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        weight: Tensor | None,
        rel_bias: Tensor | None,
        rel_q: Tensor | None,
        rel_vectors: Tensor | None,
        pair_bias: Tensor | None,
        sink: Tensor | None,
        key_vectors: Tensor | None,
        edge_bias: Tensor | None,
        edge_keys: Tensor | None,
        edge_values: Tensor | None,
        seed: Tensor | None,
        slopes: Tensor | None,
        query_places: Tensor | None,
        key_places: Tensor | None,
        mask_tensors: list[Tensor],
        mask: str,
        activation: str,
        floats: list[float],
        integers: list[int],
        needs_grad: list[bool],
    ) -> list[Tensor]:
        tensors = (q, k, v, weight, rel_bias, rel_q, rel_vectors, pair_bias, sink, key_vectors)
        tensors = (*tensors, edge_bias, edge_keys, edge_values)
        tensors = (*tensors, seed, slopes, query_places, key_places)
        call = from_arguments(tensors, mask_tensors, mask, activation, floats, integers, needs_grad)
        grads = all_gradients(call, grad, output, lse)
        return [
            match_layout(g.to(x.dtype), x) if need and x is not None and g is not None else q.new_empty(0)
            for x, g, need in zip(tensors[:GRADIENTS], grads, needs_grad, strict=True)
        ]

    @backward_op.register_fake
    def _(grad: Tensor, output: Tensor, lse: Tensor, *arguments: Any) -> list[Tensor]:
        pairs = zip(arguments[:GRADIENTS], arguments[-1], strict=True)
        return [torch.empty_like(x) if x is not None and need else grad.new_empty(0) for x, need in pairs]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, mask_tensors, ctx.mask, ctx.activation, ctx.floats, ctx.integers = inputs
        ctx.save_for_backward(*output, *tensors, *mask_tensors)
        ctx.mask_count = len(mask_tensors)
        ctx.mask_object = mask_codec.live_object(ctx.mask)

    def compiled_backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
        output, lse, *rest = ctx.saved_tensors
        tensors, mask_tensors = rest[:TENSORS], rest[TENSORS:]
        needs = zip(tensors[:GRADIENTS], ctx.needs_input_grad[:GRADIENTS], strict=True)
        needs_grad = [x is not None and need for x, need in needs]
        flat = (*tensors, mask_tensors, ctx.mask, ctx.activation, ctx.floats, ctx.integers, needs_grad)
        grads = backward_op(materialize(grad), output, lse, *flat)
        grads = [g if need else None for g, need in zip(grads, needs_grad, strict=True)]
        return *grads, *[None] * 4, [None] * ctx.mask_count, None, None, None, None

    forward_op.register_autograd(compiled_backward, setup_context=setup_context)

    class EagerAttention(torch.autograd.Function):
        """The operator outside compiled graphs, where torch.library's bookkeeping costs more than small kernels."""

        @staticmethod
        def forward(ctx: Any, call: LoweredCall, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
            output, lse = forward(call)
            # Autograd holds the tensors, and frees them in time.
            ctx.call = replace_tensors(call, (None,) * TENSORS, call.needs_grad)
            ctx.save_for_backward(output, lse, *tensors)
            ctx.mark_non_differentiable(lse)
            ctx.set_materialize_grads(False)  # no zeros for the lse
            return cast(output, call.v.dtype), lse

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
            output, lse, *tensors = ctx.saved_tensors
            needs_grad = ctx.needs_input_grad[1 : GRADIENTS + 1]
            grads = all_gradients(replace_tensors(ctx.call, tensors, needs_grad), materialize(grad), output, lse)
            triples = zip(tensors[:GRADIENTS], grads, needs_grad, strict=True)
            return None, *[cast(g, x.dtype) if need and g is not None else None for x, g, need in triples], *[None] * 4

    def solve(call: LoweredCall) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():
            output, lse = forward_op(*to_arguments(call))
        elif any(call.needs_grad):
            return EagerAttention.apply(call, *call_tensors(call))  # type: ignore[return-value]
        else:
            output, lse = forward(call)
        return cast(output, call.v.dtype), lse

    return solve


def require(x: Tensor | None) -> Tensor:
    """A tensor that every call has."""
    if x is None:
        raise TypeError("An operator needs q, k and v.")
    return x


def pad(grads: list[Tensor | None], length: int) -> list[Tensor | None]:
    """Gradients with None for those that a backward pass does not return."""
    return [*grads, *[None] * (length - len(grads))]


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the type, without a call of torch where it has it."""
    return x if x.dtype == dtype else x.to(dtype)


def output_layout(q: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """A meta tensor with the layout of the output: token by token where v is, as in graphs, else head by head."""
    batch, heads, queries, dim = *q.shape[:3], v.shape[3]
    if v.shape[1] > 1 and v.shape[2] > 1 and v.stride(1) < v.stride(2):  # the heads of a token lie side by side
        return torch.empty(batch, queries, heads, dim, dtype=dtype, device="meta").transpose(1, 2)
    return torch.empty(batch, heads, queries, dim, dtype=dtype, device="meta")


def match_layout(x: Tensor, like: Tensor) -> Tensor:
    """x with the strides of `torch.empty_like(like)`, which the fake operator promised to a compiled graph."""
    steps = torch.empty_like(like, device="meta").stride()
    return x if x.stride() == steps else torch.empty_strided(x.shape, steps, dtype=x.dtype, device=x.device).copy_(x)


def materialize(grad: Tensor) -> Tensor:
    """A gradient that is expanded or strided in its last axis, as a copy; others as they are."""
    return grad if grad.stride(-1) == 1 and 0 not in grad.stride() else grad.contiguous()


def call_tensors(p: LoweredCall) -> tuple[Tensor | None, ...]:
    """The tensors of a lowered call, its mask's aside."""
    rel_q, rel_vectors, _ = p.rel_vectors or (None, None, 0)
    rel_bias, _, slopes = p.rel_bias or (None, 0, None)
    slopes = None if slopes is None else slopes.detach()
    key_vectors, _ = p.key_vectors or (None, 0)
    parts = (p.weight, rel_bias, rel_q, rel_vectors, p.pair_bias, p.sink, key_vectors)
    edges = (p.edge_bias, p.edge_keys, p.edge_values)
    return p.q, p.k, p.v, *parts, *edges, p.seed, slopes, *(p.places or (None, None))


def replace_tensors(p: LoweredCall, tensors: Tensors, needs_grad: tuple[bool, ...]) -> LoweredCall:
    """The call with other tensors in the places of its own, and other gradients needed."""
    q, k, v, weight, bias, rel_q, vectors, pair_bias, sink, keys, *edges, seed, slopes, query_places, key_places = (
        tensors
    )
    rel_bias = None if p.rel_bias is None else DistanceBias(bias, p.rel_bias.zero, slopes)  # type: ignore[arg-type]
    rel_vectors = None if p.rel_vectors is None else RelativeVectors(rel_q, vectors, p.rel_vectors.zero)  # type: ignore[arg-type]
    parts = (weight, p.activation, p.slope, rel_bias, rel_vectors)
    places = None if query_places is None else (query_places, key_places)
    key_vectors = None if p.key_vectors is None else KeyVectors(keys, p.key_vectors.zero)  # type: ignore[arg-type]
    fixed = (p.tied, p.numbers, p.cap, pair_bias, sink, places, p.plan, key_vectors, *edges)
    return LoweredCall(
        q, k, v, p.mask, p.scale, *parts, p.dropout, seed, needs_grad, *fixed, exact_table=p.exact_table  # type: ignore[arg-type]
    )  # fmt: skip


def to_arguments(p: LoweredCall) -> tuple[Any, ...]:
    """The call as an operator's arguments."""
    mask, mask_tensors, integers = mask_codec.encode(p.mask)
    zeros = [x.zero if x is not None else 0 for x in (p.rel_bias, p.rel_vectors, p.key_vectors)]
    floats = [p.scale, p.slope, p.dropout, p.cap or 0.0]
    return *call_tensors(p), mask_tensors, mask, p.activation, floats, [*zeros, int(p.exact_table), *integers]


def from_arguments(
    tensors: Tensors,
    mask_tensors: list[Tensor],
    mask: str,
    activation: str,
    floats: list[float],
    integers: list[int],
    needs_grad: Sequence[bool] = (True,) * GRADIENTS,
) -> LoweredCall:
    """The call that an operator's arguments stand for."""
    scale, slope, dropout, cap = floats
    bias_zero, vectors_zero, keys_zero, exact_table, *integers = integers
    q, k, v, _, bias, rel_q, vectors, _, _, keys, *_ = tensors
    bare = LoweredCall(
        require(q),
        require(k),
        require(v),
        mask_codec.decode(mask, mask_tensors, integers),
        scale=scale,
        activation=activation,
        slope=slope,
        dropout=dropout,
        rel_bias=None if bias is None else DistanceBias(bias, bias_zero),
        rel_vectors=None if vectors is None or rel_q is None else RelativeVectors(rel_q, vectors, vectors_zero),
        key_vectors=None if keys is None else KeyVectors(keys, keys_zero),
        cap=cap or None,
        exact_table=bool(exact_table),
    )
    return replace_tensors(bare, tensors, tuple(needs_grad))
