"""The round table: people around it, and lines from the listener to everyone by weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Bilingual, Language
from ..chapters.vector_sets.lengths import GUESTS
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VIEW = Bilingual("{name} leaves with the view {view:+.2f}", "{name}最后的观点：{view:+.2f}")


def draw(axes: Axes, result: Result, language: Language) -> None:
    count, me = result["count"], result["listener"] - 1
    angles = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    names = [GUESTS[n % len(GUESTS)](language) for n in range(count)]
    for n, (x, y) in enumerate(points):
        weight = result["weights"][me, n]
        if n != me:
            start = points[me]
            axes.plot([start[0], x], [start[1], y], color=COLOURS["weight"], lw=0.5 + 12 * weight, alpha=0.7, zorder=1)
        colour = COLOURS["value" if result["opinions"][n] >= 0 else "key"]
        axes.scatter([x], [y], s=700 / max(1, count / 8), color=colour, edgecolors=COLOURS["ink"], zorder=2)
        if count <= 16:
            text = f"{result['opinions'][n]:+.1f}"
            axes.text(x, y, text, ha="center", va="center", color="white", fontsize=8, zorder=3)
            axes.text(1.45 * x, 1.3 * y, names[n], ha="center", va="center", fontsize=9)
    axes.text(0, -1.5, VIEW(language).format(name=names[me], view=result["view"]), ha="center", color=COLOURS["output"])
    axes.set(xlim=(-2.4, 2.4), ylim=(-1.6, 1.4), aspect="equal")
