"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from typing import Literal

from ...attention.parts.masks import Causal
from ...errors import Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.old_names import accept_old_names
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import TRANSPOSED, Key, Shapes, stack_of
from ..config import TextConfig
from ..heads import ClassificationHeadConfig, HeadConfig, LMHeadConfig, is_tied

PREFIX = "transformer."
IGNORED = (r"h\.\d+\.attn\.(masked_)?bias", r"lm_head\.weight")

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}


@accept_old_names(places="positions")
def gpt2(
    *,
    layers: int = 12,
    dim: int = 768,
    heads: int = 12,
    hidden: int | None = None,
    vocabulary: int = 50257,
    positions: int = 1024,
    activation: str = "gelu_tanh",
    eps: float = 1e-5,
    dropout: float = 0.1,
    head: HeadConfig | Literal["vocabulary"] | None = "vocabulary",
) -> TextConfig:
    """GPT-2 small by default, 124,439,808 parameters.

    Its n_layer, n_embd, n_head, n_positions are layers, dim, heads, positions.

    >>> sum(p.numel() for p in gpt2(layers=1, dim=8, heads=2, vocabulary=11, positions=5).build().parameters())
    1016
    """
    return TextConfig(
        embed=TextEmbeddingConfig(vocabulary, dim, positions=positions, dropout=dropout),
        stack=StackConfig(
            dim, layers, heads, hidden=hidden, activation=activation, eps=eps, mask=Causal(),
            dropout=dropout, attention_dropout=dropout,
        ),
        head=LMHeadConfig(vocabulary, dim) if head == "vocabulary" else head,
        family="gpt2",
    )  # fmt: skip


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    if config.get("scale_attn_by_inverse_layer_idx") or not config.get("scale_attn_weights", True):
        raise Unsupported(
            "This GPT-2 scales its scores by layer (scale_attn_by_inverse_layer_idx), which is not done here."
        )
    dim, vocabulary = config["n_embd"], config["vocab_size"]
    head: HeadConfig | None = None
    if "score.weight" in shapes:
        head = ClassificationHeadConfig(shapes["score.weight"][0], dim, pool="last", bias=False)
    elif "lm_head.weight" in shapes or any("LMHead" in name for name in config.get("architectures") or []):
        head = LMHeadConfig(vocabulary, dim, tied=config.get("tie_word_embeddings", True))
    return gpt2(
        layers=config["n_layer"], dim=dim, heads=config["n_head"], hidden=config.get("n_inner"), vocabulary=vocabulary,
        positions=config["n_positions"], activation=ACTIVATIONS[config.get("activation_function", "gelu_new")],
        eps=config.get("layer_norm_epsilon", 1e-5), dropout=config.get("resid_pdrop", 0.1), head=head,
    )  # fmt: skip


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    stack, embed, head = config.stack, config.embed, config.head
    back = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    architecture = {LMHeadConfig: "GPT2LMHeadModel", ClassificationHeadConfig: "GPT2ForSequenceClassification"}.get(
        type(head), "GPT2Model"
    )
    return {
        "model_type": "gpt2",
        "architectures": [architecture],
        "n_layer": stack.layers,
        "n_embd": stack.dim,
        "n_head": stack.heads,
        "n_inner": stack.hidden,
        "n_positions": embed.positions,
        "vocab_size": embed.vocabulary,
        "activation_function": back[stack.activation],
        "layer_norm_epsilon": stack.eps,
        "resid_pdrop": stack.dropout,
        "embd_pdrop": embed.dropout,
        "attn_pdrop": stack.attention_dropout,
        "tie_word_embeddings": is_tied(head, True),
        **({"num_labels": head.classes} if isinstance(head, ClassificationHeadConfig) else {}),
    }


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.", base + "h.{n}."
    qkv = tuple(block + f"attention.{x}" for x in "qkv")
    return [
        Key(base + "wte.weight", "embed.tokens.weight"),
        Key(base + "wpe.weight", "embed.places.weight"),
        Key(theirs + "ln_1.{p}", block + "attention_norm.{p}"),
        Key(theirs + "attn.c_attn.weight", tuple(name + ".weight" for name in qkv), stack_of(3, 1, transposed=True)),
        Key(theirs + "attn.c_attn.bias", tuple(name + ".bias" for name in qkv), stack_of(3)),
        Key(theirs + "attn.c_proj.weight", block + "attention.out.weight", TRANSPOSED),
        Key(theirs + "attn.c_proj.bias", block + "attention.out.bias"),
        Key(theirs + "ln_2.{p}", block + "feed_forward_norm.{p}"),
        Key(theirs + "mlp.c_fc.weight", block + "feed_forward.up.weight", TRANSPOSED),
        Key(theirs + "mlp.c_fc.bias", block + "feed_forward.up.bias"),
        Key(theirs + "mlp.c_proj.weight", block + "feed_forward.down.weight", TRANSPOSED),
        Key(theirs + "mlp.c_proj.bias", block + "feed_forward.down.bias"),
        Key(base + "ln_f.{p}", "stack.norm.{p}"),
        Key("lm_head.weight", "head.weight"),
        Key("score.weight", "head.out.weight"),
    ]
