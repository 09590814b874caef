"""ELECTRA (Clark et al. 2020): the discriminator, the generator, and models trained from them."""

from __future__ import annotations

from typing import Any

from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig, SpanHeadConfig
from .bert import bert, encoder_keys, our_activation, plain_head, read_lm_head, read_sizes, write_bert

PREFIX = "electra."
IGNORED = (r"embeddings\.(position_ids|token_type_ids)", r"generator_lm_head\.(weight|bias)")


def electra(
    *,
    layers: int = 12,
    dim: int = 256,
    heads: int = 4,
    hidden: int = 1024,
    inner: int | None = 128,
    head: HeadConfig | None = None,
    **more: Any,
) -> TextConfig:
    """ELECTRA-small by default, 13,483,008 parameters; `more` as in `bert`.

    Embeddings have `inner` dims, positions, segments and norm included. `head` "vocabulary" is the generator's; the
    discriminator's is `ClassificationHeadConfig(1, dim, per_token=True, hidden="gelu")`.

    >>> electra(layers=2).embed.inner
    128
    """
    return bert(
        layers=layers, dim=dim, heads=heads, hidden=hidden, inner=inner, head=head,
        **{"pooler": False, "family": "electra", **more},
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    config = {"embedding_size": 128, **config}  # transformers' own where a folder does not say
    inner = config["embedding_size"]
    return electra(
        **read_sizes(config), inner=None if inner == config["hidden_size"] else inner, head=read_head(config, shapes)
    )


def read_head(config: JsonObject, shapes: Shapes) -> HeadConfig | None:
    """The head whose weights the checkpoint has."""
    dim = config["hidden_size"]
    if "generator_predictions.dense.weight" in shapes:
        return read_lm_head(config, "gelu")
    if "discriminator_predictions.dense.weight" in shapes:
        return ClassificationHeadConfig(1, dim, per_token=True, hidden=our_activation(config.get("hidden_act", "gelu")))
    if "classifier.out_proj.weight" in shapes:
        dropout = config.get("classifier_dropout") or config.get("hidden_dropout_prob", 0.1)
        return ClassificationHeadConfig(shapes["classifier.out_proj.weight"][0], dim, hidden="gelu", dropout=dropout)
    return plain_head(config, shapes)


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    written = write_bert(config, "electra", "Electra")
    if is_discriminator(config.head):
        written["architectures"] = ["ElectraForPreTraining"]
    return {**written, "embedding_size": config.embed.inner or config.embed.dim}


def is_discriminator(head: HeadConfig | None) -> bool:
    """Whether the head says of each token if it was replaced."""
    return isinstance(head, ClassificationHeadConfig) and head.per_token and head.hidden is not None


def keys(config: TextConfig) -> list[Key]:
    base, head = "" if config.head is None else PREFIX, config.head
    classifier = "qa_outputs" if isinstance(head, SpanHeadConfig) else "classifier"
    dense, out = f"{classifier}.dense.", f"{classifier}."
    if isinstance(head, LMHeadConfig):
        dense = "generator_predictions.dense."
    elif is_discriminator(head):
        dense, out = "discriminator_predictions.dense.", "discriminator_predictions.dense_prediction."
    elif isinstance(head, ClassificationHeadConfig) and head.hidden is not None:
        out = "classifier.out_proj."
    return [
        *encoder_keys(base),
        Key(base + "embeddings_project.{p}", "embed.up.{p}"),
        Key(dense + "{p}", "head.dense.{p}"),
        Key("generator_predictions.LayerNorm.{p}", "head.norm.{p}"),
        Key("generator_lm_head.bias", "head.bias"),
        Key("generator_lm_head.weight", "head.weight"),
        Key(out + "{p}", "head.out.{p}"),
    ]
