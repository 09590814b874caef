"""The claim convolution: its verdict, its data and its models."""

import pytest
import torch

from regard.experiments.claims import convolution
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(
    ("error", "unexplained", "outcome"), [(1e-7, 0.01, "holds"), (1e-7, 0.3, "limited"), (1e-3, 0.01, "fails")]
)
def test_verdict(error, unexplained, outcome, toy):
    numbers = toy(convolution)
    numbers["equal"] = [{"kernel": 3, "type": "float32", "output": error, "gradient": 0.0}]
    numbers["equal"] += [{"kernel": 3, "type": "float64", "output": 1e-16, "gradient": 0.0}]
    numbers |= {"learned": summarize([unexplained]), "inside": summarize([0.99])}
    numbers["marked"] = {"attention": summarize([0.02]), "convolution": summarize([0.8])}
    assert convolution.verdict(numbers).kind == outcome


@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_one_head_per_offset_equals_the_convolution(kernel):
    errors = convolution.compare_attention(kernel, torch.float64, 3)
    assert errors["output"] < 1e-14 and errors["gradient"] < 1e-14


def test_shifted_input_differs_from_the_convolution():
    torch.manual_seed(0)
    layer = torch.nn.Conv1d(4, 4, 3, padding=1)
    shifted = convolution.convolution_to_attention(layer)
    x = torch.randn(1, 9, 4)
    assert convolution.relative_error(convolution.attend_padded(shifted, x.roll(1, 1), 1), layer(x.mT).mT) > 0.1
