"""RoBERTa (Liu et al. 2019), XLM-RoBERTa (Conneau et al. 2019) and CamemBERT (Martin et al. 2019)."""

from __future__ import annotations

from typing import Any

from ...nn.old_names import accept_old_names
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig, SpanHeadConfig, is_tied
from .bert import bert, encoder_keys, plain_head, read_lm_head, read_sizes, write_bert

PREFIX = "roberta."
IGNORED = (r"embeddings\.(position_ids|token_type_ids)", r"lm_head\.(bias|decoder\.weight|decoder\.bias)")


@accept_old_names(places="positions")
def roberta(
    *,
    layers: int = 12,
    dim: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    vocabulary: int = 50265,
    positions: int = 512,
    segments: int = 1,
    eps: float = 1e-5,
    padding: int | None = 1,
    head: HeadConfig | None = None,
    family: str = "roberta",
    **more: Any,
) -> TextConfig:
    """RoBERTa-base by default, 124,645,632 parameters with its pooler; `more` as in `bert`.

    Its table of positions begins with padding + 1 rows that no token uses; `positions` counts the others.

    >>> roberta(layers=2, head="vocabulary").head.transform
    'gelu'
    """
    if head == "vocabulary":
        head = LMHeadConfig(vocabulary, dim, bias=True, transform="gelu", eps=eps)
    return bert(
        layers=layers, dim=dim, heads=heads, hidden=hidden, vocabulary=vocabulary, positions=positions,
        segments=segments, eps=eps, padding=padding, unused=unused_rows(padding), head=head, family=family,
        **{"pooler": head is None, **more},
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    return roberta(**read_arguments(config, shapes, PREFIX))


def read_arguments(config: JsonObject, shapes: Shapes, prefix: str) -> JsonObject:
    """Their configuration as `roberta`'s arguments."""
    settings = read_sizes(config, padding=1)
    pooler = f"{prefix}pooler.dense.weight" in shapes or "pooler.dense.weight" in shapes
    positions = settings["positions"] - unused_rows(settings["padding"])
    return {**settings, "positions": positions, "pooler": pooler, "head": read_head(config, shapes)}


def unused_rows(padding: int | None) -> int:
    """How many rows of the position table come before that of the first position."""
    return 0 if padding is None else padding + 1


def read_head(config: JsonObject, shapes: Shapes) -> HeadConfig | None:
    """The head whose weights the checkpoint has."""
    if "lm_head.dense.weight" in shapes:
        return read_lm_head(config, "gelu")
    if "classifier.out_proj.weight" in shapes:
        dropout = config.get("classifier_dropout") or config.get("hidden_dropout_prob", 0.1)
        return ClassificationHeadConfig(
            shapes["classifier.out_proj.weight"][0], config["hidden_size"], hidden="tanh", dropout=dropout
        )
    return plain_head(config, shapes)


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    return write_bert(config, "roberta", "Roberta")


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    return [
        *encoder_keys(base),
        Key(base + "pooler.dense.{p}", "pooler.dense.{p}"),
        *head_keys(config),
    ]


def head_keys(config: TextConfig) -> list[Key]:
    """The names of the heads' tensors."""
    tied = is_tied(config.head, True)
    inner = config.head.hidden if isinstance(config.head, ClassificationHeadConfig) else None
    classes = "qa_outputs.{p}" if isinstance(config.head, SpanHeadConfig) else "classifier.{p}"
    dense = "classifier.dense.{p}" if isinstance(config.head, ClassificationHeadConfig) else "lm_head.dense.{p}"
    return [
        Key(dense, "head.dense.{p}"),
        Key("lm_head.layer_norm.{p}", "head.norm.{p}"),
        Key("lm_head.bias" if tied else "lm_head.decoder.bias", "head.bias"),
        Key("lm_head.decoder.weight", "head.weight"),
        Key("classifier.out_proj.{p}" if inner else classes, "head.out.{p}"),
    ]
