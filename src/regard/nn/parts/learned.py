"""Learned parts: their specifications in a configuration, and the modules that hold their tensors.

A part with tensors (`Additive(weight)`, `T5Bias(table)`) can exist only once a layer has its sizes. A configuration
therefore holds a `PartSpec` such as `LearnedT5Bias(buckets=32)`: a part that prints as the line that makes it. Its
`build` returns a module with the parameters, and the module makes the part anew at each call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...attention.parts import methods, positions, scores
from ...attention.parts.methods import Method
from ...attention.parts.part import Part, PartSpec
from ...attention.parts.positions import Position
from ...attention.parts.scores import Score
from ...attention.parts.sink import Sink
from ...attention.sharding import whole_tokens
from ...errors import BadInput
from ..cache import Cache
from ..embeddings.text import sinusoids

if TYPE_CHECKING:
    from ...attention.call import Call


class FixedPart(nn.Module):
    """Holds a part without learned tensors."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part

    def forward(self) -> Part:
        return self.part

    def extra_repr(self) -> str:
        return repr(self.part)


@dataclass(frozen=True, eq=False, repr=False)
class LearnedBilinear(PartSpec, Score):
    """qᵀWk; W starts as the identity over √head_dim."""

    cap: float | None = None

    def build(self, heads: int, head_dim: int, layer: int = 0) -> BilinearWeight:
        return BilinearWeight(heads, head_dim, self.cap)


class BilinearWeight(nn.Module):
    def __init__(self, heads: int, head_dim: int, cap: float | None = None) -> None:
        super().__init__()
        self.cap = cap
        self.weight = nn.Parameter(torch.eye(head_dim).repeat(heads, 1, 1) * head_dim**-0.5)

    def forward(self) -> scores.Bilinear:
        return scores.Bilinear(self.weight, self.cap)


@dataclass(frozen=True, eq=False, repr=False)
class LearnedAdditive(PartSpec, Score):
    """wᵀ·act(q + k), with one w for each head."""

    activation: str = "tanh"
    slope: float = 0.2
    cap: float | None = None

    def build(self, heads: int, head_dim: int, layer: int = 0) -> AdditiveWeight:
        return AdditiveWeight(heads, head_dim, self)


class AdditiveWeight(nn.Module):
    def __init__(self, heads: int, head_dim: int, spec: LearnedAdditive) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, head_dim) * head_dim**-0.5)
        self.spec = spec

    def forward(self) -> scores.Additive:
        return scores.Additive(self.weight, self.spec.activation, self.spec.slope, self.spec.cap)


@dataclass(frozen=True, eq=False, repr=False)
class LearnedCosine(PartSpec, Score):
    """scale·cos(q, k), with one learned scale for each head."""

    scale: float = 10.0
    cap: float | None = None

    def build(self, heads: int, head_dim: int, layer: int = 0) -> CosineScale:
        return CosineScale(heads, self.scale, self.cap)


class CosineScale(nn.Module):
    def __init__(self, heads: int, scale: float, cap: float | None = None) -> None:
        super().__init__()
        self.cap = cap
        self.scale = nn.Parameter(torch.full((heads,), scale))

    def forward(self) -> scores.Cosine:
        return scores.Cosine(self.scale, self.cap)


@dataclass(frozen=True, eq=False, repr=False)
class LearnedSink(PartSpec, Sink):
    """A sink with one learned logit for each head; `logits` is the number that they start from."""

    def build(self, heads: int, head_dim: int, layer: int = 0) -> SinkLogits:
        return SinkLogits(heads, self.logits)


class SinkLogits(nn.Module):
    def __init__(self, heads: int, start: Tensor | float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(heads) + start)

    def forward(self) -> Sink:
        return Sink(self.logits)


@dataclass(frozen=True, eq=False, repr=False)
class LearnedBias(PartSpec, Position):
    """A number for each head and distance, up to `reach` in both directions."""

    reach: int = 128

    def build(self, heads: int, head_dim: int, layer: int = 0) -> BiasTable:
        return BiasTable(heads, self.reach)


class BiasTable(nn.Module):
    def __init__(self, heads: int, reach: int) -> None:
        super().__init__()
        self.table, self.zero = nn.Parameter(torch.zeros(heads, 2 * reach + 1)), reach

    def forward(self) -> positions.Bias:
        return positions.Bias(self.table, self.zero)


@dataclass(frozen=True, eq=False, repr=False)
class LearnedT5Bias(PartSpec, Position):
    """T5's buckets of distances, a number for each head and bucket."""

    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    def build(self, heads: int, head_dim: int, layer: int = 0) -> T5BiasTable:
        return T5BiasTable(heads, self)


class T5BiasTable(nn.Module):
    def __init__(self, heads: int, spec: LearnedT5Bias) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(heads, spec.buckets) * 0.1)
        self.spec = spec

    def forward(self) -> positions.T5Bias:
        return positions.T5Bias(self.table, self.spec.bidirectional, self.spec.max_distance)


