"""Parts by distance and by pair along the edges of a graph.

Numbers by pair, and by distance between explicit places, are numbers of the edges: they are looked up for each edge,
and their gradients are summed back. Vectors by distance are multiplied with the query or the key of each edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..call import LoweredCall
from ..parts.edges import SortedEdges
from ..parts.positions import DistanceBias

if TYPE_CHECKING:
    from .edges import EdgeScores

FEATURES = 1 << 20  # features of edges gathered at once


def fold_biases(p: LoweredCall, csr: SortedEdges) -> LoweredCall:
    """The call with its bias by pair, and its bias by distance at explicit places, as biases of its edges."""
    terms = edge_terms(p, csr)
    if not terms:
        return p
    exact = torch.promote_types(p.v.dtype, torch.float32)
    total = terms[0].to(exact)
    for term in terms[1:]:
        total = total + term.to(exact)
    placed = p.places is not None
    needs_grad = list(p.needs_grad)
    needs_grad[10] = needs_grad[10] or needs_grad[7] or (placed and needs_grad[4])
    rel_bias = None if placed else p.rel_bias
    return replace(p, edge_bias=total, pair_bias=None, rel_bias=rel_bias, needs_grad=tuple(needs_grad))


def edge_terms(p: LoweredCall, csr: SortedEdges) -> list[Tensor]:
    """What is added to the score of each edge, `[batch or 1, heads or 1, edges, 1]` each; none without such a part."""
    terms = []
    if p.pair_bias is not None:
        terms.append(p.pair_bias[..., *pair_index(csr, p.pair_bias)][..., None])
    if p.rel_bias is not None and p.places is not None:
        terms.append(placed_bias(p, csr, p.rel_bias))
    return terms + ([p.edge_bias] if terms and p.edge_bias is not None else [])


def placed_bias(p: LoweredCall, csr: SortedEdges, bias: DistanceBias) -> Tensor:
    """The bias by distance at explicit places, `[batch or 1, heads, edges, 1]`."""
    if bias.slopes is not None:
        distance = edge_distances(p, csr).abs().to(bias.slopes.dtype)  # [edges, batch or 1]
        return (-bias.slopes[:, None, None] * distance).permute(2, 0, 1)[..., None]
    return bias.table[:, entries(p, csr, bias.zero, bias.table)].permute(2, 0, 1)[..., None]


def unfold_gradients(p: LoweredCall, csr: SortedEdges, grads: list[Tensor | None]) -> list[Tensor | None]:
    """The gradients of a call from those of `fold_biases`; that of the edges' bias is [9]."""
    d = grads[9]
    if d is None or not edge_terms(p, csr):
        return grads
    grads = list(grads)
    if p.rel_bias is not None and p.places is not None and p.needs_grad[4]:
        index = entries(p, csr, p.rel_bias.zero, p.rel_bias.table)  # [edges, batch or 1]
        by_head = d[..., 0].permute(2, 0, 1)  # [edges, batch or 1, heads]
        grads[4] = sum_by_entry(index, by_head, p.rel_bias.table.shape[1]).mT
    if p.pair_bias is not None and p.needs_grad[7]:
        grads[7] = pair_gradient(csr, d[..., 0], p.pair_bias)
    grads[9] = None if p.edge_bias is None else d.sum_to_size(p.edge_bias.shape)
    return grads


