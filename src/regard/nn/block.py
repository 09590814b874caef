"""The block (attention, then a feed-forward layer, each around a residual) and the stack of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention.parts.mask import Mask
from ..attention.parts.masks import Documents, Lengths
from ..attention.parts.part import Part
from ..attention.tracing import shapes_only
from ..errors import BadInput, Unsupported
from .attention import Memory, MultiHeadAttention, both
from .cache import Cache, Slot
from .hierarchical import LocalGlobal, LocalMasks
from .linear import Linear
from .packing import Rows, cleared, real_tokens, rows_of
from .parts import POSITIONS, LearnedTransformerXL, Rotary, Turn, known, part_module, read_mask

ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
    "elu": functional.elu,
    "tanh": torch.tanh,
    "none": lambda x: x,
}
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


@dataclass(frozen=True)
class StackConfig:
    """A stack of blocks. `hidden` is 4·dim and `kv_heads` is heads unless given.

    `bias` says which of attention's q, k, v, out ("o") and of the feed-forward layers ("f") have one. `score`,
    `position`, `method`, `mask` are the lines of parts; `{layer}` in the mask's and the score's stands for the layer's
    number, `{training}` in the mask's for whether it learns; a tuple has one line a layer. One position serves all
    layers if `shared_position`. `cross` adds attention to a memory. `window` takes Longformer's layer with its second
    projections for global tokens instead of plain multi-head attention: one number, or one a layer, of tokens seen in
    all, half of them on either side. `memory` is how many earlier tokens a cache keeps, which a segment then sees also
    while it learns.
    """

    dim: int
    layers: int
    heads: int
    hidden: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    activation: str = "gelu"
    gated: bool = False
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    pre_norm: bool = True
    final_norm: bool | None = None
    bias: str = "qkvof"
    cross: bool = False
    score: str = "Dot()"
    position: str | None = None
    shared_position: bool = True
    method: str = "Exact()"
    mask: str | tuple[str, ...] | None = None
    window: int | tuple[int, ...] | None = None
    memory: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0

    def build(self) -> Stack:
        return Stack(self)

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one."""
        return bool(self.mask) and all("Causal()" in (line or "") for line in self.masks)

    @property
    def masks(self) -> tuple[str | None, ...]:
        """The mask's line of every layer, at rest."""
        return self.masks_when(training=False)

    def masks_when(self, training: bool) -> tuple[str | None, ...]:
        """The mask's line of every layer, learning or at rest."""
        if isinstance(self.mask, tuple | list):
            if len(self.mask) != self.layers:
                raise BadInput(f"mask has {len(self.mask)} lines; give one, or one for each of {self.layers} layers.")
            return tuple(self.mask)
        return tuple(self.mask and self.mask.format(layer=n, training=training) for n in range(self.layers))


