"""The Transformer of 2017 (Vaswani et al., "Attention is all you need")."""

from __future__ import annotations

from typing import Any

from ...attention.parts.masks import Causal
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ..checkpoint.files import JsonObject
from ..config import TextToTextConfig
from ..heads import LMHeadConfig


def transformer(
    *,
    layers: int = 6,
    decoder_layers: int | None = None,
    dim: int = 512,
    heads: int = 8,
    hidden: int | None = None,
    vocabulary: int = 37000,
    target_vocabulary: int | None = None,
    pre_norm: bool = False,
    activation: str = "relu",
    start: int = 0,
    padding: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    tied: bool = True,
) -> TextToTextConfig:
    """The paper's base model by default: 63,082,496 parameters, one embedding for source, target and head.

    N, d_model, h, d_ff, P_drop are layers, dim, heads, hidden (4·dim unless given), dropout. Words are scaled by √dim
    and positions are interleaved sinusoids; the norm follows each residual (`pre_norm` puts it before, and adds a final
    one). `target_vocabulary` gives the decoder an embedding of its own, `tied=False` the head a matrix of its own.
    `start` is the first token of a target, `padding` the token that fills rows.

    >>> transformer(layers=2, dim=64, heads=4).decoder.mask
    Causal()
    """
    text: JsonObject = {"positions": "sinusoidal", "scaled": True, "padding": padding, "dropout": dropout}
    shared: JsonObject = {
        "dim": dim, "heads": heads, "hidden": hidden, "activation": activation, "pre_norm": pre_norm,
        "dropout": dropout, "attention_dropout": attention_dropout,
    }  # fmt: skip
    own = None if target_vocabulary is None else TextEmbeddingConfig(target_vocabulary, dim, **text)
    below = layers if decoder_layers is None else decoder_layers
    return TextToTextConfig(
        embed=TextEmbeddingConfig(vocabulary, dim, **text),
        stack=StackConfig(layers=layers, **shared),
        decoder=StackConfig(layers=below, cross=True, mask=Causal(), **shared),
        decoder_embed=own,
        head=LMHeadConfig(vocabulary if own is None else own.vocabulary, dim, tied=tied),
        start=start,
    )


def transformer_small(*, vocabulary: int = 8000, **changes: Any) -> TextToTextConfig:
    """A `transformer` for some ten thousand sentence pairs and one CPU: 4 + 4 layers of 256, pre-norm.

    >>> sum(p.numel() for p in transformer_small().build().parameters())
    9421824
    """
    return transformer(vocabulary=vocabulary, **{"layers": 4, "dim": 256, "heads": 4, "pre_norm": True, **changes})
