"""Gradients beside a learned bias by pair from ds that is stored, with the parts that may go with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import regard as rg
from regard.attention.backends import triton as backend
from regard.attention.kernels.dot import pairs, passes
from regard.attention.kernels.dot.schedule import PassShapes
from regard.attention.kernels.launch import TileShape

from .test_dot import (  # noqa: F401, the fixtures are used by name
    DEVICE,
    agree,
    all_split,
    draw,
    empty_cache,
    numbers,
    problem_of,
    small_tiles,
)

SINGLE, HALF = torch.float32, torch.float16
SIZES = {"batch": 2, "heads": 4, "queries": 37, "keys": 48}
DOCUMENTS = torch.arange(48).div(20, rounding_mode="floor").expand(2, -1)
PARTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "causal": {"mask": rg.Causal()},
    "window": {"mask": rg.Window(7, 3)},
    "lengths": {"mask": rg.Lengths(torch.tensor([48, 19]))},
    "documents": {"mask": rg.Documents(DOCUMENTS), "queries": 48},
    "by head": {"mask": rg.Pairs(torch.rand(1, 4, 37, 48, generator=torch.Generator().manual_seed(0)) > 0.6)},
    "dropout": {"dropout": 0.3, "mask": rg.Causal()},
    "sink": {"sink": rg.Sink(numbers(4)), "mask": rg.Window(5)},
    "cap": {"score": rg.Dot(None, 1.5)},
    "negative scale": {"score": rg.Dot(-0.3)},
    "by distance": {"position": rg.Alibi()},
    "rotated": {"position": rg.Rotary()},
    "grouped heads": {"kv_heads": 2, "mask": rg.Causal()},
    "one key head": {"kv_heads": 1, "sink": rg.Sink(numbers(4))},
    "places": {"places": rg.Places(torch.arange(48), torch.arange(37) * 2), "mask": rg.Causal()},
    "odd": {"queries": 33, "keys": 45},
    "few keys": {"queries": 70, "keys": 3},
}
FRONTS = {"full": (2, 4), "one batch": (1, 4), "one head": (2, 1), "one": (1, 1)}


def case_of(parts: dict[str, Any], front: tuple[int, int], dtype: torch.dtype) -> Any:
    sizes = SIZES | {name: x for name, x in parts.items() if name in (*SIZES, "kv_heads")}
    others = {name: x for name, x in parts.items() if name not in sizes}
    bias = rg.PairBias(numbers(*front, sizes["queries"], sizes["keys"]))
    return replace(draw(head_dim=8, value_dim=8, dtype=dtype, **sizes), bias=bias, **others)


@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str) -> None:
    fronts = list(FRONTS.values())
    agree(case_of(PARTS[name], fronts[list(PARTS).index(name) % len(fronts)], HALF))


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(("name", "dtype"), [("alone", SINGLE), ("lengths", HALF), ("odd", HALF)])
def test_broadcasts(name: str, dtype: torch.dtype, front: str) -> None:
    agree(case_of(PARTS[name], FRONTS[front], dtype))


@pytest.mark.parametrize("front", FRONTS)
def test_the_gradient_of_a_bias_in_float32_is_not_rounded(monkeypatch: pytest.MonkeyPatch, front: str) -> None:
    """It is the same as where ds is computed once more for it."""
    p, _ = problem_of(case_of(PARTS["causal"], FRONTS[front], HALF))
    p = replace(p, pair_bias=p.pair_bias.float())  # type: ignore[union-attr]
    output, lse = backend.forward(p)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).half().to(DEVICE)
    stored = backend.backward(p, grad, output, lse)[7]
    monkeypatch.setattr(passes, "stores_ds", lambda *_: False)
    recomputed = backend.backward(p, grad, output, lse)[7]
    assert stored is not None and recomputed is not None and stored.dtype == torch.float32
    torch.testing.assert_close(stored, recomputed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("front", ["one batch", "one"])
@pytest.mark.parametrize("name", ["lengths", "grouped heads"])
@pytest.mark.parametrize("numbers_at_once", [1, 3, 4])
def test_chunks(monkeypatch: pytest.MonkeyPatch, numbers_at_once: int, name: str, front: str) -> None:
    """Scratch memory for some heads at once: whole slots, or some of the terms of one."""
    case = case_of(PARTS[name], FRONTS[front], HALF)
    monkeypatch.setattr(pairs, "SCRATCH", numbers_at_once * case.q.shape[2] * case.k.shape[2] * 2)
    agree(case)


@pytest.mark.parametrize("front", FRONTS)
def test_split_lists(all_split: None, front: str) -> None:  # noqa: F811
    agree(case_of(PARTS["window"], FRONTS[front], HALF))


@pytest.mark.parametrize("tile", [(32, 64), (64, 32), (64, 64)])
def test_tiles(monkeypatch: pytest.MonkeyPatch, tile: tuple[int, int]) -> None:
    """Tiles in which the order of keys and rows is another than in the smallest."""
    if DEVICE != "cpu":
        pytest.skip("the tiles are those of the GPU")
    shape = TileShape(*tile, 4, 1)
    table = {size: {64: shape} for size in (2, 4)}
    for module, name in ((passes, "FORWARD_PAIRS"), (pairs, "DKDV"), (pairs, "DQ")):
        monkeypatch.setattr(module, name, PassShapes(table, {}))
    agree(case_of({"queries": 130, "keys": 136, "mask": rg.Window(60, 9)}, (1, 4), HALF))


def test_layouts_of_the_bias() -> None:
    """Rows that are no whole vectors, keys that are not neighbours, one number for all, and a part of a larger bias."""
    case = case_of(PARTS["causal"], (2, 4), HALF)
    wide, across = numbers(2, 4, 41, 55), numbers(2, 4, 48, 37)
    for bias in (wide[:, :, 2:39, 3:51], wide[:, :, 2:39, :48], across.mT, numbers(1, 1, 37, 48).expand(2, 4, -1, -1)):
        agree(replace(case, bias=rg.PairBias(bias)))


def test_gradients_are_the_same_every_time() -> None:
    for front in FRONTS.values():
        p, _ = problem_of(case_of(PARTS["lengths"], front, HALF))
        output, lse = backend.forward(p)
        one, two = (backend.backward(p, torch.ones_like(output), output, lse) for _ in range(2))
        assert all(x is y is None or torch.equal(x, y) for x, y in zip(one, two, strict=True))  # type: ignore[arg-type]


def test_ds_is_stored_where_the_bias_alone_is_added() -> None:
    """And in memory that is bounded by the gradient's own, above a fixed size."""

    def stores(name: str, *sizes: int) -> bool:
        p, _ = problem_of(case_of(PARTS[name], FRONTS["one"], HALF))
        p = replace(p, pair_bias=torch.zeros(sizes)) if sizes else p
        inputs = passes.DotInputs(p)
        return inputs.pairs is not None and pairs.stores_ds(inputs.config, inputs.pairs)

    assert stores("alone") and stores("lengths") and stores("sink") and stores("dropout") and stores("rotated")
    assert not stores("cap") and not stores("by distance")
    assert not stores("alone", 1, 1, 1, 48) and not stores("alone", 1, 1, 37, 1)


def test_scratch_memory_is_bounded() -> None:
    p, _ = problem_of(case_of(PARTS["alone"], FRONTS["one"], HALF))
    config = passes.DotInputs(p).config
    gradient = pairs.PairGradient.of(config, p.pair_bias)  # type: ignore[arg-type]
    assert gradient.chunks(config) == [(0, 8)] and gradient.terms == 8
    grid = replace(config.grid, queries=1 << 15, keys=1 << 15)  # 2 GiB for each of eight, and for the gradient
    assert gradient._replace(keys=1 << 15).chunks(config._replace(grid=grid)) == [(x, x + 1) for x in range(8)]
