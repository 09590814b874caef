"""Targets of whole graphs: one class, binary labels, or numbers, each with loss, metrics and predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import BadInput
from ..classify import classification_report, sort_labels

Label = str | float | tuple[str | float | None, ...]


class ClassTarget:
    """One class of several: accuracy and macro F1. Labels are class indices `[examples]`, −100 for no label."""

    kind = "class"
    main, higher = "accuracy", True

    def __init__(self, labels: list[str]) -> None:
        self.labels, self.outputs = labels, len(labels)
        self.number = {label: n for n, label in enumerate(labels)}

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "labels": self.labels}

    def tensor(self, labels: Sequence[Label]) -> Tensor:
        return torch.tensor([self.number.get(str(label), -100) for label in labels])

    def label_mask(self, labels: Tensor) -> Tensor:
        return labels != -100

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        return functional.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")

    def metrics(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        known = self.label_mask(labels)
        gold, predicted = ([self.labels[n] for n in x[known].tolist()] for x in (labels, logits.argmax(-1)))
        per_class = classification_report(gold, predicted)
        return {
            "accuracy": sum(map(str.__eq__, gold, predicted)) / max(1, len(gold)),
            "macro F1": sum(scores["F1"] for scores in per_class.values()) / max(1, len(per_class)),
        }

    def predictions(self, logits: Tensor) -> list[dict[str, Any]]:
        best = logits.softmax(-1).max(-1)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{"label": self.labels[n], "probability": round(p, 4)} for n, p in pairs]


class BinaryTarget:
    """One or several binary labels: the mean over labels of the area under the ROC curve, and accuracy. Labels are 0 or
    1, `[examples, outputs]`, NaN for no label."""

    kind = "yes or no"
    main, higher = "ROC-AUC", True

    def __init__(self, labels: list[str], outputs: int = 1) -> None:
        self.labels, self.outputs = labels, outputs

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "labels": self.labels, "outputs": self.outputs}

    def tensor(self, labels: Sequence[Label]) -> Tensor:
        number = {label: float(n) for n, label in enumerate(self.labels)}
        return torch.tensor([[number.get(str(value), math.nan) for value in as_tuple(label)] for label in labels])

    def label_mask(self, labels: Tensor) -> Tensor:
        return ~labels.isnan()

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        known = self.label_mask(labels)
        target = labels[known] * (1 - smoothing) + smoothing / 2
        return functional.binary_cross_entropy_with_logits(logits[known], target, reduction="sum")

    def metrics(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        areas = [roc_auc(logits[:, n], labels[:, n]) for n in range(self.outputs)]
        defined = [area for area in areas if area is not None]
        correct = ((logits > 0).float() == labels)[self.label_mask(labels)].float()
        return {
            "ROC-AUC": sum(defined) / len(defined) if defined else 0.5,
            "accuracy": float(correct.mean()) if len(correct) else 0.0,
        }

    def predictions(self, logits: Tensor) -> list[dict[str, Any]]:
        if self.outputs > 1:
            return [{"probabilities": [round(p, 4) for p in row]} for row in logits.sigmoid().tolist()]
        probabilities = logits[:, 0].sigmoid().tolist()
        return [{"label": self.labels[p > 0.5], "probability": round(max(p, 1 - p), 4)} for p in probabilities]


class RegressionTarget:
    """One or several numbers, standardized for training: root mean squared error and mean absolute error. Labels are
    `[examples, outputs]`, NaN for no label."""

    kind = "number"
    main, higher = "RMSE", False
    labels = None

    def __init__(self, mean: list[float], std: list[float]) -> None:
        self.mean, self.std, self.outputs = mean, std, len(mean)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "mean": self.mean, "std": self.std}

    def tensor(self, labels: Sequence[Label]) -> Tensor:
        rows = [as_tuple(label) for label in labels]
        return torch.tensor([[math.nan if value is None else float(value) for value in row] for row in rows])

    def label_mask(self, labels: Tensor) -> Tensor:
        return ~labels.isnan()

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        known = self.label_mask(labels)
        target = (labels - logits.new_tensor(self.mean)) / logits.new_tensor(self.std)
        return functional.mse_loss(logits[known], target[known], reduction="sum")

    def values(self, logits: Tensor) -> Tensor:
        return logits * torch.tensor(self.std) + torch.tensor(self.mean)

    def metrics(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        error = (self.values(logits) - labels)[self.label_mask(labels)]
        return {"RMSE": float(error.square().mean().sqrt()), "MAE": float(error.abs().mean())}

    def predictions(self, logits: Tensor) -> list[dict[str, Any]]:
        return [
            {"value": round(row[0], 4)} if len(row) == 1 else {"values": row} for row in self.values(logits).tolist()
        ]


Target = ClassTarget | BinaryTarget | RegressionTarget


def infer_target(labels: Sequence[Label]) -> Target:
    """The target for these labels: numbers, binary labels where there are two classes, or one of several classes."""
    rows = [as_tuple(label) for label in labels]
    values = [value for row in rows for value in row if value is not None]
    if values and all(isinstance(value, float) for value in values):
        table = torch.tensor([[math.nan if value is None else float(value) for value in row] for row in rows])
        mean = table.nanmean(0)
        std = (table - mean).square().nanmean(0).sqrt().clamp(min=1e-6)
        return RegressionTarget(mean.tolist(), std.tolist())
    names = sort_labels({str(value) for value in values})
    if len(names) == 2:
        return BinaryTarget(names, len(rows[0]))
    if len(names) < 2 or len(rows[0]) > 1:
        raise BadInput(f"The labels are {names[:5]}; wanted numbers, two classes, or one column of more classes.")
    return ClassTarget(names)


def target_from_dict(data: dict[str, Any]) -> Target:
    """The target that `as_dict` wrote."""
    targets = {target.kind: target for target in (ClassTarget, BinaryTarget, RegressionTarget)}
    return targets[data["kind"]](**{name: value for name, value in data.items() if name != "kind"})


def as_tuple(label: Label) -> tuple[str | float | None, ...]:
    return label if isinstance(label, tuple) else (label,)


def roc_auc(scores: Tensor, labels: Tensor) -> float | None:
    """The area under the ROC curve: the probability that a 1 scores higher than a 0, ties counted as ½; None if either
    is missing.

    >>> roc_auc(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([0.0, 0.0, 1.0, 1.0]))
    0.875
    """
    positive, negative = scores[labels == 1].double(), scores[labels == 0].double().sort().values
    if not len(positive) or not len(negative):
        return None
    below, not_above = (torch.searchsorted(negative, positive, right=right) for right in (False, True))
    return float((below + not_above).sum()) / (2 * len(positive) * len(negative))
