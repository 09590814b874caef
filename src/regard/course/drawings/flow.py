"""Inputs below, outputs above, and the lines from every input to the first output by weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...experiments.experiment import Language
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUPERSCRIPTS = "¹²³⁴⁵⁶⁷⁸⁹"


def draw(axes: Axes, result: Result, language: Language) -> None:
    weights, box = result["weights"], {"boxstyle": "round,pad=0.5", "facecolor": "white"}
    for i in range(len(weights)):
        for j, weight in enumerate(weights[i]):
            colour, alpha = (COLOURS["weight"], 0.8) if i == 0 else (COLOURS["soft"], 0.15)
            axes.plot([j, i], [0, 1], color=colour, lw=0.4 + 10 * weight, alpha=alpha, zorder=1)
    for n in range(len(weights)):
        for letter, row, y, role in (("a", result["inputs"][n], 0, "soft"), ("b", result["output"][n], 1, "output")):
            text = f"{letter}{SUPERSCRIPTS[n]}\n({row[0]:.2f}, {row[1]:.2f})"
            edge = box | {"edgecolor": COLOURS[role]}
            axes.text(n, y, text, ha="center", va="center", fontsize=9, bbox=edge, zorder=2)
        label = f"α {result['scores'][0, n]:.2f} → α̂ {weights[0, n]:.2f}"
        axes.text(n, -0.28, label, ha="center", fontsize=8.5, color=COLOURS["weight"])
    axes.set(xlim=(-0.6, len(weights) - 0.4), ylim=(-0.4, 1.25))
