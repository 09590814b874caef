"""The claim sparse: its verdict, its data and its models."""

import pytest

from regard.experiments.claims import sparse
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(
    ("far", "window", "blockwise", "outcome"),
    [
        (0.95, 0.95, 1e-7, "holds"),
        (0.5, 0.95, 1e-7, "limited"),
        (0.95, 0.8, 1e-7, "limited"),
        (0.95, 0.95, 1e-2, "fails"),
    ],
)
def test_verdict(far, window, blockwise, outcome):
    names = list(sparse.attention_variants(64))
    far_accuracy = {"full": 0.97, "window": 0.4, "Performer": far}
    numbers = {
        "cost": {name: 1.0 if name == "full" else 0.2 for name in names},
        "near": {name: summarize([window if name == "window" else 0.96]) for name in names},
        "far": {name: summarize([far_accuracy.get(name, 0.96)]) for name in names},
        "blockwise": blockwise,
    }
    assert sparse.verdict(numbers).kind == outcome


def test_relative_cost():
    assert sparse.AttentionVariant().cost(64) == 1.0
    assert sparse.AttentionVariant("Window(before=1, after=1)").cost(64) == (3 * 64 - 2) / 64**2
    assert sparse.AttentionVariant(method="Linformer(tokens=64, rank=8)").cost(64) == 0.25
