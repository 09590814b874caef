"""Measured times of one layer by length, from the published result of the experiment `cost`."""

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
    ("recurrence", Bilingual("LSTM", "LSTM"), "query"),
    ("attention", Bilingual("attention, weights stored", "注意力，存下权重"), "key"),
    ("blocks", Bilingual("attention, in blocks", "注意力，分块计算"), "value"),
)


def draw(axes: Axes, result: Result, language: Language) -> None:
    published = published_result("cost")
    assert published is not None, "the package ships the result of the experiment cost"
    numbers = published["numbers"]
    for name, label, role in SERIES:
        milliseconds = 1000 * np.array(numbers["times"]["layers"][name])
        axes.plot(numbers["lengths"], milliseconds, color=COLOURS[role], label=label(language), marker="o", ms=3)
    axes.axvline(result["length"], color=COLOURS["weight"], ls="--", lw=1.2)
    axes.set_axis_on()
    axes.set(xscale="log", yscale="log", xlabel=Bilingual("words L", "词数 L")(language))
    axes.set_ylabel(Bilingual("milliseconds", "毫秒")(language))
    axes.grid(color=COLOURS["line"])
    axes.legend(fontsize=8, frameon=False)
