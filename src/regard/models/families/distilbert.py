"""DistilBERT (Sanh et al. 2019): BERT with half the layers, no segments and no pooler."""

from __future__ import annotations

from typing import Any

from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, SpanHeadConfig
from .bert import architecture, bert, describe_head, our_activation, plain_head, read_lm_head, their_activation

PREFIX = "distilbert."
IGNORED = (r"embeddings\.position_ids", r"vocab_projector\.weight")
EPS = 1e-12


def distilbert(*, layers: int = 6, head: HeadConfig | None = None, **more: Any) -> TextConfig:
    """DistilBERT-base by default, 66,362,880 parameters; `more` as in `bert`.

    >>> distilbert().stack.layers
    6
    """
    return bert(layers=layers, segments=0, eps=EPS, pooler=False, head=head, family="distilbert", **more)


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    return distilbert(
        layers=config["n_layers"], dim=config["dim"], heads=config["n_heads"], hidden=config["hidden_dim"],
        vocabulary=config["vocab_size"], positions=config["max_position_embeddings"],
        activation=our_activation(config.get("activation", "gelu")), dropout=config.get("dropout", 0.1),
        attention_dropout=config.get("attention_dropout", 0.1), padding=config.get("pad_token_id", 0),
        head=read_head(config, shapes),
    )  # fmt: skip


def read_head(config: JsonObject, shapes: Shapes) -> HeadConfig | None:
    """The head whose weights the checkpoint has."""
    dim, dropout = config["dim"], config.get("seq_classif_dropout", 0.2)
    if "vocab_transform.weight" in shapes:
        names = {"hidden_size": dim, "layer_norm_eps": EPS}
        return read_lm_head({**config, **names}, our_activation(config.get("activation", "gelu")))
    if "pre_classifier.weight" in shapes:
        return ClassificationHeadConfig(shapes["classifier.weight"][0], dim, hidden="relu", dropout=dropout)
    return plain_head({"hidden_size": dim, "hidden_dropout_prob": config.get("dropout", 0.1)}, shapes)


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, embed = config.stack, config.embed
    return {
        "model_type": "distilbert",
        "architectures": [architecture("DistilBert", config.head)],
        "n_layers": stack.layers,
        "dim": stack.dim,
        "n_heads": stack.heads,
        "hidden_dim": stack.hidden,
        "vocab_size": embed.vocabulary,
        "max_position_embeddings": embed.positions,
        "activation": their_activation(stack.activation),
        "dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout,
        "pad_token_id": embed.padding,
        **describe_head(config.head),
    }


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.", base + "transformer.layer.{n}."
    dense = "pre_classifier.{p}" if isinstance(config.head, ClassificationHeadConfig) else "vocab_transform.{p}"
    return [
        Key(base + "embeddings.word_embeddings.weight", "embed.tokens.weight"),
        Key(base + "embeddings.position_embeddings.weight", "embed.places.weight"),
        Key(base + "embeddings.LayerNorm.{p}", "embed.norm.{p}"),
        Key(theirs + "attention.q_lin.{p}", block + "attention.q.{p}"),
        Key(theirs + "attention.k_lin.{p}", block + "attention.k.{p}"),
        Key(theirs + "attention.v_lin.{p}", block + "attention.v.{p}"),
        Key(theirs + "attention.out_lin.{p}", block + "attention.out.{p}"),
        Key(theirs + "sa_layer_norm.{p}", block + "attention_norm.{p}"),
        Key(theirs + "ffn.lin1.{p}", block + "feed_forward.up.{p}"),
        Key(theirs + "ffn.lin2.{p}", block + "feed_forward.down.{p}"),
        Key(theirs + "output_layer_norm.{p}", block + "feed_forward_norm.{p}"),
        Key(dense, "head.dense.{p}"),
        Key("vocab_layer_norm.{p}", "head.norm.{p}"),
        Key("vocab_projector.bias", "head.bias"),
        Key("vocab_projector.weight", "head.weight"),
        Key("qa_outputs.{p}" if isinstance(config.head, SpanHeadConfig) else "classifier.{p}", "head.out.{p}"),
    ]
