"""Moonshine (Jeffries et al. 2024): speech recognition from samples, with rotary positions."""

from __future__ import annotations

from typing import Literal

from ...attention.parts.masks import Causal
from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.embeddings.waveform import MoonshineEmbeddingConfig
from ...nn.parts.rotary import ScaledRotary
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes, stack_of
from ..config import EncoderDecoderConfig
from ..heads import LMHeadConfig
from .bert import our_activation, their_activation

PREFIX = "model."
IGNORED = (r"proj_out\.weight",)

MoonshineConfig = EncoderDecoderConfig[MoonshineEmbeddingConfig, StackConfig]
PARTIAL = 0.9
"""The share of a head that is rotated where a folder has none."""


def moonshine(
    *,
    layers: int = 6,
    decoder_layers: int | None = None,
    dim: int = 288,
    heads: int = 8,
    hidden: int = 1152,
    vocabulary: int = 32_768,
    base: float = 10000.0,
    rotated: int | None = None,
    activation: str = "gelu",
    decoder_activation: str = "silu",
    bias: bool = False,
    start: int = 1,
    padding: int | None = None,
    attention_dropout: float = 0.0,
    head: LMHeadConfig | Literal["vocabulary"] | None = "vocabulary",
) -> MoonshineConfig:
    """Moonshine tiny by default, 27,092,736 parameters.

    `sound [batch, samples]` are samples at 16 kHz. The first `rotated` coordinates of each head are turned in
    interleaved pairs (an even number of at most 0.9 · head_dim unless given). The decoder's feed-forward network is
    gated. Norms have no bias; `bias` gives those of q, k and v one.

    >>> moonshine(layers=2).decoder.gated
    True
    """
    rotated = 2 * int(PARTIAL * (dim // heads) / 2) if rotated is None else rotated
    shared: JsonObject = {
        "norm": "layer_no_bias", "bias": "qkvf" if bias else "f", "attention_dropout": attention_dropout,
        "position": ScaledRotary(base, rotated, layout="interleaved"),
    }  # fmt: skip
    return MoonshineConfig(
        embed=MoonshineEmbeddingConfig(dim),
        stack=StackConfig(dim, layers, heads, hidden, activation=activation, **shared),
        decoder=StackConfig(
            dim, layers if decoder_layers is None else decoder_layers, heads, hidden, activation=decoder_activation,
            gated=True, cross=True, mask=Causal(), **shared,
        ),
        decoder_embed=TextEmbeddingConfig(vocabulary, dim, padding=padding),
        head=LMHeadConfig(vocabulary, dim) if head == "vocabulary" else head,
        start=start,
        family="moonshine",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> MoonshineConfig:
    """Our configuration of theirs."""
    dim, heads = config["hidden_size"], config["encoder_num_attention_heads"]
    for name in ("decoder_num_attention_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads"):
        if (config.get(name) or heads) != heads:
            raise Unsupported(
                f"This Moonshine has {name} = {config[name]} beside {heads} heads in its encoder; only equal numbers "
                "are read here, as transformers computes no others."
            )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (scaling := rope.get("rope_type") or "default") != "default":
        raise Unsupported(f"This Moonshine scales its rotary positions by {scaling!r}, which is not read here.")
    share = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or PARTIAL
    rotated = int(dim // heads * share)
    if rotated % 2:
        raise Unsupported(
            f"This Moonshine rotates {rotated} of {dim // heads} coordinates, and pairs need an even number. Change "
            "partial_rotary_factor."
        )
    return moonshine(
        layers=config["encoder_num_hidden_layers"], decoder_layers=config["decoder_num_hidden_layers"], dim=dim,
        heads=heads, hidden=config["intermediate_size"], vocabulary=config["vocab_size"],
        base=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0), rotated=rotated,
        activation=our_activation(config.get("encoder_hidden_act", "gelu")),
        decoder_activation=our_activation(config.get("decoder_hidden_act", "silu")),
        bias=config.get("attention_bias", False), start=config.get("decoder_start_token_id", 1),
        padding=config.get("pad_token_id"), attention_dropout=config.get("attention_dropout", 0.0),
        head=read_head(config, shapes),
    )  # fmt: skip


def read_head(config: JsonObject, shapes: Shapes) -> LMHeadConfig | None:
    names = config.get("architectures") or []
    if "proj_out.weight" not in shapes and not any("ForConditionalGeneration" in name for name in names):
        return None
    tied = config.get("tie_word_embeddings", True) or "proj_out.weight" not in shapes
    return LMHeadConfig(config["vocab_size"], config["hidden_size"], tied=tied)


def write(config: MoonshineConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, decoder, text, head = config.stack, config.decoder, config.decoder_embed, config.head
    position = stack.position
    if text is None or not isinstance(position, ScaledRotary) or position.layout != "interleaved":
        raise BadInput("This cannot be written as a Moonshine: change it to the configuration of moonshine().")
    rotated, head_dim = position.dim or 0, stack.dim // stack.heads
    return {
        "model_type": "moonshine",
        "architectures": ["MoonshineModel" if head is None else "MoonshineForConditionalGeneration"],
        "encoder_num_hidden_layers": stack.layers,
        "decoder_num_hidden_layers": decoder.layers,
        "hidden_size": stack.dim,
        "encoder_num_attention_heads": stack.heads,
        "decoder_num_attention_heads": decoder.heads,
        "intermediate_size": stack.hidden,
        "vocab_size": text.vocabulary,
        "encoder_hidden_act": their_activation(stack.activation),
        "decoder_hidden_act": their_activation(decoder.activation),
        "attention_bias": "q" in stack.bias,
        "attention_dropout": stack.attention_dropout,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": position.base,
            "partial_rotary_factor": (rotated + 0.5) / head_dim,  # rounded down when it is read
        },
        "decoder_start_token_id": config.start,
        "pad_token_id": text.padding,
        "tie_word_embeddings": head is None or head.tied,
    }


def keys(config: MoonshineConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    encoder, decoder, block = base + "encoder.", base + "decoder.layers.{n}.", "decoder.blocks.{n}."
    names = [("input_layernorm", "attention_norm"), ("post_attention_layernorm", "cross_norm")]
    gated = tuple(block + f"feed_forward.{x}.{{p}}" for x in ("up", "gate"))
    return [
        *(Key(encoder + f"conv{n}.{{p}}", f"embed.conv{n}.{{p}}") for n in (1, 2, 3)),
        Key(encoder + "groupnorm.{p}", "embed.norm.{p}"),
        *attention_keys(encoder + "layers.{n}.self_attn.", "stack.blocks.{n}.attention."),
        Key(encoder + "layers.{n}.input_layernorm.weight", "stack.blocks.{n}.attention_norm.weight"),
        Key(encoder + "layers.{n}.post_attention_layernorm.weight", "stack.blocks.{n}.feed_forward_norm.weight"),
        Key(encoder + "layers.{n}.mlp.fc1.{p}", "stack.blocks.{n}.feed_forward.up.{p}"),
        Key(encoder + "layers.{n}.mlp.fc2.{p}", "stack.blocks.{n}.feed_forward.down.{p}"),
        Key(encoder + "layer_norm.weight", "stack.norm.weight"),
        Key(base + "decoder.embed_tokens.weight", "decoder_embed.tokens.weight"),
        *attention_keys(decoder + "self_attn.", block + "attention."),
        *attention_keys(decoder + "encoder_attn.", block + "cross."),
        *(Key(decoder + f"{a}.weight", block + f"{b}.weight") for a, b in names),
        Key(decoder + "final_layernorm.weight", block + "feed_forward_norm.weight"),
        Key(decoder + "mlp.fc1.{p}", gated, stack_of(2)),
        Key(decoder + "mlp.fc2.{p}", block + "feed_forward.down.{p}"),
        Key(base + "decoder.norm.weight", "decoder.norm.weight"),
        Key("proj_out.weight", "head.weight"),
    ]


def attention_keys(theirs: str, ours: str) -> list[Key]:
    return [Key(f"{theirs}{x}_proj.{{p}}", ours + ("out" if x == "o" else x) + ".{p}") for x in "qkvo"]
