"""BERT (Devlin et al. 2018) and its kin: RoBERTa (Liu et al. 2019), DistilBERT (Sanh et al. 2019)."""

from __future__ import annotations

from typing import Any

from ...attention.errors import Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings import Text
from ..config import Sequence
from ..heads import Classes, Pooler, Vocabulary
from ..keys import Key, without_first

PREFIX = "bert."
IGNORED = (
    r"(bert|roberta|distilbert)?\.?embeddings\.(position_ids|token_type_ids)",
    r"cls\.predictions\.decoder\.(weight|bias)",
    r"cls\.seq_relationship\.(weight|bias)",
)


def bert(
    *, layers: int = 12, dim: int = 768, heads: int = 12, hidden: int = 3072, vocabulary: int = 30522, places: int = 512,
    segments: int = 2, activation: str = "gelu", eps: float = 1e-12, dropout: float = 0.1, pooler: bool = True,
    head: Any = None, family: str = "bert",
) -> Sequence:
    """BERT-base by default, 109,482,240 parameters with its pooler.

    >>> bert(layers=2).stack.layers
    2
    """
    return Sequence(
        embed=Text(vocabulary, dim, places=places, segments=segments, norm=eps, dropout=dropout),
        stack=StackConfig(
            dim, layers, heads, hidden, activation=activation, eps=eps, pre_norm=False,
            dropout=dropout, attention_dropout=dropout,
        ),
        pooler=Pooler(dim) if pooler else None,
        head=head,
        family=family,
    )  # fmt: skip


def read(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Sequence:
    """Our configuration of theirs."""
    if config.get("is_decoder") or config.get("position_embedding_type", "absolute") != "absolute":
        raise Unsupported("This BERT is a decoder or has relative positions, which are not read here.")
    dim = config["hidden_size"]
    has_pooler = any(name.removeprefix(PREFIX).startswith("pooler.") for name in shapes)
    return bert(
        layers=config["num_hidden_layers"], dim=dim, heads=config["num_attention_heads"],
        hidden=config["intermediate_size"], vocabulary=config["vocab_size"], places=config["max_position_embeddings"],
        segments=config["type_vocab_size"], activation=config.get("hidden_act", "gelu"), eps=config["layer_norm_eps"],
        dropout=config.get("hidden_dropout_prob", 0.1), pooler=has_pooler, head=read_head(config, shapes, has_pooler),
    )  # fmt: skip


def read_head(config: dict[str, Any], shapes: dict[str, tuple[int, ...]], has_pooler: bool) -> Any:
    dim, eps = config["hidden_size"], config["layer_norm_eps"]
    if "classifier.weight" in shapes:
        return Classes(shapes["classifier.weight"][0], dim, per_token=not has_pooler, pool="pooler")
    if "cls.predictions.bias" in shapes:
        return Vocabulary(config["vocab_size"], dim, bias=True, transform=config.get("hidden_act", "gelu"), eps=eps)
    return None


def write(config: Sequence) -> dict[str, Any]:
    """Their configuration of ours."""
    stack, embed, head = config.stack, config.embed, config.head
    return {
        "model_type": "bert",
        "architectures": [architecture(head)],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "intermediate_size": stack.hidden,
        "vocab_size": embed.vocabulary,
        "max_position_embeddings": embed.places,
        "type_vocab_size": embed.segments,
        "hidden_act": stack.activation,
        "layer_norm_eps": stack.eps,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout,
        **({"num_labels": head.classes} if isinstance(head, Classes) else {}),
    }


def architecture(head: Any) -> str:
    """Their class for a model with this head."""
    if isinstance(head, Classes):
        return "BertForTokenClassification" if head.per_token else "BertForSequenceClassification"
    return "BertModel" if head is None else "BertForMaskedLM"


def keys(config: Sequence) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.", base + "encoder.layer.{n}."
    return [
        Key(base + "embeddings.word_embeddings.weight", "embed.tokens.weight"),
        Key(base + "embeddings.position_embeddings.weight", "embed.places.weight"),
        Key(base + "embeddings.token_type_embeddings.weight", "embed.segments.weight"),
        Key(base + "embeddings.LayerNorm.{p}", "embed.norm.{p}"),
        Key(theirs + "attention.self.query.{p}", block + "attention.q.{p}"),
        Key(theirs + "attention.self.key.{p}", block + "attention.k.{p}"),
        Key(theirs + "attention.self.value.{p}", block + "attention.v.{p}"),
        Key(theirs + "attention.output.dense.{p}", block + "attention.out.{p}"),
        Key(theirs + "attention.output.LayerNorm.{p}", block + "attention_norm.{p}"),
        Key(theirs + "intermediate.dense.{p}", block + "feed_forward.up.{p}"),
        Key(theirs + "output.dense.{p}", block + "feed_forward.down.{p}"),
        Key(theirs + "output.LayerNorm.{p}", block + "feed_forward_norm.{p}"),
        Key(base + "pooler.dense.{p}", "pooler.dense.{p}"),
        Key("cls.predictions.transform.dense.{p}", "head.dense.{p}"),
        Key("cls.predictions.transform.LayerNorm.{p}", "head.norm.{p}"),
        Key("cls.predictions.bias", "head.bias"),
        Key("classifier.{p}", "head.out.{p}"),
    ]
