"""`attend` over ranks: each computes the rows of its own queries, over the keys that the mask lets them see.

This is the border: what the ranks are given is checked and compared, lowered to the form of kernels with the positions
of the whole sequence, and handed to the passes (`passes.py`). Gradients of parts' own tensors are summed over ranks.
"""

from __future__ import annotations

from dataclasses import fields, replace
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...attention.attend import parts_key
from ...attention.backends import edges as edge_kernels
from ...attention.backends import triton
from ...attention.backends.backend import reason_against
from ...attention.backends.blockwise import blockwise
from ...attention.backends.custom_op import GRADIENTS, call_tensors
from ...attention.call import Call, LoweredCall, cast_for_autocast, check_call, check_shapes, lower, without_autocast
from ...attention.parts.edges import EdgeFeatures, edges_of
from ...attention.parts.mask import Mask, PlacePair
from ...attention.parts.masks import Everything
from ...attention.parts.methods import Exact
from ...attention.parts.pair_bias import PairBias
from ...attention.parts.parts import Parts
from ...attention.parts.positions import AxialRotary, Position, Rotary
from ...attention.parts.scores import Dot, Score
from ...attention.parts.sink import Sink
from ...attention.sharding import current_layout
from ...errors import BadInput, Unsupported
from ..assignment import Runs
from ..layout import Layout
from .agreement import agree, shared_seed
from .nonfinite import attend_to_finite
from .passes import ShardedCall, backward_pass, forward_pass, needs_runs, new_exchange
from .shard_plan import find_plan

P = TypeVar("P")
SHARED = (Score, Position, Sink, PairBias, EdgeFeatures)
"""Parts with learned tensors."""


