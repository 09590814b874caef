"""The claim embedding-scaling: its verdict, its data and its models."""

import math
from typing import Any

import pytest
import torch

from regard.experiments.claims import embedding_scaling
from regard.experiments.toolkit.metrics import summarize


def make_numbers(scaled: float = 7.0, loss: float = 2.0) -> dict[str, Any]:
    lengths = {"unscaled": [1.0], "scaled": [scaled], "position": [5.0]}
    losses = {"unscaled": loss, "scaled": 1.0, "spread 1": 1.0}
    return {"lengths": lengths, "learning": {name: {"mean loss": summarize([value])} for name, value in losses.items()}}


def test_verdict() -> None:
    assert embedding_scaling.verdict(make_numbers()).kind == "holds"
    assert embedding_scaling.verdict(make_numbers(loss=1.05)).kind == "limited"
    assert embedding_scaling.verdict(make_numbers(scaled=11.0)).kind == "fails"


def test_vector_lengths_equal_the_formulas() -> None:
    lengths = embedding_scaling.vector_lengths(torch.Generator().manual_seed(0))
    for n, dim in enumerate(embedding_scaling.DIMS):
        assert lengths["position"][n] == pytest.approx(math.sqrt(dim / 2), rel=1e-5)
        assert lengths["scaled"][n] == pytest.approx(math.sqrt(dim), rel=0.02)


def test_target_follows_the_marker() -> None:
    tokens, targets = embedding_scaling.sample_rows(100, torch.Generator().manual_seed(0))
    at = (tokens == 0).nonzero()
    assert len(at) == 100
    assert torch.equal(tokens[at[:, 0], at[:, 1] + 1], targets)
