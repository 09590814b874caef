"""BigBird (Zaheer et al. 2020): BERT over blocks: near ones, random ones, the first and the last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...nn.old_names import accept_old_names
from ...nn.sparse.bigbird import BigBirdMask, BigBirdScore
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig
from .bert import (
    IGNORED,
    PREFIX,
    bert,
    encoder_keys,
    our_activation,
    plain_head,
    read_lm_head,
    read_sizes,
    word_keys,
    write_bert,
)

__all__ = ["IGNORED", "PREFIX", "bigbird", "keys", "read", "write"]


@accept_old_names(places="positions")
def bigbird(
    *,
    block: int | None = 64,
    random: int = 3,
    heads: int = 12,
    vocabulary: int = 50358,
    positions: int = 4096,
    activation: str = "gelu_tanh",
    scaled: bool = False,
    bias: str = "qkvof",
    **more: Any,
) -> TextConfig:
    """BigBird-base by default, 127,468,800 parameters with its pooler; `more` as in `bert`.

    `block` (their block_size) None lets every token see every other. Texts of no more than 5 + 2·random blocks always
    do. The blocks are those of the padded batch, so how long its longest text is matters to the others, as in the
    original. `scaled` multiplies the token embeddings by √dim.

    >>> bigbird(layers=2, random=2).stack.score
    BigBirdScore(block=64, random=2, positions=4096)
    """
    family = more.pop("family", "big_bird")
    plain = bert(heads=heads, vocabulary=vocabulary, positions=positions, activation=activation, family=family, **more)
    stack = replace(plain.stack, bias=bias)
    if block is not None:
        mask, score = BigBirdMask(block, random, heads, positions), BigBirdScore(block, random, positions)
        stack = replace(stack, mask=mask, score=score)
    return replace(plain, stack=stack, embed=replace(plain.embed, scaled=scaled))


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    sparse = config.get("attention_type", "block_sparse") == "block_sparse"
    return bigbird(
        **read_sizes({"hidden_act": "gelu_new", **config}),
        block=config.get("block_size", 64) if sparse else None,
        random=config.get("num_random_blocks", 3),
        scaled=config.get("rescale_embeddings", False),
        bias="qkvof" if config.get("use_bias", True) else "of",
        pooler=any(name.endswith("pooler.weight") for name in shapes),
        head=read_head(config, shapes),
    )


def read_head(config: JsonObject, shapes: Shapes) -> HeadConfig | None:
    """The head whose weights the checkpoint has."""
    activation = our_activation(config.get("hidden_act", "gelu_new"))
    if "cls.predictions.bias" in shapes:
        return read_lm_head(config, activation)
    if "classifier.out_proj.weight" in shapes:
        dropout = config.get("classifier_dropout") or config.get("hidden_dropout_prob", 0.1)
        classes = shapes["classifier.out_proj.weight"][0]
        return ClassificationHeadConfig(classes, config["hidden_size"], hidden=activation, dropout=dropout)
    return plain_head(config, shapes)


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    mask = config.stack.mask
    blocks: JsonObject = {"attention_type": "original_full"}
    if isinstance(mask, BigBirdMask):
        blocks = {"attention_type": "block_sparse", "block_size": mask.block, "num_random_blocks": mask.random}
    return {
        **write_bert(config, "big_bird", "BigBird"),
        **blocks,
        "rescale_embeddings": config.embed.scaled,
        "use_bias": "q" in config.stack.bias,
    }


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    vocabulary = isinstance(config.head, LMHeadConfig)
    inner = config.head.hidden if isinstance(config.head, ClassificationHeadConfig) else None
    return [
        *encoder_keys(base),
        Key(base + "pooler.{p}", "pooler.dense.{p}"),
        *(word_keys(config) if vocabulary else [Key("classifier.dense.{p}", "head.dense.{p}")]),
        Key("classifier.out_proj.{p}" if inner else "classifier.{p}", "head.out.{p}"),
    ]
