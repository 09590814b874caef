"""A small token classifier over any stack."""

from __future__ import annotations

from typing import Literal

from ...models.config import SequenceConfig
from ...models.heads import ClassificationHeadConfig
from ...models.interfaces import LayersConfig
from ...models.model import SequenceModel
from ...nn.embeddings.text import TextEmbeddingConfig


def build_tagger(
    stack: LayersConfig, vocabulary: int, classes: int, positions: int | Literal["sinusoidal"] | None = None
) -> SequenceModel:
    """A model that classifies each token, over any stack's configuration.

    >>> import torch
    >>> from regard.nn import ConvolutionConfig
    >>> model = build_tagger(ConvolutionConfig(dim=8, layers=1), vocabulary=5, classes=3)
    >>> model(tokens=torch.tensor([[0, 4, 2, 1]])).logits.shape
    torch.Size([1, 4, 3])
    """
    embed = TextEmbeddingConfig(vocabulary, stack.dim, positions=positions, scaled=True)
    return SequenceConfig(embed, stack, head=ClassificationHeadConfig(classes, stack.dim, per_token=True)).build()
