"""The kernels of the dot family beside the reference in float64: the output and every gradient.

Without a GPU they run in Triton's interpreter, in tiles small enough for it; with one, the same cases and larger ones
run on it in the tiles that users get.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
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
from regard.attention.execution import CACHE, new_plan
from regard.attention.kernels.dot import pairs, passes, placed, relative, schedule
from regard.attention.kernels.dot.schedule import PassShapes
from regard.attention.kernels.launch import PairLayout, TileShape
from regard.attention.kernels.tile_lists import tile_lists
from regard.attention.parts.mask import PairGrid

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
FLAT, SQUARE = TileShape(16, 32, 4, 1), TileShape(32, 32, 4, 1)


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    """Cached schedules were made for tiles of other sizes."""
    CACHE.clear()
    yield
    CACHE.clear()


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tiles in the interpreter, so that short sequences have several."""
    if DEVICE == "cpu":
        flat, square = ({size: dict.fromkeys((64, 128, 256), shape) for size in (2, 4)} for shape in (FLAT, SQUARE))
        for name in ("FORWARD", "DQ", "DKDV"):
            monkeypatch.setattr(passes, name, PassShapes(flat, square))
        monkeypatch.setattr(passes, "D_REL_BIAS", PassShapes(square, square))
        for module, name in ((passes, "FORWARD_PAIRS"), (pairs, "DKDV"), (pairs, "DQ")):
            monkeypatch.setattr(module, name, PassShapes(flat, {}))


