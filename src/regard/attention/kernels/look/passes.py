"""Looking, fused: what can be said of the weights, found tile by tile on the GPU.

Three walks over the tiles that the mask leaves, none of which stores anything of queries × keys. The first owns rows of
queries and needs one pass, since every sum can be carried from one maximum to a larger one. With the log-sum-exp known,
the second owns columns of keys, so that what a key received and the cells of the map are sums in a fixed order. The
third keeps each query's largest weights; the first has left it a bound below which nothing can be among them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad

from ...call import Problem
from ...parts.masks import Everything
from ...parts.positions import Numbers
from ..tile_lists import lists
from .kernels import look_columns, look_rows, look_top

if TYPE_CHECKING:
    from ...look import Wish

LARGEST_DIM = 256
LARGEST_TOP = 32
LOG2E = 1.0 / math.log(2.0)
FORBIDDEN = -3.0e30  # so far below where a running maximum starts that its weight is 0


class Shape(NamedTuple):
    """A tile's queries and keys, and how a program runs."""

    rows: int
    columns: int
    warps: int
    stages: int


# By bytes of a number and padded head dim, the nearest above.
ROWS = {
    2: {64: Shape(128, 128, 4, 3), 128: Shape(128, 128, 8, 2), 256: Shape(64, 64, 4, 2)},
    4: {256: Shape(64, 64, 8, 2)},
}
COLUMNS = {
    2: {64: Shape(64, 128, 4, 3), 128: Shape(64, 128, 4, 2), 256: Shape(64, 64, 4, 2)},
    4: {256: Shape(64, 128, 8, 2)},
}
TOP = {
    2: {64: Shape(64, 64, 4, 2), 128: Shape(128, 128, 8, 2), 256: Shape(64, 64, 4, 2)},
    4: {256: Shape(64, 64, 8, 2)},
}
# A band of distances is as wide as both sides of the tile together, and must be a power of two.
VECTORS = {
    2: {128: Shape(64, 64, 4, 2), 256: Shape(32, 32, 4, 1)},
    4: {128: Shape(32, 32, 4, 1), 256: Shape(32, 32, 8, 1)},
}
ADDITIVE = {2: {256: Shape(32, 64, 4, 1)}, 4: {256: Shape(32, 64, 4, 1)}}
MARGIN = 256  # no tile is larger, so none reads beyond a line's ends
LEAST_SCALE = 1e-6
SMALLEST_ROWS = 16  # the least that a matrix product takes
CHUNK = 32  # numbers of a float32 head that are multiplied at once: those of a whole head would not fit into registers
CLASSES = 2  # classes of tiles a wanted weight, from whose maxima the bound comes


def covers(problem: Problem, wish: Wish) -> str | None:
    """Why the kernels cannot look at this; None when they can."""
    grid = problem.grid
    if torch.float64 in (problem.q.dtype, problem.v.dtype):
        return "the kernels compute in float32, and the call is in float64"
    if problem.q.shape[-1] > LARGEST_DIM:
        return f"the head dim is {problem.q.shape[-1]}; the kernels hold at most {LARGEST_DIM}"
    if wish.top > LARGEST_TOP:
        return f"the kernels keep at most {LARGEST_TOP} weights a query, and {wish.top} are asked for"
    if wish.map is not None and (wish.map[0] > grid.queries or wish.map[1] > grid.keys):
        return "the map has more rows than queries or more columns than keys"
    if not grid.batch * grid.heads * grid.queries * grid.keys:
        return "there is nothing to look at"
    return None


def statistics(problem: Problem, wish: Wish) -> dict[str, Tensor | None]:
    """All of a view's tensors, by name."""
    with torch.cuda.device_of(problem.q):
        ready = Ready(problem)
        found = look_at_rows(ready, wish)
        found |= look_at_columns(ready, wish, found.pop("level"))
        return found


