"""Figures of experiments in two languages: subplots, line styles, bars with error bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict

from ...errors import Missing
from ..experiment import Bilingual, Language
from .metrics import Summary, means

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Localizer = Callable[[str, str], str]
"""Returns one of an English and a Chinese text."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The palette of Okabe and Ito, which colour-blind readers can distinguish."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++")


class LineStyle(TypedDict):
    """Keyword arguments of matplotlib for one line."""

    color: str
    marker: str
    linestyle: str | tuple[int, tuple[int, ...]]
    markersize: float


@contextmanager
def subplots(
    language: Language, columns: int = 1, rows: int = 1, *, width: float = 4.4, height: float = 3.6
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure and its axes, row by row, with fonts for the language; `width` and `height` are inches of one axes."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise Missing(
            'Figures are drawn with matplotlib, which is not installed: pip install "regard[figures]"'
        ) from error
    from ...plots.fonts import font_families

    with rc_context(
        {
            "font.family": font_families(["汉" if language == "zh" else ""]),
            "axes.unicode_minus": language == "en",
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.alpha": 0.3,
            "axes.titlesize": 10,
            "legend.fontsize": 8,
            "figure.dpi": 120,
        }
    ):
        figure = Figure(
            figsize=(columns * width, rows * height), layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.06)
        )
        yield figure, [figure.add_subplot(rows, columns, n + 1) for n in range(rows * columns)]


def line_style(n: int, marker: str | None = None, line: str | None = None, markersize: float = 4.5) -> LineStyle:
    """The n-th colour, marker and line style, different in all three; an empty `marker` or `line` leaves it out."""
    at = n % len(COLOURS)
    return {
        "color": COLOURS[at],
        "marker": MARKERS[at] if marker is None else marker,
        "linestyle": LINES[at] if line is None else line,
        "markersize": markersize,
    }


def plot_summaries(axes: Axes, n: int, x: Sequence[float], summaries: Sequence[Summary], label: str) -> None:
    """The n-th line of an axes through the means, with error bars of one standard deviation."""
    deviations = [summary["spread"] for summary in summaries]
    axes.errorbar(x, means(summaries), yerr=deviations, label=label, capsize=2, **line_style(n))


def plot_bars(axes: Axes, groups: Sequence[str], series: Mapping[str, Sequence[Summary]]) -> None:
    """Bars side by side in each group: `series` has a label and, for each group, a summary."""
    width = 0.8 / len(series)
    for n, (label, summaries) in enumerate(series.items()):
        x = [group + (n - (len(series) - 1) / 2) * width for group in range(len(groups))]
        deviations = [summary["spread"] for summary in summaries]
        colour, hatch = COLOURS[n % len(COLOURS)], HATCHES[n % len(HATCHES)]
        axes.bar(
            x, means(summaries), width, yerr=deviations, label=label, capsize=2, color=colour, hatch=hatch, edgecolor="white"
        )  # fmt: skip
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(False, axis="x")


def label_axes(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def draw_reference_line(axes: Axes, y: float, label: str) -> None:
    """A thin horizontal line to compare with, such as chance."""
    axes.axhline(y, color="#666666", linewidth=0.9, linestyle=(0, (2, 2)), label=label)


def set_length_ticks(axes: Axes, lengths: Sequence[int]) -> None:
    """A logarithmic x axis with a tick at each of these lengths."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()


def localizer(language: Language) -> Localizer:
    """A function of an English and a Chinese text that returns the one in `language`."""
    return lambda en, zh: Bilingual(en, zh)(language)
