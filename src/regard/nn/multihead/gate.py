"""Gates of attention: numbers between 0 and 1, computed from a token, that multiply its output or its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...errors import BadInput
from ..linear import Linear

Gated = Literal["output", "values"]


@dataclass(frozen=True)
class GateConfig:
    """What a gate multiplies: the `output` of the heads (Qwen3-Next, AlphaFold) or their `values`.

        output:  σ(W x_i) · Σ_j weight(i, j) · v_j          values:  Σ_j weight(i, j) · σ(W x_j) · v_j

    A gate has a number for each feature, or with `by_head` one for each head.

    >>> GateConfig().of
    'output'
    """

    of: Gated = "output"
    by_head: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        if self.of not in ("output", "values"):
            raise BadInput(f"GateConfig's of is {self.of!r}; it must be 'output' or 'values'.")

    def build(self, dim: int, heads: int, head_dim: int) -> Gate:
        return Gate(dim, heads, head_dim, self)


class Gate(nn.Module):
    """σ(W x) · y for x `[…, dim]` and y `[…, heads · head_dim]`; see `GateConfig`.

    >>> Gate(8, 2, 3, GateConfig(by_head=True))(torch.randn(5, 8), torch.randn(5, 6)).shape
    torch.Size([5, 6])
    """

    def __init__(self, dim: int, heads: int, head_dim: int, config: GateConfig) -> None:
        super().__init__()
        self.heads = heads
        self.linear = Linear(dim, heads if config.by_head else heads * head_dim, bias=config.bias)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        gate = torch.sigmoid(self.linear(x))
        if gate.shape[-1] == y.shape[-1]:
            return y * gate
        return (y.unflatten(-1, (self.heads, -1)) * gate[..., None]).flatten(-2)
