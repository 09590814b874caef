"""One query on its way through the formula, as the animation shows it at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Language
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL = 0.42
COLUMNS = {"x": 1.3, "k": 3.0, "products": 4.7, "score": 6.3, "bar": 6.9, "v": 9.0, "output": 11.2}


def draw(axes: Axes, result: Result, language: Language) -> None:
    """The vectors, products, scores, weights and the sum, from left to right; a word a row."""
    words, row, dims = result["words"], result["row"], len(result["q"])
    most = max(float(np.abs(result[name]).max()) for name in ("x", "k", "v", "q"))
    axes.set(xlim=(-0.2, 12.7), ylim=(len(words) - 0.2, -1.6))
    heads = ["x", "k = x·$W_k$", "q · k", f"÷ √{dims}", "v = x·$W_v$", "Σ w · v"]
    places = [COLUMNS["x"], COLUMNS["k"], COLUMNS["products"], COLUMNS["score"] - 0.2, COLUMNS["v"], COLUMNS["output"]]
    roles = ["soft", "key", "ink", "ink", "value", "output"]
    for head, place, role in zip(heads, places, roles, strict=True):
        axes.text(place, -0.5, head, color=COLOURS[role], fontsize=8.5, style="italic")
    label = {"color": COLOURS["query"], "fontsize": 8.5, "style": "italic", "ha": "right"}
    axes.text(COLUMNS["k"] - 0.15, -1.05, "q = x·$W_q$", **label)
    draw_vector(axes, COLUMNS["k"], -1.2, result["q"], "query", most)
    centre = (len(words) - 1) / 2
    for j, word in enumerate(words):
        weight = float(result["weights"][j])
        axes.text(0.5, j, word, ha="center", va="center", color=COLOURS["query" if j == row else "ink"], fontsize=10)
        for name, role in (("x", "soft"), ("k", "key"), ("products", "output"), ("v", "value")):
            draw_vector(axes, COLUMNS[name], j - 0.15, result[name][j], role, most)
        axes.text(COLUMNS["score"] + 0.1, j, f"{result['scaled'][j]:.2f}", ha="center", va="center", fontsize=8.5)
        axes.barh(j, 1.2 * weight, left=COLUMNS["bar"], height=0.4, color=COLOURS["weight"])
        axes.text(
            COLUMNS["bar"] + 1.2 * weight + 0.08, j, f"{weight:.3f}", va="center", color=COLOURS["weight"], fontsize=8.5
        )
        start, end = COLUMNS["v"] + dims * CELL + 0.05, COLUMNS["output"] - 0.05
        bend = np.linspace(0, 1, 30)
        smooth = 3 * bend**2 - 2 * bend**3
        axes.plot(
            start + (end - start) * bend,
            j + (centre - j) * smooth,
            color=COLOURS["output"],
            lw=0.5 + 7 * weight,
            alpha=0.4,
            solid_capstyle="butt",
        )
    draw_vector(axes, COLUMNS["output"], centre - 0.15, result["output"], "output", most)


def draw_vector(axes: Axes, left: float, top: float, values: np.ndarray, role: str, most: float) -> None:
    """A row of cells whose shade is the size of the number."""
    from matplotlib.patches import Rectangle

    for n, value in enumerate(values):
        shade = 0.1 + 0.5 * min(1.0, abs(float(value)) / most)
        corner = (left + n * CELL, top - 0.12)
        axes.add_patch(Rectangle(corner, CELL - 0.04, 0.54, color=COLOURS[role], alpha=shade, lw=0))
        axes.text(left + n * CELL + CELL / 2 - 0.02, top + 0.16, f"{value:.3g}", ha="center", va="center", fontsize=6.5)
