"""Points of two classes over the surface of a network; the boundary is where the surface is 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Language
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(axes: Axes, result: Result, language: Language) -> None:
    """Discs belong inside, squares outside."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("classes", ["#f2a65a", "#ffffff", "#7db1e8"])
    surface, points = np.asarray(result["surface"]), np.asarray(result["points"])
    axes.imshow(surface, cmap=colours, vmin=-1.5, vmax=1.5, extent=(-3, 3, -3, 3), interpolation="bilinear")
    side = np.linspace(-3, 3, len(surface))
    if surface.min() < 0 < surface.max():
        axes.contour(side, side[::-1], surface, levels=[0], colors="#1a1e2b", linewidths=1.5)
    half = len(points) // 2
    for part, marker, colour in ((points[:half], "o", "#1f5fbf"), (points[half:], "s", "#c2610c")):
        axes.scatter(*part.T, marker=marker, color=colour, edgecolor="white", s=55, zorder=3)
