"""Parts in a configuration: dataclass fields that take a part, a specification of a learned one, or the text of either.

Text is parsed once, when the configuration is made; a configuration holds values. In text `T5Bias(buckets=32)` is
short for `LearnedT5Bias(buckets=32)`, since a part with tensors cannot be written as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from torch import nn

from ...attention.parts import text
from ...attention.parts.mask import Mask
from ...attention.parts.methods import Exact, Method, Nystrom, Performer
from ...attention.parts.part import Part
from ...attention.parts.positions import Alibi, Position, Rotary
from ...attention.parts.scores import Dot, Score
from ...errors import BadInput
from ..sparse.bigbird import BigBirdBlocks, BigBirdMask, BigBirdScore
from .learned import (
    FixedPart,
    LearnedAdditive,
    LearnedBias,
    LearnedBilinear,
    LearnedCosine,
    LearnedLinformer,
    LearnedShaw,
    LearnedT5Bias,
    LearnedTransformerXL,
    PartSpec,
)
from .rotary import RotaryEmbedding, ScaledRotary

ScoreLike = Score | PartSpec
PositionLike = Position | PartSpec
MethodLike = Method | PartSpec
LayerMasks = Mask | BigBirdMask | tuple[Mask | None, ...]
"""One mask for all layers, a specification of each layer's, or one mask (or None) for each layer."""

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)


def by_name(*types: type, **short: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
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
    *(Alibi, ScaledRotary, LearnedBias, LearnedT5Bias, LearnedShaw, LearnedTransformerXL),
    Rotary=make_rotary,
    Bias=LearnedBias,
    T5Bias=LearnedT5Bias,
    Shaw=LearnedShaw,
    TransformerXL=LearnedTransformerXL,
)
METHODS = by_name(Exact, Nystrom, Performer, LearnedLinformer, Linformer=LearnedLinformer)
MASKS = text.MASKS | by_name(BigBirdBlocks, BigBirdMask)

PLACEHOLDER = re.compile(r"\{(layer|training)\}")
PLACEHOLDER_ARGUMENT = re.compile(r",? *\w+=\{\w+\}")
"""Text of earlier versions wrote the number of the layer and whether it is training as placeholders."""


def parse_score(value: ScoreLike | M | str) -> ScoreLike | M:
    """The score, its specification, or its module; text becomes the first or the second.

    >>> parse_score("Additive(activation='leaky_relu')")
    LearnedAdditive(activation='leaky_relu')
    """
    if isinstance(value, str):
        value = PLACEHOLDER_ARGUMENT.sub("", value)
    return parse_part(value, SCORES, "score", Score)


def parse_position(value: PositionLike | M | str) -> PositionLike | M:
    """The position, its specification, or its module.

    >>> parse_position("Shaw(16)"), parse_position("Rotary(base=500.0)")
    (LearnedShaw(), Rotary(base=500.0))
    """
    return parse_part(value, POSITIONS, "position", Position)


def parse_method(value: MethodLike | M | str) -> MethodLike | M:
    """The method, its specification, or its module."""
    return parse_part(value, METHODS, "method", Method)


def parse_part(value: Any, choices: dict[str, Callable[..., Any]], name: str, part_type: type) -> Any:
    if isinstance(value, str):
        return text.parse_part(value, choices)
    if isinstance(value, part_type | PartSpec | nn.Module):
        return value
    raise BadInput(f"{name} is {value!r:.80}; it must be a {part_type.__name__}, its specification, or its text.")


def parse_mask(value: Mask | str | None) -> Mask | None:
    """The mask; text becomes one.

    >>> parse_mask("Causal() & Window(255)")
    Causal() & Window(before=255)
    """
    if value is None or isinstance(value, Mask):
        return value
    if not isinstance(value, str):
        raise BadInput(f"mask is {value!r:.80}; it must be a Mask, or the text of one: 'Causal() & Window(255)'.")
    return text.parse_mask(value, MASKS)


def parse_layer_masks(value: LayerMasks | str | Sequence[Mask | str | None] | None, layers: int) -> LayerMasks | None:
    """The masks of a stack.

    >>> parse_layer_masks("RandomBlocks(block=4, count=1, seed={layer})", layers=2)
    (RandomBlocks(block=4, count=1), RandomBlocks(block=4, count=1, seed=1))
    """
    if isinstance(value, BigBirdMask):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != layers:
            raise BadInput(f"mask has {len(value)} masks; give one, or one for each of {layers} layers.")
        return tuple(parse_mask(mask) for mask in value)
    placeholders = PLACEHOLDER.findall(value) if isinstance(value, str) else []
    if isinstance(value, str) and "training" in placeholders:
        return text.parse_part(PLACEHOLDER_ARGUMENT.sub("", value), {"BigBirdBlocks": make_bigbird_mask})
    if isinstance(value, str) and placeholders:
        return tuple(parse_mask(value.format(layer=layer)) for layer in range(layers))
    return parse_mask(value)


class PartField(Generic[T]):
    """A dataclass field that holds a T and also takes its text.

    The value is stored under the name with an underscore: torch.compile cannot trace a descriptor that reads
    `vars(instance)` under its own name.
    """

    def __init__(self, default: T, parse: Callable[[Any], T]) -> None:
        self.default, self.parse, self.stored = default, parse, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.stored = f"_{name}"

    def __get__(self, instance: object | None, owner: type | None = None) -> T:
        return self.default if instance is None else getattr(instance, self.stored)

    def __set__(self, instance: object, value: T | str) -> None:
        object.__setattr__(instance, self.stored, self.parse(value))


class LayerMasksField(PartField[LayerMasks | None]):
    """A field for the masks of a stack, after the field `layers`; a list has one for each layer."""

    def __init__(self) -> None:
        super().__init__(None, lambda value: value)

    def __set__(
        self, instance: Any, value: LayerMasks | str | list[Mask | str | None] | tuple[str, ...] | None
    ) -> None:
        object.__setattr__(instance, self.stored, parse_layer_masks(value, instance.layers))


SCORE: PartField[ScoreLike] = PartField(Dot(), parse_score)
POSITION: PartField[PositionLike | None] = PartField(
    None, lambda value: None if value is None else parse_position(value)
)
METHOD: PartField[MethodLike] = PartField(Exact(), parse_method)
MASK: PartField[Mask | None] = PartField(None, parse_mask)
LAYER_MASKS = LayerMasksField()
"""The fields `score`, `position`, `method` and `mask` of every configuration."""


def build_part(part: Part | PartSpec | nn.Module, heads: int, head_dim: int, layer: int = 0) -> nn.Module:
    """The module that gives a part to a layer with these sizes."""
    if isinstance(part, nn.Module):
        return part
    if isinstance(part, PartSpec):
        return part.build(heads, head_dim, layer)
    return RotaryEmbedding(head_dim, part) if isinstance(part, Rotary) else FixedPart(part)
