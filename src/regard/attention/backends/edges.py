"""Attention along the edges of a graph: work and memory proportional to the edges.

Edges are sorted by query, so a softmax over a query's keys is a reduction over a run of edges. Scores of a dot product
are a sampled matrix product, mixing is a sparse one, and their gradients are the same two with the roles exchanged:
only a number for each head and edge is ever stored. Additive scores, and vectors by distance, need the features of
both ends of an edge at once; these are gathered for a limited number of edges at a time.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from ..call import Call, LoweredCall, lower, without_autocast
from ..dropout import GOLDEN, keep_scale, mix_int32, row_keys, threshold, to_int32
from ..parts.edges import Edges, SortedEdges
from .custom_op import operator

name = "edges"

DENSE = 0.25
FEATURES = 1 << 20  # features of edges gathered at once


def unsupported(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    return None if isinstance(call.mask, Edges) else "the mask is not a graph: Edges(edge_index) alone"


def slower(call: Call) -> str | None:
    """Why another backend would do it faster; None when this one is the best."""
    if torch.compiler.is_compiling():
        return None
    edges = call.mask.sort(call.grid.queries, call.grid.keys).rows.numel()  # type: ignore[attr-defined]
    dense = edges > DENSE * call.grid.queries * call.grid.keys
    return f"the graph has more than {DENSE:.0%} of all pairs, where tiles are faster" if dense else None


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with without_autocast(call.q.device):
        return solve(lower(call))[0]


@functools.cache
def quiet() -> None:
    """Let torch say once, to nobody, that its sparse tensors are young."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64), torch.tensor([]), (1, 1))


class Graph:
    """A problem along edges: features a node in exact types, one head of keys for each of the query's."""

    def __init__(self, p: LoweredCall):
        quiet()
        self.p = p
        self.order: SortedEdges = p.mask.sort(p.grid.queries, p.grid.keys)  # type: ignore[attr-defined]
        self.exact = torch.promote_types(p.v.dtype, torch.float32)
        self.batch, self.heads = p.q.shape[:2]
        self.columns = self.batch * self.heads
        self.group = self.heads // p.k.shape[1]
        self.edges = self.order.rows.numel()
        self.starts, self.keys = self.order.starts.int(), self.order.columns.int()
        self.key_starts, self.rows_by_key = self.order.key_starts.int(), self.order.rows_by_key.int()

    def flat(self, x: Tensor) -> Tensor:
        """x `[batch, heads or kv_heads, tokens, d]` as `[batch · heads, tokens, d]`."""
        x = x.to(self.exact)
        return (x if x.shape[1] == self.heads else x.repeat_interleave(self.group, 1)).flatten(0, 1)

    def per_node(self, x: Tensor) -> Tensor:
        """x as `[tokens, batch · heads, d]`, so that one node's features lie together."""
        return self.flat(x).transpose(0, 1).contiguous()

    def per_head(self, x: Tensor, like: Tensor) -> Tensor:
        """A sum `[batch · heads, tokens, d]` as the gradient of `like`, with heads that share keys added up."""
        x = x.unflatten(0, (self.batch, self.heads))
        return x if like.shape[1] == self.heads else x.unflatten(1, (-1, self.group)).sum(2)

    def mix(self, values: Tensor, x: Tensor) -> Tensor:
        """Σ over each query's edges of values `[edges]` · x `[keys, d]`."""
        size = (self.p.grid.queries, self.p.grid.keys)
        return torch.sparse_csr_tensor(self.starts, self.keys, values, size, check_invariants=False) @ x

    def mix_back(self, values: Tensor, x: Tensor) -> Tensor:
        """Σ over each key's edges of values `[edges]`, in the order of keys, · x `[queries, d]`."""
        size = (self.p.grid.keys, self.p.grid.queries)
        return torch.sparse_csr_tensor(self.key_starts, self.rows_by_key, values, size, check_invariants=False) @ x

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """a[query] · b[key] for each edge, `[edges, batch · heads]`; a and b are flat."""
        size = (self.p.grid.queries, self.p.grid.keys)
        pattern = torch.sparse_csr_tensor(self.starts, self.keys, a.new_zeros(self.edges), size, check_invariants=False)
        found = a.new_empty(self.edges, self.columns)
        for c in range(self.columns):
            found[:, c] = torch.sparse.sampled_addmm(pattern, a[c], b[c].mT, beta=0.0).values()
        return found

    def at_rows(self, x: Tensor) -> Tensor:
        """x `[queries, ...]` for each edge."""
        return take(x, self.order.rows)

    def by_key(self, x: Tensor) -> Tensor:
        """x `[edges, batch · heads]` in the order of keys, as `[batch · heads, edges]`."""
        return take(x, self.order.by_key).mT.contiguous()

    def reduce(self, x: Tensor, how: str) -> Tensor:
        """x `[edges, ...]` reduced over each query's edges."""
        return torch.segment_reduce(x, how, offsets=self.order.starts, axis=0, unsafe=True)

    def distance(self) -> Tensor:
        return self.order.rows + self.p.grid.offset - self.order.columns


