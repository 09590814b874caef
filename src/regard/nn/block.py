"""The block (attention, then a feed-forward network, each with a residual connection) and the stack of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..attention.parts.mask import Mask
from ..attention.parts.masks import Causal, Documents, Lengths
from ..attention.parts.parts import DEFAULT_PARTS, Parts
from ..attention.parts.places import Places
from ..attention.sharding import current_layout
from ..attention.tracing import shapes_only
from ..errors import BadInput, Unsupported
from .activations import ACTIVATIONS, NORMS, NormName, choose
from .attention import Attend, EncoderOutput, MultiHeadAttention, intersect
from .cache import Cache, LayerCache
from .experts import Experts, ExpertsConfig
from .linear import Linear
from .multihead.differential import DifferentialConfig
from .multihead.gate import GateConfig
from .multihead.latent import LatentConfig, MultiHeadLatentAttention
from .packing import Packing, make_packing, real_tokens, zero_padding
from .parts.config import CallPosition, PartArguments, PartsByName, build_part, set_fields, update_parts
from .parts.layer_positions import LayerPositionModules
from .parts.learned import TransformerXLPositions
from .parts.rotary import RotaryEmbedding
from .sparse.longformer import LocalGlobal, LocalMasks

Residual = Literal["pre", "post", "output", "sandwich", "parallel"]
"""Where the norms of a block are.

    pre       x + f(norm(x))           post      norm(x + f(x))
    output    x + norm(f(x))           sandwich  x + norm'(f(norm(x)))
    parallel  x + attention(norm(x)) + feed_forward(norm'(x))
"""


@dataclass(frozen=True, init=False)
class StackConfig(PartsByName):
    """A stack of blocks. `hidden` is 4·dim and `kv_heads` is heads unless given.

    `bias` names the layers that have one: attention's q, k, v, out ("o"), and the feed-forward network ("f"). `parts`
    are those of its attention: a learned one stands as its specification, and the mask may have another for each layer
    (`BigBirdMask`). `score`, `position`, `mask` (one, or a list with one for each layer), `method` and
    `attention_dropout` by name, as values or as text, replace those of `parts`. All layers share one position if
    `shared_position`. `cross` adds cross-attention. `window` takes Longformer's layer, with second projections for
    global tokens, instead of plain multi-head attention: the number of tokens seen in all, half of them on either side,
    one for all layers or one for each. `memory_length` is the number of earlier tokens that a cache keeps, which a
    segment also sees in training.

    `residual` is where the norms are (`Residual`; `pre_norm` True or False is "pre" or "post"). `qk_norm` puts a norm
    on q and k, of each "head" or of "all" heads together. `layer_scale` multiplies the output of attention and of the
    feed-forward network by a learned vector that starts at this number. `unique_layers` is the number of blocks that
    have weights of their own; successive layers share them. Without `first_norm` the first attention reads its input
    unnormalized, for an embedding that ends with a norm. `experts` takes a mixture of experts as feed-forward network.
    `attention` takes another form of self-attention, latent or differential, and `gate` puts a gate on its output or
    values.

    >>> config = StackConfig(dim=8, layers=2, heads=2, mask="Causal() & Window(3)")
    >>> config.parts, config.causal
    (Parts(mask=Causal() & Window(before=3)), True)
    """

    dim: int
    layers: int
    heads: int
    hidden: int | None
    kv_heads: int | None
    head_dim: int | None
    activation: str
    gated: bool
    norm: NormName
    eps: float
    residual: Residual
    final_norm: bool | None
    bias: str
    cross: bool
    parts: Parts
    shared_position: bool
    window: int | tuple[int, ...] | None
    memory_length: int | None
    dropout: float
    hidden_dropout: float
    qk_norm: Literal["head", "all"] | None
    layer_scale: float | None
    unique_layers: int | None
    first_norm: bool
    experts: ExpertsConfig | None
    attention: LatentConfig | DifferentialConfig | None
    gate: GateConfig | None

    def __init__(
        self,
        dim: int,
        layers: int,
        heads: int,
        hidden: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        activation: str = "gelu",
        gated: bool = False,
        norm: NormName = "layer",
        eps: float = 1e-5,
        residual: Residual | bool = "pre",
        final_norm: bool | None = None,
        bias: str = "qkvof",
        cross: bool = False,
        parts: Parts = DEFAULT_PARTS,
        shared_position: bool = True,
        window: int | tuple[int, ...] | None = None,
        memory_length: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        hidden_dropout: float = 0.0,
        qk_norm: Literal["head", "all"] | None = None,
        layer_scale: float | None = None,
        unique_layers: int | None = None,
        first_norm: bool = True,
        experts: ExpertsConfig | None = None,
        attention: LatentConfig | DifferentialConfig | None = None,
        gate: GateConfig | None = None,
        *,
        pre_norm: bool | None = None,
        **given: Unpack[PartArguments],
    ) -> None:
        parts = update_parts(parts, given, layers=layers, dropout=attention_dropout)
        residual = residual if pre_norm is None else pre_norm
        if isinstance(residual, bool):
            residual = "pre" if residual else "post"
        if isinstance(attention, LatentConfig) and (gate is not None or qk_norm is not None or kv_heads is not None):
            raise BadInput("Latent attention takes no gate, qk_norm or kv_heads: its latent has a norm and all heads.")
        choose(residual, {name: name for name in get_args(Residual)}, "residual")
        set_fields(self, locals())

    @property
    def pre_norm(self) -> bool:
        """Whether norms come before attention and feed-forward networks, not after the sum."""
        return self.residual == "pre"

    def build(self) -> Stack:
        return Stack(self)

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one, in any layer."""
        return all(mask is not None and mask.causal for mask in self.layer_masks(training=False))

    def layer_masks(self, training: bool) -> list[Mask | None]:
        """The mask of every layer; equal masks are one object, so that all layers share the cache of a mask."""
        mask, unique = self.parts.mask, {}
        masks = [None if mask is None else mask.at_layer(layer, training) for layer in range(self.layers)]
        return [unique.setdefault(mask, mask) for mask in masks]


class FeedForward(nn.Module):
    """The position-wise feed-forward network: down(act(up(x))), or down(act(gate(x)) · up(x)) when gated.

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
        self.activation = choose(activation, ACTIVATIONS, "activation")
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        inner = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        return self.down(self.dropout(inner))


@dataclass(frozen=True)
class LayerInputs:
    """The inputs of the layers of one call besides x; `mask` and `position` are those of one layer."""

    lengths: Tensor | None = None
    packing: Packing | None = None
    mask: Mask | None = None
    position: CallPosition | None = None
    position_embedding: Tensor | None = None
    global_tokens: Tensor | None = None
    memory: EncoderOutput | None = None
    local_masks: dict[int, LocalMasks] = field(default_factory=dict)


class Block(nn.Module):
    """Attention, cross-attention (when `cross`), feed-forward network; each with a residual connection (`Residual`)."""

    def __init__(self, config: StackConfig, layer: int = 0) -> None:
        super().__init__()
        self.form = config.residual
        self.attention = make_self_attention(config, layer)
        self.attention_norm = make_norm(config) if layer or config.first_norm else nn.Identity()
        self.cross = make_cross_attention(config) if config.cross else None
        self.cross_norm = make_norm(config) if config.cross else None
        self.feed_forward = make_feed_forward(config)
        self.feed_forward_norm = make_norm(config)
        if config.residual == "sandwich":
            self.attention_output_norm, self.feed_forward_output_norm = make_norm(config), make_norm(config)
            self.cross_output_norm = make_norm(config) if config.cross else None
        if config.layer_scale is not None:
            start = torch.full((config.dim,), config.layer_scale)
            self.attention_scale, self.feed_forward_scale = nn.Parameter(start), nn.Parameter(start.clone())
            self.cross_scale = nn.Parameter(start.clone()) if config.cross else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None = None) -> Tensor:
        """x after this layer, `[batch, tokens, dim]` or packed, as it was given."""
        if self.form == "parallel":
            y = self.self_attention(self.attention_norm(x), inputs, cache)
            return x + self.dropout(y) + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.residual(x, "attention", lambda y: self.self_attention(y, inputs, cache))
        if self.cross is not None:
            cross, position, packing = self.cross, inputs.position_embedding, inputs.packing
            x = self.residual(
                x,
                "cross",
                lambda y: cross(y, inputs.memory, position_embedding=position, packing=packing, cache=cache),
            )
        return self.residual(x, "feed_forward", self.feed_forward)

    def self_attention(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None) -> Tensor:
        packing = inputs.packing
        if isinstance(self.attention, LocalGlobal):
            x = x if packing is None else packing.pad(x)
            masks = inputs.local_masks.get(self.attention.window)
            y = self.attention(x, lengths=inputs.lengths, global_tokens=inputs.global_tokens, masks=masks)
            return y if packing is None else packing.pack(y)
        return self.attention(
            x,
            mask=inputs.mask,
            position=inputs.position,
            position_embedding=inputs.position_embedding,
            packing=packing,
            cache=cache,
        )

    def residual(self, x: Tensor, name: str, f: Callable[[Tensor], Tensor]) -> Tensor:
        """x and the output of f, with the norms and the scale of that name."""
        norm = getattr(self, f"{name}_norm")
        y = f(norm(x) if self.form in ("pre", "sandwich") else x)
        if self.form == "output":
            y = norm(y)
        elif self.form == "sandwich":
            y = getattr(self, f"{name}_output_norm")(y)
        scale = getattr(self, f"{name}_scale", None)
        x = x + self.dropout(y if scale is None else y * scale)
        return norm(x) if self.form == "post" else x


def runs_on_sdpa(config: StackConfig) -> bool:
    """Whether torch's own kernels can run the attention of a stack, where nothing is padded."""
    parts = replace(config.parts, dropout=0.0)
    return config.window is None and parts in (DEFAULT_PARTS, Parts(mask=Causal()))


def make_self_attention(config: StackConfig, layer: int) -> nn.Module:
    if config.window is not None:
        window = config.window if isinstance(config.window, int) else config.window[layer]
        return LocalGlobal(config.dim, config.heads, window, dropout=config.parts.dropout)
    parts = replace(config.parts, mask=None, position=None if config.shared_position else config.parts.position)
    if isinstance(config.attention, LatentConfig):
        return MultiHeadLatentAttention(
            config.dim, config.heads, config.attention, bias=config.bias, parts=parts, layer=layer
        )
    return MultiHeadAttention(
        config.dim,
        config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        bias=config.bias,
        parts=parts,
        qk_norms=make_qk_norms(config),
        gate=config.gate,
        differential=config.attention,
        layer=layer,
    )


def make_cross_attention(config: StackConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.dim,
        config.heads,
        head_dim=config.head_dim,
        bias=config.bias,
        parts=Parts(config.parts.score, dropout=config.parts.dropout),
    )


def make_feed_forward(config: StackConfig) -> nn.Module:
    hidden = config.hidden or 4 * config.dim
    if config.experts is not None:
        return Experts(config.dim, hidden, config.experts)
    return FeedForward(config.dim, hidden, config.activation, config.gated, "f" in config.bias, config.hidden_dropout)


def make_norm(config: StackConfig, dim: int | None = None) -> nn.Module:
    return choose(config.norm, NORMS, "norm")(dim or config.dim, eps=config.eps)


def make_qk_norms(config: StackConfig) -> tuple[nn.Module, nn.Module] | None:
    """The norms of q and k."""
    if config.qk_norm is None:
        return None
    counts = (1, 1) if config.qk_norm == "head" else (config.heads, config.kv_heads or config.heads)
    q, k = (make_norm(config, count * (config.head_dim or config.dim // config.heads)) for count in counts)
    return q, k


def make_blocks(config: StackConfig) -> list[Block]:
    """The blocks. Successive ones of `unique_layers` share weights, but not the `Attend` that hooks are put on."""
    blocks = [Block(config, layer) for layer in range(config.layers)]
    unique = config.unique_layers or config.layers
    for layer, block in enumerate(blocks):
        first = -(-(layer * unique // config.layers) * config.layers // unique)  # of the layers with the same weights
        if first != layer:
            share_weights(block, blocks[first])
    return blocks


def share_weights(module: nn.Module, source: nn.Module) -> None:
    """Give a module the layers of another in place of its own."""
    for name, child in source.named_children():
        if isinstance(child, Attend):
            continue
        if any(isinstance(inner, Attend) for inner in child.modules()):
            share_weights(getattr(module, name), child)
        else:
            setattr(module, name, child)


class Stack(nn.Module):
    """Blocks one after the other. Padding is removed before them and restored after, so that none is computed.

    >>> import torch, regard as rg
    >>> stack = rg.nn.Stack(rg.nn.StackConfig(dim=32, layers=2, heads=4, mask=rg.Causal(), position=rg.Rotary()))
    >>> stack(torch.randn(2, 5, 32), lengths=torch.tensor([5, 3])).shape
    torch.Size([2, 5, 32])
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        shared = config.parts.position if config.shared_position else None
        head_dim = config.head_dim or config.dim // config.heads
        rotary_dim, latent = None, config.attention
        if isinstance(latent, LatentConfig):
            head_dim, rotary_dim = latent.key_dim + latent.rotary_dim, latent.rotary_dim
        self.position = None if shared is None else build_part(shared, config.heads, head_dim, 0, rotary_dim)
        self.blocks = nn.ModuleList(make_blocks(config))
        last = config.residual != "post" if config.final_norm is None else config.final_norm
        self.norm = make_norm(config) if last else None
        self.masks = {training: config.layer_masks(training) for training in (False, True)}
        self.checkpointing = False
        """Whether blocks are computed again in the backward pass instead of keeping their activations."""

    def forward(
        self,
        x: Tensor,
        *,
        lengths: Tensor | None = None,
        mask: Mask | None = None,
        memory: EncoderOutput | Tensor | None = None,
        cache: Cache | None = None,
        position_embedding: Tensor | None = None,
        global_tokens: Tensor | None = None,
        layer_outputs: list[Tensor] | None = None,
    ) -> Tensor:
        """`[batch, tokens, dim]`: the tokens after the last block (and the final norm), zero in the padding.

        `mask` is combined with the configuration's; `memory` is what cross-attention reads; `cache` holds what earlier
        calls computed. The output of each block, before the final norm and without padding, is appended to
        `layer_outputs`.
        """
        if x.dim() != 3 or x.shape[2] != self.config.dim:
            raise BadInput(f"x has shape {list(x.shape)}; it must be [batch, tokens, {self.config.dim}].")
        if cache is not None:
            cache.memory_length = self.config.memory_length
        packing = make_packing(x, lengths)
        if cache is not None and cache.config.sliding and mask is not None:
            raise Unsupported(
                f"A sliding cache drops keys, and {mask} may allow them again. Put the mask into the configuration "
                "of the stack, or leave out sliding."
            )
        layer_masks = self.masks[self.training]
        combined = {
            id(own): intersect(
                place_mask(own, cache, x.shape[1]), intersect(mask, padding_mask(lengths, cache, x.shape[1], own))
            )
            for own in unique_masks(layer_masks)
        }
        inputs = LayerInputs(
            lengths=lengths,
            packing=packing,
            position_embedding=position_embedding,
            global_tokens=global_tokens,
            memory=as_encoder_output(memory, cache),
            local_masks=self.local_masks(x, lengths, global_tokens),
        )
        positions = self.layer_positions(x, cache)
        if packing is not None:
            packed = None if position_embedding is None else packing.pack(position_embedding)
            x, inputs = packing.pack(x), replace(inputs, position_embedding=packed)
        for n, (own, block) in enumerate(zip(layer_masks, self.blocks, strict=True)):
            inputs = replace(inputs, mask=combined[id(own)], position=positions[n])
            if self.checkpointing and torch.is_grad_enabled() and cache is None:
                if (layout := current_layout()) is None:
                    x = checkpoint(block, x, inputs, use_reentrant=False)
                else:  # it may be closed when the block is computed again
                    contexts = lambda layout=layout: (nullcontext(), layout)  # noqa: E731
                    x = checkpoint(block, x, inputs, use_reentrant=False, context_fn=contexts)
            else:
                x = block(x, inputs, None if cache is None else cache.layer(n, own))
            if layer_outputs is not None:
                layer_outputs.append(x)
        x = x if self.norm is None else self.norm(x)
        if packing is None and lengths is not None and shapes_only():
            return zero_padding(x, real_tokens(x, lengths))
        return x if packing is None else packing.pad(x)

    def local_masks(self, x: Tensor, lengths: Tensor | None, global_tokens: Tensor | None) -> dict[int, LocalMasks]:
        """The masks of windowed layers, by their window."""
        layers = [block.attention for block in self.blocks]
        windowed = {layer.window: layer for layer in layers if isinstance(layer, LocalGlobal)}
        return {window: layer.masks(x, lengths, global_tokens) for window, layer in windowed.items()}

    def layer_positions(self, x: Tensor, cache: Cache | None) -> Sequence[CallPosition | None]:
        """The position of each layer, where all layers share one module."""
        if isinstance(self.position, TransformerXLPositions):
            return self.position.layers(x, cache)
        if not isinstance(self.position, LayerPositionModules):
            return [self.make_position(self.position, x, cache)] * len(self.blocks)
        modules = self.position.by_layer()
        made = {id(module): self.make_position(module, x, cache) for module in modules}
        return [made[id(module)] for module in modules]

    def make_position(self, module: nn.Module | None, x: Tensor, cache: Cache | None) -> CallPosition | None:
        """The position of one call that a module makes."""
        if not isinstance(module, RotaryEmbedding):
            return None if module is None else module()
        if self.training and cache is not None and cache.memory_length is not None:
            raise Unsupported(
                "Training with a memory needs relative positions, and Rotary rotates cached inputs by positions "
                "that are not theirs. Use TransformerXL, Alibi, Bias, T5Bias or Shaw."
            )
        return module.angles(0 if cache is None else cache.length, x.shape[1], x.device, x.dtype)


def unique_masks(masks: list[Mask | None]) -> list[Mask | None]:
    """The masks, each object once."""
    return list({id(mask): mask for mask in masks}.values())


def place_mask(own: Mask | None, cache: Cache | None, tokens: int) -> Mask | None:
    """The mask of a layer; where a cache has padding before a row, it counts from the row's first token.

    A mask that depends on i − j alone is the same anywhere.
    """
    padding = None if cache is None else cache.padding
    if own is None or cache is None or padding is None or (own.key_span(0, 0) is not None and own.key_period == 1):
        return own
    rows = torch.arange(cache.length - cache.count_cached(own), cache.length + tokens, device=padding.device)
    return Places(rows - padding[:, None]).place(own)


def padding_mask(lengths: Tensor | None, cache: Cache | None, tokens: int, own: Mask | None = None) -> Mask | None:
    """Masks padded keys: those after a row's length, or those before a row's first token in a cache.

    `own` is the mask of the layers that it is for, by which their cache may have dropped keys.
    """
    real = None if cache is None else cache.real_keys(cache.length + tokens)
    if cache is not None and real is not None:
        real = real[:, cache.length - cache.count_cached(own) :]
        return Documents(real.int() - 1)
    return None if lengths is None else Lengths(lengths)


def as_encoder_output(memory: EncoderOutput | Tensor | None, cache: Cache | None) -> EncoderOutput | None:
    """The memory, without its padding in the first call of a cache."""
    if memory is None:
        return None
    memory = EncoderOutput(memory) if isinstance(memory, Tensor) else memory
    return memory if cache is not None and cache.length else memory.pack()
