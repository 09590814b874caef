"""A graph of six people: shade is the state of a node, width the weight along an edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Language
from ..chapters.vector_sets.domains import NODES
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLACES = ((0, 0), (1, 0.7), (2, 0), (3, 0.7), (4, 0), (2, -1.1))


def draw(axes: Axes, result: Result, language: Language) -> None:
    weights, state = result["weights"], np.abs(result["state"])
    for i, j in np.argwhere((weights > 0) | (weights.T > 0)):
        if i < j:
            (x1, y1), (x2, y2) = PLACES[i], PLACES[j]
            width = 1 + 8 * max(weights[i, j], weights[j, i])
            axes.plot([x1, x2], [y1, y2], color=COLOURS["weight"], lw=width, alpha=0.65, zorder=1)
    for (x, y), value, name in zip(PLACES, result["state"], NODES, strict=True):
        shade = 0.85 * abs(value) / max(state.max(), 1e-9)
        axes.scatter([x], [y], s=900, color="white", edgecolors=COLOURS["soft"], zorder=2)
        axes.scatter([x], [y], s=900, color=COLOURS["value"], alpha=shade, zorder=3)
        axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=9, zorder=4)
        axes.text(x + 0.3, y - 0.05, name(language), va="center", fontsize=10, weight="bold", zorder=4)
    axes.set(xlim=(-0.5, 4.8), ylim=(-1.5, 1.1))
