"""Views and masks as matplotlib figures.

A masked cell is never drawn as a small weight: it is left out of the image, and the hatched ground shows through.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from ..attention.parts.mask import ALL, MIXED, NONE, Grid, Mask, Tiling
from ..attention.parts.masks import four
from ..attention.view import View
from ..errors import BadInput, Missing
from .page import PALETTE, Shown, Words, choose, need_index, need_words

try:
    import numpy
    from matplotlib import font_manager, rc_context
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch
except ImportError as error:
    raise Missing('Figures are drawn with matplotlib, which is not installed: pip install "regard[figures]"') from error

HONEST = "This shows where each head looked, not why the model answered."
WEIGHTS = LinearSegmentedColormap.from_list("regard", PALETTE, N=256)
GROUND, HATCH, ALLOWED, SOME = "#eeeff3", "#b9bdca", "#2b80b6", "#a9cfe0"
MOST_HEADS, MOST_LABELS, MOST_PAIRS, MOST_POINTS = 16, 64, 512, 128
CJK = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
CJK_FONTS = {
    "Noto Sans CJK SC": "NotoSansCJK",
    "Noto Sans CJK JP": "NotoSansCJK",
    "Noto Sans SC": "NotoSansSC",
    "Source Han Sans SC": "SourceHanSans",
    "Source Han Sans CN": "SourceHanSans",
    "PingFang SC": "PingFang",
    "Hiragino Sans GB": "Hiragino",
    "Microsoft YaHei": "msyh",
    "SimHei": "simhei",
    "WenQuanYi Zen Hei": "wqy-zenhei",
    "WenQuanYi Micro Hei": "wqy-microhei",
    "Droid Sans Fallback": "DroidSansFallback",
    "Arial Unicode MS": "Arial Unicode",
}
"""The usual Chinese, Japanese and Korean fonts, and how their files' names begin."""


class Drawing(Figure):
    """A figure that a notebook shows by itself, once, without pyplot."""

    def _repr_png_(self) -> bytes:
        held = BytesIO()
        self.savefig(held, format="png", bbox_inches="tight")
        return held.getvalue()


def draw_view(
    view: View,
    *,
    batch: int = 0,
    head: int | None = None,
    queries: Words = None,
    keys: Words = None,
    title: str | None = None,
) -> Figure:
    """A figure of the weights, else of the map, else of the statistics: one head, or up to 16 of them.

    `queries` and `keys` are the words to write on the axes. Raises `BadInput` for words or indices that do not fit.
    """
    shown = choose(view, batch, head, queries, keys, MOST_HEADS)
    with rc_context({"font.family": families([title or "", *(shown.queries or ()), *(shown.keys or ())])}):
        figure = draw_curves(shown) if shown.cells is None else draw_cells(shown)
        write_around(figure, title or view.description, sentences(shown))
    return figure


def write_around(figure: Figure, title: str, lines: list[str]) -> None:
    """The title above, with room for the legend beside it, and the lines below."""
    wide = figure.get_figwidth()
    left = {"x": 0.15 / wide, "ha": "left", "parse_math": False}
    figure.suptitle(wrapped(title, wide - 2.2, 11), fontsize=11, **left)
    caption = "\n".join(wrapped(line, wide, 8) for line in lines)
    figure.supxlabel(caption, fontsize=8, color="#5c6378", **left)


def sentences(shown: Shown) -> list[str]:
    """What must be read beside the picture."""
    lines = [] if shown.cells is None else [about_rows(shown)]
    if shown.kind == "map":
        lines.append("pooled: a cell is the mean, over its bucket of queries, of their weight on its bucket of keys")
        lines += ["masked cells are not marked: the map's size does not divide the tokens"] * (shown.masked is None)
    counts = " · ".join(filter(None, (about_heads(shown), about_places(shown), about_dead(shown))))
    return [*lines, counts, HONEST]


def about_rows(shown: Shown) -> str:
    """Which axis is which, and what the rows sum to."""
    low, high = shown.row_sums()
    sums = f"each row sums to 1 (measured {low:.6f} … {high:.6f})"
    return f"rows: queries (who looks) · columns: keys (looked at) · {sums}"


