"""How the dot family's kernels are run: which tiles each pass walks, in which pieces, with which arguments.

All of that follows from a problem's `Facts` and its mask. It is worked out at the first call and remembered, so that
another call like it allocates its results and starts its kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..call import Problem
from ..dropout import kept_scale, threshold
from ..mask import Grid, Mask
from ..remember import Memory, constant
from .dot import (
    backward_columns,
    backward_diagonals,
    backward_rows,
    forward_tiles,
    merge_outputs,
    prepare_rows,
    sum_parts,
)
from .launch import Launch
from .lists import Lists, diagonals, items, lists


class Shape(NamedTuple):
    """A tile of `rows` queries × `columns` keys, and how a program that walks such tiles is run."""

    rows: int
    columns: int
    warps: int
    stages: int


class Shapes(NamedTuple):
    """A pass's tiles, by bytes of an element, then by the greater of the (padded) head dims.

    Vectors by distance want square ones; those of wider heads would not fit.
    """

    plain: dict[int, dict[int, Shape]]
    vectors: dict[int, dict[int, Shape]]


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
    {2: {64: Shape(64, 64, 4, 2), 128: Shape(64, 64, 8, 2)}, 4: {64: Shape(32, 32, 4, 1)}},
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
    {2: {64: Shape(64, 64, 4, 2), 128: Shape(64, 64, 8, 2)}, 4: {64: Shape(32, 32, 4, 1)}},
)
EXACT = "tf32x3"  # products of float32: three of tensor cores, whose sum is as exact
EDGE = 256  # the origin of a line is a multiple of this, and so of every tile's sizes
PREPARED = 64  # rows that a program of `prepare_rows` takes
PROGRAMS = 3  # programs a multiprocessor that the work should be enough for
LEAST = 16  # tiles that a piece of a cut list has at least
LOG2E = math.log2(math.e)
NAMES = ("qb", "qh", "qn", "kb", "kh", "kn", "vb", "vh", "vn", "ab", "ah", "an")


class Facts(NamedTuple):
    """What decides how a problem is run, beside its mask and the contents of its tensors."""

    grid: Grid
    dtype: torch.dtype
    share: int  # heads of queries that read one of keys
    dim: int
    value_dim: int
    strides: tuple[int, ...]  # of batch, heads and tokens, of q, k, v and asking
    scale: float
    dropout: float | None
    numbers: int  # 0 none, 1 read from a line, 2 computed from slopes
    vectors: bool
    exact: bool  # whether the output is kept in float32

    @property
    def origin(self) -> int:
        return -(-self.grid.queries // EDGE) * EDGE + EDGE  # so that copies that are moved lose nothing

    @property
    def length(self) -> int:
        return self.origin + -(-self.grid.keys // EDGE) * EDGE

    @property
    def padded(self) -> int:
        return -(-self.grid.queries // EDGE) * EDGE

    @property
    def front(self) -> tuple[int, int]:
        return self.grid.batch, self.grid.heads

    @property
    def output_type(self) -> torch.dtype:
        return torch.float32 if self.exact else self.dtype

    def shape(self, shapes: Shapes) -> Shape:
        """The tile for these types and sizes."""
        widest = max(power(self.dim), power(self.value_dim), 64)
        return (shapes.vectors if self.vectors else shapes.plain)[self.dtype.itemsize][widest]

    def empty(self, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(sizes, dtype=dtype, device=self.grid.device)

    def arguments(self) -> dict[str, Any]:
        """What all kernels that walk tiles are given, whatever the tiles."""
        grid, dropped = self.grid, self.dropout is not None
        return dict(
            zip(NAMES, self.strides, strict=True),
            queries=grid.queries, keys=grid.keys, heads=grid.heads, share=self.share,
            origin=self.origin, length=self.length, scale=self.scale * LOG2E,
            threshold=threshold(self.dropout or 0.0), keep_scale=kept_scale(self.dropout or 0.0) if dropped else 1.0,
            D=self.dim, BD=power(self.dim), DV=self.value_dim, BDV=power(self.value_dim),
            NUMBERS=self.numbers, VECTORS=self.vectors, DROPOUT=dropped,
            PRECISION=EXACT if self.dtype == torch.float32 else "tf32", PAIRS=self.dtype.itemsize == 2,
        )  # fmt: skip


class Walk:
    """One kernel's way over listed tiles, in pieces; pieces of cut lists leave partial sums that are added up."""

    def __init__(self, facts: Facts, kernel: Any, shape: Shape, tiles: Lists, programs: int, **more: Any):
        self.facts, self.shape = facts, shape
        self.instances = programs // tiles.groups
        pieces = items(tiles, limit(tiles, self.instances))
        self.slots, self.cuts, self.cut_rows = pieces.slots * self.instances, len(pieces.cuts), pieces.cuts
        self.grouping = {"BY_BATCH": tiles.batch_stride > 0, "BY_HEAD": tiles.head_stride > 0}
        self.adding: dict[Any, Launch] = {}
        self.start = Launch(
            kernel, len(pieces.row) * self.instances,
            p_group=pieces.group, p_row=pieces.row, p_first=pieces.first, p_last=pieces.last, p_slot=pieces.slot,
            p_tile=tiles.tile, p_bits=tiles.bits, p_packed=tiles.packed, instances=self.instances,
            BM=shape.rows, BN=shape.columns, num_warps=shape.warps, num_stages=shape.stages,
            **facts.arguments(), **self.grouping, **more,
        )  # fmt: skip

    def room(self, spare: Tensor, *sizes: int) -> Tensor:
        """Room for partial sums; where no list is cut, something that a pointer can point to."""
        return self.facts.empty(self.slots, *sizes) if self.cuts else spare

    def add(self, out: Tensor, partial: Tensor, rows: int, wide: int, scale: float = 1.0) -> None:
        """Put the sums of cut lists where they belong in `out [batch, heads, lines, d]`."""
        if not self.cuts:
            return
        key = (out.shape, out.dtype, rows, wide)
        if key not in self.adding:
            sizes = {"lines": out.shape[2], "heads": out.shape[1], "instances": self.instances, "scale": scale}
            widths = {"D": out.shape[3], "BD": wide, "ROWS": rows}
            programs = self.cuts * self.instances
            self.adding[key] = Launch(sum_parts, programs, p_cuts=self.cut_rows, **sizes, **widths, **self.grouping)
        self.adding[key](out, partial)

    def merge(self, *tensors: Tensor) -> None:
        """Put the outputs of cut rows together."""
        if not self.cuts:
            return
        if "outputs" not in self.adding:
            given = self.facts.arguments()
            sizes = {name: given[name] for name in ("queries", "heads", "keep_scale", "DV", "BDV")}
            more = {"instances": self.instances, "BM": self.shape.rows} | self.grouping
            programs = self.cuts * self.instances
            self.adding["outputs"] = Launch(merge_outputs, programs, p_cuts=self.cut_rows, **sizes, **more)
        self.adding["outputs"](*tensors)


