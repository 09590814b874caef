"""The plan of a call: which backend runs it, why the others do not, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .backends import BACKENDS, choose_backend
from .backends.backend import reason_against
from .backends.blockwise.schedule import chunk_shape, merge_heads
from .call import Call, cast_for_autocast, check_call, lower
from .device_memory import format_bytes
from .parts.edges import sorted_edges
from .parts.mask import NONE, Mask
from .parts.methods import Exact, Method
from .parts.parts import Parts
from .parts.positions import Position, Shaw, TransformerXL
from .parts.scores import Additive, Score


@dataclass(frozen=True)
class Plan:
    """How a call will be run. `reasons` says why each other backend does not run it.

    `operations` are the multiplications and additions of the forward pass over the visited pairs; `bytes` what must be
    read and written at least; `peak` an estimate of the memory it needs beside its arguments; `tiles` the share of
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
    backend: str = "auto",
) -> Plan:
    """How `attend` would run this call, without running it; raises as `attend` does.

    >>> import torch, regard as rg
    >>> x = torch.zeros(1, 8, 4096, 64)
    >>> planned = rg.plan(x, x, x, mask=rg.Causal() & rg.Window(255))
    >>> planned.backend, planned.tiles < 0.1
    ('blockwise', True)
    """
    parts = Parts(score, position, mask, method, dropout)
    call = check_call(*cast_for_autocast(q, k, v), parts)
    shown = [str(part) for part in (parts.score, position, mask, method) if part is not None]
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
    if backend == "reference":
        return 1.0
    shape = chunk_shape(lower(call))
    return float((merge_heads(call.mask, call.grid, shape.rows, shape.columns) != NONE).float().mean())


def count_operations(call: Call, tiles: float) -> int:
    """Multiplications and additions of the forward pass."""
    grid = call.grid
    pairs = grid.batch * grid.heads * grid.queries * grid.keys * tiles
    relative = isinstance(call.position, Shaw | TransformerXL)
    per_score = (4 if isinstance(call.score, Additive) else 2) * call.q.shape[-1] * (2 if relative else 1)
    return int(pairs * (per_score + 2 * call.v.shape[-1]))


def count_bytes(call: Call) -> int:
    """Bytes read and written at least: every argument once, and the output."""
    output = call.q.shape[0] * call.q.shape[1] * call.q.shape[2] * call.v.shape[3]
    return sum(x.numel() * x.itemsize for x in (call.q, call.k, call.v)) + output * call.v.itemsize


def estimate_peak(call: Call, backend: str) -> int:
    """Bytes beside the arguments that the forward pass holds at once, roughly."""
    grid, size = call.grid, call.exact.itemsize
    heads = grid.batch * grid.heads
    output = heads * grid.queries * call.v.shape[-1] * call.v.itemsize
    if backend == "reference":
        features = call.q.shape[-1] if isinstance(call.score, Additive) else 1
        return output + 3 * heads * grid.queries * grid.keys * size * features
    if backend == "edges":
        return output + 4 * sorted_edges(call.mask, grid).rows.numel() * heads * size
    if backend == "sdpa":
        return output + heads * grid.queries * size
    shape = chunk_shape(lower(call))
    scores = min(shape.batch, grid.batch) * grid.heads * shape.rows * shape.width * size
    exact = 0 if call.q.dtype == call.exact else sum(x.numel() * size for x in (call.q, call.k, call.v))
    return output + exact + 3 * scores + heads * grid.queries * size
