"""SigLIP (Zhai et al. 2023) and SigLIP 2 (Tschannen et al. 2025): both towers, or one of them."""

from __future__ import annotations

import math

from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.patch_embedding import ImageEmbeddingConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import SAME, Key, Shapes, TensorTransform, stack_of
from ..dual_encoder import DualEncoderConfig, TowerConfig
from ..heads import AttentionPoolingHeadConfig
from .clip import write_stack
from .vit import TWICE_INSIDE, read_activation

PREFIX = ""
IGNORED = (r"(text_model\.|vision_model\.)?embeddings\.position_ids",)

SIZES = {"layers": 12, "dim": 768, "heads": 12, "hidden": 3072}
STACK: JsonObject = {"activation": "gelu_tanh", "eps": 1e-6}
GEMMA_VOCABULARY, GEMMA_PADDING = 256_000, 0
"""SigLIP 2 reads Gemma's tokens; its configurations repeat the padding token of the first SigLIP."""
SCALAR = TensorTransform(lambda x: (x[0],), lambda x: x[None])


def siglip(
    *,
    text: JsonObject | None = SIZES,
    image: JsonObject | None = SIZES,
    vocabulary: int = 32_000,
    positions: int = 64,
    padding: int = 1,
    size: int | tuple[int, int] = 224,
    patch: int = 16,
    channels: int = 3,
    shared: int | None = None,
    pooler: bool = True,
    naflex: bool = False,
) -> DualEncoderConfig:
    """SigLIP-B/16 for 224 × 224 pixels by default, 203,155,970 parameters.

    `text` and `image` are arguments of `StackConfig` for each tower (None leaves it out); `shared` is the dimension of
    the text's projection (the text tower's own unless given). Texts with `lengths` are filled up with the token
    `padding` to all positions, as in training, and their last token is projected; images are pooled by a learned query
    (`pooler`). The loss is a sigmoid for each pair. SigLIP 2 of one size of images has this form with a vocabulary of
    256,000 and `padding=0`.

    >>> siglip(image=None).text.end
    'last'
    """
    name = "siglip2" if naflex else "siglip"
    family = name if text and image else f"{name}_text_model" if text else f"{name}_vision_model"
    towers: dict[str, TowerConfig] = {}
    if text:
        stack = StackConfig(**STACK | text)
        embed = TextEmbeddingConfig(vocabulary, stack.dim, positions)
        towers["text"] = TowerConfig(embed, stack, shared or stack.dim, "last", bias=True, fill=padding)
    if image:
        stack = StackConfig(**STACK | image)
        resize = "bilinear" if naflex else "bicubic"
        embed = ImageEmbeddingConfig(size, patch, stack.dim, channels, class_token=False, resize=resize)
        hidden = stack.hidden or 4 * stack.dim
        head = AttentionPoolingHeadConfig(stack.dim, stack.heads, hidden, stack.activation, stack.eps)
        towers["image"] = TowerConfig(embed, stack, None, "mean", head if pooler else None)
    return DualEncoderConfig(towers.get("text"), towers.get("image"), family=family, loss="sigmoid")


