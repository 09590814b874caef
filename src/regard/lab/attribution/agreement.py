"""Whether attributions agree with the measured effect of ablation by more than shuffled importances do.

agreement   = mean over the methods of Spearman's rank correlation with the ablation effect, by size
noise floor = the agreement that 5 % of random orders of the same effects exceed
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...tasks.metrics.rank_correlation import mean_ranks

MIN_UNITS = 6
"""Units below which no agreement is stated: of five, one order in sixty agrees perfectly by chance."""
ORDERS, QUANTILE = 2000, 0.95
"""Random orders, and the share of them below the noise floor."""
EFFECT = "effect"


@dataclass(frozen=True)
class Agreement:
    """The agreement of the methods with the effect over `units`, beside what chance gives."""

    units: int
    each: dict[str, float]
    """The correlation of each method with the effect."""
    mean: float
    floor: float
    """The mean that 5 % of random orders exceed."""
    floor_each: float
    """The correlation of a single method that 5 % of random orders exceed."""
    chance: float
    """The share of random orders that agree at least as well."""


def measure_agreement(attributions: dict[str, Tensor | None], seed: int = 0) -> Agreement | None:
    """The agreement of the methods with `effect`; None of fewer than `MIN_UNITS` units, or where there is no method.

    >>> effect = torch.tensor([0.9, 0.1, 0.5, 0.3, 0.7, 0.2, 0.05, 0.6])
    >>> found = measure_agreement({"raw": effect**2, "effect": effect})
    >>> found is not None and found.mean > 0.99 and found.floor < 0.7
    True
    """
    effect = attributions[EFFECT]
    methods = {name: x for name, x in attributions.items() if x is not None and name != EFFECT}
    if effect is None or not methods:
        return None
    known = ~torch.stack([effect, *methods.values()]).isnan().any(0)
    units = int(known.sum())
    if units < MIN_UNITS:
        return None
    target = standard_ranks(effect[known])
    ranks = torch.stack([standard_ranks(x[known]) for x in methods.values()])  # [methods, units]
    correlations = ranks @ target
    generator = torch.Generator().manual_seed(seed)
    orders = torch.rand(ORDERS, units, generator=generator).argsort(-1)
    shuffled = target[orders] @ ranks.T  # [orders, methods]
    mean = float(correlations.mean())
    return Agreement(
        units,
        dict(zip(methods, correlations.tolist(), strict=True)),
        mean,
        float(shuffled.mean(-1).quantile(QUANTILE)),
        float(shuffled[:, 0].quantile(QUANTILE)),
        float((shuffled.mean(-1) >= mean - 1e-9).double().mean()),
    )


def standard_ranks(values: Tensor) -> Tensor:
    """The ranks of numbers by size, with mean 0 and norm 1: products are rank correlations. Of equal numbers 0."""
    ranks = mean_ranks(values.double().abs())
    ranks = ranks - ranks.mean()
    return ranks / ranks.norm().clamp(min=1e-12)


def count_units(attributions: dict[str, Tensor | None]) -> int:
    """The units that every method has a number for."""
    known = [~values.isnan() for values in attributions.values() if values is not None]
    return int(torch.stack(known).all(0).sum()) if known else 0
