"""CLIP (Radford et al. 2021): both towers, or one of them."""

from __future__ import annotations

from typing import Literal

from ...attention.parts.masks import Causal
from ...errors import Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.patch_embedding import ImageEmbeddingConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.old_names import accept_old_names
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..dual_encoder import DualEncoderConfig, TowerConfig
from .vit import read_activation, write_activation

PREFIX = ""
IGNORED = (r"(text_model\.|vision_model\.)?embeddings\.position_ids",)

TEXT = {"layers": 12, "dim": 512, "heads": 8, "hidden": 2048}
IMAGE = {"layers": 12, "dim": 768, "heads": 12, "hidden": 3072}
IMAGE_STACK: JsonObject = {"activation": "quick_gelu"}
TEXT_STACK: JsonObject = {"activation": "quick_gelu", "mask": Causal()}

HIGHEST = 2
"""The end token in older configurations, where it means the token with the highest number in each row."""


@accept_old_names(places="positions")
def clip(
    *,
    text: JsonObject | None = TEXT,
    image: JsonObject | None = IMAGE,
    vocabulary: int = 49408,
    positions: int = 77,
    end: int | Literal["highest", "mean"] = 49407,
    size: int = 224,
    patch: int = 32,
    channels: int = 3,
    shared: int | None = 512,
) -> DualEncoderConfig:
    """CLIP ViT-B/32 by default, 151,277,313 parameters.

    `text` and `image` are arguments of `StackConfig` for each tower (None leaves it out); `shared` is the dimension of
    the shared space (projection_dim), `end` the token that is pooled (see `TowerConfig`).

    >>> clip(image=None).text.stack.mask
    Causal()
    """
    family = "clip" if text and image else "clip_text_model" if text else "clip_vision_model"
    towers: dict[str, TowerConfig] = {}
    if text:
        stack = StackConfig(**TEXT_STACK | text)
        towers["text"] = TowerConfig(TextEmbeddingConfig(vocabulary, stack.dim, positions), stack, shared, end)
    if image:
        stack = StackConfig(**IMAGE_STACK | image)
        embed = ImageEmbeddingConfig(size, patch, stack.dim, channels, bias=False, norm=stack.eps)
        towers["image"] = TowerConfig(embed, stack, shared)
    return DualEncoderConfig(towers.get("text"), towers.get("image"), family=family)


def read(config: JsonObject, shapes: Shapes) -> DualEncoderConfig:
    """Our configuration of theirs."""
    if "classifier.weight" in shapes:
        raise Unsupported("This CLIP has a head of classes over its patches, which is not read here. Save its towers.")
    text, image = tower_config(config, "text"), tower_config(config, "vision")
    parts: JsonObject = {"text": None, "image": None}
    if text is not None:
        parts |= {"text": read_stack(text, TEXT), **read_text(text)}
    if image is not None:
        parts |= {"image": read_stack(image, IMAGE), **read_image(image)}
    shared = shapes.get("text_projection.weight") or shapes.get("visual_projection.weight")
    return clip(**parts, shared=shared[0] if shared else None)


def tower_config(config: JsonObject, side: str) -> JsonObject | None:
    """Their settings of a tower: the whole configuration for a single tower, else a part, which older files split."""
    if config["model_type"] != "clip":
        return config if config["model_type"] == f"clip_{side}_model" else None
    return {**(config.get(f"{side}_config") or {}), **(config.get(f"{side}_config_dict") or {})}


def read_stack(config: JsonObject, default: JsonObject) -> JsonObject:
    """A tower's arguments of `StackConfig`; their files leave out ViT-B/32's values."""
    return {
        "layers": config.get("num_hidden_layers", default["layers"]),
        "dim": config.get("hidden_size", default["dim"]),
        "heads": config.get("num_attention_heads", default["heads"]),
        "hidden": config.get("intermediate_size", default["hidden"]),
        "activation": read_activation(config, "quick_gelu"),
        "eps": config.get("layer_norm_eps", 1e-5),
        "attention_dropout": config.get("attention_dropout", 0.0),
    }


def read_text(config: JsonObject) -> JsonObject:
    end = config.get("eos_token_id", 49407)
    return {
        "vocabulary": config.get("vocab_size", 49408),
        "positions": config.get("max_position_embeddings", 77),
        "end": "highest" if end == HIGHEST else end,
    }


