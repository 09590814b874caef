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

ATTENTION = ("transformer", "longformer", "bigbird")
RECURRENT = ("rnn", "gru", "lstm")
GRAPHS: dict[str, Literal[1, 2]] = {"gat": 1, "gatv2": 2}
PLUGGED = tuple(f"{name}+attention" for name in (*RECURRENT, "cnn", "mlp"))
TEXTS = ("transformer-xl", "ngram")
PARTS = ("score", "position", "mask", "method")
MODELS = (*ATTENTION, *RECURRENT, "cnn", "mlp", *PLUGGED, *GRAPHS, *TEXTS)


@dataclass(frozen=True)
class Architecture:
    """The model between embedding and head.

    `model` is one of transformer, longformer, bigbird, rnn, gru, lstm, cnn, mlp; the last five also with "+attention";
    or, for graphs, gat or gatv2; or, for running text, transformer-xl or ngram.
    `score`, `position`, `mask` and `method` are the lines of attention's parts. `places` is what is added to tokens.
    `window` is what Longformer's tokens see around them, `block` BigBird's block, `kernel` the convolution's width.
    """

    model: str = "transformer"
    dim: int = 128
    layers: int = 2
    heads: int = 4
    hidden: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: str = "relu"
    gated: bool = False
    norm: Literal["layer", "rms"] = "layer"
    pre_norm: bool = True
    places: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    score: str = "Dot()"
    position: str | None = None
    mask: str | None = None
    method: str = "Exact()"
    window: int = 64
    block: int = 64
    kernel: int = 3

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            near = difflib.get_close_matches(self.model, MODELS, n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise BadInput(f"There is no model {self.model!r}. {hint}There are {', '.join(MODELS)}.")

        for name in ("dim", "heads", "hidden", "block", "kernel"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BadInput(f"{name} is {value}; it must be at least 1.")
        for name in ("layers", "window"):
            if getattr(self, name) < 0:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be at least 0.")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be at least 0 and less than 1.")

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