def siglip2(
    *,
    text: JsonObject | None = SIZES,
    image: JsonObject | None = SIZES,
    vocabulary: int = GEMMA_VOCABULARY,
    positions: int = 64,
    padding: int = GEMMA_PADDING,
    patches: int = 256,
    patch: int = 16,
    channels: int = 3,
    shared: int | None = None,
    pooler: bool = True,
) -> DualEncoderConfig:
    """SigLIP 2 NaFlex, B/16 with 256 patches by default, 375,234,050 parameters.

    Images keep their ratio: those of one batch may have different sizes (`sizes`, see `DualEncoderModel`), and position
    embeddings of √`patches` rows and columns are resized to the grid of each (`fit_patches` finds its pixels).

    >>> siglip2(text=None).image.embed.resize
    'bilinear'
    """
    side = math.isqrt(patches)
    if side * side != patches:
        raise BadInput(f"siglip2's patches is {patches}; position embeddings are a square, so give one: {side * side}.")
    return siglip(
        text=text, image=image, vocabulary=vocabulary, positions=positions, padding=padding, size=side * patch,
        patch=patch, channels=channels, shared=shared, pooler=pooler, naflex=True,
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> DualEncoderConfig:
    """Our configuration of theirs."""
    if "classifier.weight" in shapes:
        raise Unsupported("This SigLIP has a head of classes, which is not read here. Save its towers; train a head.")
    text, image = tower_config(config, "text"), tower_config(config, "vision")
    naflex, arguments = config["model_type"].startswith("siglip2"), JsonObject(text=None, image=None)
    if text is not None:
        arguments |= {"text": read_stack(text), **read_text(text)}
    if image is not None:
        arguments |= {"image": read_stack(image), **read_image(image, naflex)}
    if text is not None and image is not None and (arguments["shared"] or text_dim(text)) != text_dim(image):
        raise Unsupported(
            f"This SigLIP projects texts to {arguments['shared'] or text_dim(text)} dims, and its images have "
            f"{text_dim(image)}; they must be equal. Set projection_size in text_config to {text_dim(image)}."
        )
    return (siglip2 if naflex else siglip)(**arguments)


def tower_config(config: JsonObject, side: str) -> JsonObject | None:
    """Their settings of a tower: the whole configuration for a single tower, else a part."""
    if config["model_type"] in ("siglip", "siglip2"):
        return config.get(f"{side}_config") or {}
    return config if config["model_type"].endswith(f"{side}_model") else None


def text_dim(config: JsonObject) -> int:
    return config.get("hidden_size", SIZES["dim"])


def read_stack(config: JsonObject) -> JsonObject:
    """A tower's arguments of `StackConfig`; their files leave out B/16's values."""
    return {
        "layers": config.get("num_hidden_layers", SIZES["layers"]),
        "dim": text_dim(config),
        "heads": config.get("num_attention_heads", SIZES["heads"]),
        "hidden": config.get("intermediate_size", SIZES["hidden"]),
        "activation": read_activation(config, "gelu_pytorch_tanh"),
        "eps": config.get("layer_norm_eps", 1e-6),
        "attention_dropout": config.get("attention_dropout", 0.0),
    }


def read_text(config: JsonObject) -> JsonObject:
    vocabulary, padding = config.get("vocab_size", 32_000), config.get("pad_token_id", 1)
    return {
        "vocabulary": vocabulary,
        "positions": config.get("max_position_embeddings", 64),
        "padding": GEMMA_PADDING if vocabulary == GEMMA_VOCABULARY or padding is None else padding,
        "shared": config.get("projection_size"),
    }


def read_image(config: JsonObject, naflex: bool) -> JsonObject:
    patch, size = config.get("patch_size", 16), config.get("image_size", 224)
    if not isinstance(patch, int):
        raise Unsupported(f"This SigLIP's patches are {patch} pixels; only squares, one number, are read here.")
    arguments: JsonObject = {
        "patch": patch,
        "channels": config.get("num_channels", 3),
        "pooler": config.get("vision_use_head", True),
    }
    if naflex:
        return arguments | {"patches": config.get("num_patches", 256)}
    return arguments | {"size": size if isinstance(size, int) else (size[0], size[1])}


def write(config: DualEncoderConfig) -> JsonObject:
    """Their configuration of ours."""
    name = str(config.family).split("_")[0]
    if config.loss != "sigmoid" or name not in ("siglip", "siglip2"):
        raise BadInput("This cannot be written as a SigLIP: change it to the configuration of the siglip() preset.")
    towers = {}
    if config.text is not None:
        towers["text"] = write_text(config.text, name)
    if config.image is not None:
        towers["vision"] = write_image(config.image, name)
    title = name.capitalize()
    if len(towers) == 1:
        side, inside = towers.popitem()
        return {"architectures": [f"{title}{side.capitalize()}Model"], **inside}
    inside = {f"{side}_config": tower for side, tower in towers.items()}
    return {"model_type": name, "architectures": [f"{title}Model"], **inside}


def write_text(tower: TowerConfig[TextEmbeddingConfig, StackConfig], name: str) -> JsonObject:
    sizes = {key: value for key, value in write_stack(tower).items() if key != "projection_dim"}
    return {
        "model_type": f"{name}_text_model",
        "vocab_size": tower.embed.vocabulary,
        "max_position_embeddings": tower.embed.positions,
        "pad_token_id": tower.fill,
        "projection_size": tower.shared,
        **sizes,
    }


def write_image(tower: TowerConfig[ImageEmbeddingConfig, StackConfig], name: str) -> JsonObject:
    size, patch = tower.embed.size, tower.embed.patch
    if name == "siglip2" and not isinstance(size, int):
        raise BadInput(f"This SigLIP 2 has position embeddings for {size} pixels; they must be a square.")
    pixels = {"num_patches": (size // patch) ** 2} if isinstance(size, int) else {}
    return {
        "model_type": f"{name}_vision_model",
        "patch_size": patch,
        "num_channels": tower.embed.channels,
        **(pixels if name == "siglip2" else {"image_size": size}),
        **({} if tower.pooler is not None else {"vision_use_head": False}),
        **write_stack(tower),
    }


def keys(config: DualEncoderConfig) -> list[Key]:
    alone = config.text is None or config.image is None
    tables = [] if config.text is None else text_keys("" if alone else "text_model.")
    if config.image is not None:
        tables += image_keys("" if alone else "vision_model.", config.image.embed)
    return [Key("logit_scale", "scale", SCALAR), Key("logit_bias", "bias", SCALAR), *tables]


def text_keys(theirs: str) -> list[Key]:
    return [
        Key(theirs + "embeddings.token_embedding.weight", "text.embed.tokens.weight"),
        Key(theirs + "embeddings.position_embedding.weight", "text.embed.places.weight"),
        *encoder_keys(theirs, "text."),
        Key(theirs + "final_layer_norm.{p}", "text.stack.norm.{p}"),
        Key(theirs + "head.{p}", "text.project.{p}"),
    ]


def image_keys(theirs: str, embed: ImageEmbeddingConfig) -> list[Key]:
    head, pooler = theirs + "head.", "image.pooler."
    flat = pixels_last(embed) if embed.resize == "bilinear" else SAME
    qkv = tuple(pooler + f"attention.{x}.{{p}}" for x in "qkv")
    return [
        Key(theirs + "embeddings.patch_embedding.weight", "image.embed.patches.projection.weight", flat),
        Key(theirs + "embeddings.patch_embedding.bias", "image.embed.patches.projection.bias"),
        Key(theirs + "embeddings.position_embedding.weight", "image.embed.places.weight"),
        *encoder_keys(theirs, "image."),
        Key(theirs + "post_layernorm.{p}", "image.stack.norm.{p}"),
        Key(head + "probe", pooler + "probe", TWICE_INSIDE),
        Key(head + "attention.in_proj_{p}", qkv, stack_of(3)),
        Key(head + "attention.out_proj.{p}", pooler + "attention.out.{p}"),
        Key(head + "layernorm.{p}", pooler + "norm.{p}"),
        Key(head + "mlp.fc1.{p}", pooler + "feed_forward.up.{p}"),
        Key(head + "mlp.fc2.{p}", pooler + "feed_forward.down.{p}"),
    ]


def pixels_last(embed: ImageEmbeddingConfig) -> TensorTransform:
    """NaFlex projects flattened patches, whose pixels have their channels last."""
    sizes = (embed.patch, embed.patch, embed.channels)
    return TensorTransform(
        lambda x: (x.unflatten(1, sizes).permute(0, 3, 1, 2),), lambda x: x.permute(0, 2, 3, 1).flatten(1)
    )


def encoder_keys(theirs: str, ours: str) -> list[Key]:
    block, layer = ours + "stack.blocks.{n}.", theirs + "encoder.layers.{n}."
    projections = [("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "out")]
    return [
        Key(layer + "layer_norm1.{p}", block + "attention_norm.{p}"),
        *(Key(layer + f"self_attn.{a}.{{p}}", block + f"attention.{b}.{{p}}") for a, b in projections),
        Key(layer + "layer_norm2.{p}", block + "feed_forward_norm.{p}"),
        Key(layer + "mlp.fc1.{p}", block + "feed_forward.up.{p}"),
        Key(layer + "mlp.fc2.{p}", block + "feed_forward.down.{p}"),
    ]