class Work:
    """A problem's tensors made ready for the kernels, and its facts."""

    def __init__(self, p: Problem):
        dtype = p.v.dtype
        self.mask, self.seed = p.mask, p.seed
        self.sign = (p.scale > 0) - (p.scale < 0)
        scale = abs(p.scale) or 1.0
        self.q, self.k, self.v = ready(self.signed(p.q), dtype), ready(p.k, dtype), ready(p.v, dtype)
        asking = self.q if p.vectors is None else ready(self.signed(p.vectors.queries), dtype)
        self.facts = Facts(
            p.grid, dtype, p.q.shape[1] // p.k.shape[1], self.q.shape[3], self.v.shape[3],
            (*self.q.stride()[:3], *self.k.stride()[:3], *self.v.stride()[:3], *asking.stride()[:3]), scale,
            None if p.seed is None else p.dropout, 0 if p.numbers is None else 1 if p.numbers.slopes is None else 2,
            p.vectors is not None, p.summed and any(p.wanted),
        )  # fmt: skip
        self.numbers = None if p.numbers is None else self.lines(p, scale)
        self.asking = None if p.vectors is None else asking
        self.table = None if p.vectors is None else self.along(p.vectors.table, p.vectors.zero, 1)[:, 0]
        self.walks: dict[Callable[..., Any], Any] = REMEMBERED.find(p.mask, self.facts, dict)

    def walk(self, make: Callable[[Facts, Mask], Any]) -> Any:
        """What `make` worked out for the facts and the mask."""
        if make not in self.walks:
            self.walks[make] = make(self.facts, self.mask)
        return self.walks[make]

    @property
    def given(self) -> tuple[Tensor | None, ...]:
        """The tensors that every pass reads, in the kernels' order."""
        return self.q, self.k, self.v, self.numbers, self.asking, self.table, self.seed

    def signed(self, x: Tensor) -> Tensor:
        """Queries or their gradient with the scale's sign: kernels take the maximum before they scale."""
        return x if self.sign > 0 else -x if self.sign < 0 else torch.zeros_like(x)

    def lines(self, p: Problem, scale: float) -> Tensor:
        """Slopes a head, or numbers along lines, `[heads, 8, length]`, in units of the scale."""
        table, zero, slopes = p.numbers  # type: ignore[misc]
        return self.along(table.float() / scale, zero, 8) if slopes is None else slopes.float() / scale

    def along(self, table: Tensor, zero: int, copies: int) -> Tensor:
        """The table's entries along the line, `[heads, copies, length, ...]`; one copy is in the kernels' type."""
        f = self.facts
        start = f.origin + f.grid.offset + zero
        line = table[:, entries_along(f.length, start, table.shape[1], copies, table.device)]
        return line if copies > 1 else ready(line, f.dtype).contiguous()