@dataclass(frozen=True, eq=False, repr=False)
class LearnedShaw(PartSpec, Position):
    """A vector for each head and distance, up to `reach` in both directions; `shared` by all heads as in the paper."""

    reach: int = 16
    shared: bool = True

    def build(self, heads: int, head_dim: int, layer: int = 0) -> ShawVectors:
        return ShawVectors(heads, head_dim, self)


class ShawVectors(nn.Module):
    def __init__(self, heads: int, head_dim: int, spec: LearnedShaw) -> None:
        super().__init__()
        self.heads, self.zero = heads, spec.reach
        rows = 1 if spec.shared else heads
        self.keys = nn.Parameter(torch.randn(rows, 2 * spec.reach + 1, head_dim) * head_dim**-0.5)

    def forward(self) -> positions.Shaw:
        return positions.Shaw(self.keys.expand(self.heads, -1, -1), self.zero)


@dataclass(frozen=True, eq=False, repr=False)
class LearnedTransformerXL(PartSpec, Position):
    """Transformer-XL's position (Dai et al. 2019): sinusoids of the distance, with a projection for each of `layers`.

    `untied` gives each layer biases of its own. Distances beyond `reach` count as `reach`.
    """

    dim: int
    layers: int
    untied: bool = False
    reach: int | None = None

    def build(self, heads: int, head_dim: int, layer: int = 0) -> TransformerXLPositions:
        return TransformerXLPositions(heads, head_dim, self)


@dataclass(frozen=True)
class ProjectedDistances:
    """Cached projections of the distances 0, 1, …, the same for all rows; `[heads, distances, head_dim]` a layer."""

    tables: tuple[Tensor, ...]


class TransformerXLPositions(nn.Module):
    """The position of every layer of a stack. The paper's W_{k,R} of all layers are stacked in `project`;
    `content_bias` is its u and `position_bias` its v."""

    def __init__(self, heads: int, head_dim: int, spec: LearnedTransformerXL) -> None:
        super().__init__()
        self.heads, self.head_dim, self.spec = heads, head_dim, spec
        self.project = nn.Linear(spec.dim, spec.layers * heads * head_dim, bias=False)
        shape = (spec.layers if spec.untied else 1, heads, head_dim)
        self.content_bias, self.position_bias = (nn.Parameter(torch.randn(shape) * 0.02) for _ in range(2))

    def layers(self, x: Tensor, cache: Cache | None) -> list[positions.TransformerXL]:
        """The position of each layer, for `x [batch, tokens, dim]` after the cached tokens."""
        keys = whole_tokens(x.shape[1]) + (0 if cache is None else cache.cached_tokens)
        tables = self.tables(max(self.clamp(keys), 1), x.device, cache)
        u, v = (bias.expand(self.spec.layers, -1, -1) for bias in (self.content_bias, self.position_bias))
        return [positions.TransformerXL(tables[n], u[n], v[n]) for n in range(self.spec.layers)]

    def clamp(self, distances: int) -> int:
        return distances if self.spec.reach is None else min(distances, self.spec.reach + 1)

    def tables(self, distances: int, device: torch.device, cache: Cache | None) -> tuple[Tensor, ...]:
        """The projected distances. Without gradients a cache holds them, with room for later calls."""
        if cache is None or torch.is_grad_enabled():
            return self.project_distances(distances, device)
        cached = cache.get("distances", ProjectedDistances)
        if cached is None or cached.tables[0].shape[1] < distances:
            room = distances if cached is None else distances + distances // 2
            cached = ProjectedDistances(self.project_distances(self.clamp(room), device))
            cache.put("distances", cached)
        return cached.tables

    def project_distances(self, distances: int, device: torch.device) -> tuple[Tensor, ...]:
        waves = sinusoids(torch.arange(distances, device=device), self.spec.dim, layout="halves")
        projected = self.project(waves.to(self.project.weight.dtype))
        return projected.unflatten(-1, (self.spec.layers, self.heads, self.head_dim)).permute(1, 2, 0, 3).unbind(0)


@dataclass(frozen=True, eq=False, repr=False)
class LearnedLinformer(PartSpec, Method):
    """Keys and values are projected from `tokens` to `rank` before attention."""

    tokens: int
    rank: int

    def build(self, heads: int, head_dim: int, layer: int = 0) -> LinformerProjections:
        return LinformerProjections(self)

    def attend(self, call: Call) -> Tensor:
        self.check(call.q, call.k)
        raise NotImplementedError


class LinformerProjections(nn.Module):
    """Fewer tokens take the first columns of the projections, as if zeros filled up the rest."""

    def __init__(self, spec: LearnedLinformer) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(spec.rank, spec.tokens) * spec.rank**-0.5)
        self.values = nn.Parameter(torch.randn(spec.rank, spec.tokens) * spec.rank**-0.5)

    def forward(self, tokens: int | None = None) -> methods.Linformer:
        most = self.keys.shape[1]
        if tokens is not None and tokens > most:
            raise BadInput(
                f"There are {tokens} tokens, and Linformer(tokens={most}) projects {most} at most. Cut them, or build "
                f"it with tokens={tokens}."
            )
        return methods.Linformer(self.keys[:, :tokens], self.values[:, :tokens])
