"""The claim scaling: its verdict, its data and its models."""

import copy
from typing import Any

import pytest
import torch

from regard.experiments.claims import scaling
from regard.experiments.toolkit import key_value
from regard.experiments.toolkit.metrics import summarize
from regard.nn import MultiHeadAttention


def make_numbers(peak: float = 0.97, loss: float = 1.5) -> dict[str, Any]:
    still = {"peak, unscaled": [0.3, peak], "peak, scaled": [0.1, 0.11], "overflow": [0.0, 0.5]}
    still |= {"gradient, unscaled": [0.2, 0.01], "gradient, scaled": [0.2, 0.2]}
    still |= {"median, unscaled": [0.2, 0.001], "median, scaled": [0.2, 0.2]}
    curves = {"scaled": {"mean loss": summarize([1.0])}, "unscaled": {"mean loss": summarize([loss])}}
    return {"still": still, "learning": {"64": curves, "256": copy.deepcopy(curves)}}


def test_verdict() -> None:
    assert scaling.verdict(make_numbers()).kind == "holds"
    assert scaling.verdict(make_numbers(loss=1.0)).kind == "limited"
    assert scaling.verdict(make_numbers(peak=0.5)).kind == "fails"


def test_softmax_jacobian_norm_equals_autograd() -> None:
    scores = torch.randn(5, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(0), scores)
    assert scaling.softmax_jacobian_norm(scores.softmax(0)[None]).item() == pytest.approx(
        torch.as_tensor(jacobian).norm().item()
    )


def test_initial_queries_have_unit_variance() -> None:
    torch.manual_seed(0)
    model = key_value.KeyValueModel(layer := scaling.init_variance(MultiHeadAttention(256, 1)), 256)
    keys, values, _ = key_value.sample_lookups(64, 8, torch.Generator().manual_seed(0))
    assert layer.q(model.embed(keys, values)).std().item() == pytest.approx(1.0, rel=0.1)
