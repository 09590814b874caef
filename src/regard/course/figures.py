"""The pictures of a step as a matplotlib figure, for the pages of the documentation and for notebooks.

A `Drawing` is drawn by `draw(axes, result, language)` of the module of that name in `drawings`, on one Axes of about
7.5 × 3.6 inches whose frame and ticks are off.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from ..errors import Missing
from ..experiments.experiment import Bilingual, Language
from ..plots import NEEDS_MATPLOTLIB
from .course import find_step
from .pictures import Bars, Drawing, Heatmap, Labels, Lines, NumberTable, Picture, Plane
from .step import Result, Step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "query": "#1f5fbf",
    "key": "#b3261e",
    "value": "#1d7a3c",
    "output": "#7a35b8",
    "weight": "#b04e0a",
    "score": "#b04e0a",
    "plain": "#586075",
    "ink": "#1a1e2b",
    "soft": "#586075",
    "line": "#dfe3ec",
}
"""The colours of the lab in its light theme, by role."""
CURVES = ("query", "key", "value", "output", "weight", "soft")
MAX_CELLS_WITH_NUMBERS = 14


def draw_step(name: str, language: Language = "en", **values: object) -> Figure:
    """A figure of the pictures of a step for these values of its controls; the others keep their start values."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise Missing(NEEDS_MATPLOTLIB) from error
    from ..plots.fonts import font_families

    step = find_step(name)
    given = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in values.items()}
    values_and_result = step.read(given, language) | step.run(given, language)
    rows = arrange(step.pictures)
    with rc_context(
        {"font.family": font_families(["汉" + step.title.zh]), "font.size": 9, "axes.unicode_minus": False}
    ):
        heights = [max(picture_height(picture, values_and_result) for picture in row) for row in rows]
        figure = Figure(figsize=(7.6, sum(heights)), dpi=110, layout=ConstrainedLayoutEngine(hspace=0.06, wspace=0.06))
        parts = figure.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)
        for row, part in zip(rows, parts[:, 0], strict=True):
            axes = part.subplots(1, len(row), squeeze=False)[0]
            for picture, place in zip(row, axes, strict=True):
                place.set_title(picture.title(language), fontsize=10, loc="left")
                draw_picture(place, picture, values_and_result, step, language)
        return figure


def arrange(pictures: tuple[Picture, ...]) -> list[list[Picture]]:
    """The pictures in rows of at most two; a drawing or a table has a row of its own."""
    rows: list[list[Picture]] = []
    for picture in pictures:
        alone = isinstance(picture, Drawing | NumberTable)
        if rows and not alone and len(rows[-1]) == 1 and not isinstance(rows[-1][0], Drawing | NumberTable):
            rows[-1].append(picture)
        else:
            rows.append([picture])
    return rows


def picture_height(picture: Picture, result: Result) -> float:
    """Inches that a picture needs."""
    match picture:
        case Bars():
            return min(5.0, 0.7 + 0.24 * np.size(result[picture.data]))
        case NumberTable():
            return 0.7 + 0.26 * len(result[picture.data])
        case Heatmap():
            rows, columns = np.shape(result[picture.data])[:2]
            return min(4.2, max(1.1, 0.7 + 3.0 * rows / max(columns, 4)))
        case Plane():
            return 3.5
        case _:
            return 3.2 if isinstance(picture, Lines) else 3.6


def draw_picture(axes: Axes, picture: Picture, result: Result, step: Step, language: Language) -> None:
    """Draw one picture on its axes."""
    match picture:
        case Drawing():
            axes.set_axis_off()
            draw: Callable[[Axes, Result, Language], None] = import_module(
                f"{__package__}.drawings.{picture.name}"
            ).draw
            draw(axes, result, language)
        case Bars():
            draw_bars(axes, picture, result, language)
        case Heatmap():
            draw_heatmap(axes, picture, result, language)
        case Plane():
            draw_plane(axes, picture, result, step, language)
        case Lines():
            draw_lines(axes, picture, result, language)
        case NumberTable():
            draw_table(axes, picture, result, language)


def read_labels(labels: Labels, result: Result, language: Language) -> list[str]:
    """The texts of labels in a language; a name stands for an entry of the result."""
    return [str(word) for word in result[labels]] if isinstance(labels, str) else [label(language) for label in labels]


def short(x: str | float) -> str:
    """A number with three digits or so; texts as they are."""
    if isinstance(x, str):
        return x
    return f"{x:.0f}" if float(x).is_integer() and abs(x) < 1e6 else f"{x:.3g}"