class Ready:
    """A problem as the kernels read it: tensors whose rows are aligned, a positive scale, numbers along a line."""

    def __init__(self, problem: Problem):
        self.problem, self.grid = problem, problem.grid
        self.dot = problem.weight is None
        self.scale = problem.scale * LOG2E if self.dot else LOG2E
        q, asking = problem.q, problem.vectors and problem.vectors.queries
        if not LEAST_SCALE < self.scale < 1.0 / LEAST_SCALE:
            # The maximum is taken before the scale, and what is forbidden must stay finite.
            factor = math.copysign(1.0, self.scale) if LEAST_SCALE < -self.scale < 1.0 / LEAST_SCALE else self.scale
            wide = q.dtype if abs(factor) == 1.0 else torch.float32
            q, asking = (x if x is None else x.to(wide) * factor for x in (q, asking))
            self.scale /= factor or 1.0
            self.scale = self.scale or 1.0
        self.q, self.k = aligned(q), aligned(problem.k.to(q.dtype))
        self.asking = self.table = self.numbers = self.weight = self.q
        self.origin, self.length = 0, 0
        self.table_ends = [0, 1]
        if problem.weight is not None:
            self.weight = problem.weight.float().contiguous()
        if problem.numbers is not None:
            self.numbers = self.line(problem.numbers)
        if asking is not None:
            dtype = torch.promote_types(asking.dtype, problem.vectors.table.dtype)  # type: ignore[union-attr]
            self.asking = aligned(asking.to(dtype))
            self.table = problem.vectors.table.to(dtype).contiguous()  # type: ignore[union-attr]
            self.table_ends = [problem.vectors.zero, self.table.shape[1]]  # type: ignore[union-attr]
        self.size = max(self.q.element_size(), self.asking.element_size())
        self.dim = q.shape[-1]
        self.padded = max(triton.next_power_of_2(self.dim), 16)
        self.forbidden = FORBIDDEN / self.scale

    def line(self, numbers: Numbers) -> Tensor:
        """The numbers at every j − row, `[heads, length]`, to be scaled with the rest; that of 0 is at `origin`."""
        before, after = (-(-size // MARGIN) * MARGIN for size in (self.grid.queries, self.grid.keys))
        self.origin, self.length = before, before + after
        distance = before + self.grid.offset - torch.arange(self.length, device=self.q.device)
        entries = (distance + numbers.zero).clamp(0, numbers.table.shape[1] - 1)
        return (numbers.table.float() * (LOG2E / self.scale)).clamp(min=FORBIDDEN / self.scale)[:, entries].contiguous()

    def shape(self, table: dict[int, dict[int, Shape]]) -> Shape:
        """The tile for this problem."""
        table = ADDITIVE if not self.dot else VECTORS if self.problem.vectors is not None else table
        by_dim = table[self.size]
        return by_dim[min(dim for dim in by_dim if dim >= self.padded)]

    def empty(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.q.new_empty(self.grid.batch, self.grid.heads, *size, dtype=dtype)

    def zeroed(self, *size: int) -> Tensor:
        return self.q.new_zeros(self.grid.batch, self.grid.heads, *size, dtype=torch.float32)

    def run(self, kernel, shape: Shape, results: tuple, extra: tuple, by_key: bool, **constants: int | bool) -> None:
        """Launch a kernel over every row of tiles (by key: every column)."""
        p, grid = self.problem, self.grid
        tiles = -(-grid.keys // shape.columns) if by_key else -(-grid.queries // shape.rows)
        listed = not isinstance(p.mask, Everything)
        visits = lists(p.mask, grid, shape.rows, shape.columns, transposed=by_key) if listed else None
        dummy = self.q
        walked = (visits.starts, visits.tile, visits.bits, visits.packed) if visits else (dummy,) * 4
        strides = (visits.batch_stride, visits.head_stride) if visits else (0, 0)
        kernel[(tiles * grid.batch * grid.heads,)](
            self.q, self.k, self.asking, self.weight, self.numbers, self.table, *walked, *results,
            *steps(self.q), *steps(self.k), *steps(self.asking),
            grid.queries, grid.keys, grid.heads, grid.heads // self.k.shape[1], tiles, grid.offset, *strides,
            self.scale, self.forbidden, p.slope, self.origin, self.length, *self.table_ends, *extra,
            D=self.dim, BD=self.padded, BM=shape.rows, BN=shape.columns, LISTED=listed,
            CHUNK=CHUNK if self.size > 2 else 0,
            SCORE="dot" if self.dot else p.activation, NUMBERS=p.numbers is not None, VECTORS=p.vectors is not None,
            num_warps=shape.warps, num_stages=shape.stages, **constants,
        )  # fmt: skip


def aligned(x: Tensor) -> Tensor:
    """x, or a copy whose last axis is contiguous and whose rows start at multiples of 16 numbers."""
    steps = [step for step, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    if x.stride(-1) == 1 and not any(step % 16 for step in steps) and x.data_ptr() % 16 == 0:
        return x
    return pad(x, (0, -x.shape[-1] % 16)) if x.shape[-1] % 16 else x.clone(memory_format=torch.contiguous_format)


def steps(x: Tensor) -> list[int]:
    """Strides of batch, heads and tokens; what is there once has none."""
    return [0 if size == 1 else step for step, size in zip(x.stride()[:3], x.shape[:3], strict=True)]


def look_at_rows(ready: Ready, wish: Wish) -> dict[str, Tensor | None]:
    """Everything that belongs to a query; `level` is its log-sum-exp in base 2."""
    queries = ready.grid.queries
    names = ["lse", "level", "entropy", "distance", "peak"]
    found: dict[str, Tensor | None] = {name: ready.empty(queries) for name in names}
    floor = ready.empty(queries) if wish.top else ready.q
    places = max(triton.next_power_of_2(wish.top), 2) if wish.top else 0
    classes = CLASSES * places or 1
    results = (*found.values(), floor)
    ready.run(look_rows, ready.shape(ROWS), results, (wish.top,), False, CLASSES=classes)
    found |= {"top_weights": None, "top_keys": None}
    if wish.top:
        found["top_weights"] = ready.empty(queries, wish.top)
        found["top_keys"] = ready.empty(queries, wish.top, dtype=torch.int64)
        results = (found["level"], floor, found["top_weights"], found["top_keys"])
        ready.run(look_top, ready.shape(TOP), results, (wish.top,), False, PLACES=places)
    return found


def look_at_columns(ready: Ready, wish: Wish, level: Tensor) -> dict[str, Tensor | None]:
    """Everything that is summed over queries, and the weights themselves."""
    grid = ready.grid
    shape = ready.shape(COLUMNS)
    received = ready.empty(grid.keys)
    weights = ready.zeroed(grid.queries, grid.keys) if wish.weights else None
    cells = by_row = by_key = ready.q
    buckets = pieces = count = 0
    if wish.map is not None:
        shape, buckets = bucket_shape(ready, shape, wish.map[0])
        pieces = triton.next_power_of_2(touched(grid.keys, wish.map[1], shape.columns))
        count = wish.map[1] + -(-grid.keys // shape.columns)
        cells = ready.zeroed(wish.map[0], count)
        by_row, by_key = (
            bucket_of(size, n, cells.device) for size, n in zip((grid.queries, grid.keys), wish.map, strict=True)
        )
    results = (level, received, by_row, by_key, cells, ready.q if weights is None else weights)
    extra = (wish.map[0] if wish.map else 0, count)
    constants = {"BUCKETS": buckets, "PIECES": pieces or 1, "WEIGHTS": wish.weights}
    ready.run(look_columns, shape, results, extra, True, **constants)
    pooled_map = None if wish.map is None else joined(cells, grid.queries, grid.keys, wish.map, shape.columns)
    return {"received": received, "map": pooled_map, "weights": weights}


def touched(size: int, count: int, span: int) -> int:
    """How many of `count` buckets over `size` tokens a tile of `span` touches at most."""
    least, uneven = size // count, size % count
    if not uneven and (least % span == 0 or span % least == 0):
        return max(span // least, 1)
    return min(-(-(span - 1) // least) + 1, count)


def bucket_shape(ready: Ready, shape: Shape, rows: int) -> tuple[Shape, int]:
    """A tile with so few rows that it touches few buckets, and how many; 3 stands for more."""
    queries = ready.grid.queries
    while touched(queries, rows, shape.rows) > 2 and shape.rows > SMALLEST_ROWS:
        columns = shape.columns if ready.problem.vectors is None else max(shape.columns // 2, 32)
        if ready.problem.vectors is not None and columns == shape.columns:
            break  # a band needs a square, and bits come in words of 32
        shape = shape._replace(rows=shape.rows // 2, columns=columns)
    return shape, min(touched(queries, rows, shape.rows), 3)


def bucket_of(size: int, count: int, device: torch.device) -> Tensor:
    """The bucket of each token, int32: bucket r starts at ⌊r · size / count⌋."""
    return (((torch.arange(size, device=device) + 1) * count - 1) // size).int()


def joined(cells: Tensor, queries: int, keys: int, size: tuple[int, int], columns: int) -> Tensor:
    """The map from its pieces: piece c + t is the part of bucket c in the key tile t."""
    starts = [
        torch.arange(n + 1, device=cells.device) * total // n for n, total in zip(size, (queries, keys), strict=True)
    ]
    first, last = starts[1][:-1] // columns, (starts[1][1:] - 1) // columns
    most = -(-keys // size[1])
    step = torch.arange((most + columns - 2) // columns + 1, device=cells.device)
    tile = first[:, None] + step  # [columns of the map, tiles of a bucket]
    inside = tile <= last[:, None]
    piece = torch.where(inside, tile, first[:, None]) + torch.arange(size[1], device=cells.device)[:, None]
    parts = cells[..., piece].masked_fill_(~inside, 0.0).sum(-1)
    return parts / starts[0].diff()[:, None]
