"""Forward and backward pass of attention along the edges of a graph; of an edge one number per head is stored.

Forward sums over the edges of each query. Backward sums over the edges of each key first: one gather of q and of d
output gives dk, dv and the gradient of every edge's score; then over those of each query, into dq. Nodes with very many
edges are cut into segments whose results are merged. With p = exp(s − lse) and δ = Σ o·do:

    ds = p · (keep·do·v − δ),   dq = Σ_j ds · ∂s/∂q,   dk = Σ_i ds · ∂s/∂k,   dv = Σ_i keep·p·do

The gradients of an edge's own bias, key and value are ds and the terms of dk and dv before their sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...call import LoweredCall
from ...dropout import keep_scale, threshold
from ...execution import mask_cache
from ...parts.edges import Edges, SortedEdges, sorted_edges
from ...parts.positions import DistanceBias
from ..launch import next_power, start
from .kernels import delta_kernel, dkdv_kernel, dq_kernel, forward_kernel, merge_kernel

FEATURES = 256  # features of a node that one program holds: heads beyond them go to other programs
LANES = 32  # threads of a program: one warp, so that no sum crosses a barrier
EDGES_FORWARD = {4: 4, 2: 4}  # edges in a chunk at 128 features a program, by bytes of a feature
EDGES_DKDV = {4: 4, 2: 2}
EDGES_DQ = {4: 8, 2: 4}
EDGES_DQ_SUMS = {4: 16}  # where dq needs no neighbour's features
STAGES = 1  # a neighbour's number is loaded a step ahead by hand
SORT_STEP = 8  # nodes are sorted by descending numbers of edges, rounded up to this; equal ones keep their order
SEGMENT = 1024  # edges of a node that one program sums over; nodes with more are cut
MAX_PROGRAMS = 1 << 17  # programs that store a partial sum of dweight before those are added up
SUM_CHUNK = 256  # partial sums added at once
EVICTION = ""  # eviction policy of keys with head_dim 1, which may fit the cache: "" or "evict_last"
MAX_HEAD_DIM = 256
MAX_SIGN_BITS = 32  # head_dim up to which leaky ReLU's signs are stored as bits
MAX_INDEX = (1 << 31) - (1 << 16)  # kernels index a little beyond the last edge


class NodeRanges(NamedTuple):
    """Nodes and where their edges begin and end, each `[nodes or segments]`, int32."""

    nodes: Tensor
    begins: Tensor
    ends: Tensor


class NodeSchedule(NamedTuple):
    """The nodes at one end of the edges: uncut ones by descending numbers of edges, and the segments of the others."""

    whole: NodeRanges
    segments: NodeRanges | None
    cut: Tensor | None  # [cut nodes]
    offsets: Tensor | None  # [cut nodes + 1]: where each one's segments begin


class EdgeLayout(NamedTuple):
    """A graph as the kernels read it; indices are int32."""

    by_query: NodeSchedule
    by_key: NodeSchedule
    columns: Tensor  # [edges]: the key of each edge, by query
    rows: Tensor  # [edges]: the query of each edge, by key
    index_by_query: Tensor  # [edges]: the edge's index by query, for each by key


def covers(p: LoweredCall) -> str | None:
    """Why these kernels cannot run the problem; None when they can."""
    if not isinstance(p.mask, Edges):
        return "the mask is not a graph: Edges(edge_index) alone"
    if p.rel_vectors is not None or p.key_vectors is not None:
        return "vectors by distance along edges have no kernel"
    if p.cap is not None:
        return "a cap along edges has no kernel"
    if p.numbers is not None and (p.rel_bias is not None or p.seed is not None):
        return "distances and dropout of a part of a graph have no kernel"
    if any(x.dtype == torch.float64 for x in (p.q, p.k, p.v)):
        return "float64 has no kernel"
    if max(p.q.shape[3], p.v.shape[3]) > MAX_HEAD_DIM:
        return f"head_dim is above {MAX_HEAD_DIM}"
    if not p.q.numel() * p.v.numel():
        return "there are no pairs, or the values have no elements"
    if p.q.shape[0] > 65535:
        return "there are more than 65535 batches"
    if max(p.grid.queries, p.grid.keys, p.mask.sort(p.grid.queries, p.grid.keys).rows.numel()) > MAX_INDEX:
        return "there are more nodes or edges than 32 bits can number"
    return None


def make_layout(order: SortedEdges) -> EdgeLayout:
    """The graph as the kernels read it."""
    return EdgeLayout(
        schedule_nodes(order.starts),
        schedule_nodes(order.key_starts),
        order.columns.int(),
        order.rows[order.by_key].int(),
        order.by_key.int(),
    )


def schedule_nodes(starts: Tensor) -> NodeSchedule:
    """The nodes whose edges begin at `starts [nodes + 1]`: those with most edges first."""
    counts = starts.diff()
    short = counts <= SEGMENT
    steps = torch.where(short, (counts + SORT_STEP - 1) // SORT_STEP, -1)
    nodes = steps.argsort(descending=True, stable=True)[: int(short.sum())]
    whole = NodeRanges(nodes.int(), starts[nodes].int(), starts[nodes + 1].int())
    cut = (~short).nonzero().flatten()
    if not cut.numel():
        return NodeSchedule(whole, None, None, None)
    counts_cut = (counts[cut] + SEGMENT - 1) // SEGMENT  # segments of each
    offsets = torch.nn.functional.pad(counts_cut.cumsum(0), (1, 0))
    index = torch.repeat_interleave(torch.arange(cut.numel(), device=cut.device), counts_cut)
    owner = cut[index]
    begins = starts[owner] + SEGMENT * (torch.arange(index.numel(), device=cut.device) - offsets[index])
    ends = torch.minimum(begins + SEGMENT, starts[owner + 1])
    return NodeSchedule(whole, NodeRanges(owner.int(), begins.int(), ends.int()), cut.int(), offsets.int())


class EdgeTile(NamedTuple):
    """The sizes of a kernel's tiles."""

    heads: int  # BH
    head_dim: int  # BD
    value_dim: int  # BDV
    edges: int  # BE
    nodes: int  # BN


