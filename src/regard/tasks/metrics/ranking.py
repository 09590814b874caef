"""Scores of ranked candidates: mean reciprocal rank and normalised discounted cumulative gain."""

from __future__ import annotations

import math
from collections.abc import Sequence


def reciprocal_rank(relevance: Sequence[float]) -> float:
    """1 / the rank of the first relevant candidate (more than 0), 0 without one; candidates are in ranked order.

    >>> reciprocal_rank([0, 0, 2]), reciprocal_rank([0, 0])
    (0.3333333333333333, 0.0)
    """
    return next((1 / rank for rank, value in enumerate(relevance, 1) if value > 0), 0.0)


def discounted_gain(relevance: Sequence[float], top: int | None = None) -> float:
    """Σ relevance / log₂(rank + 1), over the first `top` candidates."""
    return sum(value / math.log2(rank + 1) for rank, value in enumerate(relevance[:top], 1))


def normalized_gain(relevance: Sequence[float], top: int | None = None) -> float:
    """nDCG: the gain of the order as a share of that of the best order; 0 where nothing is relevant.

    >>> round(normalized_gain([0, 1, 1]), 4)
    0.6934
    """
    best = discounted_gain(sorted(relevance, reverse=True), top)
    return discounted_gain(relevance, top) / best if best else 0.0


def ranking_scores(groups: Sequence[Sequence[tuple[float, float]]]) -> dict[str, float]:
    """MRR, nDCG, nDCG@10 and the share of queries whose first candidate is relevant, over (score, relevance) pairs.

    Queries without a relevant candidate are left out; of equal scores the less relevant candidate comes first.

    >>> ranking_scores([[(0.9, 0.0), (0.8, 1.0)], [(0.3, 1.0), (0.1, 0.0)]])["MRR"]
    0.75
    """
    orders = [
        [relevance for _, relevance in sorted(group, key=lambda pair: (-pair[0], pair[1]))]
        for group in groups
        if any(relevance > 0 for _, relevance in group)
    ]
    count = max(1, len(orders))
    return {
        "nDCG": sum(map(normalized_gain, orders)) / count,
        "nDCG@10": sum(normalized_gain(order, 10) for order in orders) / count,
        "MRR": sum(map(reciprocal_rank, orders)) / count,
        "hits@1": sum(order[0] > 0 for order in orders) / count,
    }
