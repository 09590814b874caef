"""Attention as equations between matrices, a line for each stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Bilingual, Language
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROLES = {"Q": "query", "K": "key", "V": "value", "X": "soft", "W_q": "query", "W_k": "key", "W_v": "value"}
SCORES, SCALED = Bilingual("scores", "分数"), Bilingual("scaled", "缩放后")
WEIGHTS, OUTPUT = Bilingual("weights", "权重"), Bilingual("output", "输出")


def draw(axes: Axes, result: Result, language: Language) -> None:
    """Q · Kᵀ = scores, divided by √dim, softmax, times V; above them the projections where the step has them."""
    arrays = {name: np.asarray(value) for name, value in result.items() if isinstance(value, np.ndarray)}
    lines: list[list[tuple[str, np.ndarray, str] | str]] = [
        [
            ("Q", arrays["queries"], "query"),
            "·",
            ("Kᵀ", arrays["keys"].T, "key"),
            "=",
            (SCORES(language), arrays["products"], "plain"),
            "→",
            (f"{SCALED(language)} (÷ {result['factor']:g})", arrays["scaled"], "plain"),
        ],
        [
            "softmax →",
            (WEIGHTS(language), arrays["weights"], "weight"),
            "·",
            ("V", arrays["values"], "value"),
            "=",
            (OUTPUT(language), arrays["output"], "output"),
        ],
    ]
    if "inputs" in arrays:
        matrices = [(name, arrays[name.lower()], ROLES[name]) for name in ("W_q", "W_k", "W_v")]
        lines.insert(0, [("X", arrays["inputs"], "soft"), "·", *matrices, "=  Q, K, V"])
    top = 0.0
    for line in lines:
        top += draw_line(axes, line, top) + 1.6
    axes.set(xlim=(-0.5, 25.5), ylim=(top - 0.6, -1.4))


def draw_line(axes: Axes, parts: list[tuple[str, np.ndarray, str] | str], top: float) -> float:
    """Draw matrices and signs from left to right; returns the height in cells."""
    height = max(len(part[1]) for part in parts if not isinstance(part, str))
    left = 0.0
    for part in parts:
        if isinstance(part, str):
            axes.text(left + 0.3, top + height / 2 - 0.2, part, va="center", fontsize=11, color=COLOURS["soft"])
            left += 1.2 if len(part) == 1 else 3.2
            continue
        name, values, role = part
        axes.text(left, top + (height - len(values)) / 2 - 0.75, name, fontsize=8, color=COLOURS[role])
        draw_cells(axes, values, role, left, top + (height - len(values)) / 2)
        left += 1.3 * values.shape[1] + 0.4
    return float(height)


def draw_cells(axes: Axes, values: np.ndarray, role: str, left: float, top: float) -> None:
    """A matrix of shaded cells with their numbers."""
    from matplotlib.patches import Rectangle

    most = max(float(np.abs(values).max()), 1e-9)
    for (i, j), value in np.ndenumerate(values):
        corner = (left + 1.3 * j, top + i - 0.45)
        axes.add_patch(Rectangle(corner, 1.2, 0.9, color=COLOURS[role], alpha=0.05 + 0.4 * abs(value) / most, lw=0))
        axes.text(corner[0] + 0.6, top + i, f"{value:.3g}", ha="center", va="center", fontsize=6.5)
