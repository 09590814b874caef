"""The forward and the backward pass of a sharded call, from the side of one rank.

Keys arrive stage by stage. While the messages of the next stage travel, the rank computes with those that have arrived,
its own first, and merges the results by log-sum-exp; it holds its own tokens and those of two stages. Heavy rows are
computed where the keys are: their queries travel first, and what each rank makes of them returns during the stages.
Backward goes the same way with the merged output and log-sum-exp, and the gradients of keys return to their owners
while the next stage is computed. All sums are in the order of stages and ranks: the same call gives the same bits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import torch
from torch import Tensor

from ...attention.backends.blockwise.flash import merge
from ...attention.backends.custom_op import call_tensors
from ...attention.backends.sinks import add_sink, sink_gradient, sink_weight
from ...attention.call import LoweredCall
from ...attention.parts.mask import Mask, PlacePair
from ..exchange import Exchange, PendingMessages, TokenFormat
from ..layout import Layout
from .shard_plan import HeavyRows, Piece, ShardPlan, Slices, Stage, apply_slices, take

Grads = list[Tensor | None]


@dataclass(frozen=True, eq=False)
class ShardedCall:
    """One call of all ranks, from the side of this one: its lowered call, whose mask and places are the whole's."""

    layout: Layout
    plan: ShardPlan
    call: LoweredCall
    kernels: ModuleType
    mask: Mask
    places: PlacePair | None = None
    kind: Hashable = None  # what calls must have in common to be run alike

    def local_call(self, piece: Piece, queries: list[Tensor], k: Tensor, v: Tensor) -> LoweredCall:
        """The lowered call of a piece; `queries` are q and the relative queries of its rows, k and v its keys."""
        p, (queries_of_whole, keys_of_whole) = self.call, self.layout.tokens
        offset = keys_of_whole - queries_of_whole
        bias, vectors, for_keys = p.rel_bias, p.rel_vectors, p.key_vectors
        rel_q = queries[1] if len(queries) > 1 else None
        shift, places = 0, None
        if self.places is not None:
            rows, keys = piece.row_numbers, piece.key_numbers
            places = (self.places[0][:, rows], self.places[1][:, keys])
        elif piece.edges is None:  # of a distance in the whole over that in the piece: one run of rows, one of keys
            shift = piece.rows[0][0] + offset - piece.keys[0][0] - (k.shape[2] - queries[0].shape[2])
        if bias is not None:
            bias = bias._replace(zero=bias.zero + shift)
        if vectors is not None and rel_q is not None:
            vectors = vectors._replace(queries=rel_q, zero=vectors.zero + shift)
        if for_keys is not None:
            for_keys = for_keys._replace(zero=for_keys.zero + shift)
        pairs = None if p.pair_bias is None else take_pairs(p.pair_bias, piece)
        return replace(
            p,
            q=queries[0],
            k=k,
            v=v,
            mask=piece.mask(self.mask, self.layout.tokens),
            rel_bias=bias,
            rel_vectors=vectors,
            key_vectors=for_keys,
            pair_bias=pairs,
            sink=None,
            adds_sink=p.sink is not None and any(p.needs_grad),
            places=places,
            numbers=(piece.row_numbers + offset, piece.key_numbers),
            tied=False,
            needs_grad=(*p.needs_grad[:7], p.needs_grad[7] and not shares_rows(p), *p.needs_grad[8:]),
            plan=piece.plan(self.kind),
            **piece.edge_fields(p),
        )

    def own_queries(self) -> list[Tensor]:
        """This rank's q, and the relative queries where a position has them."""
        return [self.call.q] if self.call.rel_vectors is None else [self.call.q, self.call.rel_vectors.queries]

    @property
    def exact(self) -> torch.dtype:
        return torch.promote_types(self.call.v.dtype, torch.float32)


def needs_runs(p: LoweredCall, placed: bool) -> bool:
    """Whether each piece must be one run of rows and one of keys: distances are then consecutive, biases slices."""
    tables = any(part is not None for part in (p.rel_bias, p.rel_vectors, p.key_vectors))
    pairs = p.pair_bias is not None and min(p.pair_bias.shape[2:]) > 1
    return (tables and not placed) or pairs


def take_pairs(bias: Tensor, piece: Piece) -> Tensor:
    """The bias by pair of a piece; a size of 1 stands for all."""
    for dim, runs in ((2, piece.rows), (3, piece.keys)):
        if bias.shape[dim] > 1:
            parts = [bias.narrow(dim, first, last - first) for first, last in runs]
            bias = parts[0] if len(parts) == 1 else torch.cat(parts, dim)
    return bias