@pytest.fixture
def all_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every list longer than one tile is split, so that everything is merged from partial sums."""
    for module in (schedule, relative, placed):
        monkeypatch.setattr(module, "split_limit", lambda *_: 1)


def draw(
    queries: int = 21,
    keys: int = 37,
    head_dim: int = 5,
    value_dim: int = 7,
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int | None = None,
    scale: float | None = None,
    dtype: torch.dtype = torch.float32,
    **rest: Any,
) -> Case:
    kv_heads = heads if kv_heads is None else kv_heads
    q, k = numbers(batch, heads, queries, head_dim), numbers(batch, kv_heads, keys, head_dim)
    return Case(q, k, numbers(batch, kv_heads, keys, value_dim), rg.Dot(scale), dtype=dtype, **rest)


def numbers(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64)


def problem_of(case: Case) -> tuple[LoweredCall, dict[str, Tensor]]:
    """The case lowered for the kernels, on the device they run on, and the leaves it came from."""
    leaves, parts = make_leaves(case, case.dtype, case.carried or case.dtype)
    q, k, v = (leaves[name] for name in "qkv")
    generator = torch.Generator().manual_seed(case.seed)
    options: dict[str, Any] = {"mask": case.mask, "dropout": case.dropout, "places": case.places}
    call = make_call(q, k, v, **parts, **options, generator=generator)
    on = lambda x: x.to(DEVICE) if isinstance(x, Tensor) else x  # noqa: E731
    p = lower(call)
    moved = {
        name: None if x is None else type(x)(*map(on, x))
        for name, x in (("rel_bias", p.rel_bias), ("rel_vectors", p.rel_vectors), ("key_vectors", p.key_vectors))
    }
    mask = p.mask.to(DEVICE) if DEVICE == "cuda" else p.mask
    tensors = {name: on(getattr(p, name)) for name in ("q", "k", "v", "seed", "sink", "pair_bias")}
    places = None if p.places is None else (on(p.places[0]), on(p.places[1]))
    return replace(p, **tensors, mask=mask, places=places, **moved), leaves


def agree(case: Case) -> None:
    """Assert that the kernels agree with the oracle, in the output and in every gradient."""
    rounded = round_case(case)
    truth = results(rounded, "reference", torch.float64, torch.float64)
    p, leaves = problem_of(rounded if case.dtype == torch.float64 else replace(rounded, dtype=case.dtype))
    with poison_memory():
        output = backend.solve(p)[0]
        output.backward(random_gradient(output, case.dtype, case.seed).to(DEVICE))
    actual = {"output": output.detach().cpu(), **{f"gradient of {name}": x.grad for name, x in leaves.items()}}
    assert all(x is not None for x in actual.values()), f"{case}: {[name for name, x in actual.items() if x is None]}"
    assert_same_results(f"triton: {case}", actual, truth, reference_errors(case, truth), cancellation_sizes(rounded))  # type: ignore[arg-type]


def others(*shape: int, cap: float | None = None, scale: float | None = None, heads: int = 2) -> dict[str, Any]:
    """A cap, a sink and a bias by pair of a shape (none without one)."""
    pairs = rg.PairBias(numbers(*shape)) if shape else None
    return {"score": rg.Dot(scale, cap), "sink": rg.Sink(numbers(heads)), "bias": pairs}


def bias(n: int, zero: int, heads: int = 2) -> rg.Bias:
    return rg.Bias(numbers(heads, n), zero)


def shaw(n: int, zero: int, head_dim: int = 5, heads: int = 2) -> rg.Shaw:
    return rg.Shaw(numbers(heads, n, head_dim), zero)


def transformer_xl(n: int, zero: int = 0, head_dim: int = 5, heads: int = 2) -> rg.TransformerXL:
    return rg.TransformerXL(numbers(heads, n, head_dim), numbers(heads, head_dim), numbers(heads, head_dim), zero)


def disentangled(
    n: int, max_distance: int | None = None, terms: str = "both", head_dim: int = 5, heads: int = 2
) -> rg.Disentangled:
    keys, queries = (numbers(heads, n, head_dim) if terms in ("both", name) else None for name in ("keys", "queries"))
    return rg.Disentangled(keys, queries, max_distance)


MASKS = {
    "everything": lambda: rg.Everything(),
    "causal": lambda: rg.Causal(),
    "window and global": lambda: rg.Window(9, 3) | rg.Global(2),
    "dilated": lambda: rg.Dilated(3, 2, 4),
    "chunked": lambda: rg.Causal() & rg.Chunked(9),
    "prefix": lambda: rg.Causal() | rg.Prefix(18),
    "tree": lambda: rg.Tree((-1, *(n // 2 for n in range(17)))),
    "random blocks": lambda: rg.RandomBlocks(8, 2, 1) | rg.Window(2),
    "lengths, one of them none": lambda: rg.Lengths(torch.tensor([0, 23])),
    "documents": lambda: rg.Documents(torch.tensor([[0] * 9 + [1] * 20 + [-1] * 8, [3] * 37])) & rg.Causal(),
    "pairs by head": lambda: rg.Pairs(torch.rand(1, 2, 21, 37) > 0.7),
    "pairs by batch and head": lambda: rg.Pairs(torch.rand(2, 2, 21, 37) > 0.7),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    agree(draw(batch=2, heads=2, kv_heads=1, mask=MASKS[name]()))


@pytest.mark.parametrize(
    ("queries", "keys", "head_dim", "value_dim"), [(1, 1, 1, 1), (1, 70, 16, 3), (53, 1, 3, 16), (40, 33, 48, 33)]
)
def test_sizes(queries: int, keys: int, head_dim: int, value_dim: int) -> None:
    agree(draw(queries, keys, head_dim, value_dim, mask=rg.Causal()))


@pytest.mark.parametrize("scale", [-0.7, 0.0, 3.0])
def test_scales(scale: float) -> None:
    agree(draw(scale=scale, mask=rg.Window(9, 4)))


@pytest.mark.parametrize("layout", ["plain", "by token", "by feature"])
def test_half_types_and_layouts(layout: str) -> None:
    agree(draw(head_dim=16, dtype=torch.float16, layout=layout, mask=rg.Causal()))


@pytest.mark.parametrize(
    "position", [lambda: bias(5, 2), lambda: bias(80, 30), lambda: bias(1, 0), lambda: rg.Alibi(torch.rand(2).double())]
)
@pytest.mark.parametrize("mask", [rg.Everything(), rg.Causal()])
def test_distance_bias(position: Any, mask: rg.Mask) -> None:
    agree(draw(34, 37, position=position(), mask=mask))


@pytest.mark.parametrize("position", [lambda: shaw(5, 2), lambda: transformer_xl(80, 30), lambda: transformer_xl(37)])
@pytest.mark.parametrize("mask", [rg.Everything(), rg.Causal(), rg.Window(3) | rg.Dilated(1, 1, 33)])
def test_relative_vectors(position: Any, mask: rg.Mask) -> None:
    agree(draw(34, 70, position=position(), mask=mask))


@pytest.mark.parametrize(
    ("position", "mask"),
    [
        (lambda: disentangled(8), rg.Causal()),
        (lambda: disentangled(16, 60), rg.Everything()),
        (lambda: disentangled(16, 30, "queries"), rg.Window(3) | rg.Dilated(1, 1, 33)),
    ],
)
def test_vectors_for_keys(position: Any, mask: rg.Mask) -> None:
    agree(draw(34, 70, position=position(), mask=mask))


def test_vectors_for_keys_with_everything_else() -> None:
    pairs = others(1, 2, 34, 40, cap=2.0, scale=-0.7)
    case = draw(34, 40, batch=2, kv_heads=1, position=disentangled(16, 30), mask=rg.Window(20, 3))
    agree(replace(case, **pairs))
    agree(replace(case, dropout=0.3, score=rg.Dot(0.0)))
    agree(draw(3, 40, 16, position=disentangled(16, 30, head_dim=16), dtype=torch.float16, mask=rg.Causal()))


@pytest.mark.parametrize("tiles", [3])
def test_vectors_for_keys_in_chunks(tiles: int, monkeypatch: pytest.MonkeyPatch, all_split: None) -> None:
    monkeypatch.setattr(relative, "SCRATCH", tiles * SQUARE.rows * SQUARE.columns * 4)
    agree(draw(34, 70, batch=2, kv_heads=1, position=disentangled(12), mask=rg.Causal()))


@pytest.mark.parametrize("tiles", [1, 3, 7, 40])
def test_relative_vectors_in_chunks(tiles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch for so many tiles, where a head of one batch row has 5 and both rows 10."""
    monkeypatch.setattr(relative, "SCRATCH", tiles * SQUARE.rows * SQUARE.columns * 4)
    agree(draw(34, 70, batch=2, heads=4, kv_heads=2, position=transformer_xl(40, 3, heads=4), mask=rg.Causal()))