def tile_for(heads: int, head_dim: int, value_dim: int, size: int, edges: dict[int, int]) -> EdgeTile:
    """Tiles that give every thread of a warp 16 bytes of a neighbour's features; `size` is a feature's bytes."""
    wide = max(next_power(head_dim), next_power(value_dim))
    together = min(next_power(heads), max(FEATURES // wide, 1))
    nodes = min(max(LANES * 16 // size // (together * wide), 1), LANES)
    chunk = max(edges[size] * 128 * 4 // size // (nodes * together * wide), 1)
    return EdgeTile(together, next_power(head_dim), next_power(value_dim), min(chunk, 16), nodes)


def pack_heads(x: Tensor) -> Tensor:
    """x `[batch, heads, tokens, d]` with a node's features side by side in memory: itself if they are, or a copy."""
    heads, dim = x.shape[1], x.shape[3]
    fits = (dim == 1 or x.stride(3) == 1) and (heads == 1 or x.stride(1) == dim)
    return x if fits else x.transpose(1, 2).contiguous().transpose(1, 2)


def pack_edges(x: Tensor) -> Tensor:
    """Features x `[batch or 1, heads or 1, edges, d]` as `[batch or 1, edges, heads or 1, d]`, contiguous."""
    return x.transpose(1, 2).contiguous()


def node_strides(x: Tensor) -> tuple[int, int]:
    """Strides of batch and tokens; 0 for a batch of 1, so that kernels are not specialised for it."""
    return batch_stride(x), x.stride(2)


def batch_stride(x: Tensor) -> int:
    return x.stride(0) if x.shape[0] > 1 else 0


def empty_nodes(p: LoweredCall, count: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Memory for `[batch, count, heads, dim]`."""
    return p.v.new_empty((p.q.shape[0], count, p.q.shape[1], dim), dtype=dtype)


def same_memory(k: Tensor, v: Tensor) -> bool:
    """Whether keys and values are one tensor, so that a neighbour is read once."""
    same = k.data_ptr() == v.data_ptr() and k.dtype == v.dtype
    return same and k.shape == v.shape and k.stride() == v.stride()


class EdgeInputs:
    """A problem's tensors in the layout of the kernels, and the arguments that they have in common."""

    def __init__(self, p: LoweredCall):
        self.p = p
        self.batch, self.heads, self.queries, self.head_dim = p.q.shape
        self.keys, self.value_dim = p.v.shape[2:]
        self.edges = p.plan.get(SortedEdges, lambda: sorted_edges(p.mask, p.grid))
        self.layout = p.plan.get(EdgeLayout, self.cached_layout)
        self.shared = same_memory(p.k, p.v)
        self.tied = p.tied and self.shared
        self.q, self.k = pack_heads(p.q), pack_heads(p.k)
        self.v = self.k if self.shared else pack_heads(p.v)
        self.weight = self.q if p.weight is None else p.weight.contiguous()
        self.rel_bias = self.q if p.rel_bias is None else p.rel_bias.table.contiguous()
        self.seed = self.layout.columns if p.seed is None else p.seed
        self.features = [None if x is None else pack_edges(x) for x in (p.edge_bias, p.edge_keys, p.edge_values)]
        plain_sum = p.rel_bias is None and p.edge_bias is None
        self.premultiplied = p.weight is not None and self.head_dim == 1 and plain_sum
        self.signs = p.weight is not None and p.activation != "tanh" and 1 < self.head_dim <= MAX_SIGN_BITS

    def cached_layout(self) -> EdgeLayout:
        key = (EdgeLayout, self.queries, self.keys)
        return mask_cache(self.p.mask).get(key, lambda: make_layout(self.edges))

    def tile(self, edges: dict[int, int]) -> EdgeTile:
        size = max(x.element_size() for x in (self.q, self.v))
        return tile_for(self.heads, self.head_dim, self.value_dim, size, edges)

    def edge_tensors(self) -> list[Tensor]:
        """Bias, keys and values of the edges; q where there are none."""
        return [self.q if x is None else x for x in self.features]

    def edge_strides(self) -> list[int]:
        return [0 if x is None else batch_stride(x) for x in self.features]

    def edge_constants(self) -> dict[str, int]:
        """The heads that each of the edges' tensors has; 0 for those that are absent."""
        names = ("EDGE_BIAS", "EDGE_KEYS", "EDGE_VALUES")
        return {name: 0 if x is None else x.shape[2] for name, x in zip(names, self.features, strict=True)}

    def grid(self, count: int, s: EdgeTile) -> tuple[int, int, int]:
        return -(-count // s.nodes), -(-self.heads // s.heads), self.batch

    def settings(self) -> tuple[float, ...]:
        """(entries of rel_bias, zero, threshold, keep_scale)."""
        p = self.p
        size, zero = (1, 0) if p.rel_bias is None else (p.rel_bias.table.shape[1], p.rel_bias.zero)
        return size, zero, threshold(p.dropout), keep_scale(p.dropout) if p.seed is not None else 1.0

    def constants(self, s: EdgeTile) -> dict[str, Any]:
        return {
            "HEADS": self.heads, "GROUP_SIZE": self.heads // self.k.shape[1], "D": self.head_dim,
            "BH": s.heads, "BD": s.head_dim, "BE": s.edges, "BN": s.nodes, "SORT_STEP": SORT_STEP,
            "ADDITIVE": self.p.weight is not None, "TANH": self.p.activation == "tanh",
            "num_warps": LANES // 32, "num_stages": STAGES,
        }  # fmt: skip

    def value_constants(self, s: EdgeTile) -> dict[str, Any]:
        parts = {"REL_BIAS": self.p.rel_bias is not None, "DROPOUT": self.p.seed is not None}
        return {"DV": self.value_dim, "BDV": s.value_dim, **parts}


def forward(p: LoweredCall) -> tuple[Tensor, Tensor]:
    """Output `[batch, heads, queries, value dim]` and log-sum-exp, float32; a node's heads lie side by side."""
    inputs = EdgeInputs(p)
    out = empty_nodes(p, inputs.queries, inputs.value_dim, torch.float32)
    lse = empty_nodes(p, inputs.queries, 1, torch.float32)[..., 0]
    by_query = inputs.layout.by_query
    start_forward(inputs, by_query.whole, out, lse, False)
    if by_query.segments is not None:
        count = by_query.segments.nodes.numel()
        part = empty_nodes(p, count, inputs.value_dim, torch.float32)
        part_lse = empty_nodes(p, count, 1, torch.float32)[..., 0]
        start_forward(inputs, by_query.segments, part, part_lse, True)
        merge(by_query, part, out, part_lse, lse)
    return out.transpose(1, 2), lse.transpose(1, 2)


def start_forward(inputs: EdgeInputs, nodes: NodeRanges, out: Tensor, lse: Tensor, segments: bool) -> None:
    s, count = inputs.tile(EDGES_FORWARD), nodes.nodes.numel()
    if not count:
        return
    start(
        forward_kernel, inputs.grid(count, s),
        inputs.q, inputs.k, inputs.v, inputs.weight, inputs.rel_bias, inputs.seed, *inputs.edge_tensors(),
        *nodes, inputs.layout.columns, out, lse,
        *inputs.edge_strides(),
        count, inputs.queries, inputs.keys, *node_strides(inputs.q), *node_strides(inputs.k), *node_strides(inputs.v),
        batch_stride(out), batch_stride(lse), inputs.p.scale, inputs.p.slope, *inputs.settings(),
        SHARED_KV=inputs.shared, SEGMENTS=segments, EVICTION=EVICTION if inputs.head_dim == 1 else "",
        **inputs.edge_constants(), **inputs.constants(s), **inputs.value_constants(s),
    )  # fmt: skip


def merge(
    nodes: NodeSchedule, part: Tensor, out: Tensor, part_lse: Tensor | None = None, lse: Tensor | None = None
) -> None:
    """Merge segments `[batch, segments, heads, d]` into `out`: their sum, or softmax where they have an lse."""
    if nodes.cut is None:
        return
    batch, _, heads, dim = part.shape
    weights = (part, out) if part_lse is None or lse is None else (part_lse, lse)
    start(
        merge_kernel, (nodes.cut.numel(), heads, batch),
        part, weights[0], nodes.offsets, nodes.cut, out, weights[1],
        part.stride(0), weights[0].stride(0), out.stride(0), weights[1].stride(0),
        HEADS=heads, DV=dim, BDV=next_power(dim), BS=32, SOFTMAX=part_lse is not None, num_warps=4,
    )  # fmt: skip


def backward(p: LoweredCall, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight, rel_bias, rel_q, rel_vectors, pair_bias, key_vectors; of the edges' features.

    None for what is absent.
    """
    inputs = EdgeInputs(p)
    grad = pack_heads(grad.to(p.v.dtype))  # it came from a result of that type: nothing is lost
    lse2_delta = row_deltas(inputs, grad, pack_heads(output), lse)
    ds = p.v.new_empty((inputs.batch, inputs.layout.columns.numel(), inputs.heads), dtype=torch.float32)
    bits = torch.int16 if inputs.head_dim <= 16 else torch.int32
    signs = ds.new_empty(ds.shape if inputs.signs else 1, dtype=bits)
    terms = edge_gradients(inputs)
    dk, dv, dweight = key_gradients(inputs, (grad, lse2_delta, ds, signs, *terms))
    dq = query_gradients(inputs, ds, signs)
    drel_bias = rel_bias_gradient(inputs, ds, p.rel_bias) if p.rel_bias is not None and p.needs_grad[4] else None
    dk, dv = sum_groups(inputs, dk), None if inputs.tied else sum_groups(inputs, dv)
    edges = finish_edge_gradients(inputs, ds, *terms)
    return [dq.transpose(1, 2), dk, dv, dweight, drel_bias, None, None, None, None, *edges]


def edge_gradients(inputs: EdgeInputs) -> tuple[Tensor, Tensor]:
    """Memory for the gradients of the edges' keys and values, `[batch, edges, heads, d]`; empty where not needed.

    With PREMULTIPLIED scores those of the keys follow from ds.
    """
    p, sizes = inputs.p, (inputs.batch, inputs.layout.columns.numel(), inputs.heads)

    def make(x: Tensor | None, needed: bool) -> Tensor:
        if x is None or not needed:
            return p.q.new_empty(0)
        full = x.shape[0] == inputs.batch and x.shape[1] == inputs.heads
        return x.new_empty((*sizes, x.shape[3]), dtype=x.dtype if full else torch.float32)

    keys = make(p.edge_keys, not inputs.premultiplied and needs_edge_gradient(p, 1))
    return keys, make(p.edge_values, needs_edge_gradient(p, 2))


def needs_edge_gradient(p: LoweredCall, field: int) -> bool:
    """Whether the gradient of the edges' bias (0), keys (1) or values (2) is needed."""
    return any(p.needs_grad[10 + field : 11 + field])


def finish_edge_gradients(inputs: EdgeInputs, ds: Tensor, d_keys: Tensor, d_values: Tensor) -> list[Tensor | None]:
    """Gradients of the edges' bias, keys and values in their own shapes; None for what is absent or not needed."""
    p = inputs.p
    d_bias = ds[..., None]
    if inputs.premultiplied and p.weight is not None:
        d_keys = (ds * p.weight.flatten())[..., None]
    pairs = zip((p.edge_bias, p.edge_keys, p.edge_values), (d_bias, d_keys, d_values), strict=True)
    return [
        d.transpose(1, 2).sum_to_size(x.shape) if x is not None and needs_edge_gradient(p, field) else None  # type: ignore[arg-type]
        for field, (x, d) in enumerate(pairs)
    ]


def row_deltas(inputs: EdgeInputs, grad: Tensor, output: Tensor, lse: Tensor) -> Tensor:
    """lse in base 2 and δ of each query, `[batch, queries, 2, heads]`."""
    lse2_delta = lse.new_empty((inputs.batch, inputs.queries, 2, inputs.heads))
    heads, width = next_power(inputs.heads), next_power(inputs.value_dim)
    heads = min(heads, max(FEATURES // width, 1))
    nodes = max(4096 // (heads * width), 1)
    start(
        delta_kernel, (-(-inputs.queries // nodes), -(-inputs.heads // heads), inputs.batch),
        grad, output, lse, lse2_delta, inputs.queries, *node_strides(grad), *node_strides(output),
        *lse.stride(),
        HEADS=inputs.heads, DV=inputs.value_dim, BH=heads, BDV=width, BN=nodes, num_warps=4,
    )  # fmt: skip
    return lse2_delta


def key_gradients(inputs: EdgeInputs, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor | None]:
    """dk and dv `[batch, keys, heads, ...]`, dweight; fills all `tensors` but grad and lse2_delta (see `start_dkdv`).

    Where keys and values are tied, dk is both, and dv is dk.
    """
    grouped = inputs.k.shape[1] != inputs.heads
    dk = empty_nodes(inputs.p, inputs.keys, inputs.head_dim, torch.float32 if grouped else inputs.k.dtype)
    dv = dk
    if not inputs.tied:
        dv = empty_nodes(inputs.p, inputs.keys, inputs.value_dim, torch.float32 if grouped else inputs.v.dtype)
    by_key = inputs.layout.by_key
    dweight = inputs.q.new_zeros((inputs.heads, inputs.head_dim), dtype=torch.float32)
    count = step = by_key.whole.nodes.numel()
    if inputs.p.weight is not None:  # parts that run one after another, so that each program's dweight has memory
        step = MAX_PROGRAMS * inputs.tile(EDGES_DKDV).nodes
    for first in range(0, count, max(step, 1)):
        nodes = NodeRanges._make(x[first : first + step] for x in by_key.whole)
        dweight += start_dkdv(inputs, nodes, tensors, dk, dv, False)
    if by_key.segments is not None:
        count = by_key.segments.nodes.numel()
        part_k = empty_nodes(inputs.p, count, inputs.head_dim, torch.float32)
        part_v = part_k if inputs.tied else empty_nodes(inputs.p, count, inputs.value_dim, torch.float32)
        dweight += start_dkdv(inputs, by_key.segments, tensors, part_k, part_v, True)
        merge(by_key, part_k, dk)
        if not inputs.tied:
            merge(by_key, part_v, dv)
    return dk, dv, None if inputs.p.weight is None else dweight


def start_dkdv(
    inputs: EdgeInputs, nodes: NodeRanges, tensors: tuple[Tensor, ...], dk: Tensor, dv: Tensor, segments: bool
) -> Tensor:
    """dweight, summed over these nodes.

    `tensors` are grad, lse2_delta, ds, signs, and the gradients of the edges' keys and values.
    """
    grad, lse2_delta, ds, signs, d_keys, d_values = tensors
    s, count = inputs.tile(EDGES_DKDV), nodes.nodes.numel()
    grid = inputs.grid(count, s)
    programs = inputs.batch * grid[0] if inputs.p.weight is not None else 1
    parts = lse2_delta.new_empty((-(-programs // SUM_CHUNK), SUM_CHUNK, inputs.heads, inputs.head_dim))
    parts.flatten(0, 1)[programs:].zero_()
    start(
        dkdv_kernel, grid,
        inputs.q, inputs.k, inputs.v, inputs.weight, inputs.rel_bias, inputs.seed, *inputs.edge_tensors(),
        grad, lse2_delta, *nodes,
        inputs.layout.rows, inputs.layout.index_by_query, dk, dv, ds, signs, parts, d_keys, d_values,
        *inputs.edge_strides(), count, inputs.queries, inputs.keys, inputs.layout.columns.numel(),
        *node_strides(inputs.q), *node_strides(inputs.k), *node_strides(inputs.v), *node_strides(grad),
        batch_stride(dk), batch_stride(dv),
        inputs.p.scale, inputs.p.slope, *inputs.settings(),
        PREMULTIPLIED=inputs.premultiplied, SIGN_BITS=inputs.signs, SEGMENTS=segments, TIED=inputs.tied,
        D_EDGE_KEYS=d_keys.numel() > 0, D_EDGE_VALUES=d_values.numel() > 0, **inputs.edge_constants(),
        **inputs.constants(s), **inputs.value_constants(s),
    )  # fmt: skip
    return parts.sum(1).sum(0)  # in two steps: the first has enough work for the GPU


def query_gradients(inputs: EdgeInputs, ds: Tensor, signs: Tensor) -> Tensor:
    """dq `[batch, queries, heads, head_dim]`."""
    dq = empty_nodes(inputs.p, inputs.queries, inputs.head_dim, inputs.q.dtype)
    by_query = inputs.layout.by_query
    start_dq(inputs, by_query.whole, ds, signs, dq, False)
    if by_query.segments is not None:
        part = empty_nodes(inputs.p, by_query.segments.nodes.numel(), inputs.head_dim, torch.float32)
        start_dq(inputs, by_query.segments, ds, signs, part, True)
        merge(by_query, part, dq)
    return dq


def start_dq(inputs: EdgeInputs, nodes: NodeRanges, ds: Tensor, signs: Tensor, dq: Tensor, segments: bool) -> None:
    size, edges = (4, EDGES_DQ_SUMS) if inputs.premultiplied or inputs.signs else (inputs.k.element_size(), EDGES_DQ)
    s, count = tile_for(inputs.heads, inputs.head_dim, 1, size, edges), nodes.nodes.numel()
    if count:
        start(
            dq_kernel, inputs.grid(count, s),
            inputs.q, inputs.k, inputs.weight, inputs.edge_tensors()[1], ds, signs, *nodes, inputs.layout.columns, dq,
            inputs.edge_strides()[1],
            count, inputs.layout.columns.numel(), *node_strides(inputs.q), *node_strides(inputs.k), batch_stride(dq),
            inputs.p.scale, inputs.p.slope,
            PREMULTIPLIED=inputs.premultiplied, SIGN_BITS=inputs.signs, SEGMENTS=segments,
            EDGE_KEYS=inputs.edge_constants()["EDGE_KEYS"], **inputs.constants(s),
        )  # fmt: skip


def sum_groups(inputs: EdgeInputs, x: Tensor) -> Tensor:
    """A gradient `[batch, keys, heads, d]` as `[batch, kv_heads, keys, d]`, heads that share keys added up."""
    kv_heads = inputs.k.shape[1]
    x = x if kv_heads == inputs.heads else x.unflatten(2, (kv_heads, -1)).sum(3)
    return x.transpose(1, 2)


def rel_bias_gradient(inputs: EdgeInputs, ds: Tensor, rel_bias: DistanceBias) -> Tensor:
    """The gradients of the edges' scores, summed by distance: `[heads, n]`."""
    entries = rel_bias.table.shape[1]
    distance = inputs.edges.rows + (inputs.keys - inputs.queries) - inputs.edges.columns
    index = (distance + rel_bias.zero).clamp(0, entries - 1)
    return ds.new_zeros(entries, inputs.heads).index_put_((index,), ds.sum(0), accumulate=True).mT
