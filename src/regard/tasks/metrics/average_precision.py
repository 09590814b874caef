"""Average precision of found boxes, as COCO counts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.set_loss import area, corners

OVERLAPS = tuple(0.5 + 0.05 * n for n in range(10))
"""From how much overlap on a box counts as found."""

MOST = 100
"""Boxes of a class that count on an image."""


@dataclass(frozen=True, eq=False)
class Objects:
    """What is on an image or was found there: `boxes [n, 4]` (centre x, y, width, height), `classes`, `scores [n]`."""

    boxes: Tensor
    classes: Tensor
    scores: Tensor | None = None

    def of(self, number: int) -> Objects:
        """Those of one class, the surest first, as many as count."""
        mine = self.classes == number
        if self.scores is None:
            return Objects(self.boxes[mine], self.classes[mine])
        scores, order = self.scores[mine].sort(descending=True, stable=True)
        return Objects(self.boxes[mine][order[:MOST]], self.classes[mine][order[:MOST]], scores[:MOST])


def average_precision(found: Sequence[Objects], truth: Sequence[Objects], number: int) -> list[float] | None:
    """AP of a class at each of `OVERLAPS`; None where no image has such an object.

        AP = mean over recall r = 0, 0.01, …, 1 of the best precision at a recall of at least r

    Found boxes are taken from the surest on, over all images; each counts as right if it overlaps a true box of its
    class that none before it has taken, the one it overlaps most.
    """
    there, mine = [one.of(number) for one in truth], [one.of(number) for one in found]
    objects = sum(len(one.boxes) for one in there)
    if not objects:
        return None
    right = torch.cat([taken(a, b) for a, b in zip(mine, there, strict=True)], 1)  # [overlaps, found]
    scores = torch.cat([one.scores for one in mine if one.scores is not None])
    right = right[:, scores.argsort(descending=True, stable=True)]
    return [interpolated(row, objects) for row in right]


def taken(found: Objects, truth: Objects) -> Tensor:
    """`[overlaps, found]`: which of an image's boxes, the surest first, are right."""
    right = torch.zeros(len(OVERLAPS), len(found.boxes), dtype=torch.bool)
    if not len(truth.boxes):
        return right
    overlaps = overlap(found.boxes[:, None], truth.boxes[None])  # [found, objects]
    for row, least in enumerate(OVERLAPS):
        free = torch.ones(len(truth.boxes), dtype=torch.bool)
        for n, near in enumerate(overlaps):
            value, best = near.masked_fill(~free, -1.0).max(0)
            if value >= least - 1e-10:
                right[row, n], free[best] = True, False
    return right


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes `[…, 4]`.

    >>> overlap(torch.tensor([0.5, 0.5, 1, 1]), torch.tensor([0.5, 0.25, 1, 0.5]))
    tensor(0.5000)
    """
    (a_low, a_high), (b_low, b_high) = corners(a), corners(b)
    inner = area((torch.minimum(a_high, b_high) - torch.maximum(a_low, b_low)).clamp(min=0))
    union = area(a_high - a_low) + area(b_high - b_low) - inner
    return inner / union.clamp(min=torch.finfo(union.dtype).tiny)


def interpolated(right: Tensor, objects: int) -> float:
    """The mean precision over 101 recalls, each the best at that recall or a higher one.

    >>> round(interpolated(torch.tensor([True, False, True]), 2), 4)  # 1 up to half, then 2/3
    0.835
    """
    if not len(right):
        return 0.0
    hits = right.double().cumsum(0)
    precision = hits / torch.arange(1, len(right) + 1)
    precision = precision.flip(0).cummax(0).values.flip(0)
    places = torch.searchsorted(hits / objects, torch.linspace(0, 1, 101, dtype=torch.float64) - 1e-12)
    return float(torch.cat([precision, torch.zeros(1, dtype=torch.float64)])[places].mean())
