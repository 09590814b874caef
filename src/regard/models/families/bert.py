"""BERT (Devlin et al. 2018), and what RoBERTa, Longformer, BigBird and DistilBERT share with it."""

from __future__ import annotations

from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.old_names import accept_old_names
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig, PoolerConfig, SpanHeadConfig, is_tied

PREFIX = "bert."
IGNORED = (
    r"embeddings\.(position_ids|token_type_ids)",
    r"cls\.predictions\.(bias|decoder\.weight|decoder\.bias)",
    r"cls\.seq_relationship\.(weight|bias)",
)

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
    "tanh": "tanh",
    "linear": "none",
}
"""Their names of activations, and ours; of several the first is written."""


@accept_old_names(places="positions")
def bert(
    *,
    layers: int = 12,
    dim: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    vocabulary: int = 30522,
    positions: int = 512,
    segments: int = 2,
    activation: str = "gelu",
    eps: float = 1e-12,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    padding: int | None = 0,
    unused: int = 0,
    inner: int | None = None,
    unique_layers: int | None = None,
    pooler: bool = True,
    head: HeadConfig | None = None,
    family: str = "bert",
) -> TextConfig:
    """BERT-base by default, 109,482,240 parameters with its pooler (L, H, A are layers, dim, heads).

    `head` "vocabulary" is the masked language model's; others are `ClassificationHeadConfig` and `SpanHeadConfig`.
    `inner` embeds in fewer dims (ELECTRA, ALBERT); `unique_layers` have weights of their own (ALBERT).

    >>> bert(layers=2).stack.layers
    2
    """
    if head == "vocabulary":
        head = LMHeadConfig(vocabulary, dim, bias=True, transform=activation, eps=eps, inner=inner)
    return TextConfig(
        embed=TextEmbeddingConfig(
            vocabulary, dim, positions=positions, segments=segments, norm=eps, padding=padding, unused=unused,
            dropout=dropout, inner=inner, projected="tokens" if inner is None else "sum",
        ),
        stack=StackConfig(
            dim, layers, heads, hidden, activation=activation, eps=eps, pre_norm=False, dropout=dropout,
            attention_dropout=dropout if attention_dropout is None else attention_dropout, unique_layers=unique_layers,
        ),
        pooler=PoolerConfig(dim) if pooler else None,
        head=head,
        family=family,
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    pooler = f"{PREFIX}pooler.dense.weight" in shapes or "pooler.dense.weight" in shapes
    return bert(**read_sizes(config), pooler=pooler, head=read_head(config, shapes, pooler))


def read_head(config: JsonObject, shapes: Shapes, pooler: bool) -> HeadConfig | None:
    """The head whose weights the checkpoint has."""
    if "cls.predictions.bias" in shapes or "cls.predictions.decoder.bias" in shapes:  # the second where not tied
        return read_lm_head(config, our_activation(config.get("hidden_act", "gelu")))
    return plain_head(config, shapes, pooler)


def read_sizes(config: JsonObject, padding: int = 0) -> JsonObject:
    """Their configuration as `bert`'s arguments, with `padding` where it names none; or `Unsupported`."""
    if config.get("is_decoder") or config.get("position_embedding_type", "absolute") != "absolute":
        raise Unsupported("This checkpoint is a decoder or has relative positions, which are not read here.")
    return {
        "layers": config["num_hidden_layers"],
        "dim": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "hidden": config["intermediate_size"],
        "vocabulary": config["vocab_size"],
        "positions": config["max_position_embeddings"],
        "segments": config.get("type_vocab_size", 2),
        "activation": our_activation(config.get("hidden_act", "gelu")),
        "eps": config.get("layer_norm_eps", 1e-12),
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.1),
        "padding": config.get("pad_token_id", padding),
    }


def our_activation(activation: str) -> str:
    """Our name of their activation."""
    if activation not in ACTIVATIONS:
        raise Unsupported(
            f"This checkpoint has the activation {activation!r}; supported are {', '.join(ACTIVATIONS)}. Load it with "
            'transformers and attn_implementation="regard".'
        )
    return ACTIVATIONS[activation]


