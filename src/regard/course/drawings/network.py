"""A network of three layers with what each connection carries and the value of each neuron."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Bilingual, Language
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS = (Bilingual("input layer", "输入层"), Bilingual("hidden layer", "隐藏层"), Bilingual("output layer", "输出层"))
VALUES, CARRIED = ("inputs", "hidden", "output"), ("hidden_carried", "output_carried")
NEGATIVE = "#c2610c"


def draw(axes: Axes, result: Result, language: Language) -> None:
    """Blue carries a positive, orange a negative number; thickness is its size."""
    from matplotlib.patches import Circle

    layers, all_carried = ([result[name] for name in names] for names in (VALUES, CARRIED))
    axes.set(xlim=(-0.8, 6.8), ylim=(-0.2, 4.4), aspect="equal")
    points = [
        [(3.0 * n, 4 * (1 - (i + 0.5) / len(layer))) for i in range(len(layer))] for n, layer in enumerate(layers)
    ]
    most = max(np.abs(carried).max() for carried in all_carried) or 1.0
    for n, carried in enumerate(all_carried):
        for (to, start), load in np.ndenumerate(carried):
            (x1, y1), (x2, y2) = points[n][start], points[n + 1][to]
            colour = COLOURS["query"] if load >= 0 else NEGATIVE
            axes.plot([x1, x2], [y1, y2], color=colour, lw=0.4 + 5 * abs(load) / most, alpha=0.7, zorder=1)
    for layer, column in zip(layers, points, strict=True):
        for value, place in zip(layer, column, strict=True):
            axes.add_patch(Circle(place, 0.36, facecolor="white", edgecolor=COLOURS["ink"], zorder=2))
            axes.text(*place, f"{value:.2f}", ha="center", va="center", fontsize=8, zorder=3)
    for n, words in enumerate(LAYERS):
        axes.text(3.0 * n, 4.25, words(language), ha="center", color=COLOURS["soft"], fontsize=9)
