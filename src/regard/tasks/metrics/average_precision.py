"""Average precision of detected boxes, as COCO computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.set_loss import area, corners

OVERLAPS = tuple(0.5 + 0.05 * n for n in range(10))
"""Thresholds of the IoU from which a predicted box matches a true one."""

MAX_BOXES = 100
"""Predicted boxes of a class that count in an image."""


@dataclass(frozen=True, eq=False)
class Objects:
    """True or predicted objects of an image: `boxes [n, 4]` (centre x, y, width, height), `classes`, `scores [n]`."""

    boxes: Tensor
    classes: Tensor
    scores: Tensor | None = None

    def of_class(self, number: int) -> Objects:
        """The objects of one class; predicted ones by decreasing score, at most `MAX_BOXES`."""
        mask = self.classes == number
        if self.scores is None:
            return Objects(self.boxes[mask], self.classes[mask])
        scores, order = self.scores[mask].sort(descending=True, stable=True)
        order = order[:MAX_BOXES]
        return Objects(self.boxes[mask][order], self.classes[mask][order], scores[:MAX_BOXES])


def average_precision(predictions: Sequence[Objects], truth: Sequence[Objects], number: int) -> list[float] | None:
    """AP of a class at each threshold in `OVERLAPS`; None if no image has such an object.

        AP = mean over recall r = 0, 0.01, …, 1 of the best precision at a recall of at least r

    Predicted boxes are ranked by score over all images. A box is correct if its IoU with a true box of its class that
    no box before it has matched reaches the threshold.
    """
    expected, boxes = [image.of_class(number) for image in truth], [image.of_class(number) for image in predictions]
    objects = sum(len(image.boxes) for image in expected)
    if not objects:
        return None
    correct = torch.cat([match_boxes(a, b) for a, b in zip(boxes, expected, strict=True)], 1)  # [overlaps, boxes]
    scores = torch.cat([image.scores for image in boxes if image.scores is not None])
    correct = correct[:, scores.argsort(descending=True, stable=True)]
    return [interpolate_precision(row, objects) for row in correct]


def match_boxes(predicted: Objects, truth: Objects) -> Tensor:
    """`[overlaps, boxes]`: whether each predicted box of an image, in order of its score, matches a free true box."""
    correct = torch.zeros(len(OVERLAPS), len(predicted.boxes), dtype=torch.bool)
    if not len(truth.boxes):
        return correct
    overlaps = iou(predicted.boxes[:, None], truth.boxes[None])  # [boxes, objects]
    for row, threshold in enumerate(OVERLAPS):
        free = torch.ones(len(truth.boxes), dtype=torch.bool)
        for n, overlap in enumerate(overlaps):
            value, best = overlap.masked_fill(~free, -1.0).max(0)
            if value >= threshold - 1e-10:
                correct[row, n], free[best] = True, False
    return correct


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes `[…, 4]`.

    >>> iou(torch.tensor([0.5, 0.5, 1, 1]), torch.tensor([0.5, 0.25, 1, 0.5]))
    tensor(0.5000)
    """
    (a_low, a_high), (b_low, b_high) = corners(a), corners(b)
    inner = area((torch.minimum(a_high, b_high) - torch.maximum(a_low, b_low)).clamp(min=0))
    union = area(a_high - a_low) + area(b_high - b_low) - inner
    return inner / union.clamp(min=torch.finfo(union.dtype).tiny)


def interpolate_precision(correct: Tensor, objects: int) -> float:
    """The mean over 101 recalls of the best precision at that recall or a higher one; `correct [boxes]` is ranked.

    >>> round(interpolate_precision(torch.tensor([True, False, True]), 2), 4)  # 1 up to half, then 2/3
    0.835
    """
    if not len(correct):
        return 0.0
    hits = correct.double().cumsum(0)
    precision = hits / torch.arange(1, len(correct) + 1)
    precision = precision.flip(0).cummax(0).values.flip(0)
    ranks = torch.searchsorted(hits / objects, torch.linspace(0, 1, 101, dtype=torch.float64) - 1e-12)
    return float(torch.cat([precision, torch.zeros(1, dtype=torch.float64)])[ranks].mean())