def forward(p: Problem) -> tuple[Tensor, Tensor]:
    """Output, in float32 where the problem wants it exact, and log-sum-exp."""
    work = Work(p)
    f, walk = work.facts, work.walk(over_rows)
    output = f.empty(*f.front, f.grid.queries, f.value_dim, dtype=f.output_type)
    lse = f.empty(*f.front, f.grid.queries)
    rows = walk.shape.rows
    parts = walk.room(lse, rows, power(f.value_dim)), walk.room(lse, rows), walk.room(lse, rows)
    walk.start(*work.given, output, lse, *parts)
    walk.merge(output, lse, *parts)
    return output if f.value_dim == p.v.shape[-1] else output[..., : p.v.shape[-1]].contiguous(), lse


def over_rows(f: Facts, mask: Mask) -> Walk:
    """Forward's way: rows of tiles."""
    shape = f.shape(FORWARD)
    tiles = lists(mask, f.grid, shape.rows, shape.columns)
    return Walk(f, forward_tiles, shape, tiles, math.prod(f.front), p_ends=ends(tiles) if f.vectors else None)


class Flow(NamedTuple):
    """What backward's passes read beside the problem: d_output, and the lse in base 2 and δ of each row."""

    grad: Tensor
    level: Tensor
    delta: Tensor


def backward(p: Problem, grad: Tensor, output: Tensor, lse: Tensor) -> list[Tensor | None]:
    """Gradients of q, k, v, weight (none here), numbers, asking, table."""
    work = Work(p)
    f = work.facts
    grad, output = ready(grad.contiguous(), f.dtype), ready(output.contiguous(), f.output_type)
    flow = Flow(grad, f.empty(*f.front, f.padded), f.empty(*f.front, f.padded))
    work.walk(preparing)(output, lse, *flow)
    dq, dasking = by_rows(work, flow)
    dk, dv = by_columns(work, flow)
    summed = (p.numbers is not None and p.wanted[4]) or (p.vectors is not None and p.wanted[6])
    dnumbers, dtable = by_diagonals(work, flow, p) if summed else (None, None)
    if p.q.shape[-1] != f.dim or p.v.shape[-1] != f.value_dim:
        narrow = lambda x, like: None if x is None else x[..., : like.shape[-1]]  # noqa: E731
        dq, dasking, dk, dtable = (narrow(x, p.q) for x in (dq, dasking, dk, dtable))
        dv = narrow(dv, p.v)
    return [dq, dk, dv, None, dnumbers, dasking, dtable]


def preparing(f: Facts, mask: Mask) -> Launch:
    """What gives each row its level and δ."""
    instances = math.prod(f.front)
    sizes = {"DV": f.value_dim, "BDV": power(f.value_dim), "BM": PREPARED}
    programs = f.padded // PREPARED * instances
    return Launch(prepare_rows, programs, queries=f.grid.queries, instances=instances, **sizes)


def by_rows(work: Work, flow: Flow) -> tuple[Tensor, Tensor | None]:
    """dq and d asking."""
    f, walk = work.facts, work.walk(back_over_rows)
    sizes, room = (*f.front, f.grid.queries, f.dim), (walk.shape.rows, power(f.dim))
    out = [f.empty(*sizes, dtype=f.dtype) for _ in range(1 + f.vectors)]
    partial = [walk.room(flow.delta, *room) for _ in out]
    gone = [None] * (1 - f.vectors)
    walk.start(*work.given, *flow, *out, *gone, *partial, *gone)
    for x, part in zip(out, partial, strict=True):
        walk.add(x, part, *room, f.scale)
    dq, dasking = work.signed(out[0]), work.signed(out[1]) if f.vectors else None
    return dq, dasking


def back_over_rows(f: Facts, mask: Mask) -> Walk:
    shape = f.shape(ROWS)
    tiles = lists(mask, f.grid, shape.rows, shape.columns)
    more = {"padded": f.padded, "d_scale": f.scale, "p_ends": ends(tiles) if f.vectors else None}
    return Walk(f, backward_rows, shape, tiles, math.prod(f.front), **more)


