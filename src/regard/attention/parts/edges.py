"""Graphs as masks: a query attends to the sources of its incoming edges, which may have features of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import BadInput
from ..execution import mask_cache
from .mask import Mask, PairGrid, Tiling
from .masks.tile_states import states_from, tile_sizes
from .part import Part, check_tensor, format_value


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

    @property
    def by_rows(self) -> bool:
        return True

    def check(self, grid: PairGrid) -> None:
        if not torch.compiler.is_compiling():
            self.sort(grid.queries, grid.keys)

    @property
    def checked_by_shape(self) -> bool:
        return False

    def sort(self, queries: int, keys: int) -> SortedEdges:
        """The distinct edges, sorted once for all masks with these edges; raises when an index is out of range."""

        def make() -> SortedEdges:
            check_range(self.edge_index, queries, keys)
            with torch.inference_mode(False):  # later calls may need gradients
                return sort_both_ways(self.edge_index, queries, keys)

        return make() if torch.compiler.is_compiling() else mask_cache(self).get((SortedEdges, queries, keys), make)

    def order(self, keys: int) -> Tensor | None:
        """The numbers of the listed edges, sorted by query and then by key; None where they are listed so."""

        def make() -> Tensor | None:
            codes = self.edge_index[1].long() * keys + self.edge_index[0].long()
            if torch.compiler.is_compiling():
                return codes.argsort()
            with torch.inference_mode(False):
                return None if bool((codes.diff() > 0).all()) else codes.argsort()

        return make() if torch.compiler.is_compiling() else mask_cache(self).get(("order", keys), make)

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
        down, across = replace(tiling, row_tiles=None, column_tiles=None).shape
        tile = order.rows // tiling.rows * across + order.columns // tiling.columns
        count = torch.bincount(tile, minlength=down * across).reshape(down, across)
        count = tiling.select_columns(tiling.select_rows(count.mT).mT)
        row_sizes, column_sizes = tile_sizes(tiling)
        return states_from(count == row_sizes * column_sizes, count == 0)


@dataclass(frozen=True, eq=False, repr=False)
class EdgeFeatures(Part):
    """What every edge of a graph adds to its score, to its key and to its value; it goes with `mask=Edges(...)`.

        score(i, j) = similarity(q_i, k_j + keys_ij) + position(i, j, q_i) + bias_ij
        output(i)   = Σ_j weight(i, j) · (v_j + values_ij)

    `bias` broadcasts to `[batch, heads, edges]`, `keys` to `[batch, heads, edges, head_dim]`, `values` to `[batch,
    heads, edges, value dim]`, in the order of the edges in `edge_index`, of which none may be listed twice. Each has a
    gradient of its own shape; work and memory are proportional to the edges. `keys` go with `Dot`, `Bilinear` and
    `Additive` (GATv2's leaky_relu(q + k + e); GAT's is the same with head_dim 1) and without `Rotary`.

    >>> import torch, regard as rg
    >>> x, graph = torch.zeros(1, 1, 2, 2), rg.Edges(torch.tensor([[0, 1], [1, 1]]))
    >>> rg.look(x, x, mask=graph, edges=rg.EdgeFeatures(torch.tensor([1.0, 3.0]).log()), weights=True).weights[0, 0, 1]
    tensor([0.2500, 0.7500])
    """

    bias: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None
    formula = "similarity(q, k + keys[edge]) + bias[edge];  v + values[edge]"

    def __post_init__(self) -> None:
        if not self.tensors():
            raise BadInput("EdgeFeatures has neither bias nor keys nor values; give one of them.")
        if self.bias is not None:
            check_tensor(self.bias, "EdgeFeatures' bias", (1, 2, 3), "that broadcasts to [batch, heads, edges]")
        for name in ("keys", "values"):
            if getattr(self, name) is not None:
                shape = "that broadcasts to [batch, heads, edges, dim]"
                check_tensor(getattr(self, name), f"EdgeFeatures' {name}", (2, 3, 4), shape)

    def tensors(self) -> dict[str, Tensor]:
        """The part's tensors, by name."""
        return {name: x for name in ("bias", "keys", "values") if (x := getattr(self, name)) is not None}

    def check(self, mask: Mask, grid: PairGrid, head_dim: int, value_dim: int) -> None:
        """Raise `BadInput` unless the mask is a graph whose edges these are."""
        if not isinstance(mask, Edges):
            raise BadInput(f"EdgeFeatures go with the mask Edges(edge_index) alone; the mask is {mask!r:.80}.")
        edges = mask.edge_index.shape[1]
        front = (grid.batch, grid.heads, edges)
        wanted = {"bias": front, "keys": (*front, head_dim), "values": (*front, value_dim)}
        for name, x in self.tensors().items():
            shape, full = x.shape, wanted[name]
            sizes = (1,) * (len(full) - len(shape)) + tuple(shape)
            if sizes[2:] != full[2:] or any(size not in (1, most) for size, most in zip(sizes[:2], full, strict=False)):
                words = "batch, heads, edges" + ("" if name == "bias" else ", dim")
                raise BadInput(
                    f"EdgeFeatures' {name} {'is' if name == 'bias' else 'are'} {list(shape)}; it must broadcast to "
                    f"{list(full)} ({words})."
                )
        if not torch.compiler.is_compiling() and mask.sort(grid.queries, grid.keys).rows.numel() != edges:
            raise BadInput(
                "An edge with EdgeFeatures is listed twice. Add the features of such edges up, or let every edge be a "
                "key of its own, as regard.nn.GraphAttention does."
            )

    def of_scores(self) -> EdgeFeatures | None:
        """Bias and keys alone, which decide the weights; None without them."""
        return None if self.bias is self.keys is None else EdgeFeatures(self.bias, self.keys)

    def of_values(self) -> EdgeFeatures | None:
        """The values alone; None without them."""
        return None if self.values is None else EdgeFeatures(values=self.values)

    def four_dims(self, name: str) -> Tensor:
        """The field of that name as `[batch or 1, heads or 1, edges, dim]`, a view; the bias has dim 1."""
        x = self.tensors()[name]
        x = x[..., None] if name == "bias" else x
        return x[(None,) * (4 - x.dim())]

    def sorted_fields(self, mask: Edges, keys: int) -> list[Tensor | None]:
        """Bias, keys and values with four dimensions, in the order of `SortedEdges`."""
        order, given = mask.order(keys), self.tensors()
        fields = [self.four_dims(name) if name in given else None for name in ("bias", "keys", "values")]
        return [x if x is None or order is None else x.index_select(2, order) for x in fields]

    def dense(self, name: str, mask: Mask, grid: PairGrid, dtype: torch.dtype) -> Tensor:
        """The field of that name for every pair, `[batch or 1, heads or 1, queries, keys, dim]`; else zero."""
        x, (source, target) = self.four_dims(name).to(dtype), edges_of(mask).edge_index.long()
        zeros = x.new_zeros(*x.shape[:2], grid.queries * grid.keys, x.shape[3])
        return zeros.index_add(2, target * grid.keys + source, x).unflatten(2, (grid.queries, grid.keys))

    def __repr__(self) -> str:
        return f"EdgeFeatures({', '.join(f'{name}={format_value(x)}' for name, x in self.tensors().items())})"


def sorted_edges(mask: Mask, grid: PairGrid) -> SortedEdges:
    """The sorted edges of a mask that is a graph."""
    return edges_of(mask).sort(grid.queries, grid.keys)


def edges_of(mask: Mask) -> Edges:
    """The mask as a graph, or `BadInput`."""
    if not isinstance(mask, Edges):
        raise BadInput(f"The mask is {mask!r:.80}; it must be a graph, Edges(edge_index).")
    return mask


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
