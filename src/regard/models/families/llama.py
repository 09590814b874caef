"""Llama (Touvron et al. 2023) and models of its architecture: Mistral, Qwen2 and 3, SmolLM, OLMo 2, Phi-3."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...attention.parts.mask import And, Mask
from ...attention.parts.masks import Causal, Window
from ...attention.parts.positions import Position, Rotary
from ...errors import BadInput, Unsupported
from ...nn.block import Residual, StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.parts.layer_positions import LayerPositions
from ...nn.parts.rotary import RotarySpec
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes, split_of, stack_of
from ..checkpoint.rope import read_rotary, write_rotary
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig, is_tied
from .bert import our_activation, their_activation

PREFIX = "model."
IGNORED = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"lm_head\.weight")

ROTARY = Rotary()


@dataclass(frozen=True)
class LlamaVariant:
    """What a `model_type` of Llama's architecture fixes.

    `bias` and `choices` are the biases that it always has and those that its configuration chooses ("a" attention, "f"
    feed-forward network); `windows` says whether all layers have one window, or each its own.
    """

    name: str
    bias: str = ""
    choices: str = ""
    windows: Literal["none", "all", "layers"] = "none"
    qk_norm: Literal["head", "all"] | None = None
    residual: Residual = "pre"
    base: float = 10000.0
    partial_rotary: bool = False
    defaults: JsonObject = field(default_factory=dict)
    """What transformers takes where a folder does not say."""


VARIANTS = {
    "llama": LlamaVariant("Llama", choices="af"),
    "mistral": LlamaVariant("Mistral", windows="all", defaults={"num_key_value_heads": 8, "sliding_window": 4096}),
    "qwen2": LlamaVariant("Qwen2", bias="qkv", windows="layers"),
    "qwen3": LlamaVariant("Qwen3", choices="a", windows="layers", qk_norm="head"),
    "smollm3": LlamaVariant(
        "SmolLM3",
        choices="af",
        windows="layers",
        base=2000000.0,
        defaults={"tie_word_embeddings": True, "num_key_value_heads": 4, "pad_token_id": 128004},
    ),
    "olmo2": LlamaVariant(
        "Olmo2", choices="a", qk_norm="all", residual="output", defaults={"rms_norm_eps": 1e-5, "pad_token_id": 1}
    ),
    "phi3": LlamaVariant(
        "Phi3", windows="all", partial_rotary=True, defaults={"rms_norm_eps": 1e-5, "pad_token_id": 32000}
    ),
}


def llama(
    *,
    layers: int = 22,
    dim: int = 2048,
    heads: int = 32,
    kv_heads: int | None = 4,
    hidden: int = 5632,
    head_dim: int | None = None,
    vocabulary: int = 32000,
    position: Position | str | tuple[Position | None, ...] = ROTARY,
    activation: str = "silu",
    bias: str = "",
    eps: float = 1e-5,
    window: int | tuple[int | None, ...] | None = None,
    tied: bool = False,
    padding: int | None = None,
    dropout: float = 0.0,
    head: HeadConfig | Literal["vocabulary"] | None = "vocabulary",
    family: str = "llama",
) -> TextConfig:
    """TinyLlama by default, 1,100,048,384 parameters.

    A token sees at most `window` tokens, itself included: one number for all layers, or one a layer, None where
    nothing is cut off. `position` is one for all layers, or one a layer, None for a layer without. `family` is the
    `model_type` of one of its descendants (`VARIANTS`), which have presets of their own.

    >>> llama(layers=2, window=256).stack.mask
    Causal() & Window(before=255)
    """
    variant = VARIANTS[family]
    mask = tuple(map(make_layer_mask, window)) if isinstance(window, tuple) else make_layer_mask(window)
    return TextConfig(
        embed=TextEmbeddingConfig(vocabulary, dim, padding=padding),
        stack=StackConfig(
            dim, layers, heads, hidden, kv_heads, head_dim, activation=activation, gated=True, norm="rms", eps=eps,
            bias=bias, position=position, mask=mask, attention_dropout=dropout, residual=variant.residual,
            qk_norm=variant.qk_norm,
        ),
        head=LMHeadConfig(vocabulary, dim, tied=tied) if head == "vocabulary" else head,
        family=family,
    )  # fmt: skip


def make_layer_mask(window: int | None) -> Mask:
    """A causal mask that reaches `window` tokens back, the token itself included."""
    return Causal() if window is None else Causal() & Window(before=window - 1)


def read_mask_window(mask: Mask | None) -> int | None:
    """The window of a mask that `make_layer_mask` made."""
    if isinstance(mask, Causal):
        return None
    if isinstance(mask, And) and isinstance(mask.right, Window) and mask == make_layer_mask(mask.right.before + 1):
        return mask.right.before + 1
    raise Unsupported(f"A Llama cannot be written with the mask {mask!r}; use Causal() & Window(before=…).")


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    family, dim = config["model_type"], config["hidden_size"]
    variant = VARIANTS[family]
    config = {**variant.defaults, **config}
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or dim // heads
    return llama(
        layers=config["num_hidden_layers"], dim=dim, heads=heads, kv_heads=config.get("num_key_value_heads") or heads,
        hidden=config["intermediate_size"], head_dim=head_dim, vocabulary=config["vocab_size"],
        position=read_positions(config, head_dim), activation=our_activation(config.get("hidden_act", "silu")),
        bias=read_bias(config, variant),
        eps=config.get("rms_norm_eps", 1e-6), window=read_window(config), padding=config.get("pad_token_id"),
        dropout=config.get("attention_dropout", 0.0), head=read_head(config, shapes), family=family,
    )  # fmt: skip


def read_bias(config: JsonObject, variant: LlamaVariant) -> str:
    chosen = "qkvo" if "a" in variant.choices and config.get("attention_bias") else ""
    return variant.bias + chosen + ("f" if "f" in variant.choices and config.get("mlp_bias") else "")


def read_positions(config: JsonObject, head_dim: int) -> Rotary | RotarySpec | tuple[Rotary | RotarySpec | None, ...]:
    """One rotary position, or one a layer where some have none (`no_rope_layers` has 1 for a layer that has)."""
    variant = VARIANTS[config["model_type"]]
    rotary = read_rotary(config, head_dim, base=variant.base)
    if rotary.dim is not None and not variant.partial_rotary:
        raise Unsupported(
            f"This {variant.name} rotates a part of each head (partial_rotary_factor), which transformers ignores."
        )
    if config["model_type"] != "smollm3":
        return rotary
    every, layers = config.get("no_rope_layer_interval", 4), config["num_hidden_layers"]
    has = config.get("no_rope_layers") or [int((n + 1) % every != 0) for n in range(layers)]
    return rotary if all(has) else tuple(rotary if rotates else None for rotates in has)


def read_window(config: JsonObject) -> int | tuple[int | None, ...] | None:
    """How many tokens a token sees: one number, or one a layer where layers differ."""
    window, layers = config.get("sliding_window"), config["num_hidden_layers"]
    windows = VARIANTS[config["model_type"]].windows
    if windows == "none" or window is None:
        return None
    if windows == "all":
        return window
    if not config.get("use_sliding_window"):
        return None
    first = config.get("max_window_layers", 28)
    types = config.get("layer_types") or ["full_attention" if n < first else "sliding_attention" for n in range(layers)]
    by_layer = tuple(window if layer_type == "sliding_attention" else None for layer_type in types)
    return by_layer[0] if len(set(by_layer)) == 1 else by_layer


def read_head(config: JsonObject, shapes: Shapes) -> HeadConfig | None:
    dim = config["hidden_size"]
    if "score.weight" in shapes:
        per_token = "score.bias" in shapes
        return ClassificationHeadConfig(
            shapes["score.weight"][0], dim, per_token=per_token, pool="last", bias=per_token
        )
    if "lm_head.weight" in shapes or any("ForCausalLM" in name for name in config.get("architectures") or []):
        return LMHeadConfig(config["vocab_size"], dim, tied=bool(config.get("tie_word_embeddings", False)))
    return None


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, head, family = config.stack, config.head, str(config.family)
    variant = VARIANTS[family]
    if stack.residual != variant.residual or stack.qk_norm != variant.qk_norm:
        raise BadInput(f"A {variant.name} cannot be written with residual={stack.residual!r}, {stack.qk_norm=}.")
    return {
        "model_type": family,
        "architectures": [variant.name + architecture_of(head)],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "num_key_value_heads": stack.kv_heads or stack.heads,
        "head_dim": stack.head_dim or stack.dim // stack.heads,
        "intermediate_size": stack.hidden,
        "vocab_size": config.embed.vocabulary,
        "pad_token_id": config.embed.padding,
        "hidden_act": their_activation(stack.activation),
        "rms_norm_eps": stack.eps,
        "attention_dropout": stack.attention_dropout,
        "tie_word_embeddings": is_tied(head, False),
        **write_positions(stack, family),
        **write_bias(stack.bias, variant),
        **write_window(stack, variant),
        **({"num_labels": head.classes} if isinstance(head, ClassificationHeadConfig) else {}),
    }


def architecture_of(head: HeadConfig | None) -> str:
    """The end of their class's name for a model with this head."""
    if isinstance(head, ClassificationHeadConfig):
        return "ForTokenClassification" if head.per_token else "ForSequenceClassification"
    return "Model" if head is None else "ForCausalLM"