def draw_bars(axes: Axes, picture: Bars, result: Result, language: Language) -> None:
    data = np.atleast_2d(np.asarray(result[picture.data], dtype=np.float64))
    groups, labels = read_labels(picture.groups, result, language), read_labels(picture.labels, result, language)
    count = data.shape[1]
    positions = np.concatenate([i * (count + 1) + np.arange(count) for i in range(len(data))])
    flat = data.ravel()
    axes.barh(positions, flat, color=COLOURS[picture.role], height=0.72)
    names = [label for i in range(len(data)) for label in (labels or [str(j + 1) for j in range(count)])]
    if groups:
        names = [f"{groups[n // count]} · {name}" if n % count == 0 else name for n, name in enumerate(names)]
    axes.set_yticks(positions, names)
    axes.invert_yaxis()
    low = picture.low if picture.low is not None else min(0.0, float(flat.min()))
    high = picture.high if picture.high is not None else max(float(flat.max()), 0.0)
    axes.set_xlim(low - 0.18 * (high - low) * (low < 0), high + 0.18 * ((high - low) or 1.0))
    for position, value in zip(positions, flat, strict=True):
        axes.annotate(
            short(value),
            (min(max(value, low), high), position),
            (3 if value >= 0 else -3, 0),
            textcoords="offset points",
            va="center",
            ha="left" if value >= 0 else "right",
            fontsize=8,
        )
    axes.spines[["top", "right"]].set_visible(False)


def draw_heatmap(axes: Axes, picture: Heatmap, result: Result, language: Language) -> None:
    data = np.asarray(result[picture.data], dtype=np.float64)
    masked = np.asarray(result[picture.masked], dtype=bool) if picture.masked else np.zeros(data.shape, dtype=bool)
    cells = np.where(masked | ~np.isfinite(data), np.nan, data)
    finite = cells[np.isfinite(cells)]
    signed, most = bool((finite < 0).any()), float(np.abs(finite).max(initial=1e-9))
    bounds = (-most, most) if signed else (0.0, max(1.0, most) if picture.role == "weight" else most)
    image = axes.imshow(cells, cmap="RdBu" if signed else "YlGnBu", vmin=bounds[0], vmax=bounds[1], aspect="auto")
    rows, columns = read_labels(picture.rows, result, language), read_labels(picture.columns, result, language)
    axes.set_xticks(range(len(columns)), columns, fontsize=8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    if max(data.shape) > MAX_CELLS_WITH_NUMBERS:
        return
    for i, j in np.argwhere(masked):
        axes.text(j, i, "×", ha="center", va="center", color=COLOURS["soft"])
    for i, j in np.argwhere(np.isfinite(cells)):
        red, green, blue, _ = image.to_rgba(cells[i, j])
        dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
        axes.text(
            j, i, f"{cells[i, j]:.2f}", ha="center", va="center", fontsize=7, color="white" if dark else COLOURS["ink"]
        )


def draw_plane(axes: Axes, picture: Plane, result: Result, step: Step, language: Language) -> None:
    labels = {name: read_labels(words, result, language) for name, words in picture.labels}
    names: dict[str, Bilingual] = {control.name: control.label for control in step.controls}
    for name, role in picture.vectors:
        vectors = np.atleast_2d(np.asarray(result[name], dtype=np.float64))
        words = labels.get(name) or [names[name](language) if name in names else name] * len(vectors)
        for (x, y), word in zip(vectors, words, strict=False):
            arrow = {"arrowstyle": "-|>", "color": COLOURS[role], "lw": 2, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (x, y), (0, 0), arrowprops=arrow)
            side = "left" if x >= 0 else "right"
            axes.annotate(
                word, (x, y), (4 if x >= 0 else -4, 3), textcoords="offset points", color=COLOURS[role], ha=side
            )
    axes.set(xlim=(-picture.extent, picture.extent), ylim=(-picture.extent, picture.extent), aspect="equal")
    axes.grid(color=COLOURS["line"])
    axes.set_axisbelow(True)


def draw_lines(axes: Axes, picture: Lines, result: Result, language: Language) -> None:
    x = np.asarray(result[picture.x], dtype=np.float64)
    for (name, label), role in zip(picture.ys, CURVES * len(picture.ys), strict=False):
        y = np.asarray(result[name], dtype=np.float64)
        axes.plot(x, y, color=COLOURS[role], label=label(language), lw=1.8, marker="o" if len(x) <= 30 else None, ms=3)
    if picture.marker and result.get(picture.marker) is not None:
        axes.axvline(float(result[picture.marker]), color=COLOURS["weight"], ls="--", lw=1.2)
    axes.set_xscale("log" if picture.log_x else "linear")
    axes.set_yscale("log" if picture.log_y else "linear")
    axes.set(xlabel=picture.x_label(language), ylabel=picture.y_label(language))
    axes.grid(color=COLOURS["line"])
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def draw_table(axes: Axes, picture: NumberTable, result: Result, language: Language) -> None:
    axes.set_axis_off()
    data = [[short(x) for x in (row if np.ndim(row) else [row])] for row in result[picture.data]]
    rows, columns = read_labels(picture.rows, result, language), read_labels(picture.columns, result, language)
    table = axes.table(data, rowLabels=rows or None, colLabels=columns or None, loc="center", cellLoc="right")
    table.auto_set_font_size(False)
    table.set_fontsize(8.5)
    table.scale(1, 1.25)
    for cell in table.get_celld().values():
        cell.set_edgecolor(COLOURS["line"])
