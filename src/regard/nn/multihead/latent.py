"""Multi-head latent attention: keys and values of all heads come from one small vector a token, which is cached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor, nn

from ...attention.parts.mask import Mask
from ...attention.parts.masks import Lengths
from ...attention.parts.parts import DEFAULT_PARTS, Parts
from ...attention.parts.positions import Position
from ...attention.parts.scores import Dot, Score
from ...attention.sharding import current_layout
from ...errors import BadInput, Unsupported
from ..attention import Attend, intersect
from ..cache import LayerCache
from ..linear import Linear, linear
from ..packing import Packing
from ..parts.config import CallPosition, PartArguments, build_part, update_parts
from ..parts.disentangled import EmbeddedDistances
from ..parts.learned import LinformerProjections
from ..parts.rotary import RotaryAngles, RotaryEmbedding


@dataclass(frozen=True)
class LatentConfig:
    """The sizes of multi-head latent attention (`MultiHeadLatentAttention`).

    In DeepSeek's words: `kv_rank` is kv_lora_rank, `q_rank` q_lora_rank, `key_dim` qk_nope_head_dim, `rotary_dim`
    qk_rope_head_dim, `value_dim` v_head_dim.
    """

    kv_rank: int
    key_dim: int
    rotary_dim: int
    value_dim: int
    q_rank: int | None = None
    eps: float = 1e-6


class MultiHeadLatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2 and V3).

        c_j = norm(W_down x_j) [kv_rank],   k_j = [W_k c_j for each head, rotated r_j for all],   v_j = W_v c_j
        q_i = [W_q norm(W_down' x_i), rotated],   out( concat over heads of attend(q, k, v) )

    A head's key has `key_dim` numbers of its own and `rotary_dim` that all heads share and that carry the position; its
    value has `value_dim`. A cache holds c and the rotated r alone: kv_rank + rotary_dim numbers a token. For few
    queries over cached tokens W_k is multiplied into the queries and W_v into the output, so that every head attends to
    c itself; the weights are the same.

    `bias` names the projections that have one: of x to the queries' ("q") and to the keys' ("k") latent, and out ("o").
    Parts are those of `MultiHeadAttention`. A position that is not rotary is added to the whole score.

    >>> import regard as rg
    >>> config = LatentConfig(kv_rank=16, key_dim=8, rotary_dim=4, value_dim=6)
    >>> layer = MultiHeadLatentAttention(32, 4, config, position=rg.Rotary(), mask=rg.Causal())
    >>> layer(torch.randn(2, 10, 32)).shape
    torch.Size([2, 10, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        config: LatentConfig,
        *,
        bias: str = "",
        parts: Parts = DEFAULT_PARTS,
        dropout: float | None = None,
        layer: int = 0,
        **given: Unpack[PartArguments],
    ) -> None:
        super().__init__()
        parts = update_parts(parts, given, dropout=dropout)
        self.heads, self.config, self.dropout = heads, config, parts.dropout
        self.head_dim = config.key_dim + config.rotary_dim
        if config.q_rank is not None:
            self.q_down = Linear(dim, config.q_rank, bias="q" in bias)
            self.q_norm = nn.RMSNorm(config.q_rank, eps=config.eps)
        self.q = Linear(config.q_rank or dim, heads * self.head_dim, bias=False)
        self.kv_down = Linear(dim, config.kv_rank + config.rotary_dim, bias="k" in bias)
        self.kv_norm = nn.RMSNorm(config.kv_rank, eps=config.eps)
        self.kv = Linear(config.kv_rank, heads * (config.key_dim + config.value_dim), bias=False)
        self.out = Linear(heads * config.value_dim, dim, bias="o" in bias)
        sizes = heads, self.head_dim, layer
        self.score, self.method = build_part(parts.score, *sizes), build_part(parts.method, *sizes)
        if isinstance(self.method, LinformerProjections):
            raise Unsupported("Latent attention has no projections of keys (Linformer). Use Exact().")
        self.sink = None if parts.sink is None else build_part(parts.sink, *sizes)
        self.position = None if parts.position is None else build_part(parts.position, *sizes, config.rotary_dim)
        self.mask = parts.mask
        self.attend = Attend()

    def forward(
        self,
        x: Tensor,
        *,
        lengths: Tensor | None = None,
        mask: Mask | None = None,
        position: CallPosition | None = None,
        position_embedding: Tensor | None = None,
        packing: Packing | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """`[batch, tokens, dim]`, or `[real tokens, dim]` when `packing` is given; see `MultiHeadAttention`."""
        if position_embedding is not None:
            raise Unsupported("Latent attention takes no position_embedding: keys and values have one latent.")
        layout = current_layout()
        if cache is not None and (layout is not None or (self.training and cache.memory_length is not None)):
            raise Unsupported("A cache of latents is for decoding: not sharded, and not a memory in training.")
        mask = intersect(intersect(self.mask, mask), None if lengths is None else Lengths(lengths))
        q, latent, shared = self.project(x, packing)
        position = self.resolve_position(q, position, cache)
        if isinstance(position, RotaryAngles):
            own = self.config.key_dim
            q = torch.cat([q[..., :own], position(q[..., own:])], dim=-1)
            shared, position = position(shared), None
        if cache is not None:
            latent, shared = cache.extend("latent", latent, shared)
        score, absorbed = self.score(), self.absorbs(q, latent, position, cache)
        q, k, v, score = self.absorb(q, latent, shared, score) if absorbed else (q, *self.expand(latent, shared), score)
        mixed = self.attend(
            q,
            k,
            v,
            position=position,
            mask=mask,
            score=score,
            method=self.method(),
            dropout=self.dropout if self.training else 0.0,
            sink=None if self.sink is None else self.sink(),
            layout=layout,
        )
        if absorbed:
            mixed = mixed @ self.value_weight().mT  # [batch, heads, queries, value dim]
        mixed = mixed.transpose(1, 2).flatten(2)
        return self.out(mixed if packing is None else packing.pack(mixed))

    def project(self, x: Tensor, packing: Packing | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[batch, heads, tokens, head_dim]`, latents and shared keys `[batch, 1, tokens, …]`."""
        q = self.q(x if self.config.q_rank is None else self.q_norm(self.q_down(x)))
        latent, shared = self.kv_down(x).split([self.config.kv_rank, self.config.rotary_dim], dim=-1)
        latent = self.kv_norm(latent)
        if packing is not None:
            q, latent, shared = (packing.pad(y) for y in (q, latent, shared))
        return q.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2), latent[:, None], shared[:, None]

    def resolve_position(
        self, q: Tensor, position: CallPosition | None, cache: LayerCache | None
    ) -> Position | RotaryAngles | None:
        if position is None and isinstance(self.position, RotaryEmbedding):
            position = self.position.angles(0 if cache is None else cache.length, q.shape[2], q.device, q.dtype)
        elif position is None and self.position is not None:
            position = self.position()
        if isinstance(position, EmbeddedDistances):
            raise Unsupported("Latent attention has no projections for embeddings of distances (LearnedDisentangled).")
        return position

    def key_weight(self) -> Tensor:
        """W_k of each head, `[heads, key_dim, kv_rank]`."""
        return self.kv.weight.unflatten(0, (self.heads, -1))[:, : self.config.key_dim]

    def value_weight(self) -> Tensor:
        """W_v of each head, `[heads, value_dim, kv_rank]`."""
        return self.kv.weight.unflatten(0, (self.heads, -1))[:, self.config.key_dim :]

    def expand(self, latent: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Keys `[batch, heads, keys, head_dim]` and values `[batch, heads, keys, value_dim]` of every head."""
        both = linear(latent.squeeze(1), self.kv.weight).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = both.split([self.config.key_dim, self.config.value_dim], dim=-1)
        return torch.cat([k, shared.expand(-1, self.heads, -1, -1)], dim=-1), v

    def absorb(self, q: Tensor, latent: Tensor, shared: Tensor, score: Score) -> tuple[Tensor, Tensor, Tensor, Score]:
        """Queries over the latents themselves: q·(W_k c) = (W_kᵀ q)·c; one key head serves all."""
        own, rotated = q.split([self.config.key_dim, self.config.rotary_dim], dim=-1)
        q = torch.cat([own @ self.key_weight(), rotated], dim=-1)  # [batch, heads, queries, kv_rank + rotary_dim]
        if not isinstance(score, Dot):
            raise BadInput(f"{type(score).__name__} is no dot product; its keys cannot be absorbed.")
        return q, torch.cat([latent, shared], dim=-1), latent, replace(score, scale=score.factor(self.head_dim))

    def absorbs(self, q: Tensor, latent: Tensor, position: Position | None, cache: LayerCache | None) -> bool:
        """Whether attending to the latents takes fewer operations than expanding those that are cached."""
        by_distance = position is None or not position.dot_only
        if cache is None or cache.length == 0 or not by_distance or not isinstance(self.score(), Dot):
            return False
        queries, heads_dim = q.shape[2], self.config.key_dim + self.config.value_dim
        return queries * (2 * self.config.kv_rank - heads_dim) < self.config.kv_rank * heads_dim
