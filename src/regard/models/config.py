"""Configurations: what a model is made of, as values that compare, print and become JSON."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ..errors import BadInput
from ..nn.baselines.convolution import ConvolutionConfig
from ..nn.baselines.fully_connected import FullyConnectedConfig
from ..nn.baselines.recurrent import RecurrentConfig
from ..nn.block import StackConfig
from ..nn.embeddings.text import Text
from ..nn.embeddings.words import Words
from ..nn.graph_layers import GraphLayersConfig
from .baselines.linear import Line
from .baselines.ngram import Ngram
from .detection import Detection, FeatureGrid
from .ensemble import Committee
from .graph import Graph
from .graph_encoder import GraphEncoder
from .heads import Classes, Pooler, Span, Vocabulary
from .image import Image
from .set_loss import SetLoss
from .sound import Sound
from .stages import Stages
from .two_towers import Tower, TwoTowers


@dataclass(frozen=True)
class Sequence:
    """`embed → stack → head`: an encoder, or with a causal stack a decoder.

    `family` names the key table under which its weights are exchanged.
    """

    embed: Any
    stack: Any
    pooler: Pooler | None = None
    head: Any = None
    family: str | None = None

    def build(self):
        from .model import SequenceModel

        return SequenceModel(self)


@dataclass(frozen=True)
class Pair:
    """An encoder and a decoder that reads it: `embed → stack`, `decoder_embed → decoder → head`.

    `decoder_embed` None shares the encoder's embedding. `start` is the token that a decoder begins with. `copies` lets
    it say a word because the source has it (`Copying`).
    """

    embed: Any
    stack: Any
    decoder: Any
    decoder_embed: Any = None
    head: Any = None
    start: int = 0
    family: str | None = None
    copies: bool = False

    def build(self):
        from .model import PairModel

        return PairModel(self)


KINDS = {
    kind.__name__: kind
    for kind in (
        *(Sequence, Pair, Text, StackConfig, Pooler, Vocabulary, Classes, Span),
        *(ConvolutionConfig, FullyConnectedConfig, RecurrentConfig, Words),
        *(Image, Ngram, Tower, TwoTowers, FeatureGrid, Detection, SetLoss, Graph, Sound, Stages),
        *(GraphEncoder, GraphLayersConfig, Committee, Line),
    )
}


def as_dict(config: Any) -> Any:
    """A configuration in JSON's words; each part says its type."""
    if is_dataclass(config) and not isinstance(config, type):
        inside = {field.name: as_dict(getattr(config, field.name)) for field in fields(config)}
        return {"type": type(config).__name__, **inside}
    if isinstance(config, tuple | list):
        return [as_dict(one) for one in config]
    return config


def from_dict(data: Any) -> Any:
    """The configuration that `as_dict` wrote; an unknown kind or key is an error that names the nearest.

    >>> from_dict(as_dict(Text(vocabulary=100, dim=8))) == Text(vocabulary=100, dim=8)
    True
    """
    if isinstance(data, list):
        return tuple(from_dict(one) for one in data)
    if not isinstance(data, dict):
        return data
    name = data.get("type")
    if name not in KINDS:
        raise BadInput(f"The configuration has a part of type {name!r}; known are {', '.join(sorted(KINDS))}.")
    kind = KINDS[name]
    names = [field.name for field in fields(kind)]
    for key in data:
        if key != "type" and key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" It has {', '.join(names)}."
            raise BadInput(f"{name} has no setting {key!r}.{hint}")
    return kind(**{key: from_dict(value) for key, value in data.items() if key != "type"})
