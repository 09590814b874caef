"""How the dot family's kernels are run: which tiles each pass walks, in which pieces, with which arguments.

All of that follows from a problem's `Facts` and its mask. It is worked out at the first call and remembered, so that
another call like it allocates its results and starts its kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...cache import Memory, constant
from ...call import Problem
from ...parts.mask import Mask
from ...parts.positions import Numbers
from ..launch import Launch, compile_together
from ..tile_lists import Lists, diagonals, lists
from .kernels import backward_columns, backward_diagonals, backward_rows, forward_tiles, prepare_rows
from .relative import Bands, by_bands, over_bands
from .walks import Facts, Shape, Shapes, Walk, power

FORWARD = Shapes(
    {
        2: {64: Shape(64, 64, 4, 3), 128: Shape(128, 128, 8, 3), 256: Shape(128, 64, 8, 2)},
        4: {64: Shape(64, 64, 4, 1), 128: Shape(64, 32, 4, 1), 256: Shape(16, 32, 4, 1)},
    },
    {2: {64: Shape(64, 64, 4, 3), 128: Shape(64, 64, 8, 2)}, 4: {64: Shape(32, 32, 4, 1)}},
)
ROWS = Shapes(
    {
        2: {64: Shape(64, 64, 4, 3), 128: Shape(128, 64, 8, 3), 256: Shape(64, 32, 8, 2)},
        4: {64: Shape(64, 64, 4, 1), 128: Shape(64, 32, 4, 1), 256: Shape(16, 32, 4, 1)},
    },
    {},
)
COLUMNS = Shapes(
    {
        2: {64: Shape(64, 64, 4, 3), 128: Shape(64, 128, 8, 3), 256: Shape(32, 64, 8, 2)},
        4: {64: Shape(64, 64, 4, 1), 128: Shape(32, 64, 4, 1), 256: Shape(16, 32, 4, 1)},
    },
    {2: {64: Shape(64, 64, 4, 2), 128: Shape(64, 64, 8, 2)}, 4: {64: Shape(32, 32, 4, 1)}},
)
DIAGONALS = Shapes(
    {
        2: {64: Shape(64, 64, 4, 3), 128: Shape(64, 64, 4, 2), 256: Shape(32, 32, 4, 2)},
        4: {64: Shape(64, 64, 4, 1), 128: Shape(32, 32, 4, 1), 256: Shape(32, 32, 8, 1)},
    },
    {},
)
PREPARED = 64  # rows that a program of `prepare_rows` takes


class Known:
    """What was worked out for problems of one kind: their facts, sizes, and each pass's way over the tiles.

    Not their mask: what is kept for as long as a mask's tensors live must not keep them alive.
    """

    def __init__(self, facts: Facts):
        f = self.facts = facts
        self.device, self.dtype = f.grid.device, f.dtype
        self.output = (*f.front, f.grid.queries, f.value_dim)
        self.lines, self.padded = (*f.front, f.grid.queries), (*f.front, f.padded)
        self.queries = (*f.front, f.grid.queries, f.dim)
        self.walks: dict[Callable[..., Any], Any] = {}
        self.compiled = False  # or about to be

    def walk(self, make: Callable[[Facts, Mask], Any], mask: Mask) -> Any:
        """What `make` worked out for the facts and the mask."""
        found = self.walks.get(make)
        if found is None:
            found = self.walks[make] = make(self.facts, mask)
        return found

    def exact(self, size: tuple[int, ...]) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=self.device)

    def rounded(self, size: tuple[int, ...]) -> Tensor:
        return torch.empty(size, dtype=self.dtype, device=self.device)


class Work:
    """A problem's tensors made ready for the kernels, and what is known of such problems."""

    def __init__(self, p: Problem):
        q, k, v = p.q, p.k, p.v
        asking = None if p.vectors is None else p.vectors.queries
        self.sign = (p.scale > 0) - (p.scale < 0)
        self.mask, self.seed = p.mask, p.seed
        steps = None if asking is None else asking.stride()
        name = (Work, q.stride(), k.stride(), v.stride(), steps, q.dtype, p.wanted)
        known = None if p.memo is None else p.memo.get(name)
        if known is None or (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15 or not asked_as_is(asking):
            dtype = v.dtype
            self.q, self.k, self.v = ready(self.signed(q), dtype), ready(k, dtype), ready(v, dtype)
            self.asking = None if asking is None else ready(self.signed(asking), dtype)
            facts = facts_of(p, self.q, self.k, self.v, self.asking)
            known = REMEMBERED.find(p.mask, facts, lambda: Known(facts))
            if p.memo is not None and self.q is q and self.k is k and self.v is v and self.asking is asking:
                p.memo[name] = known
        else:
            self.q, self.k, self.v, self.asking = q, k, v, asking
        self.known, self.facts = known, known.facts
        self.numbers = None if p.numbers is None else self.lines(p)
        self.table = None if p.vectors is None else self.along(p.vectors.table, p.vectors.zero, 1)[:, 0]

    def walk(self, make: Callable[[Facts, Mask], Any]) -> Any:
        return self.known.walk(make, self.mask)

    def signed(self, x: Tensor) -> Tensor:
        """Queries or their gradient with the scale's sign: kernels take the maximum before they scale."""
        return x if self.sign > 0 else -x if self.sign < 0 else torch.zeros_like(x)

    def lines(self, p: Problem) -> Tensor:
        """Slopes a head, or numbers along lines, `[heads, 8, length]`, in units of the scale."""
        table, zero, slopes = p.numbers  # type: ignore[misc]
        return self.along(table.float() / self.facts.scale, zero, 8) if slopes is None else slopes.float()

    def along(self, table: Tensor, zero: int, copies: int) -> Tensor:
        """The table's entries along the line, `[heads, copies, length, ...]`; one copy is in the kernels' type."""
        f = self.facts
        start = f.origin + f.grid.offset + zero
        line = table[:, entries_along(f.length, start, table.shape[1], copies, table.device)]
        return line if copies > 1 else ready(line, f.dtype).contiguous()


def facts_of(p: Problem, q: Tensor, k: Tensor, v: Tensor, asking: Tensor | None) -> Facts:
    """The facts of a problem whose tensors are ready."""
    steps = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *(q if asking is None else asking).stride()[:3])
    return Facts(
        p.grid, v.dtype, p.q.shape[1] // p.k.shape[1], q.shape[3], v.shape[3], steps, abs(p.scale) or 1.0,
        None if p.seed is None else p.dropout, 0 if p.numbers is None else 1 if p.numbers.slopes is None else 2,
        p.vectors is not None, p.summed and any(p.wanted),
    )  # fmt: skip


