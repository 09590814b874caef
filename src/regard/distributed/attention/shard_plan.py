"""What one rank does for a mask: the keys that arrive in each stage, and the local attentions that it computes.

It depends on the layout and the mask alone and is cached with the mask. A piece is one local attention: all rows that
visit a stage's keys, or, where distances must be consecutive, one run of rows and one run of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ...attention.call import LoweredCall
from ...attention.execution import ExecutionPlan, Storage, mask_cache
from ...attention.parts.edges import Edges, sorted_edges
from ...attention.parts.mask import ALL, Mask, PairGrid, Tiling
from ...attention.parts.masks import Everything
from ..assignment import Runs, merge_tiles
from ..layout import Layout
from ..traffic import Traffic
from .selection import MaskSelection

Run = tuple[int, int]
Slices = tuple[Run, ...]
"""Parts of a tensor along its tokens, as (first, count)."""


class LocalEdges(NamedTuple):
    """The edges of a piece by local numbers, `[2, edges]`, sorted, and which of all edges they are."""

    edge_index: Tensor
    order: Tensor


@dataclass(frozen=True, eq=False)
class Piece:
    """A local attention: queries and keys by their numbers in the whole, and where they lie in the local tensors."""

    rows: Runs
    row_slices: Slices
    keys: Runs
    key_slices: Slices
    row_numbers: Tensor
    key_numbers: Tensor
    hidden: Tensor | None  # rows that are computed elsewhere
    tile: int
    row_tile: int
    full: bool  # every pair is allowed
    edges: LocalEdges | None  # of a graph
    plans: Storage = field(default_factory=Storage)  # by kind of call

    def mask(self, whole: Mask, tokens: tuple[int, int]) -> Mask:
        """The mask of the piece; made anew, since what is cached with a mask must not refer to it."""
        if self.edges is not None:
            return Edges(self.edges.edge_index)
        if self.full:
            return Everything()
        return MaskSelection(whole, tokens, self.row_numbers, self.key_numbers, self.tile, self.row_tile, self.hidden)

    def plan(self, kind: Hashable) -> ExecutionPlan:
        """What kernels work out for a kind of call; nothing is cached without one."""
        return ExecutionPlan() if kind is None else self.plans.get(kind, ExecutionPlan)

    def edge_fields(self, p: LoweredCall) -> dict[str, Tensor]:
        """The features of the piece's edges, of those of all edges, by name."""
        fields = {name: getattr(p, name) for name in ("edge_bias", "edge_keys", "edge_values")}
        order = None if self.edges is None else self.edges.order
        return {name: x.index_select(2, order) for name, x in fields.items() if x is not None and order is not None}


@dataclass(frozen=True, eq=False)
class Stage:
    """Keys that arrive together: `sources` are (rank, keys) in the order of the buffer, `sends` (rank, own keys)."""

    sources: tuple[tuple[int, int], ...]
    sends: tuple[tuple[int, Slices], ...]
    pieces: tuple[Piece, ...]

    @property
    def count(self) -> int:
        return sum(count for _, count in self.sources)


@dataclass(frozen=True, eq=False)
class HeavyRows:
    """The heavy rows of all ranks in the order of ranks, `counts` of each; `own` are this rank's among its queries."""

    counts: tuple[int, ...]
    own: Tensor
    pieces: tuple[Piece, ...]

    def first(self, rank: int) -> int:
        """Where a rank's rows begin."""
        return sum(self.counts[:rank])


@dataclass(frozen=True, eq=False)
class ShardPlan:
    """The stages of a rank, its own keys first, and the heavy rows of all ranks, if there are any."""

    stages: tuple[Stage, ...]
    heavy: HeavyRows | None


def find_plan(
    layout: Layout, mask: Mask, device: torch.device, by_runs: bool = False, along_edges: bool = False
) -> ShardPlan:
    """The plan of this rank for a mask, cached with it.

    `by_runs` cuts pieces into single runs; `along_edges` gives each its edges of a mask that is a graph.
    """
    key = (ShardPlan, layout.number, str(device), by_runs, along_edges)
    return mask_cache(mask).get(key, lambda: PlanMaker(layout, mask, device, by_runs, along_edges).make())


