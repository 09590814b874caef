"""The model of a task: attention, or a baseline to compare with, from one set of settings."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, cast

from ..attention.parts.mask import Mask
from ..attention.parts.masks import Causal, Window, bigbird
from ..attention.parts.parts import DEFAULT_PARTS, Parts
from ..errors import BadInput, Unsupported
from ..nn.attention import intersect
from ..nn.baselines.convolution import ConvolutionConfig
from ..nn.baselines.fully_connected import FullyConnectedConfig
from ..nn.baselines.recurrent import RecurrentConfig
from ..nn.block import StackConfig
from ..nn.parts.config import PartArguments, update_parts
from ..nn.parts.layer_masks import LayerMasks
from ..nn.parts.learned import LearnedAdditive
from ..nn.sparse.bigbird import BigBirdMask
from ..settings import Settings, setting

ATTENTION = ("transformer", "longformer", "bigbird")
RECURRENT = ("rnn", "gru", "lstm")
GRAPHS: dict[str, Literal[1, 2]] = {"gat": 1, "gatv2": 2}
PLUGGED = tuple(f"{name}+attention" for name in (*RECURRENT, "cnn", "mlp"))
TEXTS = ("transformer-xl", "ngram")
HIERARCHICAL = "hierarchical"
LayersConfig = StackConfig | RecurrentConfig | ConvolutionConfig | FullyConnectedConfig
PARTS = ("score", "position", "mask", "method", "sink")
LORA_TARGETS = ("q", "k", "v", "out", "up", "gate", "down")
MODELS = (*ATTENTION, *RECURRENT, "cnn", "mlp", *PLUGGED, *GRAPHS, *TEXTS, HIERARCHICAL)


@dataclass(frozen=True)
class Architecture(Settings):
    """The model between embedding and head: attention, or a model to compare with.

    `model` may be transformer, longformer or bigbird; rnn, gru, lstm, cnn or mlp, each also with "+attention"; gat or
    gatv2 for graphs; transformer-xl or ngram for running text; hierarchical (words, sentences, document) to classify
    texts.
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
    positions: Literal["sinusoidal", "learned", "none"] = setting(
        "sinusoidal", "Position embeddings that are added to the tokens.", former="places"
    )
    score: str = setting("Dot()", "Attention's score, such as Dot() or Additive().")
    position: str | None = setting(None, "Attention's position, such as Alibi() or Rotary().")
    mask: str | None = setting(None, "Attention's mask, such as Window(before=8, after=8).")
    method: str = setting("Exact()", "Attention's method, such as Performer().")
    sink: str | None = setting(None, "A sink in attention's softmax, such as LearnedSink() or Sink().")
    window: int = setting(64, "Tokens on either side that Longformer attends to.", ge=0)
    block_size: int = setting(64, "BigBird's block of tokens.", ge=1, former="block")
    kernel_size: int = setting(3, "Width of the convolutions.", ge=1, former="kernel")
    checkpoint: str | None = setting(
        None,
        "Checkpoint to start from (--from): a Hugging Face folder, a run, a shipped model or a Hub id; its sizes hold.",
    )
    lora_rank: int = setting(0, "Rank of LoRA's two matrices for each of lora_targets; 0 trains the weights.", ge=0)
    lora_alpha: float | None = setting(
        None, "LoRA's products are scaled by alpha / rank; twice the rank by default.", gt=0
    )
    lora_targets: tuple[str, ...] = setting(
        ("q", "v"), "Linear layers that LoRA is added to: q, k, v, out, up, gate, down, or all of them (all)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model not in MODELS:
            near = difflib.get_close_matches(self.model, MODELS, n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise BadInput(f"There is no model {self.model!r}. {hint}There are {', '.join(MODELS)}.")
        for name in self.lora_targets:
            if name not in (*LORA_TARGETS, "all"):
                raise BadInput(f"lora_targets has {name!r}; it may have {', '.join(LORA_TARGETS)}, or be all.")

    @property
    def parts(self) -> Parts:
        """The parts of attention, from their text."""
        given = PartArguments(
            score=self.score, position=self.position, mask=self.mask, method=self.method, sink=self.sink
        )
        return update_parts(DEFAULT_PARTS, given, layers=self.layers, dropout=self.attention_dropout)

    @property
    def base(self) -> str:
        """The model without its attention."""
        return self.model.removesuffix("+attention")

    @property
    def with_attention(self) -> bool:
        """Whether the model is a baseline with attention added."""
        return self.model.endswith("+attention")

    def position_embedding(self, tokens: int) -> int | Literal["sinusoidal"] | None:
        """The position embedding of texts of so many tokens, as the configuration of their embedding names it."""
        if self.positions == "none":
            return None
        return tokens if self.positions == "learned" else "sinusoidal"


def unused_parts(a: Architecture) -> list[str]:
    """The parts of attention that are set for a model that does not use them, as `name=text`.

    Recurrent networks with attention use a dot or additive score only, models without attention no part. Graph layers
    and Transformer-XL have a score and positions of their own.

    >>> [unused_parts(Architecture(model, position="Alibi()")) for model in ("lstm", "cnn+attention")]
    [['position=Alibi()'], []]
    """
    if a.model in ATTENTION or (a.with_attention and a.base not in RECURRENT):
        return []
    parts, own_score = a.parts, a.with_attention and isinstance(a.parts.score, LearnedAdditive)
    changed = [name for name in PARTS if getattr(parts, name) != getattr(DEFAULT_PARTS, name)]
    return [f"{name}={getattr(a, name)}" for name in changed if not (name == "score" and own_score)]


def stack_of(a: Architecture, *, causal: bool = False, cross: bool = False) -> LayersConfig:
    """The configuration of the stack: an encoder, a causal one, or (`cross`) a decoder that attends to a memory."""
    if a.model in GRAPHS:
        raise Unsupported(f"{a.model} attends along the edges of a graph; tokens have no edges. Take transformer.")
    if a.model in TEXTS:
        raise Unsupported(f"{a.model} reads running text, which only the task lm has. Take transformer.")
    if a.model == HIERARCHICAL:
        raise Unsupported("hierarchical reads the sentences of texts, in the task classify only. Take transformer.")
    if a.base in RECURRENT:
        score = "additive" if isinstance(a.parts.score, LearnedAdditive) else "dot"
        attention = score if a.with_attention else None
        cell = cast(Literal["rnn", "gru", "lstm"], a.base)
        return RecurrentConfig(a.dim, a.layers, cell, not causal and not cross, a.dropout, attention, 1, cross, a.norm)
    parts, extra = a.parts if a.with_attention else DEFAULT_PARTS, a.with_attention
    if a.base == "cnn":
        return ConvolutionConfig(
            a.dim, a.layers, a.kernel_size, causal=causal, attention=extra, heads=a.heads, cross=cross, parts=parts
        )
    if a.base == "mlp":
        sizes = (a.dim, a.layers, None, a.hidden)
        return FullyConnectedConfig(
            *sizes, position_wise=True, causal=causal, attention=extra, heads=a.heads, cross=cross, parts=parts
        )
    return attention_stack(a, causal, cross)


def attention_stack(a: Architecture, causal: bool, cross: bool) -> StackConfig:
    """A stack of attention blocks."""
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
        parts=replace(a.parts, mask=combine_masks(a, causal)),
        window=a.window if a.model == "longformer" and not causal else None,
        dropout=a.dropout,
        hidden_dropout=a.dropout,
    )


def combine_masks(a: Architecture, causal: bool) -> Mask | None:
    """The mask of the setting, the causal mask and the model's own pattern, combined with `&`.

    >>> combine_masks(Architecture(mask="Window(3) | Global((0,))"), causal=True)
    (Window(before=3) | Global(tokens=(0,))) & Causal()
    """
    given = a.parts.mask
    if isinstance(given, BigBirdMask):
        if causal or a.model != "transformer":
            raise Unsupported(f"mask={a.mask} is not combined with other masks. Leave it out.")
        return given
    layers = given.masks if isinstance(given, LayerMasks) else (given,) * a.layers
    masks = tuple(reduce(intersect, own_masks(a, causal, layer), mask) for layer, mask in enumerate(layers))
    return masks[0] if len(set(masks)) == 1 else LayerMasks(masks) if masks else None


def own_masks(a: Architecture, causal: bool, layer: int) -> list[Mask]:
    """The causal mask and the model's own pattern, for one layer."""
    masks: list[Mask] = [Causal()] if causal else []
    if a.model == "bigbird":
        masks.append(bigbird(block=a.block_size, seed=layer))
    if a.model == "longformer" and causal:
        masks.append(Window(a.window))
    return masks