class KeyStages:
    """Iterates over the stages with their keys and values: while one is computed with, the next is under way."""

    def __init__(self, sharded: ShardedCall, exchange: Exchange) -> None:
        self.sharded, self.exchange = sharded, exchange
        self.stages, self.own = sharded.plan.stages, (sharded.call.k, sharded.call.v)
        self.format = TokenFormat(self.own)
        self.under_way = self.start(1)

    def start(self, number: int) -> tuple[list[Tensor], PendingMessages] | None:
        if number >= len(self.stages):
            return None
        stage = self.stages[number]
        buffers = self.format.empty(stage.count)
        sends = [
            (message, target)
            for target, slices in stage.sends
            for message in self.format.pack([take(x, slices) for x in self.own])
        ]
        return buffers, self.exchange.start(sends, receive_slices(stage, buffers))

    def __iter__(self) -> Iterator[tuple[Stage, Tensor, Tensor]]:
        yield self.stages[0], *self.own
        for number, stage in enumerate(self.stages[1:], 1):
            assert self.under_way is not None
            buffers, pending = self.under_way
            self.under_way = self.start(number + 1)
            pending.wait()
            k, v = self.format.unpack(buffers)
            yield stage, k, v


def receive_slices(stage: Stage, buffers: list[Tensor]) -> list[tuple[Tensor, int]]:
    """The part of each buffer `[keys, numbers]` that comes from each source."""
    slices, first = [], 0
    for source, count in stage.sources:
        slices += [(buffer.narrow(0, first, count), source) for buffer in buffers]
        first += count
    return slices


class HeavyExchange:
    """The heavy rows of some tensors: this rank's go to all others, and what each makes of them comes back."""

    def __init__(self, sharded: ShardedCall, exchange: Exchange, rows: HeavyRows, tensors: list[Tensor]) -> None:
        self.rows, self.exchange, self.rank = rows, exchange, sharded.layout.rank
        self.others = [rank for rank in range(sharded.layout.ranks) if rank != self.rank]
        self.format = TokenFormat(tensors)
        self.buffers = self.format.empty(sum(rows.counts))
        own = self.format.pack([x.index_select(2, rows.own) for x in tensors])
        for buffer, message in zip(self.buffers, own, strict=True):
            self.part(buffer, self.rank).copy_(message)
        sends = [(message, rank) for rank in self.others for message in own]
        self.pending = exchange.start(
            sends, [(self.part(buffer, rank), rank) for rank in self.others for buffer in self.buffers]
        )

    def part(self, x: Tensor, rank: int, dim: int = 0) -> Tensor:
        """A rank's rows of what has the rows of all ranks."""
        return x.narrow(dim, self.rows.first(rank), self.rows.counts[rank])

    def wait(self) -> list[Tensor]:
        """The tensors with the heavy rows of all ranks."""
        self.pending.wait()
        return self.format.unpack(self.buffers)

    def give_back(self, computed: list[Tensor]) -> None:
        """Send what was computed of each rank's rows to it."""
        self.back = TokenFormat(computed)
        own = self.rows.counts[self.rank]
        self.returned = {rank: self.back.empty(own) for rank in self.others}
        self.own_part = [self.part(x, self.rank, 2) for x in computed]
        sends = [
            (message, rank)
            for rank in self.others
            for message in self.back.pack([self.part(x, rank, 2) for x in computed])
        ]
        self.pending = self.exchange.start(
            sends, [(buffer, rank) for rank in self.others for buffer in self.returned[rank]]
        )

    def collect(self) -> Iterator[list[Tensor]]:
        """What each rank computed of this rank's rows, in the order of ranks."""
        self.pending.wait()
        for rank in range(len(self.rows.counts)):
            yield self.own_part if rank == self.rank else self.back.unpack(self.returned[rank])


