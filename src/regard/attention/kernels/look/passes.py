"""`look` in fused kernels: statistics of the weights, computed tile by tile on the GPU.

Three passes over the listed tiles, none of which stores anything of queries × keys. The first owns rows of
queries and needs one sweep, since every sum can be rescaled from one maximum to a larger one. With the log-sum-exp
known, the second owns columns of keys, so that the weight a key received and the cells of the map are sums in a fixed
order. The third keeps each query's largest weights; the first has left it a bound below which no weight is among them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...backends.sinks import add_to_lse
from ...call import LoweredCall
from ...execution import mask_cache
from ...parts.masks import Everything
from ...parts.positions import DistanceBias
from ..launch import LOG2E, Launch, ShapeTable, TileShape, next_power, pad_dot, select_shape, strides
from ..tile_lists import tile_lists
from .kernels import columns_kernel, rows_kernel, top_kernel

if TYPE_CHECKING:
    from ...look import LookOptions

MAX_HEAD_DIM = 256
MAX_TOP = 32
MASKED = -3.0e30  # score of a masked pair, so far below the start of a running maximum that its weight is 0

# By bytes of a number and padded head_dim, the nearest above.
ROWS: ShapeTable = {
    2: {64: TileShape(128, 128, 4, 3), 128: TileShape(128, 128, 8, 2), 256: TileShape(64, 64, 4, 2)},
    4: {256: TileShape(64, 64, 8, 2)},
}
COLUMNS: ShapeTable = {
    2: {64: TileShape(64, 128, 4, 3), 128: TileShape(64, 128, 4, 2), 256: TileShape(64, 64, 4, 2)},
    4: {256: TileShape(64, 128, 8, 2)},
}
TOP: ShapeTable = {
    2: {64: TileShape(64, 64, 4, 2), 128: TileShape(128, 128, 8, 2), 256: TileShape(64, 64, 4, 2)},
    4: {256: TileShape(64, 64, 8, 2)},
}
# A tile with relative vectors is square: its distances span both sides together, a power of two.
RELATIVE: ShapeTable = {
    2: {128: TileShape(64, 64, 4, 2), 256: TileShape(32, 32, 4, 1)},
    4: {128: TileShape(32, 32, 4, 1), 256: TileShape(32, 32, 8, 1)},
}
ADDITIVE: ShapeTable = {2: {256: TileShape(32, 64, 4, 1)}, 4: {256: TileShape(32, 64, 4, 1)}}
LINE_STEP = 256  # no tile is larger, so none reads beyond a line's ends
MIN_SCALE = 1e-6
MIN_ROWS = 16  # the least that a matrix product takes
CHUNK = 32  # head_dim of a float32 product at once: a whole head does not fit the registers
CLASSES = 2  # classes of tiles for each of the top weights, from whose maxima the bound comes


def covers(problem: LoweredCall, options: LookOptions) -> str | None:
    """Why the kernels cannot run the call; None when they can."""
    grid = problem.grid
    if torch.float64 in (problem.q.dtype, problem.v.dtype):
        return "the kernels compute in float32, and the call is in float64"
    if problem.q.shape[-1] > MAX_HEAD_DIM:
        return f"the head_dim is {problem.q.shape[-1]}; the kernels hold at most {MAX_HEAD_DIM}"
    if options.top > MAX_TOP:
        return f"the kernels keep at most {MAX_TOP} weights per query, and top is {options.top}"
    if options.map is not None and (options.map[0] > grid.queries or options.map[1] > grid.keys):
        return "the map has more rows than queries or more columns than keys"
    if not grid.batch * grid.heads * grid.queries * grid.keys:
        return "there are no pairs"
    if problem.pair_bias is not None or problem.places is not None or problem.key_vectors is not None:
        return "the kernels take no bias by pair, no explicit places and no vectors by distance for keys"
    return None


def statistics(problem: LoweredCall, options: LookOptions) -> dict[str, Tensor | None]:
    """All of a view's tensors, by name."""
    with torch.cuda.device_of(problem.q):
        inputs = LookInputs(problem)
        by_query, lse2 = query_statistics(inputs, options)
        return by_query | key_statistics(inputs, options, lse2)


def with_sink(sink: Tensor, lse: Tensor, entropy: Tensor, distance: Tensor, peak: Tensor) -> list[Tensor]:
    """(lse, lse in base 2, entropy, distance, peak) with a sink, from those without.

    Every weight is multiplied by exp(lse − lse′), and every surprise lse − s grows by lse′ − lse.
    """
    total = add_to_lse(lse, sink)
    alive = lse > -torch.inf
    gap = torch.where(alive, total - lse, 0.0)
    share = torch.where(alive, gap.neg().exp(), 0.0)
    lse2 = torch.where(alive, total * LOG2E, torch.inf)
    return [total, lse2, share * (entropy + gap), share * distance, share * peak]


