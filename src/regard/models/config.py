"""Configurations of models: values that compare, print and become JSON."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic

from ..attention.parts.mask import Mask
from ..attention.parts.methods import Method
from ..attention.parts.part import Part
from ..attention.parts.positions import Position
from ..attention.parts.scores import Score
from ..attention.parts.sink import Sink
from ..errors import BadInput
from ..nn.baselines.convolution import ConvolutionConfig
from ..nn.baselines.fully_connected import FullyConnectedConfig
from ..nn.baselines.recurrent import RecurrentConfig
from ..nn.block import StackConfig
from ..nn.embeddings.columns import ColumnEmbeddingConfig
from ..nn.embeddings.patch_embedding import ImageEmbeddingConfig
from ..nn.embeddings.patch_grid import PatchGridConfig
from ..nn.embeddings.residual_embedding import ResidualEmbeddingConfig
from ..nn.embeddings.sound_embedding import SoundEmbeddingConfig
from ..nn.embeddings.text import TextEmbeddingConfig
from ..nn.embeddings.waveform import MoonshineEmbeddingConfig, Wav2VecEmbeddingConfig
from ..nn.embeddings.words import WordEmbeddingConfig
from ..nn.experts import ExpertsConfig
from ..nn.graphs.layers import GraphLayersConfig
from ..nn.multihead.differential import DifferentialConfig
from ..nn.multihead.gate import GateConfig
from ..nn.multihead.latent import LatentConfig
from ..nn.parts.config import PartsByName
from ..nn.parts.layer_masks import LayerMasks
from ..nn.parts.layer_positions import LayerPositions
from ..nn.parts.parse import parse_mask, parse_method, parse_position, parse_score, parse_sink
from ..nn.sparse.shifted_windows import ShiftedWindowsConfig
from .baselines.linear import NBLinearConfig
from .baselines.ngram import NgramConfig
from .baselines.tfidf import TfidfConfig
from .detection import DetectionConfig, FeatureGridConfig
from .dual_encoder import DualEncoderConfig, TowerConfig
from .ensemble import EnsembleConfig
from .graph_attention import GATConfig
from .graph_encoder import GraphEncoderConfig
from .heads import (
    AttentionPoolingHeadConfig,
    ClassificationHeadConfig,
    HeadConfig,
    LMHeadConfig,
    PoolerConfig,
    SpanHeadConfig,
)
from .hierarchical import HierarchicalConfig, HierarchicalLayersConfig
from .interfaces import E, L
from .set_loss import SetLoss
from .table import TableConfig

if TYPE_CHECKING:
    from .model import EncoderDecoderModel, SequenceModel


@dataclass(frozen=True)
class SequenceConfig(Generic[E, L]):
    """`embed → stack → head`: an encoder, or with a causal stack a decoder.

    `family` names the key table under which its weights are exchanged. `word_embed` embeds features of words, which
    are added to the words that tokens are pooled to.
    """

    embed: E
    stack: L
    pooler: PoolerConfig | None = None
    head: HeadConfig | None = None
    family: str | None = None
    word_embed: WordEmbeddingConfig | None = None

    def build(self) -> SequenceModel:
        from .model import SequenceModel

        return SequenceModel(self)


@dataclass(frozen=True)
class EncoderDecoderConfig(Generic[E, L]):
    """An encoder and a decoder that reads it: `embed → stack`, `decoder_embed → decoder → head`.

    `decoder_embed` None shares the encoder's embedding; with `shared_tokens` it shares the tokens' alone. `start` is
    the token that a decoder begins with. `copy` adds a copy mechanism (`CopyMechanism`).
    """

    embed: E
    stack: L
    decoder: L
    decoder_embed: TextEmbeddingConfig | None = None
    head: LMHeadConfig | None = None
    start: int = 0
    family: str | None = None
    copy: bool = False
    shared_tokens: bool = False

    def build(self) -> EncoderDecoderModel:
        from .model import EncoderDecoderModel

        return EncoderDecoderModel(self)


TextConfig = SequenceConfig[TextEmbeddingConfig, StackConfig]
"""An encoder or a decoder of text, of attention blocks."""
ImageConfig = SequenceConfig[ImageEmbeddingConfig, StackConfig]
SpeechConfig = SequenceConfig[SoundEmbeddingConfig, StackConfig]
TextToTextConfig = EncoderDecoderConfig[TextEmbeddingConfig, StackConfig]
SpeechToTextConfig = EncoderDecoderConfig[SoundEmbeddingConfig, StackConfig]

MODELS = (
    *(SequenceConfig, EncoderDecoderConfig, DualEncoderConfig, DetectionConfig, GATConfig, GraphEncoderConfig),
    *(EnsembleConfig, NBLinearConfig, NgramConfig, TfidfConfig, HierarchicalConfig, TableConfig),
)
EMBEDDINGS = (
    *(TextEmbeddingConfig, WordEmbeddingConfig, ImageEmbeddingConfig, SoundEmbeddingConfig),
    *(ResidualEmbeddingConfig, FeatureGridConfig, ColumnEmbeddingConfig),
    *(Wav2VecEmbeddingConfig, MoonshineEmbeddingConfig, PatchGridConfig),
)
LAYERS = (
    *(StackConfig, ConvolutionConfig, FullyConnectedConfig, RecurrentConfig, GraphLayersConfig),
    *(HierarchicalLayersConfig, ShiftedWindowsConfig),
)
LAYER_VALUES = (ExpertsConfig, LatentConfig, DifferentialConfig, GateConfig)
HEADS = (PoolerConfig, AttentionPoolingHeadConfig, LMHeadConfig, ClassificationHeadConfig, SpanHeadConfig)
CONFIGS: dict[str, type] = {
    config.__name__: config for config in (*MODELS, *EMBEDDINGS, *LAYERS, *LAYER_VALUES, *HEADS, TowerConfig, SetLoss)
}
"""Every type of configuration by its name in JSON."""

OLD_TYPES = {
    "Sequence": "SequenceConfig",
    "Pair": "EncoderDecoderConfig",
    "Text": "TextEmbeddingConfig",
    "Words": "WordEmbeddingConfig",
    "Image": "ImageEmbeddingConfig",
    "Sound": "SoundEmbeddingConfig",
    "Stages": "ResidualEmbeddingConfig",
    "FeatureGrid": "FeatureGridConfig",
    "Pooler": "PoolerConfig",
    "Vocabulary": "LMHeadConfig",
    "Classes": "ClassificationHeadConfig",
    "Span": "SpanHeadConfig",
    "Ngram": "NgramConfig",
    "Line": "NBLinearConfig",
    "Tower": "TowerConfig",
    "TwoTowers": "DualEncoderConfig",
    "Detection": "DetectionConfig",
    "Graph": "GATConfig",
    "GraphEncoder": "GraphEncoderConfig",
    "Committee": "EnsembleConfig",
}
"""Names of types in files of earlier versions, and their present names."""

OLD_FIELDS = {
    "EncoderDecoderConfig": {"copies": "copy"},
    "StackConfig": {"memory": "memory_length", "pre_norm": "residual"},
    "RecurrentConfig": {"kind": "cell"},
    "TextEmbeddingConfig": {"places": "positions"},
    "WordEmbeddingConfig": {"places": "positions"},
    "SoundEmbeddingConfig": {"places": "positions"},
    "ResidualEmbeddingConfig": {"places": "positions"},
    "FeatureGridConfig": {"places": "positions"},
    "EnsembleConfig": {"member": "model", "members": "size", "beside": "extra", "share": "extra_weight"},
    "NBLinearConfig": {
        "pairs": "pair_buckets",
        "paired": "pair_columns",
        "near": "max_gap",
        "nothing": "ignored",
    },
}
"""Fields in files of earlier versions, by the type's present name, and their present names."""


