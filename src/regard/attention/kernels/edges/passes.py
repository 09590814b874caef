"""Attention along the edges of a graph, fused: nothing of an edge but one number a head is ever stored.

Forward walks by query. Backward walks by key first: one gather of q and of the output's gradient gives dk, dv and the
gradient of every edge's score; then by query, where those are summed into dq. Nodes with very many edges are cut into
segments whose results are merged.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...call import Problem
from ...dropout import kept_scale, threshold
from ...parts.edges import Edges, Order
from .kernels import by_key_kernel, by_query_kernel, facts_kernel, forward_kernel, merge_kernel

FEATURES = 256  # features of a node that one program holds: heads beyond them go to other programs
LANES = 32  # threads of a program: one warp, so that no sum crosses a barrier
EDGES_FORWARD = {4: 4, 2: 4}  # edges in a chunk at 128 features a program, by bytes of a feature
EDGES_BY_KEY = {4: 4, 2: 2}
EDGES_BY_QUERY = {4: 8, 2: 4}
EDGES_SUMMED = {4: 16}  # where dq needs no neighbour's features
STAGES = 1  # a neighbour's number is loaded a step ahead by hand
GRAIN = 8  # nodes stand by falling numbers of edges in steps of this; inside a step they keep their order
SEGMENT = 1024  # edges of a node that one program walks; nodes with more are cut
PROGRAMS = 1 << 17  # that leave their share of the weight's gradient before those are added up
SUMMED = 256  # of them at once
KEEP = ""  # what the cache does with keys of one number a head, which may fit into it: "" or "evict_last"
LARGEST_DIM = 256
SIGNS_UP_TO = 32  # head_dim up to which leaky ReLU's slopes are kept as bits, at most 32
LARGEST_INDEX = (1 << 31) - (1 << 16)  # kernels look a little beyond the last edge


class Walk(NamedTuple):
    """Nodes and where their edges begin and end, each `[nodes or segments]`, int32."""

    nodes: Tensor
    begins: Tensor
    ends: Tensor


class Side(NamedTuple):
    """One end of the edges: whole nodes, those with most edges first, and the segments of nodes with too many."""

    whole: Walk
    segments: Walk | None
    cut: Tensor | None  # [cut nodes]
    offsets: Tensor | None  # [cut nodes + 1]: where each one's segments begin


class Layout(NamedTuple):
    """A graph as the kernels read it; indices are int32."""

    by_query: Side
    by_key: Side
    columns: Tensor  # [edges]: the key of each edge, by query
    rows: Tensor  # [edges]: the query of each edge, by key
    slots: Tensor  # [edges]: the edge's number by query, for each by key


_layouts = WeakTensorKeyDictionary()  # by the tensor of columns: masks that a compiled graph decodes share it


def covers(p: Problem) -> str | None:
    """Why these kernels cannot run the problem; None when they can."""
    if not isinstance(p.mask, Edges):
        return "the mask is not a graph: Edges(edge_index) alone"
    if p.vectors is not None:
        return "vectors by distance along edges have no kernel"
    if any(x.dtype == torch.float64 for x in (p.q, p.k, p.v)):
        return "float64 has no kernel"
    if max(p.q.shape[3], p.v.shape[3]) > LARGEST_DIM:
        return f"head_dim is above {LARGEST_DIM}"
    if not p.q.numel() * p.v.numel():
        return "there is nothing to compute"
    if p.q.shape[0] > 65535:
        return "there are more than 65535 batches"
    if max(p.grid.queries, p.grid.keys, p.mask.order(p.grid.queries, p.grid.keys).rows.numel()) > LARGEST_INDEX:
        return "there are more nodes or edges than 32 bits can number"
    return None


def layout(order: Order) -> Layout:
    """The graph as the kernels read it, made once and remembered as long as the sorted edges live."""
    known = _layouts.get(order.columns)
    if known is None:
        known = Layout(
            side(order.starts),
            side(order.key_starts),
            order.columns.int(),
            order.rows[order.by_key].int(),
            order.by_key.int(),
        )
        _layouts[order.columns] = known
    return known


def side(starts: Tensor) -> Side:
    """The nodes whose runs of edges begin at `starts [nodes + 1]`: the most edges first."""
    counts = starts.diff()
    short = counts <= SEGMENT
    steps = torch.where(short, (counts + GRAIN - 1) // GRAIN, -1)
    nodes = steps.argsort(descending=True, stable=True)[: int(short.sum())]
    whole = Walk(nodes.int(), starts[nodes].int(), starts[nodes + 1].int())
    cut = (~short).nonzero().flatten()
    if not cut.numel():
        return Side(whole, None, None, None)
    pieces = (counts[cut] + SEGMENT - 1) // SEGMENT
    offsets = torch.nn.functional.pad(pieces.cumsum(0), (1, 0))
    which = torch.repeat_interleave(torch.arange(cut.numel(), device=cut.device), pieces)
    owner = cut[which]
    begins = starts[owner] + SEGMENT * (torch.arange(which.numel(), device=cut.device) - offsets[which])
    ends = torch.minimum(begins + SEGMENT, starts[owner + 1])
    return Side(whole, Walk(owner.int(), begins.int(), ends.int()), cut.int(), offsets.int())


class Shape(NamedTuple):
    """The sizes of a kernel's tiles, and its grid but for the nodes."""

    heads: int  # BH
    head_dim: int  # BD
    value_dim: int  # BC
    edges: int  # BE
    nodes: int  # BN


