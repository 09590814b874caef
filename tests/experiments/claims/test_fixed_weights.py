"""The claim fixed-weights: its verdict, its data and its models."""

import math
from typing import Any

import torch

from regard.experiments.claims import fixed_weights
from regard.experiments.toolkit.metrics import summarize
from regard.nn import MultiHeadAttention


def make_numbers() -> dict[str, Any]:
    accuracy = {"fully connected": [summarize([0.6])] * 3 + [summarize([0.2])], "attention": [summarize([0.99])] * 4}
    change = {
        "fully connected": summarize([0.0]),
        "fully connected, activation": summarize([0.05]),
        "attention": summarize([0.7]),
    }
    return {"accuracy": accuracy, "change": change}


def test_verdict() -> None:
    numbers = make_numbers()
    assert fixed_weights.verdict(numbers).kind == "holds"
    numbers["change"]["fully connected, activation"] = summarize([0.5])
    assert fixed_weights.verdict(numbers).kind == "limited"
    numbers["change"]["fully connected"] = summarize([0.01])
    assert fixed_weights.verdict(numbers).kind == "fails"
    shorter = make_numbers()
    shorter["accuracy"]["attention"][-1] = summarize([0.8])
    assert fixed_weights.verdict(shorter).kind == "fails"


def test_jacobian_of_a_linear_layer_is_constant_and_of_attention_is_not() -> None:
    linear, attention = torch.nn.Linear(4, 4), MultiHeadAttention(4, 2)
    for layer, least, most in ((linear, 0.0, 0.0), (attention, 1e-3, math.inf)):
        jacobians = [fixed_weights.jacobian(layer, torch.randn(1, 5, 4)) for _ in range(3)]
        assert jacobians[0].shape == (5, 4, 5, 4)
        assert least <= fixed_weights.relative_change(jacobians) <= most
