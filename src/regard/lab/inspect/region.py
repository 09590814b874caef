"""Scores and weights of any region of a head, stage by stage; nothing larger than the region is ever computed.

    raw → scaled → + position → allowed? → score → weight = exp(score − lse)

A cap bounds what is scaled, and the vectors by distance with it. All that is added afterwards (by distance, by pair, by
edge) counts as position; the log-sum-exp has the sink. Rows and keys are given as (first, after the last). A query's
position among the keys is its row number + keys − queries, in every region, or its explicit place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ...attention.call import Call, LoweredCall, lower
from ...attention.look import bucket_index
from ...attention.parts.edges import SortedEdges, sorted_edges
from ...attention.parts.mask import ALL, NONE, Tiling
from ...attention.parts.masks import Everything
from ...attention.parts.masks.tile_states import add_batch_heads
from ...attention.parts.scores import Cosine
from ..server.jobs import Job

ROWS, COLUMNS = 256, 2048
"""Queries and keys of a tile that is computed at once."""
MAX_SCORES, MAX_ACTIVATIONS = 1 << 22, 1 << 22
"""Scores, and activations of an additive score, in memory at once."""

PROGRESS = {"en": "queries computed", "zh": "已计算的查询"}
MIN_SCORE = -1e30
"""In place of −∞ where that would make a sum NaN."""

Span = tuple[int, int]


class ScoreStages(NamedTuple):
    """A region `[rows, keys]` of one head, before the softmax; `position` is None without a position bias."""

    raw: Tensor
    scaled: Tensor
    position: Tensor | None
    allowed: Tensor
    score: Tensor


@dataclass(frozen=True)
class RegionSummary:
    """Statistics of a region, over the queries that were computed.

    `map [rows, columns]`: the mean, over a bucket's queries, of their weight on a bucket of keys. `entropy` and
    `distance [rows]` are means over a bucket's queries, `received [keys]` the sum over queries. `links [n, 2]` are the
    pairs (query, key) of the largest weights, `link_weights [n]`. `masked` cells have no allowed pair; `visited` is the
    number of queries that were computed.
    """

    map: Tensor
    entropy: Tensor
    distance: Tensor
    received: Tensor
    links: Tensor
    link_weights: Tensor
    masked: Tensor
    visited: int


class HeadScores:
    """Scores and weights of the heads of one call with a batch of one."""

    def __init__(self, call: Call) -> None:
        self.call = call
        with torch.no_grad():
            self.lowered: LoweredCall = lower(call)
        self.grid = self.lowered.grid
        self.group = self.grid.heads // self.lowered.k.shape[1]
        self.known_lse = call.q.new_full((self.grid.heads, self.grid.queries), math.nan, dtype=call.exact)

    @cached_property
    def tiles(self) -> Tensor | None:
        """The mask's answer for each tile, `[heads or 1, tile rows, tile columns]`; None where it allows all."""
        if isinstance(self.lowered.mask, Everything):
            return None
        return add_batch_heads(self.lowered.mask.tiles(Tiling(self.grid, ROWS, COLUMNS)))[0]

    def visible(self, head: int, rows: Tensor, keys: Span) -> Iterator[tuple[Span, bool]]:
        """The pieces of a span that some of the rows may attend to, and whether every pair of the piece is allowed."""
        if self.tiles is None:
            yield from ((span, True) for span in split_span(keys, COLUMNS))
            return
        states = self.tiles[head if self.tiles.shape[0] > 1 else 0, (rows // ROWS).unique()]
        most, least = states.amax(0).tolist(), states.amin(0).tolist()
        for span in split_span(keys, COLUMNS):
            n = span[0] // COLUMNS
            if most[n] != NONE:
                yield span, least[n] == ALL

    def stages(self, head: int, rows: Span, keys: Span) -> ScoreStages:
        """Every stage before the softmax."""
        index = self.range(rows)
        similarity, scale = self.similarity(head, index, keys), self.scale(head)
        raw = similarity / scale if scale not in (0.0, 1.0) else similarity
        scaled, vectors = self.apply_cap(similarity), self.vector_scores(head, index, keys)
        if vectors is not None and self.lowered.cap is not None:
            vectors = self.apply_cap(similarity + vectors) - scaled
        terms = (vectors, self.distance_bias(head, index, keys), self.pair_bias(head, index, keys))
        added = [x.expand_as(scaled) for x in terms if x is not None]
        if not added and self.lowered.rel_bias is not None:
            added = [torch.zeros_like(scaled)]
        position = torch.stack(added).sum(0) if added else None
        allowed = self.allowed_pairs(head, index, keys)
        score = (scaled if position is None else scaled + position).masked_fill(~allowed, -torch.inf)
        return ScoreStages(raw, scaled, position, allowed, score)

    def scale(self, head: int) -> float:
        """The factor of the raw similarity: 1 where the score has no scale."""
        score = self.call.score
        if isinstance(score, Cosine) and isinstance(score.scale, Tensor):
            return float(score.scale.reshape(-1)[head if score.scale.numel() > 1 else 0])
        return 1.0 if self.lowered.weight is not None else self.lowered.scale

    def scores(self, head: int, rows: Tensor, keys: Span, everything: bool = False) -> Tensor:
        """The scores of some rows, −∞ where masked; with `everything` no pair is masked."""
        score, vectors = self.similarity(head, rows, keys), self.vector_scores(head, rows, keys)
        score = self.apply_cap(score if vectors is None else score.add_(vectors))
        for bias in (self.distance_bias(head, rows, keys), self.pair_bias(head, rows, keys)):
            score = score if bias is None else score.add_(bias)
        return score if everything else score.masked_fill_(~self.allowed_pairs(head, rows, keys), -torch.inf)

    def apply_cap(self, score: Tensor) -> Tensor:
        """cap · tanh(score / cap), where the score has a cap."""
        cap = self.lowered.cap
        return score if cap is None else cap * (score / cap).tanh()

    def operands(self, head: int, rows: Tensor, keys: Span) -> tuple[Tensor, Tensor]:
        """Queries `[rows, dim]` and keys `[keys, dim]` as the score compares them."""
        p, exact = self.lowered, self.call.exact
        return p.q[0, head][rows].to(exact), p.k[0, head // self.group, slice(*keys)].to(exact)

    def similarity(self, head: int, rows: Tensor, keys: Span) -> Tensor:
        """The scaled similarity, `[rows, keys]`; each edge's own key is added to the key of its pair."""
        p = self.lowered
        q, k = self.operands(head, rows, keys)
        if p.weight is None and p.edge_keys is None:
            return (q * p.scale) @ k.mT
        step = max(1, MAX_ACTIVATIONS // max(1, k.numel()))
        products = []
        for part, some in zip(q.split(step), rows.split(step), strict=True):
            pairs = k if p.edge_keys is None else k + self.of_edges(p.edge_keys, head, some, keys)
            if p.weight is None:
                products.append((pairs @ (part * p.scale)[:, :, None])[..., 0])
            else:
                products.append(self.activate(part[:, None] + pairs) @ p.weight[head].to(q.dtype))
        return torch.cat(products)

    def activate(self, x: Tensor) -> Tensor:
        p = self.lowered
        return x.tanh() if p.activation == "tanh" else torch.nn.functional.leaky_relu(x, p.slope)

    def vector_scores(self, head: int, rows: Tensor, keys: Span) -> Tensor | None:
        """What vectors by distance add inside the cap, `[rows, keys]`."""
        p, exact, total = self.lowered, self.call.exact, None
        if p.rel_vectors is not None:
            table = p.rel_vectors.table[head].to(exact)
            products = p.rel_vectors.queries[0, head][rows].to(exact) @ table.mT * p.scale  # [rows, distances]
            total = products.gather(-1, self.entries(rows, keys, p.rel_vectors.zero, len(table)))
        if p.key_vectors is not None:
            table = p.key_vectors.table[head].to(exact)
            products = table @ self.operands(head, rows, keys)[1].mT * p.scale  # [distances, keys]
            by_keys = products.gather(0, self.entries(rows, keys, p.key_vectors.zero, len(table)))
            total = by_keys if total is None else total + by_keys
        return total

    def distance_bias(self, head: int, rows: Tensor, keys: Span) -> Tensor | None:
        """The bias by distance, `[rows, keys]`; None where it is zero."""
        p, exact = self.lowered, self.call.exact
        if p.rel_bias is None or not self.biased_heads[head]:
            return None
        if p.places is None:
            table = p.rel_bias.table[head].to(exact)
            return gather_by_distance(table, p.rel_bias.zero, rows + self.grid.offset, keys)
        if p.rel_bias.slopes is not None:
            return self.distances(rows, keys).abs().to(exact) * -p.rel_bias.slopes[head].to(exact)
        table = p.rel_bias.table[head].to(exact)
        return table[self.entries(rows, keys, p.rel_bias.zero, len(table))]

    def pair_bias(self, head: int, rows: Tensor, keys: Span) -> Tensor | None:
        """The bias by pair, and that of edges, `[rows, keys]`."""
        p, exact = self.lowered, self.call.exact
        if p.pair_bias is None:
            return None if p.edge_bias is None else self.of_edges(p.edge_bias, head, rows, keys)[..., 0]
        pairs = p.pair_bias[0, head if p.pair_bias.shape[1] > 1 else 0]
        pairs = pairs[rows] if len(pairs) > 1 else pairs
        pairs = pairs[:, slice(*keys)] if pairs.shape[1] > 1 else pairs
        pairs = pairs.to(exact)
        return pairs if p.edge_bias is None else pairs + self.of_edges(p.edge_bias, head, rows, keys)[..., 0]

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """i of every query and j of every key."""
        if self.lowered.places is not None:
            queries, keys = self.lowered.places
            return queries[0], keys[0]
        return self.range((0, self.grid.queries)) + self.grid.offset, self.range((0, self.grid.keys))

    def distances(self, rows: Tensor, keys: Span) -> Tensor:
        """i − j, `[rows, keys]`."""
        i, j = self.places
        return i[rows][:, None] - j[slice(*keys)]

    def entries(self, rows: Tensor, keys: Span, zero: int, count: int) -> Tensor:
        """The entry of a table by distance for each pair, `[rows, keys]`."""
        return (self.distances(rows, keys) + zero).clamp(0, count - 1)

    @cached_property
    def edges(self) -> tuple[SortedEdges, Tensor]:
        """The edges of a graph, and row · keys + column of each, which rises."""
        csr = sorted_edges(self.lowered.mask, self.grid)
        return csr, csr.rows * self.grid.keys + csr.columns

    def of_edges(self, features: Tensor, head: int, rows: Tensor, keys: Span) -> Tensor:
        """The features `[1, heads or 1, edges, n]` of each pair's edge, `[rows, keys, n]`; zero without an edge."""
        numbers, wanted = self.edges[1], rows[:, None] * self.grid.keys + self.range(keys)
        if not len(numbers):
            return features.new_zeros(*wanted.shape, features.shape[3], dtype=self.call.exact)
        at = torch.searchsorted(numbers, wanted).clamp(max=len(numbers) - 1)
        own = features[0, head if features.shape[1] > 1 else 0].to(self.call.exact)
        return own[at].masked_fill_((numbers[at] != wanted)[..., None], 0.0)

    def values(self, head: int, rows: Tensor, keys: Span) -> Tensor:
        """The values that rows take of keys: `[keys, value dim]`, or `[rows, keys, value dim]` where edges add some."""
        v = self.lowered.v[0, head // self.group, slice(*keys)].to(self.call.exact)
        features = self.lowered.edge_values
        return v if features is None else v + self.of_edges(features, head, rows, keys)

    def add_sink(self, head: int, lse: Tensor) -> Tensor:
        """The log-sum-exp `[rows]` with the sink, if there is one."""
        sink = self.lowered.sink
        return lse if sink is None else torch.logaddexp(lse, sink[head].to(lse.dtype))

    @cached_property
    def biased_heads(self) -> list[bool]:
        """Which heads have a distance bias other than zero."""
        bias = self.lowered.rel_bias
        if bias is None:
            return []
        return (bias.table if bias.slopes is None else bias.slopes[:, None]).ne(0).any(-1).tolist()

    def allowed_pairs(self, head: int, rows: Tensor, keys: Span) -> Tensor:
        """Which pairs the mask allows, `[rows, keys]`."""
        positions = (rows + self.grid.offset)[:, None]
        pairs = add_batch_heads(self.lowered.mask.permits(positions, self.range(keys)[None], self.grid))[0]
        return pairs[head if pairs.shape[0] > 1 else 0].expand(len(rows), keys[1] - keys[0])

    def range(self, span: Span) -> Tensor:
        return torch.arange(*span, device=self.grid.device)

    def lse(self, head: int, rows: Tensor) -> Tensor:
        """log Σ exp(score) of these queries, `[rows]`; cached."""
        missing = rows[self.known_lse[head, rows].isnan()]
        for chunk in missing.split(ROWS) if len(missing) else ():
            parts = [self.known_lse.new_full((len(chunk),), -torch.inf)]
            for span, full in self.visible(head, chunk, (0, self.grid.keys)):
                parts.append(self.scores(head, chunk, span, full).logsumexp(-1))
            self.known_lse[head, chunk] = self.add_sink(head, torch.stack(parts).logsumexp(0))
        return self.known_lse[head, rows]

    def weights(self, head: int, rows: Span, keys: Span) -> Tensor:
        """Weights `[rows, keys]`; over all keys a query's sum to one, or to zero where it has no allowed key."""
        index = self.range(rows)
        return exp_weights(self.scores(head, index, keys), self.lse(head, index))

    def output(self, head: int, rows: Tensor) -> Tensor:
        """Σ weight · v of these queries, `[rows, value dim]`."""
        lse, total = self.lse(head, rows), self.known_lse.new_zeros(len(rows), self.lowered.v.shape[-1])
        for part, full in self.visible(head, rows, (0, self.grid.keys)):
            total += mix(exp_weights(self.scores(head, rows, part, full), lse), self.values(head, rows, part))
        return total

    def allowed_counts(self, head: int) -> Tensor:
        """How many keys each query may attend to, `[queries]`."""
        counts = torch.zeros(self.grid.queries, dtype=torch.int64, device=self.grid.device)
        for first, last in split_span((0, self.grid.queries), ROWS):
            rows = self.range((first, last))
            for part, full in self.visible(head, rows, (0, self.grid.keys)):
                counts[rows] += part[1] - part[0] if full else self.allowed_pairs(head, rows, part).sum(-1)
        return counts

    def summarize(
        self,
        head: int,
        shape: tuple[int, int],
        rows: Span,
        keys: Span,
        job: Job,
        *,
        max_queries: int | None = None,
        links: int = 64,
        min_distance: int = 0,
    ) -> RegionSummary:
        """The map of a region, its curves, and its largest weights between tokens at least `min_distance` apart.

        With more than `max_queries` queries in the region, that many evenly spaced ones are computed.
        """
        sums = RegionAccumulator(self, shape, rows, keys, links, min_distance)
        sampled = max_queries is not None and rows[1] - rows[0] > max_queries
        queries = spaced_rows(rows, max_queries or 0, self.grid.device) if sampled else self.range(rows)
        chunks = queries.split(min(ROWS, max(16, MAX_SCORES // max(1, self.grid.keys))))
        for n, chunk in enumerate(chunks):
            job.report(n * len(chunks[0]), len(queries), PROGRESS)
            chunk = chunk.flip(0)  # the distance bias is then a view of one table row
            lse = self.known_lse[head, chunk]
            known = not bool(lse.isnan().any())
            tiles = [
                exp_tile(span, full, self.scores(head, chunk, span, full), lse if known else None)
                for span, full in self.visible(head, chunk, keys if known else (0, self.grid.keys))
            ]
            if not known:
                parts = [torch.full_like(lse, -torch.inf), *(tile.powers.sum(-1).log() + tile.base for tile in tiles)]
                lse = self.known_lse[head, chunk] = self.add_sink(head, torch.stack(parts).logsumexp(0))
            sums.add(chunk, lse, tiles)
        return sums.summary(len(queries))


class ExpTile(NamedTuple):
    """A tile's scores, and powers = exp(score − base); weights are powers · exp(base − lse)."""

    keys: Span
    full: bool
    score: Tensor
    powers: Tensor
    base: Tensor


def exp_tile(keys: Span, full: bool, score: Tensor, lse: Tensor | None) -> ExpTile:
    """The tile with its powers; the base is the known log-sum-exp, or else the tile's own largest scores."""
    base = (score.amax(-1) if lse is None else lse).clamp(min=MIN_SCORE)
    return ExpTile(keys, full, score, (score - base[:, None]).exp_(), base)


class RegionAccumulator:
    """The sums of a region's statistics, tile by tile.

    A pair costs little more than its score: weights are never formed, and sums over keys are matrix products.
    """

    def __init__(
        self, scores: HeadScores, shape: tuple[int, int], rows: Span, keys: Span, links: int, min_distance: int
    ) -> None:
        self.places, self.placed = scores.places, scores.lowered.places is not None
        self.rows, self.keys = rows, keys
        self.links, self.min_distance = links, min_distance
        count, width = rows[1] - rows[0], keys[1] - keys[0]
        down, across = min(shape[0], count), min(shape[1], width)
        device = scores.known_lse.device
        zeros = lambda *size: torch.zeros(size, dtype=scores.call.exact, device=device)  # noqa: E731
        self.map, self.received = zeros(down, across), zeros(width)
        self.entropy, self.distance, self.visited = (zeros(down) for _ in range(3))
        self.allowed = torch.zeros(down, across, dtype=torch.bool, device=device)
        self.top_weights, self.top_pairs = zeros(0), torch.zeros(0, 2, dtype=torch.int64, device=device)
        self.bucket, self.column = bucket_index(count, down, device), bucket_index(width, across, device)

    def add(self, rows: Tensor, lse: Tensor, tiles: list[ExpTile]) -> None:
        """Add the tiles of some rows; pairs outside the region are left out."""
        at = self.bucket[rows - self.rows[0]]
        self.visited.index_add_(0, at, self.visited.new_ones(len(rows)))
        live = lse.masked_fill(lse == -torch.inf, torch.inf)
        for tile in tiles:
            first, a, b = tile.keys[0], max(tile.keys[0], self.keys[0]), min(tile.keys[1], self.keys[1])
            if a < b:
                here = slice(a - first, b - first)
                cut = ExpTile((a, b), tile.full, tile.score[:, here], tile.powers[:, here], tile.base)
                self.add_tile(rows, at, cut, (tile.base - live).exp(), lse)

    def add_tile(self, rows: Tensor, at: Tensor, tile: ExpTile, factor: Tensor, lse: Tensor) -> None:
        numbers = torch.arange(*tile.keys, device=rows.device)
        positions, j = self.places[0][rows], self.places[1][numbers]
        columns = self.column[numbers - self.keys[0]]
        first, last = int(columns[0]), int(columns[-1]) + 1
        members = torch.nn.functional.one_hot(columns - first, last - first)
        right = torch.cat([members, j[:, None]], dim=1).to(tile.powers.dtype)
        sums = tile.powers @ right * factor[:, None]  # weight on each column, and Σ weight · j
        pooled, mass = sums[:, :-1], sums[:, :-1].sum(-1)
        diagonal = int(positions.max()) >= tile.keys[0] and int(positions.min()) < tile.keys[1]
        if diagonal or self.placed:
            distance = (positions[:, None] - j).abs()
            weighted, near = (tile.powers * distance).sum(-1) * factor, distance < self.min_distance
        else:
            weighted, near = (positions * mass - sums[:, -1]).abs(), None
        self.map[:, first:last].index_add_(0, at, pooled)
        self.distance.index_add_(0, at, weighted)
        self.entropy.index_add_(0, at, mass * lse.clamp(min=MIN_SCORE) - row_dots(tile) * factor)
        self.received[tile.keys[0] - self.keys[0] : tile.keys[1] - self.keys[0]] += factor @ tile.powers
        self.mark_allowed(at, columns, tile)
        if self.links:
            self.add_links(rows, tile, factor, near)

    def mark_allowed(self, at: Tensor, columns: Tensor, tile: ExpTile) -> None:
        """Mark the cells that have an allowed pair."""
        if tile.full:
            self.allowed[at[:, None], columns.unique()] = True
            return
        i, j = (tile.score > -torch.inf).nonzero(as_tuple=True)
        self.allowed[at[i], columns[j]] = True

    def add_links(self, rows: Tensor, tile: ExpTile, factor: Tensor, near: Tensor | None) -> None:
        """Merge a tile's largest weights into the largest so far."""
        full = len(self.top_weights) == self.links
        least = self.top_weights[-1] if full else self.top_weights.new_zeros(())
        if float((tile.powers.amax(-1) * factor).max()) <= float(least):
            return
        weight = tile.powers * factor[:, None]
        weight = weight if near is None else weight.masked_fill_(near, 0.0)
        values, index = weight.flatten().topk(min(self.links, weight.numel()))
        values, index = values[values > least], index[values > least]
        pairs = torch.stack([rows[index // weight.shape[1]], index % weight.shape[1] + tile.keys[0]], dim=1)
        weights, pairs = torch.cat([self.top_weights, values]), torch.cat([self.top_pairs, pairs])
        order = weights.argsort(descending=True, stable=True)[: self.links]
        self.top_weights, self.top_pairs = weights[order], pairs[order]

    def summary(self, visited: int) -> RegionSummary:
        each = self.visited.clamp(min=1)
        curves = (self.entropy / each).clamp(min=0), self.distance / each
        return RegionSummary(
            self.map / each[:, None], *curves, self.received, self.top_pairs, self.top_weights, ~self.allowed, visited
        )


def row_dots(tile: ExpTile) -> Tensor:
    """Σ powers · score of each row; a masked pair adds nothing."""
    score = tile.score if tile.full else tile.score.clamp(min=MIN_SCORE)
    return (tile.powers[:, None] @ score[:, :, None]).flatten()


def mix(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_j weight · value, `[rows, value dim]`; each row may have values of its own."""
    return weights @ values if values.dim() == 2 else (weights[:, None] @ values)[:, 0]


def exp_weights(score: Tensor, lse: Tensor) -> Tensor:
    """exp(score − lse); zeros where a query has no allowed key."""
    return (score - lse.masked_fill(lse == -torch.inf, torch.inf)[:, None]).exp_()


def gather_by_distance(table: Tensor, zero: int, positions: Tensor, keys: Span) -> Tensor:
    """table[clamp(i − j + zero)] for positions i and keys j, `[positions, keys]`; a view where i falls by ones."""
    if len(positions) > 1 and bool((positions.diff() == 1).all()):
        return gather_by_distance(table, zero, positions.flip(0), keys).flip(0)
    width = keys[1] - keys[0]
    if bool((positions.diff() == -1).all()):
        high = int(positions[0]) - keys[0]
        distances = torch.arange(high, high - len(positions) - width + 1, -1, device=table.device)
        return table[(distances + zero).clamp(0, len(table) - 1)].unfold(0, width, 1)
    distance = positions[:, None] - torch.arange(*keys, device=table.device)
    return table[(distance + zero).clamp(0, len(table) - 1)]


def split_span(span: Span, size: int) -> list[Span]:
    """The span in pieces that end at multiples of `size`.

    >>> split_span((3, 11), 4)
    [(3, 4), (4, 8), (8, 11)]
    """
    edges = [span[0], *range((span[0] // size + 1) * size, span[1], size), span[1]]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def spaced_rows(rows: Span, count: int, device: torch.device | str) -> Tensor:
    """`count` row numbers, evenly spaced over the span.

    >>> spaced_rows((10, 20), 4, "cpu").tolist()
    [10, 12, 15, 17]
    """
    return rows[0] + torch.arange(count, device=device) * (rows[1] - rows[0]) // count
