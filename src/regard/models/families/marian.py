"""Marian (Junczys-Dowmunt et al. 2018), the translation models of OPUS-MT."""

from __future__ import annotations

from typing import Literal

from ...attention.parts.masks import Causal
from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes, TensorTransform
from ..config import TextToTextConfig
from ..heads import LMHeadConfig

PREFIX = "model."
IGNORED = (r"(encoder|decoder)\.embed_(tokens|positions)\.weight", r"shared\.weight", r"lm_head\.weight")

ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh"}
POSITIONS = 512
ONE_ROW = TensorTransform(lambda x: (x.squeeze(0),), lambda x: x.unsqueeze(0))


def marian(
    *,
    layers: int = 6,
    decoder_layers: int | None = None,
    dim: int = 512,
    heads: int = 8,
    decoder_heads: int | None = None,
    hidden: int = 2048,
    decoder_hidden: int | None = None,
    vocabulary: int = 58101,
    target_vocabulary: int | None = None,
    activation: str = "silu",
    scaled: bool = True,
    start: int = 58100,
    padding: int | None = 58100,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    hidden_dropout: float = 0.0,
    head: LMHeadConfig | Literal["vocabulary"] | None = "vocabulary",
) -> TextToTextConfig:
    """OPUS-MT English–German by default, 73,944,309 parameters, of which 58,101 are the bias of the logits.

    One vocabulary for both sides unless `target_vocabulary` gives the decoder one of its own. The decoder begins with
    the padding token.

    >>> marian(layers=2).decoder.layers
    2
    """
    own = target_vocabulary is not None
    shared: JsonObject = {
        "activation": activation, "pre_norm": False, "dropout": dropout, "attention_dropout": attention_dropout,
        "hidden_dropout": hidden_dropout,
    }  # fmt: skip
    text: JsonObject = {"positions": "sinusoidal halves", "scaled": scaled, "padding": padding, "dropout": dropout}
    words = target_vocabulary if target_vocabulary is not None else vocabulary
    return TextToTextConfig(
        embed=TextEmbeddingConfig(vocabulary, dim, **text),
        stack=StackConfig(dim, layers, heads, hidden, **shared),
        decoder=StackConfig(
            dim, layers if decoder_layers is None else decoder_layers, decoder_heads or heads, decoder_hidden or hidden,
            cross=True, mask=Causal(), **shared,
        ),
        decoder_embed=TextEmbeddingConfig(words, dim, **text) if own else None,
        head=LMHeadConfig(words, dim, bias=True) if head == "vocabulary" else head,
        start=start,
        family="marian",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> TextToTextConfig:
    """Our configuration of theirs."""
    activation = config.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise Unsupported(f"This Marian has the activation {activation!r}; supported are {', '.join(ACTIVATIONS)}.")
    own = not config.get("share_encoder_decoder_embeddings", True)
    words = (config.get("decoder_vocab_size") or config["vocab_size"]) if own else config["vocab_size"]
    return marian(
        layers=config["encoder_layers"], decoder_layers=config["decoder_layers"], dim=config["d_model"],
        heads=config["encoder_attention_heads"], decoder_heads=config["decoder_attention_heads"],
        hidden=config["encoder_ffn_dim"], decoder_hidden=config["decoder_ffn_dim"], vocabulary=config["vocab_size"],
        target_vocabulary=words if own else None, activation=ACTIVATIONS[activation],
        scaled=config.get("scale_embedding", False), start=config["decoder_start_token_id"],
        padding=config.get("pad_token_id"), dropout=config.get("dropout", 0.1),
        attention_dropout=config.get("attention_dropout", 0.0), hidden_dropout=config.get("activation_dropout", 0.0),
        head=read_head(config, shapes, words),
    )  # fmt: skip


def read_head(config: JsonObject, shapes: Shapes, words: int) -> LMHeadConfig | None:
    if "final_logits_bias" not in shapes:
        return None
    tied = config.get("tie_word_embeddings", True) or "lm_head.weight" not in shapes
    return LMHeadConfig(words, config["d_model"], tied=tied, bias=True)


def write(config: TextToTextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, decoder, embed, head = config.stack, config.decoder, config.embed, config.head
    if embed.positions != "sinusoidal halves" or stack.pre_norm or (head is not None and not head.bias):
        raise BadInput("This cannot be written as a Marian: change it to the configuration of the marian() preset.")
    own = config.decoder_embed
    return {
        "model_type": "marian",
        "architectures": ["MarianModel" if head is None else "MarianMTModel"],
        "encoder_layers": stack.layers,
        "decoder_layers": decoder.layers,
        "d_model": stack.dim,
        "encoder_attention_heads": stack.heads,
        "decoder_attention_heads": decoder.heads,
        "encoder_ffn_dim": stack.hidden,
        "decoder_ffn_dim": decoder.hidden,
        "vocab_size": embed.vocabulary,
        "decoder_vocab_size": embed.vocabulary if own is None else own.vocabulary,
        "share_encoder_decoder_embeddings": own is None,
        "tie_word_embeddings": head is None or head.tied,
        "activation_function": {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}[stack.activation],
        "scale_embedding": embed.scaled,
        "decoder_start_token_id": config.start,
        "pad_token_id": embed.padding,
        "max_position_embeddings": POSITIONS,
        "dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout,
        "activation_dropout": stack.hidden_dropout,
        "static_position_embeddings": True,
    }


def keys(config: TextToTextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    own = config.decoder_embed is not None
    return [
        Key(base + ("encoder.embed_tokens.weight" if own else "shared.weight"), "embed.tokens.weight"),
        Key(base + "decoder.embed_tokens.weight", "decoder_embed.tokens.weight"),
        *side_keys(base + "encoder.", "stack."),
        *side_keys(base + "decoder.", "decoder."),
        Key("lm_head.weight", "head.weight"),
        Key("final_logits_bias", "head.bias", ONE_ROW),
    ]


def side_keys(theirs: str, ours: str, norm: str = "layer_norm") -> list[Key]:
    """The table of one side; those of Whisper, BART and OPT have the same names, but for the final `norm`."""
    block, own = theirs + "layers.{n}.", ours + "blocks.{n}."
    pairs = [("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "out")]
    return [
        *(Key(block + f"self_attn.{a}.{{p}}", own + f"attention.{b}.{{p}}") for a, b in pairs),
        Key(block + "self_attn_layer_norm.{p}", own + "attention_norm.{p}"),
        *(Key(block + f"encoder_attn.{a}.{{p}}", own + f"cross.{b}.{{p}}") for a, b in pairs),
        Key(block + "encoder_attn_layer_norm.{p}", own + "cross_norm.{p}"),
        Key(block + "fc1.{p}", own + "feed_forward.up.{p}"),
        Key(block + "fc2.{p}", own + "feed_forward.down.{p}"),
        Key(block + "final_layer_norm.{p}", own + "feed_forward_norm.{p}"),
        Key(theirs + norm + ".{p}", ours + "norm.{p}"),
    ]
