"""Chapter 4: neural networks, activation functions, the soft dictionary, softmax, masks."""

from __future__ import annotations

from ....experiments.experiment import Bilingual
from ...step import Chapter
from . import dictionary, functions, layers, masks, softmax

__all__ = ["CHAPTER"]

CHAPTER = Chapter(
    number=4,
    name="networks",
    title=Bilingual("Networks and the soft dictionary", "神经网络与软字典"),
    lead=Bilingual(
        "From layers and activations to a dictionary that answers with a mix of its values.",
        "从层与激活函数，到会给出混合答案的字典。",
    ),
    steps=(
        layers.MLP,
        functions.TABLE_COLUMNS,
        functions.UNIVERSAL_APPROXIMATION,
        layers.LINEAR_LAYERS,
        functions.DECISION_BOUNDARY,
        layers.FEED_FORWARD_FAMILY,
        dictionary.SOFT_DICTIONARY,
        dictionary.DOT_SIGN,
        dictionary.MANY_QUERIES,
        softmax.SOFTMAX_RANGE,
        softmax.LAYER_AND_BATCH_NORM,
        masks.ATTENTION_XXX,
        masks.PAINTED_MASK,
        masks.ONE_PASS,
    ),
)