def power(x: int) -> int:
    """The least power of two that is not below x."""
    return 1 << (x - 1).bit_length()


def shape(heads: int, head_dim: int, value_dim: int, size: int, edges: dict[int, int]) -> Shape:
    """Tiles that give every thread of a warp 16 bytes of a neighbour's features; `size` is a feature's bytes."""
    wide = max(power(head_dim), power(value_dim))
    together = min(power(heads), max(FEATURES // wide, 1))
    nodes = min(max(LANES * 16 // size // (together * wide), 1), LANES)
    chunk = max(edges[size] * 128 * 4 // size // (nodes * together * wide), 1)
    return Shape(together, power(head_dim), power(value_dim), min(chunk, 16), nodes)


def packed(x: Tensor) -> Tensor:
    """x `[batch, heads, tokens, d]` with a node's features side by side in memory: itself if they are, or a copy."""
    heads, dim = x.shape[1], x.shape[3]
    ready = (dim == 1 or x.stride(3) == 1) and (heads == 1 or x.stride(1) == dim)
    return x if ready else x.transpose(1, 2).contiguous().transpose(1, 2)


def strides(x: Tensor) -> tuple[int, int]:
    """(token, batch) strides; a single batch's is 0, so that kernels are not made anew for it."""
    return x.stride(2), x.stride(0) if x.shape[0] > 1 else 0


def per_node(p: Problem, count: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Room for `[batch, count, heads, dim]`."""
    return p.v.new_empty((p.q.shape[0], count, p.q.shape[1], dim), dtype=dtype)


def shares(k: Tensor, v: Tensor) -> bool:
    """Whether keys and values are one tensor, so that a neighbour is read once."""
    same = k.data_ptr() == v.data_ptr() and k.dtype == v.dtype
    return same and k.shape == v.shape and k.stride() == v.stride()


class Run:
    """A problem made ready for the kernels: packed tensors, and the arguments that they have in common."""

    def __init__(self, p: Problem):
        self.p = p
        self.batch, self.heads, self.queries, self.head_dim = p.q.shape
        self.keys, self.value_dim = p.v.shape[2:]
        self.layout = layout(p.mask.order(self.queries, self.keys))  # type: ignore[attr-defined]
        self.shared = shares(p.k, p.v)
        self.tied = p.tied and self.shared
        self.q, self.k = packed(p.q), packed(p.k)
        self.v = self.k if self.shared else packed(p.v)
        self.weight = self.q if p.weight is None else p.weight.contiguous()
        self.numbers = self.q if p.numbers is None else p.numbers.table.contiguous()
        self.seed = self.layout.columns if p.seed is None else p.seed
        self.ready = p.weight is not None and self.head_dim == 1 and p.numbers is None
        self.signs = p.weight is not None and p.activation != "tanh" and 1 < self.head_dim <= SIGNS_UP_TO

    def shape(self, edges: dict[int, int]) -> Shape:
        size = max(x.element_size() for x in (self.q, self.v))
        return shape(self.heads, self.head_dim, self.value_dim, size, edges)

    def grid(self, count: int, s: Shape) -> tuple[int, int, int]:
        return triton.cdiv(count, s.nodes), triton.cdiv(self.heads, s.heads), self.batch

    def numbers_and_dropout(self) -> tuple:
        p = self.p
        size, zero = (1, 0) if p.numbers is None else (p.numbers.table.shape[1], p.numbers.zero)
        return size, zero, threshold(p.dropout), kept_scale(p.dropout) if p.seed is not None else 1.0

    def constants(self, s: Shape) -> dict:
        return {
            "HEADS": self.heads, "GROUP": self.heads // self.k.shape[1], "D": self.head_dim,
            "BH": s.heads, "BD": s.head_dim, "BE": s.edges, "BN": s.nodes, "GRAIN": GRAIN,
            "ADDITIVE": self.p.weight is not None, "TANH": self.p.activation == "tanh",
            "num_warps": LANES // 32, "num_stages": STAGES,
        }  # fmt: skip

    def value_constants(self, s: Shape) -> dict:
        parts = {"NUMBERS": self.p.numbers is not None, "DROPOUT": self.p.seed is not None}
        return {"C": self.value_dim, "BC": s.value_dim, **parts}


def forward(p: Problem) -> tuple[Tensor, Tensor]:
    """Output `[batch, heads, queries, value dim]` and log-sum-exp, float32; a node's heads lie side by side."""
    run = Run(p)
    out = per_node(p, run.queries, run.value_dim, torch.float32)
    lse = per_node(p, run.queries, 1, torch.float32)[..., 0]
    by_query = run.layout.by_query
    launch_forward(run, by_query.whole, out, lse, False)
    if by_query.segments is not None:
        merge_forward(run, by_query, out, lse)
    return out.transpose(1, 2), lse.transpose(1, 2)


def launch_forward(run: Run, walk: Walk, out: Tensor, lse: Tensor, segments: bool) -> None:
    s, count = run.shape(EDGES_FORWARD), walk.nodes.numel()
    if not count:
        return
    forward_kernel[run.grid(count, s)](
        run.q, run.k, run.v, run.weight, run.numbers, run.seed, *walk, run.layout.columns, out, lse,
        count, run.queries, run.keys, *strides(run.q), *strides(run.k), *strides(run.v),
        outer(out), outer(lse), run.p.scale, run.p.slope, *run.numbers_and_dropout(),
        SHARED=run.shared, SEGMENTS=segments, KEEP=KEEP if run.head_dim == 1 else "",
        **run.constants(s), **run.value_constants(s),
    )  # fmt: skip


def outer(x: Tensor) -> int:
    """The stride of batch; 0 when there is one."""
    return x.stride(0) if x.shape[0] > 1 else 0


def merge_forward(run: Run, nodes: Side, out: Tensor, lse: Tensor) -> None:
    """Walk the segments of nodes with very many edges, and put what they found together."""
    count = nodes.segments.nodes.numel()  # type: ignore[union-attr]
    part = per_node(run.p, count, run.value_dim, torch.float32)
    part_lse = per_node(run.p, count, 1, torch.float32)[..., 0]
    launch_forward(run, nodes.segments, part, part_lse, True)  # type: ignore[arg-type]
    merge(nodes, part, out, part_lse, lse)


def merge(nodes: Side, part: Tensor, out: Tensor, part_lse: Tensor | None = None, lse: Tensor | None = None) -> None:
    """Put parts `[batch, segments, heads, d]` together, weighed where they have a log-sum-exp, in `out`'s cut nodes."""
    batch, _, heads, dim = part.shape
    weighed = (part, out) if part_lse is None or lse is None else (part_lse, lse)
    merge_kernel[nodes.cut.numel(), heads, batch](  # type: ignore[union-attr]
        part, weighed[0], nodes.offsets, nodes.cut, out, weighed[1],
        part.stride(0), weighed[0].stride(0), out.stride(0), weighed[1].stride(0),
        HEADS=heads, C=dim, BC=power(dim), BS=32, WEIGHED=part_lse is not None, num_warps=4,
    )  # fmt: skip


def backward(p: Problem, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight, numbers, asking, table; None for what is not there."""
    run = Run(p)
    grad = packed(grad.to(p.v.dtype))  # it came from a result of that type: nothing is lost
    facts = node_facts(run, grad, packed(output), lse)
    ds = p.v.new_empty((run.batch, run.layout.columns.numel(), run.heads), dtype=torch.float32)
    bits = torch.int16 if run.head_dim <= 16 else torch.int32
    signs = ds.new_empty(ds.shape if run.signs else 1, dtype=bits)
    dk, dv, dweight = key_gradients(run, (grad, facts, ds, signs))
    dq = query_gradients(run, ds, signs)
    dnumbers = number_gradients(run, ds) if p.numbers is not None and p.wanted[4] else None
    dk, dv = per_kv_head(run, dk), None if run.tied else per_kv_head(run, dv)
    return [dq.transpose(1, 2), dk, dv, dweight, dnumbers, None, None]


def node_facts(run: Run, grad: Tensor, output: Tensor, lse: Tensor) -> Tensor:
    """What backward asks of each query, `[batch, queries, 2, heads]`."""
    facts = lse.new_empty((run.batch, run.queries, 2, run.heads))
    heads, width = power(run.heads), power(run.value_dim)
    heads = min(heads, max(FEATURES // width, 1))
    nodes = max(4096 // (heads * width), 1)
    facts_kernel[triton.cdiv(run.queries, nodes), triton.cdiv(run.heads, heads), run.batch](
        grad, output, lse, facts, run.queries, *strides(grad), *strides(output),
        lse.stride(2), lse.stride(1), lse.stride(0),
        HEADS=run.heads, C=run.value_dim, BH=heads, BC=width, BN=nodes, num_warps=4,
    )  # fmt: skip
    return facts


def key_gradients(run: Run, tensors: tuple) -> tuple[Tensor, Tensor, Tensor | None]:
    """dk and dv `[batch, keys, heads, ...]`, dweight; of `tensors` (grad, facts, ds, signs) the last two are filled.

    Where keys and values are tied, dk is both, and dv is dk.
    """
    grouped = run.k.shape[1] != run.heads
    dk = per_node(run.p, run.keys, run.head_dim, torch.float32 if grouped else run.k.dtype)
    dv = dk if run.tied else per_node(run.p, run.keys, run.value_dim, torch.float32 if grouped else run.v.dtype)
    by_key = run.layout.by_key
    dweight = run.q.new_zeros((run.heads, run.head_dim), dtype=torch.float32)
    for some in in_turn(run, by_key.whole):
        dweight += launch_by_key(run, some, tensors, dk, dv, False)
    if by_key.segments is not None:
        count = by_key.segments.nodes.numel()
        part_k = per_node(run.p, count, run.head_dim, torch.float32)
        part_v = part_k if run.tied else per_node(run.p, count, run.value_dim, torch.float32)
        dweight += launch_by_key(run, by_key.segments, tensors, part_k, part_v, True)
        merge(by_key, part_k, dk)
        if not run.tied:
            merge(by_key, part_v, dv)
    return dk, dv, None if run.p.weight is None else dweight


def in_turn(run: Run, walk: Walk) -> list[Walk]:
    """The nodes in parts that are walked one after another, so that there is room for each program's dweight."""
    count = walk.nodes.numel()
    step = PROGRAMS * run.shape(EDGES_BY_KEY).nodes if run.p.weight is not None else max(count, 1)
    return [Walk(*(x[first : first + step] for x in walk)) for first in range(0, count, step)]


def launch_by_key(run: Run, walk: Walk, tensors: tuple, dk: Tensor, dv: Tensor, segments: bool) -> Tensor:
    """dweight, summed over these nodes; `tensors` are grad, facts, ds, signs."""
    grad, facts, ds, signs = tensors
    s, count = run.shape(EDGES_BY_KEY), walk.nodes.numel()
    grid = run.grid(count, s)
    programs = run.batch * grid[0] if run.p.weight is not None else 1
    parts = facts.new_empty((-(-programs // SUMMED), SUMMED, run.heads, run.head_dim))
    parts.flatten(0, 1)[programs:].zero_()
    by_key_kernel[grid](
        run.q, run.k, run.v, run.weight, run.numbers, run.seed, grad, facts, *walk, run.layout.rows,
        run.layout.slots, dk, dv, ds, signs, parts,
        count, run.queries, run.keys, run.layout.columns.numel(),
        *strides(run.q), *strides(run.k), *strides(run.v), *strides(grad), outer(dk), outer(dv),
        run.p.scale, run.p.slope, *run.numbers_and_dropout(),
        READY=run.ready, SIGNS=run.signs, SEGMENTS=segments, TIED=run.tied,
        **run.constants(s), **run.value_constants(s),
    )  # fmt: skip
    return parts.sum(1).sum(0)  # in two steps, of which the first has work for the whole GPU


def query_gradients(run: Run, ds: Tensor, signs: Tensor) -> Tensor:
    """dq `[batch, queries, heads, head_dim]`."""
    dq = per_node(run.p, run.queries, run.head_dim, run.q.dtype)
    by_query = run.layout.by_query
    launch_by_query(run, by_query.whole, ds, signs, dq, False)
    if by_query.segments is not None:
        part = per_node(run.p, by_query.segments.nodes.numel(), run.head_dim, torch.float32)
        launch_by_query(run, by_query.segments, ds, signs, part, True)
        merge(by_query, part, dq)
    return dq


def launch_by_query(run: Run, walk: Walk, ds: Tensor, signs: Tensor, dq: Tensor, segments: bool) -> None:
    size, edges = (4, EDGES_SUMMED) if run.ready or run.signs else (run.k.element_size(), EDGES_BY_QUERY)
    s, count = shape(run.heads, run.head_dim, 1, size, edges), walk.nodes.numel()
    if count:
        by_query_kernel[run.grid(count, s)](
            run.q, run.k, run.weight, ds, signs, *walk, run.layout.columns, dq,
            count, run.layout.columns.numel(), *strides(run.q), *strides(run.k), outer(dq),
            run.p.scale, run.p.slope,
            READY=run.ready, SIGNS=run.signs, SEGMENTS=segments, **run.constants(s),
        )  # fmt: skip


def per_kv_head(run: Run, x: Tensor) -> Tensor:
    """A gradient `[batch, keys, heads, d]` as `[batch, kv_heads, keys, d]`, heads that share keys added up."""
    kv_heads = run.k.shape[1]
    x = x if kv_heads == run.heads else x.unflatten(2, (kv_heads, -1)).sum(3)
    return x.transpose(1, 2)


def number_gradients(run: Run, ds: Tensor) -> Tensor:
    """The gradients of the edges' scores, summed by distance: `[heads, n]`."""
    order: Order = run.p.mask.order(run.queries, run.keys)  # type: ignore[attr-defined]
    table, zero, _ = run.p.numbers  # type: ignore[misc]
    distance = order.rows + (run.keys - run.queries) - order.columns
    index = (distance + zero).clamp(0, table.shape[1] - 1)
    return ds.new_zeros(table.shape[1], run.heads).index_put_((index,), ds.sum(0), accumulate=True).mT
