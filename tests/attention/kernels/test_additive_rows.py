"""The kernels of additive scores for few queries beside the reference in float64: the output and every gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from .test_additive import ACTIVATIONS, DEVICE, agree, draw  # isort: skip, it sets Triton's interpreter

import regard as rg
from regard.attention.backends import triton as backend
from regard.attention.call import lower, make_call
from regard.attention.kernels.additive import passes, rows


@pytest.fixture(autouse=True)
def only_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tiles."""
    monkeypatch.setattr(passes, "run_forward", None)
    monkeypatch.setattr(passes, "prepare", None)


@ACTIVATIONS
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 60, 40, 24), (5, 9, 17, 3), (2, 70, 66, 130), (19, 3, 8, 8)])
def test_every_shape(sizes: tuple[int, int, int, int], activation: str) -> None:
    queries, keys, head_dim, value_dim = sizes
    agree(draw(queries, keys, head_dim, value_dim, heads=1, batch=2, activation=activation))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@ACTIVATIONS
def test_heads_that_share_keys(activation: str, dtype: torch.dtype) -> None:
    agree(draw(3, 21, 12, 7, heads=4, kv_heads=2, activation=activation, dtype=dtype))


MASKS: dict[str, Any] = {
    "lengths": lambda: rg.Lengths(torch.tensor([37, 12])),
    "rows without keys": lambda: rg.Lengths(torch.tensor([0, 5])),
    "causal": rg.Causal,
    "window": lambda: rg.Window(2, 3),
    "for each head": lambda: rg.Pairs(torch.rand(2, 2, 4, 37, generator=torch.Generator().manual_seed(1)) < 0.4),
}


@pytest.mark.parametrize("name", MASKS)
def test_every_kind_of_mask(name: str) -> None:
    agree(draw(4, 37, batch=2, mask=MASKS[name]()))


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_inputs_of_any_magnitude(scale: float) -> None:
    agree(draw(3, 20, scale=scale))


def test_a_sink() -> None:
    agree(replace(draw(3, 20), sink=rg.Sink(torch.tensor([0.5, -1.0], dtype=torch.float64))))


def test_masked_keys_may_be_anything() -> None:
    case = draw(2, 20, batch=2)
    q, k, v = (x.to(DEVICE, torch.float32) for x in (case.q, case.k, case.v))
    score = rg.Additive(case.score.weight.to(DEVICE, torch.float32))
    mask = rg.Lengths(torch.tensor([7, 20], device=DEVICE))
    expected = backend.run(make_call(q, k, v, score=score, mask=mask))
    k[0, :, 7:], v[0, :, 7:] = torch.nan, torch.inf
    assert torch.equal(backend.run(make_call(q, k, v, score=score, mask=mask)), expected)


def test_many_queries_and_other_parts_take_tiles() -> None:
    def covered(queries: int, keys: int, value_dim: int, **parts: Any) -> bool:
        case = draw(queries, keys, value_dim=value_dim)
        return rows.covers(lower(make_call(case.q, case.k, case.v, score=case.score, **parts)))

    assert covered(1, 3000, 5) and covered(64, 60, 5) and covered(64, 3000, 300)
    assert not covered(64, 3000, 5) and not covered(65, 3, 5) and not covered(1, 3000, 5, dropout=0.5)