def as_dict(config: Any) -> Any:
    """A configuration as JSON values; each part has its `type`."""
    if isinstance(config, LayerMasks):
        return as_dict(config.masks)
    if isinstance(config, LayerPositions):
        return as_dict(config.positions)
    if isinstance(config, Part):
        return part_as_text(config)
    if is_dataclass(config) and not isinstance(config, type):
        inside = {name: as_dict(getattr(config, name)) for name in setting_names(type(config))}
        return {"type": type(config).__name__, **inside}
    if isinstance(config, tuple | list):
        return [as_dict(item) for item in config]
    return config


def setting_names(config_type: type) -> list[str]:
    """The names of a configuration's fields in JSON, where each of its `parts` has a name of its own."""
    names = [field.name for field in fields(config_type)]
    if issubclass(config_type, PartsByName):
        names = [name for name in names if name != "parts"] + [*config_type.part_names]
    return names


def part_as_text(part: Part) -> str:
    """The text that makes the part; `BadInput` for a part that text cannot make."""
    text = repr(part)
    parsers = ((Mask, parse_mask), (Score, parse_score), (Position, parse_position), (Method, parse_method))
    parsers = (*parsers, (Sink, parse_sink))
    for part_type, parse in parsers:
        if isinstance(part, part_type):
            try:
                same = parse(text) == part
            except BadInput:
                same = False
            if not same:
                raise BadInput(
                    f"{text} cannot be saved: its text does not make it again. Use a part without tensors and not of "
                    "your own class in the configuration, and pass this one when you call the model."
                )
    return text


def from_dict(data: Any) -> Any:
    """The configuration that `as_dict` wrote; an unknown type or key is an error that names the nearest.

    >>> config = TextEmbeddingConfig(vocabulary=100, dim=8)
    >>> from_dict(as_dict(config)) == config
    True
    """
    if isinstance(data, list):
        return tuple(from_dict(item) for item in data)
    if not isinstance(data, dict):
        return data
    name = data.get("type")
    name = name if name in CONFIGS else OLD_TYPES.get(str(name), name)
    if name not in CONFIGS:
        raise BadInput(f"The configuration has a part of type {name!r}; known types are {', '.join(sorted(CONFIGS))}.")
    config_type, renamed = CONFIGS[name], OLD_FIELDS.get(name, {})
    data = {renamed.get(key, key): value for key, value in data.items()}
    names = setting_names(config_type)
    for key in data:
        if key != "type" and key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" It has {', '.join(names)}."
            raise BadInput(f"{name} has no setting {key!r}.{hint}")
    return config_type(**{key: from_dict(value) for key, value in data.items() if key != "type"})
