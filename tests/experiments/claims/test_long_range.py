"""The claim long-range: its verdict, its data and its models."""

import pytest
import torch

from regard import Causal
from regard.experiments.claims import long_range
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({}, "holds"),
        ({"long LSTM": [1.0, 0.6]}, "limited"),  # a recurrent network that recalls at the longest distance
        ({"LSTM": [0.3, 0.1]}, "limited"),  # a network that did not learn the task
        ({"convolution": [1.0, 0.9]}, "limited"),
        ({"dilated": [1.0, 0.5]}, "limited"),
        ({"attention": [1.0, 0.5]}, "fails"),
    ],
)
def test_verdict(changed, outcome, toy):
    numbers = toy(long_range)
    accuracies = {name: [0.98, 0.1] for name in long_range.NAMES} | {"attention": [1.0, 0.96], "dilated": [1.0, 1.0]}
    numbers["accuracy"] = {
        name: [summarize([value]) for value in values] for name, values in (accuracies | changed).items()
    }
    assert long_range.verdict(numbers).kind == outcome


def test_recall_model_equals_the_full_computation():
    torch.manual_seed(0)
    tokens, _ = long_range.sample_recall(3, 30, torch.Generator().manual_seed(0))
    for name in ("convolution", "LSTM"):
        model = long_range.RecallModel(name, 30).eval()
        whole = model.head(model.body(model.embed(tokens)))[:, -1]
        torch.testing.assert_close(model(tokens), whole)
    model = long_range.RecallModel("attention", 30).eval()
    x = model.body.norm(model.embed(tokens))
    whole = model.embed(tokens) + model.body.attention(x, mask=Causal())
    torch.testing.assert_close(model(tokens), model.head(whole)[:, -1])


def test_chrono_init_spans_the_distance():
    torch.manual_seed(0)
    model = long_range.RecallModel("long LSTM", 100)
    forget = (model.body.cells.bias_ih_l0 + model.body.cells.bias_hh_l0)[long_range.DIM : 2 * long_range.DIM]
    time_constants = 1 / (1 - forget.sigmoid())  # tokens until the state has decayed to 1/e
    assert time_constants.min() >= 1.9 and 80 < time_constants.max() < 102


def test_query_token_is_at_the_distance():
    tokens, symbol = long_range.sample_recall(7, 20, torch.Generator().manual_seed(0))
    assert tokens.shape == (7, 21) and (tokens[:, 20] == long_range.QUERY_TOKEN).all()
    assert (symbol == tokens[:, 0]).all() and (symbol < long_range.SYMBOLS).all()
    assert ((tokens[:, 1:20] >= long_range.SYMBOLS) & (tokens[:, 1:20] < long_range.QUERY_TOKEN)).all()


@pytest.mark.parametrize(("name", "layers", "width"), [("convolution", 2, 5), ("dilated", 3, 15), ("attention", 1, 31)])
def test_receptive_field_width(name, layers, width):
    assert sum(value > 1e-6 for value in long_range.receptive_field(name, layers, 31, 0)) == width


def test_dilated_layers_reach_every_distance():
    for distance in range(2, 1100):
        layers = long_range.dilated_layers(distance)
        assert 2 * (2 ** (layers - 1) - 1) < distance <= 2 * (2**layers - 1)