def about_heads(shown: Shown) -> str:
    """How many heads, and which batch, are drawn out of how many."""
    batches, heads = shown.view.lse.shape[:2]
    count = "" if len(shown.heads) == heads else f"{len(shown.heads)} of "
    every = f"{count}{heads} {'head' if heads == 1 else 'heads'}"
    return every + (f" · batch {shown.batch} of {batches}" if batches > 1 else "")


def about_places(shown: Shown) -> str:
    """Where the rows stand among the keys, when that is not their number."""
    shift = shown.view.keys - shown.view.queries
    if not shift or shown.kind != "weights":
        return ""
    return f"row r stands at place i = r {'+' if shift > 0 else '−'} {abs(shift)} among the keys"


def about_dead(shown: Shown) -> str:
    """How many rows may look at nothing, if any."""
    least, most = int(shown.dead().min()), int(shown.dead().max())
    count = str(most) if least == most else f"{least} to {most} (by head)"
    return f"{count} {'row' if most == 1 else 'rows'} may look at nothing (sum 0)" if most else ""


def draw_cells(shown: Shown) -> Figure:
    """Heat maps, one a head, with one legend for all."""
    cells, count = shown.cells, len(shown.heads)
    assert cells is not None
    across = in_a_row(count)
    side = panel_size(cells.shape[-2], cells.shape[-1], count)
    figure = panels(count, across, side)
    images = [draw_head(axes, shown, n, side) for n, axes in enumerate(figure.axes)]
    label_outer(figure, shown, side, across)
    add_legend(figure, images[0], shown)
    return figure


def in_a_row(count: int) -> int:
    """How many maps to put side by side: a square, or full rows where those are near it."""
    square = ceil(count**0.5)
    return next((across for across in (square, 4, 3) if count % across == 0), square)


def panel_size(rows: int, columns: int, count: int) -> tuple[float, float]:
    """Width and height of one map in inches: cells of 0.42 if there are a few, in the room that many maps leave."""
    room = 7.5 if count == 1 else 4.2 if count <= 4 else 3.0
    cell = min(max(0.42, 2.8 / max(rows, columns)), room / max(rows, columns))
    return max(cell * columns, 0.8), max(cell * rows, 0.8)


