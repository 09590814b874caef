"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023)."""

from __future__ import annotations

from typing import Literal

from ...attention.parts.masks import Causal
from ...attention.parts.positions import Position, Rotary
from ...errors import BadInput
from ...nn.block import Residual, StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes, interleaved_heads
from ..checkpoint.rope import read_rotary, write_rotary
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig, is_tied
from .bert import our_activation, their_activation
from .llama import architecture_of

PREFIX = "gpt_neox."
IGNORED = (
    r"layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",
    r"embed_out\.weight",
)

ROTARY = Rotary(dim=16)


def gpt_neox(
    *,
    layers: int = 6,
    dim: int = 512,
    heads: int = 8,
    hidden: int = 2048,
    vocabulary: int = 50304,
    position: Position = ROTARY,
    activation: str = "gelu",
    bias: str = "qkvof",
    residual: Residual = "parallel",
    eps: float = 1e-5,
    tied: bool = False,
    padding: int | None = None,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    head: HeadConfig | Literal["vocabulary"] | None = "vocabulary",
) -> TextConfig:
    """Pythia 70M by default, 70,426,624 parameters.

    Attention and feed-forward network read the same input (`residual="parallel"`), and a quarter of each head is
    rotated (`Rotary(dim=16)`).

    >>> gpt_neox(layers=1).stack.position
    Rotary(dim=16)
    """
    return TextConfig(
        embed=TextEmbeddingConfig(vocabulary, dim, padding=padding, dropout=dropout),
        stack=StackConfig(
            dim, layers, heads, hidden, activation=activation, eps=eps, bias=bias, residual=residual,
            position=position, mask=Causal(), dropout=dropout, attention_dropout=attention_dropout,
        ),
        head=LMHeadConfig(vocabulary, dim, tied=tied) if head == "vocabulary" else head,
        family="gpt_neox",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs; older folders have `rotary_pct` and `rotary_emb_base`."""
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    partial, base = config.get("rotary_pct", 0.25), config.get("rotary_emb_base", 10000.0)
    return gpt_neox(
        layers=config["num_hidden_layers"], dim=dim, heads=heads, hidden=config["intermediate_size"],
        vocabulary=config["vocab_size"], position=read_rotary(config, dim // heads, base=base, partial=partial),
        activation=our_activation(config.get("hidden_act", "gelu")),
        bias="qkvof" if config.get("attention_bias", True) else "f",
        residual="parallel" if config.get("use_parallel_residual", True) else "pre",
        eps=config.get("layer_norm_eps", 1e-5), padding=config.get("pad_token_id"),
        dropout=config.get("hidden_dropout", 0.0), attention_dropout=config.get("attention_dropout", 0.0),
        head=read_head(config, shapes),
    )  # fmt: skip


def read_head(config: JsonObject, shapes: Shapes) -> HeadConfig | None:
    dim = config["hidden_size"]
    if "score.weight" in shapes:
        return ClassificationHeadConfig(shapes["score.weight"][0], dim, pool="last", bias=False)
    if "classifier.weight" in shapes:
        return ClassificationHeadConfig(shapes["classifier.weight"][0], dim, per_token=True, pool="last")
    if "embed_out.weight" in shapes or any("ForCausalLM" in name for name in config.get("architectures") or []):
        return LMHeadConfig(config["vocab_size"], dim, tied=bool(config.get("tie_word_embeddings", False)))
    return None


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, head = config.stack, config.head
    if stack.residual not in ("parallel", "pre") or stack.mask != Causal():
        raise BadInput("This cannot be written as a GPT-NeoX: change it to the configuration of gpt_neox().")
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoX" + architecture_of(head)],
        "num_hidden_layers": stack.layers,
        "hidden_size": stack.dim,
        "num_attention_heads": stack.heads,
        "intermediate_size": stack.hidden,
        "vocab_size": config.embed.vocabulary,
        "pad_token_id": config.embed.padding,
        "hidden_act": their_activation(stack.activation),
        "layer_norm_eps": stack.eps,
        "attention_bias": "q" in stack.bias,
        "use_parallel_residual": stack.residual == "parallel",
        "hidden_dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout,
        "tie_word_embeddings": is_tied(head, False),
        "rope_parameters": {
            "partial_rotary_factor": 1.0,
            **write_rotary(stack.position, stack.dim // stack.heads)["rope_parameters"],
        },
        **({"num_labels": head.classes} if isinstance(head, ClassificationHeadConfig) else {}),
    }


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.", base + "layers.{n}."
    qkv = tuple(block + f"attention.{x}.{{p}}" for x in "qkv")
    per_token = isinstance(config.head, ClassificationHeadConfig) and config.head.per_token
    return [
        Key(base + "embed_in.weight", "embed.tokens.weight"),
        Key(theirs + "input_layernorm.{p}", block + "attention_norm.{p}"),
        Key(theirs + "attention.query_key_value.{p}", qkv, interleaved_heads(3, config.stack.heads)),
        Key(theirs + "attention.dense.{p}", block + "attention.out.{p}"),
        Key(theirs + "post_attention_layernorm.{p}", block + "feed_forward_norm.{p}"),
        Key(theirs + "mlp.dense_h_to_4h.{p}", block + "feed_forward.up.{p}"),
        Key(theirs + "mlp.dense_4h_to_h.{p}", block + "feed_forward.down.{p}"),
        Key(base + "final_layer_norm.{p}", "stack.norm.{p}"),
        Key("embed_out.weight", "head.weight"),
        Key("classifier.{p}" if per_token else "score.{p}", "head.out.{p}"),
    ]
