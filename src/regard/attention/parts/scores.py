"""Scores: the similarity of a query and a key.

Each score defines its formula twice. `similarity` is the definition over every pair, which the reference and its tests
use. `lower` rewrites it as a dot product with a scale, which is what kernels compute; `Additive` is the one score that
kernels compute by itself.

Every score takes a `cap`: the similarity s becomes cap · tanh(s / cap), as in Gemma 2. The cap bounds the similarity
with what positions that are part of the dot product add to it (Rotary, Shaw, TransformerXL). Numbers by distance or by
pair are added after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import BadInput
from .part import Part, check_tensor

ACTIVATIONS = ("tanh", "leaky_relu")


class Score(Part):
    """The similarity of a query and a key; `q` is `[batch, heads, queries, d]`, `k` `[batch, heads, keys, d]`.

    With a `cap` it is cap · tanh(similarity / cap).
    """

    cap: float | None = None

    def check(self, q: Tensor, k: Tensor) -> None:
        """Raise `BadInput` when these queries and keys do not fit this score."""
        if q.shape[-1] != k.shape[-1]:
            raise BadInput(
                f"q has head_dim {q.shape[-1]} and k has {k.shape[-1]}; {type(self).__name__} needs them equal. "
                "Project one of them, or use Bilinear(weight [heads, d, d_k])."
            )

    def tensors(self) -> dict[str, Tensor]:
        """The part's tensors, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        """The score of every pair, `[batch, heads, queries, keys]`."""
        raise NotImplementedError

    def lower(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """(q′, k′, scale) with the score equal to scale · q′·k′, before the cap."""
        raise NotImplementedError

    def apply_cap(self, similarity: Tensor) -> Tensor:
        """cap · tanh(similarity / cap); the similarity itself without a cap."""
        return similarity if self.cap is None else self.cap * torch.tanh(similarity / self.cap)


@dataclass(frozen=True, eq=False, repr=False)
class Dot(Score):
    """scale · q·k, with scale 1/√d unless given.

    >>> Dot(cap=50.0)
    Dot(cap=50.0)
    >>> Dot(scale=1.0).formula
    'scale · q·k'
    """

    scale: float | None = None
    cap: float | None = None
    formula = "scale · q·k"

    def __post_init__(self) -> None:
        check_cap(self)
        if self.scale is not None and not isinstance(self.scale, int | float):
            raise BadInput(f"Dot's scale is {self.scale!r}; it must be a number, or None for 1/√d.")

    def factor(self, head_dim: int) -> float:
        return float(self.scale) if self.scale is not None else 1.0 / math.sqrt(max(head_dim, 1))

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        return self.factor(q.shape[-1]) * (q @ k.mT)

    def lower(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return q, k, self.factor(q.shape[-1])


@dataclass(frozen=True, eq=False, repr=False)
class Bilinear(Score):
    """qᵀ W k, with one matrix per head: `weight` is `[heads, d, d_k]`, so queries and keys may differ in size."""

    weight: Tensor
    cap: float | None = None
    formula = "qᵀ W k"

    def __post_init__(self) -> None:
        check_cap(self)
        check_tensor(self.weight, "Bilinear's weight", (3,), "[heads, d, d_k]")

    def check(self, q: Tensor, k: Tensor) -> None:
        expected = [q.shape[1], q.shape[-1], k.shape[-1]]
        if list(self.weight.shape) != expected:
            raise BadInput(
                f"Bilinear's weight is {list(self.weight.shape)}; with q {list(q.shape)} and k {list(k.shape)} it must "
                f"be [heads, d, d_k] = {expected}."
            )

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bhid,hde,bhje->bhij", q, self.weight.to(q.dtype), k)

    def lower(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return q @ self.weight.to(q.dtype), k, 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Cosine(Score):
    """scale · q·k / (‖q‖ ‖k‖), with one scale, or one per head; a zero vector has score 0."""

    scale: float | Tensor = 1.0
    cap: float | None = None
    formula = "scale · q·k / (‖q‖ ‖k‖)"

    def __post_init__(self) -> None:
        check_cap(self)
        if isinstance(self.scale, Tensor):
            check_tensor(self.scale, "Cosine's scale", (0, 1), "a number or [heads]")
        elif not isinstance(self.scale, int | float):
            raise BadInput(f"Cosine's scale is {self.scale!r}; it must be a number or a tensor [heads].")

    def check(self, q: Tensor, k: Tensor) -> None:
        super().check(q, k)
        if isinstance(self.scale, Tensor) and self.scale.dim() == 1 and self.scale.shape[0] != q.shape[1]:
            raise BadInput(f"Cosine's scale is {list(self.scale.shape)}; q has {q.shape[1]} heads. Pass one per head.")

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        return self.head_scale(q) * (normalize(q) @ normalize(k).mT)

    def lower(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        if isinstance(self.scale, Tensor):
            return normalize(q) * self.head_scale(q), normalize(k), 1.0
        return normalize(q), normalize(k), float(self.scale)

    def head_scale(self, q: Tensor) -> Tensor | float:
        if not isinstance(self.scale, Tensor):
            return float(self.scale)
        return self.scale.to(q.dtype).reshape(-1, 1, 1)  # [heads or 1, 1, 1]


@dataclass(frozen=True, eq=False, repr=False)
class Additive(Score):
    """Σ_d weight · act(q + k), with act = tanh (Bahdanau) or leaky ReLU; `weight` is `[heads, d]`.

    Graph attention uses this score: GAT over one number per head (`d = 1`), GATv2 over the whole head.
    """

    weight: Tensor
    activation: str = "tanh"
    slope: float = 0.2
    cap: float | None = None
    formula = "Σ weight · act(q + k)"

    def __post_init__(self) -> None:
        check_cap(self)
        check_tensor(self.weight, "Additive's weight", (2,), "[heads, d]")
        if not isinstance(self.slope, int | float):
            raise BadInput(f"Additive's slope is {self.slope!r}; it must be a number.")
        if self.activation not in ACTIVATIONS:
            raise BadInput(f"Additive's activation is {self.activation!r}; it must be 'tanh' or 'leaky_relu'.")

    def check(self, q: Tensor, k: Tensor) -> None:
        super().check(q, k)
        expected = [q.shape[1], q.shape[-1]]
        if list(self.weight.shape) != expected:
            raise BadInput(
                f"Additive's weight is {list(self.weight.shape)}; with q {list(q.shape)} it must be [heads, d] = "
                f"{expected}."
            )

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        both = q.unsqueeze(3) + k.unsqueeze(2)  # [batch, heads, queries, keys, d]
        act = torch.tanh(both) if self.activation == "tanh" else torch.nn.functional.leaky_relu(both, self.slope)
        weight = self.weight.to(q.dtype)
        if q.is_cuda:  # where einsum copies all of it, with several heads and a batch
            return (act @ weight[:, None, :, None])[..., 0]
        return torch.einsum("bhijd,hd->bhij", act, weight)


def check_cap(score: Score) -> None:
    """Raise `BadInput` unless the score's cap is None or a positive number."""
    cap = score.cap
    if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int | float) or not 0 < cap < math.inf):
        raise BadInput(
            f"{type(score).__name__}'s cap is {cap!r}; it must be a positive number, the bound of the scores, or None."
        )


def normalize(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)
