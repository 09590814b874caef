"""N vectors go in; N labels, one label or M labels come out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Bilingual, Language
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = (
    ("each", Bilingual("N → N: tagging", "N → N：词性标注")),
    ("whole", Bilingual("N → 1: a class", "N → 1：分类")),
    ("free", Bilingual("N → M: translation", "N → M：翻译")),
)


def draw(axes: Axes, result: Result, language: Language) -> None:
    for place, (name, title) in enumerate(ROWS):
        labels, bottom = np.atleast_1d(result[name]), -2.6 * place
        inputs = np.arange(result["count"]) - (result["count"] - 1) / 2
        outputs = np.arange(len(labels)) - (len(labels) - 1) / 2
        for x in inputs:
            for y in outputs:
                axes.plot([x, y], [bottom, bottom + 1], color=COLOURS["line"], lw=0.6, zorder=1)
        axes.scatter(inputs, np.full(len(inputs), bottom), marker="s", s=70, color=COLOURS["soft"], zorder=2)
        colours = [COLOURS[("query", "value", "output")[label]] for label in labels]
        axes.scatter(outputs, np.full(len(outputs), bottom + 1), s=80, color=colours, zorder=2)
        axes.text(-19, bottom + 0.5, title(language), va="center")
    axes.set(xlim=(-19, 13), ylim=(-6, 1.6))
