"""Multi-head attention: project, attend, mix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Unpack

import torch
from torch import Tensor, nn

from ..attention.attend import attend
from ..attention.parts.mask import Mask
from ..attention.parts.masks import Lengths
from ..attention.parts.parts import DEFAULT_PARTS, PartOptions, Parts
from ..attention.sharding import SequenceLayout, current_layout
from ..distributed.graphs import ShardedEdges
from ..errors import BadInput, Unsupported
from .cache import LayerCache
from .caches.buffers import KeyValueBuffers
from .linear import Linear
from .multihead.differential import DifferentialConfig
from .multihead.gate import GateConfig
from .packing import Packing, make_packing
from .parts.config import CallPosition, PartArguments, build_part, update_parts
from .parts.disentangled import EmbeddedDistances
from .parts.learned import LinformerProjections
from .parts.rotary import RotaryAngles, RotaryEmbedding


class ShardedOptions(PartOptions, total=False):
    """The parts of an attention, and the layout of a sequence that is shared out."""

    layout: SequenceLayout | None


class Attend(nn.Module):
    """`regard.attend` as a module, so that hooks (`regard.watch`, `regard.edit`) can be put on it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Unpack[ShardedOptions]) -> Tensor:
        return attend(q, k, v, **options)


@dataclass(frozen=True)
class EncoderOutput:
    """The input of cross-attention: `x [batch, keys, dim]` with its lengths or mask.

    `position_embedding` is added to x for the keys, not for the values. `packing` is given when x has no padding.
    """

    x: Tensor
    lengths: Tensor | None = None
    mask: Mask | None = None
    position_embedding: Tensor | None = None
    packing: Packing | None = None
    key_mask: Mask | None = field(init=False)
    """Which keys may be attended to: one mask for all layers."""

    def __post_init__(self) -> None:
        key_mask = intersect(self.mask, None if self.lengths is None else Lengths(self.lengths))
        object.__setattr__(self, "key_mask", key_mask)

    def pack(self) -> EncoderOutput:
        """The same without its padding."""
        packing = None if self.packing is not None else make_packing(self.x, self.lengths)
        if packing is None:
            return self
        position = None if self.position_embedding is None else packing.pack(self.position_embedding)
        return replace(self, x=packing.pack(self.x), position_embedding=position, packing=packing)