def write_positions(stack: StackConfig, family: str) -> JsonObject:
    """Their settings of rotary positions."""
    head_dim, position = stack.head_dim or stack.dim // stack.heads, stack.position
    layers = position.positions if isinstance(position, LayerPositions) else (position,) * stack.layers
    unique = {rotary for rotary in layers if rotary is not None}
    if len(unique) != 1 or (None in layers and family != "smollm3"):
        raise BadInput(f"A {VARIANTS[family].name} cannot be written with the position {position!r}; use Rotary.")
    written = write_rotary(unique.pop(), head_dim)
    return {**written, "no_rope_layers": [int(x is not None) for x in layers]} if family == "smollm3" else written


def write_bias(bias: str, variant: LlamaVariant) -> JsonObject:
    """Their settings of biases."""
    attention, written = set(bias) & set("qkvo"), {}
    if "a" in variant.choices and attention in (set(), set("qkvo")):
        written["attention_bias"], bias = bool(attention), bias.translate(str.maketrans("", "", "qkvo"))
    if "f" in variant.choices:
        written["mlp_bias"], bias = "f" in bias, bias.replace("f", "")
    if set(bias) != set(variant.bias):
        raise BadInput(f"A {variant.name} cannot be written with bias {bias!r}; its own is {variant.bias!r}.")
    return written


