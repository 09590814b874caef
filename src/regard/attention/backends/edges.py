"""Attention along the edges of a graph: work and memory proportional to the edges.

Edges are sorted by query, so a softmax over a query's keys is a reduction over a segment of edges. Scores of a dot
product are a sampled matrix product, the weighted sum of values is a sparse one, and their gradients are the same two
with the roles exchanged: only one number for each head and edge is stored. Additive scores, relative vectors and the
edges' own keys and values need vectors of an edge and of its ends at once; these are gathered for a limited number of
edges at a time.
"""

from __future__ import annotations

import functools
import warnings
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from ...errors import BadInput
from ..call import Call, LoweredCall, lower, without_autocast
from ..dropout import GOLDEN, keep_scale, mix_int32, row_keys, threshold, to_int32
from ..parts.edges import Edges, SortedEdges, sorted_edges
from .custom_op import define_operator
from .edge_positions import (
    add_scores,
    add_segments,
    edge_distances,
    edge_steps,
    entries,
    fold_biases,
    key_vectors,
    relative_vectors,
    sum_by_entry,
    take,
    token_numbers,
    unfold_gradients,
    vector_gradients,
)
from .sinks import add_sink

name = "edges"

DENSE = 0.25  # share of all pairs above which tiles are faster


def unsupported_reason(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    if not isinstance(call.mask, Edges):
        return "the mask is not a graph: Edges(edge_index) alone"
    return None


def slower_reason(call: Call) -> str | None:
    """Why another backend would do it faster; None when this one is the best."""
    if torch.compiler.is_compiling() or call.edges is not None:
        return None
    edges = sorted_edges(call.mask, call.grid).rows.numel()
    dense = edges > DENSE * call.grid.queries * call.grid.keys
    return f"the graph has more than {DENSE:.0%} of all pairs, where tiles are faster" if dense else None


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with without_autocast(call.q.device):
        return solve(lower(call))[0]


@functools.cache
def silence_sparse_warning() -> None:
    """Trigger torch's one warning that sparse CSR tensors are in beta, and ignore it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64), torch.tensor([]), (1, 1))


def csr_of(p: LoweredCall) -> SortedEdges:
    """The sorted edges of a call, cached in its plan."""
    return p.plan.get(SortedEdges, lambda: sorted_edges(p.mask, p.grid))


class EdgeScores:
    """A lowered call along edges: the features of nodes in exact types, with one key head for each query head."""

    def __init__(self, p: LoweredCall):
        silence_sparse_warning()
        self.p = p
        self.csr = csr_of(p)
        self.exact = torch.promote_types(p.v.dtype, torch.float32)
        self.batch, self.heads = p.q.shape[:2]
        self.columns = self.batch * self.heads
        self.group = self.heads // p.k.shape[1]
        self.edges = self.csr.rows.numel()
        self.starts, self.keys = self.csr.starts.int(), self.csr.columns.int()
        self.key_starts, self.rows_by_key = self.csr.key_starts.int(), self.csr.rows_by_key.int()

    def flatten_heads(self, x: Tensor) -> Tensor:
        """x `[batch, heads or kv_heads, tokens, d]` as `[batch · heads, tokens, d]`."""
        x = x.to(self.exact)
        return (x if x.shape[1] == self.heads else x.repeat_interleave(self.group, 1)).flatten(0, 1)

    def node_features(self, x: Tensor) -> Tensor:
        """x as `[tokens, batch · heads, d]`, so that one node's features lie together."""
        return self.flatten_heads(x).transpose(0, 1).contiguous()

    def head_gradient(self, x: Tensor, like: Tensor) -> Tensor:
        """A sum `[batch · heads, tokens, d]` as the gradient of `like`, with heads that share keys added up."""
        x = x.unflatten(0, (self.batch, self.heads))
        return x if like.shape[1] == self.heads else x.unflatten(1, (-1, self.group)).sum(2)

    def sum_over_keys(self, values: Tensor, x: Tensor) -> Tensor:
        """Σ over each query's edges of values `[edges]` · x `[keys, d]`."""
        size = (self.p.grid.queries, self.p.grid.keys)
        return torch.sparse_csr_tensor(self.starts, self.keys, values, size, check_invariants=False) @ x

    def sum_over_queries(self, values: Tensor, x: Tensor) -> Tensor:
        """Σ over each key's edges of values `[edges]`, in the order of keys, · x `[queries, d]`."""
        size = (self.p.grid.keys, self.p.grid.queries)
        return torch.sparse_csr_tensor(self.key_starts, self.rows_by_key, values, size, check_invariants=False) @ x

    def edge_dots(self, a: Tensor, b: Tensor) -> Tensor:
        """a[query] · b[key] for each edge, `[edges, batch · heads]`; a and b are flat."""
        size = (self.p.grid.queries, self.p.grid.keys)
        pattern = torch.sparse_csr_tensor(self.starts, self.keys, a.new_zeros(self.edges), size, check_invariants=False)
        products = a.new_empty(self.edges, self.columns)
        for c in range(self.columns):
            products[:, c] = torch.sparse.sampled_addmm(pattern, a[c], b[c].mT, beta=0.0).values()
        return products

    def edge_features(self, x: Tensor, e: slice | Tensor) -> Tensor:
        """x `[batch or 1, heads or 1, edges, d]` of some edges, as `[edges, batch · heads, d]`."""
        return x[:, :, e].to(self.exact).expand(self.batch, self.heads, -1, -1).permute(2, 0, 1, 3).flatten(1, 2)

    def edge_gradient(self, d: Tensor, like: Tensor) -> Tensor:
        """Gradients `[edges, batch · heads, d]` in the form of `like`, `[batch or 1, heads or 1, edges, d]`."""
        by_head = d.unflatten(1, (self.batch, self.heads)).permute(1, 2, 0, 3)
        return by_head.sum_to_size(*like.shape[:2], *by_head.shape[2:])

    def expand_rows(self, x: Tensor) -> Tensor:
        """x `[queries, ...]` for each edge."""
        return take(x, self.csr.rows)

    def sort_by_key(self, x: Tensor) -> Tensor:
        """x `[edges, batch · heads]` in the order of keys, as `[batch · heads, edges]`."""
        return take(x, self.csr.by_key).mT.contiguous()

    def reduce(self, x: Tensor, how: str) -> Tensor:
        """x `[edges, ...]` reduced over each query's edges."""
        return torch.segment_reduce(x, how, offsets=self.csr.starts, axis=0, unsafe=True)

    def place_distances(self) -> Tensor:
        """i − j of each edge, `[edges, batch · heads or 1]`."""
        distance = edge_distances(self.p, self.csr)
        return distance if distance.shape[1] == 1 else distance.repeat_interleave(self.heads, 1)


def check_listed_once(p: LoweredCall) -> None:
    """Raise when there are more features than distinct edges, which a compiled graph cannot know before."""
    features = [x for x in (p.edge_bias, p.edge_keys, p.edge_values) if x is not None]
    edges = sorted_edges(p.mask, p.grid).rows.numel() if features else 0
    if any(x.shape[2] != edges for x in features):
        raise BadInput(f"{features[0].shape[2]} edges have EdgeFeatures; {edges} are distinct. List every edge once.")


def scores(g: EdgeScores) -> Tensor:
    """The score of each edge, `[edges, batch · heads]`."""
    return scores_and_slope(g)[0]


def scores_and_slope(g: EdgeScores) -> tuple[Tensor, Tensor | None]:
    """The same scores, and the derivative of their cap, 1 − tanh²; None without a cap."""
    p, slope = g.p, None
    if p.weight is not None:
        s = additive_scores(g, p.weight)
    else:
        s = g.edge_dots(g.flatten_heads(p.q) * p.scale, g.flatten_heads(p.k))
    add_scores(g, s, relative_vectors(g))
    add_scores(g, s, key_vectors(g))
    if p.edge_keys is not None and p.weight is None:
        q = g.node_features(p.q)
        for e in edge_steps(g, q.shape[-1]):
            s[e] += p.scale * (take(q, g.csr.rows[e]) * g.edge_features(p.edge_keys, e)).sum(-1)
    if p.cap is not None:
        capped = s.div_(p.cap).tanh_()
        slope = 1.0 - capped.square()
        s = capped.mul_(p.cap)
    if p.rel_bias is not None:
        index = entries(p, g.csr, p.rel_bias.zero, p.rel_bias.table)[:, 0]
        s += p.rel_bias.table.to(g.exact).mT[index].repeat(1, g.batch)
    if p.edge_bias is not None:
        s += g.edge_features(p.edge_bias, slice(None))[..., 0]
    return s, slope


def additive_scores(g: EdgeScores, weight: Tensor) -> Tensor:
    p = g.p
    q, k = g.node_features(p.q), g.node_features(p.k)
    weight = weight.to(g.exact).repeat(g.batch, 1)  # [batch · heads, d]
    s = q.new_empty(g.edges, g.columns)
    for e in edge_steps(g, q.shape[-1]):
        both = add_ends(g, q, k, e)
        s[e] = (activate(p, both) * weight).sum(-1)
    return s


def add_ends(g: EdgeScores, q: Tensor, k: Tensor, e: slice | Tensor) -> Tensor:
    """q + k and the edge's own key for some edges, `[edges, batch · heads, d]`."""
    both = take(q, g.csr.rows[e]).add_(take(k, g.csr.columns[e]))
    return both if g.p.edge_keys is None else both.add_(g.edge_features(g.p.edge_keys, e))


def activate(p: LoweredCall, x: Tensor) -> Tensor:
    return x.tanh_() if p.activation == "tanh" else torch.nn.functional.leaky_relu_(x, p.slope)


def activation_slope(p: LoweredCall, x: Tensor, act: Tensor) -> Tensor:
    """The activation's derivative, from what went in and what came out."""
    return 1.0 - act.square() if p.activation == "tanh" else (x > 0).to(x.dtype).mul_(1.0 - p.slope).add_(p.slope)


def dropout_scale(g: EdgeScores) -> Tensor | None:
    """What dropout multiplies each edge's weight with, `[edges, batch · heads]`; None without it."""
    p = g.p
    if p.seed is None:
        return None
    device = p.q.device
    i, j = token_numbers(p)
    rows = row_keys(p.seed, torch.arange(g.batch, device=device), torch.arange(g.heads, device=device), i)
    rows = rows.flatten(0, 1).mT.contiguous()  # [queries, batch · heads]
    x = to_int32(g.expand_rows(rows)) ^ to_int32(j[g.csr.columns] * GOLDEN & 0xFFFFFFFF)[:, None]
    return ((mix_int32(x) & 0x7FFFFFFF) >= threshold(p.dropout)).to(g.exact) * keep_scale(p.dropout)


def fused_kernels(p: LoweredCall) -> ModuleType | None:
    """The fused kernels for a GPU, where they cover the call."""
    if not p.q.is_cuda or find_spec("triton") is None:
        return None
    from ..kernels.edges import passes

    return passes if passes.covers(p) is None else None


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    check_listed_once(p)
    p = fold_biases(p, csr_of(p))
    kernels = fused_kernels(p)
    if kernels is not None:
        output, lse = kernels.forward(p)
        return add_sink(output, lse, p.sink)
    g = EdgeScores(p)
    s = scores(g)
    top = g.reduce(s, "max")  # [queries, batch · heads]
    weights = s.sub_(g.expand_rows(top)).exp_()
    total = g.reduce(weights, "sum")
    alive = total > 0
    drop = dropout_scale(g)
    weights = (weights if drop is None else weights.mul_(drop)).mT.contiguous()
    v = g.flatten_heads(p.v)
    mixed = torch.stack([g.sum_over_keys(weights[c], v[c]) for c in range(g.columns)])
    if p.edge_values is not None:
        mixed += mix_edge_values(g, weights.mT, p.edge_values).transpose(0, 1)
    mixed /= torch.where(alive, total, 1.0).mT[..., None]
    lse = torch.where(alive, top + total.log(), -torch.inf).mT.contiguous()
    return add_sink(mixed.unflatten(0, (g.batch, g.heads)), lse.unflatten(0, (g.batch, g.heads)), p.sink)


def mix_edge_values(g: EdgeScores, weights: Tensor, values: Tensor) -> Tensor:
    """Σ over each query's edges of weights `[edges, batch · heads]` · their values, `[queries, batch · heads, d]`."""
    total = weights.new_zeros(g.p.grid.queries, g.columns, values.shape[3])
    for e in edge_steps(g, values.shape[3]):
        add_segments(total, weights[e][..., None] * g.edge_features(values, e), g.csr.starts, e)
    return total


def edge_value_gradients(g: EdgeScores, used: Tensor, grad: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """grad · values of each edge, `[edges, batch · heads]`, and the gradient of the values."""
    rows, products = grad.transpose(0, 1).contiguous(), torch.empty_like(used)
    d_values = torch.zeros_like(values, dtype=g.exact)
    for e in edge_steps(g, values.shape[3]):
        at = take(rows, g.csr.rows[e])  # [edges, batch · heads, d]
        products[e] = (at * g.edge_features(values, e)).sum(-1)
        d_values[:, :, e] = g.edge_gradient(used[e][..., None] * at, values)
    return products, d_values


def backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight, rel_bias, rel_q, rel_vectors, pair_bias, key_vectors; of the edges' features."""
    folded = fold_biases(p, csr_of(p))
    kernels = fused_kernels(folded)
    run = run_backward if kernels is None else kernels.backward
    return unfold_gradients(p, csr_of(p), run(folded, grad, output, lse))


def run_backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """`backward` without fused kernels."""
    g = EdgeScores(p)
    grad, v = grad.to(g.exact).flatten(0, 1), g.flatten_heads(p.v)
    delta = (grad * output.flatten(0, 1)).sum(-1).mT.contiguous()  # [queries, batch · heads]
    s, slope = scores_and_slope(g)
    weights = s.sub_(g.expand_rows(lse.flatten(0, 1).mT.contiguous())).exp_()
    drop = dropout_scale(g)
    used = weights if drop is None else weights * drop
    by_key = g.sort_by_key(used)
    dv = torch.stack([g.sum_over_queries(by_key[c], grad[c]) for c in range(g.columns)])
    d, d_edge_bias, d_edge_values = g.edge_dots(grad, v), None, None
    if p.edge_values is not None:
        products, d_edge_values = edge_value_gradients(g, used, grad, p.edge_values)
        d += products
    d = d if drop is None else d.mul_(drop)
    d = d.sub_(g.expand_rows(delta)).mul_(weights)
    del weights, used, by_key, s
    d_bias = None
    if p.rel_bias is not None and p.needs_grad[4]:
        index = entries(p, g.csr, p.rel_bias.zero, p.rel_bias.table)
        d_bias = sum_by_entry(index, d.view(g.edges, g.batch, g.heads), p.rel_bias.table.shape[1]).mT
    if p.edge_bias is not None:
        d_edge_bias = g.edge_gradient(d[..., None], p.edge_bias).clone()  # d is scaled in place below
    d = d if slope is None else d.mul_(slope)
    dq, dk, dweight, d_edge_keys = additive_gradients(g, d, p.weight) if p.weight is not None else dot_gradients(g, d)
    d_rel_q = d_table = d_key_table = None
    if (x := relative_vectors(g)) is not None:
        d_rel_q, d_table = vector_gradients(g, d, x, by_key=False)
        d_rel_q = g.head_gradient(d_rel_q, p.q)
    if (x := key_vectors(g)) is not None:
        d_keys, d_key_table = vector_gradients(g, d, x, by_key=True)
        dk += d_keys
    dq, dk, dv = g.head_gradient(dq, p.q), g.head_gradient(dk, p.k), g.head_gradient(dv, p.v)
    edges = (d_edge_bias, d_edge_keys, d_edge_values)
    return [dq, dk, dv, dweight, d_bias, d_rel_q, d_table, None, d_key_table, *edges]


def dot_gradients(g: EdgeScores, d: Tensor) -> tuple[Tensor, Tensor, None, Tensor | None]:
    """Gradients of q, k, no weight, and the edges' keys."""
    q, k = g.flatten_heads(g.p.q) * g.p.scale, g.flatten_heads(g.p.k) * g.p.scale
    by_query, by_key = d.mT.contiguous(), g.sort_by_key(d)
    dq = torch.stack([g.sum_over_keys(by_query[c], k[c]) for c in range(g.columns)])
    dk = torch.stack([g.sum_over_queries(by_key[c], q[c]) for c in range(g.columns)])
    keys = g.p.edge_keys
    if keys is None:
        return dq, dk, None, None
    dq += g.p.scale * mix_edge_values(g, d, keys).transpose(0, 1)
    rows, d_keys = q.transpose(0, 1).contiguous(), torch.zeros_like(keys, dtype=g.exact)
    for e in edge_steps(g, keys.shape[3]):
        d_keys[:, :, e] = g.edge_gradient(d[e][..., None] * take(rows, g.csr.rows[e]), keys)
    return dq, dk, None, d_keys


def additive_gradients(g: EdgeScores, d: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, weight and the edges' keys.

    Two passes, one in each order of the edges, so that every sum is over a segment.
    """
    q, k, keys = g.node_features(g.p.q), g.node_features(g.p.k), g.p.edge_keys
    weight = weight.to(g.exact).repeat(g.batch, 1)  # [batch · heads, d]
    dq, dk, dweight = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(weight)
    d_keys = None if keys is None else torch.zeros_like(keys, dtype=g.exact)
    for e in edge_steps(g, q.shape[-1]):
        both = add_ends(g, q, k, e)
        act = activate(g.p, both.clone())
        ds = d[e][..., None]
        dweight += (ds * act).sum(0)
        d_both = activation_slope(g.p, both, act).mul_(ds).mul_(weight)
        add_segments(dq, d_both, g.csr.starts, e)
        if keys is not None and d_keys is not None:
            d_keys[:, :, e] = g.edge_gradient(d_both, keys)
    for e in edge_steps(g, q.shape[-1]):
        edge = g.csr.by_key[e]
        both = add_ends(g, q, k, edge)
        act = activate(g.p, both.clone())
        add_segments(
            dk, activation_slope(g.p, both, act).mul_(take(d, edge)[..., None]).mul_(weight), g.csr.key_starts, e
        )
    return dq.transpose(0, 1), dk.transpose(0, 1), dweight.view(g.batch, g.heads, -1).sum(0), d_keys


solve = define_operator("edges", forward, backward)
"""(output, log-sum-exp) of a lowered call."""
