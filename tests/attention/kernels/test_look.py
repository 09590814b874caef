"""The kernels that look, beside the formula in float64: every statistic, for every score, position and kind of mask."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton")

import regard as rg
from regard.attention.backends import reference
from regard.attention.call import lower, make_call
from regard.attention.kernels.launch import TileShape
from regard.attention.kernels.look import passes
from regard.attention.look import LookOptions, bucket_index, bucket_sizes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ["lse", "entropy", "distance", "peak", "received", "top_weights", "top_keys", "map", "weights"]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles small enough for the interpreter, and for sizes that no tile divides."""
    if DEVICE == "cpu":
        small = {size: {256: TileShape(32, 32, 4, 1)} for size in (2, 4)}
        for name in ("ROWS", "COLUMNS", "TOP", "RELATIVE", "ADDITIVE"):
            monkeypatch.setattr(passes, name, small)


def draw(*size: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*size) * scale).to(dtype).to(DEVICE)


def look(q, k, options: LookOptions, **parts):
    """The kernels' statistics, the true weights and their log-sum-exp."""
    call = make_call(q, k, k, **parts)
    problem = lower(call)
    assert passes.covers(problem, options) is None
    exact = make_call(q.double(), k.double(), k.double(), **to_double(parts))
    score = reference.scores(exact)
    lse = score.logsumexp(-1)
    if exact.sink is not None:
        lse = torch.logaddexp(lse, exact.sink.head_logits(exact.q)[:, None])
    return passes.statistics(problem, options), reference.softmax(score, exact.sink), lse


def to_double(parts: dict) -> dict:
    from dataclasses import replace

    cast = lambda part: replace(part, **{n: t.double() for n, t in part.tensors().items()})  # noqa: E731
    return {name: cast(part) if name != "mask" and part is not None else part for name, part in parts.items()}


def agree(q, k, options: LookOptions, tolerance: float = 2e-5, **parts) -> None:
    """Assert that every statistic is that of the true weights."""
    actual, p, lse = look(q, k, options, **parts)
    assert set(actual) == set(NAMES)
    queries, keys = p.shape[-2:]
    i = torch.arange(queries, device=p.device)[:, None] + keys - queries
    distance = (i - torch.arange(keys, device=p.device)).abs()
    want = {
        "lse": lse,
        "entropy": -(p * p.clamp(min=1e-300).log()).sum(-1),
        "distance": (p * distance).sum(-1),
        "peak": p.amax(-1),
        "received": p.sum(2),
    }
    if options.map:
        rows, columns = (
            torch.nn.functional.one_hot(bucket_index(n, c, p.device), c).double()
            for n, c in zip((queries, keys), options.map, strict=True)
        )
        want["map"] = (rows.mT @ p @ columns) / bucket_sizes(queries, options.map[0], p.device).clamp(min=1)[:, None]
    if options.weights:
        want["weights"] = p
    for name, value in want.items():
        assert actual[name].shape == value.shape, name
        assert not actual[name].isnan().any(), name
        finite = value.isfinite()
        assert torch.equal(actual[name].isfinite(), finite), name
        off = (actual[name][finite].double() - value[finite]).abs() / (1 + value[finite].abs())
        assert off.numel() == 0 or off.max() <= tolerance, f"{name} is off by {off.max():.3g}"
    for name in ("map", "weights", "top_weights", "top_keys"):
        assert (actual[name] is None) == (name not in want and not (name.startswith("top") and options.top)), name
    if options.top:
        tops_agree(actual, p, options.top, tolerance)


def tops_agree(actual: dict, p: torch.Tensor, top: int, tolerance: float) -> None:
    count = min(top, p.shape[-1])
    want = torch.zeros(*p.shape[:-1], top, dtype=p.dtype, device=p.device)
    want[..., :count] = p.topk(count).values
    weights, keys = actual["top_weights"], actual["top_keys"]
    assert keys.dtype == torch.int64
    assert (weights.double() - want).abs().max() <= tolerance
    assert torch.equal(keys == -1, weights == 0)
    assert bool((weights[keys == -1] == 0).all())
    chosen = p.gather(-1, keys.clamp(min=0)).masked_fill(keys < 0, 0.0)
    assert (chosen - weights.double()).abs().max() <= tolerance
    for row in keys.flatten(0, -2):
        real = row[row >= 0]
        assert len(real.unique()) == len(real)


