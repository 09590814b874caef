"""Positions at explicit places in the kernels of dot products, additive scores and decoding, beside the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import regard as rg
from regard.attention.backends import triton as backend
from regard.attention.call import lower, make_call
from regard.attention.kernels.decode import passes as decode
from regard.attention.kernels.dot import relative

from .test_dot import (  # noqa: F401, the fixtures are used by name
    SQUARE,
    agree,
    all_split,
    bias,
    disentangled,
    draw,
    empty_cache,
    numbers,
    others,
    problem_of,
    shaw,
    small_tiles,
    transformer_xl,
)

PACKED = rg.Places(torch.cat([torch.arange(22), torch.arange(18)]))
"""Two sequences in a row of 40, of which the queries are the last."""
DOCUMENTS = rg.Documents(torch.tensor([[0] * 22 + [1] * 18])) & rg.Causal()
LEFT_PADDED = rg.Places(torch.stack([torch.arange(40), torch.arange(-13, 27)]))
TREE = rg.Places(torch.cat([torch.arange(30), 30 + torch.tensor([0, 1, 1, 2, 2, 2, 2, 3, 3, 3])]))
FAR = rg.Places(torch.arange(40) * 1000, torch.arange(34) * 1000 - 5)
ANY = rg.Places(torch.randint(0, 50, (2, 40)), torch.randint(-9, 60, (1, 34)))
CASES: dict[str, tuple[rg.Places, rg.Mask, list[str]]] = {
    "packed": (PACKED, DOCUMENTS, ["slopes", "bias", "vectors", "vectors for both"]),
    "padded on the left": (LEFT_PADDED, rg.Causal(), ["buckets", "clamped vectors"]),
    "a tree": (TREE, rg.Causal(), ["bias", "one vector"]),
    "far apart": (FAR, rg.Everything(), ["one number", "clamped vectors"]),
    "in any order": (ANY, rg.Causal(), ["bias", "vectors", "vectors for both"]),
}
POSITIONS: dict[str, Any] = {
    "slopes": lambda heads: rg.Alibi(numbers(heads)),
    "bias": lambda heads: bias(9, 4, heads),
    "one number": lambda heads: bias(1, 0, heads),
    "buckets": lambda heads: rg.T5Bias(numbers(heads, 8), max_distance=20),
    "clamped vectors": lambda heads: shaw(5, 2, heads=heads),
    "vectors": lambda heads: transformer_xl(90, 40, heads=heads),
    "one vector": lambda heads: shaw(1, 0, heads=heads),
    "vectors for both": lambda heads: disentangled(16, 30, heads=heads),
}


@pytest.mark.parametrize(("places", "position"), [(name, x) for name, case in CASES.items() for x in case[2]])
def test_positions(places: str, position: str) -> None:
    at, mask, _ = CASES[places]
    batch = max(1, *(len(x) if x.dim() > 1 else 1 for x in at.tensors().values()))
    agree(draw(34, 40, batch=batch, heads=1, position=POSITIONS[position](1), mask=mask, places=at))


@pytest.mark.parametrize("position", ["bias", "vectors for both"])
def test_with_everything_else(position: str) -> None:
    parts = others(1, 2, 20, 40, cap=2.0, scale=-0.7)
    mask = rg.Pairs(torch.rand(2, 2, 20, 40) > 0.6)
    places = rg.Places(torch.stack([torch.arange(40) % 23, torch.arange(40)]))
    case = draw(20, 40, batch=2, kv_heads=1, position=POSITIONS[position](2), mask=mask, places=places, dropout=0.3)
    agree(replace(case, **parts))


def test_keys_alone_have_vectors() -> None:
    position = disentangled(8, None, "queries", heads=1)
    agree(draw(34, 40, heads=1, position=position, mask=rg.Window(30, 3), places=PACKED))


@pytest.mark.parametrize("position", ["bias", "vectors"])
def test_half_types(position: str) -> None:
    positions = {"bias": lambda: bias(9, 4), "vectors": lambda: transformer_xl(90, 40, 16)}
    case = draw(34, 40, 16, dtype=torch.float16, position=positions[position](), mask=rg.Causal(), places=PACKED)
    agree(replace(case, v=case.v + 4.0))


@pytest.mark.parametrize("tiles", [1, 7])
def test_vectors_in_chunks_and_split_lists(tiles: int, monkeypatch: pytest.MonkeyPatch, all_split: None) -> None:  # noqa: F811
    monkeypatch.setattr(relative, "SCRATCH", tiles * SQUARE.rows * SQUARE.columns * 4)
    places = rg.Places(torch.stack([torch.arange(40), torch.arange(40) % 25]))
    agree(draw(34, 40, batch=2, position=disentangled(12), mask=rg.Causal(), places=places))


@pytest.mark.parametrize(
    ("position", "queries"), [("slopes", 1), ("bias", 5), ("buckets", 1), ("clamped vectors", 5), ("vectors", 1)]
)
def test_decoding(position: str, queries: int) -> None:
    """Drafts of a tree after a cache, and places in any order that differ by batch row."""
    places = rg.Places(TREE.keys)
    case = draw(queries, 40, batch=2, kv_heads=1, position=POSITIONS[position](2), mask=rg.Causal(), places=places)
    assert decode.covers(problem_of(case)[0]) is None
    agree(case)
    agree(replace(case, places=rg.Places(ANY.keys), dropout=0.3))


@pytest.mark.parametrize("queries", [3, 34])
def test_fixed_slopes_need_no_table(queries: int) -> None:
    """Places may be further apart than any table could be long."""
    places = rg.Places(torch.arange(40) * 10_000_019)
    agree(draw(queries, 40, position=rg.Alibi(), mask=rg.Causal(), places=places))
    x = torch.randn(1, 2, 40, 4)
    p = lower(make_call(x, x, x, position=rg.Alibi(), places=places))
    assert p.rel_bias is not None and p.rel_bias.table.shape == (2, 1)


@pytest.mark.parametrize(
    ("activation", "position"), [("tanh", rg.Alibi()), ("leaky_relu", bias(9, 4, 1)), ("tanh", rg.Alibi(numbers(1)))]
)
def test_additive_scores(activation: str, position: rg.Position) -> None:
    score = rg.Additive(numbers(1, 5), activation, cap=3.0 if activation == "tanh" else None)
    agree(replace(draw(34, 40, heads=1, position=position, mask=DOCUMENTS, places=PACKED), score=score))
    agree(replace(draw(20, 40, batch=2, heads=1, position=position, places=rg.Places(ANY.keys)), score=score))


def test_new_places_of_the_same_shape() -> None:
    """What is kept for a kind of call does not hold its places."""
    x = torch.randn(1, 2, 40, 16)
    table = torch.randn(2, 9, 16)
    for places in (torch.arange(40), torch.arange(40) % 7):
        for position in (rg.Alibi(), rg.Bias(table[..., 0], 4), rg.Shaw(table, 4)):
            parts: dict[str, Any] = {"position": position, "mask": rg.Causal(), "places": rg.Places(places)}
            got, right = (rg.attend(x, x, x, **parts, backend=name) for name in ("triton", "reference"))
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)


def test_the_same_bits_every_time(all_split: None) -> None:  # noqa: F811
    for position in (bias(9, 4, 1), disentangled(16, 30, heads=1)):
        p, _ = problem_of(draw(34, 40, heads=1, position=position, mask=rg.Causal(), places=TREE))
        with torch.no_grad():
            output, lse = backend.forward(p)
            one, two = (backend.backward(p, torch.ones_like(output), output, lse) for _ in range(2))
        assert all(a is None or torch.equal(a, b) for a, b in zip(one, two, strict=True))  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("position", ["bias", "vectors", "vectors for both"])
def test_large(dtype: torch.dtype, position: str) -> None:
    parts = {
        "bias": lambda: bias(301, 150, 4),
        "vectors": lambda: transformer_xl(700, 350, 64, 4),
        "vectors for both": lambda: disentangled(64, 128, head_dim=64, heads=4),
    }
    packed = torch.cat([torch.arange(400), torch.arange(213)])
    mask = rg.Documents(torch.tensor([[0] * 400 + [1] * 213] * 2)) & rg.Causal()
    case = draw(517, 613, 64, 64, batch=2, heads=4, kv_heads=2, dtype=dtype, position=parts[position](), mask=mask)
    agree(replace(case, places=rg.Places(packed)))
    agree(replace(case, mask=rg.Causal(), places=rg.Places(torch.stack([packed, packed.flip(0)]))))