class FeedForward(nn.Module):
    """down(act(up(x))), or down(act(gate(x)) · up(x)) when gated: the same for every token.

    >>> import torch, regard as rg
    >>> rg.nn.FeedForward(dim=8, hidden=32, activation="silu", gated=True)(torch.randn(2, 3, 8)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.up = Linear(dim, hidden, bias)
        self.gate = Linear(dim, hidden, bias) if gated else None
        self.down = Linear(hidden, dim, bias)
        self.activation = known(activation, ACTIVATIONS, activation)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        inner = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        return self.down(self.dropout(inner))


@dataclass(frozen=True)
class Flow:
    """What all layers of one pass share."""

    lengths: Tensor | None = None
    rows: Rows | None = None
    mask: Mask | None = None
    position: Part | Turn | None = None
    place: Tensor | None = None
    global_tokens: Tensor | None = None
    memory: Memory | None = None
    local: dict[int, LocalMasks] = field(default_factory=dict)


class Block(nn.Module):
    """Attention, attention to a memory (when `cross`), feed-forward; each added to what came in.

    pre-norm: x + f(norm(x));  post-norm: norm(x + f(x)).
    """

    def __init__(self, config: StackConfig, layer: int = 0) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = own_attention(config, layer)
        self.attention_norm = make_norm(config)
        self.cross = cross_attention(config) if config.cross else None
        self.cross_norm = make_norm(config) if config.cross else None
        self.feed_forward = FeedForward(
            config.dim,
            config.hidden or 4 * config.dim,
            config.activation,
            config.gated,
            "f" in config.bias,
            config.hidden_dropout,
        )
        self.feed_forward_norm = make_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, flow: Flow, cache: Slot | None = None) -> Tensor:
        """`x` as it was given, `[batch, tokens, dim]` or packed, with what this layer adds."""
        x = self.around(x, self.attention_norm, lambda y: self.look(y, flow, cache))
        if self.cross is not None and self.cross_norm is not None:
            memory, place, rows = flow.memory, flow.place, flow.rows
            cross = self.cross
            x = self.around(x, self.cross_norm, lambda y: cross(y, memory, place=place, rows=rows, cache=cache))
        return self.around(x, self.feed_forward_norm, self.feed_forward)

    def look(self, x: Tensor, flow: Flow, cache: Slot | None) -> Tensor:
        """What the tokens take from each other."""
        if isinstance(self.attention, LocalGlobal):
            x = x if flow.rows is None else flow.rows.pad(x)
            y = self.attention(
                x,
                lengths=flow.lengths,
                global_tokens=flow.global_tokens,
                masks=flow.local.get(self.attention.window),
            )
            return y if flow.rows is None else flow.rows.pack(y)
        return self.attention(x, mask=flow.mask, position=flow.position, place=flow.place, rows=flow.rows, cache=cache)

    def around(self, x: Tensor, norm: nn.Module, f) -> Tensor:
        if self.pre_norm:
            return x + self.dropout(f(norm(x)))
        return norm(x + self.dropout(f(x)))


def torch_attends(config: StackConfig) -> bool:
    """Whether torch's own kernels are all that the attention of a stack needs, where nothing is padded."""
    plain = config.score == "Dot()" and config.position is None and config.method == "Exact()"
    return plain and config.window is None and config.mask in (None, "Causal()")


def own_attention(config: StackConfig, layer: int) -> nn.Module:
    """The attention of a layer to its own tokens."""
    if config.window is not None:
        window = config.window if isinstance(config.window, int) else config.window[layer]
        return LocalGlobal(config.dim, config.heads, window, dropout=config.attention_dropout)
    return MultiHeadAttention(
        config.dim,
        config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        bias=config.bias,
        score=config.score.format(layer=layer),
        position=None if config.shared_position else config.position,
        method=config.method,
        dropout=config.attention_dropout,
    )


def cross_attention(config: StackConfig) -> MultiHeadAttention:
    """The attention of a layer to the memory."""
    return MultiHeadAttention(
        config.dim,
        config.heads,
        head_dim=config.head_dim,
        bias=config.bias,
        score=config.score,
        dropout=config.attention_dropout,
    )


def make_norm(config: StackConfig) -> nn.Module:
    return known(config.norm, NORMS, config.norm)(config.dim, eps=config.eps)


