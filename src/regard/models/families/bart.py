"""BART (Lewis et al. 2019), mBART (Liu et al. 2020) and Pegasus (Zhang et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from ...attention.parts.masks import Causal
from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig, sinusoids
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes, constant
from ..config import TextToTextConfig
from ..heads import LMHeadConfig
from .bert import our_activation, their_activation
from .marian import ONE_ROW, side_keys

PREFIX = "model."
IGNORED = (
    r"(encoder|decoder)\.embed_tokens\.weight",
    r"shared\.weight",
    r"lm_head\.weight",
)
EPS = 1e-5
POSITIONS = 1024
"""How many sinusoids a Pegasus is written with; it is read with any number."""


@dataclass(frozen=True)
class BartVariant:
    """What a `model_type` fixes: `unused` rows before the first learned position, None for sinusoids."""

    name: str
    pre_norm: bool
    unused: int | None = 2
    padding: int = 1
    start: int | None = None
    """The decoder's first token where a folder does not say; else the padding."""


VARIANTS = {
    "bart": BartVariant("Bart", pre_norm=False, start=2),
    "mbart": BartVariant("MBart", pre_norm=True),
    "pegasus": BartVariant("Pegasus", pre_norm=True, unused=None, padding=0),
}


def bart(
    *,
    layers: int = 6,
    decoder_layers: int | None = None,
    dim: int = 768,
    heads: int = 12,
    decoder_heads: int | None = None,
    hidden: int = 3072,
    decoder_hidden: int | None = None,
    vocabulary: int = 50265,
    positions: int = 1024,
    activation: str = "gelu",
    scaled: bool = False,
    start: int = 2,
    padding: int | None = 1,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    hidden_dropout: float = 0.0,
    head: LMHeadConfig | Literal["vocabulary"] | None = "vocabulary",
    family: str = "bart",
) -> TextToTextConfig:
    """BART-base by default, 139,470,681 parameters, of which 50,265 are the bias of the logits.

    Encoder and decoder share the tokens' embedding; each has learned positions and a norm after them. `family`
    "mbart" puts norms before attention, "pegasus" does and has sinusoids instead, without that norm.

    >>> bart(layers=2).decoder_embed.positions
    1024
    """
    variant = VARIANTS[family]
    shared: JsonObject = {
        "activation": activation, "pre_norm": variant.pre_norm, "dropout": dropout, "eps": EPS,
        "attention_dropout": attention_dropout, "hidden_dropout": hidden_dropout,
    }  # fmt: skip
    text: JsonObject = {"scaled": scaled, "padding": padding, "dropout": dropout, "positions": "sinusoidal halves"}
    if variant.unused is not None:
        text |= {"positions": positions, "unused": variant.unused, "norm": EPS}
    embed = TextEmbeddingConfig(vocabulary, dim, **text)
    return TextToTextConfig(
        embed=embed,
        stack=StackConfig(dim, layers, heads, hidden, **shared),
        decoder=StackConfig(
            dim, layers if decoder_layers is None else decoder_layers, decoder_heads or heads, decoder_hidden or hidden,
            cross=True, mask=Causal(), **shared,
        ),
        decoder_embed=None if variant.unused is None else embed,
        head=LMHeadConfig(vocabulary, dim, bias=True) if head == "vocabulary" else head,
        start=start,
        family=family,
        shared_tokens=variant.unused is not None,
    )  # fmt: skip


def mbart(**changes: Any) -> TextToTextConfig:
    """mBART-large 50 (Tang et al. 2020), 611,129,542 parameters; `changes` as in `bart`.

    >>> mbart(layers=1).stack.pre_norm
    True
    """
    sizes = {"layers": 12, "dim": 1024, "heads": 16, "hidden": 4096, "vocabulary": 250054, "activation": "relu"}
    return bart(**{**sizes, "scaled": True, "family": "mbart", **changes})


def pegasus(**changes: Any) -> TextToTextConfig:
    """Pegasus-large, 568,796,007 parameters; `changes` as in `bart`.

    >>> pegasus(layers=1).embed.positions
    'sinusoidal halves'
    """
    sizes = {"layers": 16, "dim": 1024, "heads": 16, "hidden": 4096, "vocabulary": 96103, "activation": "relu"}
    return bart(**{**sizes, "scaled": True, "start": 0, "padding": 0, "family": "pegasus", **changes})


