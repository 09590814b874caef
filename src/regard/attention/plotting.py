"""Views and masks as the plain arrays that `regard.plots` draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..errors import BadInput
from ..plots.arrays import HeadArrays
from ..plots.labels import check_labels
from .look import bucket_index, bucket_sizes
from .parts.mask import ALL, NONE, Mask, PairGrid, Tiling
from .parts.masks.tile_states import add_batch_heads
from .view import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_HEADS = 16
"""Heads in one figure."""
MAX_PAIRS, TILES = 512, 256
"""Tokens up to which a mask is drawn pair by pair, and tiles a side beyond."""
DENSE_PAIRS = 2**22
"""Pairs up to which the masked cells of a map are computed pair by pair."""
Labels = Sequence[str] | None


class Selection(TypedDict, total=False):
    """What is drawn of a view: a batch item, a head (all of them by default), and the words of its axes."""

    batch: int
    head: int | None
    queries: Labels
    keys: Labels


def plot_view(view: View, *, title: str | None = None, **selection: Unpack[Selection]) -> Figure:
    """A figure of the weights, else of the map, else of the statistics: one head, or up to 16 of them."""
    from ..plots.figures import draw_heads

    return draw_heads(view_arrays(view, max_heads=MAX_HEADS, **selection), title)


def view_arrays(
    view: View,
    *,
    batch: int = 0,
    head: int | None = None,
    queries: Labels = None,
    keys: Labels = None,
    max_heads: int | None = None,
) -> HeadArrays:
    """The arrays of one batch item; of one head, or of all of them, at most `max_heads`.

    `queries` and `keys` are the labels of the axes. Raises `BadInput` for labels or indices that do not fit.
    """
    if not view.lse.numel() or not view.keys:
        raise BadInput(f"There is nothing to draw of {view!r}; pass at least one query and one key.")
    check_index(batch, view.lse.shape[0], "batch")
    total = view.lse.shape[1]
    heads = list(range(total))[:max_heads] if head is None else [check_index(head, total, "head")]

    def select(x: Tensor) -> Tensor:
        """The heads on the CPU, in a type that a page can hold: float32, float64 or int32."""
        x = x[batch, heads].detach().cpu()
        return x.int() if not x.is_floating_point() else x if x.dtype == torch.float64 else x.float()

    statistics = {name: select(getattr(view, name)) for name in ("entropy", "distance", "peak")}
    weights = view.weights if view.weights is not None else view.map
    pooled = view.weights is None and view.map is not None
    if pooled:
        rows = view.map.shape[-2]  # type: ignore[union-attr]
        statistics = {name: bucket_means(values, rows) for name, values in statistics.items()}
    return HeadArrays(
        view.description,
        (view.lse.shape[0], total, view.queries, view.keys),
        batch,
        heads,
        None if weights is None else select(weights),
        pooled,
        masked_cells(view, batch, heads),
        **statistics,
        received=select(view.received),
        dead=select(view.lse).isneginf().sum(-1),
        top_weights=None if view.top_weights is None else select(view.top_weights),
        top_keys=None if view.top_keys is None else select(view.top_keys),
        query_labels=None if queries is None else check_labels(queries, view.queries, "queries"),
        key_labels=None if keys is None else check_labels(keys, view.keys, "keys"),
    )


def check_index(index: object, size: int, name: str) -> int:
    """The index; raises `BadInput` unless it is one of `size`."""
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < size:
        raise BadInput(f"{name} is {index!r}; there are {size}, so it must be a whole number from 0 to {size - 1}.")
    return index


def bucket_means(values: Tensor, count: int) -> Tensor:
    """`[heads, count]`: the means of values `[heads, tokens]` over buckets of tokens."""
    size = values.shape[1]
    sums = values.new_zeros(len(values), count).index_add_(1, bucket_index(size, count, values.device), values)
    return sums / bucket_sizes(size, count, values.device).clamp(min=1)


def masked_cells(view: View, batch: int, heads: list[int]) -> Tensor | None:
    """True where no pair of a cell is allowed, `[heads or 1, rows, columns]`; None where that is not known."""
    if view.weights is None and view.map is None:
        return None
    if view.weights is not None or view.queries * view.keys <= DENSE_PAIRS:
        allowed = select_heads(view.mask.dense(view.queries, view.keys), batch, heads)
        return ~allowed if view.map is None or view.weights is not None else empty_cells(allowed, *view.map.shape[-2:])
    rows, columns = view.map.shape[-2:]  # type: ignore[union-attr]
    if view.queries % rows or view.keys % columns:
        return None
    grid = PairGrid(view.queries, view.keys, device=view.mask.device())
    tiling = Tiling(grid, view.queries // rows, view.keys // columns)
    return select_heads(view.mask.tiles(tiling), batch, heads) == NONE


def select_heads(answers: Tensor, batch: int, heads: list[int]) -> Tensor:
    """A mask's answers for one batch item and some heads, `[heads or 1, rows, columns]`."""
    every = add_batch_heads(answers)
    item = every[batch if every.shape[0] > 1 else 0].cpu()
    return item if item.shape[0] == 1 else item[heads]


def empty_cells(allowed: Tensor, rows: int, columns: int) -> Tensor:
    """True where no pair of a bucket of queries × a bucket of keys is allowed, `[heads or 1, rows, columns]`."""
    down, across = (
        one_hot(bucket_index(size, count, torch.device("cpu")), count).float()
        for size, count in zip(allowed.shape[-2:], (rows, columns), strict=True)
    )
    return down.mT @ (allowed.float() @ across) == 0


def plot_mask(
    mask: Mask,
    queries: int | Sequence[str],
    keys: int | Sequence[str] | None = None,
    *,
    batch: int = 0,
    head: int = 0,
    title: str | None = None,
) -> Figure:
    """A figure of the mask for sizes, or for words to write on the axes; drawn by tiles above 512 tokens."""
    from ..plots.figures import draw_mask

    keys = queries if keys is None else keys
    rows, columns = count_tokens(queries, "queries"), count_tokens(keys, "keys")
    left = check_labels(range(columns - rows, columns) if isinstance(queries, int) else queries, rows, "queries")
    below = check_labels(range(columns) if isinstance(keys, int) else keys, columns, "keys")
    tile = 1 if max(rows, columns) <= MAX_PAIRS else -(-max(rows, columns) // TILES)
    try:
        grid = PairGrid(rows, columns, device=mask.device())
        answers = add_batch_heads(
            mask.dense(rows, columns) * ALL if tile == 1 else mask.tiles(Tiling(grid, tile, tile))
        )
    except (IndexError, RuntimeError) as error:
        raise BadInput(f"{mask!r} does not fit {rows} queries and {columns} keys: {error}.") from error
    batch, head = (  # a mask that does not depend on them answers for any
        check_index(n, size, name) if size > 1 else 0
        for n, size, name in zip((batch, head), answers.shape[:2], ("batch", "head"), strict=True)
    )
    rule = f"i may attend to j where {mask.formula}" if mask.formula else ""
    return draw_mask(answers[batch, head].cpu(), left, below, tile=tile, title=title or repr(mask), rule=rule)


def count_tokens(tokens: int | Sequence[str], name: str) -> int:
    """How many tokens a size or a list of words stands for."""
    if isinstance(tokens, str):
        raise BadInput(f"{name} is the text {tokens!r:.40}; it must be a size or a list of words. Split it into words.")
    size = tokens if isinstance(tokens, int) else len(tokens)
    if size < 1:
        raise BadInput(f"{name} is {tokens!r}; a figure needs at least one. Give a size or a list of words.")
    return size
