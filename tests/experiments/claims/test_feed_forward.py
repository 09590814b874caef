"""The claim feed-forward: its verdict, its data and its models."""

import pytest
import torch

from regard.experiments.claims import feed_forward
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(
    ("alone", "three", "additivity", "full", "outcome"),
    [
        (0.5, 0.5, 1e-7, 1.0, "holds"),
        (0.5, 0.5, 0.3, 1.0, "limited"),
        (0.5, 0.9, 1e-7, 1.0, "limited"),
        (0.9, 0.5, 1e-7, 1.0, "fails"),
        (0.5, 0.5, 1e-7, 0.8, "fails"),
    ],
)
def test_verdict(alone, three, additivity, full, outcome, toy):
    numbers = toy(feed_forward)
    accuracies = {"attention": alone, "three": three, "linear": 0.5, "full": full}
    numbers["right"] = {
        name: {task: summarize([accuracy]) for task in feed_forward.TASKS} for name, accuracy in accuracies.items()
    }
    numbers["additivity"]["attention"] = additivity
    numbers["places"]["feed-forward"] = {"order": 1e-8, "others": 0.0}
    assert feed_forward.verdict(numbers).kind == outcome


def test_targets_are_the_parity_of_the_pointed_token():
    generator = torch.Generator().manual_seed(0)
    x, targets = feed_forward.sample_rows(5, 4, "both", generator)
    bits, pointers = x[..., : feed_forward.BITS], x[..., -4:].argmax(-1)
    for row, position in ((0, 0), (4, 3), (2, 1)):
        assert targets[row, position] == (bits[row, pointers[row, position]].prod() > 0)