def pair_index(csr: SortedEdges, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The row and the column of a bias by pair for each edge; 0 where it has one for all."""
    rows = torch.zeros_like(csr.rows) if bias.shape[2] == 1 else csr.rows
    return rows, torch.zeros_like(csr.columns) if bias.shape[3] == 1 else csr.columns


def pair_gradient(csr: SortedEdges, d: Tensor, bias: Tensor) -> Tensor:
    """Gradients of edges `[batch or 1, heads or 1, edges]` as that of a bias by pair; zero where there is no edge."""
    _, _, height, width = bias.shape
    rows, columns = pair_index(csr, bias)
    d = d.sum_to_size(*bias.shape[:2], d.shape[2])
    if height > 1 and width > 1:  # an edge is listed once
        total = d.new_zeros(*bias.shape[:2], height, width)
        total[..., rows, columns] = d
        return total
    return sum_by_index(rows * width + columns, d.flatten(0, 1).mT, height * width).mT.reshape(bias.shape)


def token_numbers(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """i and j of every row and key, those of the whole where the call is a part of it."""
    if p.numbers is not None:
        return p.numbers
    i, j = p.grid.indices()
    return i[:, 0], j[0]


def edge_distances(p: LoweredCall, csr: SortedEdges) -> Tensor:
    """i − j of each edge, `[edges, batch or 1]`."""
    if p.places is None:
        i, j = token_numbers(p)
        return (i[csr.rows] - j[csr.columns])[:, None]
    queries, keys = p.places
    return (queries[:, csr.rows] - keys[:, csr.columns]).mT


def entries(p: LoweredCall, csr: SortedEdges, zero: int, table: Tensor) -> Tensor:
    """The entry of a table by distance for each edge, `[edges, batch or 1]`."""
    return (edge_distances(p, csr) + zero).clamp(0, table.shape[1] - 1)


class EdgeVectors(NamedTuple):
    """Vectors by distance, and the nodes that they are multiplied with: queries, or keys."""

    nodes: Tensor  # [tokens, batch · heads, d]
    ends: Tensor  # [edges]: the node of each edge
    table: Tensor  # [n, heads, d]
    entry: Tensor  # [edges, batch or 1]

    def gather(self, e: slice | Tensor, columns: int) -> Tensor:
        """The vector of each of some edges, `[edges, batch · heads, d]`."""
        vectors = self.table[self.entry[e]]  # [edges, batch or 1, heads, d]
        return vectors.expand(-1, columns // vectors.shape[2], -1, -1).flatten(1, 2)


def relative_vectors(g: EdgeScores) -> EdgeVectors | None:
    """The vectors by distance that queries are multiplied with."""
    p, rel = g.p, g.p.rel_vectors
    if rel is None:
        return None
    table = rel.table.to(g.exact).transpose(0, 1)
    return EdgeVectors(g.node_features(rel.queries), g.csr.rows, table, entries(p, g.csr, rel.zero, rel.table))


def key_vectors(g: EdgeScores) -> EdgeVectors | None:
    """Those that keys are multiplied with."""
    p, rel = g.p, g.p.key_vectors
    if rel is None:
        return None
    table = rel.table.to(g.exact).transpose(0, 1)
    return EdgeVectors(g.node_features(p.k), g.csr.columns, table, entries(p, g.csr, rel.zero, rel.table))


def add_scores(g: EdgeScores, s: Tensor, x: EdgeVectors | None) -> None:
    """Add scale · node·vector of each edge to its score."""
    if x is None:
        return
    for e in edge_steps(g, x.nodes.shape[-1]):
        s[e] += g.p.scale * (take(x.nodes, x.ends[e]) * x.gather(e, g.columns)).sum(-1)


def vector_gradients(g: EdgeScores, d: Tensor, x: EdgeVectors, by_key: bool) -> tuple[Tensor, Tensor]:
    """Gradients of the nodes, `[batch · heads, tokens, d]`, and of the table, `[heads, n, d]`."""
    d_nodes, d_table = torch.zeros_like(x.nodes), torch.zeros_like(x.table)
    starts = g.csr.key_starts if by_key else g.csr.starts
    for e in edge_steps(g, x.nodes.shape[-1]):
        edge = g.csr.by_key[e] if by_key else e
        ds = g.p.scale * d[edge][..., None]
        add_segments(d_nodes, ds * x.gather(edge, g.columns), starts, e)
        part = (ds * take(x.nodes, x.ends[edge])).unflatten(1, (g.batch, g.heads))  # [edges, batch, heads, d]
        d_table += sum_by_entry(x.entry[edge], part, len(d_table))
    return d_nodes.transpose(0, 1), d_table.transpose(0, 1)


def edge_steps(g: EdgeScores, dim: int) -> Iterator[slice]:
    """The edges in steps that keep their gathered features small."""
    size = max(FEATURES // max(g.columns * dim, 1), 1)
    for first in range(0, g.edges, size):
        yield slice(first, min(first + size, g.edges))


def take(x: Tensor, index: Tensor) -> Tensor:
    """x[index] along the first axis; rows that lie together are copied whole."""
    return x.flatten(1).index_select(0, index).view(-1, *x.shape[1:]) if x.dim() > 2 else x.index_select(0, index)


def sum_by_entry(index: Tensor, x: Tensor, size: int) -> Tensor:
    """Sums of x `[edges, batch, ...]` that share an entry `[edges, batch or 1]`, `[size, ...]`."""
    if index.shape[1] == 1:
        return sum_by_index(index[:, 0], x.sum(1), size)
    return sum_by_index(index.flatten(), x.flatten(0, 1), size)


def sum_by_index(index: Tensor, x: Tensor, size: int) -> Tensor:
    """Sums of the rows of x that share an index, in the order of the rows: the same bits every time."""
    index, order = index.sort(stable=True)
    offsets = torch.searchsorted(index, torch.arange(size + 1, device=index.device))
    return torch.segment_reduce(take(x, order), "sum", offsets=offsets, axis=0, unsafe=True)


def add_segments(total: Tensor, x: Tensor, starts: Tensor, e: slice) -> None:
    """Add x, for edges `e`, to the nodes whose segments they are in; a segment may continue in the next step."""
    first = int(torch.searchsorted(starts, e.start, right=True)) - 1
    last = int(torch.searchsorted(starts, e.stop, right=False))
    offsets = (starts[first : last + 1] - e.start).clamp(0, e.stop - e.start)
    total[first:last] += torch.segment_reduce(x, "sum", offsets=offsets, axis=0, unsafe=True)
