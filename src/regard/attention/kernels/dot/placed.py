"""Tables by distance at explicit places: their layout, and their gradients.

Without places all tiles of a diagonal have the same distances. At places a tile has those between its own bounds, so
the gradient of a table of vectors is summed block of entries by block of entries, each over the tiles whose bounds meet
it; that of a table of numbers is summed by programs with a copy each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..launch import Launch, TileShape, strides
from ..tile_lists import TileLists, renumber, split_ranges, tile_lists
from .placed_kernels import d_placed_bias_kernel, d_placed_vectors_kernel
from .schedule import DotConfig, TileSchedule, split_limit

if TYPE_CHECKING:
    from .passes import DotInputs, OutputGrad
    from .relative import Chunk, OrderedTiles, RelativeSchedule

BIAS_PROGRAMS = 1024  # programs that sum the gradient of a table of numbers, over all batch rows and heads


def placed_bias_gradient(inputs: DotInputs, rows: OutputGrad, shape: TileShape) -> Tensor:
    """d rel_bias, `[heads, entries]`."""
    c = inputs.config
    tiles = tile_lists(inputs.mask, c.grid, shape.rows, shape.columns)
    programs = min(max(BIAS_PROGRAMS // c.instances, 1), tiles.lists)
    sums = torch.zeros((c.instances * programs, c.length), dtype=torch.float32, device=inputs.plan.device)
    launch = Launch(
        d_placed_bias_kernel, c.instances * programs, p_starts=tiles.starts, p_tile=tiles.tile, p_bits=tiles.bits,
        p_packed=tiles.packed, stride_gb=tiles.batch_stride, stride_gh=tiles.head_stride, lists=tiles.lists,
        programs=programs, **many_warps(c, shape).arguments(), **c.arguments(),
    )  # fmt: skip
    launch(*inputs.plain_operands(), inputs.seed, *rows, sums)
    return sums.view(c.grid.batch, c.grid.heads, programs, c.length).sum((0, 2))


def many_warps(c: DotConfig, shape: TileShape) -> TileShape:
    """The tile with registers of 8 warps; not in float32, for which Triton 3.6 then reads beyond the shared memory."""
    return shape._replace(warps=8) if c.dtype.itemsize == 2 else shape


class EntryTiles(NamedTuple):
    """The listed tiles by block of a table's entries; a tile is in every block that its bounds meet."""

    order: OrderedTiles  # `tile` is the row of each
    column: Tensor
    groups: Tensor  # [batch, heads]: the group of each


def order_by_entry(inputs: DotInputs, by_row: TileLists, rows: OrderedTiles, size: int) -> EntryTiles:
    """The tiles of `size` queries × keys by block of `size` entries."""
    c, grid, places = inputs.config, inputs.config.grid, inputs.places
    assert places is not None
    low, high = zip(*(tile_bounds(x, size) for x in places.split([grid.queries, grid.keys], 1)), strict=True)
    owner, column = by_row.owners(), by_row.tile.long()
    group, row = owner // by_row.lists, owner % by_row.lists
    entry = lambda i, j: (i[:, row] - j[:, column] + c.origin).clamp(0, c.length - 1) // size  # noqa: E731
    first, last = entry(low[0], high[1]), entry(high[0], low[1])  # [batch or 1, tiles]
    at = torch.arange(len(places), device=places.device)[:, None]
    count = last - first + 1
    if by_row.batch_stride and len(places) > 1:  # a row's own tiles at its own places
        count = torch.where(group // by_row.batch_stride == at, count, 0)
    count, blocks = count.flatten(), -(-c.length // size)
    which = torch.repeat_interleave(count)
    block = first.flatten()[which] + torch.arange(len(which), device=which.device) - (count.cumsum(0) - count)[which]
    tile = which % max(len(owner), 1)
    lists = (which // max(len(owner), 1) * by_row.groups + group[tile]) * blocks + block
    key, order = torch.sort(lists * rows.columns + column[tile], stable=True)
    tile = tile[order]
    b, h = (torch.arange(n, device=places.device) for n in c.front)
    groups = b[:, None] * by_row.batch_stride + h * by_row.head_stride
    groups = groups + (b[:, None] * by_row.groups if len(places) > 1 else 0)
    ordered = rows._replace(tile=row[tile].int(), ds_index=rows.ds_index[tile], key=key, lists=blocks)
    return EntryTiles(ordered, column[tile].int(), groups)


def tile_bounds(places: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The least and the greatest place of each tile of `size` tokens, `[batch or 1, tiles]` each."""
    padding = -places.shape[1] % size
    padded = torch.cat([places, places[:, -1:].expand(-1, padding)], 1).unflatten(1, (-1, size))
    return padded.amin(2), padded.amax(2)


def add_placed_vectors(
    inputs: DotInputs, total: Tensor, ds: Tensor, base: Tensor, chunk: Chunk, tiles: EntryTiles,
    relative: RelativeSchedule, by_key: bool,
) -> None:  # fmt: skip
    """Add a chunk's gradient of the vectors for queries, or those for keys, to the total `[heads, entries, d]`."""
    c, size = inputs.config, relative.shape.rows
    x = inputs.k if by_key else inputs.rel_q
    assert x is not None
    instances = torch.tensor([b * c.grid.heads + h for b, h in chunk.pairs()], device=ds.device)
    begin, end = tiles.order.between(tiles.groups.flatten()[instances], chunk.first, chunk.last)
    items = split_ranges(begin, end, split_limit(c, int((end - begin).sum())))
    steps = dict(zip(("stride_xb", "stride_xh", "stride_xn"), strides(x), strict=True))
    arguments = {"x_group": c.group_size if by_key else 1, "BY_KEY": by_key, "p_ds_base": base, **steps}
    arguments |= {"p_column": tiles.column, "lists": tiles.order.lists, **tiles.order.arguments()}
    light = many_warps(c, relative.shape)._replace(stages=2)
    schedule = TileSchedule(c, d_placed_vectors_kernel, light, renumber(items, instances), arguments)
    out = inputs.plan.empty32((*c.front, tiles.order.lists * size, c.head_dim))
    schedule.sum_lists((x, ds, inputs.places), (out,), size, c.scale)
    rows, heads = slice(chunk.row, chunk.row + chunk.rows), slice(chunk.head, chunk.head + chunk.heads)
    total[heads] += out[rows, heads, : c.length].sum(0)
