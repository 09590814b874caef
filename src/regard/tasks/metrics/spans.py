"""Precision, recall and F1 of labelled spans: a span is right where its label and both its ends are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from .classification import count_report, f1_score, mean_f1

TokenSpan = tuple[int, int, str]


def span_scores(
    gold: Sequence[Collection[TokenSpan]], predicted: Sequence[Collection[TokenSpan]]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """({F1, precision, recall, macro F1}, the same of each label), of the spans (start, end, label) of each text.

    These are the numbers of seqeval and conlleval: micro averages over all spans, and macro F1 as the mean over labels.

    >>> span_scores([[(0, 2, "PER"), (3, 4, "LOC")]], [[(0, 2, "PER"), (3, 5, "LOC")]])[0]
    {'F1': 0.5, 'precision': 0.5, 'recall': 0.5, 'macro F1': 0.5}
    """
    pairs = [(set(a), set(b)) for a, b in zip(gold, predicted, strict=True)]
    right = Counter(label for a, b in pairs for _, _, label in a & b)
    expected = Counter(label for a, _ in pairs for _, _, label in a)
    given = Counter(label for _, b in pairs for _, _, label in b)
    per_label = count_report(right, given, expected)
    metrics = {
        "F1": f1_score(right.total(), given.total(), expected.total()),
        "precision": right.total() / max(1, given.total()),
        "recall": right.total() / max(1, expected.total()),
        "macro F1": mean_f1(per_label),
    }
    return metrics, per_label
