"""The claim plugged: its verdict, its data and its models."""

import pytest

from regard.experiments.claims import plugged
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(("cnn", "gru", "outcome"), [(0.9, 0.9, "holds"), (0.9, 0.5, "limited"), (0.4, 0.5, "fails")])
def test_verdict(cnn, gru, outcome):
    accuracies = {
        "CNN": 0.25,
        "CNN, wider": 0.26,
        "GRU": 0.3,
        "GRU, wider": 0.4,
        "CNN + attention": cnn,
        "GRU + attention": gru,
    }
    numbers = {
        "lengths": [12, 96],
        "accuracy": {name: {"12": summarize([1.0]), "96": summarize([x])} for name, x in accuracies.items()},
    }
    assert plugged.verdict(numbers).kind == outcome


def test_wider_models_have_at_least_as_many_parameters():
    count = {name: sum(p.numel() for p in make().parameters()) for name, make in plugged.MODELS.items()}
    assert count["CNN, wider"] >= count["CNN + attention"] and count["GRU, wider"] >= count["GRU + attention"]
