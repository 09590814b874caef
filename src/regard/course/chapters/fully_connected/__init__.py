"""Chapter 1: attention beside fully connected layers."""

from __future__ import annotations

from ....experiments.experiment import Bilingual
from ...step import Chapter
from . import grey_ball, sentence, sequences, together, weights

CHAPTER = Chapter(
    number=1,
    name="fully-connected",
    title=Bilingual("Attention and fully connected layers", "注意力与全连接层"),
    lead=Bilingual(
        "Fixed weights and weights computed from the input.",
        "固定的权重，与由输入算出的权重。",
    ),
    steps=(
        sentence.SENTENCE,
        *weights.STEPS,
        grey_ball.GREY_BALL,
        *sequences.STEPS,
        *together.STEPS,
    ),
)
