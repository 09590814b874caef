"""DETR (Carion et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.images import RESNET_BLOCKS
from ...nn.old_names import accept_old_names
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..detection import DetectionConfig, FeatureGridConfig
from ..set_loss import SetLoss

PREFIX = "model."
IGNORED = (r".*\.num_batches_tracked",)

LOSS = {
    "class_cost": "class_cost",
    "bbox_cost": "box_cost",
    "giou_cost": "overlap_cost",
    "bbox_loss_coefficient": "box",
    "giou_loss_coefficient": "overlap",
    "eos_coefficient": "nothing",
}
"""Their names for the numbers of the loss, and ours."""


@accept_old_names(places="positions")
def detr(
    *,
    layers: int = 6,
    dim: int = 256,
    heads: int = 8,
    hidden: int = 2048,
    decoder: JsonObject | None = None,
    queries: int = 100,
    classes: int | None = 91,
    backbone: int | tuple[int, ...] = 50,
    channels: int = 3,
    positions: Literal["sine", "learned"] = "sine",
    activation: str = "relu",
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    hidden_dropout: float = 0.0,
    loss: SetLoss | None = None,
    family: str | None = "detr",
) -> DetectionConfig:
    """DETR with a ResNet-50 for COCO's class numbers by default: 41,524,768 parameters.

    The paper trains 41,302,368 of them: it leaves the first convolution and the first stage as they are. The numbers
    of batch normalisation are buffers and not counted. `decoder` has the settings of its stack that differ from the
    encoder's; `backbone` as in `FeatureGridConfig`. The losses of all decoder layers are added unless `loss` is given.

    >>> detr(decoder={"layers": 3}).decoder.layers
    3
    """
    stack = StackConfig(
        dim, layers, heads, hidden, activation=activation, pre_norm=False,
        dropout=dropout, attention_dropout=attention_dropout, hidden_dropout=hidden_dropout,
    )  # fmt: skip
    return DetectionConfig(
        embed=FeatureGridConfig(dim, backbone, channels, positions),
        stack=stack,
        decoder=replace(stack, **{"cross": True, "final_norm": True, **(decoder or {})}),
        queries=queries,
        classes=classes,
        loss=SetLoss(auxiliary=True) if loss is None else loss,
        family=family if isinstance(backbone, int) else None,
    )


def read(config: JsonObject, shapes: Shapes) -> DetectionConfig:
    """Our configuration of theirs."""
    check_supported(config, shapes)
    backbone = config.get("backbone_config") or {}
    head = shapes.get("class_labels_classifier.weight")
    return detr(
        layers=config["encoder_layers"], dim=config["d_model"], heads=config["encoder_attention_heads"],
        hidden=config["encoder_ffn_dim"], queries=config["num_queries"], classes=head[0] - 1 if head else None,
        decoder={
            "layers": config["decoder_layers"], "heads": config["decoder_attention_heads"],
            "hidden": config["decoder_ffn_dim"],
        },
        backbone=read_depth(config), channels=backbone.get("num_channels") or config.get("num_channels", 3),
        positions=config["position_embedding_type"],
        activation=config["activation_function"], dropout=config["dropout"],
        attention_dropout=config["attention_dropout"], hidden_dropout=config["activation_dropout"],
        loss=SetLoss(**{ours: config[theirs] for theirs, ours in LOSS.items() if theirs in config}),
        family="detr_timm" if any(name.endswith("model.conv1.weight") for name in shapes) else "detr",
    )  # fmt: skip


def check_supported(config: JsonObject, shapes: Shapes) -> None:
    """Raise `Unsupported` for variants that are not read here."""
    if any(name.startswith("mask_head.") for name in shapes):
        raise Unsupported("This DETR has a head of masks (segmentation), which is not read here.")
    backbone = config.get("backbone_config") or {}
    if config.get("dilation") or backbone.get("output_stride", 32) != 32:
        raise Unsupported("This DETR's backbone is dilated (DC5), which is not read here. Take the one without.")
    if (backbone.get("out_features") or ["stage4"])[-1] != "stage4":
        raise Unsupported(
            f"This DETR reads its backbone after {backbone['out_features'][-1]!r}, not after the last stage."
        )
    if config.get("auxiliary_loss"):
        raise Unsupported(
            "This DETR has auxiliary_loss, with which transformers normalises what each decoder layer passes on. "
            "The paper does not, and it is not supported."
        )


def read_depth(config: JsonObject) -> int:
    """The depth of the ResNet, from whichever field has it."""
    inside = config.get("backbone_config") or {}
    if inside.get("model_type") == "resnet":
        return depth_of(inside)
    name = str(inside.get("backbone") or config.get("backbone") or "resnet50")
    for depth in RESNET_BLOCKS:
        if name in (f"resnet{depth}", f"microsoft/resnet-{depth}"):
            return depth
    raise Unsupported(
        f"This DETR's backbone is {name!r}; read here are ResNets of depth {', '.join(map(str, RESNET_BLOCKS))}."
    )


def depth_of(config: JsonObject) -> int:
    """The depth of which a ResNet's settings are the published ones."""
    for depth in RESNET_BLOCKS:
        plain = write_backbone(depth, config.get("num_channels", 3))
        if all(config.get(name, value) == value for name, value in plain.items() if name != "out_features"):
            return depth
    raise Unsupported(
        f"This DETR's ResNet has depths {config.get('depths')} and sizes {config.get('hidden_sizes')}; read here are "
        f"the published ones of depth {', '.join(map(str, RESNET_BLOCKS))}."
    )


