"""How far heads look, in the unit of the input: pixels, seconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .capture import Attention
from .region import ROWS, steps


def measured(attention: Attention, places: Tensor, real: Tensor) -> dict[str, Any]:
    """An attention as a page needs to know it, with how far each head looks and how evenly, `[heads]`."""
    distance, special = reach(attention, places, real)
    stats = attention.stats([])
    evenly = {name: stats[name] for name in ("entropy", "entropy_share", "peak")}
    return {**attention.describe(), "distance": distance, "special": special, **evenly}


def reach(attention: Attention, places: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Of each head, `[heads]`: the mean distance its real queries look, and the mean weight they put on special keys.

    `places [tokens, dims]` say where tokens stand; `real [tokens]` is False for special tokens, which stand nowhere: a
    query's distance is the mean over real keys by their weights made to sum to one, and what special keys get is told
    apart. Queries that look at special keys alone have no distance and are left out.
    """
    far, special = [], []
    for head in range(attention.heads):
        total, apart, count, looked = 0.0, 0.0, 0, 0
        for rows in steps((0, attention.queries), ROWS):
            queries = real[slice(*rows)]
            weight = attention.weights(head, rows)[queries]
            on_real = weight[:, real]
            sums = on_real.sum(-1)
            distance = torch.cdist(places[slice(*rows)][queries].to(weight), places[real].to(weight))
            mean = (on_real * distance).sum(-1)[sums > 1e-9] / sums[sums > 1e-9]
            total, count = total + float(mean.sum()), count + len(mean)
            apart, looked = apart + float(weight[:, ~real].sum()), looked + len(weight)
        far.append(total / max(1, count))
        special.append(apart / max(1, looked))
    return torch.tensor(far), torch.tensor(special)
