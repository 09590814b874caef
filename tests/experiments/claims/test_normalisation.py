"""The claim normalisation: its verdict, softmax, and the two norms."""

from typing import Any

import torch

from regard.experiments.claims import normalisation
from regard.experiments.toolkit.metrics import summarize


def make_numbers(layer: float = 0.95, growth: float = 100.0) -> dict[str, Any]:
    accuracies = {"none": 0.5, "layer": layer, "batch": 0.6}
    return {
        "softmax": {"exp": 5.2e21, "gradient": 2e-22, "overflow": 1.0},
        "scores": {"none": [1.0, growth], "layer": [1.0, 0.8]},
        "accuracy": {norm: summarize([value]) for norm, value in accuracies.items()},
        "mixing": {"none": 0.0, "layer": 0.0, "batch": 0.1},
        "chance": 0.125,
    }


def test_verdict() -> None:
    assert normalisation.verdict(make_numbers()).kind == "holds"
    assert normalisation.verdict(make_numbers(layer=0.62)).kind == "limited"
    assert normalisation.verdict(make_numbers(growth=3.0)).kind == "fails"


def test_softmax_saturates_and_overflows() -> None:
    values = normalisation.saturate_softmax()
    assert 5.1e21 < values["exp"] < 5.3e21 and 0 < values["gradient"] < 1e-20 and values["overflow"] == 1.0


def test_only_batch_norm_mixes_the_sentences_of_a_batch() -> None:
    assert normalisation.batch_dependence("layer", 0) < 1e-5 and normalisation.batch_dependence("none", 0) < 1e-5
    assert normalisation.batch_dependence("batch", 0) > 0.01
    x = torch.randn(3, 5, normalisation.DIM)
    y = normalisation.TokenBatchNorm(normalisation.DIM)(x)
    assert torch.allclose(y.flatten(0, 1).mean(0), torch.zeros(normalisation.DIM), atol=1e-5)
