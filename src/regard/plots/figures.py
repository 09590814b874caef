"""Attention weights, statistics and masks as matplotlib figures.

A masked cell is never drawn as a small weight: it is left out of the image, and the hatched background shows through.
"""

from __future__ import annotations

import textwrap
import warnings
from io import BytesIO
from math import ceil
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from ..errors import Missing
from . import NEEDS_MATPLOTLIB
from .arrays import HeadArrays
from .fonts import cjk_font, font_families
from .labels import CJK, GREY, bucket_labels, label_columns, label_rows
from .page import PALETTE

try:
    import numpy
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap, Normalize, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch
    from matplotlib.text import Text
except ImportError as error:
    raise Missing(NEEDS_MATPLOTLIB) from error

CAUTION = "Weights show where each head attends, not why the model answered."
COLORMAP = LinearSegmentedColormap.from_list("regard", PALETTE, N=256)
BACKGROUND, HATCH, ALLOWED, PARTLY = "#eeeff3", "#b9bdca", "#2b80b6", "#a9cfe0"
MAX_POINTS = 128
"""Points of a curve; a longer one is drawn as means."""


class NotebookFigure(Figure):
    """A figure that a notebook shows by itself, once, without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", bbox_inches="tight")
        return buffer.getvalue()


def draw_heads(arrays: HeadArrays, title: str | None = None) -> Figure:
    """A figure of the cells, one heat map a head, or without cells of the statistics as curves."""
    labels = [*(arrays.query_labels or ()), *(arrays.key_labels or ())]
    with rc_context({"font.family": font_families([title or "", *labels])}):
        figure = draw_curves(arrays) if arrays.cells is None else draw_heat_maps(arrays, arrays.cells)
        add_title_and_caption(figure, title or arrays.description, caption(arrays))
    return figure


def add_title_and_caption(figure: Figure, title: str, lines: list[str]) -> None:
    """Write the title above, with room for the legend beside it, and the lines below."""
    width = figure.get_figwidth()
    left = {"x": 0.15 / width, "ha": "left", "parse_math": False}
    figure.suptitle(wrap(title, width - 2.2, 11), fontsize=11, **left)
    figure.supxlabel("\n".join(wrap(line, width, 8) for line in lines), fontsize=8, color=GREY, **left)


def wrap(text: str, inches: float, size: float) -> str:
    """The text broken into lines that fit."""
    return textwrap.fill(text, max(30, int(inches * 72 / (size * 0.62))))


def caption(arrays: HeadArrays) -> list[str]:
    """What a reader must know besides the picture."""
    lines = []
    if arrays.cells is not None:
        low, high = arrays.row_sums()
        lines.append(f"rows: queries · columns: keys · each row sums to 1 (measured {low:.6f} … {high:.6f})")
    if arrays.content == "map":
        lines.append("pooled: a cell is the mean, over its bucket of queries, of their weight on its bucket of keys")
        if arrays.masked is None:
            lines.append("masked cells are not marked: the map's size does not divide the tokens")
    batches, heads = arrays.shape[:2]
    drawn = "" if len(arrays.heads) == heads else f"{len(arrays.heads)} of "
    facts = [f"{drawn}{heads} {'head' if heads == 1 else 'heads'}"]
    if batches > 1:
        facts.append(f"batch {arrays.batch} of {batches}")
    offset = arrays.keys - arrays.queries
    if offset and arrays.content == "weights":
        facts.append(f"row r is position i = r {'+' if offset > 0 else '−'} {abs(offset)} among the keys")
    least, most = int(arrays.dead.min()), int(arrays.dead.max())
    if most:
        count = str(most) if least == most else f"{least} to {most} (by head)"
        facts.append(f"{count} {'query has' if most == 1 else 'queries have'} no allowed key (sum 0)")
    return [*lines, " · ".join(facts), CAUTION]


def draw_heat_maps(arrays: HeadArrays, cells: Tensor) -> Figure:
    """Heat maps, one a head, with one colour bar for all."""
    count, (rows, columns) = len(arrays.heads), cells.shape[-2:]
    square = ceil(count**0.5)
    across = next((n for n in (square, 4, 3) if count % n == 0), square)
    size = panel_size(rows, columns, count)
    figure = new_figure(count, across, size)
    images = [draw_head(axes, arrays, cells, n, size) for n, axes in enumerate(figure.axes)]
    left, below = (
        bucket_labels(words or list(map(str, range(tokens))), [n * tokens // parts for n in range(parts + 1)])
        for words, tokens, parts in (
            (arrays.query_labels, arrays.queries, rows),
            (arrays.key_labels, arrays.keys, columns),
        )
    )
    for n, axes in enumerate(figure.axes):  # labels on the left and below the outermost maps only
        label_rows(axes, left if n % across == 0 else [], size[1], "query")
        label_columns(axes, below if n + across >= count else [], size[0], "key")
    bar = figure.colorbar(images[0], ax=figure.axes, shrink=0.8, aspect=30, pad=0.02, panchor=False)
    ticks = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1]
    bar.set_ticks(ticks, labels=list(map(str, ticks)), fontsize=7)
    bar.set_label("weight, 0 … 1 · colour: √ weight", fontsize=8, color=GREY)
    if arrays.masked is not None and bool(arrays.masked.any()):
        add_legend(figure, [hatched_patch("masked")])
    return figure


def panel_size(rows: int, columns: int, count: int) -> tuple[float, float]:
    """Width and height of one of `count` maps in inches: cells of 0.42 if there are few, smaller ones to fit."""
    room = 7.5 if count == 1 else 4.2 if count <= 4 else 3.0
    cell = min(max(0.42, 2.8 / max(rows, columns)), room / max(rows, columns))
    return max(cell * columns, 0.8), max(cell * rows, 0.8)


def new_figure(count: int, across: int, size: tuple[float, float]) -> Figure:
    """An empty figure with `count` axes, `across` in a row."""
    down = -(-count // across)
    total = (max(5.8, across * (size[0] + 0.2) + 2.0), down * (size[1] + 0.35) + 2.0)
    figure = NotebookFigure(figsize=total, dpi=120, layout=ConstrainedLayoutEngine(h_pad=0.07))
    for n in range(count):
        figure.add_subplot(down, across, n + 1)
    return figure


def draw_head(axes: Axes, arrays: HeadArrays, cells: Tensor, n: int, size: tuple[float, float]) -> AxesImage:
    """One head's heat map, with its numbers when it is the only head and small."""
    weights, masked = cells[n], arrays.masked
    hidden = torch.zeros_like(weights, dtype=torch.bool) if masked is None else masked[n if len(masked) > 1 else 0]
    image = draw_image(axes, weights, hidden, size, cmap=COLORMAP, norm=PowerNorm(0.5, vmin=0.0, vmax=1.0))
    axes.set_title(f"head {arrays.heads[n]}", fontsize=9)
    if len(arrays.heads) == 1 and max(weights.shape) <= 16:
        for row, column in (~hidden).nonzero().tolist():
            weight = weights[row, column].item()
            colour = "white" if weight > 0.2 else "#1c2030"
            axes.text(column, row, f"{weight:.2f}", ha="center", va="center", fontsize=7, color=colour)
    return image


