"""Transformer-XL (Dai et al. 2019): a decoder whose segments attend to earlier ones."""

from __future__ import annotations

from typing import Any, Literal

from ...attention.parts.masks import Causal
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.parts.learned import LearnedTransformerXL
from ..config import TextConfig
from ..heads import HeadConfig, LMHeadConfig


def transformer_xl(
    *,
    layers: int = 12,
    dim: int = 512,
    heads: int = 8,
    head_dim: int | None = None,
    hidden: int = 2048,
    vocabulary: int = 204,
    memory: int = 512,
    untied: bool = False,
    reach: int | None = None,
    activation: str = "relu",
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    head: HeadConfig | Literal["vocabulary"] | None = "vocabulary",
) -> TextConfig:
    """Transformer-XL for enwik8's 204 bytes, the paper's model of 12 layers by default: 41,055,436 parameters.

    A layer has dim² each for queries, keys, values, distances and output (heads · head_dim = dim), the feed-forward
    layers with their biases and two norms; u and v are shared by all layers, or each layer's own if `untied`; the
    embedding is the matrix of the head, which has a bias. n_layer, d_model, n_head, d_head, d_inner, mem_len, clamp_len
    and untie_r are layers, dim, heads, head_dim, hidden, memory, reach and untied.

    Each call returns a cache of the last `memory` tokens: `model(tokens=next, cache=out.cache)` continues. In training
    it holds the layers' inputs, without gradient; in evaluation their keys and values, which gives the same output.

    >>> config = transformer_xl(layers=2, dim=16, heads=2, hidden=32, vocabulary=11, memory=8)
    >>> config.stack.position, config.stack.memory_length
    (LearnedTransformerXL(dim=16, layers=2), 8)
    """
    return TextConfig(
        embed=TextEmbeddingConfig(vocabulary, dim, scaled=True, dropout=dropout),
        stack=StackConfig(
            dim, layers, heads, hidden, head_dim=head_dim, activation=activation, pre_norm=False, bias="f",
            position=LearnedTransformerXL(dim, layers, untied, reach), mask=Causal(),
            memory_length=memory, dropout=dropout, attention_dropout=attention_dropout, hidden_dropout=dropout,
        ),
        head=LMHeadConfig(vocabulary, dim, bias=True) if head == "vocabulary" else head,
    )  # fmt: skip


def transformer_xl_large(**changes: Any) -> TextConfig:
    """The paper's largest model for enwik8, of 24 layers: 277,278,924 parameters.

    >>> transformer_xl_large().stack.layers
    24
    """
    sizes = {"layers": 24, "dim": 1024, "heads": 8, "head_dim": 128, "hidden": 3072, "memory": 768, "untied": True}
    return transformer_xl(**{**sizes, "dropout": 0.15, "attention_dropout": 0.15, **changes})
