"""The weights of attention and their statistics, exact, without the queries × keys matrix.

Over the tiles that `blockwise` visits. With the largest score m of a query, or its log-sum-exp where that is known from
a pass before, a tile gives e = exp(s − m), the weights are p = e · exp(m − lse), and all statistics are sums of them:

    entropy = Σ p (lse − s),   distance = Σ p |i − j|,   peak = max p,   received = Σ_i p

A sink is part of the log-sum-exp and of nothing else: its weight, exp(logit − lse), is what a row's weights lack to 1.
"""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import BadInput, TooLarge, Unsupported
from ..machine import format_bytes, free_memory
from .backends import edges
from .backends.backend import reason_against
from .backends.blockwise import schedule
from .backends.blockwise.schedule import ChunkShape, KeySpan, chunk_shape, plan_chunks
from .backends.blockwise.stable_topk import stable_topk
from .backends.blockwise.tile import QueryTile, TileInputs
from .backends.edge_positions import fold_biases, sum_by_index
from .backends.sinks import add_to_lse
from .call import Call, LoweredCall, cast_for_autocast, check_call, lower
from .parts.edges import EdgeFeatures
from .parts.mask import Mask, PairGrid
from .parts.methods import Exact, Method
from .parts.pair_bias import PairBias
from .parts.part import check_count
from .parts.parts import Parts
from .parts.places import Places
from .parts.positions import Position
from .parts.scores import Score
from .parts.sink import Sink
from .sharding import SequenceLayout, check_layout
from .view import View

MASKED = -torch.inf  # instead of a weight while the largest are gathered
NEGLIGIBLE = -1e4  # a difference of scores whose exponential is 0, and 0 times it no NaN as with −∞
SPANS = 4  # times as many scores at once as in `blockwise`: the fewer tiles, the fewer operations are started
ROWS = (128, 64, 32, 16)  # queries in a chunk that is scored against every key at once


class LookOptions(NamedTuple):
    """What a view holds besides the statistics."""

    weights: bool
    top: int
    map: tuple[int, int] | None


def look(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    *,
    score: Score | None = None,
    position: Position | None = None,
    mask: Mask | None = None,
    method: Method | None = None,
    sink: Sink | None = None,
    bias: PairBias | None = None,
    places: Places | None = None,
    edges: EdgeFeatures | None = None,
    weights: bool = False,
    top: int = 0,
    map: int | tuple[int, int] | None = None,
    layout: SequenceLayout | None = None,
) -> View:
    """The weights of `attend(q, k, v, …)` and their statistics as a `View`, without the queries × keys matrix.

    `top` adds each query's largest weights and their keys, `map` the weights pooled to rows × columns, `weights` the
    whole matrix.
    With a `layout` the view is that of this process's queries over the whole sequence.
    Raises as `attend` does, and `TooLarge` when the weights would not fit into memory.

    >>> import torch, regard as rg
    >>> x = torch.eye(4).view(1, 1, 4, 4)
    >>> view = rg.look(x, x, mask=rg.Causal(), score=rg.Dot(scale=100.0), top=1)
    >>> view.top_keys.flatten().tolist(), view.entropy.max().item() < 1e-6
    ([0, 1, 2, 3], True)
    """
    parts = Parts(score, position, mask, method, sink=sink, bias=bias, places=places, edges=edges and edges.of_scores())
    if not isinstance(parts.method, Exact):
        raise Unsupported(f"{type(method).__name__} never forms the weights of queries on keys. Use method=Exact().")
    options = LookOptions(weights, top, map_size(map))
    check_count(top, "top")
    if layout is not None:
        check_layout(layout)
        return layout.look(q, k, parts, options)
    values = k.detach() if v is None and isinstance(k, Tensor) else v
    call = check_call(*cast_for_autocast(q, k, values), parts)  # type: ignore[arg-type]
    check_memory(call, options)
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        statistics = compute_statistics(call, options)
        if sink is not None and (lse := statistics["lse"]) is not None:
            statistics["sink"] = (sink.head_logits(lse)[:, None] - lse).exp().masked_fill(lse == -torch.inf, 0.0)
    return View(
        **statistics,  # type: ignore[arg-type]
        mask=call.mask,
        queries=call.grid.queries,
        keys=call.grid.keys,
        description=" · ".join(
            str(part) for part in (parts.score, position, bias, edges, mask, sink, places) if part is not None
        ),
    )


