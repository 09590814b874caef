"""The parts of layers from text: the names that text may have, and the specifications that they stand for.

`attention.parts.text` reads the text; this module says what each name makes. In text `T5Bias(buckets=32)` is short for
`LearnedT5Bias(buckets=32)`, since a part with tensors cannot be written as text. What is not text is returned as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ...attention.parts import text
from ...attention.parts.mask import Mask
from ...attention.parts.methods import Exact, Method, Nystrom, Performer
from ...attention.parts.part import Part
from ...attention.parts.positions import Alibi, AxialRotary, Position, Rotary
from ...attention.parts.scores import Dot, Score
from ...attention.parts.sink import Sink
from ..sparse.bigbird import BigBirdBlocks, BigBirdMask, BigBirdScore
from .disentangled import LearnedDisentangled
from .layer_masks import LayerMasks
from .layer_positions import LayerPositions
from .learned import (
    LearnedAdditive,
    LearnedBias,
    LearnedBilinear,
    LearnedCosine,
    LearnedLinformer,
    LearnedShaw,
    LearnedSink,
    LearnedT5Bias,
    LearnedTransformerXL,
)
from .rotary import DynamicRotary, LongRotary, ScaledRotary, YarnRotary

MaskArgument = Mask | str | Sequence[Mask | str | None] | None
"""One mask for all layers, or one for each; None allows every pair."""
PositionArgument = Position | str | Sequence[Position | str | None] | None
"""One position for all layers, or one for each; None is none."""


def by_name(*types: type[Part], **short: Callable[..., Part]) -> dict[str, Callable[..., Part]]:
    """The types under their own names, and other constructors under `short` ones."""
    return {**short, **{part_type.__name__: part_type for part_type in types}}


def make_rotary(base: float = 10000.0, dim: int | None = None, **scaling: Any) -> Rotary | ScaledRotary:
    """`Rotary`, or `ScaledRotary` where the text has its arguments."""
    return ScaledRotary(base, dim, **scaling) if scaling else Rotary(base, dim)


def make_bigbird_score(block: int, random: int, places: int) -> BigBirdScore:
    """The score under the name and with the arguments of earlier versions."""
    return BigBirdScore(block, random, places)


def make_bigbird_mask(block: int, random: int, places: int, heads: int) -> BigBirdMask:
    """The mask under the name and with the arguments of earlier versions."""
    return BigBirdMask(block, random, heads, places)


SCORES = by_name(
    *(Dot, LearnedBilinear, LearnedCosine, LearnedAdditive, BigBirdScore),
    Bilinear=LearnedBilinear,
    Cosine=LearnedCosine,
    Additive=LearnedAdditive,
    BigBirdDot=make_bigbird_score,
)
POSITIONS = by_name(
    *(Alibi, AxialRotary, ScaledRotary, YarnRotary, DynamicRotary, LongRotary),
    *(LearnedBias, LearnedT5Bias, LearnedShaw, LearnedTransformerXL, LearnedDisentangled),
    Rotary=make_rotary,
    Bias=LearnedBias,
    T5Bias=LearnedT5Bias,
    Shaw=LearnedShaw,
    TransformerXL=LearnedTransformerXL,
    Disentangled=LearnedDisentangled,
)
SINKS = by_name(Sink, LearnedSink)
METHODS = by_name(Exact, Nystrom, Performer, LearnedLinformer, Linformer=LearnedLinformer)
MASKS = text.MASKS | by_name(BigBirdBlocks, BigBirdMask)

PLACEHOLDER = re.compile(r"\{(layer|training)\}")
PLACEHOLDER_ARGUMENT = re.compile(r",? *\w+=\{\w+\}")
"""Text of earlier versions wrote the number of the layer and whether it is training as placeholders."""


def parse_score(value: Score | str) -> Score:
    """The score, or its specification.

    >>> parse_score("Additive(activation='leaky_relu')")
    LearnedAdditive(activation='leaky_relu')
    """
    return text.parse_part(PLACEHOLDER_ARGUMENT.sub("", value), SCORES) if isinstance(value, str) else value


def parse_position(value: Position | str | None) -> Position | None:
    """The position, or its specification.

    >>> parse_position("Shaw(16)"), parse_position("Rotary(base=500.0)")
    (LearnedShaw(), Rotary(base=500.0))
    """
    return text.parse_part(value, POSITIONS) if isinstance(value, str) else value


def parse_layer_positions(value: PositionArgument) -> Position | None:
    """The position of a stack, which may have another for each layer.

    >>> parse_layer_positions(["Rotary()", None])
    LayerPositions(positions=(Rotary(), None))
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        return LayerPositions(tuple(parse_position(position) for position in value))
    return parse_position(value)


def parse_method(value: Method | str) -> Method:
    """The method, or its specification."""
    return text.parse_part(value, METHODS) if isinstance(value, str) else value


def parse_sink(value: Sink | str | None) -> Sink | None:
    """The sink, or its specification.

    >>> parse_sink("Sink()"), parse_sink("LearnedSink(-1.0)")
    (Sink(), LearnedSink(logits=-1.0))
    """
    return text.parse_part(value, SINKS) if isinstance(value, str) else value


def parse_mask(value: Mask | str | None) -> Mask | None:
    """The mask.

    >>> parse_mask("Causal() & Window(255)")
    Causal() & Window(before=255)
    """
    return text.parse_mask(value, MASKS) if isinstance(value, str) else value


def parse_layer_masks(value: MaskArgument, layers: int) -> Mask | None:
    """The mask of a stack, which may have another for each layer.

    >>> parse_layer_masks("RandomBlocks(block=4, count=1, seed={layer})", layers=2)
    LayerMasks(masks=(RandomBlocks(block=4, count=1), RandomBlocks(block=4, count=1, seed=1)))
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        return LayerMasks(tuple(parse_mask(mask) for mask in value))
    placeholders = PLACEHOLDER.findall(value) if isinstance(value, str) else []
    if isinstance(value, str) and "training" in placeholders:
        return text.parse_part(PLACEHOLDER_ARGUMENT.sub("", value), {"BigBirdBlocks": make_bigbird_mask})
    if isinstance(value, str) and placeholders:
        return LayerMasks(tuple(parse_mask(value.format(layer=layer)) for layer in range(layers)))
    return parse_mask(value)