def by_columns(work: Work, flow: Flow) -> tuple[Tensor, Tensor]:
    """dk and dv."""
    f, (walk, parts) = work.facts, work.walk(over_columns)
    exact = f.dtype if parts == f.share else torch.float32
    front, columns = (f.grid.batch, f.grid.heads // parts, f.grid.keys), walk.shape.columns
    dk, dv = (f.empty(*front, dim, dtype=exact) for dim in (f.dim, f.value_dim))
    dk_parts, dv_parts = (walk.room(flow.delta, columns, power(dim)) for dim in (f.dim, f.value_dim))
    walk.start(*work.given, *flow, dk, dv, dk_parts, dv_parts)
    walk.add(dk, dk_parts, columns, power(f.dim))
    walk.add(dv, dv_parts, columns, power(f.value_dim))
    if parts != f.share:
        dk, dv = (x.unflatten(1, (-1, f.share)).sum(2) for x in (dk, dv))
    return dk, dv


def over_columns(f: Facts, mask: Mask) -> tuple[Walk, int]:
    """Columns of tiles, and how many heads that share keys are taken together: all, unless each has its own mask."""
    shape = f.shape(COLUMNS)
    tiles = lists(mask, f.grid, shape.rows, shape.columns, transposed=True)
    parts = 1 if tiles.head_stride else f.share
    more = {"padded": f.padded, "d_scale": f.scale, "PARTS": parts}
    return Walk(f, backward_columns, shape, tiles, math.prod(f.front) // parts, **more), parts


class Diagonals(NamedTuple):
    """The way over diagonals; the bands that it leaves are those of `batch` rows, `lines` of them, from `first` on."""

    walk: Walk
    batch: int
    lines: int
    first: int


def by_diagonals(work: Work, flow: Flow, p: Problem) -> tuple[Tensor | None, Tensor | None]:
    """d numbers and d table."""
    f, (walk, batch, lines, first) = work.facts, work.walk(over_diagonals)
    band = 2 * walk.shape.columns
    widths = [1 if f.numbers else None, f.dim if f.vectors else None]
    out = [None if w is None else f.empty(batch, f.grid.heads, lines * band, w) for w in widths]
    partial = [None if w is None else walk.room(flow.delta, band, power(w)) for w in widths]
    walk.start(*work.given, *flow, *out, *partial)
    tables: list[Tensor | None] = [None, None]
    for n, (x, part, source) in enumerate(zip(out, partial, (p.numbers, p.vectors), strict=True)):
        if x is not None:
            walk.add(x, part, band, power(x.shape[3]))  # type: ignore[arg-type]
            line = joined(f, x.unflatten(2, (lines, band)), first)
            tables[n] = folded(f, line, source.table.shape[1], source.zero)  # type: ignore[union-attr]
    numbers, table = tables
    return None if numbers is None else numbers[..., 0], table


def over_diagonals(f: Facts, mask: Mask) -> Diagonals:
    """Diagonals of tiles. The rows of the batch are taken together, unless each has a mask of its own."""
    shape = f.shape(DIAGONALS)
    by_row = lists(mask, f.grid, shape.rows, shape.columns)
    tiles = diagonals(by_row, f.grid)
    parts = 1 if tiles.batch_stride else f.grid.batch
    tile_rows, lines = by_row.starts.shape[1] - 1, tiles.starts.shape[1] - 1
    more = {"padded": f.padded, "d_scale": f.scale, "parts": parts, "tile_rows": tile_rows, "lines": lines}
    walk = Walk(f, backward_diagonals, shape, tiles, math.prod(f.front) // parts, **more)
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


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def limit(tiles: Lists, instances: int) -> int:
    """The longest list that is not cut: what a program would have if the work were spread evenly, a power of two."""
    device = tiles.tile.device
    many = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    even = len(tiles.tile) * instances // (many * PROGRAMS)
    return power(max(even, LEAST))


def ends(tiles: Lists) -> Tensor:
    """Where the run of neighbouring tiles ends that each listed tile is in; runs may go on into the next row's list."""
    count = len(tiles.tile)
    at = torch.arange(1, count + 1, dtype=torch.int32, device=tiles.tile.device)
    last = torch.ones(count, dtype=torch.bool, device=at.device)
    last[:-1] = tiles.tile[1:] != tiles.tile[:-1] + 1
    return torch.where(last, at, count).flip(0).cummin(0).values.flip(0)


REMEMBERED = Memory(128)  # walks, by mask and facts
