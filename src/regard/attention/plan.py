"""The plan of a call: which backend runs it, why the others do not, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack, overload

from torch import Tensor

from ..machine import format_bytes
from .attend import cut_unseen_keys, has_rows
from .backends import BACKENDS, choose_backend
from .backends.backend import reason_against
from .backends.blockwise.schedule import chunk_shape, merge_heads
from .call import Call, cast_for_autocast, check_call, lower
from .parts.edges import EdgeFeatures, sorted_edges
from .parts.mask import NONE, Mask
from .parts.methods import Exact, Method
from .parts.pair_bias import PairBias
from .parts.parts import PartOptions, Parts
from .parts.places import Places
from .parts.positions import Position
from .parts.scores import Additive, Score
from .parts.sink import Sink
from .sharding import SequenceLayout, SequencePlan, check_layout


@dataclass(frozen=True)
class Plan:
    """How a call will be run. `reasons` says why each other backend does not run it.

    `operations` are the multiplications and additions of the forward pass over the visited pairs; `bytes` what must be
    read and written at least; `peak` an estimate of the memory it needs besides its arguments; `tiles` the share of
    tiles (for a graph: of pairs) that are visited.
    """

    backend: str
    reasons: dict[str, str]
    operations: int
    bytes: int
    peak: int
    tiles: float
    description: str

    def __str__(self) -> str:
        rows = [("call", self.description), ("backend", self.backend)]
        rows += [(f"  not {name}", why) for name, why in self.reasons.items()]
        rows += [
            ("operations", f"{self.operations:,}"),
            ("bytes", format_bytes(self.bytes)),
            ("peak memory", format_bytes(self.peak)),
            ("tiles visited", f"{self.tiles:.1%}"),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


class AttendOptions(PartOptions, total=False):
    """The options of `attend` that `plan` takes."""

    backend: str


@overload
def plan(q: Tensor, k: Tensor, v: Tensor, *, layout: None = None, **options: Unpack[AttendOptions]) -> Plan: ...


@overload
def plan(
    q: Tensor, k: Tensor, v: Tensor, *, layout: SequenceLayout, **options: Unpack[AttendOptions]
) -> SequencePlan: ...


def plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score | None = None,
    position: Position | None = None,
    mask: Mask | None = None,
    method: Method | None = None,
    dropout: float = 0.0,
    sink: Sink | None = None,
    bias: PairBias | None = None,
    places: Places | None = None,
    edges: EdgeFeatures | None = None,
    backend: str = "auto",
    layout: SequenceLayout | None = None,
) -> Plan | SequencePlan:
    """How `attend` would run this call, without running it; raises as `attend` does.

    With a `layout` it is what the call costs every process: rows, tiles, bytes and predicted time.

    >>> import torch, regard as rg
    >>> x = torch.zeros(1, 8, 4096, 64)
    >>> planned = rg.plan(x, x, x, mask=rg.Causal() & rg.Window(255))
    >>> planned.backend, planned.tiles < 0.1
    ('blockwise', True)
    """
    parts = Parts(score, position, mask, method, dropout, sink, bias, places, edges)
    if layout is not None:
        check_layout(layout)
        return layout.plan(q, k, v, parts)
    query, key, value = cast_for_autocast(q, k, v)
    whole = bool(dropout) or bias is not None or places is not None or has_rows(position)
    if mask is not None and isinstance(parts.method, Exact) and not whole:
        key, value = cut_unseen_keys(query, key, value, mask)
    call = check_call(query, key, value, parts)
    shown = [str(part) for part in (parts.score, position, bias, edges, mask, sink, places, method) if part is not None]
    text = f"{' · '.join(shown)} on q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}, {q.dtype}"
    if not isinstance(parts.method, Exact):
        reasons = dict.fromkeys(BACKENDS, f"{type(method).__name__} is not exact, and backends run Exact()")
        return Plan(type(method).__name__.lower(), reasons, 0, count_bytes(call), 0, 1.0, text)
    chosen = choose_backend(call, backend).name
    order = list(BACKENDS)
    reasons = {
        name: reason_against(other, call)
        or (f"{chosen} comes first" if order.index(chosen) < order.index(name) else f"{chosen} was requested")
        for name, other in BACKENDS.items()
        if name != chosen
    }
    tiles = visited_tiles(call, chosen)
    return Plan(
        chosen, reasons, count_operations(call, tiles), count_bytes(call), estimate_peak(call, chosen), tiles, text
    )


def visited_tiles(call: Call, backend: str) -> float:
    """The share of tiles (along edges: of pairs) that a backend computes."""
    if call.empty:
        return 0.0
    if backend == "edges":
        return sorted_edges(call.mask, call.grid).rows.numel() / (call.grid.queries * call.grid.keys)
    if backend in ("reference", "dense"):
        return 1.0
    shape = chunk_shape(lower(call))
    return float((merge_heads(call.mask, call.grid, shape.rows, shape.columns) != NONE).float().mean())


def count_operations(call: Call, tiles: float) -> int:
    """Multiplications and additions of the forward pass."""
    grid = call.grid
    pairs = grid.batch * grid.heads * grid.queries * grid.keys * tiles
    per_score = (4 if isinstance(call.score, Additive) else 2) * call.q.shape[-1] * count_products(call)
    return int(pairs * (per_score + 2 * call.v.shape[-1]))


def count_products(call: Call) -> int:
    """Products of vectors in a score: that of query and key, and those with vectors by distance."""
    return 1 if call.position is None else 1 + call.position.count_vectors(call.q, call.k)


def count_bytes(call: Call) -> int:
    """Bytes read and written at least: every argument once, and the output."""
    output = call.q.shape[0] * call.q.shape[1] * call.q.shape[2] * call.v.shape[3]
    pairs = [] if call.bias is None else [call.bias.bias]
    pairs += [] if call.edges is None else list(call.edges.tensors().values())
    return sum(x.numel() * x.itemsize for x in (call.q, call.k, call.v, *pairs)) + output * call.v.itemsize


def estimate_peak(call: Call, backend: str) -> int:
    """Bytes besides the arguments that the forward pass holds at once, roughly."""
    grid, size = call.grid, call.exact.itemsize
    heads = grid.batch * grid.heads
    output = heads * grid.queries * call.v.shape[-1] * call.v.itemsize
    if backend == "reference":
        features = call.q.shape[-1] if isinstance(call.score, Additive) else 1
        return output + 3 * heads * grid.queries * grid.keys * size * features
    if backend == "dense":
        features = call.q.shape[-1] if isinstance(call.score, Additive) else 1
        return output + 2 * heads * grid.queries * grid.keys * size * features
    if backend == "edges":
        return output + 4 * sorted_edges(call.mask, grid).rows.numel() * heads * size
    if backend == "sdpa":
        return output + heads * grid.queries * size
    shape = chunk_shape(lower(call))
    scores = min(shape.batch, grid.batch) * grid.heads * shape.rows * shape.width * size
    exact = 0 if call.q.dtype == call.exact else sum(x.numel() * size for x in (call.q, call.k, call.v))
    return output + exact + 3 * scores + heads * grid.queries * size