def attend_sharded(
    layout: Layout,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    parts: Parts,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """The output of this rank's queries; q, k and v hold this rank's tokens, the parts are those of the whole."""
    layout.require_group()
    q, k, v = cast_for_autocast(q, k, v)
    finite = agree(layout, (q, k, v), parts, lambda: check_shard(layout, q, k, v, parts, backend))
    seed = shared_seed(layout, generator, q.device) if parts.dropout else None
    mask = whole_mask(parts)
    with without_autocast(q.device):
        if current_layout() is not layout:
            parts = share_gradients(parts, layout)

        def run(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
            sharded = shard_call(layout, (q, k, v), parts, mask, seed, backend)
            output = ShardedAttention.apply(sharded, *call_tensors(sharded.call)[:GRADIENTS])
            return output.to(v.dtype)  # type: ignore[union-attr]

        output = run(q, k, v, mask)
        return output if finite else attend_to_finite(layout, q, k, v, mask, run, output.detach())


def check_shard(layout: Layout, q: Tensor, k: Tensor, v: Tensor, parts: Parts, backend: str) -> None:
    """Raise unless this rank's tensors and parts fit together and the layout."""
    check_shapes(q, k, v)
    for name, tensor, runs in (("q", q, layout.rows()), ("k", k, layout.keys())):
        count = sum(last - first for first, last in runs)
        if tensor.shape[2] != count:
            raise BadInput(
                f"{name} is {list(tensor.shape)}; rank {layout.rank} holds {count} tokens of {layout!r}. "
                "Take them with layout.split."
            )
    if not isinstance(parts.method, Exact):
        raise Unsupported(f"{type(parts.method).__name__} is not exact, and only Exact() runs sharded.")
    if backend not in ("auto", "blockwise", "triton"):
        raise Unsupported(f"Backend {backend!r} does not run sharded; blockwise and triton do. Leave it out.")
    check_call(*whole_like(layout, q, k, v), parts)


def whole_like(layout: Layout, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors with the sizes of the whole sequence, without memory for it."""
    queries, keys = layout.tokens
    q, k, v = (x[:, :, :1].expand(-1, -1, n, -1) for x, n in ((q, queries), (k, keys), (v, keys)))
    return q, k, v


def whole_mask(parts: Parts) -> Mask:
    """The mask of the whole, at its places."""
    mask = Everything() if parts.mask is None else parts.mask
    return mask if parts.places is None else parts.places.place(mask)


def shard_call(
    layout: Layout,
    tensors: tuple[Tensor, Tensor, Tensor],
    parts: Parts,
    mask: Mask,
    seed: Tensor | None,
    backend: str,
    by_runs: bool = False,
) -> ShardedCall:
    """The lowered call of this rank with what it does for the mask; `by_runs` makes each piece one run."""
    lowered, kernels = lower_call(layout, tensors, parts, mask, seed, backend)
    along_edges, places = kernels is edge_kernels, whole_places(layout, parts)
    by_runs = by_runs or (not along_edges and needs_runs(lowered, places is not None))
    plan = find_plan(layout, mask, lowered.q.device, by_runs, along_edges)
    return ShardedCall(layout, plan, lowered, kernels, mask, places, parts_key(*tensors, parts, backend))


def whole_places(layout: Layout, parts: Parts) -> PlacePair | None:
    """Explicit places of all queries and keys; None where they are counted."""
    return None if parts.places is None else parts.places.pair(layout.tokens[0])


def lower_call(
    layout: Layout,
    tensors: tuple[Tensor, Tensor, Tensor],
    parts: Parts,
    mask: Mask,
    seed: Tensor | None = None,
    backend: str = "auto",
) -> tuple[LoweredCall, ModuleType]:
    """The lowered call of this rank's tokens, and its kernels."""
    others = {"sink": parts.sink, "bias": parts.bias, "places": parts.places, "edges": parts.edges}
    call = Call(*tensors, parts.score, parts.position, mask, float(parts.dropout), seed, **others)
    kernels = choose_kernels(layout, call, backend)
    return lower_shard(layout, call, whole_places(layout, parts), kernels), kernels


def choose_kernels(layout: Layout, call: Call, backend: str) -> ModuleType:
    """What computes the pieces of a call: sums along edges, fused kernels, or tiles."""
    whole = replace(call, **dict(zip("qkv", whole_like(layout, call.q, call.k, call.v), strict=True)))
    if call.edges is not None or (backend == "auto" and reason_against(edge_kernels, whole) is None):  # type: ignore[arg-type]
        return edge_kernels
    why = "dropout runs on blockwise" if call.dropout else triton.unsupported_reason(call)
    if backend == "triton" and why is not None:
        raise Unsupported(f"Backend 'triton' cannot run this call: {why}.")
    fused = why is None and (backend == "triton" or (backend == "auto" and not triton.interpreting()))
    return triton if fused else blockwise  # type: ignore[return-value]


def lower_shard(layout: Layout, call: Call, places: PlacePair | None, kernels: ModuleType) -> LoweredCall:
    """The call of this rank's tokens in the form of kernels, with positions of the whole sequence."""
    position, bias = call.position, None
    if position is not None and position.rotates:
        q, k = rotate(position, layout, call.q, call.k, places)
        call = replace(call, q=q, k=k, position=None)
    elif position is not None:
        q, k, _ = whole_like(layout, call.q, call.k, call.v)
        bias = position.rel_bias(q, k) if places is None else position.rel_bias_at(q, k, places)
        if bias is not None:
            call = replace(call, position=None)
        elif not position.count_vectors(call.q, call.k):
            raise Unsupported(f"{type(position).__name__} does not run sharded: it has no form by distance.")
    p = replace(lower(replace(call, places=None, edges=None)), merged=True)
    if call.edges is not None:
        p = add_edge_features(p, call.edges, call.mask, layout.tokens[1])
    if bias is not None:
        learned = torch.is_grad_enabled() and bias.table.requires_grad
        bias = bias if places is not None else bias._replace(slopes=None)  # which would count from a piece's first key
        p = replace(p, rel_bias=bias, needs_grad=(*p.needs_grad[:4], learned, *p.needs_grad[5:]))
    if kernels is triton:
        p = replace(p, v=p.v if isinstance(call.score, Dot) or p.weight is not None else p.v.to(call.exact))
        p = triton.round_inputs(p, call) if p.q.dtype != p.v.dtype else p
    return p


def add_edge_features(p: LoweredCall, edges: EdgeFeatures, mask: Mask, keys: int) -> LoweredCall:
    """The lowered call with the features of all edges, sorted; each piece takes those of its own."""
    fields = edges.sorted_fields(edges_of(mask), keys)
    needs = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in fields]
    names = ("edge_bias", "edge_keys", "edge_values")
    return replace(p, needs_grad=(*p.needs_grad[:10], *needs), **dict(zip(names, fields, strict=True)))


def rotate(position: Position, layout: Layout, q: Tensor, k: Tensor, places: PlacePair | None) -> tuple[Tensor, Tensor]:
    """q and k rotated by the positions of their tokens in the whole sequence."""
    queries, keys = layout.tokens
    if isinstance(position, Rotary) and places is None:
        return rotate_runs(position, q, layout.rows(), keys - queries), rotate_runs(position, k, layout.keys(), 0)
    rows, columns = (
        layout.split(torch.arange(n), 0, keys=n_keys).to(q.device) for n, n_keys in ((queries, False), (keys, True))
    )
    if isinstance(position, AxialRotary):
        every = position.coordinates(k.device)  # [..., keys, axes]
        own = every[..., keys - queries :, :] if position.queries is None else position.queries
        return replace(position, keys=every[..., columns, :], queries=own[..., rows, :]).transform(q, k)
    if places is None:
        raise Unsupported(f"{type(position).__name__} does not run sharded: it has no form at explicit places.")
    return position.transform_at(q, k, (places[0][:, rows], places[1][:, columns]))


def rotate_runs(position: Rotary, x: Tensor, runs: Runs, offset: int) -> Tensor:
    """x rotated by the positions of its tokens, which are those of the runs."""
    pieces = x.split([last - first for first, last in runs], dim=2)
    return torch.cat(
        [position.rotate(one, first + offset) for one, (first, _) in zip(pieces, runs, strict=True)], dim=2
    )


class ShardedAttention(torch.autograd.Function):
    """Output of a rank's rows, and the gradients of its tensors and of the parts' own."""

    @staticmethod
    def forward(ctx: Any, sharded: ShardedCall, *tensors: Tensor | None) -> Tensor:
        output, lse = forward_pass(sharded)
        ctx.sharded = sharded
        ctx.save_for_backward(output, lse)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        output, lse = ctx.saved_tensors
        sharded: ShardedCall = replace(ctx.sharded, call=replace(ctx.sharded.call, needs_grad=ctx.needs_input_grad[1:]))
        grads = backward_pass(sharded, grad.contiguous(), output, lse)
        tensors = call_tensors(sharded.call)[:GRADIENTS]
        return None, *[
            g.to(x.dtype) if need and g is not None and x is not None else None
            for g, x, need in zip(grads, tensors, ctx.needs_input_grad[1:], strict=True)
        ]


class SumGradient(torch.autograd.Function):
    """A tensor that all ranks share, in a type; its gradient is summed over them in that type, in their order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
        ctx.layout, ctx.dtype = layout, x.dtype
        return x.view_as(x) if x.dtype == dtype else x.to(dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return sum_in_order(grad, ctx.layout).to(ctx.dtype), None, None


class SumRanks(torch.autograd.Function):
    """The sum over all ranks, in their order; so is that of its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        return sum_in_order(x, layout)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return sum_in_order(grad, ctx.layout), None


def sum_in_order(x: Tensor, layout: Layout) -> Tensor:
    """The sum over all ranks, in their order, so that it has the same bits on each and every time."""
    exchange = new_exchange(layout)
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(layout.ranks)]
    parts[layout.rank].copy_(x)
    for step in range(1, layout.ranks):
        target, source = (layout.rank + step) % layout.ranks, (layout.rank - step) % layout.ranks
        exchange.start([(parts[layout.rank], target)], [(parts[source], source)]).wait()
    return torch.stack(parts).sum(0)


def share_gradients(parts: Parts, layout: Layout) -> Parts:
    """The parts with tensors of their own that get the sum of all ranks' gradients."""
    if not torch.is_grad_enabled():
        return parts
    shared = {name: share_tensors(x, layout) for name, x in vars(parts).items() if isinstance(x, SHARED)}
    return Parts(**{**vars(parts), **shared})


def share_tensors(part: P, layout: Layout) -> P:
    """A part whose own tensors get the sum of all ranks' gradients.

    Those of scores, positions and sinks are sums over all pairs, in which most may cancel: they are summed in float32.
    """
    every_pair = isinstance(part, Score | Position | Sink)
    learned = {
        f.name: SumGradient.apply(x, layout, torch.promote_types(x.dtype, torch.float32) if every_pair else x.dtype)
        for f in fields(part)  # type: ignore[arg-type]
        if isinstance(x := getattr(part, f.name), Tensor) and x.requires_grad
    }
    return replace(part, **learned) if learned else part  # type: ignore[type-var]
