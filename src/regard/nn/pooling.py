"""Pooling: one vector for each row, `(x [batch, tokens, dim], lengths=None) → [batch, dim]`.

Padding does not change the output, and a row without tokens gives zeros. In an open layout (`regard.shard`) x holds
this rank's tokens, and every rank gets the vector of the whole row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..attention.parts.masks import Lengths
from ..attention.parts.scores import Dot, Score
from ..attention.sharding import SequenceLayout, current_layout, token_positions, whole_tokens
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
        real = token_positions(x.shape[1], device=x.device) < counts[:, None]  # [batch, tokens]
        total = sum_ranks(x.masked_fill(~real[..., None], 0.0).sum(1))
        return total / counts.clamp(min=1)[:, None].to(x.dtype)


class Sum(nn.Module):
    """The sum of the real tokens' vectors, which grows with their number.

    >>> Sum()(torch.tensor([[[1.0], [2.0], [9.0]]]), torch.tensor([2])).tolist()
    [[3.0]]
    """

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        real = token_positions(x.shape[1], device=x.device) < full_lengths(x, lengths)[:, None]  # [batch, tokens]
        return sum_ranks(x.masked_fill(~real[..., None], 0.0).sum(1))


def pool_words(x: Tensor, words: Tensor, count: int) -> Tensor:
    """The mean of the tokens of each word, `[batch, count, dim]`; a word without tokens gives zeros.

    `words [batch, tokens]` is the word of each token, −1 for tokens of none.

    >>> pool_words(torch.tensor([[[9.0], [1.0], [2.0], [4.0]]]), torch.tensor([[-1, 0, 0, 1]]), 3).tolist()
    [[[1.5], [4.0], [0.0]]]
    """
    belongs = (words[:, None] == torch.arange(count, device=x.device)[:, None]).to(x.dtype)  # [batch, count, tokens]
    return sum_ranks((belongs / sum_ranks(belongs.sum(-1, keepdim=True)).clamp(min=1)) @ x)


def sum_ranks(x: Tensor) -> Tensor:
    """The sum over the ranks of an open layout; x itself where none is open."""
    layout = current_layout()
    return x if layout is None else layout.sum(x)


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
        layout = current_layout()
        if layout is not None:
            return self.merge_ranks(layout, self.score().similarity(q, k), v, lengths)
        mask = None if lengths is None else Lengths(lengths)
        return self.attend(q, k, v, score=self.score(), mask=mask).flatten(1)

    def merge_ranks(self, layout: SequenceLayout, scores: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        """The output of all ranks from the scores `[batch, heads, 1, tokens]` of each: a softmax over all of them."""
        if lengths is not None:
            real = token_positions(scores.shape[3], device=scores.device) < lengths[:, None, None, None]
            scores = scores.masked_fill(~real, -torch.inf)
        own = scores.detach().amax(-1, keepdim=True)  # [batch, heads, 1, 1]
        every = torch.where(torch.arange(layout.ranks, device=own.device) == layout.rank, own, 0.0)
        peak = layout.sum(every).amax(-1, keepdim=True)
        weights = (scores - peak.masked_fill(peak == -torch.inf, 0.0)).exp()
        total, mixed = layout.sum(weights.sum(-1, keepdim=True)), layout.sum(weights @ v)
        return (mixed / total.masked_fill(total == 0, 1.0)).flatten(1)


def token_at(x: Tensor, positions: Tensor, lengths: Tensor | None) -> Tensor:
    """The vector at each row's position, zeros where the row is empty."""
    counts = full_lengths(x, lengths)
    if not x.shape[1]:
        return x.new_zeros(x.shape[0], x.shape[2])
    if current_layout() is not None:
        here = (token_positions(x.shape[1], device=x.device) == positions[:, None]).to(x.dtype)  # [batch, tokens]
        token = sum_ranks((here[:, None] @ x).squeeze(1))
    else:
        token = x.gather(1, positions[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)
    return token.masked_fill((counts == 0)[:, None], 0.0)


def full_lengths(x: Tensor, lengths: Tensor | None) -> Tensor:
    """The number of real tokens of each row, `[batch]`; all of them by default."""
    check_lengths(x, lengths)
    return torch.full((x.shape[0],), whole_tokens(x.shape[1]), device=x.device) if lengths is None else lengths


def check_lengths(x: Tensor, lengths: Tensor | None) -> None:
    if x.dim() != 3:
        raise BadInput(f"x has shape {list(x.shape)}; it must be [batch, tokens, dim].")
    if lengths is not None and lengths.shape != x.shape[:1]:
        raise BadInput(f"lengths has shape {list(lengths.shape)}; it must be [{x.shape[0]}], one for each row.")
