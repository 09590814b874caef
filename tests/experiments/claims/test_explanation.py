"""The claim explanation: its verdict, its data and its models."""

import pytest
import torch

from regard.experiments.claims import explanation
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(
    ("small", "large", "other", "outcome"),
    [(0.8, 0.75, 0.2, "holds"), (0.8, 0.75, 0.6, "limited"), (0.1, 0.4, 0.0, "limited"), (0.1, 0.2, 0.0, "fails")],
)
def test_verdict(small, large, other, outcome):
    numbers = {
        "accuracy": 0.98,
        "classifier": {"weights": summarize([small]), "random": summarize([0.0])},
        "encoder": {"weights": summarize([large]), "random": summarize([0.0])},
        "changed": {"shuffle": 0.2, "uniform": 0.1},
        "adversarial": {"share": other},
    }
    assert explanation.verdict(numbers).kind == outcome


def test_labels_are_the_prevailing_polarity():
    torch.manual_seed(0)
    tokens, labels = explanation.sample_reviews(100)
    assert tokens.shape == (100, explanation.TOKENS)
    for row, label in zip(tokens.tolist(), labels.tolist(), strict=True):
        total = 0
        for before, word in zip([-1, *row], row, strict=False):
            side = 0 if word >= explanation.NOT else 1 if word < explanation.POLAR else -1
            total += -side if before == explanation.NOT else side
        assert total and label == (total > 0)