@pytest.mark.parametrize("tiles", [3, 400])
def test_relative_vectors_where_heads_have_different_masks(tiles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relative, "SCRATCH", tiles * SQUARE.rows * SQUARE.columns * 4)
    mask = rg.Pairs(torch.rand(2, 4, 34, 70) > 0.7)
    agree(draw(34, 70, batch=2, heads=4, kv_heads=2, position=shaw(9, 4, heads=4), mask=mask))


@pytest.mark.parametrize("name", MASKS)
def test_orders_index_tiles_as_lists_by_column(name: str) -> None:
    mask, grid = MASKS[name](), PairGrid(21, 37, 2, 2)
    by_row, by_column = (tile_lists(mask, grid, 16, 32, transposed=x) for x in (False, True))
    rows, columns = by_row.starts.shape[1] - 1, by_column.starts.shape[1] - 1
    by_tile, by_line = relative.order_tiles(by_row, columns)
    groups = torch.arange(by_row.groups)
    for order, place in ((by_tile, lambda line, tile: (line, tile)), (by_line, lambda d, r: (r, r + d - rows + 1))):
        begin, end = order.between(groups, 0, columns)
        seen = []
        for group, line in itertools.product(range(by_row.groups), range(order.lists)):
            for x in range(begin[group, line], end[group, line]):
                row, column = place(line, int(order.tile[x]))
                number = int(order.ds_index[x])
                assert by_column.starts[group, column] <= number < by_column.starts[group, column + 1]
                assert by_column.tile[number] == row
                seen.append(number)
        assert sorted(seen) == list(range(len(by_row.tile)))
        assert int((order.between(groups, 0, 1)[1] - begin).sum()) == int(
            (by_column.starts[:, 1] - by_column.starts[:, 0]).sum()
        )


