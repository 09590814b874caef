"""Which model a task is solved with, in one dataclass for all: attention, and the things to compare with."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Literal

from ..attention.errors import BadInput, Unsupported
from ..nn.block import StackConfig
from ..nn.convolution import ConvolutionConfig
from ..nn.fully_connected import FullyConnectedConfig
from ..nn.recurrent import RecurrentConfig

ATTENTION = ("transformer", "longformer", "bigbird")
RECURRENT = ("rnn", "gru", "lstm")
GRAPHS: dict[str, Literal[1, 2]] = {"gat": 1, "gatv2": 2}
PLUGGED = tuple(f"{name}+attention" for name in (*RECURRENT, "cnn", "mlp"))
TEXTS = ("transformer-xl", "ngram")
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

    @property
    def base(self) -> str:
        return self.model.removesuffix("+attention")

    @property
    def plugged(self) -> bool:
        """Whether attention is plugged into something else."""
        return self.model.endswith("+attention")


def stack_of(a: Architecture, *, causal: bool = False, cross: bool = False) -> Any:
    """The configuration of the stack: an encoder, a causal one, or (`cross`) one that reads a memory."""
    if a.model in GRAPHS:
        raise Unsupported(f"{a.model} looks along a graph's edges, and these tokens have none. Take transformer.")
    if a.model in TEXTS:
        raise Unsupported(f"{a.model} goes through running text, which the task lm has alone. Take transformer.")
    if a.base in RECURRENT:
        looks = ("additive" if "Additive" in a.score else "dot") if a.plugged else None
        both_ways = not causal and not cross
        kind: Any = a.base
        return RecurrentConfig(a.dim, a.layers, kind, both_ways, a.dropout, looks, 1, cross, a.norm)
    if a.base == "cnn":
        return ConvolutionConfig(
            a.dim, a.layers, a.kernel, causal=causal, attention=a.plugged, heads=a.heads, cross=cross
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
