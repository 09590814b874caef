"""A picture in patches and the weights that one patch gives to the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Language
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(axes: Axes, result: Result, language: Language) -> None:
    """Pixels, the borders of the patches, and lines as thick as the weights from the chosen patch."""
    from matplotlib.patches import Rectangle

    pixels, weights, chosen = np.asarray(result["pixels"]), np.asarray(result["weights"]), int(result["patch"]) - 1
    axes.set(xlim=(-6.2, 14.2), ylim=(8.1, -0.1), aspect="equal")
    for (i, j), value in np.ndenumerate(pixels):
        axes.add_patch(Rectangle((j, i), 1, 1, color=COLOURS["ink"] if value > 0 else "#f5f6fa", lw=0))
    centres = [(2 * (n % 4) + 1, 2 * (n // 4) + 1) for n in range(16)]
    for n, (x, y) in enumerate(centres):
        edge = COLOURS["weight" if n == chosen else "soft"]
        axes.add_patch(Rectangle((x - 0.97, y - 0.97), 1.94, 1.94, fill=False, ec=edge, lw=3 if n == chosen else 0.8))
        if weights[n] < 0.02:
            continue
        (a, b) = centres[chosen]
        axes.plot([a, x], [b, y], color=COLOURS["weight"], lw=1 + 10 * weights[n], alpha=0.7, solid_capstyle="round")
        box = {"boxstyle": "round,pad=0.2", "fc": "white", "ec": COLOURS["line"]}
        axes.text(x, y, f"{weights[n]:.2f}", ha="center", va="center", fontsize=8, bbox=box)
