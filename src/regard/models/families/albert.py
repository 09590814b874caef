"""ALBERT (Lan et al. 2020): all layers share their weights."""

from __future__ import annotations

from typing import Any

from ...errors import Unsupported
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import TextConfig
from ..heads import HeadConfig, SpanHeadConfig, is_tied
from .bert import bert, encoder_keys, our_activation, plain_head, read_lm_head, read_sizes, write_bert

PREFIX = "albert."
IGNORED = (
    r"embeddings\.(position_ids|token_type_ids)",
    r"predictions\.(bias|decoder\.weight|decoder\.bias)",
    r"sop_classifier\.classifier\.(weight|bias)",
)

DEFAULTS: JsonObject = {
    "hidden_act": "gelu_new",
    "embedding_size": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""What transformers takes where a folder does not say."""


def albert(
    *,
    layers: int = 12,
    dim: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    vocabulary: int = 30000,
    inner: int = 128,
    unique_layers: int = 1,
    activation: str = "gelu_tanh",
    dropout: float = 0.0,
    head: HeadConfig | None = None,
    **more: Any,
) -> TextConfig:
    """ALBERT-base 2 by default, 11,683,584 parameters with its pooler; `more` as in `bert`.

    Embeddings have `inner` dims; its num_hidden_groups are `unique_layers`.

    >>> albert().stack.unique_layers
    1
    """
    return bert(
        layers=layers, dim=dim, heads=heads, hidden=hidden, vocabulary=vocabulary, inner=inner,
        unique_layers=unique_layers, activation=activation, dropout=dropout, head=head,
        **{"family": "albert", **more},
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    if config.get("inner_group_num", 1) != 1:
        raise Unsupported("This ALBERT has groups of several layers (inner_group_num), which are not read here.")
    config = {**DEFAULTS, **config}
    pooler = f"{PREFIX}pooler.weight" in shapes or "pooler.weight" in shapes
    return albert(
        **read_sizes(config), inner=config["embedding_size"], pooler=pooler,
        unique_layers=config.get("num_hidden_groups", 1), head=read_head(config, shapes, pooler),
    )  # fmt: skip


def read_head(config: JsonObject, shapes: Shapes, pooler: bool) -> HeadConfig | None:
    """The head whose weights the checkpoint has."""
    if "predictions.dense.weight" in shapes:
        return read_lm_head(config, our_activation(config["hidden_act"]))
    return plain_head({**config, "classifier_dropout": config.get("classifier_dropout_prob", 0.1)}, shapes, pooler)


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    return {
        **write_bert(config, "albert", "Albert"),
        "embedding_size": config.embed.inner,
        "num_hidden_groups": config.stack.unique_layers,
        "inner_group_num": 1,
    }


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    embeddings = [key for key in encoder_keys(base) if key.names[0].startswith("embed.")]
    groups, layers = config.stack.unique_layers or config.stack.layers, config.stack.layers
    return [
        *embeddings,
        Key(base + "encoder.embedding_hidden_mapping_in.{p}", "embed.up.{p}"),
        *(key for group in range(groups) for key in layer_keys(base, group, -(-group * layers // groups))),
        Key(base + "pooler.{p}", "pooler.dense.{p}"),
        Key("predictions.dense.{p}", "head.dense.{p}"),
        Key("predictions.LayerNorm.{p}", "head.norm.{p}"),
        Key("predictions.bias" if is_tied(config.head, True) else "predictions.decoder.bias", "head.bias"),
        Key("predictions.decoder.weight", "head.weight"),
        Key("qa_outputs.{p}" if isinstance(config.head, SpanHeadConfig) else "classifier.{p}", "head.out.{p}"),
    ]


def layer_keys(base: str, group: int, layer: int) -> list[Key]:
    """The layer that a group's layers share, which here is the first of them."""
    theirs, block = f"{base}encoder.albert_layer_groups.{group}.albert_layers.0.", f"stack.blocks.{layer}."
    pairs = [("query", "q"), ("key", "k"), ("value", "v"), ("dense", "out")]
    return [
        *(Key(f"{theirs}attention.{a}.{{p}}", f"{block}attention.{b}.{{p}}") for a, b in pairs),
        Key(theirs + "attention.LayerNorm.{p}", block + "attention_norm.{p}"),
        Key(theirs + "ffn.{p}", block + "feed_forward.up.{p}"),
        Key(theirs + "ffn_output.{p}", block + "feed_forward.down.{p}"),
        Key(theirs + "full_layer_layer_norm.{p}", block + "feed_forward_norm.{p}"),
    ]
