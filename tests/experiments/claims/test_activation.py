"""The claim activation: its verdict, its data and its models."""

import pytest
import torch

from regard.experiments.claims import activation
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(
    ("relu", "widest", "folded", "outcome"),
    [
        (0.99, 0.01, 1e-15, "holds"),
        (0.99, 0.2, 1e-15, "limited"),
        (0.8, 0.01, 1e-15, "fails"),
        (0.99, 0.01, 1e-3, "fails"),
    ],
)
def test_verdict(relu, widest, folded, outcome):
    accuracies = {"one linear layer": 0.6, "deep linear": 0.6, "relu": relu, "tanh": 0.99, "gelu": 0.99}
    numbers = {
        "accuracy": {name: summarize([accuracy]) for name, accuracy in accuracies.items()},
        "folded": folded,
        "widths": [1, 2, 8, 64],
        "errors": {"1": summarize([0.6]), "2": summarize([0.5]), "8": summarize([0.3]), "64": summarize([widest])},
    }
    assert activation.verdict(numbers).kind == outcome


def test_deep_linear_network_folds_and_relu_network_does_not():
    torch.manual_seed(0)
    x = torch.randn(50, 2, dtype=torch.float64)
    assert activation.folding_error(activation.build_mlp(None), x) < 1e-12
    assert activation.folding_error(activation.build_mlp(torch.nn.ReLU), x) > 1e-3
