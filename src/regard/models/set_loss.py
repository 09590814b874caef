"""The set loss of detection: predictions are matched one to one with the true objects, then compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import BadInput, Missing


@dataclass(frozen=True)
class SetLoss:
    """The loss of a set of predictions (Carion et al. 2020).

        cost(query, object) = − class_cost · p(class) + box_cost · |box − box|₁ − overlap_cost · giou
        loss = weighted mean cross-entropy + (box · Σ |box − box|₁ + overlap · Σ (1 − giou)) / objects

    The matching has the least total cost (Hungarian algorithm). A query without an object has the last class, with the
    weight `nothing`. With `auxiliary` the losses of all decoder layers are added.
    """

    class_cost: float = 1.0
    box_cost: float = 5.0
    overlap_cost: float = 2.0
    box: float = 5.0
    overlap: float = 2.0
    nothing: float = 0.1
    auxiliary: bool = False


class Detections(NamedTuple):
    """Predictions: `logits [batch, queries, classes + 1]`, `boxes [batch, queries, 4]`."""

    logits: Tensor
    boxes: Tensor


def set_loss(config: SetLoss, detections: Detections, labels: Sequence[dict[str, Tensor]]) -> Tensor:
    """The loss of one layer's predictions. `labels` has for each image `classes [objects]` and `boxes [objects, 4]`."""
    check_labels(detections, labels)
    logits, boxes = detections.logits.float(), detections.boxes.float()
    labels = [{name: label[name].to(logits.device) for name in ("classes", "boxes")} for label in labels]
    matches = match(config, Detections(logits.detach(), boxes.detach()), labels)
    queries = torch.cat([query + n * logits.shape[1] for n, (query, _) in enumerate(matches)]).to(logits.device)
    classes = torch.cat([label["classes"][at] for label, (_, at) in zip(labels, matches, strict=True)])
    truth = torch.cat([label["boxes"][at] for label, (_, at) in zip(labels, matches, strict=True)])
    boxes, objects = boxes.flatten(0, 1)[queries], max(1, sum(len(label["classes"]) for label in labels))
    distance = (boxes - truth).abs().sum() / objects
    overlap_loss = (1 - giou(boxes, truth)).sum() / objects
    return class_loss(config, logits, queries, classes) + config.box * distance + config.overlap * overlap_loss


def class_loss(config: SetLoss, logits: Tensor, queries: Tensor, classes: Tensor) -> Tensor:
    """Cross-entropy of all queries, those without an object belonging to the last class."""
    nothing = logits.shape[-1] - 1
    wanted = torch.full_like(logits[..., 0], nothing, dtype=torch.long).flatten()
    wanted = wanted.index_copy(0, queries, classes.long())
    weight = torch.ones_like(logits[0, 0])
    weight[nothing] = config.nothing
    return functional.cross_entropy(logits.flatten(0, 1), wanted, weight)


def match(config: SetLoss, detections: Detections, labels: Sequence[dict[str, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """For each image the matched queries and objects."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise Missing('Matching objects needs SciPy. Install it: pip install "regard[train]".') from error
    costs = [
        cost(config, logits, boxes, label["classes"], label["boxes"])
        for logits, boxes, label in zip(detections.logits, detections.boxes, labels, strict=True)
    ]
    sizes = [part.shape[1] for part in costs]
    together = torch.cat(costs, 1).cpu()  # one transfer for the whole batch
    pairs = [linear_sum_assignment(part.numpy()) for part in together.split(sizes, 1)]
    return [(torch.as_tensor(queries), torch.as_tensor(objects)) for queries, objects in pairs]


def cost(config: SetLoss, logits: Tensor, boxes: Tensor, classes: Tensor, truth: Tensor) -> Tensor:
    """`[queries, objects]`; NaN costs the most."""
    probability = logits.softmax(-1)[:, classes.long()]
    distance = torch.cdist(boxes, truth.float(), p=1)
    overlap = giou(boxes[:, None], truth[None])
    total = config.box_cost * distance - config.class_cost * probability - config.overlap_cost * overlap
    worst = torch.finfo(total.dtype).max
    return total.nan_to_num(nan=worst, posinf=worst, neginf=worst)


def giou(a: Tensor, b: Tensor) -> Tensor:
    """Generalised intersection over union of boxes `[…, 4]` (centre x, y, width, height): 1 for the same, to −1.

        giou = inner / union − (outer − union) / outer,   outer the smallest box around both

    >>> giou(torch.tensor([0.5, 0.5, 1, 1]), torch.tensor([0.5, 0.25, 1, 0.5]))
    tensor(0.5000)
    """
    (a_low, a_high), (b_low, b_high) = corners(a), corners(b)
    inner = area((torch.minimum(a_high, b_high) - torch.maximum(a_low, b_low)).clamp(min=0))
    outer = area(torch.maximum(a_high, b_high) - torch.minimum(a_low, b_low))
    union = area(a_high - a_low) + area(b_high - b_low) - inner
    tiny = torch.finfo(union.dtype).tiny
    return inner / union.clamp(min=tiny) - (outer - union) / outer.clamp(min=tiny)


def corners(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper corner, `[…, 2]` each."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return centre - size / 2, centre + size / 2


def area(size: Tensor) -> Tensor:
    return size[..., 0] * size[..., 1]


def check_labels(detections: Detections, labels: Sequence[dict[str, Tensor]]) -> None:
    """Raise unless every image has its classes and boxes."""
    wanted = "a list with, for each image, {'classes': [objects], 'boxes': [objects, 4]}"
    if not isinstance(labels, list | tuple) or len(labels) != len(detections.logits):
        got = f"{len(labels)} entries" if isinstance(labels, list | tuple) else type(labels).__name__
        raise BadInput(f"labels is {got} for {len(detections.logits)} images; it must be {wanted}.")
    for n, label in enumerate(labels):
        if not isinstance(label, dict) or not {"classes", "boxes"} <= set(label):
            raise BadInput(f"labels[{n}] is {label!r:.80}; labels must be {wanted}.")
        classes, boxes = label["classes"], label["boxes"]
        if classes.dim() != 1 or boxes.shape != (classes.shape[0], 4):
            raise BadInput(
                f"labels[{n}] has classes {list(classes.shape)} and boxes {list(boxes.shape)}; there must be one class "
                "and one box (centre x, centre y, width, height, as shares of the image) an object."
            )
