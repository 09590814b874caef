"""Keys that no query may attend to are cut off before a call is planned."""

import math

import pytest
import torch

import regard as rg
from regard.attention.attend import cut_unseen_keys
from regard.attention.execution import CACHE

RELATIVE = [
    rg.Window(5),
    rg.Causal() & rg.Window(9, 9),
    rg.Window(3, 2) | rg.Dilated(2, 0, 3),
    rg.Dilated(3, 1, 2),
    rg.Causal() & rg.Dilated(2, 2, 4),
]
CHUNKED = [rg.Chunked(8), rg.Causal() & rg.Chunked(11), rg.Chunked(4) & rg.Window(9, 3), rg.Chunked(4) | rg.Chunked(6)]
OTHERS = [
    rg.Prefix(3) | rg.Window(2),
    rg.Causal() & rg.Tree((-1, 0)),
    rg.Causal() & rg.Global(1),
    ~rg.Window(3),
    rg.Window(3) & rg.Lengths(torch.tensor([20])),
]


@pytest.mark.parametrize("mask", RELATIVE, ids=repr)
@pytest.mark.parametrize("queries", [1, 2, 7])
def test_a_span_holds_every_allowed_key(mask, queries):
    keys = 40
    first, last = mask.key_span(keys - queries, keys - 1)
    seen = mask.dense(queries, keys).any(0).nonzero().flatten()
    assert first <= int(seen.min()) and int(seen.max()) <= last
    assert first == int(seen.min())  # and no more than that at its lower end


def test_masks_without_a_span_leave_all_keys():
    x = torch.randn(1, 1, 30, 4)
    for mask in OTHERS:
        assert mask.key_span(29, 29) is None
        assert cut_unseen_keys(x[:, :, :1], x, x, mask)[0] is x
    assert rg.Causal().key_span(3, 5) == (-math.inf, 5)
    assert cut_unseen_keys(x[:, :, :1], x, x, rg.Causal())[0] is x


@pytest.mark.parametrize("mask", [*RELATIVE, *CHUNKED], ids=repr)
@pytest.mark.parametrize(
    "position",
    [
        None,
        rg.Alibi(),
        rg.Rotary(),
        rg.Bias(torch.randn(4, 21, dtype=torch.float64), zero=10),
        rg.Shaw(torch.randn(4, 9, 8, dtype=torch.float64), 4),
    ],
    ids=lambda x: type(x).__name__,
)
def test_cutting_changes_neither_output_nor_gradients(mask, position):
    q = torch.randn(2, 4, 3, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 2, 50, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert cut_unseen_keys(q, k, v, mask)[0].shape[2] < 50
    parts = {"mask": mask, "position": position}
    whole = rg.attend(q, k, v, **parts, dropout=0.0, method=rg.Exact(), backend="reference")
    pairs = rg.Pairs(mask.dense(3, 50))  # the same mask, of which nothing is known
    expected = rg.attend(q, k, v, mask=pairs, position=position, backend="reference")
    torch.testing.assert_close(whole, expected)
    grads = [torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (whole, expected)]
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want)


def test_every_step_of_decoding_with_a_window_has_the_same_plan():
    CACHE.clear()
    mask = rg.Causal() & rg.Window(15)
    for keys in range(20, 40):
        k = torch.randn(1, 2, keys, 8)
        rg.attend(torch.randn(1, 2, 1, 8), k, k, mask=mask)
    (entry,) = CACHE.masks.values.values()
    assert len(entry.plans.values) == 1
    assert rg.plan(torch.randn(1, 2, 1, 8), k, k, mask=mask).backend == "sdpa"


def test_dropout_and_approximations_see_all_keys():
    q, k = torch.randn(1, 1, 2, 8), torch.randn(1, 1, 30, 8)
    generator = torch.Generator().manual_seed(0)
    with_all = rg.attend(q, k, k, mask=rg.Window(3), dropout=0.5, generator=generator, backend="blockwise")
    generator.manual_seed(0)
    pairs = rg.Pairs(rg.Window(3).dense(2, 30))
    expected = rg.attend(q, k, k, mask=pairs, dropout=0.5, generator=generator, backend="blockwise")
    torch.testing.assert_close(with_all, expected)  # dropout is a function of the key's position
