"""The grey ball: a bag, the ball in the left hand, the ball it is compared with, and the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Bilingual, Language
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAG = "#4d5468"
LEFT, RIGHT, ANSWER = (1.0, 3.3), (3.2, 3.3), (1.0, 0.7)


def draw(axes: Axes, result: Result, language: Language) -> None:
    """Colours as they are seen; the ring around a ball is as thick as its weight."""
    from matplotlib.patches import Circle, FancyBboxPatch

    axes.set(xlim=(0, 10.4), ylim=(-0.4, 4.6), aspect="equal")
    titles = (
        (LEFT, "query", Bilingual("left hand: query", "左手：查询")),
        (RIGHT, "key", Bilingual("right hand: key", "右手：键")),
        ((ANSWER[0] + 0.5, ANSWER[1]), "output", Bilingual("answer: mix of the bag", "答案：整袋的混合")),
        ((7.6, 3.45), "value", Bilingual("bag: keys and values", "袋子：键和值")),
    )
    for (x, y), role, words in titles:
        axes.text(x, y + 0.85, words(language), ha="center", color=COLOURS[role], fontsize=9)
    compared = result["pick"] - 1
    balls = ((LEFT, result["query"]), (RIGHT, result["keys"][compared]), (ANSWER, result["output"]))
    for centre, colour in balls:
        axes.add_patch(Circle(centre, 0.6, facecolor=np.clip(colour, 0, 1), edgecolor=COLOURS["soft"]))
    difference, weight = result["differences"][-1][compared], result["weights"][compared]
    axes.text(2.1, 3.3, f"{difference:.3f}", ha="center", va="center", fontsize=11, weight="bold")
    ball = Bilingual(f"mostly ball {result['pick']} ({weight:.2f})", f"主要是 {result['pick']} 号球（{weight:.2f}）")
    axes.text(1.85, 0.7, ball(language), va="center", fontsize=9)
    axes.add_patch(FancyBboxPatch((5.5, 0.0), 4.3, 3.7, boxstyle="round,pad=0.25,rounding_size=0.7", color=BAG))
    for n, (colour, weight) in enumerate(zip(result["keys"], result["weights"], strict=True)):
        centre = (6.2 + 1.45 * (n % 3), 3.25 - 1.25 * (n // 3))
        axes.add_patch(Circle(centre, 0.4, facecolor=np.clip(colour, 0, 1), edgecolor=COLOURS["weight"], lw=6 * weight))
        axes.text(*centre, str(n + 1), ha="center", va="center", fontsize=8, color="#30333d")
        axes.text(centre[0], centre[1] - 0.62, f"{weight:.2f}", ha="center", va="center", fontsize=7, color="white")
