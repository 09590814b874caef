"""DINOv2 (Oquab et al. 2023)."""

from __future__ import annotations

from typing import Literal

from ...errors import BadInput
from ...nn.block import StackConfig
from ...nn.embeddings.patch_embedding import ImageEmbeddingConfig
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes, TensorTransform, stack_of
from ..config import ImageConfig
from ..heads import ClassificationHeadConfig
from .vit import INSIDE, TWICE_INSIDE, read_activation, write_activation

PREFIX = "dinov2."
IGNORED = ()

POOL: Literal["first and mean"] = "first and mean"
ONE_ROW = TensorTransform(lambda x: (x[0],), lambda x: x[None])


def dinov2(
    *,
    layers: int = 12,
    dim: int = 384,
    heads: int = 6,
    hidden: int = 1536,
    size: int | tuple[int, int] = 518,
    patch: int = 14,
    channels: int = 3,
    activation: str = "gelu",
    gated: bool = False,
    eps: float = 1e-6,
    bias: str = "qkvof",
    layer_scale: float = 1.0,
    mask_token: bool = True,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    classes: int | None = None,
) -> ImageConfig:
    """DINOv2-small by default, 22,056,576 parameters.

    A ViT whose branches are multiplied by a learned vector (`layer_scale`); the token of masked patches is stored with
    it. The giant model is `gated` with `activation="silu"`. `classes` adds a head that reads the class token beside the
    mean of the patches.

    >>> dinov2(layers=2).stack.layer_scale
    1.0
    """
    return ImageConfig(
        embed=ImageEmbeddingConfig(size, patch, dim, channels, dropout=dropout, mask_token=mask_token),
        stack=StackConfig(
            dim, layers, heads, hidden, activation=activation, gated=gated, eps=eps, bias=bias,
            layer_scale=layer_scale, dropout=dropout, attention_dropout=attention_dropout,
        ),
        head=None if classes is None else ClassificationHeadConfig(classes, dim, pool=POOL),
        family="dinov2",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> ImageConfig:
    """Our configuration of theirs."""
    classifier = shapes.get("classifier.weight")
    size, dim, gated = config["image_size"], config["hidden_size"], config.get("use_swiglu_ffn", False)
    hidden = int(dim * config.get("mlp_ratio", 4))
    return dinov2(
        layers=config["num_hidden_layers"], dim=dim, heads=config["num_attention_heads"],
        hidden=(int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden,
        size=size if isinstance(size, int) else (size[0], size[1]), patch=config["patch_size"],
        channels=config.get("num_channels", 3), activation="silu" if gated else read_activation(config, "gelu"),
        gated=gated, eps=config.get("layer_norm_eps", 1e-6), bias="qkvof" if config.get("qkv_bias", True) else "of",
        layer_scale=config.get("layerscale_value", 1.0), mask_token=config.get("use_mask_token", True),
        dropout=config.get("hidden_dropout_prob", 0.0),
        attention_dropout=config.get("attention_probs_dropout_prob", 0.0),
        classes=classifier[0] if classifier else None,
    )  # fmt: skip


def write(config: ImageConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, embed, head = config.stack, config.embed, config.head
    ratio = (stack.hidden or 4 * stack.dim) / stack.dim * (1.5 if stack.gated else 1)
    if stack.layer_scale is None or (not stack.gated and ratio != int(ratio)):
        raise BadInput("This cannot be written as a DINOv2: change it to the configuration of the dinov2() preset.")
    return {
        "model_type": "dinov2",
        "architectures": ["Dinov2Model" if head is None else "Dinov2ForImageClassification"],
        **({"num_labels": head.classes} if isinstance(head, ClassificationHeadConfig) else {}),
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "mlp_ratio": round(ratio),
        "use_swiglu_ffn": stack.gated,
        "image_size": embed.size,
        "patch_size": embed.patch,
        "num_channels": embed.channels,
        "hidden_act": "gelu" if stack.gated else write_activation(stack.activation),
        "layer_norm_eps": stack.eps,
        "qkv_bias": "q" in stack.bias,
        "layerscale_value": stack.layer_scale,
        "use_mask_token": embed.mask_token,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout,
    }


def keys(config: ImageConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.", base + "encoder.layer.{n}."
    projections = [("query", "q"), ("key", "k"), ("value", "v")]
    gated = tuple(block + f"feed_forward.{x}.{{p}}" for x in ("gate", "up"))
    feed = [("fc1", "up"), ("fc2", "down")]
    if config.stack.gated:
        feed = [("weights_out", "down")]
    return [
        Key(base + "embeddings.cls_token", "embed.first", TWICE_INSIDE),
        Key(base + "embeddings.mask_token", "embed.mask", ONE_ROW),
        Key(base + "embeddings.position_embeddings", "embed.places.weight", INSIDE),
        Key(base + "embeddings.patch_embeddings.projection.{p}", "embed.patches.projection.{p}"),
        Key(theirs + "norm1.{p}", block + "attention_norm.{p}"),
        *(Key(theirs + f"attention.attention.{a}.{{p}}", block + f"attention.{b}.{{p}}") for a, b in projections),
        Key(theirs + "attention.output.dense.{p}", block + "attention.out.{p}"),
        Key(theirs + "layer_scale1.lambda1", block + "attention_scale"),
        Key(theirs + "norm2.{p}", block + "feed_forward_norm.{p}"),
        *([Key(theirs + "mlp.weights_in.{p}", gated, stack_of(2))] if config.stack.gated else []),
        *(Key(theirs + f"mlp.{a}.{{p}}", block + f"feed_forward.{b}.{{p}}") for a, b in feed),
        Key(theirs + "layer_scale2.lambda1", block + "feed_forward_scale"),
        Key(base + "layernorm.{p}", "stack.norm.{p}"),
        Key("classifier.{p}", "head.out.{p}"),
    ]
