"""Differential attention: the difference of two softmaxes, which cancels what both attend to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...errors import BadInput


@dataclass(frozen=True)
class DifferentialConfig:
    """Differential attention (Ye et al. 2024), as DiffLlama has it: a value of `MultiHeadAttention` and `StackConfig`.

        (softmax(q₁ k₁ᵀ) − λ softmax(q₂ k₂ᵀ)) v,    λ = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ₀
        out( (1 − λ₀) · concat over pairs of norm(that) ),    λ₀ = 0.8 − 0.6 exp(−0.3 layer) unless `start` is given

    Of `heads` maps, head h and head h + heads/2 are a pair; both read values of 2·head_dim numbers, those of two value
    heads side by side. `regard.watch` shows both maps of each pair, as heads. Dropout acts on each map alone.

    >>> import regard as rg
    >>> layer = rg.nn.MultiHeadAttention(32, 4, mask="Causal()", differential=DifferentialConfig())
    >>> layer(torch.randn(2, 10, 32)).shape
    torch.Size([2, 10, 32])
    """

    start: float | None = None
    eps: float = 1e-5

    def build(self, heads: int, kv_heads: int, head_dim: int, layer: int = 0) -> DifferentialMaps:
        if heads % 2 or kv_heads % 2:
            raise BadInput(f"Differential attention has {heads} heads over {kv_heads}; both must be even.")
        start = 0.8 - 0.6 * math.exp(-0.3 * layer) if self.start is None else self.start
        return DifferentialMaps(head_dim, start, self.eps)


class DifferentialMaps(nn.Module):
    """What differential attention does before and after `attend`; see `DifferentialConfig`."""

    def __init__(self, head_dim: int, start: float, eps: float) -> None:
        super().__init__()
        self.start = start
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.randn(head_dim) * 0.1) for _ in range(4)
        )
        self.norm = nn.RMSNorm(2 * head_dim, eps=eps, elementwise_affine=False)

    def join_values(self, v: Tensor) -> Tensor:
        """The values of both maps of a pair, `[batch, kv_heads, keys, 2 · head_dim]`."""
        return torch.cat(v.chunk(2, dim=1), dim=-1).repeat(1, 2, 1, 1)

    def subtraction_weight(self) -> Tensor:
        """λ, in float32 at least."""
        exact = torch.promote_types(self.lambda_q1.dtype, torch.float32)
        first = (self.lambda_q1.to(exact) * self.lambda_k1.to(exact)).sum().exp()
        return first - (self.lambda_q2.to(exact) * self.lambda_k2.to(exact)).sum().exp() + self.start

    def forward(self, mixed: Tensor) -> Tensor:
        """`[batch, heads, queries, 2 · head_dim]` → the normalized differences, `[batch, heads / 2, queries, …]`."""
        first, second = mixed.chunk(2, dim=1)
        return (1 - self.start) * self.norm(first - self.subtraction_weight().to(mixed.dtype) * second)

    def extra_repr(self) -> str:
        return f"start={self.start:.3g}"
