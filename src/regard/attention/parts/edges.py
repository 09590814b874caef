"""Graphs as masks: a query attends to the sources of its incoming edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import BadInput
from ..execution import mask_cache
from .mask import Mask, PairGrid, Tiling
from .masks import tile_sizes, tile_states
from .part import check_tensor


class SortedEdges(NamedTuple):
    """The distinct edges of a graph, sorted by query and by key."""

    starts: Tensor  # [queries + 1]: where each query's edges begin, edges sorted by (query, key)
    rows: Tensor  # [edges]: the query of each
    columns: Tensor  # [edges]: the key of each
    key_starts: Tensor  # [keys + 1]: where each key's edges begin, edges sorted by (key, query)
    by_key: Tensor  # [edges]: the edge's number in the first order, for each in the second
    rows_by_key: Tensor  # [edges]: the query of each in the second


@dataclass(frozen=True, eq=False, repr=False)
class Edges(Mask):
    """A graph: `edge_index [2, edges]`, row 0 the source (key), row 1 the target (query), by row numbers.

    An edge listed twice is one edge; a node without incoming edges gets zeros; self-loops are edges like others and
    none are added; sources and targets may be different sets (queries ≠ keys).

    >>> Edges(torch.tensor([[0, 1], [1, 1]])).dense(2, 2).int().tolist()
    [[0, 0], [1, 1]]
    """

    edge_index: Tensor
    formula = "(j → row(i)) is an edge"

    def __post_init__(self) -> None:
        check_tensor(self.edge_index, "Edges' edge_index", (2,), "whole numbers [2, edges]", False)
        if self.edge_index.dtype not in (torch.int64, torch.int32):
            raise BadInput(f"Edges' edge_index is {self.edge_index.dtype}; it must be int64 or int32, [2, edges].")
        if self.edge_index.shape[0] != 2:
            raise BadInput(
                f"Edges' edge_index is {list(self.edge_index.shape)}; it must be [2, edges]: sources (keys), then "
                "targets (queries). Transpose a list of pairs."
            )

    def check(self, grid: PairGrid) -> None:
        if not torch.compiler.is_compiling():
            self.sort(grid.queries, grid.keys)

    def sort(self, queries: int, keys: int) -> SortedEdges:
        """The distinct edges, sorted once for all masks with these edges; raises when an index is out of range."""

        def make() -> SortedEdges:
            check_range(self.edge_index, queries, keys)
            with torch.inference_mode(False):  # later calls may need gradients
                return sort_both_ways(self.edge_index, queries, keys)

        return make() if torch.compiler.is_compiling() else mask_cache(self).get((SortedEdges, queries, keys), make)

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        size = int(self.edge_index.max()) + 1 if self.edge_index.numel() else 1
        inside = (i < size) & (j < size)
        return inside & self.permits(i.clamp(max=size - 1), j.clamp(max=size - 1), PairGrid(size, size))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        order = self.sort(grid.queries, grid.keys)
        edges = order.rows * grid.keys + order.columns
        if not edges.numel():
            return torch.zeros_like(i + j, dtype=torch.bool)
        pair = (i - grid.offset) * grid.keys + j
        return edges[torch.searchsorted(edges, pair).clamp(max=edges.numel() - 1)] == pair

    def tiles(self, tiling: Tiling) -> Tensor:
        order = self.sort(tiling.grid.queries, tiling.grid.keys)
        down, across = tiling.shape
        tile = order.rows // tiling.rows * across + order.columns // tiling.columns
        count = torch.bincount(tile, minlength=down * across).reshape(down, across)
        row_sizes, column_sizes = tile_sizes(tiling)
        return tile_states(count == row_sizes * column_sizes, count == 0)


def sorted_edges(mask: Mask, grid: PairGrid) -> SortedEdges:
    """The sorted edges of a mask that is a graph."""
    if not isinstance(mask, Edges):
        raise BadInput(f"The mask is {mask!r:.80}; it must be a graph, Edges(edge_index).")
    return mask.sort(grid.queries, grid.keys)


def sort_both_ways(edge_index: Tensor, queries: int, keys: int) -> SortedEdges:
    """The distinct edges, sorted by query and by key."""
    source, target = edge_index[0].long(), edge_index[1].long()
    codes = torch.unique(target * keys + source)
    rows, columns = codes // max(keys, 1), codes % max(keys, 1)
    by_key = torch.argsort(columns * queries + rows)
    starts = torch.searchsorted(rows, torch.arange(queries + 1, device=rows.device))
    key_starts = torch.searchsorted(columns[by_key], torch.arange(keys + 1, device=rows.device))
    return SortedEdges(starts, rows, columns, key_starts, by_key, rows[by_key])


def check_range(edge_index: Tensor, queries: int, keys: int) -> None:
    """Raise `BadInput` unless every source is a key and every target a query."""
    if not edge_index.numel():
        return
    for name, row, limit, nodes in (
        ("sources", edge_index[0], keys, "keys"),
        ("targets", edge_index[1], queries, "queries"),
    ):
        least, most = int(row.min()), int(row.max())
        if least < 0 or most >= limit:
            where = int(((row < 0) | (row >= limit)).nonzero()[0])
            raise BadInput(
                f"edge_index has {name} from {least} to {most} (the first bad one is edge {where}); there are {limit} "
                f"{nodes}, so they must be 0 … {limit - 1}. Row 0 holds sources (keys), row 1 targets (queries)."
            )