def map_size(map: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """The size of the map as (rows, columns)."""
    if map is None:
        return None
    size = (map, map) if isinstance(map, int) else map
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise BadInput(f"map is {map!r}; it must be a number, or (rows, columns).")
    for count in size:
        check_count(count, "map's size", 1)
    return size[0], size[1]


def check_memory(call: Call, options: LookOptions) -> None:
    """Raise `TooLarge` when the requested weights would not fit into memory."""
    grid = call.grid
    needed = grid.batch * grid.heads * grid.queries * grid.keys * call.exact.itemsize
    if options.weights and needed > (free := free_memory(call.q.device)):
        size = " × ".join(str(n) for n in (grid.batch, grid.heads, grid.queries, grid.keys))
        raise TooLarge(
            f"weights=True for {size} needs {format_bytes(needed)}; {format_bytes(free)} are free on {call.q.device}. "
            "Pass top=8 or map=(256, 256) instead, or fewer queries."
        )


def compute_statistics(call: Call, options: LookOptions) -> dict[str, Tensor | None]:
    """All tensors of a view, by name."""
    p = lower(call)
    sparse = reason_against(edges, call) is None
    kernels = None if sparse else fused_kernels(p, options)
    if kernels is not None:
        return kernels.statistics(p, options)
    sums = ViewSums(call.q, options, call.grid, call.exact)
    if p.sink is not None:
        sums.lse.copy_(add_to_lse(sums.lse, p.sink))
    if call.grid.queries * call.grid.keys * call.grid.batch * call.grid.heads:
        (sum_edges if sparse else sum_tiles)(p, sums)
    return sums.result()


def fused_kernels(p: LoweredCall, options: LookOptions) -> ModuleType | None:
    """The fused kernels for a GPU, where they cover the call."""
    if not p.q.is_cuda or find_spec("triton") is None:
        return None
    from .kernels.look import passes

    return passes if passes.covers(p, options) is None else None


class ViewSums:
    """The sums that become a view; every query starts as one without allowed keys."""

    def __init__(self, q: Tensor, options: LookOptions, grid: PairGrid, exact: torch.dtype):
        front = (grid.batch, grid.heads)
        new = lambda *size, fill=0.0, dtype=exact: q.new_full((*front, *size), fill, dtype=dtype)  # noqa: E731
        self.grid, self.top = grid, options.top
        self.lse = new(grid.queries, fill=-torch.inf)
        self.entropy, self.distance, self.peak = (new(grid.queries) for _ in range(3))
        self.received = new(grid.keys)
        self.top_weights = new(grid.queries, options.top, fill=MASKED)
        self.top_keys = new(grid.queries, options.top, fill=-1, dtype=torch.int64)
        self.map = new(*options.map) if options.map else None
        self.weights = new(grid.queries, grid.keys) if options.weights else None

    def result(self) -> dict[str, Tensor | None]:
        """The view's tensors by name, the map and the top weights finished."""
        if self.map is not None:
            counts = bucket_sizes(self.grid.queries, self.map.shape[-2], self.map.device)
            self.map /= counts.clamp(min=1)[:, None]
        self.top_weights.clamp_(min=0.0)
        names = ["lse", "entropy", "distance", "peak", "received", "map", "weights"]
        top = {"top_weights": self.top_weights, "top_keys": self.top_keys} if self.top else {}
        return {"top_weights": None, "top_keys": None} | {name: getattr(self, name) for name in names} | top


def sum_tiles(p: LoweredCall, sums: ViewSums) -> None:
    """The statistics from the non-empty tiles, chunk of queries by chunk of queries.

    A chunk whose keys fit into one span is scored once; another first for the log-sum-exp of its rows.
    """
    inputs = TileInputs(p)
    for chunk in plan_chunks(p, view_shape(p)):
        if not chunk.spans:
            continue
        tile = inputs.tile(chunk)
        rows = (chunk.batch, slice(None), slice(chunk.first, chunk.last))
        lse = None
        if len(chunk.spans) > 1:
            spans = torch.cat([span_lse(tile.scores(span)) for span in chunk.spans], dim=-1)
            lse = with_sink(spans.logsumexp(-1, keepdim=True), p)
            sums.lse[rows] = lse.flatten(2).flip(2)
        for span in chunk.spans:
            add_tile(sums, tile, span, rows, slice(span.first, span.last), lse)


def view_shape(p: LoweredCall) -> ChunkShape:
    """Chunks of as many rows as can be scored against every key at once; else those of `blockwise`, of more scores."""
    shape = chunk_shape(p, SPANS * schedule.ELEMENTS)
    heads, queries, keys = p.q.shape[1], p.q.shape[2], -(-p.k.shape[2] // shape.columns) * shape.columns
    for rows in ROWS:
        scores = heads * min(rows, queries) * keys
        if scores <= SPANS * schedule.ELEMENTS:
            return ChunkShape(min(rows, queries), shape.columns, keys, SPANS * schedule.ELEMENTS // max(scores, 1))
    return shape


def span_lse(s: Tensor) -> Tensor:
    """The log-sum-exp of each row, `[batch, heads, rows, 1]`, in the scores' own memory."""
    m = s.amax(-1, keepdim=True)
    finite = m.masked_fill(m == -torch.inf, 0.0)
    return finite + s.sub_(finite).exp_().sum(-1, keepdim=True).log()


def with_sink(lse: Tensor, p: LoweredCall) -> Tensor:
    """A log-sum-exp `[batch, heads, rows, 1]` together with the sink, if there is one."""
    return lse if p.sink is None else add_to_lse(lse.squeeze(-1), p.sink)[..., None]


def add_tile(
    sums: ViewSums, tile: QueryTile, span: KeySpan, rows: tuple, keys: slice, lse: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Add a span of keys to the statistics of a chunk's rows; `rows` and `keys` say where in the sums.

    `lse` `[batch, heads, rows, 1]`, last row to first as in the tile; None where the span has all keys of the rows.
    Returns e `[batch, heads, rows, width]` and a factor for each row by which they are the weights, in that order too,
    in memory that the next tile overwrites.
    """
    p = tile.inputs.call
    s = tile.scores(span)
    top, index = stable_topk(s, min(sums.top, s.shape[-1])) if sums.top else (s.amax(-1, keepdim=True), None)
    highest = top[..., :1]
    m = highest if lse is None else lse
    m = m.masked_fill(m == -torch.inf, 0.0)
    shifted = s.sub_(m)
    if span.mixed or p.pair_bias is not None:
        shifted.clamp_(min=NEGLIGIBLE)
    e = torch.exp(shifted, out=tile.inputs.buffer(0, s.shape))
    if lse is None:
        alive = highest > -torch.inf
        total = e.sum(-1, keepdim=True).masked_fill_(~alive, 0.0)
        lse = with_sink(m + total.log(), p)
        sums.lse[rows] = lse.flatten(2).flip(2)
        factor = (m - lse).exp_().masked_fill_(~alive, 0.0)
        entropy = factor * total * (lse - m).masked_fill_(~alive, 0.0)
    else:
        factor, entropy = (lse > -torch.inf).to(s.dtype), 0.0
    surprise = torch.mul(shifted, e, out=shifted).sum(-1, keepdim=True)
    add_rows(sums.entropy, rows, entropy - factor * surprise)
    distance = tile.reversed_distances(span).to(s.dtype)
    add_rows(sums.distance, rows, factor * torch.mul(e, distance, out=shifted).sum(-1, keepdim=True))
    peak = (highest - lse).exp_().masked_fill_(highest == -torch.inf, 0.0)
    sums.peak[rows] = torch.maximum(sums.peak[rows], peak.squeeze(-1).flip(2))
    received = sum_rows(e, factor, None if sums.map is None else map_rows(sums.map, sums.grid, rows[2]))
    sums.received[rows[0], :, keys] += received.sum(2)
    if sums.map is not None:
        add_to_map(sums.map, sums.grid, rows, keys, received)
    if sums.weights is not None:
        sums.weights[*rows, keys] = (e * factor).flip(2)
    if index is not None:
        weights = (top - lse).exp_().masked_fill_(top == -torch.inf, MASKED)
        merge_top(sums, rows, weights.flip(2), (index + keys.start).flip(2))
    return e, factor


def add_rows(total: Tensor, rows: tuple, x: Tensor) -> None:
    """Add x `[batch, heads, rows, 1]`, last row to first, to these rows of a statistic."""
    total[rows] += x.squeeze(-1).flip(2)


def merge_top(sums: ViewSums, rows: tuple, weights: Tensor, keys: Tensor) -> None:
    """Merge a tile's largest weights, −∞ where masked, into each row's; of equal weights the lower key wins."""
    both = torch.cat([sums.top_weights[rows], weights], dim=-1)
    keys = torch.cat([sums.top_keys[rows], keys.masked_fill(weights == MASKED, -1)], dim=-1)
    best, index = stable_topk(both, sums.top)
    sums.top_weights[rows] = best
    sums.top_keys[rows] = keys.gather(-1, index)


def sum_rows(e: Tensor, factor: Tensor, buckets: Tensor | None) -> Tensor:
    """The weights of each key summed over the rows of each bucket, `[batch, heads, buckets, width]`.

    `buckets` are those of the rows, first to last; all rows are in one without them.
    """
    factor = factor.mT  # [batch, heads, 1, rows]
    if buckets is not None:
        in_bucket = torch.nn.functional.one_hot(buckets - buckets[0]).mT
        factor = factor * in_bucket.flip(1)
    return factor @ e


def bucket_index(size: int, count: int, device: torch.device) -> Tensor:
    """The bucket of each of `size` tokens: bucket r starts at ⌊r · size / count⌋."""
    return buckets_of(torch.arange(size, device=device), size, count)


def buckets_of(tokens: Tensor, size: int, count: int) -> Tensor:
    """The buckets of some of `size` tokens: r is the last with r · size / count < token + 1."""
    return ((tokens + 1) * count - 1) // size


def bucket_sizes(size: int, count: int, device: torch.device) -> Tensor:
    """How many of `size` tokens each bucket has."""
    return (torch.arange(count + 1, device=device) * size // count).diff()


def map_rows(cells: Tensor, grid: PairGrid, rows: slice) -> Tensor:
    """The row of the map of each of some queries."""
    return buckets_of(torch.arange(rows.start, rows.stop, device=cells.device), grid.queries, cells.shape[-2])


def add_to_map(cells: Tensor, grid: PairGrid, rows: tuple, keys: slice, received: Tensor) -> None:
    """Add what keys receive from each row of the map `[batch, heads, map rows, width]` to the cells."""
    down, across = cells.shape[-2:]
    tokens = torch.arange(keys.start, keys.stop, device=cells.device)
    c0, c1 = (int(c) for c in buckets_of(tokens[[0, -1]], grid.keys, across))
    starts = torch.arange(c0, c1 + 2, device=cells.device) * grid.keys // across - keys.start
    columns = received.flatten(0, 2).mT.contiguous()  # [width, batch · heads · map rows]
    sums = torch.segment_reduce(columns, "sum", offsets=starts.clamp(0, len(tokens)), axis=0, unsafe=True)
    first = int(buckets_of(torch.tensor(rows[2].start), grid.queries, down))
    cells[rows[0], :, first : first + received.shape[2], c0 : c1 + 1] += sums.mT.unflatten(0, received.shape[:3])


def sum_edges(p: LoweredCall, sums: ViewSums) -> None:
    """The same statistics from the edges of a graph."""
    g = edges.EdgeScores(fold_biases(p, edges.csr_of(p)))
    s = edges.scores(g)  # [edges, batch · heads]
    top = g.reduce(s, "max")
    total = g.reduce((s - g.expand_rows(top)).exp_(), "sum")
    lse = torch.where(total > 0, top + total.log(), -torch.inf)
    lse = lse if p.sink is None else torch.logaddexp(lse, p.sink.to(lse.dtype).repeat(g.batch))
    sums.lse.copy_(lse.mT.unflatten(0, (g.batch, g.heads)))
    i, j = g.p.grid.indices()
    add_edges(g, s, lse, sums, (i[:, 0] - g.p.grid.offset, j[0]), sums.grid)


def add_edges(
    g: edges.EdgeScores, s: Tensor, lse: Tensor, sums: ViewSums, numbers: tuple[Tensor, Tensor], whole: PairGrid
) -> None:
    """Statistics of edges with scores s `[edges, batch · heads]`, from the lse `[queries, batch · heads]` of each row.

    `numbers` are those of the rows and keys in the grid `whole`, of which the map is.
    """
    surprise = s.neg_().add_(g.expand_rows(lse))  # lse − s = −log p
    weights = surprise.neg().exp_()
    by_head = lambda x: x.mT.unflatten(0, (g.batch, g.heads))  # noqa: E731
    sums.entropy.copy_(by_head(g.reduce(weights * surprise, "sum")))
    sums.distance.copy_(by_head(g.reduce(weights * g.place_distances().abs().to(s.dtype), "sum")))
    sums.peak.copy_(by_head(g.reduce(weights, "max")).clamp(min=0.0))
    received = torch.segment_reduce(weights[g.csr.by_key], "sum", offsets=g.csr.key_starts, axis=0, unsafe=True)
    sums.received.copy_(by_head(received))
    head_weights = by_head(weights)  # [batch, heads, edges]
    if sums.weights is not None:
        sums.weights[:, :, g.csr.rows, g.csr.columns] = head_weights
    if sums.map is not None:
        down, across = sums.map.shape[-2:]
        row = bucket_index(whole.queries, down, weights.device)[numbers[0][g.csr.rows]]
        column = bucket_index(whole.keys, across, weights.device)[numbers[1][g.csr.columns]]
        cells = sum_by_index(row * across + column, weights, down * across)
        sums.map.copy_(by_head(cells).unflatten(-1, (down, across)))
    if sums.top:
        top_edges(g, head_weights, sums)


def top_edges(g: edges.EdgeScores, weights: Tensor, sums: ViewSums) -> None:
    """Each query's largest weights: sort by weight, then stably by query, and take the first of each segment."""
    rows = g.csr.rows
    rank = torch.arange(g.edges, device=weights.device) - g.csr.starts[rows]
    chosen = rank < sums.top
    at = (rows[chosen], rank[chosen])
    for b in range(g.batch):
        for h in range(g.heads):
            by_weight = weights[b, h].argsort(descending=True, stable=True)
            order = by_weight[rows[by_weight].argsort(stable=True)]
            sums.top_weights[b, h].index_put_(at, weights[b, h][order][chosen])
            sums.top_keys[b, h].index_put_(at, g.csr.columns[order][chosen])
