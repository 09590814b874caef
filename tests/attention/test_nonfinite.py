"""NaN and infinity in what a query may not attend to reach neither outputs nor gradients."""

from __future__ import annotations

import math

import pytest
import torch

import regard as rg

TOKENS, BAD = 20, 13
MASKS = {
    "causal": rg.Causal(),
    "window": rg.Window(3, 2),
    "lengths": rg.Lengths(torch.tensor([BAD, BAD])),
    "documents": rg.Documents((torch.arange(TOKENS) // 5).expand(2, -1).contiguous()),
    "pairs": rg.Pairs(torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(0)) > 0.3),
    "graph": rg.Edges(torch.randint(0, TOKENS, (2, 60), generator=torch.Generator().manual_seed(0))),
}
PARTS = {
    "plain": {},
    "rotary": {"position": rg.Rotary()},
    "alibi": {"position": rg.Alibi()},
    "additive": {"score": rg.Additive(torch.ones(2, 4))},
    "sink": {"sink": rg.Sink()},
}


def run(k, v, backend, options, hidden=None):
    g = torch.Generator().manual_seed(2)
    q = torch.randn(2, 2, TOKENS, 4, generator=g)
    tensors = [x.clone().requires_grad_() for x in (q, k, v)]
    output = rg.attend(*tensors, backend=backend, **options)
    weight = torch.randn(output.shape, generator=g)
    if hidden is not None:
        output = torch.where(hidden[..., None], output, 0.0)
    (output * weight).sum().backward()
    with torch.no_grad():
        inference = rg.attend(q, k, v, backend=backend, **options)
    return output.detach(), inference, [x.grad for x in tensors]


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "blockwise", "edges"])
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", MASKS)
def test_hidden_numbers_reach_nothing(name, parts, backend):
    mask, options = MASKS[name], {"mask": MASKS[name], **PARTS[parts]}
    g = torch.Generator().manual_seed(1)
    k, v = torch.randn(2, 1, TOKENS, 4, generator=g), torch.randn(2, 1, TOKENS, 4, generator=g)
    hidden = ~mask.dense(TOKENS, TOKENS)[..., BAD].expand(2, 2, TOKENS)
    try:
        output, inference, grads = run(k, v, backend, options, hidden)
    except rg.Unsupported:
        pytest.skip(f"{backend} does not run this call")
    for which, number in (("k", math.nan), ("v", math.inf), ("both", -math.inf)):
        bad_k, bad_v = k.clone(), v.clone()
        if which != "v":
            bad_k[:, :, BAD, 1] = number
        if which != "k":
            bad_v[:, :, BAD, 2] = number
        found, found_inference, found_grads = run(bad_k, bad_v, backend, options, hidden)
        assert torch.allclose(found, output, atol=1e-5)
        assert torch.allclose(found_inference[hidden], inference[hidden], atol=1e-5)
        others = torch.arange(TOKENS) != BAD
        for grad, expected in zip(found_grads, grads, strict=True):
            assert grad.isfinite().all()
            assert torch.allclose(grad[:, :, others], expected[:, :, others], atol=1e-4)


@pytest.mark.parametrize("trains", [False, True])
def test_rows_that_see_nan_have_it(trains):
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 1, TOKENS, 4, generator=g).requires_grad_(trains) for _ in range(3))
    with torch.no_grad():
        v[:, :, BAD, 2] = math.nan
    output = rg.attend(q, k, v, mask=rg.Causal())
    bad = output.isnan().any(-1).flatten()
    assert not bad[:BAD].any() and bad[BAD:].all()
    assert output[..., BAD:, 0].isfinite().all()  # only the component that is not a number


def test_padded_queries_reach_no_gradient():
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 1, TOKENS, 4, generator=g) for _ in range(3))
    q[:, :, BAD:] = k[:, :, BAD:] = v[:, :, BAD:] = math.nan
    tensors = [x.requires_grad_() for x in (q, k, v)]
    output = rg.attend(*tensors, mask=rg.Lengths(torch.tensor([BAD]), torch.tensor([BAD])))
    output.sum().backward()
    assert torch.equal(output[:, :, BAD:], torch.zeros(1, 1, TOKENS - BAD, 4))
    assert output.isfinite().all() and all(x.grad.isfinite().all() for x in tensors)


def test_large_numbers_are_no_reason_for_another_way():
    x = torch.full((1, 1, 4, 4), 3e37)
    output = rg.attend(torch.zeros_like(x), torch.zeros_like(x), x, mask=rg.Causal())
    assert output.isfinite().all()
