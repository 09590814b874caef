"""Chapter 5: self-attention whole: heads, positions, masks, limits."""

from __future__ import annotations

from ....experiments.experiment import Bilingual
from ...step import Chapter
from ..limits import LIMITS
from .heads import COREFERENCE, MULTI_HEAD
from .stages import FOUR_STEPS, ROLES
from .three_vectors import THREE_VECTORS

__all__ = ["CHAPTER"]

CHAPTER = Chapter(
    number=5,
    name="self-attention",
    title=Bilingual("Self-attention in full", "完整的自注意力"),
    lead=Bilingual(
        "Three vectors, many heads, positions, cost and what weights explain.",
        "三个向量、多头、位置、开销，以及权重能解释什么。",
    ),
    steps=(FOUR_STEPS, ROLES, THREE_VECTORS, MULTI_HEAD, COREFERENCE, *LIMITS),
)
