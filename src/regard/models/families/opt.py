"""OPT (Zhang et al. 2022)."""

from __future__ import annotations

from typing import Literal

from ...attention.parts.masks import Causal
from ...errors import BadInput, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig, is_tied
from .bert import our_activation, their_activation
from .llama import architecture_of
from .marian import side_keys

PREFIX = "model."
IGNORED = (r"lm_head\.weight",)
UNUSED = 2  # rows before the first position


def opt(
    *,
    layers: int = 12,
    dim: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    inner: int | None = None,
    vocabulary: int = 50272,
    positions: int = 2048,
    activation: str = "relu",
    bias: str = "qkvof",
    pre_norm: bool = True,
    final_norm: bool | None = None,
    tied: bool = True,
    padding: int | None = 1,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    head: HeadConfig | Literal["vocabulary"] | None = "vocabulary",
) -> TextConfig:
    """OPT 125M by default, 125,239,296 parameters.

    `inner` embeds in fewer dims and projects the last layer to them (the 350M model, which has `pre_norm=False`).

    >>> opt(layers=2).embed.unused
    2
    """
    return TextConfig(
        embed=TextEmbeddingConfig(
            vocabulary, dim, positions=positions, unused=UNUSED, padding=padding, inner=inner, projection_bias=False
        ),
        stack=StackConfig(
            dim, layers, heads, hidden, activation=activation, bias=bias, pre_norm=pre_norm, final_norm=final_norm,
            mask=Causal(), dropout=dropout, attention_dropout=attention_dropout,
        ),
        head=make_lm_head(vocabulary, dim, inner, tied) if head == "vocabulary" else head,
        family="opt",
    )  # fmt: skip


def make_lm_head(vocabulary: int, dim: int, inner: int | None, tied: bool) -> LMHeadConfig:
    return LMHeadConfig(vocabulary, dim, tied=tied, inner=inner, transform_bias="")


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    inner, head = read_inner(config), read_head(config, shapes)
    if inner is not None and not isinstance(head, LMHeadConfig):
        raise Unsupported(
            f"This OPT projects its last layer to {inner} dims (word_embed_proj_dim: the 350M model), which is read "
            "here for a language model alone. Save it with its language model's head."
        )
    if not config.get("layer_norm_elementwise_affine", True):
        raise Unsupported(
            "This OPT has norms without weights (layer_norm_elementwise_affine), which are not read here."
        )
    return opt(
        layers=config["num_hidden_layers"], dim=config["hidden_size"], heads=config["num_attention_heads"],
        hidden=config["ffn_dim"], inner=inner, vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
        activation=our_activation(config.get("activation_function", "relu")),
        bias="qkvof" if config.get("enable_bias", True) else "", pre_norm=config.get("do_layer_norm_before", True),
        final_norm=False if config.get("_remove_final_layer_norm") else None, padding=config.get("pad_token_id", 1),
        dropout=config.get("dropout", 0.1), attention_dropout=config.get("attention_dropout", 0.0),
        head=head,
    )  # fmt: skip


def read_inner(config: JsonObject) -> int | None:
    """The dims of the embedding where they are not those of the layers."""
    inner = config.get("word_embed_proj_dim") or config["hidden_size"]
    return None if inner == config["hidden_size"] else inner


def read_head(config: JsonObject, shapes: Shapes) -> HeadConfig | None:
    dim = config["hidden_size"]
    if "score.weight" in shapes:
        return ClassificationHeadConfig(shapes["score.weight"][0], dim, pool="last", bias=False)
    if "lm_head.weight" in shapes or any("ForCausalLM" in name for name in config.get("architectures") or []):
        return make_lm_head(config["vocab_size"], dim, read_inner(config), config.get("tie_word_embeddings", True))
    return None


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, embed, head = config.stack, config.embed, config.head
    if not isinstance(embed.positions, int) or set(stack.bias) not in (set(), set("qkvof")):
        raise BadInput("This cannot be written as an OPT: change it to the configuration of the opt() preset.")
    return {
        "model_type": "opt",
        "architectures": ["OPT" + architecture_of(head)],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "word_embed_proj_dim": embed.inner or stack.dim,
        "num_attention_heads": stack.heads,
        "ffn_dim": stack.hidden,
        "vocab_size": embed.vocabulary,
        "max_position_embeddings": embed.positions,
        "pad_token_id": embed.padding,
        "activation_function": their_activation(stack.activation),
        "enable_bias": bool(stack.bias),
        "do_layer_norm_before": stack.pre_norm,
        "_remove_final_layer_norm": stack.final_norm is False,
        "dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout,
        "tie_word_embeddings": is_tied(head, True),
        **({"num_labels": head.classes} if isinstance(head, ClassificationHeadConfig) else {}),
    }


def keys(config: TextConfig) -> list[Key]:
    base = "decoder." if config.head is None else PREFIX + "decoder."
    return [
        Key(base + "embed_tokens.weight", "embed.tokens.weight"),
        Key(base + "embed_positions.weight", "embed.places.weight"),
        Key(base + "project_in.weight", "embed.up.weight"),
        Key(base + "project_out.weight", "head.dense.weight"),
        *side_keys(base, "stack.", norm="final_layer_norm"),
        Key("lm_head.weight", "head.weight"),
        Key("score.{p}", "head.out.{p}"),
    ]
