"""The claim additive: its verdict, its data and its models."""

import pytest

from regard.experiments.claims import additive
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(
    ("slower", "unequal", "large", "outcome"),
    [(3.0, 0.1, 0.06, "holds"), (3.0, 0.1, 0.0, "limited"), (3.0, 0.0, 0.1, "limited"), (1.5, 0.1, 0.1, "fails")],
)
def test_verdict(slower, unequal, large, outcome, toy):
    numbers = toy(additive)
    numbers["times"]["seconds"] = {"additive": [slower, slower], "dot": [1.0, 1.0]}
    numbers["bytes"] = {"additive": [30, 30], "dot": [10, 10]}
    numbers["unequal"] = {
        "additive": summarize([0.8 + unequal]),
        "dot": summarize([0.8]),
        "plain dot": summarize([0.8]),
    }
    numbers["found"] = {name: [summarize([0.9]), summarize([0.9])] for name in additive.NAMES}
    numbers["found"]["additive"][-1] = summarize([0.9 + large])
    assert additive.verdict(numbers).kind == outcome
