"""NaN and infinity in what a query may not attend to reach neither outputs nor gradients of the dot kernels."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

import regard as rg
from regard.attention.execution import CACHE
from regard.attention.kernels.dot import passes
from regard.attention.kernels.dot.schedule import PassShapes
from regard.attention.kernels.launch import TileShape

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS, BAD, DIM = 40, 21, 8


def normal(seed: int, *sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


PARTS: dict[str, tuple[rg.Mask, dict[str, Any]]] = {
    "causal": (rg.Causal(), {}),
    "window, cap and sink": (rg.Window(9, 1), {"score": rg.Dot(cap=2.0), "sink": rg.Sink(normal(0, 2))}),
    "padding, learned bias": (rg.Lengths(torch.tensor([BAD, BAD])), {"position": rg.Bias(normal(0, 2, 30), 10)}),
    "documents, bias by pair": (
        rg.Documents((torch.arange(TOKENS) // 9).expand(2, -1).contiguous()),
        {"bias": rg.PairBias(normal(0, 1, 2, TOKENS, TOKENS))},
    ),
    "causal, Transformer-XL": (
        rg.Causal(),
        {"position": rg.TransformerXL(normal(0, 2, 90, DIM), normal(1, 2, DIM), normal(2, 2, DIM), 45)},
    ),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles small enough for the interpreter, several of each list; a GPU gets those of users."""
    CACHE.clear()
    if DEVICE == "cpu":
        sizes = {4: dict.fromkeys((64, 128, 256), TileShape(16, 32, 4, 1))}
        square = {4: dict.fromkeys((64, 128, 256), TileShape(32, 32, 4, 1))}
        for name in ("FORWARD", "DQ", "DKDV"):
            monkeypatch.setattr(passes, name, PassShapes(sizes, square))
        monkeypatch.setattr(passes, "D_REL_BIAS", PassShapes(square, {}))


def run(
    k: Tensor, v: Tensor, mask: rg.Mask, parts: dict[str, Any], hidden: Tensor, bad_q: int | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and the gradients of what the queries in `hidden` have."""
    q = normal(3, 2, 2, TOKENS, DIM)
    if bad_q is not None:
        q[:, :, bad_q:] = math.nan
    leaves = {name: x.clone().to(DEVICE).requires_grad_() for name, x in (("q", q), ("k", k), ("v", v))}
    given = {}
    for kind, part in parts.items():
        own = {name: x.clone().to(DEVICE).requires_grad_() for name, x in part.tensors().items()}
        leaves |= {f"{kind}.{name}": x for name, x in own.items()}
        given[kind] = replace(part, **own)
    output = rg.attend(leaves["q"], leaves["k"], leaves["v"], mask=mask.to(DEVICE), backend="triton", **given)
    flow = normal(4, *output.shape).to(DEVICE)
    (torch.where(hidden[..., None].to(DEVICE), output, 0.0) * flow).sum().backward()
    return output.detach().cpu(), {name: x.grad.cpu() for name, x in leaves.items() if x.grad is not None}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_hidden_numbers_reach_nothing(name: str) -> None:
    mask, parts = PARTS[name]
    k, v = normal(5, 2, 1, TOKENS, DIM), normal(6, 2, 1, TOKENS, DIM)
    hidden = ~mask.dense(TOKENS, TOKENS)[..., BAD].expand(2, 2, TOKENS)
    output, grads = run(k, v, mask, parts, hidden)
    k[:, :, BAD, 1], v[:, :, BAD, 2] = math.nan, math.inf
    found, found_grads = run(k, v, mask, parts, hidden)
    assert torch.allclose(found[hidden], output[hidden], atol=1e-5)
    assert found[~hidden].isnan().all()
    others = torch.arange(TOKENS) != BAD
    assert found_grads.keys() == grads.keys()
    for leaf, grad in found_grads.items():
        expected = grads[leaf]
        assert grad.isfinite().all(), leaf
        grad, expected = (x[:, :, others] if leaf in "kv" else x for x in (grad, expected))
        assert torch.allclose(grad, expected, atol=1e-4, rtol=1e-4), leaf


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_padded_batch_reaches_no_gradient() -> None:
    mask = rg.Lengths(torch.tensor([BAD, BAD]), torch.tensor([BAD, BAD]))
    k, v = normal(5, 2, 1, TOKENS, DIM), normal(6, 2, 1, TOKENS, DIM)
    hidden = torch.ones(2, 2, TOKENS, dtype=torch.bool)
    output, grads = run(k, v, mask, {}, hidden)
    k[:, :, BAD:] = v[:, :, BAD:] = math.nan
    found, found_grads = run(k, v, mask, {}, hidden, bad_q=BAD)
    assert torch.equal(found[:, :, BAD:], torch.zeros(2, 2, TOKENS - BAD, DIM))
    assert torch.allclose(found, output, atol=1e-5)
    for leaf, grad in found_grads.items():
        assert grad.isfinite().all() and torch.allclose(grad, grads[leaf], atol=1e-4), leaf


def test_overflow_in_what_flows_back_stays() -> None:
    k, v = normal(5, 2, 1, TOKENS, DIM), normal(6, 2, 1, TOKENS, DIM)
    tensors = [x.to(DEVICE).requires_grad_() for x in (normal(3, 2, 2, TOKENS, DIM), k, v)]
    output = rg.attend(*tensors, mask=rg.Causal(), backend="triton")
    flow = torch.ones_like(output)
    flow[:, :, 5, 0] = math.inf
    output.backward(flow)
    assert all(not x.grad.isfinite().all() for x in tensors if x.grad is not None)
