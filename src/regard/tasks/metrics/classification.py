"""Precision, recall and F1 of classes and of sets of labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence


def f1_score(correct: int, predicted: int, gold: int) -> float:
    """The harmonic mean of precision and recall; 0 where nothing is right."""
    return 2 * correct / (predicted + gold) if correct else 0.0


def sort_labels(labels: set[str]) -> list[str]:
    """Labels sorted as numbers, or as text.

    >>> sort_labels({"10", "9"}), sort_labels({"b", "a"})
    (['9', '10'], ['a', 'b'])
    """
    numbers = all(label.isdecimal() for label in labels)
    return sorted(labels, key=lambda label: (int(label), label)) if numbers else sorted(labels)


def classification_report(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and count of every class among labels and predictions.

    >>> classification_report(["a", "a", "b"], ["a", "b", "b"])["a"]
    {'precision': 1.0, 'recall': 0.5, 'F1': 0.6666666666666666, 'count': 2}
    """
    return set_report([{label} for label in gold], [{label} for label in predicted])


def set_report(
    gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and count of every label, of examples with a set of labels each.

    Reported are `labels`, and all others that occur.

    >>> set_report([{"a", "b"}, set()], [{"a"}, {"a"}])["a"]["F1"]
    0.6666666666666666
    """
    of_gold = Counter(label for row in gold for label in row)
    of_predicted = Counter(label for row in predicted for label in row)
    correct = Counter(label for a, b in zip(gold, predicted, strict=True) for label in set(a) & set(b))
    return count_report(correct, of_predicted, of_gold, labels)


def count_report(
    correct: Counter[str], predicted: Counter[str], gold: Counter[str], labels: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and count of every label, by how many are correct, predicted and in the gold."""
    return {
        label: {
            "precision": correct[label] / max(1, predicted[label]),
            "recall": correct[label] / max(1, gold[label]),
            "F1": f1_score(correct[label], predicted[label], gold[label]),
            "count": gold[label],
        }
        for label in sort_labels({*labels, *gold, *predicted})
    }


def mean_f1(report: dict[str, dict[str, float]]) -> float:
    """Macro F1: the mean over the labels of a report."""
    return sum(scores["F1"] for scores in report.values()) / max(1, len(report))


def micro_f1(gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]]) -> float:
    """F1 over all pairs of an example and a label.

    >>> micro_f1([{"a", "b"}, {"a"}], [{"a"}, {"a", "c"}])
    0.6666666666666666
    """
    correct = sum(len(set(a) & set(b)) for a, b in zip(gold, predicted, strict=True))
    return f1_score(correct, sum(map(len, predicted)), sum(map(len, gold)))