def read(config: JsonObject, shapes: Shapes) -> TextToTextConfig:
    """Our configuration of theirs."""
    family = config["model_type"]
    variant, padding = VARIANTS[family], config.get("pad_token_id", VARIANTS[family].padding)
    if any(name.startswith("classification_head.") or name.startswith("qa_outputs.") for name in shapes):
        raise Unsupported(f"This {variant.name} is a classifier, which is not read here.")
    if not config.get("tie_word_embeddings", True) and any("coder.embed_tokens." in name for name in shapes):
        raise Unsupported(
            f"This {variant.name} has embeddings of tokens for encoder and decoder each (tie_word_embeddings is false "
            "and they are stored apart), which is not read here."
        )
    start = config.get("decoder_start_token_id", variant.start)
    return bart(
        layers=config["encoder_layers"], decoder_layers=config["decoder_layers"], dim=config["d_model"],
        heads=config["encoder_attention_heads"], decoder_heads=config["decoder_attention_heads"],
        hidden=config["encoder_ffn_dim"], decoder_hidden=config["decoder_ffn_dim"], vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
        activation=our_activation(config.get("activation_function", "gelu")),
        scaled=config.get("scale_embedding", False), start=(padding or 0) if start is None else start, padding=padding,
        dropout=config.get("dropout", 0.1), attention_dropout=config.get("attention_dropout", 0.0),
        hidden_dropout=config.get("activation_dropout", 0.0), head=read_head(config, shapes), family=family,
    )  # fmt: skip


def read_head(config: JsonObject, shapes: Shapes) -> LMHeadConfig | None:
    names = config.get("architectures") or []
    if "final_logits_bias" not in shapes and not any("ForConditionalGeneration" in name for name in names):
        return None
    tied = config.get("tie_word_embeddings", True) or "lm_head.weight" not in shapes
    return LMHeadConfig(config["vocab_size"], config["d_model"], tied=tied, bias="final_logits_bias" in shapes)


def write(config: TextToTextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, decoder, embed, head = config.stack, config.decoder, config.embed, config.head
    variant = VARIANTS[str(config.family)]
    if stack.pre_norm != variant.pre_norm or (embed.norm is None) != (variant.unused is None):
        raise BadInput(f"This cannot be written as a {variant.name}: use the configuration of its preset.")
    return {
        "model_type": config.family,
        "architectures": [variant.name + ("Model" if head is None else "ForConditionalGeneration")],
        "encoder_layers": stack.layers,
        "decoder_layers": decoder.layers,
        "d_model": stack.dim,
        "encoder_attention_heads": stack.heads,
        "decoder_attention_heads": decoder.heads,
        "encoder_ffn_dim": stack.hidden,
        "decoder_ffn_dim": decoder.hidden,
        "vocab_size": embed.vocabulary,
        "max_position_embeddings": embed.positions if isinstance(embed.positions, int) else POSITIONS,
        "activation_function": their_activation(stack.activation),
        "scale_embedding": embed.scaled,
        "decoder_start_token_id": config.start,
        "pad_token_id": embed.padding,
        "tie_word_embeddings": head is None or head.tied,
        "dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout,
        "activation_dropout": stack.hidden_dropout,
    }


def keys(config: TextToTextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    sides = [("encoder.", "embed."), ("decoder.", "decoder_embed.")]
    return [
        Key(base + "shared.weight", "embed.tokens.weight"),
        *(position_key(config, base + theirs, ours) for theirs, ours in sides),
        *(Key(base + theirs + "layernorm_embedding.{p}", ours + "norm.{p}") for theirs, ours in sides),
        *side_keys(base + "encoder.", "stack."),
        *side_keys(base + "decoder.", "decoder."),
        Key("lm_head.weight", "head.weight"),
        Key("final_logits_bias", "head.bias", ONE_ROW),
    ]


def position_key(config: TextToTextConfig, theirs: str, ours: str) -> Key:
    """The positions of one side: learned, or sinusoids."""
    if isinstance(config.embed.positions, int):
        return Key(theirs + "embed_positions.weight", ours + "places.weight")
    dim = config.embed.dim
    return constant(theirs + "embed_positions.weight", lambda: sinusoids(torch.arange(POSITIONS), dim, layout="halves"))
