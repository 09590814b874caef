"""Gemma 2 (2024) and Gemma 3 (2025), their text models; of a Gemma 3 with images the text model is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ...attention.parts.positions import Position, Rotary
from ...attention.parts.scores import Dot
from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.parts.layer_positions import LayerPositions
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..checkpoint.rope import read_rotary, write_rope
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig, is_tied
from .bert import our_activation, their_activation
from .llama import architecture_of, make_layer_mask, read_mask_window, separate_keys

PREFIX = "model."
IGNORED = (r"lm_head\.weight", r"(vision_tower|multi_modal_projector)\..*")


@dataclass(frozen=True)
class GemmaVariant:
    """What a `model_type` fixes; of `pattern` successive layers the last sees all tokens."""

    name: str
    pattern: int
    qk_norm: Literal["head"] | None
    global_base: float
    local_base: float | None
    """The base of the layers with a window; None where all have the same."""
    caps: bool = False
    """Whether scores have a cap."""
    defaults: JsonObject = field(default_factory=dict)
    """What transformers takes where a folder does not say."""


SIZES: JsonObject = {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "pad_token_id": 0,
}  # fmt: skip
CAPS: JsonObject = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
VARIANTS = {
    "gemma2": GemmaVariant("Gemma2", 2, None, 10000.0, None, True, {**SIZES, **CAPS, "vocab_size": 256_000}),
    "gemma3_text": GemmaVariant("Gemma3", 6, "head", 1000000.0, 10000.0, defaults={**SIZES, "vocab_size": 262_208}),
}


def gemma2(
    *,
    layers: int = 26,
    dim: int = 2304,
    heads: int = 8,
    kv_heads: int = 4,
    head_dim: int = 256,
    hidden: int = 9216,
    vocabulary: int = 256000,
    window: int = 4096,
    layer_types: tuple[str, ...] | None = None,
    global_position: Position | None = None,
    local_position: Position | None = None,
    query_scale: float = 256**-0.5,
    cap: float | None = 50.0,
    logit_cap: float | None = 30.0,
    activation: str = "gelu_tanh",
    bias: str = "",
    eps: float = 1e-6,
    tied: bool = True,
    padding: int | None = 0,
    dropout: float = 0.0,
    head: HeadConfig | Literal["vocabulary"] | None = "vocabulary",
    family: str = "gemma2",
) -> TextConfig:
    """Gemma 2 2B by default, 2,614,341,888 parameters.

    Layers with a `window` and layers that see all tokens take turns; scores are bounded by `cap`, logits by
    `logit_cap`; norms stand before and after attention and feed-forward network.

    >>> gemma2(layers=2).stack.score
    Dot(scale=0.0625, cap=50.0)
    """
    own = VARIANTS[family]
    types = layer_types or tuple(
        "sliding_attention" if (n + 1) % own.pattern else "full_attention" for n in range(layers)
    )
    local = [layer_type == "sliding_attention" for layer_type in types]
    everywhere = global_position or Rotary(own.global_base)
    near = local_position or (everywhere if own.local_base is None else Rotary(own.local_base))
    return TextConfig(
        embed=TextEmbeddingConfig(vocabulary, dim, scaled=True, padding=padding),
        stack=StackConfig(
            dim, layers, heads, hidden, kv_heads, head_dim, activation=activation, gated=True, norm="rms_zero", eps=eps,
            bias=bias, residual="sandwich", qk_norm=own.qk_norm, score=Dot(query_scale, cap=cap),
            mask=tuple(make_layer_mask(window if x else None) for x in local),
            position=tuple(near if x else everywhere for x in local), attention_dropout=dropout,
        ),
        head=LMHeadConfig(vocabulary, dim, tied=tied, cap=logit_cap) if head == "vocabulary" else head,
        family=family,
    )  # fmt: skip


def alternate(layers: int, pattern: int) -> tuple[str, ...]:
    """The types of layers, of which every `pattern`-th sees all tokens."""
    return tuple("sliding_attention" if (n + 1) % pattern else "full_attention" for n in range(layers))


def gemma3(**changes: Any) -> TextConfig:
    """Gemma 3 1B, 999,885,952 parameters: norms of q and k, no caps, five layers with a window to one without.

    >>> gemma3(layers=6).stack.mask.masks[5]
    Causal()
    """
    sizes: dict[str, Any] = {"dim": 1152, "heads": 4, "kv_heads": 1, "head_dim": 256, "hidden": 6912}
    own = {"vocabulary": 262144, "window": 512, "cap": None, "logit_cap": None, "family": "gemma3_text"}
    return gemma2(**{**sizes, **own, **changes})


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    config = text_part(config)
    own = VARIANTS[config["model_type"]]
    config = {**own.defaults, **config}
    if config.get("use_bidirectional_attention"):
        raise Unsupported("This Gemma sees later tokens (use_bidirectional_attention), which is not read here.")
    if config.get("attn_logit_softcapping") and not own.caps:
        raise Unsupported(f"This {own.name} has a cap on scores (attn_logit_softcapping), which transformers ignores.")
    layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    pattern = config.get("sliding_window_pattern") or own.pattern
    types = config.get("layer_types") or [
        "sliding_attention" if (n + 1) % pattern else "full_attention" for n in range(layers)
    ]
    return gemma2(
        layers=layers, dim=config["hidden_size"], heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"], head_dim=head_dim, hidden=config["intermediate_size"],
        vocabulary=config["vocab_size"], window=config["sliding_window"], layer_types=tuple(types),
        **read_positions(config, own, head_dim), query_scale=config["query_pre_attn_scalar"] ** -0.5,
        cap=config.get("attn_logit_softcapping"),
        activation=our_activation(config.get("hidden_activation") or "gelu_pytorch_tanh"),
        bias="qkvo" if config.get("attention_bias") else "", eps=config.get("rms_norm_eps", 1e-6),
        padding=config.get("pad_token_id"), dropout=config.get("attention_dropout") or 0.0,
        head=read_head(config, shapes), family=config["model_type"],
    )  # fmt: skip


def text_part(config: JsonObject) -> JsonObject:
    """The settings of the text model, which stand inside those of a Gemma 3 that also reads images."""
    if config["model_type"] != "gemma3":
        return config
    names = [name.replace("ForConditionalGeneration", "ForCausalLM") for name in config.get("architectures") or []]
    outer = {"tie_word_embeddings": config.get("tie_word_embeddings", True), "architectures": names}
    return {**(config.get("text_config") or {}), **outer, "model_type": "gemma3_text"}


def read_positions(config: JsonObject, own: GemmaVariant, head_dim: int) -> JsonObject:
    """One rotary position, or one for each type of layer."""
    if own.local_base is None:
        rotary = read_rotary(config, head_dim, base=own.global_base)
        return {"global_position": rotary, "local_position": rotary}
    rope = config.get("rope_parameters") or {}
    everywhere = {**(config.get("rope_scaling") or {}), **(rope.get("full_attention") or {})}
    bases = config.get("rope_theta") or own.global_base, config.get("rope_local_base_freq") or own.local_base
    return {
        "global_position": read_rotary({}, head_dim, rope=everywhere, base=bases[0]),
        "local_position": read_rotary({}, head_dim, rope=rope.get("sliding_attention") or {}, base=bases[1]),
    }


def read_head(config: JsonObject, shapes: Shapes) -> HeadConfig | None:
    dim = config["hidden_size"]
    if "score.weight" in shapes:
        per_token = "score.bias" in shapes
        return ClassificationHeadConfig(shapes["score.weight"][0], dim, per_token, pool="last", bias=per_token)
    if "lm_head.weight" in shapes or any("ForCausalLM" in name for name in config.get("architectures") or []):
        tied, cap = config.get("tie_word_embeddings", True), config.get("final_logit_softcapping")
        return LMHeadConfig(config["vocab_size"], dim, tied=tied, cap=cap)
    return None


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, head, position, score = config.stack, config.head, config.stack.position, config.stack.score
    own = VARIANTS[str(config.family)]
    windows = [read_mask_window(mask) for mask in stack.layer_masks(training=False)]
    sizes = {window for window in windows if window is not None}
    if not (isinstance(position, LayerPositions) and isinstance(score, Dot) and score.scale) or len(sizes) > 1:
        raise BadInput(f"This cannot be written as a {own.name}: use the configuration of its preset.")
    head_dim = stack.head_dim or stack.dim // stack.heads
    ropes = {
        ("full_attention" if window is None else "sliding_attention"): write_rope(rotary, head_dim)
        for rotary, window in zip(position.positions, windows, strict=True)
    }
    return {
        "model_type": config.family,
        "architectures": [own.name + text_word(own, head) + architecture_of(head)],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "num_key_value_heads": stack.kv_heads or stack.heads,
        "head_dim": head_dim,
        "intermediate_size": stack.hidden,
        "vocab_size": config.embed.vocabulary,
        "pad_token_id": config.embed.padding,
        "sliding_window": sizes.pop() if sizes else 4096,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "rope_parameters": ropes if own.local_base is not None else next(iter(ropes.values())),
        "query_pre_attn_scalar": round(score.scale**-2),
        "attn_logit_softcapping": score.cap,
        "final_logit_softcapping": head.cap if isinstance(head, LMHeadConfig) else None,
        "hidden_activation": their_activation(stack.activation),
        "attention_bias": "q" in stack.bias,
        "rms_norm_eps": stack.eps,
        "attention_dropout": stack.attention_dropout,
        "tie_word_embeddings": is_tied(head, True),
        **({"num_labels": head.classes} if isinstance(head, ClassificationHeadConfig) else {}),
    }


def text_word(own: GemmaVariant, head: HeadConfig | None) -> str:
    """The word in their class's name that tells Gemma 3's text model from that with images."""
    return "Text" if own.name == "Gemma3" and not isinstance(head, LMHeadConfig) else ""


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.", base + "layers.{n}."
    return [
        Key(base + "embed_tokens.weight", "embed.tokens.weight"),
        *separate_keys(config.stack, theirs, block),
        *(Key(theirs + f"self_attn.{x}_norm.{{p}}", block + f"attention.{x}_norm.{{p}}") for x in "qk"),
        Key(theirs + "self_attn.o_proj.{p}", block + "attention.out.{p}"),
        Key(theirs + "mlp.down_proj.{p}", block + "feed_forward.down.{p}"),
        Key(theirs + "input_layernorm.{p}", block + "attention_norm.{p}"),
        Key(theirs + "post_attention_layernorm.{p}", block + "attention_output_norm.{p}"),
        Key(theirs + "pre_feedforward_layernorm.{p}", block + "feed_forward_norm.{p}"),
        Key(theirs + "post_feedforward_layernorm.{p}", block + "feed_forward_output_norm.{p}"),
        Key(base + "norm.{p}", "stack.norm.{p}"),
        Key("lm_head.weight", "head.weight"),
        Key("score.{p}", "head.out.{p}"),
    ]
