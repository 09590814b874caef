"""Looking: the weights and what can be said of them, exactly, without the square of them.

Two walks over the same tiles that `blockwise` visits. The first finds each query's log-sum-exp; the second knows it,
so every tile gives true weights p = exp(s − lse), from which all statistics are sums:

    entropy = Σ p (lse − s),   distance = Σ p |i − j|,   peak = max p,   received = Σ_i p
"""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import BadInput, TooLarge, Unsupported
from .backends import edges
from .backends.backend import reason_against
from .backends.blockwise.schedule import chunks
from .backends.blockwise.tile import Tile, Walker, shape_for
from .call import Call, LoweredCall, lower, make_call
from .device_memory import format_bytes, free_memory
from .parts.mask import Mask
from .parts.methods import Exact, Method
from .parts.part import check_count
from .parts.positions import Position
from .parts.scores import Score
from .view import View

FORBIDDEN = -1.0  # stands below every weight while the largest are gathered


class Wish(NamedTuple):
    """What was asked for beside the statistics."""

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
    weights: bool = False,
    top: int = 0,
    map: int | tuple[int, int] | None = None,
) -> View:
    """What attends to what in `attend(q, k, v, …)`, as a `View`; nothing of queries × keys unless `weights` asks.

    `top` asks for each query's largest weights and their keys, `map` for the weights pooled to rows × columns.
    Raises as `attend` does, and `TooLarge` when the weights would not fit into memory.

    >>> import torch, regard as rg
    >>> x = torch.eye(4).view(1, 1, 4, 4)
    >>> view = rg.look(x, x, mask=rg.Causal(), score=rg.Dot(scale=100.0), top=1)
    >>> view.top_keys.flatten().tolist(), view.entropy.max().item() < 1e-6
    ([0, 1, 2, 3], True)
    """
    if method is not None and not isinstance(method, Method):
        raise BadInput(f"method is {method!r:.80}; it must be a Method, and look shows Exact() alone.")
    if method is not None and not isinstance(method, Exact):
        raise Unsupported(f"{type(method).__name__} never forms the weights of queries on keys; look at Exact().")
    wish = Wish(weights, top, pair(map))
    check_count(top, "top")
    values = k.detach() if v is None and isinstance(k, Tensor) else v
    call = make_call(q, k, values, score=score, position=position, mask=mask)  # type: ignore[arg-type]
    need_room(call, wish)
    parts = [str(part) for part in (call.score, position, mask) if part is not None]
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        found = statistics(call, wish)
    return View(
        **found,  # type: ignore[arg-type]
        mask=call.mask,
        queries=call.grid.queries,
        keys=call.grid.keys,
        description=" · ".join(parts),
    )


