"""Chapter 3: sets of vectors as input, self-attention, sequences, images, graphs."""

from __future__ import annotations

from ....experiments.experiment import Bilingual
from ...step import Chapter
from . import domains, flow, inputs, lengths, positions, recurrence

__all__ = ["CHAPTER"]

CHAPTER = Chapter(
    number=3,
    name="vector-sets",
    title=Bilingual("Sets of vectors", "向量的集合"),
    lead=Bilingual(
        "Sentences, sound, images and graphs are sets of vectors of any size.",
        "句子、语音、图像和图都是大小不定的向量集合。",
    ),
    steps=(
        *inputs.STEPS,
        *flow.STEPS,
        *positions.STEPS,
        *domains.STEPS,
        *recurrence.STEPS,
        *lengths.STEPS,
    ),
)