def read_image(config: JsonObject) -> JsonObject:
    return {
        "size": config.get("image_size", 224),
        "patch": config.get("patch_size", 32),
        "channels": config.get("num_channels", 3),
    }


def write(config: DualEncoderConfig) -> JsonObject:
    """Their configuration of ours."""
    towers = {}
    if config.text is not None:
        towers["text"] = write_text(config.text)
    if config.image is not None:
        towers["vision"] = write_image(config.image)
    if len(towers) == 1:
        side, inside = towers.popitem()
        architecture = f"CLIP{side.capitalize()}Model" + ("WithProjection" if "projection_dim" in inside else "")
        return {"architectures": [architecture], **inside}
    shared = config.text.shared if config.text else None
    inside = {f"{side}_config": tower for side, tower in towers.items()}
    return {"model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": shared, **inside}


def write_stack(tower: TowerConfig) -> JsonObject:
    stack: StackConfig = tower.stack
    return {
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "intermediate_size": stack.hidden,
        "hidden_act": write_activation(stack.activation),
        "layer_norm_eps": stack.eps,
        "attention_dropout": stack.attention_dropout,
        **({} if tower.shared is None else {"projection_dim": tower.shared}),
    }


def write_text(tower: TowerConfig[TextEmbeddingConfig, StackConfig]) -> JsonObject:
    return {
        "model_type": "clip_text_model",
        "vocab_size": tower.embed.vocabulary,
        "max_position_embeddings": tower.embed.positions,
        "eos_token_id": HIGHEST if tower.end == "highest" else tower.end,
        **write_stack(tower),
    }


def write_image(tower: TowerConfig[ImageEmbeddingConfig, StackConfig]) -> JsonObject:
    return {
        "model_type": "clip_vision_model",
        "image_size": tower.embed.size,
        "patch_size": tower.embed.patch,
        "num_channels": tower.embed.channels,
        **write_stack(tower),
    }


def keys(config: DualEncoderConfig) -> list[Key]:
    return [
        Key("logit_scale", "scale"),
        Key("text_projection.weight", "text.project.weight"),
        Key("visual_projection.weight", "image.project.weight"),
        *tower_keys(tower_prefix(config, "text_model."), "text."),
        *tower_keys(tower_prefix(config, "vision_model."), "image."),
    ]


def tower_prefix(config: DualEncoderConfig, name: str) -> str:
    """The prefix of a tower's names: none for a tower that is the whole model."""
    towers = [tower for tower in (config.text, config.image) if tower is not None]
    return "" if len(towers) == 1 and towers[0].shared is None else name


def tower_keys(theirs: str, ours: str) -> list[Key]:
    block, layer = ours + "stack.blocks.{n}.", theirs + "encoder.layers.{n}."
    norm = "final_layer_norm" if ours == "text." else "post_layernorm"
    return [
        Key(theirs + "embeddings.token_embedding.weight", ours + "embed.tokens.weight"),
        Key(theirs + "embeddings.class_embedding", ours + "embed.first"),
        Key(theirs + "embeddings.patch_embedding.weight", ours + "embed.patches.projection.weight"),
        Key(theirs + "embeddings.position_embedding.weight", ours + "embed.places.weight"),
        Key(theirs + "pre_layrnorm.{p}", ours + "embed.norm.{p}"),
        Key(layer + "layer_norm1.{p}", block + "attention_norm.{p}"),
        Key(layer + "self_attn.q_proj.{p}", block + "attention.q.{p}"),
        Key(layer + "self_attn.k_proj.{p}", block + "attention.k.{p}"),
        Key(layer + "self_attn.v_proj.{p}", block + "attention.v.{p}"),
        Key(layer + "self_attn.out_proj.{p}", block + "attention.out.{p}"),
        Key(layer + "layer_norm2.{p}", block + "feed_forward_norm.{p}"),
        Key(layer + "mlp.fc1.{p}", block + "feed_forward.up.{p}"),
        Key(layer + "mlp.fc2.{p}", block + "feed_forward.down.{p}"),
        Key(theirs + norm + ".{p}", ours + "stack.norm.{p}"),
    ]