def pair(map: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """The size of the map as (rows, columns)."""
    if map is None:
        return None
    size = (map, map) if isinstance(map, int) else map
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise BadInput(f"map is {map!r}; it must be a number, or (rows, columns).")
    for count in size:
        check_count(count, "map's size", 1)
    return size[0], size[1]


def need_room(call: Call, wish: Wish) -> None:
    """Raise when the weights that were asked for would not fit."""
    grid = call.grid
    need = grid.batch * grid.heads * grid.queries * grid.keys * call.exact.itemsize
    room = free_memory(call.q.device)
    if wish.weights and need > room:
        raise TooLarge(
            f"weights=True for {grid.batch} × {grid.heads} × {grid.queries} × {grid.keys} needs {format_bytes(need)}; "
            f"{format_bytes(room)} are free on {call.q.device}. Ask for top=8 or map=(256, 256), or look at fewer queries."
        )


def statistics(call: Call, wish: Wish) -> dict[str, Tensor | None]:
    """All of a view's tensors, by name."""
    p = lower(call)
    along = reason_against(edges, call) is None
    kernels = None if along else fused(p, wish)
    if kernels is not None:
        return kernels.statistics(p, wish)
    totals = Totals(call, wish)
    if call.grid.queries * call.grid.keys * call.grid.batch * call.grid.heads:
        (walk_edges if along else walk_tiles)(p, totals)
    return totals.found()


def fused(p: LoweredCall, wish: Wish) -> ModuleType | None:
    """The kernels that do all of it at once on a GPU, when they can."""
    if not p.q.is_cuda or find_spec("triton") is None:
        return None
    from .kernels.look import passes as stats

    return stats if stats.covers(p, wish) is None else None


class Totals:
    """The statistics of a call while its tiles go by; every query starts as one that looks at nothing."""

    def __init__(self, call: Call, wish: Wish):
        grid, exact = call.grid, call.exact
        front = (grid.batch, grid.heads)
        new = lambda *size, fill=0.0, dtype=exact: call.q.new_full((*front, *size), fill, dtype=dtype)  # noqa: E731
        self.grid, self.wish = grid, wish
        self.lse = new(grid.queries, fill=-torch.inf)
        self.entropy, self.distance, self.peak = (new(grid.queries) for _ in range(3))
        self.received = new(grid.keys)
        self.top_weights = new(grid.queries, wish.top, fill=FORBIDDEN) if wish.top else None
        self.top_keys = new(grid.queries, wish.top, fill=-1, dtype=torch.int64) if wish.top else None
        self.map = new(*wish.map) if wish.map else None
        self.weights = new(grid.queries, grid.keys) if wish.weights else None

    def found(self) -> dict[str, Tensor | None]:
        if self.map is not None:
            counts = bucket_sizes(self.grid.queries, self.map.shape[-2], self.map.device)
            self.map /= counts.clamp(min=1)[:, None]
        if self.top_weights is not None:
            self.top_weights.clamp_(min=0.0)
        names = ["lse", "entropy", "distance", "peak", "received", "top_weights", "top_keys", "map", "weights"]
        return {name: getattr(self, name) for name in names}


def walk_tiles(p: LoweredCall, totals: Totals) -> None:
    """Both walks over the non-empty tiles, chunk of queries by chunk of queries."""
    walker = Walker(p)
    shape, together = shape_for(p)
    for chunk in chunks(p.mask, walker.grid, shape, together):
        if not chunk.spans:
            continue
        tile = walker.tile(chunk)
        rows = (chunk.batch, slice(None), slice(chunk.first, chunk.last))
        lse = torch.stack([tile.scores(span).logsumexp(-1) for span in chunk.spans]).logsumexp(0).flip(2)
        totals.lse[rows] = lse
        for span in chunk.spans:
            scores = tile.scores(span).flip(2)
            add_tile(totals, tile, rows, slice(span.first, span.last), scores, lse[..., None])


def add_tile(totals: Totals, tile: Tile, rows: tuple, keys: slice, s: Tensor, lse: Tensor) -> None:
    """Add one tile's scores `[batch, heads, rows, width]` to the statistics."""
    weights = (s - lse.masked_fill(lse == -torch.inf, torch.inf)).exp_()
    totals.entropy[rows] += (weights * (lse - s)).masked_fill_(weights == 0, 0.0).sum(-1)
    j = torch.arange(keys.start, keys.stop, device=s.device)
    apart = (tile.places.flip(0)[:, None] - j).abs().to(s.dtype)
    totals.distance[rows] += torch.einsum("bhij,ij->bhi", weights, apart)
    totals.peak[rows] = torch.maximum(totals.peak[rows], weights.amax(-1))
    totals.received[rows[0], :, keys] += weights.sum(2)
    if totals.weights is not None:
        totals.weights[*rows, keys] = weights
    if totals.wish.top:
        merge_top(totals, rows, j, weights.masked_fill(s == -torch.inf, FORBIDDEN))
    if totals.map is not None:
        pool(totals, rows, keys, weights)


def merge_top(totals: Totals, rows: tuple, j: Tensor, weights: Tensor) -> None:
    """Keep each row's largest weights of those known and these, negative where forbidden; the lower key wins a tie."""
    known, keys = totals.top_weights[rows], totals.top_keys[rows]  # type: ignore[index]
    count = min(totals.wish.top, weights.shape[-1])
    best, at = largest(weights, count)
    both = torch.cat([known, best], dim=-1)
    names = torch.cat([keys, torch.where(best >= 0, j[at], -1)], dim=-1)
    best, at = largest(both, totals.wish.top)
    totals.top_weights[rows] = best  # type: ignore[index]
    totals.top_keys[rows] = names.gather(-1, at)  # type: ignore[index]


def largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest along the last axis and where they are; the first of equals first."""
    values, at = x.topk(count, dim=-1)
    least = values[..., -1:]
    within = ((values[..., 1:] == values[..., :-1]) & (values[..., 1:] >= 0)).any()
    beyond = ((x == least).sum(-1, keepdim=True) > (values == least).sum(-1, keepdim=True)) & (least >= 0)
    if not within and not beyond.any():
        return values, at
    values, at = x.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], at[..., :count]


def buckets(size: int, count: int, device: torch.device) -> Tensor:
    """The bucket of each of `size` tokens: bucket r starts at ⌊r · size / count⌋."""
    starts = torch.arange(count + 1, device=device) * size // count
    return torch.searchsorted(starts, torch.arange(size, device=device), right=True) - 1


def bucket_sizes(size: int, count: int, device: torch.device) -> Tensor:
    return (torch.arange(count + 1, device=device) * size // count).diff()


def pool(totals: Totals, rows: tuple, keys: slice, weights: Tensor) -> None:
    """Add a tile's weights to the cells of the map: sums over runs of rows and of columns."""
    down, across = totals.map.shape[-2:]  # type: ignore[union-attr]
    row = buckets(totals.grid.queries, down, weights.device)[rows[2]]
    column = buckets(totals.grid.keys, across, weights.device)[keys]
    r0, r1, c0, c1 = int(row[0]), int(row[-1]) + 1, int(column[0]), int(column[-1]) + 1
    down_sum = torch.nn.functional.one_hot(row - r0, r1 - r0).to(weights.dtype)
    across_sum = torch.nn.functional.one_hot(column - c0, c1 - c0).to(weights.dtype)
    totals.map[rows[0], :, r0:r1, c0:c1] += down_sum.mT @ (weights @ across_sum)  # type: ignore[index]


def walk_edges(p: LoweredCall, totals: Totals) -> None:
    """The same statistics from the edges of a graph."""
    g = edges.Graph(p)
    s = edges.scores(g)  # [edges, batch · heads]
    top = g.reduce(s, "max")
    total = g.reduce((s - g.at_rows(top)).exp_(), "sum")
    alive = total > 0
    lse = torch.where(alive, top + total.log(), -torch.inf)
    lifted = s.neg_().add_(g.at_rows(lse))  # lse − s
    weights = lifted.neg().exp_()
    rows = lambda x: x.mT.unflatten(0, (g.batch, g.heads))  # noqa: E731
    totals.lse.copy_(rows(lse))
    totals.entropy.copy_(rows(g.reduce(weights * lifted, "sum")))
    totals.distance.copy_(rows(g.reduce(weights * g.distance().abs()[:, None].to(s.dtype), "sum")))
    totals.peak.copy_(rows(g.reduce(weights, "max")).clamp(min=0.0))
    received = torch.segment_reduce(weights[g.order.by_key], "sum", offsets=g.order.key_starts, axis=0, unsafe=True)
    totals.received.copy_(rows(received))
    spread_edges(g, weights, totals)


def spread_edges(g: edges.Graph, weights: Tensor, totals: Totals) -> None:
    """The weights, the map and the top of a graph, from the weights of its edges."""
    order, every = g.order, weights.mT.unflatten(0, (g.batch, g.heads))  # [batch, heads, edges]
    if totals.weights is not None:
        totals.weights[:, :, order.rows, order.columns] = every
    if totals.map is not None:
        down, across = totals.map.shape[-2:]
        row = buckets(totals.grid.queries, down, weights.device)[order.rows]
        column = buckets(totals.grid.keys, across, weights.device)[order.columns]
        cells = edges.sums_at(row * across + column, weights, down * across)
        totals.map.copy_(cells.mT.unflatten(0, (g.batch, g.heads)).unflatten(-1, (down, across)))
    if totals.wish.top:
        top_edges(g, every, totals)


def top_edges(g: edges.Graph, every: Tensor, totals: Totals) -> None:
    """Each query's largest weights: sort by weight, then stably by query, and take the first of each run."""
    order = g.order
    for b in range(g.batch):
        for h in range(g.heads):
            falling = every[b, h].argsort(descending=True, stable=True)
            ranked = falling[order.rows[falling].argsort(stable=True)]
            place = torch.arange(g.edges, device=every.device) - order.starts[order.rows]
            chosen = place < totals.wish.top
            at = (order.rows[chosen], place[chosen])
            totals.top_weights[b, h].index_put_(at, every[b, h][ranked][chosen])  # type: ignore[index]
            totals.top_keys[b, h].index_put_(at, order.columns[ranked][chosen])  # type: ignore[index]
