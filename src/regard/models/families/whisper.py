"""Whisper (Radford et al. 2022)."""

from __future__ import annotations

from typing import Literal

from ...attention.parts.masks import Causal
from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.sound_embedding import SoundEmbeddingConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.old_names import accept_old_names
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import SpeechToTextConfig
from ..heads import LMHeadConfig
from .marian import ACTIVATIONS, side_keys

PREFIX = "model."
IGNORED = (r"proj_out\.weight",)


@accept_old_names(places="positions", sound_places="sound_positions")
def whisper(
    *,
    layers: int = 4,
    decoder_layers: int | None = None,
    dim: int = 384,
    heads: int = 6,
    decoder_heads: int | None = None,
    hidden: int = 1536,
    decoder_hidden: int | None = None,
    vocabulary: int = 51865,
    bins: int = 80,
    sound_positions: int = 1500,
    positions: int = 448,
    activation: str = "gelu",
    start: int = 50258,
    padding: int | None = 50257,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    hidden_dropout: float = 0.0,
    head: LMHeadConfig | Literal["vocabulary"] | None = "vocabulary",
) -> SpeechToTextConfig:
    """Whisper tiny by default: 37,184,640 parameters, and 576,000 sinusoids stored with them.

    `sound [batch, frames, bins]` is Whisper's log-mel spectrogram (`log_mel`), at most 2 · `sound_positions`
    frames. Keys have no bias.

    >>> whisper(layers=2).stack.bias
    'qvof'
    """
    shared: JsonObject = {
        "activation": activation, "bias": "qvof", "dropout": dropout, "attention_dropout": attention_dropout,
        "hidden_dropout": hidden_dropout,
    }  # fmt: skip
    return SpeechToTextConfig(
        embed=SoundEmbeddingConfig(bins, dim, stack=None, positions=sound_positions, dropout=dropout),
        stack=StackConfig(dim, layers, heads, hidden, **shared),
        decoder=StackConfig(
            dim, layers if decoder_layers is None else decoder_layers, decoder_heads or heads, decoder_hidden or hidden,
            cross=True, mask=Causal(), **shared,
        ),
        decoder_embed=TextEmbeddingConfig(vocabulary, dim, positions=positions, padding=padding, dropout=dropout),
        head=LMHeadConfig(vocabulary, dim) if head == "vocabulary" else head,
        start=start,
        family="whisper",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> SpeechToTextConfig:
    """Our configuration of theirs."""
    activation = config.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise Unsupported(f"This Whisper has the activation {activation!r}; supported are {', '.join(ACTIVATIONS)}.")
    if not any(name.removeprefix(PREFIX).startswith("decoder.") for name in shapes):
        raise Unsupported("This Whisper has no decoder (a classifier of sounds), which is not read here.")
    return whisper(
        layers=config["encoder_layers"], decoder_layers=config["decoder_layers"], dim=config["d_model"],
        heads=config["encoder_attention_heads"], decoder_heads=config["decoder_attention_heads"],
        hidden=config["encoder_ffn_dim"], decoder_hidden=config["decoder_ffn_dim"], vocabulary=config["vocab_size"],
        bins=config["num_mel_bins"], sound_positions=config["max_source_positions"],
        positions=config["max_target_positions"],
        activation=ACTIVATIONS[activation], start=config["decoder_start_token_id"],
        padding=config.get("pad_token_id"), dropout=config.get("dropout", 0.0),
        attention_dropout=config.get("attention_dropout", 0.0), hidden_dropout=config.get("activation_dropout", 0.0),
        head=read_head(config, shapes),
    )  # fmt: skip


def read_head(config: JsonObject, shapes: Shapes) -> LMHeadConfig | None:
    names = config.get("architectures") or []
    if "proj_out.weight" not in shapes and not any("ForConditionalGeneration" in name for name in names):
        return None
    tied = config.get("tie_word_embeddings", True) or "proj_out.weight" not in shapes
    return LMHeadConfig(config["vocab_size"], config["d_model"], tied=tied)


def write(config: SpeechToTextConfig) -> JsonObject:
    """Their configuration of ours."""
    embed, text, stack, decoder, head = config.embed, config.decoder_embed, config.stack, config.decoder, config.head
    if (
        not isinstance(embed, SoundEmbeddingConfig)
        or text is None
        or embed.stack is not None
        or stack.bias != "qvof"
        or not stack.pre_norm
    ):
        raise BadInput("This cannot be written as a Whisper: change it to the configuration of the whisper() preset.")
    return {
        "model_type": "whisper",
        "architectures": ["WhisperModel" if head is None else "WhisperForConditionalGeneration"],
        "encoder_layers": stack.layers,
        "decoder_layers": decoder.layers,
        "d_model": stack.dim,
        "encoder_attention_heads": stack.heads,
        "decoder_attention_heads": decoder.heads,
        "encoder_ffn_dim": stack.hidden,
        "decoder_ffn_dim": decoder.hidden,
        "vocab_size": text.vocabulary,
        "num_mel_bins": embed.bins,
        "max_source_positions": embed.positions,
        "max_target_positions": text.positions,
        "activation_function": {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}[stack.activation],
        "decoder_start_token_id": config.start,
        "pad_token_id": text.padding,
        "tie_word_embeddings": head is None or head.tied,
        "dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout,
        "activation_dropout": stack.hidden_dropout,
    }


def keys(config: SpeechToTextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    return [
        Key(base + "encoder.conv1.{p}", "embed.frames.conv1.{p}"),
        Key(base + "encoder.conv2.{p}", "embed.frames.conv2.{p}"),
        Key(base + "encoder.embed_positions.weight", "embed.places.table"),
        Key(base + "decoder.embed_tokens.weight", "decoder_embed.tokens.weight"),
        Key(base + "decoder.embed_positions.weight", "decoder_embed.places.weight"),
        *side_keys(base + "encoder.", "stack."),
        *side_keys(base + "decoder.", "decoder."),
        Key("proj_out.weight", "head.weight"),
    ]
