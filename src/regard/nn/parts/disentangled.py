"""DeBERTa's position in layers: an embedding of every distance, which each layer projects by its own q and k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...attention.parts.part import PartSpec
from ...attention.parts.positions import Disentangled, Position

Term = Literal["c2p", "p2c"]


@dataclass(frozen=True, eq=False, repr=False)
class LearnedDisentangled(PartSpec, Position):
    """`Disentangled` with 2·`buckets` entries for distances, logarithmic up to `max_distance` (None: one a distance).

    With a `dim` there is one embedding `[2·buckets, dim]`, which each layer projects by its own q and k (DeBERTa-v2 and
    -v3, `share_att_key`); `norm_eps` normalizes it first and `dropout` is applied to it in each layer. Without a `dim`
    there is a table `[heads, 2·buckets, head_dim]` for each of `terms`: "c2p" multiplies queries, "p2c" keys.

    >>> LearnedDisentangled(dim=768, norm_eps=1e-7)
    LearnedDisentangled(dim=768, norm_eps=1e-07)
    """

    buckets: int = 256
    max_distance: int | None = 512
    dim: int | None = None
    norm_eps: float | None = None
    dropout: float = 0.0
    terms: tuple[Term, ...] = ("c2p", "p2c")

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(self.terms))
        table = torch.empty(1, 2 * self.buckets, 1)
        keys, queries = (table if term in self.terms else None for term in ("c2p", "p2c"))
        Disentangled(keys, queries, self.max_distance)  # raises for sizes that cannot be

    def build(self, heads: int, head_dim: int, layer: int = 0) -> DisentangledTables | DistanceEmbedding:
        return DisentangledTables(heads, head_dim, self) if self.dim is None else DistanceEmbedding(self)


class DisentangledTables(nn.Module):
    def __init__(self, heads: int, head_dim: int, spec: LearnedDisentangled) -> None:
        super().__init__()
        self.spec = spec
        self.keys, self.queries = (
            nn.Parameter(torch.randn(heads, 2 * spec.buckets, head_dim) * head_dim**-0.5)
            if term in spec.terms
            else None
            for term in ("c2p", "p2c")
        )

    def forward(self) -> Disentangled:
        return Disentangled(self.keys, self.queries, self.spec.max_distance)


class DistanceEmbedding(nn.Module):
    """The embedding of every distance, `weight [2·buckets, dim]`, for the layers of a stack to project."""

    def __init__(self, spec: LearnedDisentangled) -> None:
        super().__init__()
        self.spec = spec
        dim = spec.dim or 0
        self.weight = nn.Parameter(torch.randn(2 * spec.buckets, dim) * 0.02)
        self.norm = None if spec.norm_eps is None else nn.LayerNorm(dim, eps=spec.norm_eps)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self) -> EmbeddedDistances:
        return EmbeddedDistances(self.weight if self.norm is None else self.norm(self.weight), self)


class EmbeddedDistances:
    """Normalized embeddings of the distances of one call, `[2·buckets, dim]`; each layer makes its position of them."""

    def __init__(self, x: Tensor, module: DistanceEmbedding) -> None:
        self.x, self.module = x, module

    def project(self, q: nn.Module, k: nn.Module, heads: int, head_dim: int) -> Disentangled:
        """The position of a layer whose q and k have these projections; heads that share keys share their vectors."""
        x, spec = self.module.dropout(self.x), self.module.spec
        keys = k(x).unflatten(-1, (-1, head_dim)).transpose(0, 1) if "c2p" in spec.terms else None
        queries = q(x).unflatten(-1, (heads, head_dim)).transpose(0, 1) if "p2c" in spec.terms else None
        if keys is not None and keys.shape[0] < heads:
            keys = keys.repeat_interleave(heads // keys.shape[0], 0)
        return Disentangled(keys, queries, spec.max_distance)
