"""The arrays of attention heads that figures and pages draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class HeadArrays:
    """Some heads of one batch item: their weights or statistics, and the labels of the axes.

    `shape` is (batch, heads, queries, keys) of the whole call; `batch` and `heads` are the indices that are drawn.
    `cells` `[heads, rows, columns]` holds the weights, or with `pooled` their means over buckets of tokens, or is None.
    `masked` `[heads or 1, rows, columns]` is True where no pair of a cell is allowed, None where that is unknown.
    `entropy`, `distance` and `peak` are `[heads, rows]`, or `[heads, queries]` without cells; `received` is
    `[heads, keys]`; `dead` `[heads]` counts the queries without an allowed key; `top_weights` and `top_keys` are
    `[heads, queries, top]`.
    """

    description: str
    shape: tuple[int, int, int, int]
    batch: int
    heads: list[int]
    cells: Tensor | None
    pooled: bool
    masked: Tensor | None
    entropy: Tensor
    distance: Tensor
    peak: Tensor
    received: Tensor
    dead: Tensor
    top_weights: Tensor | None = None
    top_keys: Tensor | None = None
    query_labels: list[str] | None = None
    key_labels: list[str] | None = None

    @property
    def queries(self) -> int:
        return self.shape[2]

    @property
    def keys(self) -> int:
        return self.shape[3]

    @property
    def content(self) -> Literal["weights", "map", "curves"]:
        """What is drawn: a cell for each pair, pooled cells, or without cells the statistics as curves."""
        return "curves" if self.cells is None else "map" if self.pooled else "weights"

    @property
    def numbers(self) -> int:
        """How many numbers a page of these arrays holds, approximately."""
        if self.cells is not None:
            return self.cells.numel()
        top = 0 if self.top_weights is None else 2 * self.top_weights.shape[-1]
        return len(self.heads) * (self.queries * (3 + top) + self.keys)

    def row_sums(self) -> tuple[float, float]:
        """The smallest and the largest sum of a row of cells; rows of dead queries do not count."""
        assert self.cells is not None
        sums = self.cells.double().sum(-1)[self.peak > 0]
        return (sums.min().item(), sums.max().item()) if sums.numel() else (0.0, 0.0)
