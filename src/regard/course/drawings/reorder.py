"""The words of the sentence in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...experiments.experiment import Language
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(axes: Axes, result: Result, language: Language) -> None:
    box = {"boxstyle": "round,pad=0.6", "facecolor": "white", "edgecolor": COLOURS["weight"]}
    for n, word in enumerate(result["words"]):
        axes.text(n, 0.5, word, ha="center", va="center", fontsize=14, bbox=box)
    axes.set(xlim=(-0.7, max(3, len(result["words"])) - 0.3), ylim=(0, 1))
