"""Llama (Touvron et al. 2023) and models of its architecture: Mistral (Jiang et al. 2023), Qwen2 (Yang et al. 2024)."""

from __future__ import annotations

from typing import Literal

from ...attention.parts.mask import And, Mask
from ...attention.parts.masks import Causal, Window
from ...attention.parts.positions import Rotary
from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.parts.rotary import ScaledRotary
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig

PREFIX = "model."
IGNORED = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"lm_head\.weight")

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
ROTARY = Rotary()
BIASES = {"llama": "", "mistral": "", "qwen2": "qkv"}
NAMES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}


def llama(
    *,
    layers: int = 22,
    dim: int = 2048,
    heads: int = 32,
    kv_heads: int | None = 4,
    hidden: int = 5632,
    head_dim: int | None = None,
    vocabulary: int = 32000,
    position: Rotary | ScaledRotary | str = ROTARY,
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
    nothing is cut off. Mistral and Qwen2 are this with `family`, a window, and (Qwen2) `bias="qkv"`.

    >>> llama(layers=2, window=256).stack.mask
    Causal() & Window(before=255)
    """
    mask = tuple(map(make_layer_mask, window)) if isinstance(window, tuple) else make_layer_mask(window)
    return TextConfig(
        embed=TextEmbeddingConfig(vocabulary, dim, padding=padding),
        stack=StackConfig(
            dim, layers, heads, hidden, kv_heads, head_dim, activation=activation, gated=True, norm="rms", eps=eps,
            bias=bias, position=position, mask=mask, attention_dropout=dropout,
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
    heads, activation = config["num_attention_heads"], config.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise Unsupported(
            f"This {NAMES[family]} has the activation {activation!r}; supported are {', '.join(ACTIVATIONS)}."
        )
    head_dim = config.get("head_dim") or dim // heads
    bias = BIASES[family] + ("qkvo" if config.get("attention_bias") else "") + ("f" if config.get("mlp_bias") else "")
    return llama(
        layers=config["num_hidden_layers"], dim=dim, heads=heads, kv_heads=config.get("num_key_value_heads") or heads,
        hidden=config["intermediate_size"], head_dim=head_dim, vocabulary=config["vocab_size"],
        position=read_rotary(config), activation=ACTIVATIONS[activation], bias=bias,
        eps=config.get("rms_norm_eps", 1e-6), window=read_window(config), padding=config.get("pad_token_id"),
        dropout=config.get("attention_dropout", 0.0), head=read_head(config, shapes), family=family,
    )  # fmt: skip


def read_rotary(config: JsonObject) -> Rotary | ScaledRotary:
    """The rotary position, from `rope_parameters` or the older `rope_theta` with `rope_scaling`."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    scaling = rope.get("rope_type") or rope.get("type") or "default"
    base = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    if (rope.get("partial_rotary_factor") or 1.0) != 1.0:
        raise Unsupported("This checkpoint rotates a part of each head (partial_rotary_factor), which is unsupported.")
    if scaling == "default":
        return Rotary(base)
    if scaling == "linear":
        return ScaledRotary(base, linear=float(rope["factor"]))
    if scaling == "llama3":
        return ScaledRotary(
            base,
            factor=float(rope["factor"]),
            low=float(rope["low_freq_factor"]),
            high=float(rope["high_freq_factor"]),
            original=int(rope["original_max_position_embeddings"]),
        )
    raise Unsupported(f"This checkpoint scales its rotary positions by {scaling!r}; supported: 'linear', 'llama3'.")


def read_window(config: JsonObject) -> int | tuple[int | None, ...] | None:
    """How many tokens a token sees: one number, or one a layer where layers differ."""
    window, layers = config.get("sliding_window"), config["num_hidden_layers"]
    if config["model_type"] == "llama" or window is None:
        return None
    if config["model_type"] == "mistral":
        return window
    if not config.get("use_sliding_window"):
        return None
    first = config.get("max_window_layers", 28)
    types = config.get("layer_types") or ["full_attention" if n < first else "sliding_attention" for n in range(layers)]
    windows = tuple(window if layer_type == "sliding_attention" else None for layer_type in types)
    return windows[0] if len(set(windows)) == 1 else windows


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
    return {
        "model_type": family,
        "architectures": [NAMES[family] + architecture(head)],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "num_key_value_heads": stack.kv_heads or stack.heads,
        "head_dim": stack.head_dim or stack.dim // stack.heads,
        "intermediate_size": stack.hidden,
        "vocab_size": config.embed.vocabulary,
        "pad_token_id": config.embed.padding,
        "hidden_act": {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}[stack.activation],
        "rms_norm_eps": stack.eps,
        "attention_dropout": stack.attention_dropout,
        "tie_word_embeddings": getattr(head, "tied", False),
        **write_rotary(stack),
        **write_bias(stack.bias, family),
        **write_window(stack, family),
        **({"num_labels": head.classes} if isinstance(head, ClassificationHeadConfig) else {}),
    }


def architecture(head: HeadConfig | None) -> str:
    """The end of their class's name for a model with this head."""
    if isinstance(head, ClassificationHeadConfig):
        return "ForTokenClassification" if head.per_token else "ForSequenceClassification"
    return "Model" if head is None else "ForCausalLM"


def write_rotary(stack: StackConfig) -> JsonObject:
    """Both forms: `rope_parameters`, and `rope_theta` with `rope_scaling` for older readers."""
    rotary = stack.position
    scaled = rotary if isinstance(rotary, ScaledRotary) else ScaledRotary()
    if (
        not isinstance(rotary, Rotary | ScaledRotary)
        or rotary.dim is not None
        or 1.0 not in (scaled.linear, scaled.factor)
    ):
        raise BadInput(f"A Llama cannot be written with the position {stack.position!r}; use Rotary.")
    base = rotary.base
    scaling: JsonObject = {"rope_type": "default"}
    if scaled.linear != 1.0:
        scaling = {"rope_type": "linear", "factor": scaled.linear}
    elif scaled.factor != 1.0:
        scaling = {
            "rope_type": "llama3",
            "factor": scaled.factor,
            "low_freq_factor": scaled.low,
            "high_freq_factor": scaled.high,
            "original_max_position_embeddings": scaled.original,
        }
    old = None if scaling["rope_type"] == "default" else scaling
    return {"rope_parameters": {**scaling, "rope_theta": base}, "rope_theta": base, "rope_scaling": old}


def write_bias(bias: str, family: str) -> JsonObject:
    """Their settings of biases."""
    if family == "llama" and set(bias) & set("qkvo") in (set(), set("qkvo")):
        return {"attention_bias": "q" in bias, "mlp_bias": "f" in bias}
    if set(bias) != set(BIASES[family]):
        raise BadInput(f"A {NAMES[family]} cannot be written with bias {bias!r}; its own is {BIASES[family]!r}.")
    return {}


def write_window(stack: StackConfig, family: str) -> JsonObject:
    windows = [read_mask_window(mask) for mask in stack.layer_masks(training=False)]
    sizes = {window for window in windows if window is not None}
    if not sizes:
        return {} if family == "llama" else {"sliding_window": None}
    if family == "mistral" and len(set(windows)) == 1:
        return {"sliding_window": windows[0]}
    if family != "qwen2" or len(sizes) > 1:
        raise BadInput(f"A {NAMES[family]} cannot be written with the windows {windows}: one for all, or none.")
    types = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return {"use_sliding_window": True, "sliding_window": sizes.pop(), "max_window_layers": 0, "layer_types": types}


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.", base + "layers.{n}."
    return [
        Key(base + "embed_tokens.weight", "embed.tokens.weight"),
        Key(theirs + "input_layernorm.{p}", block + "attention_norm.{p}"),
        *(Key(theirs + f"self_attn.{x}_proj.{{p}}", block + f"attention.{x}.{{p}}") for x in "qkv"),
        Key(theirs + "self_attn.o_proj.{p}", block + "attention.out.{p}"),
        Key(theirs + "post_attention_layernorm.{p}", block + "feed_forward_norm.{p}"),
        *(Key(theirs + f"mlp.{x}_proj.{{p}}", block + f"feed_forward.{x}.{{p}}") for x in ("gate", "up", "down")),
        Key(base + "norm.{p}", "stack.norm.{p}"),
        Key("lm_head.weight", "head.weight"),
        Key("score.{p}", "head.out.{p}"),
    ]