@pytest.mark.parametrize(
    ("queries", "position"),
    [
        (3, lambda: bias(9, 4)),
        (34, lambda: bias(9, 4)),
        (34, lambda: shaw(9, 4, 16)),
        (34, lambda: transformer_xl(9, 4, 16)),
    ],
)
def test_tables_get_gradients_from_unrounded_outputs(queries: int, position: Any) -> None:
    """Values far from zero: δ = Σ output · d_output would err by more than what the tables' gradients add up to."""
    case = draw(queries, 37, 16, dtype=torch.float16, position=position())
    agree(replace(case, v=case.v + 4.0))


EXACT_PARTS = {
    "table": lambda: {"position": bias(9, 4), "mask": rg.Causal()},
    "buckets": lambda: {"position": rg.T5Bias(numbers(2, 8))},
    "table, one query": lambda: {"position": bias(9, 4), "queries": 1},
    "pairs": lambda: {"bias": rg.PairBias(numbers(1, 2, 34, 37))},
    "pairs by key": lambda: {"bias": rg.PairBias(numbers(2, 1, 37))},
    "vectors": lambda: {"position": shaw(40, 20, 16)},
    "vectors and sums": lambda: {"position": transformer_xl(40, 20, 16)},
    "vectors for keys": lambda: {"position": rg.Disentangled(numbers(2, 40, 16), numbers(2, 40, 16), 64)},
    "vectors at places": lambda: {"position": transformer_xl(40, 20, 16), "places": rg.Places(torch.randperm(37))},
}
FEW_PARTS = {
    "one number": lambda: {"position": bias(1, 0)},
    "buckets": lambda: {"position": rg.T5Bias(numbers(2, 4))},
    "one vector": lambda: {"position": shaw(1, 0, 16)},
    "two vectors and sums": lambda: {"position": transformer_xl(2, -30, 16)},
    "two vectors for keys": lambda: {"position": rg.Disentangled(None, numbers(2, 2, 16))},
    "at places": lambda: {"position": transformer_xl(1, 0, 16), "places": rg.Places(torch.randperm(37))},
}


@pytest.mark.parametrize("parts", EXACT_PARTS.values(), ids=EXACT_PARTS)
def test_parts_of_float32_beside_half_types_get_gradients_of_float32(parts: Any) -> None:
    """As in mixed precision. An output of rounded weights would leave 4 to 11 times the error that is allowed."""
    options = {"queries": 34, **parts()}
    agree(draw(options.pop("queries"), 37, 16, 16, dtype=torch.float16, carried=torch.float32, **options))


@pytest.mark.parametrize("parts", FEW_PARTS.values(), ids=FEW_PARTS)
def test_few_entries_get_the_gradients_of_sums_that_cancel(parts: Any) -> None:
    """All ds of a row add up to 0, and so, nearly, do those of an entry that serves most keys."""
    agree(draw(34, 37, 16, 16, dtype=torch.float16, **parts()))


@pytest.mark.parametrize("position", [lambda: None, lambda: bias(9, 4), lambda: transformer_xl(9, 4)])
def test_merging(position: Any, all_split: None) -> None:
    agree(draw(40, 70, batch=2, position=position(), mask=rg.Causal()))


def test_merging_where_heads_have_different_masks(all_split: None) -> None:
    agree(draw(batch=2, heads=4, kv_heads=2, position=bias(9, 4, 4), mask=rg.Pairs(torch.rand(2, 4, 21, 37) > 0.7)))