def asked_as_is(asking: Tensor | None) -> bool:
    return asking is None or not asking.data_ptr() & 15


def forward(p: Problem) -> tuple[Tensor, Tensor]:
    """Output, in float32 where the problem wants it exact, and log-sum-exp."""
    work = Work(p)
    if not work.known.compiled:
        compile_first(work.known, p)
    f, known, walk = work.facts, work.known, work.walk(over_rows)
    output, lse = (known.exact if f.exact else known.rounded)(known.output), known.exact(known.lines)
    parts = walk.outputs(lse)
    walk.start(work.q, work.k, work.v, work.numbers, work.asking, work.table, work.seed, output, lse, *parts)
    if walk.cuts:
        walk.merge(output, lse, *parts)
    return output if f.value_dim == p.v.shape[-1] else output[..., : p.v.shape[-1]].contiguous(), lse


def compile_first(known: Known, p: Problem) -> None:
    """Compile the kernels of a kind of problem that is new, those of backward too where it will come."""
    known.compiled = True
    f, graded = known.facts, any(p.wanted)

    def there_and_back() -> None:
        output, lse = forward(p)
        if graded:
            backward(p, torch.empty_like(output, dtype=p.v.dtype), output, lse)

    dims, parts = (f.dim, f.value_dim, f.share), (f.dropout is None, f.numbers, f.vectors, f.exact)
    compile_together((forward, f.grid.device, f.dtype, *dims, *parts, graded), there_and_back)


def over_rows(f: Facts, mask: Mask) -> Walk:
    """Forward's way: rows of tiles."""
    shape = f.shape(FORWARD)
    tiles = lists(mask, f.grid, shape.rows, shape.columns)
    return Walk(f, forward_tiles, shape, tiles, f.instances, p_ends=ends(tiles) if f.vectors else None)


class Flow(NamedTuple):
    """What backward's passes read beside the problem: d_output, and the lse in base 2 and δ of each row."""

    grad: Tensor
    level: Tensor
    delta: Tensor