class Stack(nn.Module):
    """Blocks one above the other. Padding is taken out before them and put back after: nothing is computed for it.

    >>> import torch, regard as rg
    >>> stack = rg.nn.Stack(rg.nn.StackConfig(dim=32, layers=2, heads=4, mask="Causal()", position="Rotary()"))
    >>> stack(torch.randn(2, 5, 32), lengths=torch.tensor([5, 3])).shape
    torch.Size([2, 5, 32])
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        shared = config.position if config.shared_position else None
        head_dim = config.head_dim or config.dim // config.heads
        self.position = None if shared is None else part_module(shared, POSITIONS, config.heads, head_dim)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        last = config.pre_norm if config.final_norm is None else config.final_norm
        self.norm = make_norm(config) if last else None
        lines = {learning: config.masks_when(learning) for learning in (False, True)}
        made = {line: read_mask(line) for line in (*lines[False], *lines[True])}
        self.masks = {learning: [made[line] for line in lines[learning]] for learning in lines}

    def forward(
        self,
        x: Tensor,
        *,
        lengths: Tensor | None = None,
        mask: Mask | None = None,
        memory: Memory | Tensor | None = None,
        cache: Cache | None = None,
        place: Tensor | None = None,
        global_tokens: Tensor | None = None,
        keep: list[Tensor] | None = None,
    ) -> Tensor:
        """`[batch, tokens, dim]`: the tokens after the last block (and the final norm), zero where there is padding.

        `mask` is joined with the configuration's; `memory` is what cross-attention reads; `cache` remembers. What
        each block gives, before the final norm and without padding, is appended to `keep`.
        """
        if x.dim() != 3 or x.shape[2] != self.config.dim:
            raise BadInput(f"x has shape {list(x.shape)}; it must be [batch, tokens, {self.config.dim}].")
        if cache is not None:
            cache.memory = self.config.memory
        rows = rows_of(x, lengths)
        seen = both(mask, padding_mask(lengths, cache, x.shape[1]))
        own_masks = self.masks[self.training]
        masks = {id(own): both(own, seen) for own in own_masks}
        local = self.local_masks(x, lengths, global_tokens)
        flow = Flow(lengths, rows, None, None, place, global_tokens, remembered(memory, cache), local)
        positions = self.placed(x, cache)
        if rows is not None:
            x, flow = rows.pack(x), replace(flow, place=None if place is None else rows.pack(place))
        for n, (own, block) in enumerate(zip(own_masks, self.blocks, strict=True)):
            flow = replace(flow, mask=masks[id(own)], position=positions[n])
            x = block(x, flow, None if cache is None else cache.at(n))
            if keep is not None:
                keep.append(x)
        x = x if self.norm is None else self.norm(x)
        if rows is None and lengths is not None and shapes_only():
            return cleared(x, real_tokens(x, lengths))
        return x if rows is None else rows.pad(x)

    def local_masks(self, x: Tensor, lengths: Tensor | None, global_tokens: Tensor | None) -> dict[int, LocalMasks]:
        """The masks of windowed layers, by their window."""
        layers = [block.attention for block in self.blocks]
        windowed = {layer.window: layer for layer in layers if isinstance(layer, LocalGlobal)}
        return {window: layer.masks(x, lengths, global_tokens) for window, layer in windowed.items()}

    def placed(self, x: Tensor, cache: Cache | None) -> Sequence[Part | Turn | None]:
        """The position of each layer, where all layers share one module."""
        if isinstance(self.position, LearnedTransformerXL):
            return self.position.layers(x, cache)
        return [self.shared(x, cache)] * len(self.blocks)

    def shared(self, x: Tensor, cache: Cache | None) -> Part | Turn | None:
        """The position that is the same for all layers."""
        if isinstance(self.position, Rotary):
            self.need_no_inputs(cache)
            start = 0 if cache is None else cache.length
            return self.position.turn(torch.arange(start, start + x.shape[1], device=x.device), x.dtype)
        return None if self.position is None else self.position()

    def need_no_inputs(self, cache: Cache | None) -> None:
        """Raise where earlier tokens' inputs would be turned by places that are not theirs."""
        if self.training and cache is not None and cache.memory is not None:
            raise Unsupported(
                "Learning with a memory goes with positions by distance, and Rotary turns keys by their place. Use "
                "TransformerXL, Alibi, Bias, T5Bias or Shaw."
            )


def padding_mask(lengths: Tensor | None, cache: Cache | None, tokens: int) -> Mask | None:
    """Hides padded keys: those after a row's length, or those before a row's first token in a cache."""
    real = None if cache is None else cache.real_keys(cache.length + tokens)
    if cache is not None and real is not None:
        real = real[:, cache.length - cache.remembered :]
        return Documents(real.int() - 1)
    return None if lengths is None else Lengths(lengths)


def remembered(memory: Memory | Tensor | None, cache: Cache | None) -> Memory | None:
    """The memory, without its padding where layers have still to read it."""
    if memory is None:
        return None
    memory = Memory(memory) if isinstance(memory, Tensor) else memory
    return memory if cache is not None and cache.length else memory.packed()
