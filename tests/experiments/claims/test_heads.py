"""The claim heads: its verdict, its data and its models."""

import pytest
import torch

from regard.experiments.claims import heads
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(
    ("two", "pair", "outcome"),
    [
        (0.9, [[0.9, 0.0], [0.1, 0.8]], "holds"),
        (0.9, [[0.0, 0.9], [0.8, 0.1]], "holds"),
        (0.9, [[0.5, 0.5], [0.5, 0.5]], "limited"),
        (0.4, [[0.9, 0.0], [0.1, 0.8]], "fails"),
    ],
)
def test_verdict(two, pair, outcome, toy):
    numbers = toy(heads)
    numbers["both"][:2] = [summarize([0.3]), summarize([two])]
    numbers["weights"][1] = [pair]
    assert heads.verdict(numbers).kind == outcome


def test_models_have_equal_parameters_and_targets_follow_pointers(toy):
    assert len(set(toy(heads)["parameters"])) == 1
    content, pointers, targets = heads.sample_rows(4, 6, torch.Generator().manual_seed(0))
    assert (pointers[..., 0] != pointers[..., 1]).all()
    for row, position, relation in ((0, 0, 0), (3, 5, 1), (2, 4, 0)):
        assert targets[row, position, relation] == content[row, pointers[row, position, relation]]