def backward(p: Problem, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight (none here), numbers, asking, table."""
    work = Work(p)
    f, known = work.facts, work.known
    grad, output = ready(grad.contiguous(), f.dtype), ready(output.contiguous(), f.output_type)
    flow = Flow(grad, known.exact(known.padded), known.exact(known.padded))
    work.walk(preparing)(output, lse, *flow)
    dnumbers, dasking, dtable = None, None, None
    if p.vectors is None:
        dq, (dk, dv) = by_rows(work, flow), by_columns(work, flow)
        if p.numbers is not None and p.wanted[4]:
            dnumbers = by_diagonals(work, flow, p.numbers)
    else:
        dq, dk, dv, dasking, line = by_bands(work, flow, work.walk(in_bands))
        dtable = folded(f, line, p.vectors.table.shape[1], p.vectors.zero)
    dk, dv = (x if x.shape[1] == p.k.shape[1] else x.unflatten(1, (-1, f.share)).sum(2) for x in (dk, dv))
    if work.sign <= 0:
        dq, dasking = work.signed(dq), None if dasking is None else work.signed(dasking)
    if p.q.shape[-1] != f.dim or p.v.shape[-1] != f.value_dim:
        narrow = lambda x, like: None if x is None else x[..., : like.shape[-1]]  # noqa: E731
        dq, dasking, dk, dtable = (narrow(x, p.q) for x in (dq, dasking, dk, dtable))
        dv = narrow(dv, p.v)
    return [dq, dk, dv, None, dnumbers, dasking, dtable]


def preparing(f: Facts, mask: Mask) -> Launch:
    """What gives each row its level and δ."""
    instances = f.instances
    sizes = {"DV": f.value_dim, "BDV": power(f.value_dim), "BM": PREPARED}
    programs = f.padded // PREPARED * instances
    return Launch(prepare_rows, programs, queries=f.grid.queries, instances=instances, **sizes)


def by_rows(work: Work, flow: Flow) -> Tensor:
    """dq."""
    f, known, walk = work.facts, work.known, work.walk(back_over_rows)
    dq = known.rounded(known.queries)
    partial = walk.room(flow.delta, walk.shape.rows, power(f.dim))
    walk.start(work.q, work.k, work.v, work.numbers, work.seed, *flow, dq, partial)
    if walk.cuts:
        walk.add(dq, partial, walk.shape.rows, power(f.dim), f.scale)
    return dq


def back_over_rows(f: Facts, mask: Mask) -> Walk:
    shape = f.shape(ROWS)
    return Walk(f, backward_rows, shape, lists(mask, f.grid, shape.rows, shape.columns), f.instances)


def by_columns(work: Work, flow: Flow) -> tuple[Tensor, Tensor]:
    """dk and dv; in float32 for each query head where those that share keys have masks of their own."""
    f, known, (walk, parts) = work.facts, work.known, work.walk(over_columns)
    front, columns = (f.grid.batch, f.grid.heads // parts, f.grid.keys), walk.shape.columns
    make = known.rounded if parts == f.share else known.exact
    dk, dv = make((*front, f.dim)), make((*front, f.value_dim))
    partial = [walk.room(flow.delta, columns, power(dim)) for dim in (f.dim, f.value_dim)]
    given = (work.q, work.k, work.v, work.numbers, work.asking, work.table, work.seed)
    walk.start(*given, *flow, dk, dv, *partial, None, None)
    if walk.cuts:
        walk.add(dk, partial[0], columns, power(f.dim))
        walk.add(dv, partial[1], columns, power(f.value_dim))
    return dk, dv


def over_columns(f: Facts, mask: Mask) -> tuple[Walk, int]:
    """Columns of tiles, and how many heads that share keys are taken together: all, unless each has its own mask."""
    shape = f.shape(COLUMNS)
    tiles = lists(mask, f.grid, shape.rows, shape.columns, transposed=True)
    parts = 1 if tiles.head_stride else f.share
    return Walk(f, backward_columns, shape, tiles, f.instances // parts, PARTS=parts), parts


def in_bands(f: Facts, mask: Mask) -> Bands:
    return over_bands(f, mask, f.shape(COLUMNS))


class Diagonals(NamedTuple):
    """The way over diagonals; the bands that it leaves are those of `batch` rows, `lines` of them, from `first` on."""

    walk: Walk
    batch: int
    lines: int
    first: int


def by_diagonals(work: Work, flow: Flow, numbers: Numbers) -> Tensor:
    """d numbers."""
    f, (walk, batch, lines, first) = work.facts, work.walk(over_diagonals)
    band = 2 * walk.shape.columns
    out = f.empty(batch, f.grid.heads, lines * band, 1)
    partial = walk.room(out, band, 1)
    walk.start(work.q, work.k, work.v, work.numbers, work.seed, *flow, out, partial)
    walk.add(out, partial, band, 1)
    line = joined(f, out.unflatten(2, (lines, band)), first)
    return folded(f, line, numbers.table.shape[1], numbers.zero)[..., 0]


def over_diagonals(f: Facts, mask: Mask) -> Diagonals:
    """Diagonals of tiles. The rows of the batch are taken together, unless each has a mask of its own."""
    shape = f.shape(DIAGONALS)
    by_row = lists(mask, f.grid, shape.rows, shape.columns)
    tiles = diagonals(by_row, f.grid)
    parts = 1 if tiles.batch_stride else f.grid.batch
    tile_rows, lines = by_row.starts.shape[1] - 1, tiles.starts.shape[1] - 1
    more = {"parts": parts, "tile_rows": tile_rows, "lines": lines}
    walk = Walk(f, backward_diagonals, shape, tiles, f.instances // parts, **more)
    return Diagonals(walk, f.grid.batch // parts, lines, f.origin - (tile_rows - 1) * shape.columns)


def joined(f: Facts, bands: Tensor, first: int) -> Tensor:
    """The bands of all diagonals, `[batch, heads, diagonals, 2 · size, d]`, added up along the line."""
    size = bands.shape[3] // 2
    low, high = bands.sum(0).split(size, 2)
    line = bands.new_zeros(bands.shape[1], f.length, bands.shape[4])
    count = bands.shape[2] * size
    line[:, first : first + count] += high.flatten(1, 2)
    line[:, first - size : first - size + count] += low.flatten(1, 2)
    return line


def folded(f: Facts, line: Tensor, size: int, zero: int) -> Tensor:
    """The adjoint of `Work.along`: line `[heads, length, d]` as a table of `size` entries."""
    start = f.origin + f.grid.offset + zero  # the entry at x is that of start − x
    low, high = (min(max(x, 0), f.length) for x in (start - size + 2, start))  # entries 1 … size − 2 lie between
    table = line.new_zeros(line.shape[0], size, line.shape[2])
    if size == 1:
        table[:, 0] = line.sum(1)
        return table
    table[:, -1] = line[:, :low].sum(1)
    table[:, 0] = line[:, high:].sum(1)
    if low < high:
        table[:, start - high + 1 : start - low + 1] = line[:, low:high].flip(1)
    return table


@constant
def entries_along(length: int, start: int, entries: int, copies: int, device: torch.device) -> Tensor:
    """Which of a table's entries stands where on the line: start − x at x, the nearest where there is none.

    One copy, `[1, length]`; or eight, `[8, length]`: four that are each one place further right than the last, and four
    of the line reversed (the entry of length − x at x).
    """
    x = torch.arange(length, device=device)
    if copies > 1:
        moved = (x - torch.arange(4, device=device)[:, None]) % length
        x = torch.cat([moved, (length - moved) % length])
    return (start - x.view(copies, length)).clamp(0, entries - 1)


def ready(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the type, its last dim contiguous and a multiple of 16, and everything where loads of 16 bytes can be."""
    if x.dtype != dtype:
        x = x.to(dtype)
    if x.shape[-1] % 16:
        return torch.nn.functional.pad(x, (0, -x.shape[-1] % 16))
    *outer, last = x.stride()
    if last == 1 and not any(step % 8 for step in outer) and not x.data_ptr() % 16:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def ends(tiles: Lists) -> Tensor:
    """Where the run of neighbouring tiles ends that each listed tile is in; runs may go on into the next row's list."""
    count = len(tiles.tile)
    at = torch.arange(1, count + 1, dtype=torch.int32, device=tiles.tile.device)
    last = torch.ones(count, dtype=torch.bool, device=at.device)
    last[:-1] = tiles.tile[1:] != tiles.tile[:-1] + 1
    return torch.where(last, at, count).flip(0).cummin(0).values.flip(0)


REMEMBERED = Memory(128)  # walks, by mask and facts