def read_lm_head(config: JsonObject, transform: str) -> LMHeadConfig:
    """The head of masked language modelling."""
    tied = config.get("tie_word_embeddings", True)
    size, dim, eps = config["vocab_size"], config["hidden_size"], config.get("layer_norm_eps", 1e-12)
    inner = config.get("embedding_size", dim)
    return LMHeadConfig(
        size, dim, tied=tied, bias=True, transform=transform, eps=eps, inner=None if inner == dim else inner
    )


def plain_head(config: JsonObject, shapes: Shapes, pooler: bool = False) -> HeadConfig | None:
    """A head of one matrix: classes of the text (with a pooler) or of each token, or the span of an answer, or none."""
    dim, dropout = config["hidden_size"], config.get("classifier_dropout") or config.get("hidden_dropout_prob", 0.1)
    if "qa_outputs.weight" in shapes:
        return SpanHeadConfig(dim)
    if "classifier.weight" in shapes:
        pool = "pooler" if pooler else "first"
        classes = shapes["classifier.weight"][0]
        return ClassificationHeadConfig(classes, dim, per_token=not pooler, pool=pool, dropout=dropout)
    return None


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    return write_bert(config, "bert", "Bert")


def write_bert(config: TextConfig, model_type: str, name: str) -> JsonObject:
    """Their configuration of ours, in the fields that BERT's descendants share; `name` begins their classes' names."""
    stack, embed, head, positions = config.stack, config.embed, config.head, config.embed.positions
    if not isinstance(positions, int):
        raise BadInput(f"A {name} has learned positions; this model has positions={positions!r}.")
    return {
        "model_type": model_type,
        "architectures": [architecture(name, head)],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "intermediate_size": stack.hidden,
        "vocab_size": embed.vocabulary,
        "max_position_embeddings": positions + embed.unused,
        "type_vocab_size": embed.segments,
        "hidden_act": their_activation(stack.activation),
        "layer_norm_eps": stack.eps,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout,
        "pad_token_id": embed.padding,
        **describe_head(head),
    }


def their_activation(activation: str) -> str:
    """Their name of our activation."""
    return next(name for name, own in ACTIVATIONS.items() if own == activation)


def describe_head(head: HeadConfig | None) -> JsonObject:
    """The fields of a head in their configuration."""
    if isinstance(head, ClassificationHeadConfig):
        return {"num_labels": head.classes}
    return {"tie_word_embeddings": head.tied} if isinstance(head, LMHeadConfig) else {}


def architecture(name: str, head: HeadConfig | None) -> str:
    """Their class for a model with this head."""
    if isinstance(head, ClassificationHeadConfig):
        return f"{name}ForTokenClassification" if head.per_token else f"{name}ForSequenceClassification"
    if isinstance(head, SpanHeadConfig):
        return f"{name}ForQuestionAnswering"
    return f"{name}Model" if head is None else f"{name}ForMaskedLM"


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    return [
        *encoder_keys(base),
        Key(base + "pooler.dense.{p}", "pooler.dense.{p}"),
        *word_keys(config),
        Key("qa_outputs.{p}" if isinstance(config.head, SpanHeadConfig) else "classifier.{p}", "head.out.{p}"),
    ]


def word_keys(config: TextConfig) -> list[Key]:
    """The head of masked language modelling; the name of its bias depends on whether the matrix is tied."""
    tied = is_tied(config.head, True)
    return [
        Key("cls.predictions.transform.dense.{p}", "head.dense.{p}"),
        Key("cls.predictions.transform.LayerNorm.{p}", "head.norm.{p}"),
        Key("cls.predictions.bias" if tied else "cls.predictions.decoder.bias", "head.bias"),
        Key("cls.predictions.decoder.weight", "head.weight"),
    ]


def encoder_keys(base: str) -> list[Key]:
    """Embeddings and layers."""
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
    ]