def draw_image(
    axes: Axes,
    values: Tensor,
    hidden: Tensor,
    size: tuple[float, float],
    cmap: Colormap,
    norm: Normalize,
) -> AxesImage:
    """The values as an image over a hatched background, which shows where they are hidden."""
    axes.patch.set(facecolor=BACKGROUND, edgecolor=HATCH, hatch="/////", linewidth=0.0)
    pixels = numpy.ma.masked_array(values.numpy(), hidden.numpy())
    # where cells are smaller than a few pixels the nearest alone would hide its neighbours
    interpolation = "nearest" if max(values.shape) <= 256 else "antialiased"
    image = axes.imshow(pixels, aspect="auto", interpolation=interpolation, cmap=cmap, norm=norm)
    axes.set_box_aspect(size[1] / size[0])
    axes.tick_params(length=2, color="#9aa1b3", labelcolor="#3c4254")
    axes.spines[:].set_color("#c9cdd8")
    if size[0] / values.shape[1] >= 0.15:  # white lines between large cells
        axes.set_xticks(numpy.arange(values.shape[1] - 1) + 0.5, minor=True)
        axes.set_yticks(numpy.arange(values.shape[0] - 1) + 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.6)
        axes.tick_params(which="minor", length=0)
    return image


def hatched_patch(label: str) -> Patch:
    return Patch(facecolor=BACKGROUND, edgecolor=HATCH, hatch="/////", label=label)