MASKS = {
    "everything": lambda: None,
    "causal": rg.Causal,
    "window": lambda: rg.Window(9, 4),
    "sparse": lambda: rg.Window(3) | rg.Global(2),
    "dead rows": lambda: rg.Window(5) & ~rg.Global(6),
    "lengths": lambda: rg.Lengths(torch.tensor([40, 0], device=DEVICE)),
    "a head each": lambda: rg.Pairs(torch.rand(1, 2, 37, 50, device=DEVICE) > 0.5),
}


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask(mask: str) -> None:
    q, k = draw(2, 2, 37, 20), draw(2, 1, 50, 20)
    agree(q, k, LookOptions(True, 5, (7, 9)), mask=MASKS[mask]())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (64, 64), (3, 2), (2, 4), (13, 17), (40, 31)])
def test_every_size_of_the_map(size: tuple[int, int], causal: bool) -> None:
    q, k = draw(1, 1, 64, 16), draw(1, 1, 64, 16)
    agree(q, k, LookOptions(False, 0, size), mask=rg.Causal() if causal else None)


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_a_cap_and_a_sink(score: str) -> None:
    q, k = draw(1, 2, 37, 20), draw(1, 1, 50, 20)
    parts = {"position": rg.Alibi(), "sink": rg.Sink(draw(2)), "mask": MASKS["dead rows"]()}
    scored = rg.Dot(cap=1.5) if score == "dot" else rg.Additive(draw(2, 20), cap=0.5)
    agree(q, k, LookOptions(True, 2, (3, 2)), score=scored, **parts)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 70), (53, 1), (37, 71), (71, 37)])
def test_odd_sizes(sizes: tuple[int, int]) -> None:
    queries, keys = sizes
    q, k = draw(1, 1, queries, 19), draw(1, 1, keys, 19)
    agree(q, k, LookOptions(True, 3, (1, 1)), mask=rg.Window(20, 20))


POSITIONS = {
    "alibi": lambda: rg.Alibi(),
    "bias": lambda: rg.Bias(draw(2, 31), zero=12),
    "shaw": lambda: rg.Shaw(draw(2, 21, 24), zero=10),
    "transformer-xl": lambda: rg.TransformerXL(draw(2, 100, 24), draw(2, 24), draw(2, 24), zero=20),
    "rotary": lambda: rg.Rotary(),
}


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_every_position(position: str, causal: bool) -> None:
    q, k = draw(1, 2, 37, 24), draw(1, 1, 50, 24)
    agree(q, k, LookOptions(True, 4, (5, 6)), position=POSITIONS[position](), mask=rg.Causal() if causal else None)


SCORES = {
    "negative": lambda: rg.Dot(scale=-0.7),
    "nothing": lambda: rg.Dot(scale=0.0),
    "tiny": lambda: rg.Dot(scale=1e-9),
    "large": lambda: rg.Dot(scale=30.0),
    "cosine": lambda: rg.Cosine(7.0),
    "tanh": lambda: rg.Additive(draw(1, 12)),
    "leaky": lambda: rg.Additive(draw(1, 12), activation="leaky_relu", slope=0.3),
}


@pytest.mark.parametrize("score", SCORES)
def test_every_score(score: str) -> None:
    q, k = draw(1, 1, 37, 12), draw(1, 1, 50, 12)
    agree(
        q, k, LookOptions(True, 4, (5, 6)), score=SCORES[score](), position=rg.Alibi(), mask=rg.Causal(), tolerance=5e-5
    )
    agree(q, k, LookOptions(True, 4, (5, 6)), score=SCORES[score](), mask=rg.Causal(), tolerance=5e-5)


