"""Swin (Liu et al. 2021): a hierarchy of stages whose attention is within shifted windows."""

from __future__ import annotations

from ...errors import BadInput, Unsupported
from ...nn.embeddings.patch_grid import PatchGridConfig
from ...nn.sparse.shifted_windows import ShiftedWindowsConfig
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes, TensorTransform
from ..config import SequenceConfig
from ..heads import ClassificationHeadConfig
from .vit import read_activation, write_activation

PREFIX = "swin."
IGNORED = (r".*relative_position_index",)

SwinConfig = SequenceConfig[PatchGridConfig, ShiftedWindowsConfig]


def swin(
    *,
    dim: int = 96,
    depths: tuple[int, ...] = (2, 2, 6, 2),
    heads: tuple[int, ...] = (3, 6, 12, 24),
    window: int = 7,
    ratio: float = 4.0,
    size: int | tuple[int, int] = 224,
    patch: int = 4,
    channels: int = 3,
    classes: int | None = 1000,
    activation: str = "gelu",
    qkv_bias: bool = True,
    positions: bool = False,
    eps: float = 1e-5,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
) -> SwinConfig:
    """Swin-T for 224 × 224 pixels and 1000 classes by default, 28,288,354 parameters.

    Stage n has `depths[n]` blocks of 2ⁿ · `dim` dims and `heads[n]` heads; the stage before it is merged by fours.
    `classes` None leaves the head out; `positions` adds learned ones to the patches. The head reads the mean.

    >>> swin(depths=(2, 2), heads=(3, 6)).stack.dims
    (96, 192)
    """
    dims = tuple(dim * 2**stage for stage in range(len(depths)))
    return SwinConfig(
        embed=PatchGridConfig(size, patch, dim, channels, positions=positions, dropout=dropout),
        stack=ShiftedWindowsConfig(
            dims, tuple(depths), tuple(heads), window, ratio, activation, qkv_bias, eps, dropout, attention_dropout
        ),
        head=None if classes is None else ClassificationHeadConfig(classes, dims[-1], pool="mean"),
        family="swin",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> SwinConfig:
    """Our configuration of theirs."""
    if any("mask_token" in name for name in shapes):
        raise Unsupported(
            "This Swin has a mask token and a decoder of pixels, which are not read here. Save its encoder."
        )
    size, patch = config.get("image_size", 224), config.get("patch_size", 4)
    if not isinstance(patch, int):
        raise Unsupported(f"This Swin's patches are {patch} pixels; only squares, one number, are read here.")
    classifier = shapes.get("classifier.weight")
    return swin(
        dim=config["embed_dim"], depths=tuple(config["depths"]), heads=tuple(config["num_heads"]),
        window=config.get("window_size", 7), ratio=float(config.get("mlp_ratio", 4.0)),
        size=size if isinstance(size, int) else (size[0], size[1]), patch=patch,
        channels=config.get("num_channels", 3), classes=classifier[0] if classifier else None,
        activation=read_activation(config, "gelu"), qkv_bias=config.get("qkv_bias", True),
        positions=config.get("use_absolute_embeddings", False), eps=config.get("layer_norm_eps", 1e-5),
        dropout=config.get("hidden_dropout_prob", 0.0),
        attention_dropout=config.get("attention_probs_dropout_prob", 0.0),
    )  # fmt: skip


def write(config: SwinConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, embed, head = config.stack, config.embed, config.head
    doubled = tuple(embed.dim * 2**stage for stage in range(len(stack.dims)))
    if stack.dims != doubled or embed.norm != 1e-5 or (head is not None and getattr(head, "pool", None) != "mean"):
        raise BadInput("This cannot be written as a Swin: change it to the configuration of the swin() preset.")
    return {
        "model_type": "swin",
        "architectures": ["SwinModel" if head is None else "SwinForImageClassification"],
        "embed_dim": embed.dim,
        "depths": list(stack.depths),
        "num_heads": list(stack.heads),
        "window_size": stack.window_size,
        "mlp_ratio": stack.ratio,
        "image_size": embed.size,
        "patch_size": embed.patch,
        "num_channels": embed.channels,
        "hidden_act": write_activation(stack.activation),
        "qkv_bias": stack.qkv_bias,
        "use_absolute_embeddings": embed.positions,
        "layer_norm_eps": stack.eps,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout,
        **({"num_labels": head.classes} if isinstance(head, ClassificationHeadConfig) else {}),
    }


def keys(config: SwinConfig) -> list[Key]:
    base, embed = "" if config.head is None else PREFIX, config.embed
    height, width = (embed.size, embed.size) if isinstance(embed.size, int) else embed.size
    grid = height // embed.patch, width // embed.patch
    by_row = TensorTransform(lambda x: (x[0].unflatten(0, grid),), lambda x: x.flatten(0, 1)[None])
    return [
        Key(base + "embeddings.patch_embeddings.projection.{p}", "embed.patches.projection.{p}"),
        Key(base + "embeddings.norm.{p}", "embed.norm.{p}"),
        Key(base + "embeddings.position_embeddings", "embed.places", by_row),
        *(key for layer, place in enumerate(block_places(config)) for key in block_keys(base, layer, *place)),
        Key(base + "layernorm.{p}", "stack.norm.{p}"),
        Key("classifier.{p}", "head.out.{p}"),
    ]


def block_places(config: SwinConfig) -> list[tuple[int, int]]:
    """The stage of each block and its number there."""
    return [(stage, n) for stage, depth in enumerate(config.stack.depths) for n in range(depth)]


def block_keys(base: str, layer: int, stage: int, n: int) -> list[Key]:
    """The table of one block, and of the merging before the first of a stage."""
    block, theirs = f"stack.blocks.{layer}.", f"{base}encoder.layers.{stage}.blocks.{n}."
    before = f"{base}encoder.layers.{stage - 1}.downsample."
    projections = [("query", "q"), ("key", "k"), ("value", "v")]
    return [
        Key(before + "norm.{p}", block + "merge.norm.{p}"),
        Key(before + "reduction.weight", block + "merge.reduction.weight"),
        Key(theirs + "layernorm_before.{p}", block + "attention_norm.{p}"),
        *(Key(theirs + f"attention.self.{a}.{{p}}", block + f"attention.{b}.{{p}}") for a, b in projections),
        Key(theirs + "attention.self.relative_position_bias_table", block + "attention.table"),
        Key(theirs + "attention.output.dense.{p}", block + "attention.out.{p}"),
        Key(theirs + "layernorm_after.{p}", block + "feed_forward_norm.{p}"),
        Key(theirs + "intermediate.dense.{p}", block + "feed_forward.up.{p}"),
        Key(theirs + "output.dense.{p}", block + "feed_forward.down.{p}"),
    ]
