"""ViT (Dosovitskiy et al. 2020)."""

from __future__ import annotations

from ...errors import Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.patch_embedding import ImageEmbeddingConfig
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes, TensorTransform
from ..config import ImageConfig
from ..heads import ClassificationHeadConfig, PoolerConfig

PREFIX = "vit."
IGNORED = (r"pooler\.dense\.(weight|bias)",)

ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "swish": "silu"}
"""Their names of activations that differ from ours."""

INSIDE = TensorTransform(lambda x: (x[0],), lambda x: x[None])
TWICE_INSIDE = TensorTransform(lambda x: (x[0, 0],), lambda x: x[None, None])


def vit(
    *,
    layers: int = 12,
    dim: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    size: int | tuple[int, int] = 224,
    patch: int = 16,
    channels: int = 3,
    classes: int | None = 1000,
    pooler: str | None = None,
    activation: str = "gelu",
    eps: float = 1e-12,
    bias: str = "qkvof",
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
) -> ImageConfig:
    """ViT-B/16 for 224 × 224 pixels and 1000 classes by default, 86,567,656 parameters.

    `classes` None leaves the head out; `pooler` is the activation of a pooler over the class token.

    >>> import torch
    >>> model = vit(layers=1, dim=12, heads=3, hidden=20, size=8, patch=4, classes=5).build()
    >>> model(images=torch.randn(2, 3, 8, 8)).logits.shape
    torch.Size([2, 5])
    """
    return ImageConfig(
        embed=ImageEmbeddingConfig(size, patch, dim, channels, dropout=dropout),
        stack=StackConfig(
            dim, layers, heads, hidden, activation=activation, eps=eps, bias=bias,
            dropout=dropout, attention_dropout=attention_dropout,
        ),
        pooler=None if pooler is None else PoolerConfig(dim, pooler),
        head=None if classes is None else ClassificationHeadConfig(classes, dim),
        family="vit",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> ImageConfig:
    """Our configuration of theirs."""
    check_supported(config, shapes)
    size = config["image_size"]
    classifier, has_pooler = shapes.get("classifier.weight"), "pooler.dense.weight" in shapes
    return vit(
        layers=config["num_hidden_layers"], dim=config["hidden_size"], heads=config["num_attention_heads"],
        hidden=config["intermediate_size"], size=size if isinstance(size, int) else (size[0], size[1]),
        patch=config["patch_size"],
        channels=config.get("num_channels", 3), classes=classifier[0] if classifier else None,
        pooler=config.get("pooler_act", "tanh") if has_pooler else None,
        activation=read_activation(config, "gelu"), eps=config.get("layer_norm_eps", 1e-12),
        bias="qkvof" if config.get("qkv_bias", True) else "of", dropout=config.get("hidden_dropout_prob", 0.0),
        attention_dropout=config.get("attention_probs_dropout_prob", 0.0),
    )  # fmt: skip


def check_supported(config: JsonObject, shapes: Shapes) -> None:
    """Raise `Unsupported` for variants that are not read here."""
    if config.get("model_type") == "deit" or any("distillation_token" in name for name in shapes):
        raise Unsupported("This is a DeiT with a distillation token, which is not read here. Take a DeiT saved as ViT.")
    if any("mask_token" in name for name in shapes):
        raise Unsupported(
            "This ViT has a mask token and a decoder of pixels, which are not read here. Save its encoder."
        )
    if not isinstance(config["patch_size"], int):
        raise Unsupported(
            f"This ViT's patches are {config['patch_size']} pixels; only squares, one number, are read here."
        )
    if (config.get("pooler_output_size") or config["hidden_size"]) != config["hidden_size"]:
        raise Unsupported("This ViT's pooler has another size than its layers, which is not read here.")


def read_activation(config: JsonObject, default: str) -> str:
    name: str = config.get("hidden_act", default)
    return ACTIVATIONS.get(name, name)


def write_activation(name: str) -> str:
    return {ours: theirs for theirs, ours in ACTIVATIONS.items()}.get(name, name)


def write(config: ImageConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, embed, head = config.stack, config.embed, config.head
    return {
        "model_type": "vit",
        "architectures": ["ViTModel" if head is None else "ViTForImageClassification"],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "intermediate_size": stack.hidden,
        "image_size": embed.size,
        "patch_size": embed.patch,
        "num_channels": embed.channels,
        "hidden_act": write_activation(stack.activation),
        "layer_norm_eps": stack.eps,
        "qkv_bias": "q" in stack.bias,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout,
        **({} if config.pooler is None else {"pooler_act": config.pooler.activation}),
        **({"num_labels": head.classes} if isinstance(head, ClassificationHeadConfig) else {}),
    }


def keys(config: ImageConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.", base + "encoder.layer.{n}."
    return [
        Key(base + "embeddings.cls_token", "embed.first", TWICE_INSIDE),
        Key(base + "embeddings.position_embeddings", "embed.places.weight", INSIDE),
        Key(base + "embeddings.patch_embeddings.projection.{p}", "embed.patches.projection.{p}"),
        Key(theirs + "layernorm_before.{p}", block + "attention_norm.{p}"),
        Key(theirs + "attention.attention.query.{p}", block + "attention.q.{p}"),
        Key(theirs + "attention.attention.key.{p}", block + "attention.k.{p}"),
        Key(theirs + "attention.attention.value.{p}", block + "attention.v.{p}"),
        Key(theirs + "attention.output.dense.{p}", block + "attention.out.{p}"),
        Key(theirs + "layernorm_after.{p}", block + "feed_forward_norm.{p}"),
        Key(theirs + "intermediate.dense.{p}", block + "feed_forward.up.{p}"),
        Key(theirs + "output.dense.{p}", block + "feed_forward.down.{p}"),
        Key(base + "layernorm.{p}", "stack.norm.{p}"),
        Key(base + "pooler.dense.{p}", "pooler.dense.{p}"),
        Key("classifier.{p}", "head.out.{p}"),
    ]
