"""Convolutions against their formula: who sees whom, padding, and token by token."""

import pytest
import torch

from regard.errors import BadInput, Unsupported
from regard.nn.attention import EncoderOutput, MultiHeadAttention
from regard.nn.baselines.convolution import Convolution
from regard.nn.baselines.fully_connected import FullyConnected
from regard.nn.cache import Cache

DIM, TOKENS = 4, 11
LENGTHS = torch.tensor([11, 6, 0])


@pytest.fixture
def x(generator):
    return torch.randn(3, TOKENS, DIM, generator=generator)


def written_out(layer, x):
    """The sum over the kernel, token by token."""
    for conv, step in zip(layer.layers, layer.steps, strict=True):
        rows = []
        for i in range(x.shape[1]):
            total = conv.bias.expand(x.shape[0], -1)
            for n in range(layer.config.kernel):
                at = i + (n - (layer.config.kernel - 1 if layer.config.causal else layer.config.kernel // 2)) * step
                if 0 <= at < x.shape[1]:
                    total = total + x[:, at] @ conv.weight[:, :, n].T
            rows.append(total.relu())
        x = x + torch.stack(rows, 1) if layer.config.residual else torch.stack(rows, 1)
    return x


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("kernel", "causal"), [(3, False), (3, True), (2, True), (1, False)])
@pytest.mark.parametrize("dilation", ["none", "doubling"])
def test_it_is_its_formula(dilation, kernel, causal, residual, x):
    layer = Convolution(DIM, 2, kernel, dilation, causal=causal, residual=residual)
    assert torch.allclose(layer(x), written_out(layer, x), atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dilation", ["none", "doubling"])
def test_reach_is_what_a_token_sees(dilation, causal, generator):
    layer = Convolution(DIM, 3, 3, dilation, causal=causal, activation="tanh")
    x = torch.randn(1, 41, DIM, generator=generator, requires_grad=True)
    layer(x)[0, 20].sum().backward()
    seen = (x.grad[0].abs().sum(-1) > 0).nonzero().flatten()
    assert int(seen.max() - seen.min()) + 1 == layer.reach
    assert int(seen.max()) == (20 if causal else 20 + layer.reach // 2)


KINDS = {
    "plain": {},
    "causal": {"causal": True, "dilation": "doubling"},
    "with attention": {"attention": True, "heads": 2},
    "causal with attention": {"attention": True, "causal": True},
}


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_matters(kind, cross, x, generator):
    layer = Convolution(DIM, 2, **KINDS[kind], cross=cross)
    source, lengths = torch.randn(3, 4, DIM, generator=generator), torch.tensor([4, 2, 3])
    noisy = source.clone()
    noisy[1, 2:] = 9.0
    y = layer(x, lengths=LENGTHS, memory=EncoderOutput(source, lengths) if cross else None)
    assert y[1, 6:].abs().sum() == 0 and y[2].abs().sum() == 0
    other = x.clone()
    other[1, 6:], other[2] = 9.0, -9.0
    assert torch.allclose(
        layer(other, lengths=LENGTHS, memory=EncoderOutput(noisy, lengths) if cross else None), y, atol=1e-6
    )
    short = EncoderOutput(source[1:2, :2]) if cross else None
    assert torch.allclose(layer(x[1:2, :6], memory=short), y[1:2, :6], atol=1e-5)


@pytest.mark.parametrize("attention", [False, True])
def test_the_future_cannot_leak(attention, x):
    layer = Convolution(DIM, 2, causal=True, attention=attention)
    other = x.clone()
    other[:, 5:] += 1
    assert torch.allclose(layer(x)[:, :5], layer(other)[:, :5], atol=1e-6)
    assert not torch.allclose(layer(x)[:, 5], layer(other)[:, 5], atol=1e-3)


@pytest.mark.parametrize("pieces", [[1] * TOKENS, [4, 1, 1, 5]])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("attention", [False, True])
def test_cache_equals_no_cache(attention, cross, pieces, x, generator):
    layer = Convolution(DIM, 3, dilation="doubling", causal=True, attention=attention, cross=cross)
    memory = EncoderOutput(torch.randn(3, 4, DIM, generator=generator), torch.tensor([4, 2, 3])) if cross else None
    cache, steps = Cache(), []
    for part in x.split(pieces, 1):
        steps.append(layer(part, memory=memory, cache=cache))
        cache.length += part.shape[1]
    assert torch.allclose(torch.cat(steps, 1), layer(x, memory=memory), atol=1e-5)


@pytest.mark.parametrize("attention", [False, True])
def test_prompts_that_end_together(attention, x):
    layer = Convolution(DIM, 2, causal=True, attention=attention)
    cache = Cache(padding=torch.tensor([0, 3, 6]))
    first = layer(x[:, :8], cache=cache)
    cache.length = 8
    last = layer(x[:, 8:], cache=cache)
    for row, skipped in enumerate([0, 3, 6]):
        alone = layer(x[row : row + 1, skipped:])[0]
        assert torch.allclose(torch.cat([first[row, skipped:], last[row]]), alone, atol=1e-5)


def test_chosen_rows_of_a_cache_go_on_as_they_would(x):
    layer = Convolution(DIM, 2, causal=True)
    cache = Cache()
    layer(x[:, :5], cache=cache)
    cache.length = 5
    rows = torch.tensor([2, 0, 0])
    assert torch.allclose(layer(x[rows, 5:], cache=cache.select(rows)), layer(x[rows])[:, 5:], atol=1e-5)


def test_wrong_calls_are_refused(x):
    with pytest.raises(BadInput, match="kernel is 4"):
        Convolution(DIM, 1, 4)
    with pytest.raises(BadInput, match="dilation is 'tripling'"):
        Convolution(DIM, 1, dilation="tripling")
    with pytest.raises(Unsupported, match="causal=True"):
        Convolution(DIM, 1)(x, cache=Cache())
    with pytest.raises(BadInput, match="reads none"):
        Convolution(DIM, 1)(x, memory=EncoderOutput(x))
    with pytest.raises(BadInput, match=r"\[3, 11, 4\]"):
        Convolution(5, 1)(x)


PARTS = {"score": "Additive()", "position": "Alibi()", "mask": "Window(before=2, after=2)", "method": "Exact()"}


@pytest.mark.parametrize("kind", [Convolution, FullyConnected])
@pytest.mark.parametrize("causal", [False, True])
def test_what_is_plugged_in_is_made_of_its_parts(kind, causal, x):
    """As attention by itself is, of the same parts, after a layer that does nothing."""
    own = {"position_wise": True} if kind is FullyConnected else {}
    stack = kind(x.shape[2], 1, attention=True, heads=2, causal=causal, **PARTS, **own)
    for parameter in stack.layers.parameters():
        torch.nn.init.zeros_(parameter)
    mask = PARTS["mask"] + " & Causal()" * causal
    alone = MultiHeadAttention(x.shape[2], 2, **PARTS | {"mask": mask})
    alone.load_state_dict(stack.plugged[0].own.state_dict())
    assert torch.allclose(stack(x), x + alone(x), atol=1e-6)
    assert not torch.allclose(stack(x), x + MultiHeadAttention(x.shape[2], 2)(x), atol=1e-3)