def forward_pass(sharded: ShardedCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of this rank's rows."""
    p, rows = sharded.call, sharded.plan.heavy
    exchange = new_exchange(sharded.layout)
    output = p.v.new_zeros(*p.q.shape[:3], p.v.shape[3], dtype=sharded.exact)
    lse = p.v.new_full(p.q.shape[:3], -torch.inf, dtype=sharded.exact)
    queries = sharded.own_queries()
    heavy = None if rows is None else HeavyExchange(sharded, exchange, rows, queries)
    for number, (stage, k, v) in enumerate(KeyStages(sharded, exchange)):
        for piece in stage.pieces:
            add_piece(sharded, piece, queries, k, v, output, lse)
        if number == 0 and heavy is not None:
            heavy.give_back(forward_heavy(sharded, heavy))
    if heavy is not None and rows is not None:
        own_output, own_lse = output.index_select(2, rows.own), lse.index_select(2, rows.own)
        for made, made_lse in heavy.collect():
            merge(own_output, own_lse, made, made_lse)
        output.index_copy_(2, rows.own, own_output)
        lse.index_copy_(2, rows.own, own_lse)
    return add_sink(output, lse, p.sink)


def add_piece(
    sharded: ShardedCall, piece: Piece, queries: list[Tensor], k: Tensor, v: Tensor, output: Tensor, lse: Tensor
) -> None:
    """Merge what a piece makes of its rows into those of output and lse."""
    own = [take(x, piece.row_slices) for x in queries]
    call = sharded.local_call(piece, own, *(take(x, piece.key_slices) for x in (k, v)))
    made, made_lse = sharded.kernels.forward(call)
    start = 0
    for first, count in piece.row_slices:
        rows = made.narrow(2, start, count).to(output.dtype), made_lse.narrow(2, start, count)
        merge(output.narrow(2, first, count), lse.narrow(2, first, count), *rows)
        start += count


def forward_heavy(sharded: ShardedCall, heavy: HeavyExchange) -> list[Tensor]:
    """Output and log-sum-exp of the heavy rows of all ranks over this rank's keys."""
    p, queries = sharded.call, heavy.wait()
    rows = queries[0].shape[2]
    output = p.v.new_zeros(*p.q.shape[:2], rows, p.v.shape[3], dtype=sharded.exact)
    lse = p.v.new_full((*p.q.shape[:2], rows), -torch.inf, dtype=sharded.exact)
    for piece in heavy.rows.pieces:
        add_piece(sharded, piece, queries, p.k, p.v, output, lse)
    return [output, lse]


class ShardGradients:
    """Sums of the gradients of a rank's own tensors and of the parts'."""

    def __init__(self, sharded: ShardedCall) -> None:
        tensors = call_tensors(sharded.call)[: len(sharded.call.needs_grad)]
        zeros = [None if x is None else torch.zeros_like(x, dtype=sharded.exact) for x in tensors]
        self.q, self.k, self.v, self.weight, self.bias, self.rel_q, self.vectors, self.pairs, self.sink, *rest = zeros
        self.key_vectors, *self.edges = rest
        self.needs = sharded.call.needs_grad

    def add_parts(self, grads: Grads, piece: Piece) -> None:
        """Add the gradients of the parts' own tensors that come from a piece."""
        if self.pairs is not None and self.needs[7] and grads[7] is not None:
            add_pairs(self.pairs, grads[7], piece)
        for total, n in ((self.weight, 3), (self.bias, 4), (self.vectors, 6)):
            if total is not None and self.needs[n] and (grad := grads[n]) is not None:
                total += grad
        if self.key_vectors is not None and self.needs[9] and (grad := grads[8]) is not None:
            self.key_vectors += grad
        if piece.edges is not None:
            for n, total in enumerate(self.edges, 9):
                if total is not None and self.needs[n + 1] and (grad := grads[n]) is not None:
                    total.index_copy_(2, piece.edges.order, grad.to(total.dtype))

    def result(self) -> Grads:
        own = (self.q, self.k, self.v, self.weight, self.bias, self.rel_q, self.vectors, self.pairs, self.sink)
        return [*own, self.key_vectors, *self.edges]


def add_pairs(total: Tensor, grad: Tensor, piece: Piece) -> None:
    """Add the gradient of a piece's bias by pair to that of the whole."""
    row_start = 0
    for rows in piece.rows if total.shape[2] > 1 else ((0, 1),):
        key_start = 0
        for keys in piece.keys if total.shape[3] > 1 else ((0, 1),):
            height, width = rows[1] - rows[0], keys[1] - keys[0]
            part = grad[:, :, row_start : row_start + height, key_start : key_start + width]
            total[:, :, slice(*rows), slice(*keys)] += part
            key_start += width
        row_start += rows[1] - rows[0]


def shares_rows(p: LoweredCall) -> bool:
    """Whether the gradient of a bias by pair is needed of which all keys of a row share a number."""
    return p.pair_bias is not None and p.pair_bias.shape[3] == 1 and p.needs_grad[7]


def add_row_biases(sharded: ShardedCall, total: Tensor, grad: Tensor, output: Tensor, lse: Tensor) -> None:
    """Add the gradient of a bias of which all keys of a row share a number, from this rank's rows.

    Over a whole row Σ_j ds = δ · (1 − Σ_j p): nothing but the sink's weight is left, whatever the row's pieces gave.
    """
    if sharded.call.sink is None:
        return
    part = ((grad * output).sum(-1) * sink_weight(sharded.call.sink, lse))[..., None]
    if total.shape[2] == 1:
        total += part.sum_to_size(total.shape)
    else:
        rows = sharded.layout.places().to(total.device)
        total.index_add_(2, rows, part.sum_to_size(*total.shape[:2], *part.shape[2:]))


def backward_pass(sharded: ShardedCall, grad: Tensor, output: Tensor, lse: Tensor) -> Grads:
    """Gradients of this rank's q, k, v, and of weight, rel_bias, rel_q, rel_vectors, pair_bias, sink, key_vectors."""
    p, rows = sharded.call, sharded.plan.heavy
    exchange, sums = new_exchange(sharded.layout), ShardGradients(sharded)
    assert sums.q is not None and sums.k is not None and sums.v is not None
    queries, outer = sharded.own_queries(), [grad, output, lse]
    totals = [sums.q] if sums.rel_q is None else [sums.q, sums.rel_q]
    heavy = None if rows is None else HeavyExchange(sharded, exchange, rows, [*queries, *outer])
    returning: ReturningKeys | None = None
    for number, (stage, k, v) in enumerate(KeyStages(sharded, exchange)):
        keys = [sums.k, sums.v] if number == 0 else [torch.zeros_like(x, dtype=sharded.exact) for x in (k, v)]
        for piece in stage.pieces:
            add_gradients(sharded, piece, sums, (queries, [k, v], outer), (totals, keys))
        if number == 0 and heavy is not None:
            heavy.give_back(backward_heavy(sharded, heavy, sums))
        if number:
            before, returning = returning, ReturningKeys(exchange, stage, keys)
            if before is not None:
                before.add_to(sums.k, sums.v)
    if returning is not None:
        returning.add_to(sums.k, sums.v)
    if heavy is not None and rows is not None:
        for made in heavy.collect():
            for total, part in zip(totals, made, strict=True):
                total.index_add_(2, rows.own, part)
    if sums.pairs is not None and shares_rows(p):
        add_row_biases(sharded, sums.pairs, grad, output, lse)
    sums.sink = sink_gradient(p, grad, output, lse) if sums.needs[8] else None
    return sums.result()


def add_gradients(
    sharded: ShardedCall,
    piece: Piece,
    sums: ShardGradients,
    tensors: tuple[list[Tensor], list[Tensor], list[Tensor]],
    totals: tuple[list[Tensor], list[Tensor]],
) -> None:
    """Add the gradients that follow from a piece.

    `tensors` are q and relative queries, k and v, d_output with output and lse; `totals` the sums for the first two.
    """
    queries, keys, outer = tensors
    own, k, v = [take(x, piece.row_slices) for x in queries], *(take(x, piece.key_slices) for x in keys)
    call = sharded.local_call(piece, own, k, v)
    grads = sharded.kernels.backward(call, *(take(x, piece.row_slices) for x in outer))
    for total, part in zip(totals[0], (grads[0], grads[5]), strict=False):
        add_slices(total, piece.row_slices, part)
    for total, part in zip(totals[1], grads[1:3], strict=True):
        add_slices(total, piece.key_slices, part)
    sums.add_parts(grads, piece)


def add_slices(total: Tensor, slices: Slices, part: Tensor | None) -> None:
    """Add a part to some tokens of the total."""
    if part is not None:
        apply_slices(slices, part, lambda x, place: total.narrow(2, *place).add_(x))


def backward_heavy(sharded: ShardedCall, heavy: HeavyExchange, sums: ShardGradients) -> list[Tensor]:
    """Gradients of the heavy queries of all ranks from this rank's keys; those of the keys are added to the sums."""
    p, arrived = sharded.call, heavy.wait()
    count = len(sharded.own_queries())
    queries, outer = arrived[:count], arrived[count:]
    assert sums.k is not None and sums.v is not None
    totals = [torch.zeros_like(x, dtype=sharded.exact) for x in queries]
    for piece in heavy.rows.pieces:
        add_gradients(sharded, piece, sums, (queries, [p.k, p.v], outer), (totals, [sums.k, sums.v]))
    return totals


class ReturningKeys:
    """The gradients of a stage's keys on their way to the owners, and those of this rank's keys on theirs here."""

    def __init__(self, exchange: Exchange, stage: Stage, grads: list[Tensor]) -> None:
        self.format, self.stage = TokenFormat(grads), stage
        messages = self.format.pack(grads)
        self.arriving = [(slices, self.format.empty(sum(count for _, count in slices))) for _, slices in stage.sends]
        receives = [
            (buffer, target)
            for (target, _), (_, buffers) in zip(stage.sends, self.arriving, strict=True)
            for buffer in buffers
        ]
        self.pending = exchange.start(receive_slices(stage, messages), receives)

    def add_to(self, *totals: Tensor) -> None:
        """Add what has arrived to the gradients of this rank's keys and values."""
        self.pending.wait()
        for slices, buffers in self.arriving:
            for total, part in zip(totals, self.format.unpack(buffers), strict=True):
                add_slices(total, slices, part)


def new_exchange(layout: Layout) -> Exchange:
    """The messages of one pass."""
    assert layout.group is not None
    return Exchange(layout.group)
