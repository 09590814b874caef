"""A network of six neurons with its connections, beside the families of networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Bilingual, Language
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAMILIES = (
    Bilingual("networks of neurons", "神经元的网络"),
    Bilingual("feed-forward: no path returns", "前馈网络：没有回路"),
    Bilingual("MLP: layers, fully connected", "多层感知机：逐层全连接"),
)
NAMES = ("x1", "x2", "h1", "h2", "y1", "y2")


def draw(axes: Axes, result: Result, language: Language) -> None:
    """Neurons on a loop are red; the family that the network belongs to is marked."""
    from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

    axes.set(xlim=(-0.6, 10.2), ylim=(-0.2, 4.6), aspect="equal")
    points = [(1.8 * (n // 2), 3.4 - 2.2 * (n % 2)) for n in range(6)]
    for to, start in np.argwhere(np.asarray(result["reads"])):
        bend = "arc3" if points[to][0] > points[start][0] else "arc3,rad=0.4"
        looped = result["loops"][to] and result["loops"][start]
        arrow = FancyArrowPatch(
            points[start],
            points[to],
            connectionstyle=bend,
            arrowstyle="-|>",
            mutation_scale=12,
            shrinkA=17,
            shrinkB=17,
            color=COLOURS["key" if looped else "query"],
        )
        axes.add_patch(arrow)
    for name, point, looped in zip(NAMES, points, result["loops"], strict=True):
        edge = COLOURS["key" if looped else "ink"]
        axes.add_patch(Circle(point, 0.38, facecolor="white", edgecolor=edge, zorder=3))
        axes.text(*point, name, ha="center", va="center", fontsize=9, zorder=4)
    for n, words in enumerate(FAMILIES):
        inside = n == result["family"]
        corner, width, height = (5.0 + 0.4 * n, 0.2 + 0.3 * n), 4.8 - 0.8 * n, 4.0 - 1.1 * n
        colour = COLOURS["weight" if inside else "soft"]
        face = "#fdf1e7" if inside else "none"
        box = FancyBboxPatch(corner, width, height, boxstyle="round,pad=0.05", facecolor=face, edgecolor=colour)
        axes.add_patch(box)
        top = corner[1] + height - 0.25
        axes.text(corner[0] + width / 2, top, words(language), ha="center", va="center", color=colour, fontsize=8)