def add_legend(figure: Figure, patches: list[Patch]) -> None:
    """The meaning of plain colours, beside the title."""
    figure.legend(handles=patches, loc="outside upper right", fontsize=8, frameon=False)


def draw_curves(arrays: HeadArrays) -> Figure:
    """Entropy, distance, largest weight and received weight along the tokens, a line a head."""
    figure = NotebookFigure(figsize=(9.0, 6.4), dpi=120, layout=ConstrainedLayoutEngine(h_pad=0.07))
    curves = (
        (arrays.entropy, "entropy of each query (nats)", arrays.query_labels),
        (arrays.distance, "mean distance |i − j| of each query", arrays.query_labels),
        (arrays.peak, "largest weight of each query", arrays.query_labels),
        (arrays.received, "total weight each key receives", arrays.key_labels),
    )
    for n, (values, title, labels) in enumerate(curves):
        draw_lines(figure.add_subplot(2, 2, n + 1), arrays.heads, values, title, labels)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return figure


def draw_lines(axes: Axes, heads: list[int], values: Tensor, title: str, labels: list[str] | None) -> None:
    """A statistic `[heads, tokens]`, a line a head; of many tokens, means of neighbouring ones."""
    tokens = values.shape[1]
    window = -(-tokens // MAX_POINTS)
    means = avg_pool1d(values[:, None], window, ceil_mode=True)[:, 0]
    starts = torch.arange(means.shape[1]) * window
    centres = (starts + (starts + window).clamp(max=tokens) - 1) / 2
    for head, line in zip(heads, means.numpy(), strict=True):
        marker = "o" if len(line) <= 32 else ""
        axes.plot(centres, line, linewidth=1.0, marker=marker, markersize=3, label=f"head {head}")
    axes.set_title(title + (f", means of {window}" if window > 1 else ""), fontsize=9)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.grid(color="#e6e8ee", linewidth=0.6)
    if labels:
        label_columns(axes, labels, 3.2, "")


def draw_mask(tiles: Tensor, queries: list[str], keys: list[str], *, tile: int, title: str, rule: str) -> Figure:
    """A figure of a mask: `tiles` `[rows, columns]` hold 2 where all pairs are allowed, 1 for some, 0 for none.

    `queries` and `keys` are labels, one a token; a tile covers `tile` × `tile` pairs; `rule` says what is allowed.
    """
    count, mixed = int((tiles > 0).sum()), int((tiles == 1).sum())
    if tile == 1:
        patches = [Patch(facecolor=ALLOWED, label="allowed"), hatched_patch("masked")]
        summary = f"{count:,} of {tiles.numel():,} pairs are allowed"
    else:
        some = Patch(facecolor=PARTLY, label="some, or not known")
        patches = [Patch(facecolor=ALLOWED, label="all allowed"), some, hatched_patch("none allowed")]
        summary = (
            f"tiles of {tile} × {tile} pairs: {count:,} of {tiles.numel():,} are not empty, {mixed:,} of them mixed"
        )
    with rc_context({"font.family": font_families([title, *queries, *keys])}):
        size = panel_size(tiles.shape[0], tiles.shape[1], 1)
        figure = new_figure(1, 1, size)
        colours = ListedColormap([BACKGROUND, PARTLY, ALLOWED])
        draw_image(figure.axes[0], tiles, tiles == 0, size, cmap=colours, norm=Normalize(0, 2))
        rows, columns = (bucket_labels(words, [*range(0, len(words), tile), len(words)]) for words in (queries, keys))
        label_rows(figure.axes[0], rows, size[1], "query i")
        label_columns(figure.axes[0], columns, size[0], "key j")
        add_legend(figure, patches)
        add_title_and_caption(figure, title, [rule, summary])
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure to a file by its suffix; an SVG keeps its text as text, which the reader's fonts draw.

    Warns when the figure has Chinese, Japanese or Korean text and no installed font can draw it.
    """
    path = Path(path)
    if path.suffix != ".svg":
        texts = (text.get_text() for text in figure.findobj(Text) if isinstance(text, Text))
        if any(CJK.search(text) for text in texts) and cjk_font() is None:
            warnings.warn(
                "No installed font has Chinese, Japanese or Korean characters, so the picture shows boxes in their "
                "place. Install one, such as Debian's fonts-wqy-zenhei or Noto Sans CJK, or save as .svg or .html.",
                stacklevel=2,
            )
    with rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)  # the warning above says it once
        figure.savefig(path, bbox_inches="tight")
    return path
