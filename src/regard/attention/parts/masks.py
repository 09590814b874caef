"""The masks, and recipes that combine them.

Each defines `allow(i, j)` (or `permits`, where it depends on the sizes of the call) and the exact states of its tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...errors import BadInput
from ..execution import mask_cache
from .mask import ALL, MIXED, NONE, KeyBounds, Mask, PairGrid, Tiling
from .part import check_count, check_tensor


@dataclass(frozen=True, eq=False, repr=False)
class Everything(Mask):
    """Every query attends to every key."""

    formula = "always"

    @property
    def by_rows(self) -> bool:
        return True

    @property
    def allows_future(self) -> bool:
        return True

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return torch.ones_like(i + j, dtype=torch.bool)

    def tiles(self, tiling: Tiling) -> Tensor:
        return torch.full((1, 1, *tiling.shape), ALL, dtype=torch.int8, device=tiling.grid.device)

    def key_span(self, first: int, last: int) -> KeyBounds:
        return -math.inf, math.inf


@dataclass(frozen=True, eq=False, repr=False)
class Causal(Mask):
    """A query attends to itself and to earlier keys: j ≤ i.

    >>> Causal().dense(2, 3).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """

    formula = "j ≤ i"

    @property
    def causal(self) -> bool:
        return True

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    def tiles(self, tiling: Tiling) -> Tensor:
        least, most = tiling.distances()
        return states_from(least >= 0, most < 0)

    def key_span(self, first: int, last: int) -> KeyBounds:
        return -math.inf, last


@dataclass(frozen=True, eq=False, repr=False)
class Window(Mask):
    """A query attends to `before` earlier keys, itself and `after` later keys: i − before ≤ j ≤ i + after."""

    before: int
    after: int = 0
    formula = "i − before ≤ j ≤ i + after"

    def __post_init__(self) -> None:
        check_count(self.before, "Window's before")
        check_count(self.after, "Window's after")

    @property
    def causal(self) -> bool:
        return self.after == 0

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return (j >= i - self.before) & (j <= i + self.after)

    def tiles(self, tiling: Tiling) -> Tensor:
        least, most = tiling.distances()
        return states_from((least >= -self.after) & (most <= self.before), (most < -self.after) | (least > self.before))

    def key_span(self, first: int, last: int) -> KeyBounds:
        return first - self.before, last + self.after


@dataclass(frozen=True, eq=False, repr=False)
class Dilated(Mask):
    """A dilated window: every `step`-th key, `before` of them earlier and `after` of them later."""

    before: int
    after: int
    step: int
    formula = "(i − j) % step = 0 and −after·step ≤ i − j ≤ before·step"

    def __post_init__(self) -> None:
        check_count(self.before, "Dilated's before")
        check_count(self.after, "Dilated's after")
        check_count(self.step, "Dilated's step", 1)

    @property
    def causal(self) -> bool:
        return self.after == 0

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        distance = i - j
        near = (distance <= self.before * self.step) & (distance >= -self.after * self.step)
        return near & (distance % self.step == 0)

    def tiles(self, tiling: Tiling) -> Tensor:
        least, most = tiling.distances()
        low, high = least.clamp(min=-self.after * self.step), most.clamp(max=self.before * self.step)
        some = torch.div(high, self.step, rounding_mode="floor") * self.step >= low
        inside = (least >= -self.after * self.step) & (most <= self.before * self.step)
        return states_from(inside & some & ((least == most) | (self.step == 1)), ~some)

    def key_span(self, first: int, last: int) -> KeyBounds:
        return first - self.before * self.step, last + self.after * self.step


@dataclass(frozen=True, eq=False, repr=False)
class Global(Mask):
    """Global tokens attend to all and are attended to by all: i or j is one of them.

    `tokens` is a count (the first ones), indices, or a boolean `[batch, keys]`.
    """

    tokens: int | tuple[int, ...] | Tensor
    formula = "i or j is one of the tokens"

    def __post_init__(self) -> None:
        if isinstance(self.tokens, list | range):
            object.__setattr__(self, "tokens", tuple(self.tokens))
        if isinstance(self.tokens, tuple):
            for token in self.tokens:
                check_count(token, "an index of Global's tokens")
        elif isinstance(self.tokens, Tensor):
            boolean = self.tokens.dtype == torch.bool
            check_tensor(
                self.tokens, "Global's tokens", (2,) if boolean else (1,), "boolean [batch, keys] or indices [n]", False
            )
            if self.tokens.dtype.is_floating_point:
                raise BadInput(f"Global's tokens are {self.tokens.dtype}; give indices or a boolean [batch, keys].")
        else:
            check_count(self.tokens, "Global's tokens")

    def check(self, grid: PairGrid) -> None:
        if isinstance(self.tokens, Tensor) and self.tokens.dtype == torch.bool:
            check_batch_tokens("Global's tokens", self.tokens, "[batch, keys]", grid, grid.keys)
        elif isinstance(self.tokens, tuple | Tensor) and len(self.tokens) and grid.places is None:
            least, most = int(min(self.tokens)), int(max(self.tokens))
            if least < 0 or most >= grid.keys:
                raise BadInput(f"Global's tokens reach from {least} to {most}; the keys are 0 … {grid.keys - 1}.")

    @property
    def by_rows(self) -> bool:
        return isinstance(self.tokens, Tensor) and self.tokens.dtype == torch.bool

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.contains(i) | self.contains(j)

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        return self.allow(i, j) if self.by_rows else super().permits(i, j, grid)

    def contains(self, place: Tensor) -> Tensor:
        """Whether each position is one of the tokens; `[batch, 1, ...]` when they differ by batch."""
        if isinstance(self.tokens, int):
            return (place >= 0) & (place < self.tokens)
        if isinstance(self.tokens, Tensor) and self.tokens.dtype == torch.bool:
            return ((place >= 0) & self.tokens[:, place.clamp(min=0)])[:, None]
        return torch.isin(place, torch.as_tensor(self.tokens, device=place.device))

    def tiles(self, tiling: Tiling) -> Tensor:
        i, j = tiling.grid.indices()
        i, j = i[:, 0], j[0]
        if tiling.grid.places is not None and not self.by_rows:
            i, j = (x[:, None] for x in tiling.grid.places)  # [batch or 1, 1, tokens]
        rows = tiling.select_rows(tile_counts(self.contains(i), tiling.rows))[..., :, None]
        columns = tiling.select_columns(tile_counts(self.contains(j), tiling.columns))[..., None, :]
        row_sizes, column_sizes = tile_sizes(tiling)
        return states_from((rows == row_sizes) | (columns == column_sizes), (rows == 0) & (columns == 0))


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Mask):
    """By blocks of row numbers: layout[row // block, j // block]; `layout` is boolean `[..., rows, columns]`."""

    layout: Tensor
    block: int
    formula = "layout[row(i) // block, j // block]"

    @property
    def by_rows(self) -> bool:
        return True

    def __post_init__(self) -> None:
        check_count(self.block, "Blocks' block", 1)
        check_boolean(
            self.layout,
            "Blocks' layout",
            (2, 3, 4),
            "boolean [rows, columns], with heads and batch in front if they matter",
        )

    def check(self, grid: PairGrid) -> None:
        expected = [-(-grid.queries // self.block), -(-grid.keys // self.block)]
        if list(self.layout.shape[-2:]) != expected:
            raise BadInput(
                f"Blocks' layout is {list(self.layout.shape)}; {grid.queries} queries and {grid.keys} keys in blocks "
                f"of {self.block} make [..., {expected[0]}, {expected[1]}]."
            )
        check_batch_heads("Blocks' layout", self.layout, grid)

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.permits(i, j, PairGrid(0, 0))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        return add_batch_heads(self.layout)[..., (i - grid.offset) // self.block, j // self.block]

    def tiles(self, tiling: Tiling) -> Tensor:
        return block_tiles(add_batch_heads(self.layout), self.block, tiling.row_numbers(), tiling.keys())


@dataclass(frozen=True, eq=False, repr=False)
class NearBlocks(Mask):
    """A window of whole blocks: the block of j is at most `reach` blocks from that of i."""

    block: int
    reach: int
    formula = "|i // block − j // block| ≤ reach"

    def __post_init__(self) -> None:
        check_count(self.block, "NearBlocks' block", 1)
        check_count(self.reach, "NearBlocks' reach")

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return (i // self.block - j // self.block).abs() <= self.reach

    def tiles(self, tiling: Tiling) -> Tensor:
        (i_first, i_last), (j_first, j_last) = tiling.place_ranges()
        least = i_first // self.block - j_last // self.block
        most = i_last // self.block - j_first // self.block
        return states_from((least >= -self.reach) & (most <= self.reach), (most < -self.reach) | (least > self.reach))


@dataclass(frozen=True, eq=False, repr=False)
class RandomBlocks(Mask):
    """Each block of queries attends to `count` blocks of keys, drawn by the seed: the same on every device."""

    block: int
    count: int
    seed: int = 0
    formula = "j's block is one of the count drawn for i's block"

    def __post_init__(self) -> None:
        check_count(self.block, "RandomBlocks' block", 1)
        check_count(self.count, "RandomBlocks' count")
        check_count(self.seed, "RandomBlocks' seed")

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        keys = max(int(i.max()), int(j.max())) + 1
        return self.permits(i, j, PairGrid(keys, keys, device=i.device))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        i, j = grid.at_places(i, j)
        drawn = self.drawn_blocks(grid)[i // self.block - self.first_block(grid)]  # [..., count]
        return (drawn == (j // self.block)[..., None]).any(-1)

    def first_block(self, grid: PairGrid) -> int:
        """The first block of queries."""
        first = grid.offset if grid.places is None else min(int(grid.places[0].min()), 0)
        return first // self.block

    def drawn_blocks(self, grid: PairGrid) -> Tensor:
        """The blocks of keys that each block of queries attends to, `[query blocks, count]`, drawn once for a grid."""
        end = grid.keys if grid.places is None else max(int(x.max()) for x in grid.places) + 1
        rows, columns, device = self.first_block(grid), -(-end // self.block), grid.device
        if torch.compiler.is_compiling():
            return self.draw_blocks(rows, columns, device)
        return mask_cache(self).get(
            ("drawn", rows, columns, str(device)), lambda: self.draw_blocks(rows, columns, device)
        )

    def draw_blocks(self, first: int, blocks: int, device: torch.device | str) -> Tensor:
        rows, columns = torch.arange(first, blocks, device=device), torch.arange(blocks, device=device)
        seeds = hash_index(hash_index(torch.full_like(rows, self.seed)) ^ rows)
        step = max(1, (1 << 24) // max(1, len(columns)))  # rows at once: a number for each pair of blocks takes memory
        drawn = columns.new_empty(len(rows), min(self.count, len(columns)))
        for at in range(0, len(rows), step):
            numbers = hash_index(seeds[at : at + step, None] ^ columns) * len(columns) + columns
            drawn[at : at + step] = numbers.topk(drawn.shape[1], dim=1).indices
        return drawn

    def tiles(self, tiling: Tiling) -> Tensor:
        if tiling.grid.places is not None:  # rows of a tile need not be neighbours
            return super().tiles(tiling)
        drawn, start = self.drawn_blocks(tiling.grid), self.first_block(tiling.grid)
        (top, bottom), (left, right) = ((x // self.block for x in ends) for ends in (tiling.queries(), tiling.keys()))
        count = torch.zeros(tiling.shape, dtype=torch.int32, device=tiling.grid.device)
        for step in range((tiling.rows - 2) // self.block + 2 if tiling.rows > 1 else 1):  # blocks that a tile may meet
            row = top + step
            blocks = drawn[(row - start).clamp(max=len(drawn) - 1)[:, 0]]  # [tile rows, count]
            for column in (blocks[:, n : n + 1] for n in range(drawn.shape[1])):
                count += (row <= bottom) & (column >= left) & (column <= right)
        return states_from(count == (bottom - top + 1) * (right - left + 1), count == 0)


@dataclass(frozen=True, eq=False, repr=False)
class Lengths(Mask):
    """Padding: key row j < keys[b], and query row < queries[b] when given; both are `[batch]`."""

    keys: Tensor
    queries: Tensor | None = None
    formula = "j < keys[b] (and row(i) < queries[b])"

    @property
    def by_rows(self) -> bool:
        return True

    def __post_init__(self) -> None:
        for name, value in (("keys", self.keys), ("queries", self.queries)):
            if value is not None:
                check_tensor(value, f"Lengths' {name}", (1,), "whole numbers [batch]", False)
                if value.dtype.is_floating_point or value.dtype == torch.bool:
                    raise BadInput(f"Lengths' {name} are {value.dtype}; they must be whole numbers [batch].")

    def check(self, grid: PairGrid) -> None:
        for name, value in (("keys", self.keys), ("queries", self.queries)):
            if value is not None and value.shape[0] != grid.batch:
                raise BadInput(
                    f"Lengths' {name} are {list(value.shape)}; the batch is {grid.batch}. Give one for each row."
                )

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.permits(i, j, PairGrid(0, 0))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        inside = j < self.keys[:, None, None, None]
        if self.queries is not None:
            inside = inside & (i - grid.offset < self.queries[:, None, None, None])
        return inside

    def tiles(self, tiling: Tiling) -> Tensor:
        first, last = tiling.keys()
        keys = self.keys[:, None, None, None]
        full, empty = last < keys, first >= keys
        if self.queries is not None:
            first, last = tiling.row_numbers()
            rows = self.queries[:, None, None, None]
            full, empty = full & (last < rows), empty | (first >= rows)
        return states_from(full, empty).expand(-1, -1, *tiling.shape)


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """Packed documents: a query attends to the keys of its own document; negative ids attend to none.

    `ids [batch, keys]`; `query_ids [batch, queries]` when the queries' differ from those of the last keys.
    """

    ids: Tensor
    query_ids: Tensor | None = None
    formula = "ids[i] = ids[j] ≥ 0"

    @property
    def by_rows(self) -> bool:
        return True

    def __post_init__(self) -> None:
        for name, value in (("ids", self.ids), ("query_ids", self.query_ids)):
            if value is not None:
                check_tensor(value, f"Documents' {name}", (2,), "whole numbers [batch, tokens]", False)
                if value.dtype.is_floating_point or value.dtype == torch.bool:
                    raise BadInput(f"Documents' {name} are {value.dtype}; they must be whole numbers.")

    def check(self, grid: PairGrid) -> None:
        check_batch_tokens("Documents' ids", self.ids, "[batch, keys]", grid, grid.keys)
        if self.query_ids is not None:
            check_batch_tokens("Documents' query_ids", self.query_ids, "[batch, queries]", grid, grid.queries)
        elif grid.queries > grid.keys:
            raise BadInput(
                f"Documents has the ids of {grid.keys} keys; {grid.queries} queries need ids of their own: "
                "query_ids [batch, queries]."
            )

    def query_documents(self, grid: PairGrid) -> Tensor:
        return self.query_ids if self.query_ids is not None else self.ids[:, grid.offset :]

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.permits(i, j, PairGrid(0, 0))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        mine, theirs = self.query_documents(grid)[:, i - grid.offset], self.ids[:, j]
        return ((mine == theirs) & (theirs >= 0))[:, None]

    def tiles(self, tiling: Tiling) -> Tensor:
        mine, theirs = id_ranges(self.query_documents(tiling.grid), tiling.rows), id_ranges(self.ids, tiling.columns)
        q_least, q_most, q_holes = (tiling.select_rows(x)[:, None, :, None] for x in mine)
        k_least, k_most, k_holes = (tiling.select_columns(x)[:, None, None, :] for x in theirs)
        same = (q_least == q_most) & (k_least == k_most) & (q_least == k_least) & ~q_holes & ~k_holes
        return states_from(same, (q_most < k_least) | (k_most < q_least))


@dataclass(frozen=True, eq=False, repr=False)
class Pairs(Mask):
    """Any mask as a boolean tensor that broadcasts to `[batch, heads, queries, keys]`."""

    allowed: Tensor
    formula = "allowed[b, h, row(i), j]"

    @property
    def by_rows(self) -> bool:
        return True

    def __post_init__(self) -> None:
        check_boolean(
            self.allowed, "Pairs' allowed", (2, 3, 4), "boolean, broadcasting to [batch, heads, queries, keys]"
        )

    def check(self, grid: PairGrid) -> None:
        sizes = (grid.queries, grid.keys)
        if any(size not in (1, full) for size, full in zip(self.allowed.shape[-2:], sizes, strict=True)):
            raise BadInput(
                f"Pairs' allowed is {list(self.allowed.shape)}; it must broadcast to "
                f"{[grid.batch, grid.heads, *sizes]} (batch, heads, queries, keys)."
            )
        check_batch_heads("Pairs' allowed", self.allowed, grid)

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.permits(i, j, PairGrid(0, 0))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        pairs = add_batch_heads(self.allowed)
        row, column = i - grid.offset, j
        row = torch.zeros_like(row) if pairs.shape[-2] == 1 else row
        column = torch.zeros_like(column) if pairs.shape[-1] == 1 else column
        return pairs[..., row, column]

    def tiles(self, tiling: Tiling) -> Tensor:
        pairs = add_batch_heads(self.allowed)
        rows = tile_counts(pairs.expand(-1, -1, tiling.grid.queries, -1), tiling.rows, dim=-2)
        rows = tiling.select_rows(rows.mT).mT
        count = tiling.select_columns(tile_counts(rows.expand(*rows.shape[:3], tiling.grid.keys), tiling.columns))
        row_sizes, column_sizes = tile_sizes(tiling)
        return states_from(count == row_sizes * column_sizes, count == 0)

    def __repr__(self) -> str:
        return f"Pairs(<bool {list(self.allowed.shape)}>)"


def longformer(window: int, tokens: int | tuple[int, ...] | Tensor = 1, *, causal: bool = False, step: int = 1) -> Mask:
    """Longformer's mask: a window of `window` keys around each query (half on each side) and global tokens.

    `causal` leaves out later keys; a `step` above 1 dilates the window.

    >>> longformer(512, tokens=1)
    Window(before=256, after=256) | Global(tokens=1)
    """
    half = window // 2
    near: Mask = Window(half, half) if step == 1 else Dilated(half, half, step)
    mask = near | Global(tokens)
    return mask & Causal() if causal else mask


def bigbird(block: int = 64, *, window: int = 3, random: int = 3, tokens: int | None = None, seed: int = 0) -> Mask:
    """BigBird's mask, in blocks: `window` blocks around each, `random` random ones, and global ones at the start.

    `tokens` are the global tokens, one block of them unless given.
    """
    check_count(window, "bigbird's window", 1)
    return (
        NearBlocks(block, window // 2) | RandomBlocks(block, random, seed) | Global(block if tokens is None else tokens)
    )


def states_from(full: Tensor, empty: Tensor) -> Tensor:
    """States of tiles that are full, empty or neither, with batch and heads in front."""
    return add_batch_heads(torch.where(full, ALL, torch.where(empty, NONE, MIXED)).to(torch.int8))


def add_batch_heads(x: Tensor) -> Tensor:
    """x with dimensions of size 1 for batch and heads in front, where they are missing."""
    return x.reshape(*(1,) * (4 - x.dim()), *x.shape)


def hash_index(x: Tensor) -> Tensor:
    """A 31-bit hash of each 64-bit number, the same on every device."""
    x = (x ^ (x >> 16)) * 0x45D9F3B & 0x7FFFFFFF
    x = (x ^ (x >> 15)) * 0x2C1B3C6D & 0x7FFFFFFF
    return x ^ (x >> 16)


def tile_counts(x: Tensor, size: int, dim: int = -1) -> Tensor:
    """Sums of x over consecutive runs of `size` along `dim`; the last run may be shorter."""
    moved = x.movedim(dim, -1)
    padded = pad(moved.to(torch.int32), (0, -moved.shape[-1] % size))
    return padded.unflatten(-1, (-1, size)).sum(-1).movedim(-1, dim)


def tile_sizes(tiling: Tiling) -> tuple[Tensor, Tensor]:
    """How many rows `[tile rows, 1]` and columns `[1, tile columns]` each tile has."""
    (r_first, r_last), (c_first, c_last) = tiling.row_numbers(), tiling.keys()
    return r_last - r_first + 1, c_last - c_first + 1


def block_tiles(layout: Tensor, block: int, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor]) -> Tensor:
    """States of tiles, given by first and last rows and columns, from a layout of blocks: sums over rectangles."""
    exact = torch.int32 if layout[0, 0].numel() < 1 << 31 else torch.int64
    sums = pad(layout.cumsum(-1, dtype=exact).cumsum(-2, dtype=exact), (1, 0, 1, 0))
    (r_first, r_last), (c_first, c_last) = rows, columns
    top, bottom, left, right = r_first // block, r_last // block + 1, c_first // block, c_last // block + 1
    count = sums[..., bottom, right] - sums[..., top, right] - sums[..., bottom, left] + sums[..., top, left]
    return states_from(count == (bottom - top) * (right - left), count == 0)


def id_ranges(ids: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Least and greatest id of each run of `size` (negative ones aside), and whether it has negative ones."""
    ids = ids.long()
    ids = torch.cat([ids, ids[:, -1:].expand(-1, -ids.shape[1] % size)], dim=1).unflatten(1, (-1, size))
    low = torch.where(ids < 0, torch.iinfo(torch.int64).max, ids)
    return low.amin(-1), ids.clamp(min=-1).amax(-1), (ids < 0).any(-1)  # each [batch, runs]


def check_boolean(value: Tensor, name: str, dims: tuple[int, ...], shape: str) -> None:
    check_tensor(value, name, dims, shape, False)
    if value.dtype != torch.bool:
        raise BadInput(
            f"{name} is {value.dtype}; it must be {shape}, True where attention is allowed. "
            "See regard.from_hugging_face, from_key_padding, from_attn_mask for other conventions."
        )


def check_batch_heads(name: str, value: Tensor, grid: PairGrid) -> None:
    front = add_batch_heads(value).shape[:2]
    if front[0] not in (1, grid.batch) or front[1] not in (1, grid.heads):
        raise BadInput(f"{name} is {list(value.shape)}; the batch is {grid.batch} and the heads are {grid.heads}.")


def check_batch_tokens(name: str, value: Tensor, shape: str, grid: PairGrid, tokens: int) -> None:
    if list(value.shape) != [grid.batch, tokens]:
        raise BadInput(f"{name} are {list(value.shape)}; they must be {shape} = {[grid.batch, tokens]}.")
