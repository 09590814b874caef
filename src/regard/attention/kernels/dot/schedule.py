"""Schedules of the dot family: the configuration of a problem, its tile shapes, and kernels over lists of tiles."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...dropout import keep_scale, threshold
from ...parts.mask import PairGrid
from ..launch import (
    COMPILING,
    LOG2E,
    Launch,
    PairLayout,
    PlacedTable,
    ShapeTable,
    TileShape,
    multiprocessors,
    next_power,
)
from ..tile_lists import TileLists, WorkItems, split_ranges
from .kernels import merge_kernel, sum_splits_kernel

PRECISION = "tf32x3"  # float32 products: three of tensor cores, which err up to twice what one without them does
FLOAT32_QUERIES = 16  # up to which products are computed without tensor cores: see `DotConfig.precision`
LINE_STEP = 256  # the origin of a line is a multiple of this, and so of every tile's sizes
PROGRAMS_PER_SM = 3  # programs for each multiprocessor that the work should be enough for
MIN_TILES = 16  # tiles of a work item of a split list, at least
PAIR_STRIDES = ("stride_pb", "stride_ph", "stride_pm", "stride_pn")
STRIDES = tuple(f"stride_{x}{axis}" for x in "qkvr" for axis in "bhn")


class PassShapes(NamedTuple):
    """A pass's tile shapes, by bytes of an element, then by the larger of the padded head dims.

    Relative vectors need square tiles. Tiles of wider heads would not fit, and some passes do not run with them.
    """

    plain: ShapeTable
    relative: ShapeTable


class DotConfig(NamedTuple):
    """What decides how a problem is run, besides its mask and the contents of its tensors."""

    grid: PairGrid
    dtype: torch.dtype
    group_size: int  # query heads of each key head
    head_dim: int
    value_dim: int
    strides: tuple[int, ...]  # of batch, heads and tokens, of q, k, v and rel_q
    scale: float
    dropout: float | None
    rel_bias: int  # 0 none, 1 from a table, 2 from slopes
    rel_vectors: bool
    exact_output: bool  # whether the output is float32
    cap: float | None = None
    sink: bool = False
    pairs: PairLayout | None = None  # of a bias by pair
    key_vectors: bool = False  # which run with relative vectors only
    exact_weights: bool = False  # whether an exact output is that of weights that are not rounded
    placed: PlacedTable | None = None  # where parts by distance are read at explicit places
    exact_ds: bool = False  # whether gradients of vectors by distance are sums of ds that is not rounded

    @property
    def origin(self) -> int:
        """The entry of distance 0, or of j − row = 0 along a line."""
        # so that shifted copies of a line lose nothing
        return self.padded_queries + LINE_STEP if self.placed is None else self.placed.zero

    @property
    def length(self) -> int:
        """Entries of a table, or of a line."""
        return self.origin + self.padded_keys if self.placed is None else self.placed.entries

    @property
    def padded_keys(self) -> int:
        return -(-self.grid.keys // LINE_STEP) * LINE_STEP

    @property
    def padded_queries(self) -> int:
        """Queries, padded to whole tiles."""
        return -(-self.grid.queries // LINE_STEP) * LINE_STEP

    @property
    def pairs_alone(self) -> bool:
        """Whether a bias by pair is all that is added to scores, and read straight into registers."""
        return self.pairs is not None and not (self.rel_bias or self.rel_vectors or self.key_vectors)

    @property
    def front(self) -> tuple[int, int]:
        return self.grid.batch, self.grid.heads

    @property
    def instances(self) -> int:
        return self.grid.batch * self.grid.heads

    def shape(self, shapes: PassShapes) -> TileShape:
        """The tile shape for these types and sizes."""
        widest = max(next_power(self.head_dim), next_power(self.value_dim), 64)
        shape = (shapes.relative if self.rel_vectors else shapes.plain)[self.dtype.itemsize][widest]
        if widest >= 128:  # tiles of what is added pair by pair take shared memory for each step ahead
            by_pair = self.rel_bias == 1 and (self.cap is not None or self.placed is not None)
            shape = shape._replace(stages=min(shape.stages, 3 - (self.pairs is not None) - by_pair))
        # Vectors for keys are two more tiles in shared memory, which then holds fewer steps ahead.
        return shape._replace(stages=max(shape.stages - 1, 1)) if self.key_vectors else shape

    @property
    def precision(self) -> str:
        """How products are computed. Few queries wait for the memory, so that those of float32 need no tensor cores."""
        if self.dtype != torch.float32:
            return "tf32"  # which half types ignore
        return "ieee" if self.grid.queries <= FLOAT32_QUERIES else PRECISION

    def empty(self, *sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=torch.float32, device=self.grid.device)

    def arguments(self) -> dict[str, Any]:
        """The arguments of kernels over tiles that do not depend on the tiles."""
        grid, drops = self.grid, self.dropout is not None
        return dict(
            zip(STRIDES, self.strides, strict=True),
            queries=grid.queries, keys=grid.keys, heads=grid.heads, group_size=self.group_size,
            origin=self.origin, length=self.length, padded=self.padded_queries, scale=self.scale * LOG2E,
            grad_scale=self.scale, inv_scale=1.0 / self.scale, cap=(self.cap or 1.0) / self.scale,
            **dict(zip(PAIR_STRIDES, (0,) * 4 if self.pairs is None else self.pairs.strides, strict=True)),
            threshold=threshold(self.dropout or 0.0), keep_scale=keep_scale(self.dropout or 0.0) if drops else 1.0,
            D=self.head_dim, BD=next_power(self.head_dim), DV=self.value_dim, BDV=next_power(self.value_dim),
            stride_places=grid.queries + grid.keys if self.placed is not None and self.placed.by_batch else 0,
            PLACED=self.placed is not None, PLACED_BIAS=0 if self.placed is None else self.rel_bias,
            REL_BIAS=self.rel_bias if self.placed is None else 0, REL_VECTORS=self.rel_vectors,
            KEY_VECTORS=self.key_vectors, DROPOUT=drops,
            CAP=self.cap is not None, PAIR_BIAS=self.pairs is not None, BY_THREAD=self.pairs_alone,
            ALIGNED=self.pairs is not None and self.pairs.vectors(grid.keys), SINK=self.sink,
            EXACT_WEIGHTS=self.exact_weights,
            PRECISION=self.precision, PAIRS=self.dtype.itemsize == 2,
        )  # fmt: skip


class TileSchedule:
    """One kernel over work items of listed tiles; items of split lists leave partial sums that are added up."""

    def __init__(
        self,
        config: DotConfig,
        kernel: Any,
        shape: TileShape,
        items: WorkItems,
        arguments: dict[str, Any],
        instances: int = 1,
        by_batch: bool = True,
        by_head: bool = True,
    ):
        self.config, self.shape, self.instances = config, shape, instances
        self.grouping = {"BY_BATCH": by_batch, "BY_HEAD": by_head}
        self.slots, self.splits, self.split_rows = items.splits * instances, len(items.split_rows), items.split_rows
        self.merges: dict[Hashable, Launch] = {}
        self.spare = config.empty(1)  # passed for partial sums where no list is split; nothing is written to it
        self.start = Launch(
            kernel, len(items.row) * instances,
            p_group=items.group, p_row=items.row, p_first=items.first, p_last=items.last, p_slot=items.slot,
            instances=instances, **shape.arguments(), **config.arguments(), **self.grouping, **arguments,
        )  # fmt: skip

    @classmethod
    def over_lists(
        cls, config: DotConfig, kernel: Any, shape: TileShape, tiles: TileLists, programs: int, **arguments: Any
    ) -> TileSchedule:
        """The schedule of all lists, for `programs` pairs of batch and head."""
        instances = programs // tiles.groups
        limit = split_limit(config, len(tiles.tile) * instances)
        items = split_ranges(tiles.starts[:, :-1].long(), tiles.starts[:, 1:].long(), limit)
        listed = {"p_tile": tiles.tile, "p_bits": tiles.bits, "p_packed": tiles.packed}
        grouping = (tiles.batch_stride > 0, tiles.head_stride > 0)
        return cls(config, kernel, shape, items, listed | arguments, instances, *grouping)

    @property
    def merges_parts(self) -> bool:
        """Whether partial sums are merged. Kernels are compiled for that too: longer lists of the kind may be split."""
        return self.splits > 0 or COMPILING.get() is not None

    def sum_lists(
        self, tensors: tuple[Tensor | None, ...], sums: tuple[Tensor, ...], rows: int, scale: float = 1.0,
        extra: tuple[Tensor | None, ...] = (),
    ) -> None:  # fmt: skip
        """Start the kernel on `tensors`, the sums, their partial sums and `extra`, and add those of split lists.

        Each of `sums [batch, heads, n, d]` has `rows` rows for every list; what is added is multiplied by `scale`.
        """
        if not self.merges_parts:
            self.start(*tensors, *sums, *[self.spare] * len(sums), *extra)
            return
        partials = [self.config.empty(self.slots, rows, next_power(x.shape[3])) for x in sums]
        self.start(*tensors, *sums, *partials, *extra)
        for out, partial in zip(sums, partials, strict=True):
            key = (out.shape, out.dtype, rows)
            if key not in self.merges:
                self.merges[key] = Launch(
                    sum_splits_kernel, max(self.splits * self.instances, 1), p_split_rows=self.split_rows,
                    lists=out.shape[2], heads=out.shape[1], instances=self.instances, scale=scale,
                    D=out.shape[3], BD=partial.shape[2], ROWS=rows, **self.grouping,
                )  # fmt: skip
            self.merges[key](out, partial)

    def output_partials(self) -> tuple[Tensor, Tensor, Tensor]:
        """Memory for the outputs of splits, their maxima and their sums."""
        rows, empty = self.shape.rows, self.config.empty
        width = next_power(self.config.value_dim)
        return empty(self.slots, rows, width), empty(self.slots, rows), empty(self.slots, rows)

    def merge_outputs(self, *tensors: Tensor | None) -> None:
        """Merge the outputs of split rows: (output, lse, `output_partials`, the sink's logits)."""
        if "outputs" not in self.merges:
            self.merges["outputs"] = Launch(
                merge_kernel, max(self.splits * self.instances, 1), p_split_rows=self.split_rows,
                instances=self.instances, BM=self.shape.rows, **self.config.arguments(), **self.grouping,
            )  # fmt: skip
        self.merges["outputs"](*tensors)


def split_limit(config: DotConfig, tiles: int) -> int:
    """The longest list that is not split: the tiles of a program if the work were spread evenly, a power of two."""
    processors = multiprocessors(torch.device(config.grid.device), 1)
    return next_power(max(tiles // (processors * PROGRAMS_PER_SM), MIN_TILES))
