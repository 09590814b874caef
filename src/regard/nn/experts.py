"""A mixture of experts: each token is computed by a few of many feed-forward networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ExpertsConfig:
    """`active` of `count` experts compute a token. Their activation is gpt-oss's gated one (see `Experts`)."""

    count: int
    active: int
    alpha: float = 1.702
    limit: float = 7.0


class Experts(nn.Module):
    """The mixture of experts of gpt-oss: Σ over the `active` experts with the highest logits of weight · expert(x).

        weights = softmax of those logits;    expert(x) = down((up + 1) · gate · σ(alpha · gate)),
        gate = min(Wg x, limit),  up = Wu x clamped to ±limit

    Tokens are grouped by expert, so that an expert computes its own tokens and no others. Their numbers are read on the
    host, where torch.compile breaks the graph. An exported graph, which may not depend on them, computes every expert.

    >>> Experts(8, 16, ExpertsConfig(count=4, active=2))(torch.randn(2, 3, 8)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, dim: int, hidden: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(dim, config.count)
        self.gate, self.up = (nn.Parameter(torch.randn(config.count, dim, hidden) * dim**-0.5) for _ in range(2))
        self.gate_bias, self.up_bias = (nn.Parameter(torch.zeros(config.count, hidden)) for _ in range(2))
        self.down = nn.Parameter(torch.randn(config.count, hidden, dim) * hidden**-0.5)
        self.down_bias = nn.Parameter(torch.zeros(config.count, dim))

    def forward(self, x: Tensor) -> Tensor:
        """x `[…, dim]` → `[…, dim]`."""
        tokens = x.reshape(-1, x.shape[-1])
        logits, chosen = self.router(tokens).topk(self.config.active, dim=-1)  # [tokens, active]
        weights = logits.softmax(-1)
        if torch.compiler.is_exporting():
            spread = torch.zeros_like(self.router(tokens)).scatter(1, chosen, weights)  # [tokens, count]
            every = torch.stack([self.compute_expert(n, tokens) for n in range(self.config.count)], dim=1)
            return (every * spread[..., None]).sum(1).to(x.dtype).reshape(x.shape)
        order = chosen.flatten().argsort(stable=True)  # pairs of token and expert, by expert
        counts = torch.bincount(chosen.flatten(), minlength=self.config.count).tolist()
        rows = order // self.config.active
        parts = enumerate(tokens[rows].split(counts))
        outputs = [self.compute_expert(expert, part) for expert, part in parts if part.shape[0]]
        weighted = torch.cat(outputs) * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, rows, weighted.to(tokens.dtype)).reshape(x.shape)

    def compute_expert(self, n: int, x: Tensor) -> Tensor:
        gate = torch.addmm(self.gate_bias[n], x, self.gate[n]).clamp(max=self.config.limit)
        up = torch.addmm(self.up_bias[n], x, self.up[n]).clamp(-self.config.limit, self.config.limit)
        return torch.addmm(self.down_bias[n], (up + 1) * gate * torch.sigmoid(self.config.alpha * gate), self.down[n])
