"""Any region of one head's attention, stage by stage, from its queries, keys and parts; nothing larger is ever made.

    raw → scaled → + position → allowed? → score → weight = exp(score − lse)

Rows and keys are given as (first, after the last). A query's place among the keys is its row number + keys − queries,
whatever region it is asked in.
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

from ...attention.call import Call, Problem, lower
from ...attention.look import buckets
from ...attention.parts.mask import ALL, NONE, Tiling
from ...attention.parts.masks import Everything, four
from ...attention.parts.scores import Cosine
from ..server.jobs import Job

ROWS, COLUMNS = 256, 2048
"""Queries and keys of a tile that is computed at once."""
HELD, FEATURES = 1 << 22, 1 << 22
"""Scores, and activations of an additive score, held at once."""

ROWS_WORDS = {"en": "queries looked at", "zh": "已查看的查询"}
LEAST = -1e30
"""Stands for −∞ where that would make a sum no number."""

Span = tuple[int, int]


class Stages(NamedTuple):
    """A region `[rows, keys]` of one head, before the softmax; `position` is None where distance adds nothing."""

    raw: Tensor
    scaled: Tensor
    position: Tensor | None
    allowed: Tensor
    score: Tensor


@dataclass(frozen=True)
class Survey:
    """What one walk over a region found, of the queries that it visited.

    `map [rows, columns]`: the mean, over a bucket's queries, of their weight on a bucket of keys. `entropy` and
    `distance [rows]` are means over a bucket's queries, `received [keys]` the sum over queries. `links [n, 2]` are the
    pairs (query, key) of the largest weights, which stand in `link_weights [n]`. `masked` cells have no pair that is
    allowed; `visited` is how many queries were.
    """

    map: Tensor
    entropy: Tensor
    distance: Tensor
    received: Tensor
    links: Tensor
    link_weights: Tensor
    masked: Tensor
    visited: int


class Regions:
    """Regions of the heads of one call with a batch of one."""

    def __init__(self, call: Call) -> None:
        self.call = call
        with torch.no_grad():
            self.problem: Problem = lower(call)
        self.grid = self.problem.grid
        self.group = self.grid.heads // self.problem.k.shape[1]
        self.known_lse = call.q.new_full((self.grid.heads, self.grid.queries), math.nan, dtype=call.exact)

    @cached_property
    def tiles(self) -> Tensor | None:
        """What the mask says of each tile, `[heads or 1, tile rows, tile columns]`; None where it allows all."""
        if isinstance(self.problem.mask, Everything):
            return None
        return four(self.problem.mask.tiles(Tiling(self.grid, ROWS, COLUMNS)))[0]

    def visible(self, head: int, rows: Tensor, keys: Span) -> Iterator[tuple[Span, bool]]:
        """The parts of a span of keys that some of the rows may see, and whether all see all of them."""
        if self.tiles is None:
            yield from ((part, True) for part in steps(keys, COLUMNS))
            return
        mine = self.tiles[head if self.tiles.shape[0] > 1 else 0, (rows // ROWS).unique()]
        most, least = mine.amax(0).tolist(), mine.amin(0).tolist()
        for part in steps(keys, COLUMNS):
            n = part[0] // COLUMNS
            if most[n] != NONE:
                yield part, least[n] == ALL

    def stages(self, head: int, rows: Span, keys: Span) -> Stages:
        """Every stage before the softmax."""
        asked = self.range(rows)
        scaled = self.similarity(head, asked, keys)
        position = self.position(head, asked, keys)
        if position is None and self.problem.numbers is not None:
            position = torch.zeros_like(scaled)
        allowed = self.allowed(head, asked, keys)
        score = (scaled if position is None else scaled + position).masked_fill(~allowed, -torch.inf)
        factor = self.factor(head)
        raw = scaled if factor == 1.0 else self.unscaled(head, asked, keys) if factor else scaled
        return Stages(raw, scaled, position, allowed, score)

    def factor(self, head: int) -> float:
        """What the raw similarity is multiplied with: 1 where the score has no scale."""
        score = self.call.score
        if isinstance(score, Cosine) and isinstance(score.scale, Tensor):
            return float(score.scale.reshape(-1)[head if score.scale.numel() > 1 else 0])
        return 1.0 if self.problem.weight is not None else self.problem.scale

    def scores(self, head: int, rows: Tensor, keys: Span, everything: bool = False) -> Tensor:
        """The scores of some rows, −∞ where forbidden; `everything` says that nothing is."""
        score = self.similarity(head, rows, keys)
        position = self.position(head, rows, keys)
        score = score if position is None else score.add_(position)
        return score if everything else score.masked_fill_(~self.allowed(head, rows, keys), -torch.inf)

    def operands(self, head: int, rows: Tensor, keys: Span) -> tuple[Tensor, Tensor]:
        """Queries `[rows, d]` and keys `[keys, d]` as they are compared."""
        p, exact = self.problem, self.call.exact
        return p.q[0, head][rows].to(exact), p.k[0, head // self.group, slice(*keys)].to(exact)

    def similarity(self, head: int, rows: Tensor, keys: Span) -> Tensor:
        q, k = self.operands(head, rows, keys)
        if self.problem.weight is None:
            return (q * self.problem.scale) @ k.mT
        weight = self.problem.weight[head].to(q.dtype)
        step = max(1, FEATURES // max(1, k.numel()))
        return torch.cat([self.bent(part[:, None] + k) @ weight for part in q.split(step)])

    def unscaled(self, head: int, rows: Tensor, keys: Span) -> Tensor:
        """The similarity without its factor; Cosine has a learned one in q already."""
        q, k = self.operands(head, rows, keys)
        return (q * (self.problem.scale / self.factor(head))) @ k.mT

    def bent(self, both: Tensor) -> Tensor:
        p = self.problem
        return both.tanh() if p.activation == "tanh" else torch.nn.functional.leaky_relu(both, p.slope)

    def position(self, head: int, rows: Tensor, keys: Span) -> Tensor | None:
        """What distance adds, `[rows, keys]`."""
        p, exact = self.problem, self.call.exact
        added = None
        if p.numbers is not None and self.numbered[head]:
            added = by_distance(p.numbers.table[head].to(exact), p.numbers.zero, rows + self.grid.offset, keys)
        if p.vectors is not None:
            table = p.vectors.table[head].to(exact)
            asked = p.vectors.queries[0, head][rows].to(exact) @ table.mT * p.scale
            distance = (rows + self.grid.offset)[:, None] - self.range(keys)
            told = asked.gather(-1, (distance + p.vectors.zero).clamp(0, len(table) - 1))
            added = told if added is None else added + told
        return added

    @cached_property
    def numbered(self) -> list[bool]:
        """Of which heads distance adds a number other than zero."""
        return [] if self.problem.numbers is None else (self.problem.numbers.table != 0).any(-1).tolist()

    def allowed(self, head: int, rows: Tensor, keys: Span) -> Tensor:
        """Which pairs the mask allows, `[rows, keys]`."""
        places = (rows + self.grid.offset)[:, None]
        pairs = four(self.problem.mask.permits(places, self.range(keys)[None], self.grid))[0]
        return pairs[head if pairs.shape[0] > 1 else 0].expand(len(rows), keys[1] - keys[0])

    def range(self, span: Span) -> Tensor:
        return torch.arange(*span, device=self.grid.device)

    def lse(self, head: int, rows: Tensor, job: Job | None = None) -> Tensor:
        """log Σ exp(score) of these queries, `[rows]`; computed once."""
        missing = rows[self.known_lse[head, rows].isnan()]
        for some in missing.split(ROWS) if len(missing) else ():
            found = [
                self.scores(head, some, part, full) for part, full in self.visible(head, some, (0, self.grid.keys))
            ]
            self.keep_lse(head, some, found)
            if job is not None:
                job.check()
        return self.known_lse[head, rows]

    def keep_lse(self, head: int, rows: Tensor, scores: list[Tensor]) -> None:
        """Remember the log-sum-exp of rows, given all the scores that are not −∞."""
        parts = [self.known_lse.new_full((len(rows),), -torch.inf), *(one.logsumexp(-1) for one in scores)]
        self.known_lse[head, rows] = torch.stack(parts).logsumexp(0)

    def weights(self, head: int, rows: Span, keys: Span) -> Tensor:
        """True weights, `[rows, keys]`: each query's over all keys sum to one, or to zero where it may see none."""
        asked = self.range(rows)
        return weigh(self.scores(head, asked, keys), self.lse(head, asked))

    def mixed(self, head: int, rows: Tensor) -> Tensor:
        """Σ weight · v of these queries, `[rows, value dim]`."""
        v = self.problem.v[0, head // self.group].to(self.call.exact)
        lse, total = self.lse(head, rows), v.new_zeros(len(rows), v.shape[-1])
        for part, full in self.visible(head, rows, (0, self.grid.keys)):
            total += weigh(self.scores(head, rows, part, full), lse) @ v[slice(*part)]
        return total

    def counts(self, head: int) -> Tensor:
        """How many keys each query may see, `[queries]`."""
        found = torch.zeros(self.grid.queries, dtype=torch.int64, device=self.grid.device)
        for first, last in steps((0, self.grid.queries), ROWS):
            rows = self.range((first, last))
            for part, full in self.visible(head, rows, (0, self.grid.keys)):
                found[rows] += part[1] - part[0] if full else self.allowed(head, rows, part).sum(-1)
        return found

    def survey(
        self,
        head: int,
        shape: tuple[int, int],
        rows: Span,
        keys: Span,
        job: Job,
        *,
        most: int | None = None,
        links: int = 64,
        apart: int = 0,
    ) -> Survey:
        """One walk over a region: its map, its curves and its strongest links between tokens at least `apart` places.

        With more than `most` queries in the region, so many are visited, evenly spread, and stand for the others.
        """
        sums = Sums(self, shape, rows, keys, links, apart)
        chosen = self.range(rows) if most is None or rows[1] - rows[0] <= most else spread(rows, most, self.grid.device)
        pieces = chosen.split(min(ROWS, max(16, HELD // max(1, self.grid.keys))))
        for n, some in enumerate(pieces):
            job.tell(n * len(pieces[0]), len(chosen), ROWS_WORDS)
            some = some.flip(0)  # numbers by distance are then a view of one line
            known = not bool(self.known_lse[head, some].isnan().any())
            tiles = [
                raised(part, full, self.scores(head, some, part, full), self.known_lse[head, some] if known else None)
                for part, full in self.visible(head, some, keys if known else (0, self.grid.keys))
            ]
            if not known:
                self.known_lse[head, some] = total_lse(tiles, self.known_lse.new_full((len(some),), -torch.inf))
            sums.add(some, self.known_lse[head, some], tiles)
        return sums.found(len(chosen))


class Raised(NamedTuple):
    """A tile's scores, and powers = exp(score − base); weights are powers · exp(base − lse)."""

    keys: Span
    full: bool
    score: Tensor
    powers: Tensor
    base: Tensor


def raised(keys: Span, full: bool, score: Tensor, lse: Tensor | None) -> Raised:
    """The tile with its powers, over the known log-sum-exp or else over the tile's own largest scores."""
    base = (score.amax(-1) if lse is None else lse).clamp(min=LEAST)
    return Raised(keys, full, score, (score - base[:, None]).exp_(), base)


def total_lse(tiles: list[Raised], none: Tensor) -> Tensor:
    """log Σ exp(score) over tiles of the same rows."""
    return torch.stack([none, *(tile.powers.sum(-1).log() + tile.base for tile in tiles)]).logsumexp(0)


class Sums:
    """What a survey adds up while tiles go by.

    A pair costs little more than its score: weights are never formed, and sums over keys are matrix products.
    """

    def __init__(
        self, regions: Regions, shape: tuple[int, int], rows: Span, keys: Span, links: int, apart: int
    ) -> None:
        self.regions, self.rows, self.keys, self.links, self.apart = regions, rows, keys, links, apart
        count, width = rows[1] - rows[0], keys[1] - keys[0]
        down, across = min(shape[0], count), min(shape[1], width)
        device = regions.known_lse.device
        self.new = lambda *size: torch.zeros(size, dtype=regions.call.exact, device=device)
        self.map, self.received = self.new(down, across), self.new(width)
        self.entropy, self.distance, self.visited = (self.new(down) for _ in range(3))
        self.open = torch.zeros(down, across, dtype=torch.bool, device=device)
        self.best, self.ends = self.new(0), torch.zeros(0, 2, dtype=torch.int64, device=device)
        self.bucket, self.column = buckets(count, down, device), buckets(width, across, device)

    def add(self, rows: Tensor, lse: Tensor, tiles: list[Raised]) -> None:
        """Add the tiles of some rows; what is outside the region is left out."""
        at = self.bucket[rows - self.rows[0]]
        self.visited.index_add_(0, at, self.visited.new_ones(len(rows)))
        live = lse.masked_fill(lse == -torch.inf, torch.inf)
        for tile in tiles:
            first, a, b = tile.keys[0], max(tile.keys[0], self.keys[0]), min(tile.keys[1], self.keys[1])
            if a < b:
                here = slice(a - first, b - first)
                cut = Raised((a, b), tile.full, tile.score[:, here], tile.powers[:, here], tile.base)
                self.add_tile(rows, at, cut, (tile.base - live).exp(), lse)

    def add_tile(self, rows: Tensor, at: Tensor, tile: Raised, factor: Tensor, lse: Tensor) -> None:
        places, j = rows + self.regions.grid.offset, self.regions.range(tile.keys)
        columns = self.column[j - self.keys[0]]
        first, last = int(columns[0]), int(columns[-1]) + 1
        members = torch.nn.functional.one_hot(columns - first, last - first)
        right = torch.cat([members, j[:, None]], dim=1).to(tile.powers.dtype)
        sums = tile.powers @ right * factor[:, None]  # weight on each column, and Σ weight · j
        pooled, mass, far = sums[:, :-1], sums[:, :-1].sum(-1), places * sums[:, :-1].sum(-1) - sums[:, -1]
        if int(places.max()) >= tile.keys[0] and int(places.min()) < tile.keys[1]:  # the diagonal goes through
            apart = (places[:, None] - j).abs()
            far = (tile.powers * apart).sum(-1) * factor
            near = apart < self.apart
        else:
            far, near = far.abs(), None
        self.map[:, first:last].index_add_(0, at, pooled)
        self.distance.index_add_(0, at, far)
        self.entropy.index_add_(0, at, mass * lse.clamp(min=LEAST) - row_dots(tile) * factor)
        self.received[tile.keys[0] - self.keys[0] : tile.keys[1] - self.keys[0]] += factor @ tile.powers
        self.note_open(at, columns, tile)
        if self.links:
            self.add_links(rows, tile, factor, near)

    def note_open(self, at: Tensor, columns: Tensor, tile: Raised) -> None:
        """Mark the cells in which some pair is allowed."""
        if tile.full:
            self.open[at[:, None], columns.unique()] = True
            return
        i, j = (tile.score > -torch.inf).nonzero(as_tuple=True)
        self.open[at[i], columns[j]] = True

    def add_links(self, rows: Tensor, tile: Raised, factor: Tensor, near: Tensor | None) -> None:
        """Keep the largest of those known and of a tile's."""
        full = len(self.best) == self.links
        least = self.best[-1] if full else self.best.new_zeros(())
        if float((tile.powers.amax(-1) * factor).max()) <= float(least):
            return
        weight = tile.powers * factor[:, None]
        weight = weight if near is None else weight.masked_fill_(near, 0.0)
        values, places = weight.flatten().topk(min(self.links, weight.numel()))
        values, places = values[values > least], places[values > least]
        pairs = torch.stack([rows[places // weight.shape[1]], places % weight.shape[1] + tile.keys[0]], dim=1)
        both, where = torch.cat([self.best, values]), torch.cat([self.ends, pairs])
        order = both.argsort(descending=True, stable=True)[: self.links]
        self.best, self.ends = both[order], where[order]

    def found(self, visited: int) -> Survey:
        each = self.visited.clamp(min=1)
        curves = (self.entropy / each).clamp(min=0), self.distance / each
        return Survey(self.map / each[:, None], *curves, self.received, self.ends, self.best, ~self.open, visited)


def row_dots(tile: Raised) -> Tensor:
    """Σ powers · score of each row; a forbidden pair adds nothing."""
    score = tile.score if tile.full else tile.score.clamp(min=LEAST)
    return (tile.powers[:, None] @ score[:, :, None]).flatten()


def weigh(score: Tensor, lse: Tensor) -> Tensor:
    """exp(score − lse); zeros where a query sees nothing."""
    return (score - lse.masked_fill(lse == -torch.inf, torch.inf)[:, None]).exp_()


def by_distance(table: Tensor, zero: int, places: Tensor, keys: Span) -> Tensor:
    """table[clamp(i − j + zero)] for places i and keys j, `[places, keys]`; a view where places fall one by one."""
    if len(places) > 1 and bool((places.diff() == 1).all()):
        return by_distance(table, zero, places.flip(0), keys).flip(0)
    width = keys[1] - keys[0]
    if bool((places.diff() == -1).all()):
        high = int(places[0]) - keys[0]
        distances = torch.arange(high, high - len(places) - width + 1, -1, device=table.device)
        return table[(distances + zero).clamp(0, len(table) - 1)].unfold(0, width, 1)
    distance = places[:, None] - torch.arange(*keys, device=table.device)
    return table[(distance + zero).clamp(0, len(table) - 1)]


def steps(span: Span, size: int) -> list[Span]:
    """The span in pieces that end at multiples of `size`.

    >>> steps((3, 11), 4)
    [(3, 4), (4, 8), (8, 11)]
    """
    edges = [span[0], *range((span[0] // size + 1) * size, span[1], size), span[1]]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def spread(rows: Span, most: int, device: torch.device | str) -> Tensor:
    """`most` row numbers, evenly spread over the span.

    >>> spread((10, 20), 4, "cpu").tolist()
    [10, 12, 15, 17]
    """
    return rows[0] + torch.arange(most, device=device) * (rows[1] - rows[0]) // most