def panels(count: int, across: int, side: tuple[float, float]) -> Figure:
    """An empty figure with `count` axes, `across` in a row."""
    down = -(-count // across)
    size = (max(5.8, across * (side[0] + 0.2) + 2.0), down * (side[1] + 0.35) + 2.0)
    figure = Drawing(figsize=size, dpi=120, layout=ConstrainedLayoutEngine(h_pad=0.07))
    for n in range(count):
        figure.add_subplot(down, across, n + 1)
    return figure


def draw_head(axes: Axes, shown: Shown, n: int, side: tuple[float, float]) -> AxesImage:
    """One head's image; the masked cells are left to the hatched ground."""
    cells, masked = shown.cells[n], shown.masked  # type: ignore[index]
    hidden = torch.zeros_like(cells, dtype=torch.bool) if masked is None else masked[n if len(masked) > 1 else 0]
    image = show_image(axes, cells, hidden, side, cmap=WEIGHTS, norm=PowerNorm(0.5, vmin=0.0, vmax=1.0))
    axes.set_title(f"head {shown.heads[n]}", fontsize=9)
    if len(shown.heads) == 1 and max(cells.shape) <= 16:
        write_numbers(axes, cells, hidden)
    return image


def show_image(axes: Axes, values: Tensor, hidden: Tensor, side: tuple[float, float], **colours: Any) -> AxesImage:
    """The values as an image over a hatched ground, which shows where they are hidden."""
    axes.patch.set(facecolor=GROUND, edgecolor=HATCH, hatch="/////", linewidth=0.0)
    held = numpy.ma.masked_array(values.numpy(), hidden.numpy())
    # where cells are smaller than a few pixels the nearest alone would hide its neighbours
    smoothing = "nearest" if max(values.shape) <= 256 else "auto"
    image = axes.imshow(held, aspect="auto", interpolation=smoothing, **colours)
    axes.set_box_aspect(side[1] / side[0])
    axes.tick_params(length=2, color="#9aa1b3", labelcolor="#3c4254")
    axes.spines[:].set_color("#c9cdd8")
    if side[0] / values.shape[1] >= 0.15:
        draw_grid(axes, *values.shape)
    return image


def draw_grid(axes: Axes, rows: int, columns: int) -> None:
    """Thin white lines between the cells."""
    axes.set_xticks(numpy.arange(columns - 1) + 0.5, minor=True)
    axes.set_yticks(numpy.arange(rows - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="minor", length=0)


def write_numbers(axes: Axes, cells: Tensor, hidden: Tensor) -> None:
    """Each allowed weight, rounded to two digits, in its cell."""
    for row, column in (~hidden).nonzero().tolist():
        weight = cells[row, column].item()
        colour = "white" if weight > 0.2 else "#1c2030"
        axes.text(column, row, f"{weight:.2f}", ha="center", va="center", fontsize=7, color=colour)


def label_outer(figure: Figure, shown: Shown, side: tuple[float, float], across: int) -> None:
    """Words or numbers on the left of the first column's maps and below the last of each column."""
    rows, columns = shown.cells.shape[-2:]  # type: ignore[union-attr]
    left, below = even(shown.queries, shown.view.queries, rows), even(shown.keys, shown.view.keys, columns)
    for n, axes in enumerate(figure.axes):
        label_rows(axes, left if n % across == 0 else [], side[1], "query")
        label_columns(axes, below if n + across >= len(figure.axes) else [], side[0], "key")


def even(words: list[str] | None, size: int, count: int) -> list[str]:
    """The names of `count` rows or columns that share `size` tokens evenly, as a view's map does."""
    return names(words or list(map(str, range(size))), [n * size // count for n in range(count + 1)])


def names(words: list[str], starts: list[int]) -> list[str]:
    """What to call the tokens from each start to the next: a word, or the first and the last."""
    runs = [words[first:last] for first, last in pairwise(starts)]
    return ["" if not run else run[0] if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]


def label_rows(axes: Axes, labels: list[str], room: float, name: str) -> None:
    """The labels on the left, thinned to those that can be read."""
    at, size = thinned(len(labels), room)
    axes.set_yticks(at, [short(labels[n]) for n in at], fontsize=size, parse_math=False)
    axes.set_ylabel(name if labels else "", fontsize=8, color="#5c6378")


def label_columns(axes: Axes, labels: list[str], room: float, name: str) -> None:
    """The labels below, thinned; long ones upright: Latin words turned, Chinese ones written from top to bottom."""
    at, size = thinned(len(labels), room)
    words = [short(labels[n]) for n in at]
    flat = all(width(word) * size * 0.6 < 72 * room / max(len(words), 1) - 2 for word in words)
    stacked = [word if flat or not CJK.search(word) else "\n".join(word) for word in words]
    axes.set_xticks(at, stacked, fontsize=size, parse_math=False, linespacing=1.0)
    for label, word in zip(axes.get_xticklabels(), words, strict=True):
        label.set_rotation(0 if flat or CJK.search(word) else 90)
    axes.set_xlabel(name if labels else "", fontsize=8, color="#5c6378")


def thinned(count: int, room: float) -> tuple[list[int], float]:
    """Which of `count` labels to write in `room` inches, and in what size."""
    most = min(MOST_LABELS, max(int(room / 0.12), 1))
    most = most if count <= most else max(most // 2, 1)
    steps = (step * ten for ten in (1, 10, 100, 1000, 10000, 100000) for step in (1, 2, 5))
    step = next(step for step in steps if count <= step * most)
    at = list(range(0, count, step))
    return at, max(6.0, min(9.0, 72 * room / max(len(at), 1) * 0.62))


def short(word: str) -> str:
    """The word, cut when it is long."""
    return word if len(word) <= 18 else word[:17] + "…"


def width(word: str) -> float:
    """How wide a word is, in Latin letters."""
    return sum(1.7 if CJK.match(letter) else 1.0 for letter in word)


def add_legend(figure: Figure, image: AxesImage, shown: Shown) -> None:
    """The scale, the same for every head, with its transform; and the sign for masked cells."""
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.8, aspect=30, pad=0.02, panchor=False)
    bar.set_ticks(
        [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1], labels=["0", "0.01", "0.05", "0.1", "0.25", "0.5", "1"], fontsize=7
    )
    bar.set_label("weight, 0 … 1 · colour: √ weight", fontsize=8, color="#5c6378")
    if shown.masked is not None and bool(shown.masked.any()):
        add_swatches(figure, [hatched("masked: may not look")])


def hatched(label: str) -> Patch:
    return Patch(facecolor=GROUND, edgecolor=HATCH, hatch="/////", label=label)


def add_swatches(figure: Figure, swatches: list[Patch]) -> None:
    """The meaning of plain colours, beside the title."""
    figure.legend(handles=swatches, loc="outside upper right", fontsize=8, frameon=False)


def draw_curves(shown: Shown) -> Figure:
    """Entropy, distance, largest weight and received weight along the tokens, a line a head."""
    figure = Drawing(figsize=(9.0, 6.4), dpi=120, layout=ConstrainedLayoutEngine(h_pad=0.07))
    plots = (
        ("entropy", "entropy of each query (nats)", shown.queries),
        ("distance", "mean distance |i − j| of each query", shown.queries),
        ("peak", "largest weight of each query", shown.queries),
        ("received", "total weight each key receives", shown.keys),
    )
    for n, (name, title, words) in enumerate(plots):
        draw_lines(figure.add_subplot(2, 2, n + 1), shown, name, title, words)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return figure


def draw_lines(axes: Axes, shown: Shown, name: str, title: str, words: list[str] | None) -> None:
    """One statistic, a line a head."""
    values = shown.part(name)
    run = -(-values.shape[1] // MOST_POINTS)
    at, means = smoothed(values, run)
    for head, line in zip(shown.heads, means.numpy(), strict=True):
        axes.plot(at, line, linewidth=1.0, marker="o" if len(line) <= 32 else "", markersize=3, label=f"head {head}")
    axes.set_title(title + (f", means of {run}" if run > 1 else ""), fontsize=9)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.grid(color="#e6e8ee", linewidth=0.6)
    if words:
        label_columns(axes, words, 3.2, "")


def smoothed(values: Tensor, run: int) -> tuple[Tensor, Tensor]:
    """The means of each `run` tokens, and where they stand; the last run may be shorter."""
    means = avg_pool1d(values[:, None], run, ceil_mode=True)[:, 0]
    starts = torch.arange(means.shape[1]) * run
    return (starts + (starts + run).clamp(max=values.shape[1]) - 1) / 2, means


def draw_mask(
    mask: Mask,
    queries: int | Sequence[str],
    keys: int | Sequence[str] | None = None,
    *,
    batch: int = 0,
    head: int = 0,
    title: str | None = None,
) -> Figure:
    """A figure of who may look at whom; sizes, or words to write on the axes. Above 512 tokens it is drawn by tiles."""
    keys = queries if keys is None else keys
    rows, columns = count_of(queries, "queries"), count_of(keys, "keys")
    left = need_words(range(columns - rows, columns) if isinstance(queries, int) else queries, rows, "queries")
    below = need_words(range(columns) if isinstance(keys, int) else keys, columns, "keys")
    grid = Grid(rows, columns, device=mask.device())
    tile = 1 if max(rows, columns) <= MOST_PAIRS else -(-max(rows, columns) // 256)
    answers = ask(mask, Tiling(grid, tile, tile), (batch, head))
    with rc_context({"font.family": families([title or "", *left, *below])}):
        figure = mask_figure(answers, left, below, tile)
        where = f"i may look at j where {mask.formula}" if mask.formula else ""
        write_around(figure, title or repr(mask), [where, mask_count(answers, tile)])
    return figure


def count_of(tokens: int | Sequence[str], name: str) -> int:
    """How many tokens there are, of a size or of words."""
    if isinstance(tokens, str):
        raise BadInput(f"{name} is the text {tokens!r:.40}; it must be a size or a list of words. Split it into words.")
    size = tokens if isinstance(tokens, int) else len(tokens)
    if size < 1:
        raise BadInput(f"{name} is {tokens!r}; a picture needs at least one. Give a size or a list of words.")
    return size


def mask_figure(answers: Tensor, queries: list[str], keys: list[str], tile: int) -> Figure:
    """The pairs, or the tiles of more than one, by how many are allowed."""
    side = panel_size(answers.shape[0], answers.shape[1], 1)
    figure = panels(1, 1, side)
    colours = ListedColormap([GROUND, SOME, ALLOWED])
    show_image(figure.axes[0], answers, answers == NONE, side, cmap=colours, vmin=NONE, vmax=ALL)
    rows, columns = ([*range(0, len(words), tile), len(words)] for words in (queries, keys))
    label_rows(figure.axes[0], names(queries, rows), side[1], "query i")
    label_columns(figure.axes[0], names(keys, columns), side[0], "key j")
    add_swatches(figure, mask_swatches(tile))
    return figure


def ask(mask: Mask, tiling: Tiling, at: tuple[int, int]) -> Tensor:
    """`ALL`, `MIXED` or `NONE` for the tiles of one batch and head, `[tile rows, tile columns]`; single pairs are asked
    of the predicate."""
    grid = tiling.grid
    try:
        return one(mask.dense(grid.queries, grid.keys) * ALL if tiling.rows == 1 else mask.tiles(tiling), at)
    except (IndexError, RuntimeError) as error:
        raise BadInput(f"{mask!r} does not fit {grid.queries} queries and {grid.keys} keys: {error}.") from error


def one(answers: Tensor, at: tuple[int, int]) -> Tensor:
    """The answers of one batch and head; a mask that does not depend on them answers for any."""
    every = four(answers)
    batch, head = (
        need_index(n, size, name) if size > 1 else 0
        for n, size, name in zip(at, every.shape[:2], ("batch", "head"), strict=True)
    )
    return every[batch, head].cpu()


def mask_swatches(tile: int) -> list[Patch]:
    """What the colours mean."""
    if tile == 1:
        return [Patch(facecolor=ALLOWED, label="may look"), hatched("may not look")]
    some = Patch(facecolor=SOME, label="some, or not known")
    return [Patch(facecolor=ALLOWED, label="all allowed"), some, hatched("none allowed")]


def mask_count(answers: Tensor, tile: int) -> str:
    """How much is allowed: pairs, or tiles and their size."""
    count, mixed = int((answers > NONE).sum()), int((answers == MIXED).sum())
    if tile == 1:
        return f"{count:,} of {answers.numel():,} pairs are allowed"
    return f"tiles of {tile} × {tile} pairs: {count:,} of {answers.numel():,} are not empty, {mixed:,} of them mixed"


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure to a file by its suffix; an SVG keeps its text as text, for the reader's fonts to draw."""
    path = Path(path)
    if path.suffix != ".svg":
        warn_of_fonts(figure)
    with rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)  # said once, above
        figure.savefig(path, bbox_inches="tight")
    return path


def warn_of_fonts(figure: Figure) -> None:
    """Warn when the figure has Chinese, Japanese or Korean text and no installed font can draw it."""
    texts = (text.get_text() for text in figure.findobj(match=lambda artist: hasattr(artist, "get_text")))  # type: ignore[attr-defined]
    if any(CJK.search(text) for text in texts) and cjk_font() is None:
        warnings.warn(
            "No installed font has Chinese, Japanese or Korean characters, so the picture shows boxes in their place. "
            "Install one, such as Debian's fonts-wqy-zenhei or Noto Sans CJK, or save as .svg or .html.",
            stacklevel=3,
        )


def families(texts: Sequence[str]) -> list[str]:
    """The fonts that these texts need."""
    font = cjk_font() if any(CJK.search(str(text)) for text in texts) else None
    return ["DejaVu Sans", font] if font else ["DejaVu Sans"]


def cjk_font() -> str | None:
    """The first of the usual Chinese, Japanese and Korean fonts that is installed."""
    found = known_font()
    if found is None:
        # matplotlib remembers the fonts of its first day; one may have been installed since
        for path in font_manager.findSystemFonts():
            if Path(path).name.startswith(tuple(CJK_FONTS.values())):
                font_manager.fontManager.addfont(path)
        found = known_font()
    logging.getLogger("matplotlib.font_manager").addFilter(about_weight)
    return found


def about_weight(record: logging.LogRecord) -> bool:
    """Whether a message of matplotlib's is worth a line: that a Chinese font has one weight only is not."""
    return "font weight" not in str(record.msg)


def known_font() -> str | None:
    known = set(font_manager.fontManager.get_font_names())
    return next((name for name in CJK_FONTS if name in known), None)


def wrapped(text: str, room: float, size: float) -> str:
    """The text broken into lines that fit `room` inches."""
    return fill(text, max(30, int(room * 72 / (size * 0.62))))
