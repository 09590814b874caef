"""Hierarchical attention by its formula, its padding, and its refusals."""

import pytest
import torch

from regard.errors import BadInput
from regard.nn.sparse.hierarchical import Hierarchical

DIM, HEADS = 8, 2


def replace_padding(x, noise):
    """x with other numbers behind the lengths 9 and 4."""
    other = x.clone()
    other[0, 9:], other[1, 4:] = noise, -noise
    return other


@pytest.mark.parametrize("given", [False, True], ids=["by block", "by ids"])
def test_padding_never_matters(given, generator):
    layer, lengths = Hierarchical(DIM, HEADS, 3), torch.tensor([9, 4])
    x = torch.randn(2, 11, DIM, generator=generator)
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]).expand(2, -1) if given else None
    y, other = (layer(tokens, lengths=lengths, ids=ids) for tokens in (x, replace_padding(x, 7.0)))
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(y[row, :length], other[row, :length])
    alone = layer(x[1:, :4], ids=None if ids is None else ids[1:, :4])
    assert torch.allclose(y[1:, :4], alone, atol=1e-6)


def written_out(layer, x, ids):
    """Hierarchical's formula for one row, block by block."""
    q, k, v = layer.within(x).chunk(3, -1)
    heads = [slice(h * layer.head_dim, (h + 1) * layer.head_dim) for h in range(layer.heads)]
    scale = layer.head_dim**-0.5
    tokens = torch.zeros_like(x)
    for i in range(len(x)):
        for at in heads:
            weights = (scale * k[ids == ids[i]][:, at] @ q[i, at]).softmax(0)
            tokens[i, at] = weights @ v[ids == ids[i]][:, at]
    pooled = torch.zeros(int(ids.max()) + 1, x.shape[1])
    for block in range(len(pooled)):
        mine, keys = tokens[ids == block], layer.pool_key(tokens[ids == block])
        for h, at in enumerate(heads):
            pooled[block, at] = (scale * keys[:, at] @ layer.seed[h]).softmax(0) @ mine[:, at]
    q, k, v = layer.across(pooled).chunk(3, -1)
    context = torch.cat([(scale * q[:, at] @ k[:, at].T).softmax(-1) @ v[:, at] for at in heads], -1)
    return layer.out(tokens + context[ids])


@pytest.mark.parametrize("ids", [[0, 0, 0, 1, 1, 1, 2], [1, 0, 0, 1, 2, 2, 2]])
def test_hierarchical_is_its_formula(ids, generator):
    layer = Hierarchical(DIM, HEADS, 3)
    x = torch.randn(7, DIM, generator=generator)
    ids = torch.tensor(ids)
    assert torch.allclose(layer(x[None], ids=ids[None])[0], written_out(layer, x, ids), atol=1e-6)
    if ids.tolist() == sorted(ids.tolist()):
        assert torch.equal(layer(x[None], ids=ids[None]), layer(x[None]))


def test_a_block_number_that_no_token_has_changes_nothing(generator):
    layer = Hierarchical(DIM, HEADS)
    x = torch.randn(1, 5, DIM, generator=generator)
    one, other = torch.tensor([[0, 0, 1, 1, 1]]), torch.tensor([[0, 0, 3, 3, 3]])
    assert torch.allclose(layer(x, ids=one), layer(x, ids=other), atol=1e-6)


def test_empty_rows_give_numbers_and_gradients(generator):
    layer = Hierarchical(DIM, HEADS, 2)
    x = torch.randn(2, 5, DIM, generator=generator, requires_grad=True)
    y = layer(x, lengths=torch.tensor([5, 0]))
    y.sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all() and x.grad[1].abs().sum() == 0
    assert layer(x.detach(), lengths=torch.tensor([0, 0])).isfinite().all()


def test_wrong_calls_are_refused():
    with pytest.raises(BadInput, match="5 heads"):
        Hierarchical(DIM, 5)
    with pytest.raises(BadInput, match=r"ids are torch.int64 \[2, 3\]"):
        Hierarchical(DIM, HEADS)(torch.zeros(2, 4, DIM), ids=torch.zeros(2, 3).long())
