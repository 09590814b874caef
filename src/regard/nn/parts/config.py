"""The parts of a configuration: one `Parts`, which constructors also take by name and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TypedDict

from torch import nn

from ...attention.parts.mask import Mask
from ...attention.parts.methods import Method
from ...attention.parts.part import Part, PartSpec
from ...attention.parts.parts import Parts
from ...attention.parts.positions import Position, Rotary
from ...attention.parts.scores import Additive, Bilinear, Cosine, Score
from ...attention.parts.sink import Sink
from ...errors import BadInput, Unsupported
from .disentangled import EmbeddedDistances
from .layer_masks import LayerMasks
from .layer_positions import LayerPositions
from .learned import FixedPart, LearnedAdditive, LearnedBilinear, LearnedCosine
from .parse import (
    MaskArgument,
    PositionArgument,
    parse_layer_masks,
    parse_layer_positions,
    parse_method,
    parse_score,
    parse_sink,
)
from .rotary import RotaryAngles, RotaryEmbedding, RotarySpec

NO_PRODUCT = Additive, Bilinear, Cosine, LearnedAdditive, LearnedBilinear, LearnedCosine

CallPosition = Position | RotaryAngles | EmbeddedDistances
"""The position of one call: a part, or what a layer makes its own of."""


class PartArguments(TypedDict, total=False):
    """Parts by name, as values or as text. A stack takes a `mask` or `position` for each of its layers as well."""

    score: Score | str
    position: PositionArgument
    mask: MaskArgument
    method: Method | str
    sink: Sink | str | None


def update_parts(parts: Parts, given: PartArguments, *, layers: int = 1, dropout: float | None = None) -> Parts:
    """The parts, with those that are given in place of their own. Text is parsed; a stack has a number of `layers`.

    >>> update_parts(Parts(dropout=0.1), {"mask": "Causal() & Window(7)"})
    Parts(mask=Causal() & Window(before=7), dropout=0.1)
    """
    for name in given:
        if name not in PartArguments.__annotations__:
            raise TypeError(f"unexpected keyword argument {name!r}")
    mask = parse_layer_masks(given.get("mask", parts.mask), layers)
    if isinstance(mask, LayerMasks) and len(mask.masks) != layers:
        raise BadInput(f"mask has {len(mask.masks)} masks; give one, or one for each of {layers} layers.")
    position = parse_layer_positions(given.get("position", parts.position))
    if isinstance(position, LayerPositions) and len(position.positions) != layers:
        raise BadInput(
            f"position has {len(position.positions)} positions; give one, or one for each of {layers} layers."
        )
    check_of_call(parts)
    score = parse_score(given.get("score", parts.score))
    check_rotary(score, position)
    return Parts(
        score,
        position,
        mask,
        parse_method(given.get("method", parts.method)),
        parts.dropout if dropout is None else dropout,
        parse_sink(given.get("sink", parts.sink)),
    )


def check_of_call(parts: Parts) -> None:
    """Raise for parts that belong to the rows of one call, which a layer does not have before it is called."""
    for name in ("bias", "places", "edges"):
        if (part := getattr(parts, name)) is not None:
            raise BadInput(
                f"A layer was given {name}={part!r}, which is of one call and its rows. Pass it to regard.attend, or "
                "give the layer a position, a mask or a sink."
            )


def check_rotary(score: Score, position: Position | None) -> None:
    """Raise where q and k would be rotated for a score that is then not one of their distance."""
    layers = position.positions if isinstance(position, LayerPositions) else (position,)
    if isinstance(score, NO_PRODUCT) and any(isinstance(own, Rotary | RotarySpec) for own in layers):
        raise Unsupported(
            f"Rotary positions are part of a dot product and need the score Dot; the score is {type(score).__name__}. "
            "A bias by distance (Alibi, LearnedBias, LearnedT5Bias) goes with every score."
        )


class PartsByName:
    """A configuration with `parts`, each of which can be read by its own name, as in JSON."""

    parts: Parts
    part_names = ("score", "position", "mask", "method", "attention_dropout", "sink")

    @property
    def score(self) -> Score:
        return self.parts.score

    @property
    def position(self) -> Position | None:
        return self.parts.position

    @property
    def mask(self) -> Mask | None:
        return self.parts.mask

    @property
    def method(self) -> Method:
        return self.parts.method

    @property
    def sink(self) -> Sink | None:
        return self.parts.sink

    @property
    def attention_dropout(self) -> float:
        return self.parts.dropout


def set_fields(config: object, values: Mapping[str, object]) -> None:
    """Set every field of a frozen dataclass whose `__init__` is written out."""
    for item in fields(config):  # type: ignore[arg-type]
        object.__setattr__(config, item.name, values[item.name])


def build_part(part: Part, heads: int, head_dim: int, layer: int = 0, rotary_dim: int | None = None) -> nn.Module:
    """The module that gives a part to a layer with these sizes; rotary positions have `rotary_dim` where given."""
    if isinstance(part, LayerPositions):
        return part.build_layers(lambda own: build_part(own, heads, head_dim, 0, rotary_dim))
    if isinstance(part, Rotary | RotarySpec) and rotary_dim is not None:
        head_dim = rotary_dim
    if isinstance(part, PartSpec):
        return part.build(heads, head_dim, layer)
    return RotaryEmbedding(head_dim, part) if isinstance(part, Rotary) else FixedPart(part)
