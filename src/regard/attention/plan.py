"""The plan: which backend will run a call and why each other will not, and what it will cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadInput
from .backends import BACKENDS, choose_backend
from .backends.backend import reason_against
from .backends.blockwise.schedule import share
from .backends.blockwise.tile import shape_for
from .call import Call, lower, make_call
from .device_memory import format_bytes
from .parts.mask import Mask
from .parts.methods import Exact, Method
from .parts.positions import Position
from .parts.scores import Additive, Score


@dataclass(frozen=True)
class Plan:
    """How a call will be run. `reasons` says what speaks against each backend that will not run it.

    `operations` are the multiplications and additions of the forward pass over the pairs that are visited; `bytes` what
    must be read and written at least; `peak` an estimate of the memory it needs beside its arguments; `tiles` the share
    of tiles (for a graph: of pairs) that are visited.
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
    if method is not None and not isinstance(method, Method):
        raise BadInput(f"method is {method!r:.80}; it must be a Method, such as Exact() or Nystrom(landmarks=64).")
    spare = torch.Generator()  # planning draws nothing that training would miss
    call = make_call(q, k, v, score=score, position=position, mask=mask, dropout=dropout, generator=spare)
    parts = [str(part) for part in (call.score, position, mask, method) if part is not None]
    text = f"{' · '.join(parts)} on q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}, {q.dtype}"
    if method is not None and not isinstance(method, Exact):
        every = dict.fromkeys(BACKENDS, f"{type(method).__name__} computes its own way")
        return Plan(type(method).__name__.lower(), every, 0, moved(call), 0, 1.0, text)
    name = choose_backend(call, backend).name
    others = {
        other: reason_against(module, call) or rank(other, name) for other, module in BACKENDS.items() if other != name
    }
    tiles = visited(call, name)
    return Plan(name, others, operations(call, tiles), moved(call), peak(call, name), tiles, text)


def rank(other: str, chosen: str) -> str:
    """Why a backend that could run does not: it stands later in the list, or was not the one asked for."""
    order = list(BACKENDS)
    return f"{chosen} comes first" if order.index(chosen) < order.index(other) else f"{chosen} was asked for"


def visited(call: Call, name: str) -> float:
    """The share of the pairs' tiles that a backend computes."""
    if call.empty:
        return 0.0
    if name == "edges":
        edges = call.mask.sort(call.grid.queries, call.grid.keys).rows.numel()  # type: ignore[attr-defined]
        return edges / (call.grid.queries * call.grid.keys)
    if name == "reference":
        return 1.0
    return share(call.mask, call.grid, shape_for(lower(call))[0])


def operations(call: Call, tiles: float) -> int:
    """Multiplications and additions of the forward pass."""
    grid = call.grid
    pairs = grid.batch * grid.heads * grid.queries * grid.keys * tiles
    vectors = call.position is not None and call.position.dot_only and not hasattr(call.position, "base")
    each = (4 if isinstance(call.score, Additive) else 2) * call.q.shape[-1] * (2 if vectors else 1)
    return int(pairs * (each + 2 * call.v.shape[-1]))


def moved(call: Call) -> int:
    """Bytes read and written at least: every argument once, and the output."""
    output = call.q.shape[0] * call.q.shape[1] * call.q.shape[2] * call.v.shape[3]
    return sum(x.numel() * x.itemsize for x in (call.q, call.k, call.v)) + output * call.v.itemsize


def peak(call: Call, name: str) -> int:
    """Bytes beside the arguments that the forward pass holds at once, roughly."""
    grid, size = call.grid, call.exact.itemsize
    heads = grid.batch * grid.heads
    output = heads * grid.queries * call.v.shape[-1] * call.v.itemsize
    if name == "reference":
        wide = call.q.shape[-1] if isinstance(call.score, Additive) else 1
        return output + 3 * heads * grid.queries * grid.keys * size * wide
    if name == "edges":
        edges = call.mask.sort(grid.queries, grid.keys).rows.numel()  # type: ignore[attr-defined]
        return output + 4 * edges * heads * size
    if name == "sdpa":
        return output + heads * grid.queries * size
    shape, together = shape_for(lower(call))
    held = min(together, grid.batch) * grid.heads * shape.rows * shape.width * size
    exact = 0 if call.q.dtype == call.exact else sum(x.numel() * size for x in (call.q, call.k, call.v))
    return output + exact + 3 * held + heads * grid.queries * size
