"""Chapter 1: attention beside fully connected layers."""

from __future__ import annotations

from ....experiments.experiment import Bilingual
from ...step import Chapter
from . import comparison, grey_ball, sentence, sequences, together, weights

__all__ = ["CHAPTER"]

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
        weights.FIXED_WEIGHTS,
        sequences.REACH,
        together.READABLE_WEIGHTS,
        sequences.PARAMETERS,
        together.PLUG_IN,
        sequences.FIXED_INPUTS,
        comparison.COMPARISON,
        together.BLOCK_OF_BOTH,
        weights.FROZEN_QUERY,
        weights.QUERY_KEY_VALUE,
        comparison.QUERY_TABLE,
        grey_ball.GREY_BALL,
    ),
)
