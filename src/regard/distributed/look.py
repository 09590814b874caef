"""`look` over ranks: the weights of each rank's queries and their statistics, from what travels for `attend`.

The first pass is that of `attend` and gives each query's log-sum-exp; the second adds the statistics rectangle by
rectangle. What keys receive is summed over the ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention.backends.blockwise import blockwise
from ..attention.backends.blockwise.schedule import plan_chunks
from ..attention.backends.blockwise.tile import TileInputs
from ..attention.call import Call, LoweredCall
from ..attention.look import LookOptions, ViewSums, add_tile, add_to_map, bucket_sizes, stable_topk
from ..attention.parts.mask import PairGrid
from ..attention.parts.masks import Everything
from ..attention.parts.parts import Parts
from ..attention.view import View
from .agreement import agree
from .attention import (
    KeyStages,
    ShardedCall,
    Tensors,
    check_shard,
    count,
    forward_pass,
    key_pieces,
    local_slices,
    lower_shard,
    new_exchange,
    own_queries,
    return_heavy,
    send_heavy,
    sum_in_order,
)
from .layout import Layout


def look_sharded(layout: Layout, q: Tensor, k: Tensor, parts: Parts, options: LookOptions) -> View:
    """The view of this rank's queries: positions and top keys are those of the whole sequence.

    `received` has this rank's keys; the map is that of all ranks' queries.
    """
    agree(layout, q, k, k, parts, lambda: check_shard(layout, q, k, k, parts, "auto"))
    mask = Everything() if parts.mask is None else parts.mask
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        call = Call(q, k, k, parts.score, parts.position, mask, sink=parts.sink, bias=parts.bias)
        lowered, _ = lower_shard(layout, call, "blockwise")
        sharded = ShardedCall(layout, layout.traffic(mask), lowered, blockwise)  # type: ignore[arg-type]
        _, lse = forward_pass(sharded)
        sums = ShardedSums(layout, call, options)
        sums.view.lse.copy_(lse)
        sum_rectangles(sharded, sums)
        statistics = sums.result()
        if parts.sink is not None:
            logits = parts.sink.head_logits(lse)[:, None]
            statistics["sink"] = (logits - lse).exp().masked_fill(lse == -torch.inf, 0.0)
    shown = [
        str(part) for part in (parts.score, parts.position, parts.bias, parts.mask, parts.sink) if part is not None
    ]
    return View(
        **statistics,  # type: ignore[arg-type]
        mask=mask,
        queries=q.shape[2],
        keys=layout.tokens[1],
        description=f"{' · '.join(shown)}, rank {layout.rank} of {layout.ranks}",
    )


class ShardedSums:
    """Sums of this rank's rows (`view`), of all keys' weights from here, and of the map of the whole."""

    def __init__(self, layout: Layout, call: Call, options: LookOptions) -> None:
        self.layout, self.top = layout, options.top
        self.whole = PairGrid(*layout.tokens, call.q.shape[0], call.q.shape[1], call.q.device)
        self.options = options._replace(map=None)
        self.view = self.rows(call.q.shape[2], call)
        self.call = call
        size = options.map
        self.map = None if size is None else call.q.new_zeros(*call.q.shape[:2], *size, dtype=call.exact)

    def rows(self, rows: int, call: Call) -> ViewSums:
        """Sums for so many rows over all keys."""
        grid = PairGrid(rows, self.layout.tokens[1], call.q.shape[0], call.q.shape[1], call.q.device)
        return ViewSums(call, self.options, grid)

    def add(self, sums: ViewSums, p: LoweredCall, start: int, first: int) -> None:
        """Add a rectangle whose rows begin at row `start` of `sums` and are query `first` and on of the whole."""
        inputs, column = TileInputs(p), p.origin[1]
        for chunk in plan_chunks(p):
            tile = inputs.tile(chunk)
            rows = (chunk.batch, slice(None), slice(start + chunk.first, start + chunk.last))
            places = (chunk.batch, slice(None), slice(first + chunk.first, first + chunk.last))
            for span in chunk.spans:
                keys = slice(column + span.first, column + span.last)
                s, lse = tile.scores(span).flip(2), sums.lse[rows][..., None]
                add_tile(sums, tile, rows, keys, s, lse)
                if self.map is not None:
                    weights = (s - lse.masked_fill(lse == -torch.inf, torch.inf)).exp_()
                    add_to_map(self.map, self.whole, places, keys, weights)

    def result(self) -> dict[str, Tensor | None]:
        """The tensors of the view by name; what keys receive and the map are summed over the ranks, in their order."""
        result = self.view.result()
        result["received"] = self.layout.split(sum_in_order(self.view.received, self.layout), -1, keys=True)
        if self.map is not None:
            counts = bucket_sizes(self.whole.queries, self.map.shape[-2], self.map.device)
            result["map"] = sum_in_order(self.map, self.layout) / counts.clamp(min=1)[:, None]
        return result


def sum_rectangles(sharded: ShardedCall, sums: ShardedSums) -> None:
    """The second pass, over the rectangles of `attend`."""
    p, layout = sharded.call, sharded.layout
    exchange, queries = new_exchange(layout), own_queries(sharded)
    rows = list(local_slices(layout.rows(), sharded.light_rows()))
    for _, runs, k, v in KeyStages(sharded, exchange, p.k, p.v):
        for keys, _, k_run, v_run in key_pieces(runs, k, v):
            for run, start in rows:
                call = sharded.rectangle(run, keys, queries.narrow(start, run[1] - run[0]), k_run, v_run)
                if call is not None:
                    sums.add(sums.view, call, start, run[0])
    if not bool(sharded.traffic.heavy.any()):
        return
    own = list(local_slices(layout.rows(), sharded.heavy_rows(layout.rank)))
    for step in range(layout.ranks):
        sent = [sums.view.lse[..., None], queries.q, *([] if queries.rel_q is None else [queries.rel_q])]
        heavy, (lse, q, *rel) = send_heavy(sharded, exchange, sent, step)
        others = sums.rows(count(heavy), sums.call)
        others.lse.copy_(lse[..., 0])
        tensors = Tensors(q, rel[0] if rel else None)
        for run, start in local_slices(heavy, heavy):
            for keys, key_start in local_slices(layout.keys(), layout.keys()):
                k, v = (x.narrow(2, key_start, keys[1] - keys[0]) for x in (p.k, p.v))
                call = sharded.rectangle(run, keys, tensors.narrow(start, run[1] - run[0]), k, v)
                if call is not None:
                    sums.add(others, call, start, run[0])
        sums.view.received += others.received
        made = [others.entropy, others.distance, others.peak, others.top_weights, others.top_keys]
        made += [] if others.weights is None else [others.weights]
        merge_rows(sums.view, own, return_heavy(sharded, exchange, made, step))


def merge_rows(view: ViewSums, own: list[tuple[tuple[int, int], int]], made: list[Tensor]) -> None:
    """Add what another rank made of this rank's rows, which lie at `own`."""
    start = 0
    entropy, distance, peak, top_weights, top_keys, *weights = made
    for (first, last), place in own:
        part, rows = slice(start, start + last - first), (slice(None), slice(None), slice(place, place + last - first))
        view.entropy[rows] += entropy[:, :, part]
        view.distance[rows] += distance[:, :, part]
        view.peak[rows] = torch.maximum(view.peak[rows], peak[:, :, part])
        if weights and view.weights is not None:
            view.weights[rows] += weights[0][:, :, part]
        if view.top:
            weight = torch.cat([view.top_weights[rows], top_weights[:, :, part]], dim=-1)
            key = torch.cat([view.top_keys[rows], top_keys[:, :, part]], dim=-1)
            key, order = key.sort(dim=-1, stable=True)  # of equal weights the lower key wins
            best, index = stable_topk(weight.gather(-1, order), view.top)
            view.top_weights[rows], view.top_keys[rows] = best, key.gather(-1, index)
        start += last - first