@pytest.mark.parametrize("position", [lambda: None, lambda: bias(9, 4), lambda: shaw(9, 4)])
@pytest.mark.parametrize("dropout", [0.3, 1.0])
def test_dropout(position: Any, dropout: float) -> None:
    agree(draw(batch=2, position=position(), mask=rg.Causal(), dropout=dropout))


def test_the_same_bits_every_time(all_split: None) -> None:
    p, _ = problem_of(draw(40, 70, batch=2, position=transformer_xl(70), mask=rg.Causal()))
    with torch.no_grad():
        output, lse = backend.forward(p)
        one, two = (backend.backward(p, torch.ones_like(output), output, lse) for _ in range(2))
    assert all(a is None or torch.equal(a, b) for a, b in zip(one, two, strict=True))  # type: ignore[arg-type]


def test_a_warm_call_makes_no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    case = draw(position=bias(9, 4), mask=rg.Causal())
    agree(case)
    for name in ("tile_lists", "by_diagonal", "TileSchedule"):
        monkeypatch.setattr(passes, name, lambda *_, **__: pytest.fail("made again"))
    agree(case)


@pytest.mark.parametrize("position", [lambda: rg.Alibi(), lambda: rg.Shaw(torch.randn(2, 9, 16, device=DEVICE), 4)])
def test_calls_of_one_kind_share_a_plan(position: Any) -> None:
    """Other numbers, then the same sizes at another place in memory, where nothing lies at multiples of 16 bytes."""
    shape, parts = (1, 2, 40, 16), {"position": position(), "mask": rg.Causal() & rg.Window(9)}
    for shift in (0, 0, 1):
        room = [torch.randn(shift + math.prod(shape), device=DEVICE) for _ in range(3)]
        inputs = [x[shift:].view(shape).requires_grad_() for x in room]
        actual, want = (rg.attend(*inputs, **parts, backend=name) for name in ("triton", "reference"))
        pulled = torch.randn(shape, device=DEVICE)
        for got, right in zip(
            (actual, *torch.autograd.grad(actual, inputs, pulled)),
            (want, *torch.autograd.grad(want, inputs, pulled)),
            strict=True,
        ):
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)


def test_refusals() -> None:
    wide = torch.zeros(1, 1, 2, 300, device=DEVICE)
    assert "head_dim of 300" in (backend.unsupported_reason(make_call(wide, wide, wide)) or "")
    double = torch.zeros(1, 1, 2, 8, device=DEVICE, dtype=torch.float64)
    assert "float64" in (backend.unsupported_reason(make_call(double, double, double)) or "")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("position", [None, "bias", "shaw"])
def test_large(dtype: torch.dtype, head_dim: int, position: str | None) -> None:
    if position == "shaw" and head_dim > backend.MAX_HEAD_DIM_RELATIVE[dtype.itemsize]:
        pytest.skip("wider than these kernels take")
    part = {None: None, "bias": bias(301, 150, 4), "shaw": shaw(301, 150, head_dim, 4)}[position]
    mask = rg.Window(200, 50) | rg.Global(3)
    agree(draw(517, 613, head_dim, head_dim, batch=2, heads=4, kv_heads=2, dtype=dtype, position=part, mask=mask))


