"""ModernBERT (Warner et al. 2024): local and global layers with rotary positions."""

from __future__ import annotations

from typing import Literal

from ...attention.parts.masks import Window
from ...attention.parts.positions import Position, Rotary
from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.parts.layer_positions import LayerPositions
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes, stack_of
from ..checkpoint.rope import read_rotary, write_rope
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig
from .bert import architecture, our_activation, their_activation

PREFIX = "model."
IGNORED = (r"decoder\.weight",)

POOLED = ("SequenceClassification", "TokenClassification")
GLOBAL, LOCAL = Rotary(160000.0), Rotary(10000.0)


def modernbert(
    *,
    layers: int = 22,
    dim: int = 768,
    heads: int = 12,
    hidden: int = 1152,
    vocabulary: int = 50368,
    window: int = 128,
    layer_types: tuple[str, ...] | None = None,
    global_position: Position = GLOBAL,
    local_position: Position = LOCAL,
    activation: str = "gelu",
    bias: str = "",
    norm_bias: bool = False,
    eps: float = 1e-5,
    padding: int | None = 50283,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    hidden_dropout: float = 0.0,
    head: HeadConfig | Literal["vocabulary"] | None = None,
) -> TextConfig:
    """ModernBERT-base by default, 149,014,272 parameters.

    Every third layer sees all tokens; the others (`layer_types`) see `window` // 2 on either side, with rotary
    positions of another base. The first layer reads the embedding's norm.

    >>> modernbert(layers=2).stack.mask.masks
    (None, Window(before=64, after=64))
    """
    types = layer_types or tuple("sliding_attention" if n % 3 else "full_attention" for n in range(layers))
    local, reach = [layer_type == "sliding_attention" for layer_type in types], window // 2
    if head == "vocabulary":
        biases = "n" if norm_bias else ""
        head = LMHeadConfig(vocabulary, dim, bias=True, transform="gelu", eps=eps, transform_bias=biases)
    return TextConfig(
        embed=TextEmbeddingConfig(vocabulary, dim, norm=eps, norm_bias=norm_bias, padding=padding, dropout=dropout),
        stack=StackConfig(
            dim, layers, heads, hidden, activation=activation, gated=True, eps=eps, bias=bias,
            norm="layer" if norm_bias else "layer_no_bias", first_norm=False,
            mask=tuple(Window(reach, reach) if x else None for x in local),
            position=tuple(local_position if x else global_position for x in local), dropout=attention_dropout,
            attention_dropout=attention_dropout, hidden_dropout=hidden_dropout,
        ),
        head=head,
        family="modernbert",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    dim, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    every = config.get("global_attn_every_n_layers", 3)
    types = config.get("layer_types") or ["sliding_attention" if n % every else "full_attention" for n in range(layers)]
    rope = config.get("rope_parameters") or {}
    bias = ("qkvo" if config.get("attention_bias") else "") + ("f" if config.get("mlp_bias") else "")
    return modernbert(
        layers=layers, dim=dim, heads=heads, hidden=config["intermediate_size"], vocabulary=config["vocab_size"],
        window=config.get("local_attention", 128), layer_types=tuple(types),
        global_position=read_rotary(
            {}, dim // heads, rope=rope.get("full_attention") or {}, base=config.get("global_rope_theta", 160000.0)
        ),
        local_position=read_rotary(
            {}, dim // heads, rope=rope.get("sliding_attention") or {}, base=config.get("local_rope_theta") or 10000.0
        ),
        activation=our_activation(config.get("hidden_activation", "gelu")), bias=bias,
        norm_bias=config.get("norm_bias", False), eps=config.get("norm_eps", 1e-5),
        padding=config.get("pad_token_id", 50283),
        dropout=config.get("embedding_dropout", 0.0), attention_dropout=config.get("attention_dropout", 0.0),
        hidden_dropout=config.get("mlp_dropout", 0.0), head=read_head(config, shapes),
    )  # fmt: skip


def read_head(config: JsonObject, shapes: Shapes) -> HeadConfig | None:
    """The head whose weights the checkpoint has: of words, or of classes of the text or of each token."""
    if "head.dense.weight" not in shapes:
        return None
    dim, eps = config["hidden_size"], config.get("norm_eps", 1e-5)
    activation = our_activation(config.get("classifier_activation", "gelu"))
    biases = ("d" if config.get("classifier_bias") else "") + ("n" if config.get("norm_bias") else "")
    if "classifier.weight" not in shapes:
        return LMHeadConfig(
            config["vocab_size"], dim, tied=config.get("tie_word_embeddings", True),
            bias=config.get("decoder_bias", True), transform=activation, eps=eps, transform_bias=biases,
        )  # fmt: skip
    kinds = {name.partition("For")[2] for name in config.get("architectures") or []}
    if len(kinds & set(POOLED)) != 1:
        raise Unsupported(
            f"This ModernBERT is a classifier of {config.get('architectures')}; those of sequences and of tokens are "
            "read here, by this name in config.json."
        )
    return ClassificationHeadConfig(
        shapes["classifier.weight"][0], dim, per_token="TokenClassification" in kinds,
        pool="mean" if config.get("classifier_pooling", "cls") == "mean" else "first", hidden=activation,
        dropout=config.get("classifier_dropout", 0.0), norm=eps, transform_bias=biases,
    )  # fmt: skip


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, embed, head, position = config.stack, config.embed, config.head, config.stack.position
    masks = stack.layer_masks(training=False)
    reaches = {mask.before for mask in masks if isinstance(mask, Window) and mask.before == mask.after}
    local = [mask is not None for mask in masks]
    if not isinstance(position, LayerPositions) or len(reaches) > 1 or stack.first_norm:
        raise BadInput("This cannot be written as a ModernBERT: use the configuration of the modernbert() preset.")
    ropes = {
        layer_type: next((write_rope(x, stack.dim // stack.heads) for x, own in pairs if own is wanted), None)
        for layer_type, wanted in (("full_attention", False), ("sliding_attention", True))
        if (pairs := list(zip(position.positions, local, strict=True)))
    }
    return {
        "model_type": "modernbert",
        "architectures": [architecture("ModernBert", head)],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "intermediate_size": stack.hidden,
        "vocab_size": embed.vocabulary,
        "pad_token_id": embed.padding,
        "local_attention": 2 * reaches.pop() if reaches else 128,
        "layer_types": ["sliding_attention" if x else "full_attention" for x in local],
        "rope_parameters": {name: rope for name, rope in ropes.items() if rope is not None},
        "hidden_activation": their_activation(stack.activation),
        "norm_bias": stack.norm == "layer",
        "norm_eps": stack.eps,
        "attention_bias": "q" in stack.bias,
        "mlp_bias": "f" in stack.bias,
        "embedding_dropout": embed.dropout,
        "attention_dropout": stack.attention_dropout,
        "mlp_dropout": stack.hidden_dropout,
        **write_head(head),
    }


def write_head(head: HeadConfig | None) -> JsonObject:
    if isinstance(head, LMHeadConfig):
        own: JsonObject = {"tie_word_embeddings": head.tied, "decoder_bias": head.bias}
        activation = head.transform
    elif isinstance(head, ClassificationHeadConfig):
        own = {"num_labels": head.classes, "classifier_dropout": head.dropout}
        own |= {} if head.per_token else {"classifier_pooling": "mean" if head.pool == "mean" else "cls"}
        activation = head.hidden
    else:
        return {}
    return {
        **own,
        "classifier_bias": "d" in head.transform_bias,
        "classifier_activation": their_activation(activation or "gelu"),
    }


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.", base + "layers.{n}."
    return [
        Key(base + "embeddings.tok_embeddings.weight", "embed.tokens.weight"),
        Key(base + "embeddings.norm.{p}", "embed.norm.{p}"),
        Key(theirs + "attn_norm.{p}", block + "attention_norm.{p}"),
        Key(theirs + "attn.Wqkv.{p}", tuple(block + f"attention.{x}.{{p}}" for x in "qkv"), stack_of(3)),
        Key(theirs + "attn.Wo.{p}", block + "attention.out.{p}"),
        Key(theirs + "mlp_norm.{p}", block + "feed_forward_norm.{p}"),
        Key(theirs + "mlp.Wi.{p}", tuple(block + f"feed_forward.{x}.{{p}}" for x in ("gate", "up")), stack_of(2)),
        Key(theirs + "mlp.Wo.{p}", block + "feed_forward.down.{p}"),
        Key(base + "final_norm.{p}", "stack.norm.{p}"),
        Key("head.dense.{p}", "head.dense.{p}"),
        Key("head.norm.{p}", "head.norm.{p}"),
        Key("decoder.bias", "head.bias"),
        Key("decoder.weight", "head.weight"),
        Key("classifier.{p}", "head.out.{p}"),
    ]
