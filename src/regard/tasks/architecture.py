"""Which model a task is solved with, in one dataclass for all: attention, and the things to compare with."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import BadInput, Unsupported
from ..nn.baselines.convolution import ConvolutionConfig
from ..nn.baselines.fully_connected import FullyConnectedConfig
from ..nn.baselines.recurrent import RecurrentConfig
from ..nn.block import StackConfig
from ..settings import Settings, setting

ATTENTION = ("transformer", "longformer", "bigbird")
RECURRENT = ("rnn", "gru", "lstm")
GRAPHS: dict[str, Literal[1, 2]] = {"gat": 1, "gatv2": 2}
PLUGGED = tuple(f"{name}+attention" for name in (*RECURRENT, "cnn", "mlp"))
TEXTS = ("transformer-xl", "ngram")
PARTS = ("score", "position", "mask", "method")
MODELS = (*ATTENTION, *RECURRENT, "cnn", "mlp", *PLUGGED, *GRAPHS, *TEXTS)


@dataclass(frozen=True)
class Architecture(Settings):
    """The model between embedding and head: attention, or a model to compare with.

    `model` may be transformer, longformer or bigbird; rnn, gru, lstm, cnn or mlp, each also with "+attention"; gat or
    gatv2 for graphs; transformer-xl or ngram for running text.
    """

    model: str = setting("transformer", f"Kind of model: {', '.join(MODELS)}.")
    dim: int = setting(128, "Size of a token's vector.", ge=1)
    layers: int = setting(2, "Number of layers.", ge=0)
    heads: int = setting(4, "Attention heads.", ge=1)
    hidden: int | None = setting(None, "Size inside the feed-forward networks; 4 dim by default.", ge=1)
    dropout: float = setting(0.1, "Dropout of embeddings and layers.", ge=0, lt=1)
    attention_dropout: float = setting(0.0, "Dropout of attention weights.", ge=0, lt=1)
    activation: str = setting("relu", "Activation of the feed-forward networks.")
    gated: bool = setting(False, "Gated feed-forward networks (GLU).")
    norm: Literal["layer", "rms"] = setting("layer", "LayerNorm or RMSNorm.")
    pre_norm: bool = setting(True, "Normalize before each sublayer instead of after it.")
    places: Literal["sinusoidal", "learned", "none"] = setting(
        "sinusoidal", "Position embeddings that are added to the tokens.", former="places"
    )
    score: str = setting("Dot()", "Attention's score, such as Dot() or Additive().")
    position: str | None = setting(None, "Attention's position, such as Alibi() or Rotary().")
    mask: str | None = setting(None, "Attention's mask, such as Window(before=8, after=8).")
    method: str = setting("Exact()", "Attention's method, such as Performer().")
    window: int = setting(64, "Tokens on either side that Longformer attends to.", ge=0)
    block: int = setting(64, "BigBird's block of tokens.", ge=1, former="block")
    kernel: int = setting(3, "Width of the convolutions.", ge=1, former="kernel")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model not in MODELS:
            near = difflib.get_close_matches(self.model, MODELS, n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise BadInput(f"There is no model {self.model!r}. {hint}There are {', '.join(MODELS)}.")

    @property
    def base(self) -> str:
        return self.model.removesuffix("+attention")

    @property
    def plugged(self) -> bool:
        """Whether attention is plugged into something else."""
        return self.model.endswith("+attention")


def unused(a: Architecture) -> list[str]:
    """The parts of attention that were named for a model that has no place for them, as `name=line`.

    Attention behind a recurrent network has a score alone, dot or additive; without attention there is none. Graphs'
    layers and Transformer-XL have a score and positions of their own.

    >>> unused(Architecture("lstm", position="Alibi()")), unused(Architecture("cnn+attention", position="Alibi()"))
    (['position=Alibi()'], [])
    """
    plain = Architecture()
    named = [name for name in PARTS if getattr(a, name) != getattr(plain, name)]
    if a.model in ATTENTION or (a.plugged and a.base not in RECURRENT):
        return []
    scored = a.plugged and a.score.startswith("Additive")
    return [f"{name}={getattr(a, name)}" for name in named if not (name == "score" and scored)]


def stack_of(a: Architecture, *, causal: bool = False, cross: bool = False) -> Any:
    """The configuration of the stack: an encoder, a causal one, or (`cross`) one that reads a memory."""
    if a.model in GRAPHS:
        raise Unsupported(f"{a.model} looks along a graph's edges, and these tokens have none. Take transformer.")
    if a.model in TEXTS:
        raise Unsupported(f"{a.model} goes through running text, which the task lm has alone. Take transformer.")
    if a.base in RECURRENT:
        looks = ("additive" if a.score.startswith("Additive") else "dot") if a.plugged else None
        both_ways = not causal and not cross
        kind: Any = a.base
        return RecurrentConfig(a.dim, a.layers, kind, both_ways, a.dropout, looks, 1, cross, a.norm)
    parts: dict[str, Any] = {name: getattr(a, name) for name in PARTS} if a.plugged else {}
    if a.base == "cnn":
        return ConvolutionConfig(
            a.dim, a.layers, a.kernel, causal=causal, attention=a.plugged, heads=a.heads, cross=cross, **parts
        )
    if a.base == "mlp":
        return FullyConnectedConfig(
            a.dim,
            a.layers,
            None,
            a.hidden,
            position_wise=True,
            attention=a.plugged,
            heads=a.heads,
            cross=cross,
            causal=causal,
            **parts,
        )
    return attention_stack(a, causal, cross)


def attention_stack(a: Architecture, causal: bool, cross: bool) -> StackConfig:
    """A stack of attention's blocks."""
    masks = [a.mask, "Causal()" if causal else None, own_mask(a, causal)]
    return StackConfig(
        a.dim,
        a.layers,
        a.heads,
        a.hidden,
        activation=a.activation,
        gated=a.gated,
        norm=a.norm,
        pre_norm=a.pre_norm,
        cross=cross,
        score=a.score,
        position=a.position,
        method=a.method,
        mask=" & ".join(f"({mask})" if "|" in mask else mask for mask in masks if mask) or None,
        window=a.window if a.model == "longformer" and not causal else None,
        dropout=a.dropout,
        attention_dropout=a.attention_dropout,
        hidden_dropout=a.dropout,
    )


def own_mask(a: Architecture, causal: bool) -> str | None:
    """What a model's own pattern allows."""
    if a.model == "bigbird":
        return f"bigbird(block={a.block}, seed={{layer}})"
    return f"Window(before={a.window})" if a.model == "longformer" and causal else None