class MultiHeadAttention(nn.Module):
    """Attention with several heads, over the tokens themselves or over `memory`, an encoder's output.

        out( concat over heads of attend(q(x), k(source), v(source)) ),   source = memory or x

    `parts` are its score, position, mask, method and dropout; a learned part is given by its specification
    (`LearnedT5Bias(buckets=32)`). `score`, `position`, `mask`, `method`, `sink` and `dropout` by name, as values or as
    text, replace those of `parts`. `bias` names the projections that have one: q, k, v, out ("o"). Query head h reads
    key head h // (heads // kv_heads). `qk_norms` are norms of the projected q and k: of each head where their size is
    head_dim, otherwise of all heads together. `gate` multiplies values or output by numbers between 0 and 1;
    `differential` subtracts the maps of half of the heads from those of the others.

    >>> import torch, regard as rg
    >>> layer = rg.nn.MultiHeadAttention(dim=32, heads=4, position="Alibi()", mask="Causal() & Window(before=7)")
    >>> layer(torch.randn(2, 10, 32)).shape
    torch.Size([2, 10, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        source_dim: int | None = None,
        bias: str = "qkvo",
        parts: Parts = DEFAULT_PARTS,
        dropout: float | None = None,
        qk_norms: tuple[nn.Module, nn.Module] | None = None,
        gate: GateConfig | None = None,
        differential: DifferentialConfig | None = None,
        layer: int = 0,
        **given: Unpack[PartArguments],
    ) -> None:
        super().__init__()
        parts = update_parts(parts, given, dropout=dropout)
        self.heads, self.kv_heads, self.dropout = heads, kv_heads or heads, parts.dropout
        if heads % self.kv_heads:
            raise BadInput(f"{heads} heads do not share {kv_heads} key heads evenly: kv_heads must divide heads.")
        self.head_dim = head_dim or divide_heads(dim, heads)
        inner, shared = heads * self.head_dim, self.kv_heads * self.head_dim
        self.q = Linear(dim, inner, bias="q" in bias)
        self.k = Linear(source_dim or dim, shared, bias="k" in bias)
        self.v = Linear(source_dim or dim, shared, bias="v" in bias)
        self.out = Linear(inner, dim, bias="o" in bias)
        self.q_norm, self.k_norm = (None, None) if qk_norms is None else qk_norms
        self.output_gate = self.value_gate = self.differential = None
        if gate is not None and gate.of == "output":
            self.output_gate = gate.build(dim, heads, self.head_dim)
        elif gate is not None:
            self.value_gate = gate.build(source_dim or dim, self.kv_heads, self.head_dim)
        if differential is not None:
            self.differential = differential.build(heads, self.kv_heads, self.head_dim, layer)
        sizes = heads, self.head_dim, layer
        self.score = build_part(parts.score, *sizes)
        self.method = build_part(parts.method, *sizes)
        self.position = None if parts.position is None else build_part(parts.position, *sizes)
        self.sink = None if parts.sink is None else build_part(parts.sink, *sizes)
        self.mask = parts.mask
        self.attend = Attend()

    def forward(
        self,
        x: Tensor,
        memory: Tensor | EncoderOutput | None = None,
        *,
        lengths: Tensor | None = None,
        mask: Mask | None = None,
        position: CallPosition | None = None,
        position_embedding: Tensor | None = None,
        packing: Packing | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """`[batch, tokens, dim]`, or `[real tokens, dim]` when `packing` is given.

        `lengths [batch]` masks padded keys; `position` replaces the layer's own; `position_embedding` is added to x for
        queries and keys, not for values; `cache` holds keys and values of earlier calls.
        """
        layout = current_layout()
        if layout is not None and (memory is not None or cache is not None):
            raise Unsupported("Cross-attention and caches of earlier tokens do not run sharded; self-attention does.")
        if isinstance(memory, Tensor):
            memory = EncoderOutput(memory, lengths)
        mask = intersect(self.mask, mask)
        q = self.q(x if position_embedding is None else x + position_embedding)
        q = self.split_heads(normalize(q, self.q_norm), self.heads, packing)
        if memory is None:
            k, v = self.keys_and_values(self.prepend_cached_inputs(x, cache), position_embedding, packing)
            mask = intersect(mask, None if lengths is None else Lengths(lengths))
        else:
            k, v = self.cross_keys_and_values(memory, cache)
            mask = intersect(mask, memory.key_mask)
        position = self.resolve_position(q, position, cache)
        if isinstance(position, RotaryAngles):
            q, k, position = position(q), position(k), None
        elif isinstance(position, EmbeddedDistances):
            position = position.project(self.q, self.k, self.heads, self.head_dim)
        if memory is None and cache is not None and not self.caches_inputs(cache):
            k, v = cache.extend("self", k, v)
        if isinstance(mask, ShardedEdges):
            (k, v), mask = mask.exchange_keys(k, v), mask.mask
        mixed = self.attend(
            q,
            k,
            v if self.differential is None else self.differential.join_values(v),
            position=position,
            mask=mask,
            score=self.score(),
            method=self.method(k.shape[2]) if isinstance(self.method, LinformerProjections) else self.method(),
            dropout=self.dropout if self.training else 0.0,
            sink=None if self.sink is None else self.sink(),
            layout=layout,
        )
        mixed = mixed if self.differential is None else self.differential(mixed)
        mixed = mixed.transpose(1, 2).flatten(2)  # [batch, tokens, heads · head_dim]
        mixed = mixed if packing is None else packing.pack(mixed)
        return self.out(mixed if self.output_gate is None else self.output_gate(x, mixed))

    def caches_inputs(self, cache: LayerCache | None) -> bool:
        """Whether the cache holds the layer's inputs: in training, keys and values of earlier weights are stale."""
        return self.training and cache is not None and cache.memory_length is not None

    def prepend_cached_inputs(self, x: Tensor, cache: LayerCache | None) -> Tensor:
        """The inputs of earlier segments, without gradient, and x after them."""
        if cache is None or not self.caches_inputs(cache):
            return x
        before = cache.get("inputs", Tensor)
        if before is None and cache.get("self", KeyValueBuffers) is not None:
            raise BadInput("This cache was made in evaluation mode. Begin a new one for training.")
        inputs = x if before is None else torch.cat([before, x], dim=1)
        cache.put("inputs", inputs[:, max(inputs.shape[1] - (cache.memory_length or 0), 0) :].detach())
        return inputs

    def split_heads(self, x: Tensor, heads: int, packing: Packing | None) -> Tensor:
        """`[batch, tokens, heads · head_dim]` → `[batch, heads, tokens, head_dim]`."""
        x = x if packing is None else packing.pad(x)
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def keys_and_values(
        self, x: Tensor, position_embedding: Tensor | None, packing: Packing | None
    ) -> tuple[Tensor, Tensor]:
        k = normalize(self.k(x if position_embedding is None else x + position_embedding), self.k_norm)
        v = self.v(x) if self.value_gate is None else self.value_gate(x, self.v(x))
        return self.split_heads(k, self.kv_heads, packing), self.split_heads(v, self.kv_heads, packing)

    def cross_keys_and_values(self, memory: EncoderOutput, cache: LayerCache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's output, computed once for all steps that share a cache."""
        cached = None if cache is None else cache.get("memory", tuple)
        if cached is not None:
            k, v = cached
            return k, v
        memory = memory.pack()
        k, v = self.keys_and_values(memory.x, memory.position_embedding, memory.packing)
        if cache is not None:
            cache.put("memory", (k, v))
        return k, v

    def resolve_position(
        self, q: Tensor, position: CallPosition | None, cache: LayerCache | None
    ) -> CallPosition | None:
        """The position of this call: the given one, or the layer's own."""
        if position is not None or self.position is None:
            return position
        if isinstance(self.position, RotaryEmbedding):
            start = 0 if cache is None else cache.length
            return self.position.angles(start, q.shape[2], q.device, q.dtype)
        return self.position()


def normalize(x: Tensor, norm: nn.Module | None) -> Tensor:
    """x `[…, heads · head_dim]` after a norm of its size, or of the size of one head."""
    if norm is None:
        return x
    size = norm.get_parameter("weight").shape[-1]
    return norm(x) if size == x.shape[-1] else norm(x.unflatten(-1, (-1, size))).flatten(-2)


def intersect(a: Mask | None, b: Mask | None) -> Mask | None:
    """The mask that allows what both allow; None allows everything."""
    if a is None or b is None:
        return a if b is None else b
    return a & b


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`[batch, tokens, dim]` → `[batch, heads, tokens, head_dim]`."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """`[batch, heads, tokens, head_dim]` → `[batch, tokens, dim]`."""
    return x.transpose(1, 2).flatten(2)


def divide_heads(dim: int, heads: int) -> int:
    """dim / heads, or `BadInput`."""
    if dim % heads:
        raise BadInput(f"dim {dim} is not divisible by {heads} heads. Choose heads that divide it, or give head_dim.")
    return dim // heads
