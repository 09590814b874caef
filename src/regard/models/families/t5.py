"""T5 (Raffel et al. 2019), its version 1.1 and models trained from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from ...attention.parts.masks import Causal
from ...attention.parts.scores import Dot
from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.parts.learned import LearnedT5Bias
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import TRANSPOSED, Key, Shapes
from ..config import EncoderDecoderConfig, SequenceConfig, TextConfig, TextToTextConfig
from ..heads import LMHeadConfig

PREFIX = ""
IGNORED = (
    r"(encoder|decoder)\.embed_tokens\.weight",
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    r"lm_head\.weight",
)

FEED_FORWARDS = {
    "relu": ("relu", False),
    "gated-gelu": ("gelu_tanh", True),
    "gated-silu": ("silu", True),
    "gated-relu": ("relu", True),
    "gelu": ("gelu", False),
    "silu": ("silu", False),
}
"""Their name, our activation and whether it is gated."""


def t5(
    *,
    layers: int = 6,
    decoder_layers: int | None = None,
    dim: int = 512,
    heads: int = 8,
    head_dim: int = 64,
    hidden: int = 2048,
    vocabulary: int = 32128,
    buckets: int = 32,
    max_distance: int = 128,
    activation: str = "relu",
    gated: bool = False,
    eps: float = 1e-6,
    dropout: float = 0.1,
    start: int = 0,
    head: LMHeadConfig | Literal["vocabulary"] | None = "vocabulary",
) -> TextToTextConfig:
    """T5-small by default, 60,506,624 parameters.

    Scores are not scaled. A bias by distance, one table for all layers of a side, replaces position embeddings; no
    other layer has a bias. The head is the token embedding over √dim. Version 1.1 is `gated`,
    `activation="gelu_tanh"`, and `head=LMHeadConfig(vocabulary, dim, tied=False)`.

    >>> t5(layers=1).decoder.position
    LearnedT5Bias(bidirectional=False)
    """
    sizes: JsonObject = {
        "dim": dim, "heads": heads, "head_dim": head_dim, "hidden": hidden, "activation": activation, "gated": gated,
        "norm": "rms", "eps": eps, "bias": "", "score": Dot(scale=1.0), "dropout": dropout,
        "attention_dropout": dropout, "hidden_dropout": dropout,
    }  # fmt: skip
    bias = LearnedT5Bias(buckets, max_distance)
    return TextToTextConfig(
        embed=TextEmbeddingConfig(vocabulary, dim, dropout=dropout),
        stack=StackConfig(layers=layers, position=bias, **sizes),
        decoder=StackConfig(
            layers=layers if decoder_layers is None else decoder_layers, cross=True, mask=Causal(),
            position=replace(bias, bidirectional=False), **sizes,
        ),
        head=LMHeadConfig(vocabulary, dim, scale=dim**-0.5) if head == "vocabulary" else head,
        start=start,
        family="t5",
    )  # fmt: skip


def t5_encoder(**settings: Any) -> TextConfig:
    """The encoder of a `t5` alone.

    >>> t5_encoder(layers=2).stack.layers
    2
    """
    whole = t5(**settings)
    return TextConfig(embed=whole.embed, stack=whole.stack, family="t5")


def read(config: JsonObject, shapes: Shapes) -> TextToTextConfig | TextConfig:
    """Our configuration of theirs: an encoder–decoder, or (T5EncoderModel) the encoder alone."""
    feed_forward = config.get("feed_forward_proj", "relu")
    if feed_forward not in FEED_FORWARDS:
        raise Unsupported(f"This T5 has feed_forward_proj {feed_forward!r}; supported are {', '.join(FEED_FORWARDS)}.")
    activation, gated = FEED_FORWARDS[feed_forward]
    settings: JsonObject = {
        "layers": config["num_layers"], "decoder_layers": config.get("num_decoder_layers"), "dim": config["d_model"],
        "heads": config["num_heads"], "head_dim": config["d_kv"], "hidden": config["d_ff"],
        "vocabulary": config["vocab_size"], "buckets": config.get("relative_attention_num_buckets", 32),
        "max_distance": config.get("relative_attention_max_distance", 128), "activation": activation, "gated": gated,
        "eps": config.get("layer_norm_epsilon", 1e-6), "dropout": config.get("dropout_rate", 0.1),
        "start": config.get("decoder_start_token_id") or 0,
    }  # fmt: skip
    if not any(name.startswith("decoder.") for name in shapes):
        return t5_encoder(**settings)
    return t5(**settings, head=read_head(config, shapes))


def read_head(config: JsonObject, shapes: Shapes) -> LMHeadConfig | None:
    """The head: tied and scaled, or neither. With `scale_decoder_outputs`, a tensor of its own means untied."""
    names = config.get("architectures") or []
    if "lm_head.weight" not in shapes and not any("ForConditionalGeneration" in name for name in names):
        return None
    dim, tied = config["d_model"], config.get("tie_word_embeddings", True)
    scaled = config.get("scale_decoder_outputs", tied)
    own = "lm_head.weight" in shapes and ("scale_decoder_outputs" in config or not tied)
    return LMHeadConfig(config["vocab_size"], dim, tied=not own, scale=dim**-0.5 if scaled else 1.0)


def write(config: TextToTextConfig | TextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack = config.stack
    feed_forward = {ours: theirs for theirs, ours in FEED_FORWARDS.items()}.get((stack.activation, stack.gated))
    bias = stack.position
    if feed_forward is None or not isinstance(bias, LearnedT5Bias) or stack.norm != "rms":
        raise BadInput(f"This cannot be written as a T5: {stack}. Change it to the configuration of the t5() preset.")
    return {
        "model_type": "t5",
        "num_layers": stack.layers,
        "d_model": stack.dim,
        "num_heads": stack.heads,
        "d_kv": stack.head_dim,
        "d_ff": stack.hidden,
        "vocab_size": config.embed.vocabulary,
        "relative_attention_num_buckets": bias.buckets,
        "relative_attention_max_distance": bias.max_distance,
        "feed_forward_proj": feed_forward,
        "layer_norm_epsilon": stack.eps,
        "dropout_rate": stack.dropout,
        **write_decoder(config),
    }


def write_decoder(config: TextToTextConfig | TextConfig) -> JsonObject:
    """The fields that depend on the decoder."""
    if isinstance(config, SequenceConfig):
        return {"architectures": ["T5EncoderModel"], "is_encoder_decoder": False}
    head = config.head
    return {
        "architectures": ["T5Model" if head is None else "T5ForConditionalGeneration"],
        "num_decoder_layers": config.decoder.layers,
        "decoder_start_token_id": config.start,
        "pad_token_id": config.start,
        "tie_word_embeddings": head is None or head.tied,
        "scale_decoder_outputs": head is None or head.scale != 1.0,
    }


def keys(config: TextToTextConfig | TextConfig) -> list[Key]:
    sides = [("encoder", "stack", "1")] + (
        [("decoder", "decoder", "2")] if isinstance(config, EncoderDecoderConfig) else []
    )
    table = [Key("shared.weight", "embed.tokens.weight"), Key("lm_head.weight", "head.weight")]
    for theirs, ours, last in sides:
        table += side_keys(theirs + ".", ours + ".", last, config.stack.gated)
    return table


def side_keys(theirs: str, ours: str, last: str, gated: bool) -> list[Key]:
    """The table of one side; `last` is the number of the feed-forward layer in their block."""
    block, own = theirs + "block.{n}.layer.", ours + "blocks.{n}."
    pairs = [("q", "q"), ("k", "k"), ("v", "v"), ("o", "out")]
    feed = [("wi_0", "gate"), ("wi_1", "up"), ("wo", "down")] if gated else [("wi", "up"), ("wo", "down")]
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return [
        Key(theirs + bias, ours + "position.table", TRANSPOSED),
        *(Key(block + f"0.SelfAttention.{a}.{{p}}", own + f"attention.{b}.{{p}}") for a, b in pairs),
        Key(block + "0.layer_norm.{p}", own + "attention_norm.{p}"),
        *(Key(block + f"1.EncDecAttention.{a}.{{p}}", own + f"cross.{b}.{{p}}") for a, b in pairs),
        Key(block + "1.layer_norm.{p}", own + "cross_norm.{p}"),
        *(Key(block + f"{last}.DenseReluDense.{a}.{{p}}", own + f"feed_forward.{b}.{{p}}") for a, b in feed),
        Key(block + last + ".layer_norm.{p}", own + "feed_forward_norm.{p}"),
        Key(theirs + "final_layer_norm.{p}", ours + "norm.{p}"),
    ]