class LookInputs:
    """A problem's tensors in the layout of the kernels: aligned rows, a positive scale, rel_bias along a line."""

    def __init__(self, problem: LoweredCall):
        self.problem, self.grid = problem, problem.grid
        self.dot = problem.weight is None
        self.scale = problem.scale * LOG2E if self.dot else LOG2E
        factor, dtype = 1.0, problem.q.dtype
        if not MIN_SCALE < self.scale < 1.0 / MIN_SCALE:
            # The maximum is taken before the scale, and the score of a masked pair must stay finite.
            factor = math.copysign(1.0, self.scale) if MIN_SCALE < -self.scale < 1.0 / MIN_SCALE else self.scale
            dtype = dtype if abs(factor) == 1.0 else torch.float32
            self.scale /= factor or 1.0
            self.scale = self.scale or 1.0
        scaled = lambda x: x if factor == 1.0 else x.to(dtype) * factor  # noqa: E731
        self.q = align_rows(scaled(problem.q))
        self.k = align_rows(problem.k.to(self.q.dtype))
        self.rel_q = self.rel_vectors = self.rel_bias = self.weight = self.q
        self.origin, self.length = 0, 0
        self.rel_ends = (0, 1)
        if problem.weight is not None:
            self.weight = problem.weight.float().contiguous()
        if problem.rel_bias is not None:
            self.rel_bias = self.along_line(problem.rel_bias)
        if problem.rel_vectors is not None:
            rel_q, table, zero = problem.rel_vectors
            rel_q = scaled(rel_q)
            common = torch.promote_types(rel_q.dtype, table.dtype)
            self.rel_q, self.rel_vectors = align_rows(rel_q.to(common)), table.to(common).contiguous()
            self.rel_ends = (zero, self.rel_vectors.shape[1])
        self.itemsize = max(self.q.element_size(), self.rel_q.element_size())
        self.head_dim = problem.q.shape[-1]
        self.padded = pad_dot(self.head_dim)
        self.masked = MASKED / self.scale

    def along_line(self, rel_bias: DistanceBias) -> Tensor:
        """The bias at every j − row, `[heads, length]`, divided by the scale; that of 0 is at `origin`."""
        before, after = (-(-size // LINE_STEP) * LINE_STEP for size in (self.grid.queries, self.grid.keys))
        self.origin, self.length = before, before + after
        distance = before + self.grid.offset - torch.arange(self.length, device=self.q.device)
        entries = (distance + rel_bias.zero).clamp(0, rel_bias.table.shape[1] - 1)
        table = (rel_bias.table.float() * (LOG2E / self.scale)).clamp(min=MASKED / self.scale)
        return table[:, entries].contiguous()

    def shape(self, table: ShapeTable) -> TileShape:
        """The tile shape for this problem."""
        table = ADDITIVE if not self.dot else RELATIVE if self.problem.rel_vectors is not None else table
        return select_shape(table, self.itemsize, self.padded)

    def empty(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.q.new_empty(self.grid.batch, self.grid.heads, *size, dtype=dtype)

    def zeros(self, *size: int) -> Tensor:
        return self.q.new_zeros(self.grid.batch, self.grid.heads, *size, dtype=torch.float32)

    def start(
        self, kernel: Any, shape: TileShape, results: tuple[Tensor, ...], extra: tuple[int, ...], by_key: bool,
        **constants: int | bool,
    ) -> None:  # fmt: skip
        """Start a kernel over every row of tiles (by key: every column)."""
        p, grid = self.problem, self.grid
        tiles = -(-grid.keys // shape.columns) if by_key else -(-grid.queries // shape.rows)
        lists, group_strides = (self.q,) * 4, (0, 0)
        if not isinstance(p.mask, Everything):
            listed = tile_lists(p.mask, grid, shape.rows, shape.columns, transposed=by_key)
            lists = (listed.starts, listed.tile, listed.bits, listed.packed)
            group_strides = (listed.batch_stride, listed.head_stride)
        tensors = (self.q, self.k, self.rel_q, self.weight, self.rel_bias, self.rel_vectors, *lists, *results)
        steps = (*strides(self.q), *strides(self.k), *strides(self.rel_q))
        numbers = (
            *steps, grid.queries, grid.keys, grid.heads, grid.heads // self.k.shape[1], tiles, grid.offset,
            *group_strides, self.scale, self.masked, p.slope, None if p.cap is None else p.cap * LOG2E / self.scale,
            self.origin, self.length, *self.rel_ends, *extra,
        )  # fmt: skip
        layout = tuple([(x.dtype, x.data_ptr() % 16) for x in tensors])
        parts = (p.rel_bias is None, p.rel_vectors is None, p.activation)
        key = (id(kernel), layout, numbers, parts, self.head_dim, shape, grid.batch, *constants.values())

        def make() -> Launch:
            named = dict(zip(kernel.arg_names[len(tensors) :], numbers, strict=False))
            return Launch(
                kernel, tiles * grid.batch * grid.heads, **named,
                D=self.head_dim, BD=self.padded, LISTED=not isinstance(p.mask, Everything),
                CHUNK=CHUNK if self.itemsize > 2 else 0, SCORE="dot" if self.dot else p.activation,
                REL_BIAS=p.rel_bias is not None, REL_VECTORS=p.rel_vectors is not None,
                **shape.arguments(), **constants,
            )  # fmt: skip

        mask_cache(p.mask).get(key, make)(*tensors)


def align_rows(x: Tensor) -> Tensor:
    """x, or a copy whose last axis is contiguous and whose rows start at multiples of 16 elements."""
    steps = [step for step, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    if x.stride(-1) == 1 and not any(step % 16 for step in steps) and x.data_ptr() % 16 == 0:
        return x
    return pad(x, (0, -x.shape[-1] % 16)) if x.shape[-1] % 16 else x.clone(memory_format=torch.contiguous_format)


def query_statistics(inputs: LookInputs, options: LookOptions) -> tuple[dict[str, Tensor | None], Tensor]:
    """Everything that belongs to a query, by name, and its log-sum-exp in base 2."""
    queries = inputs.grid.queries
    lse, lse2, entropy, distance, peak = (inputs.empty(queries) for _ in range(5))
    floor = inputs.empty(queries) if options.top else inputs.q
    candidates = max(next_power(options.top), 2) if options.top else 0
    results = (lse, lse2, entropy, distance, peak, floor)
    inputs.start(rows_kernel, inputs.shape(ROWS), results, (options.top,), False, CLASSES=CLASSES * candidates or 1)
    if inputs.problem.sink is not None:
        lse, lse2, entropy, distance, peak = with_sink(inputs.problem.sink, lse, entropy, distance, peak)
    top_weights = top_keys = None
    if options.top:
        top_weights = inputs.empty(queries, options.top)
        top_keys = inputs.empty(queries, options.top, dtype=torch.int64)
        results = (lse2, floor, top_weights, top_keys)
        inputs.start(top_kernel, inputs.shape(TOP), results, (options.top,), False, CANDIDATES=candidates)
    moments = {"lse": lse, "entropy": entropy, "distance": distance, "peak": peak}
    return {**moments, "top_weights": top_weights, "top_keys": top_keys}, lse2


def key_statistics(inputs: LookInputs, options: LookOptions, lse2: Tensor) -> dict[str, Tensor | None]:
    """Everything that is summed over queries, and the weights themselves."""
    grid = inputs.grid
    shape = inputs.shape(COLUMNS)
    received = inputs.empty(grid.keys)
    weights = inputs.zeros(grid.queries, grid.keys) if options.weights else None
    cells = by_row = by_key = inputs.q
    buckets = pieces = count = 0
    if options.map is not None:
        shape, buckets = bucket_shape(inputs, shape, options.map[0])
        pieces = next_power(buckets_touched(grid.keys, options.map[1], shape.columns))
        count = options.map[1] + -(-grid.keys // shape.columns)
        cells = inputs.zeros(options.map[0], count)
        by_row, by_key = (
            bucket_of(size, n, cells.device) for size, n in zip((grid.queries, grid.keys), options.map, strict=True)
        )
    results = (lse2, received, by_row, by_key, cells, inputs.q if weights is None else weights)
    extra = (options.map[0] if options.map else 0, count)
    constants = {"BUCKETS": buckets, "PIECES": pieces or 1, "WEIGHTS": options.weights}
    inputs.start(columns_kernel, shape, results, extra, True, **constants)
    pooled = None if options.map is None else join_pieces(cells, grid.queries, grid.keys, options.map, shape.columns)
    return {"received": received, "map": pooled, "weights": weights}


def buckets_touched(size: int, count: int, span: int) -> int:
    """How many of `count` buckets over `size` tokens a tile of `span` touches at most."""
    least, uneven = size // count, size % count
    if not uneven and (least % span == 0 or span % least == 0):
        return max(span // least, 1)
    return min(-(-(span - 1) // least) + 1, count)


def bucket_shape(inputs: LookInputs, shape: TileShape, rows: int) -> tuple[TileShape, int]:
    """A tile with so few rows that it touches few buckets, and how many; 3 stands for more."""
    queries = inputs.grid.queries
    while buckets_touched(queries, rows, shape.rows) > 2 and shape.rows > MIN_ROWS:
        columns = shape.columns if inputs.problem.rel_vectors is None else max(shape.columns // 2, 32)
        if inputs.problem.rel_vectors is not None and columns == shape.columns:
            break  # relative vectors need a square, and bits come in words of 32
        shape = shape._replace(rows=shape.rows // 2, columns=columns)
    return shape, min(buckets_touched(queries, rows, shape.rows), 3)


def bucket_of(size: int, count: int, device: torch.device) -> Tensor:
    """The bucket of each token, int32: bucket r starts at ⌊r · size / count⌋."""
    return (((torch.arange(size, device=device) + 1) * count - 1) // size).int()


def join_pieces(cells: Tensor, queries: int, keys: int, size: tuple[int, int], columns: int) -> Tensor:
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
