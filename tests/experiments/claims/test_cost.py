"""The claim cost: its verdict, its data and its models."""

import pytest
import torch

from regard.experiments.claims import cost
from regard.nn import MultiHeadAttention
from regard.nn.cache import Cache


def powers_of_length(power):
    return [float(n**power) for n in (32, 64, 128, 256)]


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({}, "holds"), ({"blocks": (2, 1)}, "limited"), ({"window": (1.7, 1)}, "fails"), ({"attention": (2, 1)}, "fails")],
)
def test_verdict(changes, outcome, toy):
    numbers = toy(cost)
    powers = {name: (1, 1) if name in cost.LINEAR_LAYERS else (2, 2) for name in cost.LAYER_LABELS} | changes
    numbers["times"]["layers"] = {name: powers_of_length(time) for name, (time, _) in powers.items()}
    numbers["bytes"] = {name: powers_of_length(memory) for name, (_, memory) in powers.items()}
    assert cost.verdict(numbers).kind == outcome


def test_steps_with_cache_equal_one_pass():
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, mask="Causal()", position="Rotary()").eval()
    x, cache, steps = torch.randn(1, 5, 8), Cache(), []
    with torch.no_grad():
        for token in x.split(1, dim=1):
            steps.append(layer(token, cache=cache.layer(0)))
            cache.length += 1
        torch.testing.assert_close(torch.cat(steps, 1), layer(x))
