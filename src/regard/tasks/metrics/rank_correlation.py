"""Spearman's rank correlation."""

from __future__ import annotations

from torch import Tensor


def rank_correlation(x: Tensor, y: Tensor) -> float:
    """Spearman's rank correlation of two vectors; 0 where one of them is constant.

    >>> import torch
    >>> round(rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 9.0])), 6)
    1.0
    """
    a, b = (ranks - ranks.mean() for ranks in (mean_ranks(x), mean_ranks(y)))
    norm = (a.norm() * b.norm()).item()
    return (a @ b).item() / norm if norm else 0.0


def mean_ranks(x: Tensor) -> Tensor:
    """The rank of each number of a vector; equal numbers get their mean rank."""
    _, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    last = counts.double().cumsum(0)
    return (last - (counts - 1) / 2)[inverse]
