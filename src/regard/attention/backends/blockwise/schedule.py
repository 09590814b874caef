"""The work of a mask: which spans of keys each chunk of queries must visit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...parts.mask import ALL, NONE, Mask, PairGrid, Tiling


class Span(NamedTuple):
    """Keys `first … last − 1`; the parts of it where the predicate must be asked."""

    first: int
    last: int
    mixed: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Chunk:
    """Query rows `first … last − 1` of the batch rows in `batch`, and the spans of keys they visit."""

    batch: slice
    first: int
    last: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Shape:
    """How work is cut: `rows` queries a chunk, keys in tiles of `columns`, at most `width` keys at once."""

    rows: int
    columns: int
    width: int


def states(mask: Mask, grid: PairGrid, rows: int, columns: int) -> Tensor:
    """The mask's answer for each tile, all heads together, `[batch or 1, tile rows, tile columns]`."""
    each = mask.tiles(Tiling(grid, rows, columns))
    if each.shape[1] == 1:
        return each[:, 0]
    least, most = each.amin(1), each.amax(1)
    return torch.where(most == NONE, NONE, torch.where(least == ALL, ALL, 1)).to(torch.int8)


def share(mask: Mask, grid: PairGrid, shape: Shape) -> float:
    """The share of tiles that have something in them."""
    if not grid.queries * grid.keys * grid.batch:
        return 0.0
    return float((states(mask, grid, shape.rows, shape.columns) != NONE).float().mean())


def chunks(mask: Mask, grid: PairGrid, shape: Shape, together: int) -> list[Chunk]:
    """All work, in order: chunks of queries for groups of at most `together` batch rows.

    Rows of the batch whose tiles differ are taken one by one.
    """
    answers = states(mask, grid, shape.rows, shape.columns)
    alone = answers.shape[0] > 1 and bool((answers != answers[:1]).any())
    step = 1 if alone else max(together, 1)
    tables = answers.tolist()
    planned = [rows_of(table, grid, shape) for table in (tables if alone else tables[:1])]
    return [
        Chunk(slice(b, min(b + step, grid.batch)), first, min(first + shape.rows, grid.queries), spans)
        for b in range(0, grid.batch, step)
        for first, spans in zip(range(0, grid.queries, shape.rows), planned[b if alone else 0], strict=True)
    ]


def rows_of(table: list[list[int]], grid: PairGrid, shape: Shape) -> list[tuple[Span, ...]]:
    """The spans of each chunk of queries, from its row of answers."""
    return [tuple(spans_of(row, grid.keys, shape)) for row in table]


def spans_of(row: list[int], keys: int, shape: Shape) -> list[Span]:
    """Runs of tiles that have something in them, cut to the width."""
    found: list[Span] = []
    tiles = max(shape.width // shape.columns, 1)
    at = 0
    while at < len(row):
        if row[at] == NONE:
            at += 1
            continue
        end = at
        while end < len(row) and row[end] != NONE and end - at < tiles:
            end += 1
        whole, *mixed = (
            (first * shape.columns, min(last * shape.columns, keys))
            for first, last in [(at, end), *runs([tile for tile in range(at, end) if row[tile] != ALL])]
        )
        found.append(Span(*whole, tuple(mixed)))
        at = end
    return found


def runs(tiles: list[int]) -> list[tuple[int, int]]:
    """Consecutive numbers as (first, last + 1)."""
    joined: list[tuple[int, int]] = []
    for tile in tiles:
        if joined and joined[-1][1] == tile:
            joined[-1] = (joined[-1][0], tile + 1)
        else:
            joined.append((tile, tile + 1))
    return joined
