"""DeBERTa-v3 (He et al. 2021), with disentangled attention: vectors by distance for queries and keys."""

from __future__ import annotations

from dataclasses import replace

from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.parts.disentangled import LearnedDisentangled, Term
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import TextConfig
from ..heads import HeadConfig, LMHeadConfig, PoolerConfig, SpanHeadConfig
from .bert import architecture, describe_head, our_activation, plain_head, read_lm_head, their_activation, word_keys

PREFIX = "deberta."
IGNORED = (
    r"mask_predictions\..*",
    r"embeddings\.position_(ids|embeddings\.weight)",
    r"cls\.predictions\.(bias|decoder\.(weight|bias))",
)

TERMS: tuple[Term, ...] = ("c2p", "p2c")


def deberta_v3(
    *,
    layers: int = 12,
    dim: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    vocabulary: int = 128_100,
    buckets: int = 256,
    max_distance: int | None = 512,
    terms: tuple[Term, ...] = TERMS,
    distance_norm: bool = True,
    positions: int | None = None,
    segments: int = 0,
    activation: str = "gelu",
    eps: float = 1e-7,
    padding: int | None = 0,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    pooler: str | None = None,
    head: HeadConfig | None = None,
) -> TextConfig:
    """DeBERTa-v3-base by default, 183,831,552 parameters.

    One embedding of 2 · `buckets` distances, logarithmic up to `max_distance` (None: one for each), is projected by q
    and k of each layer; `terms` "c2p" and "p2c" are the products that scores have besides q · k. `head` "vocabulary" is
    the masked language model's; `pooler` is the activation of a pooler over the first token. DeBERTa-v2 is read where
    it shares its projections and has no convolution.

    >>> deberta_v3(layers=2).stack.position.buckets
    256
    """
    if head == "vocabulary":
        head = LMHeadConfig(vocabulary, dim, bias=True, transform=activation, eps=eps)
    position = LearnedDisentangled(buckets, max_distance, dim, eps if distance_norm else None, dropout, tuple(terms))
    return TextConfig(
        embed=TextEmbeddingConfig(
            vocabulary, dim, positions=positions, segments=segments, norm=eps, padding=padding, dropout=dropout
        ),
        stack=StackConfig(
            dim, layers, heads, hidden, activation=activation, eps=eps, pre_norm=False, position=position,
            dropout=dropout, attention_dropout=dropout if attention_dropout is None else attention_dropout,
        ),
        pooler=None if pooler is None else PoolerConfig(dim, pooler),
        head=head,
        family="deberta-v2",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    check_supported(config, shapes)
    config = {"layer_norm_eps": 1e-7, **config}
    buckets, most = config.get("position_buckets", -1), config.get("max_relative_positions", -1)
    most = config["max_position_embeddings"] if most < 1 else most
    pooled = "pooler.dense.weight" in shapes
    return deberta_v3(
        layers=config["num_hidden_layers"], dim=config["hidden_size"], heads=config["num_attention_heads"],
        hidden=config["intermediate_size"], vocabulary=config["vocab_size"], buckets=buckets if buckets > 0 else most,
        max_distance=most if buckets > 0 else None, terms=read_terms(config),
        distance_norm="layer_norm" in config.get("norm_rel_ebd", "none"),
        positions=config["max_position_embeddings"] if config.get("position_biased_input", True) else None,
        segments=config.get("type_vocab_size", 0), activation=our_activation(config.get("hidden_act", "gelu")),
        eps=config["layer_norm_eps"], padding=config.get("pad_token_id", 0),
        dropout=config.get("hidden_dropout_prob", 0.1),
        attention_dropout=config.get("attention_probs_dropout_prob", 0.1),
        pooler=our_activation(config.get("pooler_hidden_act", "gelu")) if pooled else None,
        head=read_head(config, shapes, pooled),
    )  # fmt: skip


def read_terms(config: JsonObject) -> tuple[Term, ...]:
    given = config.get("pos_att_type") or []
    given = given.split("|") if isinstance(given, str) else given
    return tuple(term for term in TERMS if term in given)


def read_head(config: JsonObject, shapes: Shapes, pooled: bool) -> HeadConfig | None:
    """The head whose weights the checkpoint has."""
    words = [name.split(".")[0] for name in shapes if name.startswith(("cls.predictions.", "lm_predictions."))]
    if words:
        head = read_lm_head(config, our_activation(config.get("hidden_act", "gelu")))
        return replace(head, tied=head.tied or "lm_predictions" in words)
    return plain_head(config, shapes, pooled)


def check_supported(config: JsonObject, shapes: Shapes) -> None:
    """Raise `Unsupported` for variants that are not read here."""
    dim, reasons = config["hidden_size"], []
    if not config.get("relative_attention") or not read_terms(config):
        reasons.append("no relative attention (relative_attention, pos_att_type)")
    elif not config.get("share_att_key"):
        reasons.append("projections of its own for distances (share_att_key=false)")
    if config.get("conv_kernel_size", 0) > 0:
        reasons.append("a convolution (conv_kernel_size)")
    if config.get("embedding_size", dim) != dim:
        reasons.append(f"embeddings of another size (embedding_size {config.get('embedding_size')})")
    if (config.get("pooler_hidden_size") or dim) != dim and "pooler.dense.weight" in shapes:
        reasons.append(f"a pooler of another size (pooler_hidden_size {config['pooler_hidden_size']})")
    if reasons:
        raise Unsupported(
            f"This DeBERTa has {' and '.join(reasons)}, which is not read here. Use a DeBERTa-v3, or this "
            "one with transformers alone, whose DeBERTa computes its attention itself."
        )


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, embed, head, position = config.stack, config.embed, config.head, config.stack.position
    if not isinstance(position, LearnedDisentangled) or position.dim != stack.dim or stack.residual != "post":
        raise BadInput("This cannot be written as a DeBERTa: change it to the configuration of deberta_v3().")
    most = position.buckets if position.max_distance is None else position.max_distance
    return {
        "model_type": "deberta-v2",
        "architectures": [architecture("DebertaV2", head)],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "intermediate_size": stack.hidden,
        "vocab_size": embed.vocabulary,
        "max_position_embeddings": embed.positions if isinstance(embed.positions, int) else most,
        "position_biased_input": embed.positions is not None,
        "type_vocab_size": embed.segments,
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": list(position.terms),
        "position_buckets": -1 if position.max_distance is None else position.buckets,
        "max_relative_positions": most,
        "norm_rel_ebd": "none" if position.norm_eps is None else "layer_norm",
        "hidden_act": their_activation(stack.activation),
        "layer_norm_eps": stack.eps,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout,
        "pad_token_id": embed.padding,
        "pooler_hidden_size": stack.dim,
        **({} if config.pooler is None else {"pooler_hidden_act": their_activation(config.pooler.activation)}),
        **describe_head(head),
    }


def keys(config: TextConfig) -> list[Key]:
    base, block = "" if config.head is None else PREFIX, "stack.blocks.{n}."
    theirs = base + "encoder.layer.{n}."
    projections = [("query_proj", "q"), ("key_proj", "k"), ("value_proj", "v")]
    return [
        Key(base + "embeddings.word_embeddings.weight", "embed.tokens.weight"),
        Key(base + "embeddings.position_embeddings.weight", "embed.places.weight"),
        Key(base + "embeddings.token_type_embeddings.weight", "embed.segments.weight"),
        Key(base + "embeddings.LayerNorm.{p}", "embed.norm.{p}"),
        Key(base + "encoder.rel_embeddings.weight", "stack.position.weight"),
        Key(base + "encoder.LayerNorm.{p}", "stack.position.norm.{p}"),
        *(Key(theirs + f"attention.self.{a}.{{p}}", block + f"attention.{b}.{{p}}") for a, b in projections),
        Key(theirs + "attention.output.dense.{p}", block + "attention.out.{p}"),
        Key(theirs + "attention.output.LayerNorm.{p}", block + "attention_norm.{p}"),
        Key(theirs + "intermediate.dense.{p}", block + "feed_forward.up.{p}"),
        Key(theirs + "output.dense.{p}", block + "feed_forward.down.{p}"),
        Key(theirs + "output.LayerNorm.{p}", block + "feed_forward_norm.{p}"),
        Key("pooler.dense.{p}", "pooler.dense.{p}"),
        *word_keys(config),
        Key("qa_outputs.{p}" if isinstance(config.head, SpanHeadConfig) else "classifier.{p}", "head.out.{p}"),
    ]
