"""Pooling: one vector for each row, `(x [batch, tokens, dim], lengths=None) → [batch, dim]`.

Padding does not change the output, and a row without tokens gives zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..attention.parts.masks import Lengths
from ..attention.parts.scores import Dot, Score
from ..errors import BadInput
from .attention import Attend, divide_heads
from .parts.config import build_part
from .parts.learned import LearnedAdditive

SCORES: dict[str, Score] = {"dot": Dot(), "additive": LearnedAdditive()}


class First(nn.Module):
    """The first token's vector, as BERT and ViT pool.

    >>> First()(torch.tensor([[[1.0], [2.0]]])).tolist()
    [[1.0]]
    """

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return token_at(x, torch.zeros(x.shape[0], dtype=torch.long, device=x.device), lengths)


class Last(nn.Module):
    """The last real token's vector, as recurrent and causal models pool.

    >>> Last()(torch.tensor([[[1.0], [2.0], [0.0]]]), torch.tensor([2])).tolist()
    [[2.0]]
    """

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        last = full_lengths(x, lengths) - 1
        return token_at(x, last.clamp(min=0), lengths)


class Mean(nn.Module):
    """The mean of the real tokens' vectors.

    >>> Mean()(torch.tensor([[[1.0], [2.0], [9.0]]]), torch.tensor([2])).tolist()
    [[1.5]]
    """

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        counts = full_lengths(x, lengths)
        real = torch.arange(x.shape[1], device=x.device) < counts[:, None]  # [batch, tokens]
        total = x.masked_fill(~real[..., None], 0.0).sum(1)
        return total / counts.clamp(min=1)[:, None].to(x.dtype)


class AttentionPooling(nn.Module):
    """A weighted mean of the tokens by attention, with one learned query for each head.

        weight_j = softmax over j of score(query, key(x_j)),   y = Σ_j weight_j · x_j   (each head a part of dim)

    With the additive score this is the word attention of hierarchical attention networks.

    >>> AttentionPooling(dim=8, heads=2)(torch.randn(3, 5, 8)).shape
    torch.Size([3, 8])
    """

    def __init__(self, dim: int, heads: int = 1, score: str = "dot") -> None:
        super().__init__()
        if score not in SCORES:
            raise BadInput(f"AttentionPooling's score is {score!r}; it must be 'dot' or 'additive'.")
        self.heads, self.head_dim = heads, divide_heads(dim, heads)
        self.query = nn.Parameter(torch.randn(heads, self.head_dim) * self.head_dim**-0.5)
        self.key = nn.Linear(dim, dim)
        self.score = build_part(SCORES[score], heads, self.head_dim)
        self.attend = Attend()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        check_lengths(x, lengths)
        k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.key(x), x))
        q = self.query[None, :, None].expand(x.shape[0], -1, 1, -1).to(k.dtype)  # [batch, heads, 1, head_dim]
        mask = None if lengths is None else Lengths(lengths)
        return self.attend(q, k, v, score=self.score(), mask=mask).flatten(1)


def token_at(x: Tensor, positions: Tensor, lengths: Tensor | None) -> Tensor:
    """The vector at each row's position, zeros where the row is empty."""
    counts = full_lengths(x, lengths)
    if not x.shape[1]:
        return x.new_zeros(x.shape[0], x.shape[2])
    token = x.gather(1, positions[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)
    return token.masked_fill((counts == 0)[:, None], 0.0)


def full_lengths(x: Tensor, lengths: Tensor | None) -> Tensor:
    """The number of real tokens of each row, `[batch]`; all of them by default."""
    check_lengths(x, lengths)
    return torch.full((x.shape[0],), x.shape[1], device=x.device) if lengths is None else lengths


def check_lengths(x: Tensor, lengths: Tensor | None) -> None:
    if x.dim() != 3:
        raise BadInput(f"x has shape {list(x.shape)}; it must be [batch, tokens, dim].")
    if lengths is not None and lengths.shape != x.shape[:1]:
        raise BadInput(f"lengths has shape {list(lengths.shape)}; it must be [{x.shape[0]}], one for each row.")
