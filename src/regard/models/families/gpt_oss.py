"""gpt-oss (OpenAI 2025): sinks, windows in every other layer, and a mixture of experts."""

from __future__ import annotations

from typing import Literal

import torch

from ...attention.parts.positions import Position
from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.experts import ExpertsConfig
from ...nn.parts.learned import LearnedSink
from ...nn.parts.rotary import YarnRotary
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes, TensorTransform
from ..checkpoint.rope import read_rotary, write_rope, write_rotary
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig, is_tied
from .llama import architecture_of, make_layer_mask, read_head, read_mask_window

PREFIX = "model."
IGNORED = (r"lm_head\.weight",)

YARN = YarnRotary(150000.0, factor=32.0, original=4096, truncate=False)
ROPE = write_rope(YARN, 64)
"""What transformers takes where a folder does not say."""

ALTERNATE = TensorTransform(
    lambda x: (x[..., ::2], x[..., 1::2]), lambda gate, up: torch.stack([gate, up], dim=-1).flatten(-2)
)
"""Their tensor has the columns of two of ours in turn."""


def gpt_oss(
    *,
    layers: int = 24,
    dim: int = 2880,
    heads: int = 64,
    kv_heads: int = 8,
    head_dim: int = 64,
    hidden: int = 2880,
    experts: int = 32,
    active: int = 4,
    vocabulary: int = 201088,
    position: Position = YARN,
    window: int = 128,
    layer_types: tuple[str, ...] | None = None,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: str = "qkvo",
    eps: float = 1e-5,
    tied: bool = False,
    padding: int | None = None,
    dropout: float = 0.0,
    head: HeadConfig | Literal["vocabulary"] | None = "vocabulary",
) -> TextConfig:
    """gpt-oss 20B by default, 20,914,757,184 parameters.

    Each head has a logit that takes weight without a value (`LearnedSink`); every other layer has a `window`; `active`
    of `experts` compute a token.

    >>> gpt_oss(layers=2).stack.experts
    ExpertsConfig(count=32, active=4, alpha=1.702, limit=7.0)
    """
    types = layer_types or tuple("full_attention" if n % 2 else "sliding_attention" for n in range(layers))
    masks = tuple(make_layer_mask(window if layer_type == "sliding_attention" else None) for layer_type in types)
    return TextConfig(
        embed=TextEmbeddingConfig(vocabulary, dim, padding=padding),
        stack=StackConfig(
            dim, layers, heads, hidden, kv_heads, head_dim, activation="silu", norm="rms", eps=eps, bias=bias,
            position=position, mask=masks, sink=LearnedSink(), attention_dropout=dropout,
            experts=ExpertsConfig(experts, active, alpha, limit),
        ),
        head=LMHeadConfig(vocabulary, dim, tied=tied) if head == "vocabulary" else head,
        family="gpt_oss",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    if config.get("quantization_config") or any(name.endswith("_blocks") for name in shapes):
        raise Unsupported(
            "This gpt-oss has quantised experts (MXFP4), which are not read here. Load it with transformers, which "
            "dequantises them, and save it with save_pretrained."
        )
    config = config if "rope_parameters" in config or "rope_scaling" in config else {**config, "rope_parameters": ROPE}
    layers, head_dim = config["num_hidden_layers"], config.get("head_dim", 64)
    types = config.get("layer_types") or ["full_attention" if n % 2 else "sliding_attention" for n in range(layers)]
    return gpt_oss(
        layers=layers, dim=config["hidden_size"], heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"], head_dim=head_dim, hidden=config["intermediate_size"],
        experts=config["num_local_experts"], active=config["num_experts_per_tok"], vocabulary=config["vocab_size"],
        position=read_rotary(config, head_dim, base=150000.0), window=config.get("sliding_window") or 128,
        layer_types=tuple(types), alpha=config.get("swiglu_alpha", 1.702), limit=config.get("swiglu_limit", 7.0),
        bias="qkvo" if config.get("attention_bias", True) else "", eps=config.get("rms_norm_eps", 1e-5),
        padding=config.get("pad_token_id"), dropout=config.get("attention_dropout", 0.0),
        head=read_head(config, shapes),
    )  # fmt: skip


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, head, experts = config.stack, config.head, config.stack.experts
    windows = [read_mask_window(mask) for mask in stack.layer_masks(training=False)]
    sizes = {window for window in windows if window is not None}
    if experts is None or not isinstance(stack.sink, LearnedSink) or len(sizes) > 1:
        raise BadInput("This cannot be written as a gpt-oss: change it to the configuration of the gpt_oss() preset.")
    head_dim = stack.head_dim or stack.dim // stack.heads
    return {
        "model_type": "gpt_oss",
        "architectures": ["GptOss" + architecture_of(head)],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "num_key_value_heads": stack.kv_heads or stack.heads,
        "head_dim": head_dim,
        "intermediate_size": stack.hidden,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.active,
        "swiglu_alpha": experts.alpha,
        "swiglu_limit": experts.limit,
        "vocab_size": config.embed.vocabulary,
        "pad_token_id": config.embed.padding,
        "sliding_window": sizes.pop() if sizes else 128,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "rms_norm_eps": stack.eps,
        "attention_bias": "q" in stack.bias,
        "attention_dropout": stack.attention_dropout,
        "tie_word_embeddings": is_tied(head, False),
        "rope_parameters": write_rotary(stack.position, head_dim)["rope_parameters"],
        **({"num_labels": head.classes} if isinstance(head, ClassificationHeadConfig) else {}),
    }


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.", base + "layers.{n}."
    experts, own = theirs + "mlp.experts.", block + "feed_forward."
    return [
        Key(base + "embed_tokens.weight", "embed.tokens.weight"),
        Key(theirs + "input_layernorm.{p}", block + "attention_norm.{p}"),
        *(Key(theirs + f"self_attn.{x}_proj.{{p}}", block + f"attention.{x}.{{p}}") for x in "qkv"),
        Key(theirs + "self_attn.o_proj.{p}", block + "attention.out.{p}"),
        Key(theirs + "self_attn.sinks", block + "attention.sink.logits"),
        Key(theirs + "post_attention_layernorm.{p}", block + "feed_forward_norm.{p}"),
        Key(theirs + "mlp.router.{p}", own + "router.{p}"),
        Key(experts + "gate_up_proj", (own + "gate", own + "up"), ALTERNATE),
        Key(experts + "gate_up_proj_bias", (own + "gate_bias", own + "up_bias"), ALTERNATE),
        Key(experts + "down_proj", own + "down"),
        Key(experts + "down_proj_bias", own + "down_bias"),
        Key(base + "norm.{p}", "stack.norm.{p}"),
        Key("lm_head.weight", "head.weight"),
        Key("score.{p}", "head.out.{p}"),
    ]
