"""Chapter 2: scores, scaling, the Transformer's block, and convolution and recurrence beside it."""

from __future__ import annotations

from ....experiments.experiment import Bilingual
from ...step import Chapter
from .block import BLOCK
from .convolution import DYNAMIC_WEIGHTS, IMAGE_PATCHES, LOCAL_TO_GLOBAL
from .embedding import EMBEDDING_SCALE
from .feed_forward import LINEARITY, POSITION_WISE, WIDTH
from .paths import PATH_TABLE, PATHS
from .projections import PROJECTIONS, SELF_AND_CROSS
from .recurrence import COPY, RECURRENCE
from .scores import ADDITIVE_SCORE, SCALED_DOT_PRODUCT, SQRT_DIM

__all__ = ["CHAPTER"]

CHAPTER = Chapter(
    number=2,
    name="transformer",
    title=Bilingual("Scores, scaling and the Transformer", "打分、缩放与 Transformer"),
    lead=Bilingual(
        "How queries and keys are compared, why scores are scaled, and what the other half of a block does.",
        "怎样比较查询与键，为什么要缩放，以及模块的另一半做什么。",
    ),
    steps=(
        ADDITIVE_SCORE,
        SCALED_DOT_PRODUCT,
        SQRT_DIM,
        PROJECTIONS,
        SELF_AND_CROSS,
        LINEARITY,
        WIDTH,
        POSITION_WISE,
        BLOCK,
        EMBEDDING_SCALE,
        RECURRENCE,
        PATHS,
        PATH_TABLE,
        DYNAMIC_WEIGHTS,
        LOCAL_TO_GLOBAL,
        IMAGE_PATCHES,
        COPY,
    ),
)
