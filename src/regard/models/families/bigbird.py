"""BigBird (Zaheer et al. 2020): BERT over blocks: near ones, random ones, the first and the last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...nn.parts import read_call
from ..checkpoint.key_table import Key
from ..config import Sequence
from ..heads import Classes, Vocabulary
from .bert import IGNORED, PREFIX, bert, encoder_keys, ours, plain_head, sizes, word_keys, words, written

__all__ = ["IGNORED", "PREFIX", "bigbird", "keys", "read", "write"]


def bigbird(
    *,
    block: int | None = 64,
    random: int = 3,
    heads: int = 12,
    vocabulary: int = 50358,
    places: int = 4096,
    activation: str = "gelu_tanh",
    scaled: bool = False,
    bias: str = "qkvof",
    **more: Any,
) -> Sequence:
    """BigBird-base by default, 127,468,800 parameters with its pooler; `more` as in `bert`.

    `block` (their block_size) None lets every token see every other. Texts of no more than 5 + 2·random blocks always
    do. The blocks are those of the padded batch, so how long its longest text is matters to the others, as in the
    original. `scaled` multiplies the token embeddings by √dim.

    >>> bigbird(layers=2, random=2).stack.score
    'BigBirdDot(block=64, random=2, places=4096, layer={layer})'
    """
    family = more.pop("family", "big_bird")
    plain = bert(heads=heads, vocabulary=vocabulary, places=places, activation=activation, family=family, **more)
    stack = replace(plain.stack, bias=bias)
    if block is not None:
        plan = f"block={block}, random={random}, places={places}, layer={{layer}}"
        mask = f"BigBirdBlocks({plan}, heads={heads}, drawn={{training}})"
        stack = replace(stack, mask=mask, score=f"BigBirdDot({plan})")
    return replace(plain, stack=stack, embed=replace(plain.embed, scaled=scaled))


def read(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Sequence:
    """Our configuration of theirs."""
    sparse = config.get("attention_type", "block_sparse") == "block_sparse"
    return bigbird(
        **sizes({"hidden_act": "gelu_new", **config}),
        block=config.get("block_size", 64) if sparse else None,
        random=config.get("num_random_blocks", 3),
        scaled=config.get("rescale_embeddings", False),
        bias="qkvof" if config.get("use_bias", True) else "of",
        pooler=any(name.endswith("pooler.weight") for name in shapes),
        head=read_head(config, shapes),
    )


def read_head(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Any:
    """The head whose weights are there."""
    activation = ours(config.get("hidden_act", "gelu_new"))
    if "cls.predictions.bias" in shapes:
        return words(config, activation)
    if "classifier.out_proj.weight" in shapes:
        dropout = config.get("classifier_dropout") or config.get("hidden_dropout_prob", 0.1)
        classes = shapes["classifier.out_proj.weight"][0]
        return Classes(classes, config["hidden_size"], hidden=activation, dropout=dropout)
    return plain_head(config, shapes, per_token=True)


def write(config: Sequence) -> dict[str, Any]:
    """Their configuration of ours."""
    return {
        **written(config, "big_bird", "BigBird"),
        **written_plan(config),
        "rescale_embeddings": config.embed.scaled,
        "use_bias": "q" in config.stack.bias,
    }


def written_plan(config: Sequence) -> dict[str, Any]:
    """What their configuration says of the blocks."""
    if config.stack.mask is None:
        return {"attention_type": "original_full"}
    plan = read_call(config.stack.score.format(layer=0))[1]
    return {"attention_type": "block_sparse", "block_size": plan["block"], "num_random_blocks": plan["random"]}


def keys(config: Sequence) -> list[Key]:
    base = "" if config.head is None else PREFIX
    vocabulary, inner = isinstance(config.head, Vocabulary), getattr(config.head, "hidden", None)
    return [
        *encoder_keys(base),
        Key(base + "pooler.{p}", "pooler.dense.{p}"),
        *(word_keys(config) if vocabulary else [Key("classifier.dense.{p}", "head.dense.{p}")]),
        Key("classifier.out_proj.{p}" if inner else "classifier.{p}", "head.out.{p}"),
    ]
