"""How kernels of the dot family walk over listed tiles: a problem's facts, tiles' shapes, pieces of work."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...dropout import kept_scale, threshold
from ...parts.mask import Grid
from ..launch import Launch
from ..tile_lists import Items, Lists, items
from .kernels import merge_outputs, sum_parts


class Shape(NamedTuple):
    """A tile of `rows` queries × `columns` keys, and how a program that walks such tiles is run."""

    rows: int
    columns: int
    warps: int
    stages: int


class Shapes(NamedTuple):
    """A pass's tiles, by bytes of an element, then by the greater of the (padded) head dims.

    Vectors by distance want square ones; those of wider heads would not fit, and some passes are not run with them.
    """

    plain: dict[int, dict[int, Shape]]
    vectors: dict[int, dict[int, Shape]]


EXACT = "tf32x3"  # products of float32: three of tensor cores, whose sum is as exact
EDGE = 256  # the origin of a line is a multiple of this, and so of every tile's sizes
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

    def zeros(self, size: tuple[int, ...]) -> Tensor:
        return torch.zeros(size, dtype=torch.float32, device=self.grid.device)

    @property
    def instances(self) -> int:
        return self.grid.batch * self.grid.heads

    def arguments(self) -> dict[str, Any]:
        """What all kernels that walk tiles are given, whatever the tiles."""
        grid, dropped = self.grid, self.dropout is not None
        return dict(
            zip(NAMES, self.strides, strict=True),
            queries=grid.queries, keys=grid.keys, heads=grid.heads, share=self.share,
            origin=self.origin, length=self.length, padded=self.padded, scale=self.scale * LOG2E,
            d_scale=self.scale, unit=1.0 / self.scale,
            threshold=threshold(self.dropout or 0.0), keep_scale=kept_scale(self.dropout or 0.0) if dropped else 1.0,
            D=self.dim, BD=power(self.dim), DV=self.value_dim, BDV=power(self.value_dim),
            NUMBERS=self.numbers, VECTORS=self.vectors, DROPOUT=dropped,
            PRECISION=EXACT if self.dtype == torch.float32 else "tf32", PAIRS=self.dtype.itemsize == 2,
        )  # fmt: skip


class Walk:
    """One kernel's way over listed tiles, in pieces; pieces of cut lists leave partial sums that are added up."""

    def __init__(self, facts: Facts, kernel: Any, shape: Shape, tiles: Lists, programs: int, **more: Any):
        instances = programs // tiles.groups
        pieces = items(tiles, limit(facts, len(tiles.tile) * instances))
        listed = {"p_tile": tiles.tile, "p_bits": tiles.bits, "p_packed": tiles.packed}
        grouping = {"BY_BATCH": tiles.batch_stride > 0, "BY_HEAD": tiles.head_stride > 0}
        self.set(facts, kernel, shape, pieces, instances, grouping, listed | more)

    def set(
        self,
        facts: Facts,
        kernel: Any,
        shape: Shape,
        pieces: Items,
        instances: int,
        grouping: dict[str, bool],
        more: dict,
    ) -> None:
        self.facts, self.shape, self.instances, self.grouping = facts, shape, instances, grouping
        self.slots, self.cuts, self.cut_rows = pieces.slots * instances, len(pieces.cuts), pieces.cuts
        self.adding: dict[Any, Launch] = {}
        self.start = Launch(
            kernel, len(pieces.row) * instances,
            p_group=pieces.group, p_row=pieces.row, p_first=pieces.first, p_last=pieces.last, p_slot=pieces.slot,
            instances=instances, BM=shape.rows, BN=shape.columns, num_warps=shape.warps, num_stages=shape.stages,
            **facts.arguments(), **grouping, **more,
        )  # fmt: skip

    @classmethod
    def over(cls, facts: Facts, kernel: Any, shape: Shape, pieces: Items, **more: Any) -> Walk:
        """The way over pieces whose group is the batch row and head itself."""
        walk = cls.__new__(cls)
        walk.set(facts, kernel, shape, pieces, 1, {"BY_BATCH": True, "BY_HEAD": True}, more)
        return walk

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

    def outputs(self, spare: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Room for the outputs of pieces, their maxima and their sums."""
        if not self.cuts:
            return spare, spare, spare
        rows = self.shape.rows
        return self.room(spare, rows, power(self.facts.value_dim)), self.room(spare, rows), self.room(spare, rows)

    def merge(self, *tensors: Tensor) -> None:
        """Put the outputs of cut rows together."""
        if "outputs" not in self.adding:
            given = self.facts.arguments()
            sizes = {name: given[name] for name in ("queries", "heads", "keep_scale", "DV", "BDV")}
            more = {"instances": self.instances, "BM": self.shape.rows} | self.grouping
            programs = self.cuts * self.instances
            self.adding["outputs"] = Launch(merge_outputs, programs, p_cuts=self.cut_rows, **sizes, **more)
        self.adding["outputs"](*tensors)


def limit(f: Facts, tiles: int) -> int:
    """The longest list that is not cut: what a program would have if the work were spread evenly, a power of two."""
    device = torch.device(f.grid.device)
    many = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return power(max(tiles // (many * PROGRAMS), LEAST))


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()
