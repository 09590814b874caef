"""`attend` over ranks: each computes the rows of its own queries, over the keys that the mask lets them see.

Keys arrive rank by rank, while those that arrived before are computed with, and are merged by log-sum-exp; a rank holds
its own tokens and those of two others at most. Rows with far more keys than others (`Traffic.heavy`) are computed where
the keys are. Backward goes the same way with the merged output and log-sum-exp, and the gradients of keys travel back.
All sums are in the order of ranks, so that the same call gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..attention.backends import triton
from ..attention.backends.blockwise import blockwise
from ..attention.backends.custom_op import SEQUENCE_GRADIENTS, call_tensors
from ..attention.backends.sinks import add_sink, sink_gradient
from ..attention.call import Call, LoweredCall, cast_for_autocast, check_shapes, lower, without_autocast
from ..attention.execution import ExecutionPlan
from ..attention.parts.mask import ALL, Mask, PairGrid, Tiling
from ..attention.parts.masks import Everything
from ..attention.parts.methods import Exact
from ..attention.parts.parts import Parts
from ..attention.parts.positions import DistanceBias, RelativeVectors, Rotary
from ..attention.parts.scores import Dot
from ..attention.sharding import current_layout
from ..errors import BadInput, Unsupported
from .agreement import agree, shared_seed
from .assignment import Runs, merge_tiles
from .exchange import Exchange, PendingMessages
from .layout import Layout
from .region import Region, whole_states
from .traffic import Traffic

P = TypeVar("P")
Run = tuple[int, int]
Grads = list[Tensor | None]


def attend_sharded(
    layout: Layout,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    parts: Parts,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """The output of this rank's queries; q, k and v hold this rank's tokens."""
    if layout.group is None:
        raise BadInput("This layout was made for a number of ranks and has no processes; give shard a mesh.")
    q, k, v = cast_for_autocast(q, k, v)
    agree(layout, q, k, v, parts, lambda: check_shard(layout, q, k, v, parts, backend))
    seed = shared_seed(layout, generator, q.device) if parts.dropout else None
    with without_autocast(q.device):
        mask = Everything() if parts.mask is None else parts.mask
        score = share_tensors(parts.score, layout)
        position = None if parts.position is None else share_tensors(parts.position, layout)
        sink = None if parts.sink is None else share_tensors(parts.sink, layout)
        bias = None if parts.bias is None else share_tensors(parts.bias, layout)
        call = Call(q, k, v, score, position, mask, float(parts.dropout), seed, sink=sink, bias=bias)
        lowered, module = lower_shard(layout, call, backend)
        sharded = ShardedCall(layout, layout.traffic(mask), lowered, module)
        output = ShardedAttention.apply(sharded, *call_tensors(lowered)[:SEQUENCE_GRADIENTS])
        return output.to(v.dtype)  # type: ignore[union-attr]


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
    parts.score.check(q, k)
    if parts.position is not None:
        if parts.position.by_rows:
            raise Unsupported(
                f"{type(parts.position).__name__} has coordinates of every row and does not run sharded. Rotate q and "
                "k before layout.split: position.transform(q, k)."
            )
        parts.position.check(q, k)
        if parts.position.dot_only and not isinstance(parts.score, Dot):
            raise Unsupported(f"{type(parts.position).__name__} is part of a dot product and needs the score Dot.")
    whole = PairGrid(*layout.tokens, q.shape[0], q.shape[1], q.device)
    if parts.mask is not None:
        parts.mask.check(whole)
    if parts.sink is not None:
        parts.sink.check(q, k)
    if parts.bias is not None:
        parts.bias.check(whole)


def lower_shard(layout: Layout, call: Call, backend: str) -> tuple[LoweredCall, ModuleType]:
    """The call of this rank's tokens in the form of kernels, with positions of the whole sequence, and its kernels."""
    position, offset = call.position, layout.tokens[1] - layout.tokens[0]
    bias = None
    if isinstance(position, Rotary):
        q, k = rotate(position, call.q, layout.rows(), offset), rotate(position, call.k, layout.keys(), 0)
        call = replace(call, q=q, k=k, position=None)
    elif position is not None:
        whole_q, whole_k = (
            x[:, :, :1].expand(-1, -1, n, -1) for x, n in zip((call.q, call.k), layout.tokens, strict=True)
        )
        bias = position.rel_bias(whole_q, whole_k)
        if bias is not None:
            call = replace(call, position=None)
        elif position.rel_vectors(call.q, call.k) is position.key_vectors(call.q, call.k) is None:
            raise Unsupported(f"{type(position).__name__} does not run sharded: it has no form by distance.")
    fused = backend != "blockwise" and not call.dropout and triton.unsupported_reason(call) is None
    if backend == "triton" and not fused:
        why = "dropout runs on blockwise" if call.dropout else triton.unsupported_reason(call)
        raise Unsupported(f"Backend 'triton' cannot run this call: {why}.")
    fused = fused and (backend == "triton" or not triton.interpreting())
    p = lower(call)
    if bias is not None:
        learned = torch.is_grad_enabled() and bias.table.requires_grad
        p = replace(p, rel_bias=bias._replace(slopes=None), needs_grad=(*p.needs_grad[:4], learned, *p.needs_grad[5:]))
    if fused:
        p = replace(p, v=p.v if isinstance(call.score, Dot) or p.weight is not None else p.v.to(call.exact))
        p = triton.round_inputs(p, call) if p.q.dtype != p.v.dtype else p
    return p, (triton if fused else blockwise)  # type: ignore[return-value]