def scores(g: Graph) -> Tensor:
    """The score of each edge, `[edges, batch · heads]`."""
    p = g.p
    s = additive_scores(g) if p.weight is not None else g.dots(g.flat(p.q) * p.scale, g.flat(p.k))
    if p.rel_bias is not None:
        s += p.rel_bias.table.to(g.exact).mT[number_index(g)].repeat(1, g.batch)
    if p.rel_vectors is not None:
        add_vectors(g, s)
    return s


def number_index(g: Graph) -> Tensor:
    return (g.distance() + g.p.rel_bias.zero).clamp(0, g.p.rel_bias.table.shape[1] - 1)  # type: ignore[union-attr]


def vector_index(g: Graph) -> Tensor:
    return (g.distance() + g.p.rel_vectors.zero).clamp(0, g.p.rel_vectors.table.shape[1] - 1)  # type: ignore[union-attr]


def take(x: Tensor, index: Tensor) -> Tensor:
    """x[index] along the first axis; rows that lie together are copied whole."""
    return x.flatten(1).index_select(0, index).view(-1, *x.shape[1:]) if x.dim() > 2 else x.index_select(0, index)


def steps(g: Graph, dim: int) -> Iterator[slice]:
    """The edges in steps that keep their gathered features small."""
    size = max(FEATURES // max(g.columns * dim, 1), 1)
    for first in range(0, g.edges, size):
        yield slice(first, min(first + size, g.edges))


def vector_features(g: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """(asking a node, table an entry, each edge's entry)."""
    table = g.p.rel_vectors.table.to(g.exact).transpose(0, 1).repeat(1, g.batch, 1)  # type: ignore[union-attr]
    return g.per_node(g.p.rel_vectors.queries), table, vector_index(g)  # type: ignore[union-attr]


def add_vectors(g: Graph, s: Tensor) -> None:
    asking, table, index = vector_features(g)
    for e in steps(g, asking.shape[-1]):
        s[e] += g.p.scale * (take(asking, g.order.rows[e]) * take(table, index[e])).sum(-1)


def additive_scores(g: Graph) -> Tensor:
    p = g.p
    q, k, weight = g.per_node(p.q), g.per_node(p.k), node_weight(g)
    s = q.new_empty(g.edges, g.columns)
    for e in steps(g, q.shape[-1]):
        both = take(q, g.order.rows[e]).add_(take(k, g.order.columns[e]))
        s[e] = (activate(p, both) * weight).sum(-1)
    return s


def node_weight(g: Graph) -> Tensor:
    return g.p.weight.to(g.exact).repeat(g.batch, 1)  # type: ignore[union-attr]  # [batch · heads, d]


def activate(p: LoweredCall, x: Tensor) -> Tensor:
    return x.tanh_() if p.activation == "tanh" else torch.nn.functional.leaky_relu_(x, p.slope)


def activation_slope(p: LoweredCall, x: Tensor, act: Tensor) -> Tensor:
    """The activation's derivative, from what went in and what came out."""
    return 1.0 - act.square() if p.activation == "tanh" else (x > 0).to(x.dtype).mul_(1.0 - p.slope).add_(p.slope)


def kept(g: Graph) -> Tensor | None:
    """What dropout multiplies each edge's weight with, `[edges, batch · heads]`; None without it."""
    p = g.p
    if p.seed is None:
        return None
    device = p.q.device
    places = torch.arange(p.grid.queries, device=device) + p.grid.offset
    rows = row_keys(p.seed, torch.arange(g.batch, device=device), torch.arange(g.heads, device=device), places)
    rows = rows.flatten(0, 1).mT.contiguous()  # [queries, batch · heads]
    x = to_int32(g.at_rows(rows)) ^ to_int32(g.order.columns * GOLDEN & 0xFFFFFFFF)[:, None]
    return ((mix_int32(x) & 0x7FFFFFFF) >= threshold(p.dropout)).to(g.exact) * keep_scale(p.dropout)


def fused(p: LoweredCall) -> ModuleType | None:
    """The kernels that do all of it at once on a GPU, when they can."""
    if not p.q.is_cuda or find_spec("triton") is None:
        return None
    from ..kernels.edges import passes as graph

    return graph if graph.covers(p) is None else None


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    kernels = fused(p)
    if kernels is not None:
        return kernels.forward(p)
    g = Graph(p)
    s = scores(g)
    top = g.reduce(s, "max")  # [queries, batch · heads]
    weights = s.sub_(g.at_rows(top)).exp_()
    total = g.reduce(weights, "sum")
    alive = total > 0
    drop = kept(g)
    weights = (weights if drop is None else weights.mul_(drop)).mT.contiguous()
    v = g.flat(p.v)
    mixed = torch.stack([g.mix(weights[c], v[c]) for c in range(g.columns)])
    mixed /= torch.where(alive, total, 1.0).mT[..., None]
    lse = torch.where(alive, top + total.log(), -torch.inf).mT.contiguous()
    return mixed.unflatten(0, (g.batch, g.heads)), lse.unflatten(0, (g.batch, g.heads))


def backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight, numbers, asking, table."""
    kernels = fused(p)
    if kernels is not None:
        return kernels.backward(p, grad, output, lse)
    g = Graph(p)
    grad, v = grad.to(g.exact).flatten(0, 1), g.flat(p.v)
    delta = (grad * output.flatten(0, 1)).sum(-1).mT.contiguous()  # [queries, batch · heads]
    weights = scores(g).sub_(g.at_rows(lse.flatten(0, 1).mT.contiguous())).exp_()
    drop = kept(g)
    used = weights if drop is None else weights * drop
    turned = g.by_key(used)
    dv = torch.stack([g.mix_back(turned[c], grad[c]) for c in range(g.columns)])
    d = g.dots(grad, v)
    d = d if drop is None else d.mul_(drop)
    d = d.sub_(g.at_rows(delta)).mul_(weights)
    del weights, used, turned
    dq, dk, dweight = additive_gradients(g, d) if p.weight is not None else dot_gradients(g, d)
    dasking, dtable = vector_gradients(g, d) if p.rel_vectors is not None else (None, None)
    dnumbers = number_gradients(g, d) if p.rel_bias is not None and p.needs_grad[4] else None
    return [g.per_head(dq, p.q), g.per_head(dk, p.k), g.per_head(dv, p.v), dweight, dnumbers, dasking, dtable]


def dot_gradients(g: Graph, d: Tensor) -> tuple[Tensor, Tensor, None]:
    q, k = g.flat(g.p.q) * g.p.scale, g.flat(g.p.k) * g.p.scale
    by_query, by_key = d.mT.contiguous(), g.by_key(d)
    dq = torch.stack([g.mix(by_query[c], k[c]) for c in range(g.columns)])
    return dq, torch.stack([g.mix_back(by_key[c], q[c]) for c in range(g.columns)]), None


def number_gradients(g: Graph, d: Tensor) -> Tensor:
    by_head = d.view(g.edges, g.batch, g.heads).sum(1)
    table = g.p.rel_bias.table  # type: ignore[union-attr]
    return sums_at(number_index(g), by_head, table.shape[1]).mT


def vector_gradients(g: Graph, d: Tensor) -> tuple[Tensor, Tensor]:
    asking, table, index = vector_features(g)
    d_asking, d_table = torch.zeros_like(asking), torch.zeros_like(table)
    for e in steps(g, asking.shape[-1]):
        each = g.p.scale * d[e][..., None]
        add_runs(d_asking, each * take(table, index[e]), g.order.starts, e)
        d_table += sums_at(index[e], each * take(asking, g.order.rows[e]), len(d_table))
    d_table = d_table.unflatten(1, (g.batch, g.heads)).sum(1).transpose(0, 1)
    return g.per_head(d_asking.transpose(0, 1), g.p.q), d_table


def additive_gradients(g: Graph, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two sweeps, one in each order of the edges, so that every sum is over a run."""
    q, k, weight = g.per_node(g.p.q), g.per_node(g.p.k), node_weight(g)
    dq, dk, dweight = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(weight)
    for e in steps(g, q.shape[-1]):
        both = take(q, g.order.rows[e]).add_(take(k, g.order.columns[e]))
        act = activate(g.p, both.clone())
        each = d[e][..., None]
        dweight += (each * act).sum(0)
        add_runs(dq, activation_slope(g.p, both, act).mul_(each).mul_(weight), g.order.starts, e)
    for e in steps(g, q.shape[-1]):
        edge = g.order.by_key[e]
        both = take(q, g.order.rows[edge]).add_(take(k, g.order.columns[edge]))
        act = activate(g.p, both.clone())
        add_runs(
            dk, activation_slope(g.p, both, act).mul_(take(d, edge)[..., None]).mul_(weight), g.order.key_starts, e
        )
    return dq.transpose(0, 1), dk.transpose(0, 1), dweight.view(g.batch, g.heads, -1).sum(0)


def sums_at(index: Tensor, x: Tensor, size: int) -> Tensor:
    """Sums of the rows of x that share an index, in the order of the rows: the same bits every time."""
    index, order = index.sort(stable=True)
    offsets = torch.searchsorted(index, torch.arange(size + 1, device=index.device))
    return torch.segment_reduce(take(x, order), "sum", offsets=offsets, axis=0, unsafe=True)


def add_runs(total: Tensor, x: Tensor, starts: Tensor, e: slice) -> None:
    """Add x, for edges `e`, to the nodes whose runs they are in; a run may go on in the next step."""
    first = int(torch.searchsorted(starts, e.start, right=True)) - 1
    last = int(torch.searchsorted(starts, e.stop, right=False))
    offsets = (starts[first : last + 1] - e.start).clamp(0, e.stop - e.start)
    total[first:last] += torch.segment_reduce(x, "sum", offsets=offsets, axis=0, unsafe=True)


solve = operator("edges", forward, backward)
"""(output, log-sum-exp) of a lowered problem."""