def write_window(stack: StackConfig, variant: LlamaVariant) -> JsonObject:
    windows = [read_mask_window(mask) for mask in stack.layer_masks(training=False)]
    sizes = {window for window in windows if window is not None}
    if not sizes:
        return {} if variant.windows == "none" else {"sliding_window": None}
    if variant.windows == "all" and len(set(windows)) == 1:
        return {"sliding_window": windows[0]}
    if variant.windows != "layers" or len(sizes) > 1:
        raise BadInput(f"A {variant.name} cannot be written with the windows {windows}: one for all, or none.")
    types = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return {"use_sliding_window": True, "sliding_window": sizes.pop(), "max_window_layers": 0, "layer_types": types}


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.", base + "layers.{n}."
    norms = ("input_layernorm", "post_attention_layernorm")
    if config.stack.residual == "output":
        norms = ("post_attention_layernorm", "post_feedforward_layernorm")
    return [
        Key(base + "embed_tokens.weight", "embed.tokens.weight"),
        Key(theirs + norms[0] + ".{p}", block + "attention_norm.{p}"),
        *(fused_keys if config.family == "phi3" else separate_keys)(config.stack, theirs, block),
        *(Key(theirs + f"self_attn.{x}_norm.{{p}}", block + f"attention.{x}_norm.{{p}}") for x in "qk"),
        Key(theirs + "self_attn.o_proj.{p}", block + "attention.out.{p}"),
        Key(theirs + norms[1] + ".{p}", block + "feed_forward_norm.{p}"),
        Key(theirs + "mlp.down_proj.{p}", block + "feed_forward.down.{p}"),
        Key(base + "norm.{p}", "stack.norm.{p}"),
        Key("lm_head.weight", "head.weight"),
        Key("score.{p}", "head.out.{p}"),
    ]


def separate_keys(stack: StackConfig, theirs: str, block: str) -> list[Key]:
    """Projections that are a tensor each."""
    return [
        *(Key(theirs + f"self_attn.{x}_proj.{{p}}", block + f"attention.{x}.{{p}}") for x in "qkv"),
        *(Key(theirs + f"mlp.{x}_proj.{{p}}", block + f"feed_forward.{x}.{{p}}") for x in ("gate", "up")),
    ]


def fused_keys(stack: StackConfig, theirs: str, block: str) -> list[Key]:
    """Projections that are one tensor: q, k and v; gate and up."""
    head_dim, kv_heads = stack.head_dim or stack.dim // stack.heads, stack.kv_heads or stack.heads
    sizes = [heads * head_dim for heads in (stack.heads, kv_heads, kv_heads)]
    qkv = tuple(block + f"attention.{x}.{{p}}" for x in "qkv")
    gated = tuple(block + f"feed_forward.{x}.{{p}}" for x in ("gate", "up"))
    return [
        Key(theirs + "self_attn.qkv_proj.{p}", qkv, split_of(sizes)),
        Key(theirs + "mlp.gate_up_proj.{p}", gated, stack_of(2)),
    ]
