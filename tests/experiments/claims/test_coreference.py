"""The claim coreference: its verdict, its data and its models."""

import pytest
import torch

from regard.experiments.claims import coreference


@pytest.mark.parametrize(
    ("right", "moved", "outcome"),
    [(0.8, 0.8, "holds"), (0.65, 0.5, "limited"), (0.5, 0.9, "limited"), (0.5, 0.52, "limited")],
)
def test_verdict(right, moved, outcome):
    famous = {"animal": 40, "heads": 72, "pieces": ["animal", "street"], "weights": [[0.2, 0.1]]}
    numbers = {
        "sentences": 200, "head": [3, 2], "head_right": right, "head_both": 0.3, "mover": [5, 1],
        "mover_moved": moved, "famous": [famous, famous],
    }  # fmt: skip
    verdict = coreference.verdict(numbers)
    assert verdict.kind == outcome and verdict.subclaims[0].holds
    famous["weights"] = [[0.1, 0.2]]
    assert not coreference.verdict(numbers).subclaims[0].holds
    assert coreference.verdict(numbers | {"head_right": 0.5, "mover_moved": 0.5}).kind == "fails"


def test_halves_share_no_nouns_and_rates_count_pairs():
    halves = [
        [pair for pattern in coreference.PATTERNS for pair in coreference.sentence_pairs(pattern, half)]
        for half in (0, 1)
    ]
    for pattern in coreference.PATTERNS:
        first, second = (
            {word for pair in coreference.sentence_pairs(pattern, half) for word in (pair.first, pair.second)}
            for half in (0, 1)
        )
        assert not first & second
    assert coreference.EXAMPLE_SENTENCES in [pair.wordings for pair in halves[0]]
    weights = torch.zeros(1, 2, 2, 1, 1)
    weights[0, 0, 0], weights[0, 1, 0] = 1.0, 1.0  # always the first noun
    assert coreference.right_noun_rate(weights).item() == 0.5 and coreference.both_right_rate(weights).item() == 0.0
    assert coreference.shift_rate(weights).item() == 0.5
    weights[0, 1] = torch.tensor([0.5, 1.0])[:, None, None]
    assert coreference.shift_rate(weights).item() == 1.0
    assert coreference.word_positions(["the", "ele", "##phant", "it"], "elephant") == [1, 2]