def rotate(position: Rotary, x: Tensor, runs: Runs, offset: int) -> Tensor:
    """x rotated by the positions of its tokens in the whole sequence."""
    pieces = x.split([last - first for first, last in runs], dim=2)
    return torch.cat(
        [position.rotate(one, first + offset) for one, (first, _) in zip(pieces, runs, strict=True)], dim=2
    )


@dataclass(frozen=True, eq=False)
class ShardedCall:
    """One call of all ranks, from the side of this one: its rectangles of rows × keys, and what travels."""

    layout: Layout
    traffic: Traffic
    call: LoweredCall
    kernels: ModuleType
    regions: dict[tuple[Run, Run], tuple[Mask, ExecutionPlan]] = field(default_factory=dict)

    @property
    def others(self) -> range:
        return range(1, self.layout.ranks)

    def light_rows(self) -> Runs:
        """This rank's queries that are computed here."""
        own = (self.traffic.query_owner == self.layout.rank) & ~self.traffic.heavy
        return merge_tiles(own.nonzero()[:, 0], self.layout.tile, self.layout.tokens[0])

    def heavy_rows(self, rank: int) -> Runs:
        """Queries of a rank that are computed where the keys are."""
        return merge_tiles(self.traffic.heavy_tiles(rank), self.layout.tile, self.layout.tokens[0])

    def key_runs(self, source: int, rank: int) -> Runs:
        """Keys of `source` that `rank` needs."""
        return merge_tiles(self.traffic.keys_between(source, rank), self.layout.tile, self.layout.tokens[1])

    def region(self, rows: Run, keys: Run) -> tuple[Mask, ExecutionPlan] | None:
        """The mask of a rectangle and what was worked out for it; None where nothing is allowed."""
        tile = self.layout.tile
        tiles = slice(rows[0] // tile, -(-rows[1] // tile)), slice(keys[0] // tile, -(-keys[1] // tile))
        if not bool(self.traffic.visited[tiles].any()):
            return None
        if (rows, keys) not in self.regions:
            mask, grid = self.call.mask, PairGrid(*self.layout.tokens, device=self.call.mask.device())
            states = whole_states(mask, Tiling(grid, tile, tile))[:, :, tiles[0], tiles[1]]
            full = bool((states == ALL).all())
            region = Everything() if full else Region(mask, *self.layout.tokens, rows[0], keys[0])
            self.regions[rows, keys] = region, ExecutionPlan()
        return self.regions[rows, keys]

    def rectangle(self, rows: Run, keys: Run, queries: Tensors, k: Tensor, v: Tensor) -> LoweredCall | None:
        """The lowered call of some rows and keys; None where nothing is allowed. `queries` hold the rows alone."""
        region = self.region(rows, keys)
        if region is None:
            return None
        p, (n, m) = self.call, (rows[1] - rows[0], keys[1] - keys[0])
        start = rows[0] + self.layout.tokens[1] - self.layout.tokens[0]  # the position of the first row
        shift = start - keys[0] - (m - n)  # of a distance in the whole over that in the rectangle
        bias, vectors = p.rel_bias, p.rel_vectors
        if bias is not None:
            bias = DistanceBias(bias.table, bias.zero + shift)
        if vectors is not None and queries.rel_q is not None:
            vectors = RelativeVectors(queries.rel_q, vectors.table, vectors.zero + shift)
        for_keys = None if p.key_vectors is None else p.key_vectors._replace(zero=p.key_vectors.zero + shift)
        mask, plan = region
        origin = (start - (m - n), keys[0])
        parts = {"rel_bias": bias, "rel_vectors": vectors, "key_vectors": for_keys, "sink": None}
        parts |= {"origin": origin, "tied": False, "plan": plan}
        pairs = None if p.pair_bias is None else pair_slice(p.pair_bias, rows, keys)
        return replace(p, q=queries.q, k=k, v=v, mask=mask, pair_bias=pairs, **parts)  # type: ignore[arg-type]


def pair_slice(bias: Tensor, rows: Run, keys: Run) -> Tensor:
    """The bias by pair of some rows and keys; a size of 1 stands for all."""
    bias = bias if bias.shape[2] == 1 else bias[:, :, slice(*rows)]
    return bias if bias.shape[3] == 1 else bias[..., slice(*keys)]


@dataclass(frozen=True, eq=False)
class Tensors:
    """Rows of queries, with their relative queries where a position has them."""

    q: Tensor
    rel_q: Tensor | None

    def narrow(self, first: int, count: int) -> Tensors:
        return Tensors(
            self.q.narrow(2, first, count), None if self.rel_q is None else self.rel_q.narrow(2, first, count)
        )


def local_slices(owned: Runs, runs: Runs) -> Iterator[tuple[Run, int]]:
    """Each run with the index of its first token among those of a rank, which owns it."""
    for run in runs:
        before = 0
        for first, last in owned:
            if first <= run[0] < last:
                yield run, before + run[0] - first
                break
            before += last - first


def take(x: Tensor, owned: Runs, runs: Runs) -> Tensor:
    """The tokens of some runs, one after the other, of a rank's own x `[batch, heads, tokens, ...]`."""
    pieces = [x.narrow(2, start, last - first) for (first, last), start in local_slices(owned, runs)]
    return torch.cat(pieces, dim=2) if pieces else x[:, :, :0]


def count(runs: Runs) -> int:
    return sum(last - first for first, last in runs)


def empty_rows(x: Tensor, rows: int) -> Tensor:
    """Memory for so many tokens like those of x."""
    return x.new_empty(*x.shape[:2], rows, *x.shape[3:])


def merge(output: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Add another part of the keys to the output and log-sum-exp of the same rows, in place."""
    total = torch.logaddexp(lse, other_lse)
    finite = total.masked_fill(total == -torch.inf, 0.0)
    output.mul_((lse - finite).exp_()[..., None]).add_(other.to(output.dtype) * (other_lse - finite).exp()[..., None])
    lse.copy_(total)


class KeyStages:
    """The keys and values that this rank needs, one rank after the other, its own first; the next is under way."""

    def __init__(self, sharded: ShardedCall, exchange: Exchange, k: Tensor, v: Tensor) -> None:
        self.sharded, self.exchange, self.k, self.v = sharded, exchange, k, v

    def start(self, step: int) -> tuple[Runs, Tensor, Tensor, PendingMessages]:
        layout, sharded = self.sharded.layout, self.sharded
        target, source = (layout.rank + step) % layout.ranks, (layout.rank - step) % layout.ranks
        wanted, runs = sharded.key_runs(layout.rank, target), sharded.key_runs(source, layout.rank)
        k, v = empty_rows(self.k, count(runs)), empty_rows(self.v, count(runs))
        sends = [(take(x, layout.keys(), wanted), target) for x in (self.k, self.v)]
        return runs, k, v, self.exchange.start(sends, [(k, source), (v, source)])

    def __iter__(self) -> Iterator[tuple[int, Runs, Tensor, Tensor]]:
        layout = self.sharded.layout
        under_way = self.start(1) if layout.ranks > 1 else None
        own = self.sharded.key_runs(layout.rank, layout.rank)
        yield 0, own, take(self.k, layout.keys(), own), take(self.v, layout.keys(), own)
        for step in self.sharded.others:
            assert under_way is not None
            runs, k, v, pending = under_way
            under_way = self.start(step + 1) if step + 1 < layout.ranks else None
            pending.wait()
            yield step, runs, k, v


def key_pieces(runs: Runs, k: Tensor, v: Tensor) -> Iterator[tuple[Run, int, Tensor, Tensor]]:
    """Each run with the index of its first key, and its keys and values."""
    start = 0
    for first, last in runs:
        yield (first, last), start, k.narrow(2, start, last - first), v.narrow(2, start, last - first)
        start += last - first


class ShardedAttention(torch.autograd.Function):
    """Output of a rank's rows, and the gradients of its tensors and of the parts' own, from its rectangles."""

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
        tensors = call_tensors(sharded.call)[:SEQUENCE_GRADIENTS]
        return None, *[
            g.to(x.dtype) if need and g is not None and x is not None else None
            for g, x, need in zip(grads, tensors, ctx.needs_input_grad[1:], strict=True)
        ]


def own_queries(sharded: ShardedCall) -> Tensors:
    p = sharded.call
    return Tensors(p.q, None if p.rel_vectors is None else p.rel_vectors.queries)


def forward_pass(sharded: ShardedCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of this rank's rows."""
    p, layout = sharded.call, sharded.layout
    exact = torch.promote_types(p.v.dtype, torch.float32)
    exchange = new_exchange(layout)
    output = p.v.new_zeros(*p.q.shape[:3], p.v.shape[3], dtype=exact)
    lse = p.v.new_full(p.q.shape[:3], -torch.inf, dtype=exact)
    queries = own_queries(sharded)
    rows = list(local_slices(layout.rows(), sharded.light_rows()))
    for _, runs, k, v in KeyStages(sharded, exchange, p.k, p.v):
        for keys, _, k_run, v_run in key_pieces(runs, k, v):
            for run, start in rows:
                size = run[1] - run[0]
                call = sharded.rectangle(run, keys, queries.narrow(start, size), k_run, v_run)
                if call is not None:
                    parts = output.narrow(2, start, size), lse.narrow(2, start, size)
                    merge(*parts, *sharded.kernels.forward(call))
    if bool(sharded.traffic.heavy.any()):
        forward_heavy(sharded, exchange, queries, output, lse)
    return add_sink(output, lse, p.sink)


def send_heavy(sharded: ShardedCall, exchange: Exchange, tensors: list[Tensor], step: int) -> tuple[Runs, list[Tensor]]:
    """This rank's heavy rows of some tensors to one rank, and those of another from it: (rows, tensors)."""
    layout = sharded.layout
    target, source = (layout.rank + step) % layout.ranks, (layout.rank - step) % layout.ranks
    own, runs = sharded.heavy_rows(layout.rank), sharded.heavy_rows(source)
    if step == 0:
        return own, [take(x, layout.rows(), own) for x in tensors]
    buffers = [empty_rows(x, count(runs)) for x in tensors]
    sends = [(take(x, layout.rows(), own), target) for x in tensors]
    exchange.start(sends, [(x, source) for x in buffers]).wait()
    return runs, buffers


def return_heavy(sharded: ShardedCall, exchange: Exchange, computed: list[Tensor], step: int) -> list[Tensor]:
    """What was made of another rank's heavy rows back to it, and what another made of this rank's own from it."""
    layout = sharded.layout
    target, source = (layout.rank - step) % layout.ranks, (layout.rank + step) % layout.ranks
    if step == 0:
        return computed
    rows = count(sharded.heavy_rows(layout.rank))
    buffers = [empty_rows(x, rows) for x in computed]
    exchange.start([(x, target) for x in computed], [(x, source) for x in buffers]).wait()
    return buffers


def forward_heavy(sharded: ShardedCall, exchange: Exchange, queries: Tensors, output: Tensor, lse: Tensor) -> None:
    """The heavy rows of all ranks over this rank's keys; what others made of this rank's rows is merged."""
    p, layout = sharded.call, sharded.layout
    own = list(local_slices(layout.rows(), sharded.heavy_rows(layout.rank)))
    for step in range(layout.ranks):
        sent = [queries.q] if queries.rel_q is None else [queries.q, queries.rel_q]
        runs, tensors = send_heavy(sharded, exchange, sent, step)
        rows = Tensors(tensors[0], tensors[1] if len(tensors) > 1 else None)
        partial = empty_rows(output, count(runs)).zero_()
        partial_lse = empty_rows(lse, count(runs)).fill_(-torch.inf)
        for run, start in local_slices(runs, runs):
            size = run[1] - run[0]
            for keys, key_start in local_slices(layout.keys(), layout.keys()):
                k, v = (x.narrow(2, key_start, keys[1] - keys[0]) for x in (p.k, p.v))
                call = sharded.rectangle(run, keys, rows.narrow(start, size), k, v)
                if call is not None:
                    merge(
                        partial.narrow(2, start, size),
                        partial_lse.narrow(2, start, size),
                        *sharded.kernels.forward(call),
                    )
        made, made_lse = return_heavy(sharded, exchange, [partial, partial_lse], step)
        start = 0
        for (first, last), place in own:
            size = last - first
            parts = output.narrow(2, place, size), lse.narrow(2, place, size)
            merge(*parts, made.narrow(2, start, size), made_lse.narrow(2, start, size))
            start += size


class ShardGradients:
    """Sums of the gradients of a rank's own tensors and of the parts'."""

    def __init__(self, sharded: ShardedCall) -> None:
        exact = torch.promote_types(sharded.call.v.dtype, torch.float32)
        zeros = [
            None if x is None else torch.zeros_like(x, dtype=exact)
            for x in call_tensors(sharded.call)[:SEQUENCE_GRADIENTS]
        ]
        self.q, self.k, self.v, self.weight, self.bias, self.rel_q, self.vectors, self.pairs, self.sink, *rest = zeros
        self.key_vectors = rest[0]
        self.needs = sharded.call.needs_grad

    def add_parts(self, grads: Grads, rows: Run, keys: Run) -> None:
        """Add the gradients of the parts' own tensors that come from some rows and keys."""
        if self.pairs is not None and self.needs[7] and grads[7] is not None:
            pair_slice(self.pairs, rows, keys).add_(grads[7])
        for total, n in ((self.weight, 3), (self.bias, 4), (self.vectors, 6)):
            grad = grads[n]
            if total is not None and self.needs[n] and grad is not None:
                total += grad
        if self.key_vectors is not None and self.needs[9]:
            add(self.key_vectors, grads[8])

    def result(self) -> Grads:
        return [
            *(self.q, self.k, self.v, self.weight, self.bias, self.rel_q, self.vectors),
            *(self.pairs, self.sink, self.key_vectors),
        ]


def backward_pass(sharded: ShardedCall, grad: Tensor, output: Tensor, lse: Tensor) -> Grads:
    """Gradients of this rank's q, k, v, and of weight, rel_bias, rel_q, rel_vectors, pair_bias, sink, key_vectors."""
    p, layout = sharded.call, sharded.layout
    exchange = new_exchange(layout)
    sums = ShardGradients(sharded)
    assert sums.q is not None and sums.k is not None and sums.v is not None
    queries = own_queries(sharded)
    rows = list(local_slices(layout.rows(), sharded.light_rows()))
    for step, runs, k, v in KeyStages(sharded, exchange, p.k, p.v):
        dk, dv = torch.zeros_like(k, dtype=sums.k.dtype), torch.zeros_like(v, dtype=sums.v.dtype)
        for keys, key_start, k_run, v_run in key_pieces(runs, k, v):
            for run, start in rows:
                size = run[1] - run[0]
                call = sharded.rectangle(run, keys, queries.narrow(start, size), k_run, v_run)
                if call is None:
                    continue
                outer = (x.narrow(2, start, size) for x in (grad, output, lse))
                grads = sharded.kernels.backward(call, *outer)
                add(sums.q.narrow(2, start, size), grads[0])
                add(dk.narrow(2, key_start, k_run.shape[2]), grads[1])
                add(dv.narrow(2, key_start, k_run.shape[2]), grads[2])
                add(None if sums.rel_q is None else sums.rel_q.narrow(2, start, size), grads[5])
                sums.add_parts(grads, run, keys)
        return_keys(sharded, exchange, sums, dk, dv, step)
    if bool(sharded.traffic.heavy.any()):
        backward_heavy(sharded, exchange, sums, queries, (grad, output, lse))
    sums.sink = sink_gradient(p, grad, output, lse) if sums.needs[8] else None
    return sums.result()


def add(total: Tensor | None, grad: Tensor | None) -> None:
    if total is not None and grad is not None:
        total += grad


def return_keys(
    sharded: ShardedCall, exchange: Exchange, sums: ShardGradients, dk: Tensor, dv: Tensor, step: int
) -> None:
    """The gradients of another rank's keys back to it, and those of this rank's keys from another."""
    layout = sharded.layout
    assert sums.k is not None and sums.v is not None
    target, source = (layout.rank - step) % layout.ranks, (layout.rank + step) % layout.ranks
    runs = sharded.key_runs(layout.rank, source)
    if step:
        buffers = [empty_rows(dk, count(runs)), empty_rows(dv, count(runs))]
        exchange.start([(dk, target), (dv, target)], [(x, source) for x in buffers]).wait()
        dk, dv = buffers
    start = 0
    for (first, last), place in local_slices(layout.keys(), runs):
        size = last - first
        sums.k.narrow(2, place, size).add_(dk.narrow(2, start, size))
        sums.v.narrow(2, place, size).add_(dv.narrow(2, start, size))
        start += size


def backward_heavy(
    sharded: ShardedCall,
    exchange: Exchange,
    sums: ShardGradients,
    queries: Tensors,
    outer: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Gradients that follow from the heavy rows of all ranks over this rank's keys."""
    p, layout = sharded.call, sharded.layout
    assert sums.q is not None and sums.k is not None and sums.v is not None
    own = list(local_slices(layout.rows(), sharded.heavy_rows(layout.rank)))
    for step in range(layout.ranks):
        sent = [*outer, queries.q, *([] if queries.rel_q is None else [queries.rel_q])]
        runs, (grad, output, lse, q, *rel) = send_heavy(sharded, exchange, sent, step)
        rows = Tensors(q, rel[0] if rel else None)
        dq = torch.zeros_like(q, dtype=sums.q.dtype)
        d_rel = None if sums.rel_q is None else torch.zeros_like(rel[0], dtype=sums.q.dtype)
        for run, start in local_slices(runs, runs):
            size = run[1] - run[0]
            for keys, key_start in local_slices(layout.keys(), layout.keys()):
                width = keys[1] - keys[0]
                k, v = (x.narrow(2, key_start, width) for x in (p.k, p.v))
                call = sharded.rectangle(run, keys, rows.narrow(start, size), k, v)
                if call is None:
                    continue
                grads = sharded.kernels.backward(call, *(x.narrow(2, start, size) for x in (grad, output, lse)))
                add(dq.narrow(2, start, size), grads[0])
                add(sums.k.narrow(2, key_start, width), grads[1])
                add(sums.v.narrow(2, key_start, width), grads[2])
                add(None if d_rel is None else d_rel.narrow(2, start, size), grads[5])
                sums.add_parts(grads, run, keys)
        made = return_heavy(sharded, exchange, [dq] if d_rel is None else [dq, d_rel], step)
        start = 0
        for (first, last), place in own:
            size = last - first
            sums.q.narrow(2, place, size).add_(made[0].narrow(2, start, size))
            if sums.rel_q is not None:
                sums.rel_q.narrow(2, place, size).add_(made[1].narrow(2, start, size))
            start += size


class SumGradient(torch.autograd.Function):
    """A tensor that all ranks share; its gradient is summed over them, in their order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return sum_in_order(grad, ctx.layout), None


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


def share_tensors(part: P, layout: Layout) -> P:
    """A part whose own tensors get the sum of all ranks' gradients; in an open layout each rank keeps its share."""
    if current_layout() is layout:
        return part
    learned = {
        f.name: SumGradient.apply(x, layout)
        for f in fields(part)  # type: ignore[arg-type]
        if isinstance(x := getattr(part, f.name), Tensor) and x.requires_grad
    }
    return replace(part, **learned) if learned and torch.is_grad_enabled() else part  # type: ignore[type-var]


def new_exchange(layout: Layout) -> Exchange:
    """The messages of one pass."""
    assert layout.group is not None
    return Exchange(layout.group)
