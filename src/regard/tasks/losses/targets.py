"""Targets of whole inputs: one class, a set of labels, binary labels, or numbers; their losses, scores and results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from ...data.json_values import JsonObject, ParsedObject
from ...data.tables.label_types import parse_number, split_labels
from ...data.tables.table import as_text
from ...errors import BadInput
from ..metrics.classification import classification_report, mean_f1, micro_f1, set_report
from ..metrics.rank_correlation import rank_correlation
from ..results import Classification, MultiLabel, Regression, Result
from ..task import Scores

Label = str | float | tuple[str | float | None, ...]
NO_CLASS = -100
MAX_WEIGHT = 20.0
"""Most that a rare label of a set counts for with balanced weights."""
TUNED_EXAMPLES = 10
"""Validation examples that a label needs for a threshold of its own."""


class ClassTarget:
    """One class of several: accuracy and macro F1. Labels are class indices `[examples]`, −100 for no label.

    `weights` are factors of the losses of each class in training.
    """

    kind: ClassVar[Literal["class"]] = "class"
    main, higher = "accuracy", True

    def __init__(self, labels: list[str], weights: list[float] | None = None) -> None:
        self.labels, self.outputs, self.weights = labels, len(labels), weights
        self.number = {label: n for n, label in enumerate(labels)}

    def as_dict(self) -> JsonObject:
        return {"kind": self.kind, "labels": self.labels}

    def tune(self, logits: Tensor, labels: Sequence[Label]) -> None:
        """Choose on validation data what is chosen there; nothing for classes and numbers."""

    def tuned_values(self) -> JsonObject:
        return {}

    def restore_tuned(self, values: ParsedObject) -> None:
        pass

    def balance(self, labels: Sequence[Label]) -> None:
        """Weight classes by the inverse of their number of examples."""
        counts = Counter(map(class_name, labels))
        self.weights = balanced_weights([counts[label] for label in self.labels])

    def tensor(self, labels: Sequence[Label]) -> Tensor:
        return torch.tensor([self.number.get(class_name(label), NO_CLASS) for label in labels])

    def label_mask(self, labels: Tensor) -> Tensor:
        return labels != NO_CLASS

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, weighted: bool = False) -> Tensor:
        """The sum of the losses; `weighted` by the weights of the classes."""
        weights = None if self.weights is None or not weighted else logits.new_tensor(self.weights)
        return functional.cross_entropy(
            logits, labels, weights, ignore_index=NO_CLASS, label_smoothing=smoothing, reduction="sum"
        )

    def scores(self, logits: Tensor, labels: Sequence[Label]) -> Scores:
        """Accuracy, macro F1 and mean loss; precision, recall and F1 of each class.

        Classes that the training data does not have count as wrong, in the loss with a probability of 1e-12.
        """
        gold = [class_name(label) for label in labels]
        predicted = [self.labels[n] for n in logits.argmax(-1).tolist()]
        per_class = classification_report(gold, predicted)
        known = [n for n, label in enumerate(gold) if label in self.number]
        of_label = torch.zeros(len(gold))
        of_label[known] = logits.softmax(-1)[known, [self.number[gold[n]] for n in known]]
        metrics = {
            "accuracy": sum(map(str.__eq__, gold, predicted)) / max(1, len(gold)),
            "macro F1": mean_f1(per_class),
            "loss": float(-of_label.clamp(min=1e-12).log().mean()),
        }
        details = {"per class": per_class, "never learned": dict(self.unknown(labels))}
        return Scores(metrics, self.main, hypotheses=predicted, details=details)

    def counts(self, labels: Sequence[Label]) -> Counter[str]:
        """How many examples each class or label has."""
        return Counter(map(class_name, labels))

    def describe(self, labels: Sequence[Label]) -> JsonObject:
        """Facts about labels that `regard check` shows."""
        return {"classes": dict(self.counts(labels).most_common())}

    def unknown(self, labels: Sequence[Label]) -> Counter[str]:
        """Labels that the training data does not have, with their counts."""
        return Counter(name for name in map(class_name, labels) if name not in self.number)

    def predictions(self, inputs: Sequence[str], logits: Tensor) -> list[Result]:
        rows = zip(inputs, logits.softmax(-1).tolist(), strict=True)
        return [Classification.from_probabilities(given, self.labels, row) for given, row in rows]


class LabelsTarget:
    """Any number of labels at once: micro and macro F1, and the share of examples whose set is right.

    Labels are 0 or 1, `[examples, labels]`. A label is predicted where its probability reaches its threshold, which
    `tune` chooses on validation data. `weights` are factors of the losses of present labels in training.
    """

    kind: ClassVar[Literal["labels"]] = "labels"
    main, higher = "micro F1", True

    def __init__(
        self, labels: list[str], thresholds: list[float] | None = None, weights: list[float] | None = None
    ) -> None:
        self.labels, self.outputs, self.weights = labels, len(labels), weights
        self.thresholds = thresholds or [0.5] * len(labels)
        self.number = {label: n for n, label in enumerate(labels)}

    def as_dict(self) -> JsonObject:
        return {"kind": self.kind, "labels": self.labels}

    def balance(self, labels: Sequence[Label]) -> None:
        """Weight present labels by how many examples lack them for each that has them."""
        present = self.tensor(labels).sum(0)
        self.weights = ((len(labels) - present) / present.clamp(min=1)).clamp(1.0, MAX_WEIGHT).tolist()

    def tensor(self, labels: Sequence[Label]) -> Tensor:
        rows = torch.zeros(len(labels), self.outputs)
        for n, label in enumerate(labels):
            rows[n, [self.number[name] for name in label_set(label) if name in self.number]] = 1.0
        return rows

    def label_mask(self, labels: Tensor) -> Tensor:
        return torch.ones_like(labels, dtype=torch.bool)

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, weighted: bool = False) -> Tensor:
        """The sum of the binary losses of all labels; `weighted` by the weights of present labels."""
        weights = None if self.weights is None or not weighted else logits.new_tensor(self.weights)
        target = labels * (1 - smoothing) + smoothing / 2
        return functional.binary_cross_entropy_with_logits(logits, target, pos_weight=weights, reduction="sum")

    def tune(self, logits: Tensor, labels: Sequence[Label]) -> None:
        """Choose the thresholds on validation data: one for rare labels together, one for each of the others."""
        gold, probabilities = self.tensor(labels).bool(), logits.sigmoid()
        shared = best_threshold(probabilities.flatten(), gold.flatten())
        self.thresholds = [shared] * self.outputs
        for n in range(self.outputs):
            if int(gold[:, n].sum()) >= TUNED_EXAMPLES:
                self.thresholds[n] = best_threshold(probabilities[:, n], gold[:, n])

    def tuned_values(self) -> JsonObject:
        return {"thresholds": self.thresholds}

    def restore_tuned(self, values: ParsedObject) -> None:
        self.thresholds = values["thresholds"]

    def predicted_sets(self, logits: Tensor) -> list[tuple[str, ...]]:
        above = logits.sigmoid() >= torch.tensor(self.thresholds)
        return [tuple(self.labels[n] for n in row.nonzero()[:, 0].tolist()) for row in above]

    def scores(self, logits: Tensor, labels: Sequence[Label]) -> Scores:
        gold, predicted = [label_set(label) for label in labels], self.predicted_sets(logits)
        per_label = set_report(gold, predicted, self.labels)
        loss = functional.binary_cross_entropy_with_logits(logits, self.tensor(labels))
        metrics = {
            "micro F1": micro_f1(gold, predicted),
            "macro F1": mean_f1(per_label),
            "subset accuracy": sum(set(a) == set(b) for a, b in zip(gold, predicted, strict=True)) / max(1, len(gold)),
            "loss": float(loss),
        }
        thresholds = {label: round(value, 4) for label, value in zip(self.labels, self.thresholds, strict=True)}
        details = {"per label": per_label, "thresholds": thresholds, "never learned": dict(self.unknown(labels))}
        return Scores(metrics, self.main, hypotheses=["|".join(row) for row in predicted], details=details)

    def counts(self, labels: Sequence[Label]) -> Counter[str]:
        return Counter(name for label in labels for name in label_set(label))

    def describe(self, labels: Sequence[Label]) -> JsonObject:
        counts = self.counts(labels)
        return {"labels": dict(counts.most_common()), "labels an example": counts.total() / max(1, len(labels))}

    def unknown(self, labels: Sequence[Label]) -> Counter[str]:
        return Counter(name for label in labels for name in label_set(label) if name not in self.number)

    def predictions(self, inputs: Sequence[str], logits: Tensor) -> list[Result]:
        rows = zip(inputs, self.predicted_sets(logits), logits.sigmoid().tolist(), strict=True)
        return [MultiLabel(given, names, dict(zip(self.labels, row, strict=True))) for given, names, row in rows]


class BinaryTarget:
    """One or several binary labels: the mean over labels of the area under the ROC curve, and accuracy. Labels are 0 or
    1, `[examples, outputs]`, NaN for no label."""

    kind = "yes or no"
    main, higher = "ROC-AUC", True

    def __init__(self, labels: list[str], outputs: int = 1) -> None:
        self.labels, self.outputs = labels, outputs

    def as_dict(self) -> JsonObject:
        return {"kind": self.kind, "labels": self.labels, "outputs": self.outputs}

    def tensor(self, labels: Sequence[Label]) -> Tensor:
        number = {label: float(n) for n, label in enumerate(self.labels)}
        return torch.tensor([[number.get(str(value), math.nan) for value in as_tuple(label)] for label in labels])

    def label_mask(self, labels: Tensor) -> Tensor:
        return ~labels.isnan()

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, weighted: bool = False) -> Tensor:
        known = self.label_mask(labels)
        target = labels[known] * (1 - smoothing) + smoothing / 2
        return functional.binary_cross_entropy_with_logits(logits[known], target, reduction="sum")

    def scores(self, logits: Tensor, labels: Sequence[Label]) -> Scores:
        gold = self.tensor(labels)
        areas = [roc_auc(logits[:, n], gold[:, n]) for n in range(self.outputs)]
        defined = [area for area in areas if area is not None]
        correct = ((logits > 0).float() == gold)[self.label_mask(gold)].float()
        metrics = {
            "ROC-AUC": sum(defined) / len(defined) if defined else 0.5,
            "accuracy": float(correct.mean()) if len(correct) else 0.0,
        }
        hypotheses = [", ".join(f"{p:.4f}" for p in row) for row in logits.sigmoid().tolist()]
        return Scores(metrics, self.main, hypotheses=hypotheses)

    def unknown(self, labels: Sequence[Label]) -> Counter[str]:
        values = (str(value) for label in labels for value in as_tuple(label) if value is not None)
        return Counter(value for value in values if value not in self.labels)

    def predictions(self, inputs: Sequence[str], logits: Tensor) -> list[Result]:
        rows = zip(inputs, logits.sigmoid().tolist(), strict=True)
        if self.outputs > 1:
            names = [str(n + 1) for n in range(self.outputs)]
            return [MultiLabel.from_probabilities(given, names, row) for given, row in rows]
        return [Classification.from_probabilities(given, self.labels, [1 - p, p]) for given, (p,) in rows]


class RegressionTarget:
    """One or several numbers, standardized for training: root mean squared error, mean absolute error, R² and
    Spearman's rank correlation. Labels are `[examples, outputs]`, NaN for no label. The `error` is squared, or Huber's:
    squared up to one deviation and linear beyond it.
    """

    kind: ClassVar[Literal["number"]] = "number"
    main, higher = "RMSE", False
    labels = None

    def __init__(self, mean: list[float], std: list[float], error: Literal["mse", "huber"] = "mse") -> None:
        self.mean, self.std, self.outputs, self.error = mean, std, len(mean), error

    @classmethod
    def fit(cls, labels: Sequence[Label], error: Literal["mse", "huber"] = "mse") -> RegressionTarget:
        """The target with mean and deviation of these labels."""
        table = number_table(labels)
        mean = table.nanmean(0)
        std = (table - mean).square().nanmean(0).sqrt().clamp(min=1e-6)
        return cls(mean.tolist(), std.tolist(), error)

    def as_dict(self) -> JsonObject:
        error = {} if self.error == "mse" else {"error": self.error}  # runs of earlier versions have none
        return {"kind": self.kind, "mean": self.mean, "std": self.std, **error}

    def tensor(self, labels: Sequence[Label]) -> Tensor:
        return number_table(labels)

    def label_mask(self, labels: Tensor) -> Tensor:
        return ~labels.isnan()

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, weighted: bool = False) -> Tensor:
        known = self.label_mask(labels)
        target = (labels - logits.new_tensor(self.mean)) / logits.new_tensor(self.std)
        loss = functional.mse_loss if self.error == "mse" else functional.huber_loss
        return loss(logits[known], target[known], reduction="sum")

    def tune(self, logits: Tensor, labels: Sequence[Label]) -> None:
        pass

    def tuned_values(self) -> JsonObject:
        return {}

    def restore_tuned(self, values: ParsedObject) -> None:
        pass

    def values(self, logits: Tensor) -> Tensor:
        return logits * torch.tensor(self.std) + torch.tensor(self.mean)

    def scores(self, logits: Tensor, labels: Sequence[Label]) -> Scores:
        values, gold = self.values(logits), self.tensor(labels)
        known = self.label_mask(gold)
        error, centred = (values - gold)[known], (gold - gold.nanmean(0))[known]
        variance = float(centred.square().sum())
        correlations = [rank_correlation(values[rows, n], gold[rows, n]) for n, rows in enumerate(known.unbind(1))]
        metrics = {
            "RMSE": float(error.square().mean().sqrt()),
            "MAE": float(error.abs().mean()),
            "R2": 1 - float(error.square().sum()) / variance if variance else 0.0,
            "Spearman": sum(correlations) / len(correlations),
        }
        hypotheses = [", ".join(f"{value:.6g}" for value in row) for row in values.tolist()]
        return Scores(metrics, self.main, self.higher, hypotheses)

    def counts(self, labels: Sequence[Label]) -> Counter[str]:
        return Counter()

    def describe(self, labels: Sequence[Label]) -> JsonObject:
        values = self.tensor(labels)
        values = values[self.label_mask(values)]
        return {
            "numbers": len(values),
            "mean": float(values.mean()),
            "deviation": float(values.std(correction=0)),
            "lowest": float(values.min()),
            "highest": float(values.max()),
        }

    def unknown(self, labels: Sequence[Label]) -> Counter[str]:
        return Counter()

    def predictions(self, inputs: Sequence[str], logits: Tensor) -> list[Result]:
        rows = zip(inputs, self.values(logits).tolist(), strict=True)
        return [Regression(given, tuple(row)) for given, row in rows]


Target = ClassTarget | LabelsTarget | BinaryTarget | RegressionTarget
InputTarget = ClassTarget | LabelsTarget | RegressionTarget
"""The target of a text, an image, a recording or a pair of texts."""


def as_tuple(label: Label) -> tuple[str | float | None, ...]:
    return label if isinstance(label, tuple) else (label,)


def class_name(label: Label) -> str:
    """The name of a class; a whole number has no decimal point."""
    return (as_text(label) or "") if isinstance(label, float) else str(label)


def label_set(label: Label) -> tuple[str, ...]:
    return split_labels(label) if isinstance(label, str) else tuple(str(item) for item in as_tuple(label))


def number_table(labels: Sequence[Label]) -> Tensor:
    """float32 `[examples, outputs]`, NaN for what is missing; raises `BadInput` for text that is no number."""
    rows = [[math.nan if value is None else to_number(value) for value in as_tuple(label)] for label in labels]
    return torch.tensor(rows)


def to_number(value: str | float) -> float:
    number = parse_number(value) if isinstance(value, str) else float(value)
    if number is None:
        raise BadInput(f"The label is {value!r:.40}, and this model predicts numbers. Give a number.")
    return number


def balanced_weights(counts: Sequence[int]) -> list[float]:
    """A factor for each class, inverse to its number of examples; their mean over the examples is 1.

    >>> balanced_weights([90, 10])
    [0.5555555555555556, 5.0]
    """
    return [sum(counts) / (len(counts) * count) for count in counts]


def best_threshold(probabilities: Tensor, gold: Tensor) -> float:
    """The threshold with the highest F1, in the middle between the probabilities on its two sides.

    >>> best_threshold(torch.tensor([0.1, 0.3, 0.4]), torch.tensor([False, True, True]))
    0.2
    """
    values, order = probabilities.double().sort(descending=True)
    correct, total = gold[order].cumsum(0), int(gold.sum())
    counts = torch.arange(1, len(values) + 1)
    f1 = 2 * correct / (counts + total)
    last_of_equals = torch.cat([values[1:] != values[:-1], torch.tensor([True])])
    n = int(f1.masked_fill(~last_of_equals, -1.0).argmax())
    below = float(values[n + 1]) if n + 1 < len(values) else 0.0
    return round((float(values[n]) + below) / 2, 6)


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
