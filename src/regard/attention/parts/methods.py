"""Methods: exact attention, or an approximation that measures its own error.

The approximations never form the weights of queries × keys, so their time and memory are linear in the tokens. A
projected key, a landmark or a sum of features has no position of its own, so positions by distance and most masks
cannot be applied; they are refused with that reason. `backends/approximate` computes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import BadInput
from .mask import Mask
from .part import Part, check_count, check_tensor
from .positions import Position
from .scores import Score

if TYPE_CHECKING:
    from ..call import Call


class Method(Part):
    """How attention is computed: exactly, or by an approximation."""

    def attend(self, call: Call) -> Tensor:
        """The output by this method; raises `Unsupported` for parts that its mathematics does not allow."""
        raise NotImplementedError

    def error(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        score: Score | None = None,
        position: Position | None = None,
        mask: Mask | None = None,
    ) -> float:
        """‖output − exact‖ / ‖exact‖ over the whole output, in float32 at least; 0.0 where they are equal.

        Raises what `attend` raises.
        """
        from ..attend import attend
        from ..call import check_shapes

        check_shapes(q, k, v)
        q, k, v = (x.detach().to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k, v))
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            exact = attend(q, k, v, score=score, position=position, mask=mask)
            output = attend(q, k, v, score=score, position=position, mask=mask, method=self)
        off, size = float((output - exact).norm()), float(exact.norm())
        return off / size if size else math.inf if off else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Exact(Method):
    """Every weight, to rounding."""

    formula = "softmax(score) v"

    def attend(self, call: Call) -> Tensor:
        from ..backends.approximate.exact_steps import attend_exactly

        return attend_exactly(call)


@dataclass(frozen=True, eq=False, repr=False)
class Linformer(Method):
    """Exact attention over fewer, projected keys and values: softmax(score(q, E k)) (F v).

    E is `keys`, F is `values` (E unless given): `[projected, n]` for all heads, or `[kv_heads, projected, n]`, where n
    is the number of keys. Differentiable in both. It takes every score, and dropout, which applies to the weights of
    projected keys. `Rotary` rotates q and k before the projection. Of the masks it takes `Lengths`: keys and values
    beyond the length are projected as zeros. Raises `BadInput` where n or kv_heads do not fit.

    >>> import torch, regard as rg
    >>> rg.Linformer(torch.eye(5)).error(*torch.randn(3, 1, 2, 5, 8)) < 1e-6   # nothing is lost by the identity
    True
    """

    keys: Tensor
    values: Tensor | None = None
    formula = "softmax(score(q, E k)) (F v)"

    def __post_init__(self) -> None:
        shape = "[projected, keys] or [kv_heads, projected, keys]"
        check_tensor(self.keys, "Linformer's keys", (2, 3), shape)
        if self.values is not None:
            check_tensor(self.values, "Linformer's values", (2, 3), shape)
            if self.values.shape[-2:] != self.keys.shape[-2:]:
                raise BadInput(
                    f"Linformer's keys are {list(self.keys.shape)} and its values {list(self.values.shape)}; the last "
                    "two sizes, [projected, keys], must be the same. Project both to the same number."
                )
        check_count(self.keys.shape[-2], "Linformer's projected size", 1)

    def attend(self, call: Call) -> Tensor:
        from ..backends.approximate import linformer

        return linformer.run(self, call)


@dataclass(frozen=True, eq=False, repr=False)
class Nystrom(Method):
    """Weights through `landmarks`, the means of as many segments: softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ) v.

    q̃ and k̃ are the means of the scaled q and k over the tokens ⌊r·n/landmarks⌋ … of segment r, and ⁺ is the
    pseudo-inverse by `iterations` steps of third order. It takes scores that are dot products (`Dot`, `Bilinear`,
    `Cosine`), with `Rotary` or without, and `Lengths`, where n is the length of each row: padding changes nothing. With
    as many queries as keys and lengths of keys alone, both are the same tokens, and queries beyond the length get an
    output but are in no landmark. Exact where a row has no more queries or keys than landmarks.

    Nyströmformer (Xiong et al., 2021) without its convolution; the first step of the inverse divides by each matrix's
    own norms, as in the paper, so that one row of the batch does not change another.

    >>> import torch, regard as rg
    >>> q, k, v = torch.linspace(-1, 1, 3 * 100 * 4).view(3, 1, 1, 100, 4)
    >>> rg.Nystrom(landmarks=10).error(q, k, v) < 0.01
    True
    """

    landmarks: int
    iterations: int = 6
    formula = "softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ) v"

    def __post_init__(self) -> None:
        check_count(self.landmarks, "Nystrom's landmarks", 1)
        check_count(self.iterations, "Nystrom's iterations", 1)

    def attend(self, call: Call) -> Tensor:
        from ..backends.approximate import nystrom

        return nystrom.run(self, call)


@dataclass(frozen=True, eq=False, repr=False)
class Performer(Method):
    """Weights as products of positive random `features`: output(i) = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j).

    φ(x) = exp(ω x − ‖x‖²/2) for x = √scale · q and √scale · k, so that φ(q)·φ(k) is exp(scale · q·k) on average. The
    rows of ω `[features, head_dim]` are orthogonal in blocks of head_dim, have lengths like those of normal vectors,
    are drawn from the `seed` and are the same for all heads. It takes scores that are dot products (`Dot`, `Bilinear`,
    `Cosine`), with `Rotary` or without; of the masks `Lengths`, `Causal` and their `&`.

    FAVOR+ (Choromanski et al., 2021). Instead of the paper's small constant in φ, each feature of the keys is divided
    by its largest and the queries' multiplied by it, which changes nothing and keeps the denominators away from zero.

    >>> import torch, regard as rg
    >>> q, k, v = torch.linspace(-1, 1, 3 * 100 * 4).view(3, 1, 1, 100, 4)
    >>> rg.Performer(features=256).error(q, k, v) < 0.1
    True
    """

    features: int
    seed: int = 0
    formula = "φ(q) (φ(k)ᵀ v) / φ(q) (φ(k)ᵀ 1), φ(x) = exp(ω x − ‖x‖²/2)"

    def __post_init__(self) -> None:
        check_count(self.features, "Performer's features", 1)
        check_count(self.seed, "Performer's seed")

    def attend(self, call: Call) -> Tensor:
        from ..backends.approximate import performer

        return performer.run(self, call)
