"""The claim meaning: its verdict, its data and its models."""

import pytest

from regard.experiments.claims import meaning
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(
    ("once", "often", "near", "outcome"),
    [(0.9, 1.0, 0.95, "holds"), (0.3, 1.0, 0.95, "limited"), (0.3, 0.3, 0.95, "fails"), (0.9, 1.0, 0.5, "fails")],
)
def test_verdict(once, often, near, outcome):
    numbers = {
        "counts": [1, 16],
        "chance": 0.18,
        "neighbours": {"one-hot": summarize([0.2]), "own task": summarize([0.3]), "corpus": summarize([near])},
        "rare": {
            "one-hot": {"1": summarize([0.2]), "16": summarize([0.2])},
            "own task": {"1": summarize([0.2]), "16": summarize([0.2])},
            "corpus": {"1": summarize([once]), "16": summarize([often])},
        },
        "alike": {"corpus": {"banana": 0.9, "chair": 0.1}},
    }
    assert meaning.verdict(numbers).kind == outcome