SINGLE, HALF = torch.float32, torch.float16
OTHERS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "cap and sink": (HALF, {**others(cap=1.5), "mask": rg.Causal()}),
    "cap and Alibi, negative scale": (SINGLE, {**others(cap=2.0, scale=-0.7), "position": rg.Alibi()}),
    "cap over relative vectors": (HALF, {**others(cap=1.0), "position": shaw(9, 4), "mask": rg.Causal()}),
    "pairs beside relative vectors": (SINGLE, {**others(1, 1, 21, 37, cap=2.0), "position": transformer_xl(40)}),
    "pairs for all batches": (SINGLE, {**others(1, 2, 21, 37), "mask": rg.Lengths(torch.tensor([0, 23]))}),
    "pairs for all heads": (
        HALF,
        {**others(2, 1, 21, 37), "mask": rg.Pairs(torch.rand(1, 2, 21, 37) > 0.5), "dropout": 0.3},
    ),
    "pairs for all": (SINGLE, {**others(21, 37, cap=3.0), "mask": rg.Causal()}),
    "keys alone": (HALF, {**others(1, 2, 1, 37), "mask": rg.Causal() | rg.Global(2)}),
    "queries alone": (HALF, {**others(1, 1, 21, 1), "mask": rg.Window(5)}),
    "one number": (HALF, others(1, 2, 1, 1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_caps_sinks_and_biases_by_pair(name: str) -> None:
    dtype, parts = OTHERS[name]
    agree(replace(draw(batch=2 if name.startswith("pairs for") else 1, kv_heads=1, dtype=dtype), **parts))


PARTS: dict[str, dict[str, Any]] = {
    "pairs": {**others(1, 2, 21, 37), "mask": rg.Causal()},
    "pairs for all": {**others(21, 37), "mask": rg.Pairs(torch.rand(2, 2, 21, 37) > 0.5)},
    "pairs beside relative vectors": {**others(1, 1, 21, 37), "position": shaw(1, 0)},
    "keys alone": {**others(2, 1, 1, 37), "mask": rg.Causal()},
}


@pytest.mark.parametrize("name", PARTS)
def test_biases_by_pair_of_parts_of_a_call(name: str) -> None:
    """Parts with some of a call's keys each, one of them with a single key: their gradients add up to the call's."""
    case = round_case(replace(draw(batch=2), **PARTS[name]))
    p, leaves = problem_of(case)
    assert p.pair_bias is not None
    sums = {name: torch.zeros_like(leaves[name]) for name in ("q", "k", "v", "bias.bias")}
    with poison_memory(), torch.no_grad():
        output, lse = passes.forward(p)
        grad = random_gradient(output, torch.float32, case.seed).to(DEVICE)
        for keys in (slice(16), slice(16, 17), slice(17, 37)):
            tensors = {"k": p.k[:, :, keys], "v": p.v[:, :, keys], "pair_bias": p.pair_bias[..., keys], "sink": None}
            mask = rg.Pairs(p.mask.permits(*p.grid.indices(), p.grid)[..., keys])
            part = replace(p, **tensors, mask=mask, merged=True, plan=new_plan())
            dq, dk, dv, _, _, drel_q, _, dpairs, *_ = passes.backward(part, grad, output, lse)
            assert dq is not None and dk is not None and dv is not None and dpairs is not None
            sums["q"] += (dq if drel_q is None else dq + drel_q).cpu()
            sums["k"][:, :, keys], sums["v"][:, :, keys] = dk.cpu(), dv.cpu()
            sums["bias.bias"][..., keys] = dpairs.cpu().view_as(sums["bias.bias"][..., keys])
    actual = {"output": output.cpu(), **{f"gradient of {name}": x for name, x in sums.items()}}
    truth = {name: x for name, x in results(case, "reference", torch.float64, torch.float64).items() if name in actual}
    assert_same_results(f"parts of {case}", actual, truth, reference_errors(case, truth), cancellation_sizes(case))


def test_caps_sinks_and_biases_by_pair_in_split_lists(all_split: None) -> None:
    parts = {**others(1, 2, 21, 37, cap=1.5), "position": bias(9, 4), "mask": rg.Window(9, 3)}
    agree(replace(draw(), **parts))


def test_kernels_are_compiled_for_a_bias_of_one_type_and_layout() -> None:
    x = torch.zeros(2, 1, 21, 64)
    layouts = [PairLayout.of(bias) for bias in (x, x.half(), x[..., 1:], x.mT, x[:1])]
    assert len(set(layouts)) == len(layouts) and PairLayout.of(torch.ones(2, 1, 21, 64)) == layouts[0]
