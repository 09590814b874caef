"""`look` over ranks: the weights of each rank's queries and their statistics, from what travels for `attend`.

The first pass is that of `attend` and gives each query's log-sum-exp; the second adds the statistics piece by piece.
What keys receive is summed over the ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...attention.backends import edges as edge_kernels
from ...attention.backends.blockwise.schedule import plan_chunks
from ...attention.backends.blockwise.stable_topk import stable_topk
from ...attention.backends.blockwise.tile import TileInputs
from ...attention.backends.edge_positions import fold_biases
from ...attention.call import LoweredCall
from ...attention.look import (
    LookOptions,
    ViewSums,
    add_edges,
    add_tile,
    add_to_map,
    bucket_sizes,
    map_rows,
    sum_rows,
)
from ...attention.parts.mask import PairGrid
from ...attention.parts.parts import Parts
from ...attention.view import View
from ..layout import Layout
from .agreement import agree
from .attend import check_shard, shard_call, sum_in_order, whole_mask
from .passes import HeavyExchange, KeyStages, ShardedCall, forward_pass, new_exchange
from .shard_plan import Piece, take


def look_sharded(layout: Layout, q: Tensor, k: Tensor, parts: Parts, options: LookOptions) -> View:
    """The view of this rank's queries: positions and top keys are those of the whole sequence.

    `received` has this rank's keys; the map is that of all ranks' queries.
    """
    layout.require_group()
    agree(layout, (q, k, k), parts, lambda: check_shard(layout, q, k, k, parts, "auto"), f"look with {options}")
    mask = whole_mask(parts)
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        sharded = shard_call(layout, (q, k, k), parts, mask, None, "blockwise", by_runs=parts.edges is None)
        _, lse = forward_pass(sharded)
        sums = ShardedSums(sharded, options)
        sums.view.lse.copy_(lse)
        sum_pieces(sharded, sums)
        statistics = sums.result()
        if parts.sink is not None:
            logits = parts.sink.head_logits(lse)[:, None]
            statistics["sink"] = (logits - lse).exp().masked_fill(lse == -torch.inf, 0.0)
    names = ("score", "position", "bias", "edges", "mask", "sink", "places")
    shown = [str(part) for part in (getattr(parts, name) for name in names) if part is not None]
    return View(
        **statistics,  # type: ignore[arg-type]
        mask=mask,
        queries=q.shape[2],
        keys=layout.tokens[1],
        description=f"{' · '.join(shown)}, rank {layout.rank} of {layout.ranks}",
    )


class ShardedSums:
    """Sums of this rank's rows (`view`), of all keys' weights from here, and of the map of the whole."""

    def __init__(self, sharded: ShardedCall, options: LookOptions) -> None:
        self.sharded, self.layout, q = sharded, sharded.layout, sharded.call.q
        self.whole = PairGrid(*self.layout.tokens, q.shape[0], q.shape[1], q.device)
        self.options = options._replace(map=None)
        self.view = self.rows(q.shape[2])
        size = options.map
        self.map = None if size is None else q.new_zeros(*q.shape[:2], *size, dtype=sharded.exact)

    def rows(self, rows: int) -> ViewSums:
        """Sums for so many rows over all keys."""
        q = self.sharded.call.q
        grid = PairGrid(rows, self.layout.tokens[1], q.shape[0], q.shape[1], q.device)
        return ViewSums(q, self.options, grid, self.sharded.exact)

    def add(self, sums: ViewSums, piece: Piece, p: LoweredCall) -> None:
        """Add a piece: its edges, or one run of rows and one of keys."""
        if piece.edges is not None:
            return self.add_edges(sums, piece, p)
        start, first, column = piece.row_slices[0][0], piece.rows[0][0], piece.keys[0][0]
        inputs = TileInputs(p)
        for chunk in plan_chunks(p):
            tile = inputs.tile(chunk)
            rows = (chunk.batch, slice(None), slice(start + chunk.first, start + chunk.last))
            places = (chunk.batch, slice(None), slice(first + chunk.first, first + chunk.last))
            for span in chunk.spans:
                keys = slice(column + span.first, column + span.last)
                e, factor = add_tile(sums, tile, span, rows, keys, sums.lse[rows].flip(2)[..., None])
                if self.map is not None:
                    received = sum_rows(e, factor, map_rows(self.map, self.whole, places[2]))
                    add_to_map(self.map, self.whole, places, keys, received)

    def add_edges(self, sums: ViewSums, piece: Piece, p: LoweredCall) -> None:
        """Add the edges of a piece."""
        g = edge_kernels.EdgeScores(fold_biases(p, edge_kernels.csr_of(p)))
        rows, keys = (
            torch.cat([torch.arange(first, first + count, device=p.q.device) for first, count in piece.row_slices]),
            piece.key_numbers,
        )
        size = None if self.map is None else (self.map.shape[-2], self.map.shape[-1])
        local = ViewSums(p.q, self.options._replace(map=size), p.grid, self.sharded.exact)
        lse = sums.lse[:, :, rows].flatten(0, 1).mT.contiguous()
        add_edges(g, edge_kernels.scores(g), lse, local, (piece.row_numbers, keys), self.whole)
        if self.map is not None and local.map is not None:
            self.map += local.map
        if sums.weights is not None and local.weights is not None:
            sums.weights[:, :, rows[:, None], keys] += local.weights
        sums.received.index_add_(2, keys, local.received)
        top = torch.where(local.top_keys < 0, -1, keys[local.top_keys.clamp(min=0)])
        merge_rows(sums, rows, [local.entropy, local.distance, local.peak, local.top_weights, top])

    def result(self) -> dict[str, Tensor | None]:
        """The tensors of the view by name; what keys receive and the map are summed over the ranks, in their order."""
        result = self.view.result()
        result["received"] = self.layout.split(sum_in_order(self.view.received, self.layout), -1, keys=True)
        if self.map is not None:
            counts = bucket_sizes(self.whole.queries, self.map.shape[-2], self.map.device)
            result["map"] = sum_in_order(self.map, self.layout) / counts.clamp(min=1)[:, None]
        return result


def sum_pieces(sharded: ShardedCall, sums: ShardedSums) -> None:
    """The second pass, over the pieces of `attend`."""
    p, rows = sharded.call, sharded.plan.heavy
    exchange, queries = new_exchange(sharded.layout), sharded.own_queries()
    heavy = None if rows is None else HeavyExchange(sharded, exchange, rows, [*queries, sums.view.lse])
    for stage, k, v in KeyStages(sharded, exchange):
        for piece in stage.pieces:
            add_piece(sharded, sums, sums.view, piece, queries, k, v)
    if heavy is None or rows is None:
        return
    *arrived, lse = heavy.wait()
    others = sums.rows(lse.shape[2])
    others.lse.copy_(lse)
    for piece in rows.pieces:
        add_piece(sharded, sums, others, piece, arrived, p.k, p.v)
    sums.view.received += others.received
    made = [others.entropy, others.distance, others.peak, others.top_weights, others.top_keys]
    heavy.give_back(made if others.weights is None else [*made, others.weights])
    for part in heavy.collect():
        merge_rows(sums.view, rows.own, part)


def add_piece(
    sharded: ShardedCall, sums: ShardedSums, view: ViewSums, piece: Piece, queries: list[Tensor], k: Tensor, v: Tensor
) -> None:
    own = [take(x, piece.row_slices) for x in queries]
    sums.add(view, piece, sharded.local_call(piece, own, *(take(x, piece.key_slices) for x in (k, v))))


def merge_rows(view: ViewSums, rows: Tensor, made: list[Tensor]) -> None:
    """Add what a rank made of some of this rank's rows."""
    entropy, distance, peak, top_weights, top_keys, *weights = made
    view.entropy.index_add_(2, rows, entropy)
    view.distance.index_add_(2, rows, distance)
    view.peak[:, :, rows] = torch.maximum(view.peak[:, :, rows], peak)
    if weights and view.weights is not None:
        view.weights.index_add_(2, rows, weights[0])
    if view.top:
        weight = torch.cat([view.top_weights[:, :, rows], top_weights], dim=-1)
        key = torch.cat([view.top_keys[:, :, rows], top_keys], dim=-1)
        key, order = key.sort(dim=-1, stable=True)  # of equal weights the lower key wins
        best, index = stable_topk(weight.gather(-1, order), view.top)
        view.top_weights[:, :, rows], view.top_keys[:, :, rows] = best, key.gather(-1, index)