def write(config: DetectionConfig) -> JsonObject:
    """Their configuration of ours; the auxiliary loss, which alters the layers there, is left out."""
    embed, stack, decoder = config.embed, config.stack, config.decoder
    if decoder is None or not isinstance(embed.backbone, int):
        raise BadInput("This cannot be written as a DETR: it needs queries with a decoder, and a ResNet as backbone.")
    timm = config.family == "detr_timm"
    return {
        "model_type": "detr",
        "architectures": ["DetrModel" if config.classes is None else "DetrForObjectDetection"],
        "use_timm_backbone": timm,
        "backbone": f"resnet{embed.backbone}" if timm else None,
        "backbone_config": None if timm else write_backbone(embed.backbone, embed.channels),
        "num_channels": embed.channels,
        "position_embedding_type": embed.positions,
        "d_model": embed.dim,
        "encoder_layers": stack.layers,
        "encoder_attention_heads": stack.heads,
        "encoder_ffn_dim": stack.hidden,
        "decoder_layers": decoder.layers,
        "decoder_attention_heads": decoder.heads,
        "decoder_ffn_dim": decoder.hidden,
        "num_queries": config.queries,
        "activation_function": stack.activation,
        "dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout,
        "activation_dropout": stack.hidden_dropout,
        **{theirs: getattr(config.loss, ours) for theirs, ours in LOSS.items()},
        **({} if config.classes is None else {"num_labels": config.classes}),
    }


def write_backbone(depth: int, channels: int) -> JsonObject:
    """Their configuration of a ResNet."""
    growth = 1 if depth < 50 else 4
    return {
        "model_type": "resnet",
        "layer_type": "basic" if depth < 50 else "bottleneck",
        "embedding_size": 64,
        "hidden_sizes": [growth * 64 << n for n in range(4)],
        "depths": list(RESNET_BLOCKS[depth]),
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
        "num_channels": channels,
        "out_features": ["stage4"],
    }


def keys(config: DetectionConfig) -> list[Key]:
    base = "" if config.classes is None else PREFIX
    return [
        *backbone_keys(config, base + "backbone.conv_encoder.model."),
        Key(base + "input_projection.{p}", "embed.projection.{p}"),
        Key(base + "position_embedding.row_embeddings.weight", "embed.places.rows.weight"),
        Key(base + "position_embedding.column_embeddings.weight", "embed.places.columns.weight"),
        Key(base + "query_position_embeddings.weight", "queries"),
        *layer_keys(base + "encoder.layers.{n}.", "stack.blocks.{n}."),
        *layer_keys(base + "decoder.layers.{n}.", "decoder.blocks.{n}."),
        Key(base + "decoder.layernorm.{p}", "decoder.norm.{p}"),
        Key("class_labels_classifier.{p}", "classes.{p}"),
        *(Key(f"bbox_predictor.layers.{n}.{{p}}", f"boxes.{2 * n}.{{p}}") for n in range(3)),
    ]


def layer_keys(theirs: str, ours: str) -> list[Key]:
    """The names of a layer; those of attention to the memory are the decoder's alone."""
    pairs = (("self_attn", "attention"), ("encoder_attn", "cross"))
    words = (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "out"))
    return [
        *(Key(f"{theirs}{a}.{b}.{{p}}", f"{ours}{x}.{y}.{{p}}") for a, x in pairs for b, y in words),
        *(Key(f"{theirs}{a}_layer_norm.{{p}}", f"{ours}{x}_norm.{{p}}") for a, x in pairs),
        Key(theirs + "fc1.{p}", ours + "feed_forward.up.{p}"),
        Key(theirs + "fc2.{p}", ours + "feed_forward.down.{p}"),
        Key(theirs + "final_layer_norm.{p}", ours + "feed_forward_norm.{p}"),
    ]


def backbone_keys(config: DetectionConfig, theirs: str) -> Iterator[Key]:
    """The names of a ResNet: as published (timm's, which are ours), or as transformers has them."""
    depth = config.embed.backbone
    if not isinstance(depth, int):
        raise BadInput(f"A DETR's backbone is a ResNet; this one has a stem of channels {depth}.")
    for convolution, norm, other in backbone_names(depth):
        if config.family == "detr_timm":
            names = convolution, norm
        else:
            names = other + ".convolution", other + ".normalization"
        yield Key(f"{theirs}{names[0]}.weight", f"embed.backbone.{convolution}.weight")
        yield Key(f"{theirs}{names[1]}.{{p}}", f"embed.backbone.{norm}.{{p}}")


def backbone_names(depth: int) -> Iterator[tuple[str, str, str]]:
    """Each convolution and the norm after it, and transformers' name for the two together."""
    yield "conv1", "bn1", "embedder.embedder"
    for stage, count in enumerate(RESNET_BLOCKS[depth]):
        for n in range(count):
            block, other = f"layer{stage + 1}.{n}", f"encoder.stages.{stage}.layers.{n}"
            for m in range(2 if depth < 50 else 3):
                yield f"{block}.conv{m + 1}", f"{block}.bn{m + 1}", f"{other}.layer.{m}"
            yield f"{block}.downsample.0", f"{block}.downsample.1", f"{other}.shortcut"
