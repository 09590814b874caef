"""Measured times of one layer over the length and over the dimension, from the published experiment `paths`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Bilingual, Language
from ...experiments.results import published_result
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SERIES = (
    ("recurrent", Bilingual("recurrent (GRU)", "循环（GRU）"), "query"),
    ("attention", Bilingual("attention", "注意力"), "key"),
)
CHARTS = (
    ("length", "lengths", Bilingual("words L (d = {dim})", "词数 L（d = {dim}）")),
    ("dim", "dims", Bilingual("size of a vector d (L = {length})", "向量大小 d（L = {length}）")),
)
MISSING = Bilingual("The experiment has no published result.", "这个实验还没有公布的结果。")


def draw(axes: Axes, result: Result, language: Language) -> None:
    published = published_result("paths")
    if published is None:
        axes.text(0.5, 0.5, MISSING(language), ha="center")
        return
    numbers = published["numbers"]
    for place, (over, sizes, label) in enumerate(CHARTS):
        chart = axes.inset_axes((0.08 + 0.52 * place, 0.16, 0.4, 0.8))
        for name, series, role in SERIES:
            milliseconds = 1000 * np.array(numbers["times"][name][over])
            chart.plot(numbers[sizes], milliseconds, color=COLOURS[role], label=series(language), marker="o", ms=3)
        chart.axvline(result[over], color=COLOURS["weight"], ls="--", lw=1.2)
        chart.set(xscale="log", yscale="log", xlabel=label(language).format(**numbers))
        chart.set_ylabel(Bilingual("milliseconds", "毫秒")(language))
        chart.grid(color=COLOURS["line"])
        chart.legend(fontsize=8, frameon=False)
