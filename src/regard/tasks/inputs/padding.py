"""Padding of batches to few shapes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import pad


def pad_to_multiples(
    batch: Mapping[str, Tensor], fills: Mapping[str, int], rows: int = 32, tokens: int = 8
) -> dict[str, Tensor]:
    """A batch padded to multiples of `rows` rows and `tokens` columns, so that few shapes occur.

    Tensors `[batch, tokens]` are padded with their value in `fills`, lengths and the like `[batch]` with 0.

    >>> import torch
    >>> batch = {"x": torch.ones(1, 1), "n": torch.tensor([1])}
    >>> {name: x.tolist() for name, x in pad_to_multiples(batch, {"x": 7}, rows=2, tokens=2).items()}
    {'x': [[1.0, 7.0], [7.0, 7.0]], 'n': [1, 0]}
    """
    padded = {}
    for name, x in batch.items():
        rows_added = (0, -x.shape[0] % rows)
        added = (0, -x.shape[1] % tokens, *rows_added) if x.dim() > 1 else rows_added
        padded[name] = pad(x, added, value=fills.get(name, 0))
    return padded
