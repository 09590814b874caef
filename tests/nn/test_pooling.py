"""Pooling row by row, against loops over the real tokens."""

import pytest
import torch

from regard.errors import BadInput
from regard.nn.pooling import AttentionPooling, First, Last, Mean

LENGTHS = torch.tensor([5, 2, 0, 1])
KINDS = {
    "first": First,
    "last": Last,
    "mean": Mean,
    "dot": lambda: AttentionPooling(6, 2),
    "additive": lambda: AttentionPooling(6, 3, "additive"),
}


@pytest.fixture
def x(generator):
    return torch.randn(4, 5, 6, generator=generator)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_matters_and_empty_rows_are_zero(kind, x):
    pool = KINDS[kind]()
    y = pool(x, LENGTHS)
    assert y.shape == (4, 6) and y[2].abs().sum() == 0
    other = x.clone()
    for row, length in zip(other, LENGTHS, strict=True):
        row[length:] = torch.nan if kind in ("first", "last", "mean") else 100.0
    assert torch.allclose(pool(other, LENGTHS), y, atol=1e-6)
    for row, length in enumerate(LENGTHS.tolist()):
        assert torch.allclose(pool(x[row : row + 1, :length])[0], y[row], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_real_tokens_only(kind, x):
    x.requires_grad_()
    KINDS[kind]()(x, LENGTHS).square().sum().backward()
    assert x.grad.isfinite().all()
    for row, length in enumerate(LENGTHS.tolist()):
        assert x.grad[row, length:].abs().sum() == 0
        assert length == 0 or x.grad[row, :length].abs().sum() > 0


def test_first_last_and_mean_are_what_they_say(x):
    assert torch.equal(First()(x), x[:, 0])
    assert torch.equal(Last()(x), x[:, -1])
    assert torch.allclose(Mean()(x), x.mean(1))
    assert torch.equal(Last()(x, LENGTHS)[1], x[1, 1])
    assert torch.allclose(Mean()(x, LENGTHS)[1], x[1, :2].mean(0))


def test_attention_pooling_is_its_formula(x):
    for pool in (AttentionPooling(6, 2), AttentionPooling(6, 3, "additive")):
        k, v = (y.unflatten(-1, (pool.heads, -1)) for y in (pool.key(x), x))  # [batch, tokens, heads, head_dim]
        if pool.heads == 2:
            scores = (k * pool.query).sum(-1) * pool.head_dim**-0.5
        else:
            scores = ((k + pool.query).tanh() * pool.score.weight).sum(-1)
        wanted = (scores.softmax(1)[..., None] * v).sum(1).flatten(1)
        assert torch.allclose(pool(x), wanted, atol=1e-6)
        names = {name for name, _ in pool.named_parameters()}
        mine = torch.autograd.grad(pool(x).square().sum(), list(pool.parameters()))
        theirs = torch.autograd.grad(wanted.square().sum(), list(pool.parameters()))
        for name, a, b in zip(names, mine, theirs, strict=True):
            assert torch.allclose(a, b, atol=1e-5), name


def test_wrong_calls_are_refused(x):
    with pytest.raises(BadInput, match="'dot' or 'additive'"):
        AttentionPooling(6, 1, "cosine")
    with pytest.raises(BadInput, match="4 heads"):
        AttentionPooling(6, 4)
    with pytest.raises(BadInput, match=r"lengths has shape \[2\]"):
        Mean()(x, torch.tensor([1, 2]))
    with pytest.raises(BadInput, match=r"\[4, 5\]"):
        First()(x[..., 0])
