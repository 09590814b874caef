"""The hierarchical model of a text classifier: which tokens end a sentence, and its configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import BadInput
from ...models.heads import ClassificationHeadConfig
from ...models.hierarchical import HierarchicalConfig, HierarchicalLayersConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ..architecture import Architecture
from ..inputs.text import TextInputs

if TYPE_CHECKING:
    from ..inputs.audio import AudioInputs
    from ..inputs.images import ImageInputs

SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？", "；", "\n")


def hierarchical_config(
    inputs: TextInputs | ImageInputs | AudioInputs, a: Architecture, classes: int
) -> HierarchicalConfig:
    """Words → sentences → document; raises `BadInput` for inputs that have no sentences."""
    if not isinstance(inputs, TextInputs):
        raise BadInput(f"model=hierarchical reads the sentences of texts; these files hold {inputs.kind}.")
    embed, _ = inputs.layer_configs(replace(a, model="transformer"))
    if not isinstance(embed, TextEmbeddingConfig):
        raise BadInput("model=hierarchical reads words without features. Give max_affix=0 and char_ngrams=0.")
    vocabulary = inputs.tokenizer.backend.get_vocab()
    ends = tuple(vocabulary[sign] for sign in SENTENCE_ENDS if sign in vocabulary)
    stack = HierarchicalLayersConfig(a.dim, a.layers, a.heads, a.hidden, a.dropout)
    return HierarchicalConfig(embed, stack, ClassificationHeadConfig(classes, a.dim, dropout=a.dropout), ends)