class PlanMaker:
    """Makes the plan of this rank for one mask."""

    def __init__(self, layout: Layout, mask: Mask, device: torch.device, by_runs: bool, along_edges: bool) -> None:
        self.layout, self.mask, self.device, self.by_runs = layout, mask, device, by_runs
        self.along_edges = along_edges
        self.traffic: Traffic = layout.traffic(mask)
        self.own_rows, self.own_keys = with_starts(layout.rows()), with_starts(layout.keys())

    def make(self) -> ShardPlan:
        rank = self.layout.rank
        own = Stage(((rank, count_tokens(self.layout.keys())),), (), self.light_pieces(self.own_keys))
        return ShardPlan((own, *(self.make_stage(steps) for steps in self.traffic.stages)), self.heavy_rows())

    def make_stage(self, steps: tuple[int, ...]) -> Stage:
        """The keys of the ranks so many steps before this one; the end of the sequence, if it is there, comes last."""
        rank, ranks, traffic = self.layout.rank, self.layout.ranks, self.traffic
        last = int(traffic.assignment.key_owner[-1])
        sources = sorted(((rank - step) % ranks for step in steps), key=lambda source: source == last)
        arriving = {source: traffic.keys_between(source, rank) for source in sources}
        keys = with_starts([run for source in sources for run in arriving[source]])
        wanted = [((rank + step) % ranks, traffic.keys_between(rank, (rank + step) % ranks)) for step in steps]
        return Stage(
            tuple((source, count_tokens(runs)) for source, runs in arriving.items()),
            tuple((target, locate(self.own_keys, runs)) for target, runs in wanted),
            self.light_pieces(keys),
        )

    def light_pieces(self, keys: Sequence[tuple[Run, int]]) -> tuple[Piece, ...]:
        """The pieces of this rank's rows over some keys, which lie one run after the other."""
        assignment, light = self.traffic.assignment, self.traffic.light
        own = assignment.query_owner == self.layout.rank
        tile, tokens = assignment.tile, assignment.tokens[0]
        groups = [[one] for one in keys] if self.by_runs else [list(keys)] if keys else []
        pieces = []
        for group in groups:
            columns = torch.zeros(len(assignment.key_owner), dtype=torch.bool)
            for (first, last), _ in group:
                columns[first // tile : -(-last // tile)] = True
            visiting = merge_tiles((own & light.rows_visiting(columns)).nonzero()[:, 0], tile, tokens)
            rows = [(run, start) for run in visiting for start in [find_start(self.own_rows, run)]]
            for some in [[one] for one in rows] if self.by_runs else [rows] if rows else []:
                pieces.append(self.make_piece(some, group, tile))
        return tuple(pieces)

    def heavy_rows(self) -> HeavyRows | None:
        """The heavy rows of all ranks, over this rank's keys; a row of tiles need not be whole here."""
        traffic, rank = self.traffic, self.layout.rank
        if not len(traffic.heavy):
            return None
        order = torch.argsort(traffic.heavy_owner, stable=True)
        numbers = traffic.heavy[order]
        own = torch.searchsorted(self.layout.places(), numbers[traffic.heavy_owner[order] == rank])
        breaks = (numbers.diff() != 1).nonzero()[:, 0] + 1
        starts, ends = [0, *breaks.tolist()], [*breaks.tolist(), len(numbers)]
        rows = [((int(numbers[a]), int(numbers[b - 1]) + 1), a) for a, b in zip(starts, ends, strict=True)]
        if self.by_runs:
            pieces = [self.make_piece([row], [key], 1, heavy=True) for row in rows for key in self.own_keys]
        else:
            pieces = [self.make_piece(rows, self.own_keys, 1, heavy=True)]
        return HeavyRows(tuple(traffic.heavy_counts), own.to(self.device), tuple(pieces))

    def make_piece(
        self, rows: Sequence[tuple[Run, int]], keys: Sequence[tuple[Run, int]], row_tile: int, heavy: bool = False
    ) -> Piece:
        numbers, columns = (torch.cat([torch.arange(*run) for run, _ in runs]).to(self.device) for runs in (rows, keys))
        hidden = None
        if not heavy and len(self.traffic.heavy):
            hidden = torch.isin(numbers, self.traffic.heavy.to(self.device))
            hidden = hidden if bool(hidden.any()) else None
        tile, tokens = self.layout.tile, self.layout.tokens
        edges = self.local_edges(numbers, columns, hidden) if self.along_edges else None
        selection = MaskSelection(self.mask, tokens, numbers, columns, tile, row_tile, hidden)
        grid = PairGrid(len(numbers), len(columns), device=self.device)
        full = hidden is edges is None and bool((selection.tiles(Tiling(grid, row_tile, tile)) == ALL).all())
        return Piece(
            tuple(run for run, _ in rows),
            merge_slices((start, run[1] - run[0]) for run, start in rows),
            tuple(run for run, _ in keys),
            merge_slices((start, run[1] - run[0]) for run, start in keys),
            numbers,
            columns,
            hidden,
            tile,
            row_tile,
            full,
            edges,
        )

    def local_edges(self, rows: Tensor, columns: Tensor, hidden: Tensor | None) -> LocalEdges:
        """The edges between some rows and columns."""
        every = sorted_edges(self.mask, PairGrid(*self.layout.tokens, device=self.device))
        place = []
        for numbers, count in zip((rows, columns), self.layout.tokens, strict=True):
            place.append(
                torch.full((count,), -1, device=self.device).index_copy_(
                    0, numbers, torch.arange(len(numbers), device=self.device)
                )
            )
        if hidden is not None:
            place[0][rows[hidden]] = -1
        row, column = place[0][every.rows], place[1][every.columns]
        inside = ((row >= 0) & (column >= 0)).nonzero()[:, 0]
        order = inside[torch.argsort(row[inside] * len(columns) + column[inside])]
        return LocalEdges(torch.stack([column[order], row[order]]), order)


def count_tokens(runs: Runs) -> int:
    return sum(last - first for first, last in runs)


def with_starts(runs: Sequence[Run]) -> list[tuple[Run, int]]:
    """Each run with the index of its first token, when they lie one after the other."""
    starts, at = [], 0
    for first, last in runs:
        starts.append(((first, last), at))
        at += last - first
    return starts


def find_start(owned: Sequence[tuple[Run, int]], run: Run) -> int:
    """The index of a run's first token among those that a rank owns; the run is a part of one of its runs."""
    return next(start + run[0] - first for (first, last), start in owned if first <= run[0] < last)


def locate(owned: Sequence[tuple[Run, int]], runs: Runs) -> Slices:
    """Where runs lie among the tokens that a rank owns."""
    return merge_slices((find_start(owned, run), run[1] - run[0]) for run in runs)


def merge_slices(slices) -> Slices:
    """Slices of which neighbours are joined."""
    merged: list[Run] = []
    for first, count in slices:
        if merged and sum(merged[-1]) == first:
            merged[-1] = (merged[-1][0], merged[-1][1] + count)
        else:
            merged.append((first, count))
    return tuple(merged)


def take(x: Tensor, slices: Slices) -> Tensor:
    """The tokens of some slices of x `[batch, heads, tokens, ...]`, one after the other; a view where it can be."""
    if len(slices) == 1:
        return x.narrow(2, *slices[0])
    return torch.cat([x.narrow(2, *part) for part in slices], dim=2) if slices else x[:, :, :0]


def apply_slices(slices: Slices, x: Tensor, function: Callable[[Tensor, Run], object]) -> None:
    """Call a function with each part of x, whose tokens are those of the slices, and with its slice."""
    start = 0
    for part in slices:
        function(x.narrow(2, start, part[1]), part)
        start += part[1]