def test_saturated_additive() -> None:
    q, k = draw(1, 1, 20, 8, scale=60.0), draw(1, 1, 20, 8, scale=60.0)
    agree(q, k, LookOptions(False, 2, None), score=rg.Additive(draw(1, 8)))


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
def test_half_types(dtype: torch.dtype) -> None:
    q, k = draw(1, 1, 70, 64, dtype=dtype), draw(1, 1, 70, 64, dtype=dtype)
    agree(q, k, LookOptions(True, 8, (7, 7)), mask=rg.Causal())


def test_strides_of_modules() -> None:
    q, k = (draw(1, 40, 2, 32).transpose(1, 2) for _ in range(2))
    agree(q, k, LookOptions(True, 2, (4, 4)))
    q, k = draw(1, 2, 40, 33)[..., 1:], draw(1, 2, 32, 40).mT
    agree(q, k, LookOptions(True, 2, (4, 4)))


def test_ties_go_to_the_lowest_key() -> None:
    q, k = torch.zeros(1, 1, 5, 16, device=DEVICE), draw(1, 1, 70, 16)
    actual, _, _ = look(q, k, LookOptions(False, 6, None))
    assert actual["top_keys"].tolist() == [[[list(range(6))] * 5]]
    assert torch.allclose(actual["top_weights"], torch.tensor(1 / 70, device=DEVICE))


@pytest.mark.parametrize("top", [1, 2, 7, 32])
def test_largest_in_any_order(top: int) -> None:
    """Scores that rise, fall, or stand all in one tile."""
    d = 16
    q = torch.ones(1, 3, 4, d, device=DEVICE)
    line = torch.arange(70.0, device=DEVICE) / 10
    peaked = torch.where((line * 10 >= 40) & (line * 10 < 60), line, -line)
    k = torch.stack([line, -line, peaked])[None, :, :, None].expand(1, 3, 70, d).contiguous() / d
    agree(q, k, LookOptions(False, top, None), score=rg.Dot(scale=1.0))


def test_table_of_minus_infinity() -> None:
    table = torch.zeros(2, 9, device=DEVICE)
    table[:, 5:] = -torch.inf
    q, k = draw(1, 2, 40, 16), draw(1, 2, 40, 16)
    actual, p, _ = look(q, k, LookOptions(True, 3, (4, 4)), position=rg.Bias(table, zero=4))
    assert not any(x.isnan().any() for x in actual.values())
    assert (actual["weights"].double() - p).abs().max() < 1e-5


def test_same_bits_twice() -> None:
    q, k = draw(1, 1, 70, 32), draw(1, 1, 70, 32)
    first, second = (look(q, k, LookOptions(True, 4, (5, 7)), mask=rg.Causal())[0] for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in NAMES)


def test_covers_gives_a_reason() -> None:
    q = draw(1, 1, 4, 16)
    problem = lower(make_call(q.double(), q.double(), q.double()))
    assert "float64" in passes.covers(problem, LookOptions(False, 0, None))
    problem = lower(make_call(q, q, q))
    assert "32" in passes.covers(problem, LookOptions(False, 33, None))
    assert "map" in passes.covers(problem, LookOptions(False, 0, (5, 4)))
    wide = draw(1, 1, 4, 300)
    assert "head_dim" in passes.covers(lower(make_call(wide, wide, wide)), LookOptions(False, 0, None))


@pytest.mark.gpu
def test_a_hundred_thousand_tokens() -> None:
    q, k = draw(1, 1, 131072, 64, dtype=torch.bfloat16), draw(1, 1, 131072, 64, dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    view = rg.look(q, k, top=8, map=256, mask=rg.Causal())
    assert torch.cuda.max_memory_allocated() - before < 1 << 30
    assert torch.allclose(view.map.sum(-1), torch.ones_like(view.map[..., 0]), atol=1e-3)
    assert torch.allclose(
        view.received.double().sum(), torch.tensor(131072.0, dtype=torch.float64, device="cuda"), rtol=1e-4
    )
