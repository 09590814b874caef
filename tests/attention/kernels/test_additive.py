"""The kernels of additive scores beside the reference in float64: the output and every gradient.

Without a GPU they run in Triton's interpreter, in tiles small enough for it; with one, the same cases and larger ones
run on it in the tiles that users get.
"""

from __future__ import annotations

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
from regard.attention.backends import triton as backend
from regard.attention.call import LoweredCall, lower, make_call
from regard.attention.kernels.additive import passes as additive
from regard.attention.kernels.additive import rows
from regard.attention.kernels.additive.passes import AdditiveShapes, ThreadPatch, TileRange

from ..oracle import (
    Case,
    assert_same_results,
    cancellation_sizes,
    make_leaves,
    poison_memory,
    random_gradient,
    reference_errors,
    results,
    round_case,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = AdditiveShapes(*[ThreadPatch(2, 4, 8, 8, 1)] * 3, ThreadPatch(4, 2, 4, 16, 1))
ACTIVATIONS = pytest.mark.parametrize("activation", ["tanh", "leaky_relu"])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles for few queries, too; of 16 × 32 in the interpreter, so that short sequences have several."""
    monkeypatch.setattr(rows, "few_additive_queries", lambda *sizes: False)
    if DEVICE == "cpu":
        monkeypatch.setattr(additive, "SHAPES", {2: SMALL, 4: SMALL})


def draw(
    queries: int = 21,
    keys: int = 37,
    head_dim: int = 5,
    value_dim: int = 7,
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int | None = None,
    activation: str = "tanh",
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
    **rest: Any,
) -> Case:
    """A case of these sizes; `scale` is the size of q's and k's numbers."""
    kv_heads = heads if kv_heads is None else kv_heads
    normal = lambda *sizes: torch.randn(*sizes, dtype=torch.float64)  # noqa: E731
    q, k = scale * normal(batch, heads, queries, head_dim), scale * normal(batch, kv_heads, keys, head_dim)
    score = rg.Additive(normal(heads, head_dim), activation, slope=0.3)
    return Case(q, k, normal(batch, kv_heads, keys, value_dim), score, dtype=dtype, **rest)


def agree(case: Case) -> None:
    """Assert the oracle's rule: an error of at most twice the reference's own, and what no one can avoid."""
    rounded = round_case(case)
    truth = results(rounded, "reference", torch.float64, torch.float64)
    with poison_memory():
        actual = on_device(rounded, case.dtype, case.carried or case.dtype)
    errors, sizes = reference_errors(case, truth), cancellation_sizes(rounded)
    assert_same_results(f"additive kernels: {case}", actual, truth, errors, sizes)


def on_device(case: Case, dtype: torch.dtype, carried: torch.dtype) -> dict[str, Tensor]:
    """The kernels' output and the gradient of every tensor that went in, by name."""
    leaves, parts = make_leaves(case, dtype, carried)
    q, k, v = (leaves[name].to(DEVICE) for name in "qkv")
    moved = {
        kind: replace(part, **{n: x.to(DEVICE) for n, x in part.tensors().items()}) for kind, part in parts.items()
    }
    mask = None if case.mask is None else case.mask.to(DEVICE)
    generator = torch.Generator().manual_seed(case.seed)
    call = make_call(q, k, v, **moved, mask=mask, dropout=case.dropout, generator=generator)
    assert backend.unsupported_reason(call) is None
    output = backend.run(call).cpu()
    assert output.dtype == dtype
    output.backward(random_gradient(output, dtype, case.seed))
    return {"output": output.detach(), **{f"gradient of {name}": x.grad for name, x in leaves.items()}}  # type: ignore[dict-item]


def problem(case: Case) -> LoweredCall:
    """The case as kernels see it."""
    q, k, v = (x.to(case.dtype).to(DEVICE) for x in (case.q, case.k, case.v))
    score = replace(case.score, weight=case.score.weight.to(case.dtype).to(DEVICE))  # type: ignore[attr-defined]
    return lower(make_call(q, k, v, score=score, mask=case.mask))


def test_backward_has_the_weights_of_forward() -> None:
    """With one unit for each query flowing back, dv is the weights, and those of a row sum to one."""
    p = problem(draw(16, 40, 256, 16, heads=1, scale=0.5))
    output, lse = additive.forward(p)
    dv = additive.backward(p, torch.eye(16, device=DEVICE)[None, None], output, lse)[2]
    assert dv is not None
    assert (dv.sum(2) - 1).abs().max() <= 3 * torch.finfo(torch.float32).eps * lse.abs().max()


def test_values_of_many_dims_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of forward owns some of the value dims; the last has fewer."""
    monkeypatch.setattr(additive, "VALUES", 16)
    agree(draw(value_dim=37, heads=2, kv_heads=1, mask=rg.Causal(), dropout=0.2))


@pytest.mark.parametrize(("dim", "runs"), [(512, True), (1024, True), (1025, False)])
def test_wide_heads_have_kernels(dim: int, runs: bool) -> None:
    x = torch.zeros(1, 1, 2, dim, device=DEVICE)
    why = backend.unsupported_head_dim(make_call(x, x, x, score=rg.Additive(torch.zeros(1, dim, device=DEVICE))))
    assert why is None if runs else "1025" in str(why)


def test_few_keys_have_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    large = AdditiveShapes(*[ThreadPatch(2, 8, 8, 8, 1)] * 3, ThreadPatch(4, 4, 4, 16, 1))
    monkeypatch.setattr(additive, "SHAPES", {2: large, 4: SMALL})
    half = problem(draw(9, 32, dtype=torch.float16))
    assert additive.choose_shapes(half) == SMALL
    assert additive.choose_shapes(problem(draw(9, 33, dtype=torch.float16))) == large
    agree(draw(9, 32, dtype=torch.float16))


@ACTIVATIONS
@pytest.mark.parametrize("head_dim", [1, 3, 20])
def test_every_head_dim(head_dim: int, activation: str) -> None:
    agree(draw(head_dim=head_dim, activation=activation))


@pytest.mark.parametrize("sizes", [(1, 40), (40, 1), (16, 32), (35, 20)], ids=str)
def test_every_shape(sizes: tuple[int, int]) -> None:
    agree(draw(*sizes, value_dim=17, mask=rg.Causal()))


MASKS = {
    "window": rg.Window(6, 3),
    "lengths": rg.Lengths(torch.tensor([5, 30]), torch.tensor([21, 0])),
    "a head's own": rg.Pairs(torch.rand(1, 4, 21, 37, generator=torch.Generator().manual_seed(5)) > 0.6),
    "both": rg.Pairs(torch.rand(2, 4, 21, 37, generator=torch.Generator().manual_seed(6)) > 0.6),
    "nothing": rg.Causal() & ~rg.Causal(),
    "blocks": rg.Global(2) | rg.Window(3),
}


@pytest.mark.parametrize("name", MASKS)
def test_every_kind_of_mask(name: str) -> None:
    agree(draw(batch=2, heads=4, kv_heads=2, head_dim=2, mask=MASKS[name]))


@pytest.mark.parametrize(("entries", "zero"), [(9, 4), (9, 60), (9, -60), (90, 45)])
def test_distance_bias(entries: int, zero: int) -> None:
    table = torch.randn(2, entries, dtype=torch.float64)
    agree(draw(batch=2, head_dim=2, position=rg.Bias(table, zero=zero), mask=rg.Window(25, 25)))


@ACTIVATIONS
@pytest.mark.parametrize("dropout", [0.3, 1.0])
def test_dropout(dropout: float, activation: str) -> None:
    agree(draw(batch=2, heads=2, kv_heads=1, head_dim=2, activation=activation, dropout=dropout, mask=rg.Causal()))


@pytest.mark.parametrize("layout", ["by token", "by feature"])
def test_every_layout_in_memory(layout: str) -> None:
    agree(draw(layout=layout, heads=4, kv_heads=2, head_dim=3))


@pytest.mark.parametrize("scale", [1e-4, 4.0, 15.0, 60.0])
def test_inputs_of_any_magnitude(scale: float) -> None:
    agree(draw(scale=scale))


def test_saturated_scores_that_cancel() -> None:
    """q + k is moderate although neither has room in an exponential; only tiles that hold such take the long way."""
    case = draw(40, 70, heads=1, head_dim=3)
    far = torch.where(torch.arange(40) < 16, 0.0, 90.0)[:, None]
    q, k = case.q + far, case.k - torch.where(torch.arange(70) < 32, 0.0, 90.0)[:, None]
    agree(replace(case, q=q, k=k))
    agree(replace(case, q=-q, k=-k))


@ACTIVATIONS
def test_half_precision(activation: str) -> None:
    agree(draw(dtype=torch.float16, activation=activation))
    agree(draw(dtype=torch.float16, carried=torch.float32, activation=activation, layout="by token", head_dim=8))


@pytest.mark.parametrize("room", [1, 2, 5])
def test_work_in_ranges(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch for a few tiles only: copies of lists, and lists themselves, are cut."""
    shape = additive.SHAPES[4].ds
    monkeypatch.setattr(additive, "SCRATCH", room * shape.rows * shape.columns * 8)
    position = rg.Bias(torch.randn(1, 9, dtype=torch.float64), zero=4)
    agree(draw(20, 70, head_dim=2, batch=2, heads=1, mask=rg.Causal(), position=position))
    agree(draw(20, 70, head_dim=2, batch=2, heads=1, mask=rg.Lengths(torch.tensor([70, 33]))))


def test_ranges_hold_every_tile_once() -> None:
    for copies, n, room in ((3, 5, 100), (3, 5, 7), (7, 5, 10), (2, 11, 4), (4, 0, 9), (1, 1, 1)):
        parts = list(additive.make_ranges(copies, n, room))
        seen = [
            (c, e)
            for part in parts
            for c in range(part.instance, part.instance + part.instances)
            for e in range(*part[2:])
        ]
        assert sorted(seen) == [(c, e) for c in range(copies) for e in range(n)]
        assert all(
            isinstance(part, TileRange) and part.instances * (part.last - part.first) <= max(room, 1) for part in parts
        )


def test_rows_without_keys() -> None:
    p = problem(draw(mask=rg.Pairs(torch.arange(21)[:, None].expand(21, 37) % 3 > 0).to(DEVICE)))
    output, lse = additive.forward(p)
    assert bool((lse[:, :, ::3] == -torch.inf).all()) and bool((output[:, :, ::3] == 0).all())
    dq = additive.backward(p, torch.ones_like(output), output, lse)[0]
    assert bool((dq[:, :, ::3] == 0).all()) and bool(dq.isfinite().all())  # type: ignore[index, union-attr]


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_empty_inputs(sizes: tuple[int, int]) -> None:
    p = problem(draw(*sizes))
    output, lse = additive.forward(p)
    actual = additive.backward(p, output, output, lse)
    assert bool((output == 0).all()) and bool((lse == -torch.inf).all())
    assert [None if x is None else x.shape for x in actual] == [
        p.q.shape,
        p.k.shape,
        p.v.shape,
        p.weight.shape,
        None,
        None,
        None,
        None,
    ]  # type: ignore[union-attr]


def test_the_log_sum_exp_is_that_of_the_scores() -> None:
    for activation in ("tanh", "leaky_relu"):
        case = draw(activation=activation)
        truth = case.score.similarity(case.q, case.k).logsumexp(-1)
        torch.testing.assert_close(additive.forward(problem(case))[1].cpu().double(), truth, rtol=1e-5, atol=1e-5)


def test_the_same_bits_each_time() -> None:
    p = problem(draw(40, 70, heads=2, kv_heads=1, head_dim=2))
    output, lse = additive.forward(p)
    first, second = (additive.backward(p, torch.ones_like(output), output, lse) for _ in range(2))
    assert torch.equal(output, additive.forward(p)[0])
    assert all(x is y or torch.equal(x, y) for x, y in zip(first, second, strict=True))  # type: ignore[arg-type]


SIZES = [(1, torch.bfloat16), (33, torch.bfloat16), (128, torch.bfloat16), (256, torch.bfloat16)]
SIZES += [(64, dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32)] + [(256, torch.float32)]


@pytest.mark.gpu
@ACTIVATIONS
@pytest.mark.parametrize(("head_dim", "dtype"), SIZES, ids=str)
def test_tiles_that_users_get(head_dim: int, dtype: torch.dtype, activation: str) -> None:
    rest: dict[str, Any] = dict(activation=activation, dtype=dtype, scale=2.0 if head_dim < 64 else 0.5)
    agree(draw(150, 290, head_dim, head_dim, mask=rg.Causal(), **rest))
    agree(draw(200, 131, head_dim, 40, kv_heads=1, dropout=0.2, layout="by token", **rest))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_mask_in_tiles_that_users_get(dtype: torch.dtype) -> None:
    pairs = rg.Pairs(torch.rand(2, 2, 300, 411, generator=torch.Generator().manual_seed(0)) > 0.9)
    for mask in (rg.Window(40, 9), rg.Lengths(torch.tensor([400, 77])), rg.Global(3) | rg.Window(20), pairs):
        position = rg.Bias(torch.randn(2, 77, dtype=torch.float64), zero=30)
        agree(draw(300, 411, 32, 48, batch=2, mask=mask, position=position, dtype=dtype))
    agree(draw(300, 411, 32, 48, scale=8.0, dtype=dtype))


OTHERS: dict[str, dict[str, Any]] = {
    "cap": {"cap": 0.5, "position": rg.Bias(torch.randn(2, 9, dtype=torch.float64), 4), "mask": rg.Causal()},
    "cap and pairs": {"cap": 1.0, "pairs": (1, 2, 21, 37), "mask": rg.Lengths(torch.tensor([0, 23]))},
    "keys alone": {"pairs": (1, 37), "mask": rg.Window(9, 3)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_caps_sinks_and_biases_by_pair(name: str) -> None:
    given = dict(OTHERS[name])
    cap, pairs = given.pop("cap", None), given.pop("pairs", None)
    bias = None if pairs is None else rg.PairBias(torch.randn(pairs, dtype=torch.float64))
    case = draw(
        batch=2 if name == "cap and pairs" else 1,
        kv_heads=1,
        activation="leaky_relu" if bias is None else "tanh",
        **given,
    )
    sink = rg.Sink(torch.randn(2, dtype=torch.float64))
    agree(replace(case, score=replace(case.score, cap=cap), sink=sink, bias=bias))
