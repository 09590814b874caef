"""Fully connected layers against their formula, and what they cannot do."""

import pytest
import torch

from regard.errors import BadInput, Unsupported
from regard.nn.attention import EncoderOutput
from regard.nn.baselines.fully_connected import FullyConnected
from regard.nn.cache import Cache

DIM, TOKENS = 4, 6
LENGTHS = torch.tensor([5, 3, 0])


@pytest.fixture
def x(generator):
    return torch.randn(3, 5, DIM, generator=generator)


def test_it_is_its_formula(x):
    layer = FullyConnected(DIM, 2, TOKENS, 7)
    y = torch.nn.functional.pad(x, (0, 0, 0, 1)).flatten(1)
    for ff in layer.layers:
        y = y + torch.relu(y @ ff.up.weight.T + ff.up.bias) @ ff.down.weight.T + ff.down.bias
        y = y.unflatten(1, (TOKENS, DIM))
        y[:, 5:] = 0
        y = y.flatten(1)
    assert torch.allclose(layer(x), y.unflatten(1, (TOKENS, DIM))[:, :5], atol=1e-5)


def test_without_activation_it_is_linear(x):
    layer, other = FullyConnected(DIM, 3, TOKENS, activation=None), torch.randn_like(x)
    zero = layer(torch.zeros_like(x))
    assert torch.allclose(layer(x) + layer(other) - zero, layer(x + other), atol=1e-5)
    bent = FullyConnected(DIM, 3, TOKENS)
    assert not torch.allclose(bent(x) + bent(other) - bent(torch.zeros_like(x)), bent(x + other), atol=1e-3)


KINDS = {
    "connected": {"tokens": TOKENS},
    "position-wise": {"position_wise": True},
    "with attention": {"tokens": TOKENS, "attention": True, "heads": 2},
}


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_matters(kind, cross, x, generator):
    layer = FullyConnected(DIM, 2, **KINDS[kind], cross=cross)
    source = torch.randn(3, 4, DIM, generator=generator)
    lengths = torch.tensor([4, 2, 3])
    noisy = source.clone()
    noisy[1, 2:] = 9.0
    memory = EncoderOutput(source, lengths) if cross else None
    y = layer(x, lengths=LENGTHS, memory=memory)
    assert torch.equal(y[1, 3:], torch.zeros(2, DIM)) and y[2].abs().sum() == 0
    other = x.clone()
    other[1, 3:], other[2] = 9.0, -9.0
    assert torch.allclose(
        layer(other, lengths=LENGTHS, memory=EncoderOutput(noisy, lengths) if cross else None), y, atol=1e-6
    )
    short = EncoderOutput(source[1:2, :2]) if cross else None
    assert torch.allclose(layer(x[1:2, :3], memory=short), y[1:2, :3], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_who_sees_whom(kind, x):
    layer = FullyConnected(DIM, 2, **KINDS[kind])
    x.requires_grad_()
    layer(x)[0, 1].sum().backward()
    seen = x.grad[0].abs().sum(-1) > 0
    assert seen.tolist() == ([False, True, False, False, False] if kind == "position-wise" else [True] * 5)
    assert x.grad[1:].abs().sum() == 0


def test_memory_is_read(x, generator):
    source = torch.randn(3, 4, DIM, generator=generator, requires_grad=True)
    for attention in (False, True):
        layer = FullyConnected(DIM, 1, TOKENS, attention=attention, cross=True)
        layer(x, memory=EncoderOutput(source, torch.tensor([4, 2, 3])))[1].square().sum().backward()
        assert (source.grad[1, :2].abs().sum(-1) > 0).all()
        assert source.grad[1, 2:].abs().sum() == 0 and source.grad[0].abs().sum() == 0
        source.grad = None


def test_position_embedding_is_added(x):
    layer, place = FullyConnected(DIM, 1, TOKENS), torch.randn_like(x)
    assert torch.equal(layer(x, position_embedding=place), layer(x + place))


def test_position_wise_goes_token_by_token(x):
    layer = FullyConnected(DIM, 2, position_wise=True, causal=True, attention=True)
    cache = Cache()
    steps = []
    for t in range(5):
        steps.append(layer(x[:, t : t + 1], cache=cache))
        cache.length += 1
    assert torch.allclose(torch.cat(steps, 1), layer(x), atol=1e-5)


def test_wrong_calls_are_refused(x):
    with pytest.raises(BadInput, match="x has 7 tokens; this FullyConnected has weights for 6"):
        FullyConnected(DIM, 1, TOKENS)(torch.zeros(1, 7, DIM))
    with pytest.raises(BadInput, match="needs tokens"):
        FullyConnected(DIM, 1)
    with pytest.raises(BadInput, match="not both"):
        FullyConnected(DIM, 1, TOKENS, position_wise=True)
    with pytest.raises(BadInput, match="later ones too"):
        FullyConnected(DIM, 1, TOKENS, causal=True)
    with pytest.raises(Unsupported, match="token by token"):
        FullyConnected(DIM, 1, TOKENS)(x, cache=Cache())
    with pytest.raises(BadInput, match="reads none"):
        FullyConnected(DIM, 1, TOKENS)(x, memory=EncoderOutput(x))
    with pytest.raises(BadInput, match="given none"):
        FullyConnected(DIM, 1, TOKENS, cross=True)(x)
    with pytest.raises(BadInput, match="activation is 'swish'"):
        FullyConnected(DIM, 1, TOKENS, activation="swish")
    with pytest.raises(BadInput, match=r"lengths has shape \[2\]"):
        FullyConnected(DIM, 1, TOKENS)(x, lengths=torch.tensor([1, 2]))
