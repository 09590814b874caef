"""`look`: every statistic of a view against the same statistic from the whole weight matrix."""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import regard as rg
from regard.attention.backends import edges, reference
from regard.attention.backends.blockwise import schedule
from regard.attention.call import make_call

from .memory_tracking import largest_allocation
from .oracle import Case
from .random_calls import KINDS, RandomCalls

STATISTICS = ["lse", "entropy", "distance", "peak", "received"]
OPTIONAL = ["top_weights", "top_keys", "map", "weights"]


def dense(case: Case) -> tuple[Tensor, Tensor]:
    """Every weight, and the log-sum-exp of every row, in float64 from the formula."""
    q, k, v = (x.to(case.dtype).double() for x in (case.q, case.k, case.v))
    parts = case.parts()
    position = parts.get("position")
    call = make_call(q, k, v, **parts, mask=case.mask)
    with nullcontext() if position is None else round_products(type(position), case.dtype):
        scores = reference.scores(call)
    lse = scores.logsumexp(-1)
    if call.sink is not None:
        lse = torch.logaddexp(lse, call.sink.head_logits(q)[:, None])
    return reference.softmax(scores, call.sink), lse


@contextmanager
def round_products(kind: type[rg.Position], dtype: torch.dtype) -> Iterator[None]:
    """A position's transformed q and k and its vectors are rounded to the call's type, by definition."""
    transform, vector_scores = kind.transform, kind.vector_scores
    with pytest.MonkeyPatch.context() as patch:
        if kind.keeps_dtype:
            patch.setattr(kind, "transform", lambda self, *qk: [x.to(dtype).double() for x in transform(self, *qk)])
        patch.setattr(kind, "vector_scores", lambda self, *pairs: vector_scores(self, *pairs[:3], dtype))
        yield


def bucket(size: int, count: int, number: int) -> range:
    """The tokens of one bucket: from ⌊number · size / count⌋ to where the next begins."""
    return range(number * size // count, (number + 1) * size // count)


def pool(weights: Tensor, rows: int, columns: int) -> Tensor:
    """The map, cell by cell: the mean over a bucket of queries of their weight on a bucket of keys."""
    queries, keys = weights.shape[-2:]
    actual = weights.new_zeros(*weights.shape[:2], rows, columns)
    for r in range(rows):
        for c in range(columns):
            of, on = bucket(queries, rows, r), bucket(keys, columns, c)
            if len(of) and len(on):
                actual[..., r, c] = weights[:, :, of.start : of.stop, on.start : on.stop].sum(-1).mean(-1)
    return actual


def assert_view(case: Case, top: int = 3, size: tuple[int, int] = (4, 6), tolerance: float = 1e-10) -> rg.View:
    """The view of a case, after asserting that each of its numbers is that of the dense weights."""
    weights, lse = dense(case)
    q, k, v = (x.to(case.dtype) for x in (case.q, case.k, case.v))
    view = rg.look(q, k, v, **case.parts(), mask=case.mask, top=top, map=size, weights=True)
    queries, keys = weights.shape[-2:]
    i, j = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)
    want = {
        "lse": lse,
        "entropy": -(weights * weights.clamp(min=1e-300).log()).sum(-1),
        "distance": (weights * (i - j).abs()).sum(-1),
        "peak": weights.amax(-1),
        "received": weights.sum(-2),
        "map": pool(weights, *size),
        "weights": weights,
        "top_weights": torch.nn.functional.pad(weights.sort(-1, descending=True).values, (0, top))[..., :top],
    }
    for name, right in want.items():
        got = getattr(view, name)
        assert got.dtype == torch.promote_types(case.dtype, torch.float32) and not got.requires_grad, (
            f"{name} of {case}"
        )
        scale = max(1.0, float(right[right.isfinite()].abs().max())) if right.isfinite().any() else 1.0
        torch.testing.assert_close(
            got.double(), right, rtol=0.0, atol=tolerance * scale, msg=lambda m, name=name: f"{name} of {case}: {m}"
        )
    named = view.top_keys.clamp(min=0)
    at_names = torch.where(view.top_keys >= 0, weights.gather(-1, named), 0.0)
    torch.testing.assert_close(
        at_names, want["top_weights"], rtol=0.0, atol=tolerance, msg=lambda m: f"top_keys of {case}: {m}"
    )
    for row in view.top_keys.flatten(0, 2).tolist():
        real = [key for key in row if key >= 0]
        assert len(set(real)) == len(real) and row[: len(real)] == real, f"top_keys of {case}: {row}"
    return view


@pytest.mark.parametrize("number", range(120))
def test_statistics_of_a_view(number: int) -> None:
    draw = RandomCalls(f"look {number}")
    case = draw.case(*draw.sizes(), torch.float64)
    assert_view(case, top=draw.rng.choice([1, 3, 60]), size=draw.rng.choice([(1, 1), (4, 6), (60, 3), (53, 53)]))


@pytest.mark.parametrize("number", range(40))
def test_statistics_of_a_view_in_float32(number: int) -> None:
    draw = RandomCalls(f"look, single {number}")
    assert_view(draw.case(*draw.sizes(), torch.float32), tolerance=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("number", range(10))
def test_statistics_of_a_view_in_half_precision(number: int, dtype: torch.dtype) -> None:
    """The statistics of the rounded inputs, in float32."""
    draw = RandomCalls(f"look, half {number}")
    assert_view(draw.case(*draw.sizes(), dtype), tolerance=1e-5)


@pytest.mark.parametrize("number", range(12))
def test_statistics_with_caps_sinks_and_biases_by_pair(number: int) -> None:
    draw = RandomCalls(f"look, others {number}")
    case = draw.case(*draw.sizes(), torch.float64, "edges" if number % 3 == 0 else "any", others=True)
    view = assert_view(case)
    assert view.sink is None if case.sink is None else bool(((view.sink + view.weights.sum(-1) - 1).abs() < 1e-9).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("elements", [1, 1 << 20])
def test_every_mask_over_many_tiles(kind: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "ELEMENTS", elements)
    draw = RandomCalls(f"look {kind} {elements}")
    assert_view(draw.case(150, 290, torch.float64, kind, small=True), size=(9, 31))


@pytest.mark.parametrize("share", [0.02, 0.2, 0.3, 1.0])
@pytest.mark.parametrize("number", range(6))
def test_graphs_along_edges_and_in_tiles(number: int, share: float) -> None:
    """Sparse graphs are computed along their edges, dense ones in tiles; the view is the same."""
    draw = RandomCalls(f"look graph {number} {share}")
    case = draw.case(40, 53, torch.float64, "edges", plain=True)
    chosen = torch.rand(53, 40, generator=draw.generator) < share
    case = dataclasses.replace(case, mask=rg.Edges(chosen.nonzero().mT.contiguous()))
    along = edges.slower_reason(case.call()) is None
    assert along == (share < 0.25)
    assert_view(case, top=draw.rng.choice([2, 50]), size=(7, 11))


def equal_keys(mask: rg.Mask, queries: int, keys: int, top: int) -> Tensor:
    """The top keys of queries that find every key the same."""
    view = rg.look(torch.zeros(1, 1, queries, 2), torch.randn(1, 1, keys, 2), mask=mask, top=top)
    return view.top_keys[0, 0]


def test_the_lowest_of_equal_keys_comes_first() -> None:
    assert equal_keys(rg.Everything(), 2, 9, 3).tolist() == [[0, 1, 2]] * 2
    assert equal_keys(rg.Window(2, 1), 3, 3, 2).tolist() == [[0, 1], [0, 1], [0, 1]]
    assert equal_keys(rg.Causal(), 4, 4, 3).tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2], [0, 1, 2]]
    assert equal_keys(rg.Edges(torch.tensor([[7, 3, 5, 1], [1, 1, 1, 0]])), 9, 9, 2)[:3].tolist() == [
        [1, -1],
        [3, 5],
        [-1, -1],
    ]
    assert equal_keys(~rg.Causal(), 300, 300, 2)[[0, 200, 298, 299]].tolist() == [
        [1, 2],
        [201, 202],
        [299, -1],
        [-1, -1],
    ]


def test_the_lowest_of_equal_keys_comes_first_across_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "ELEMENTS", 1)
    q, k = torch.ones(1, 1, 140, 1), torch.zeros(1, 1, 900, 1)
    k[0, 0, [10, 300, 301, 700, 899]] = 1.0
    assert rg.look(q, k, top=4).top_keys[0, 0].unique(dim=0).tolist() == [[10, 300, 301, 700]]
    assert rg.look(q, k, top=7).top_keys[0, 0].unique(dim=0).tolist() == [[10, 300, 301, 700, 899, 0, 1]]


@pytest.mark.parametrize("dense_graph", [False, True])
def test_keys_whose_weight_underflows_are_still_listed(dense_graph: bool) -> None:
    """A query with two keys has two, though the weight of one rounds to zero; −1 means that there is none."""
    q, k = torch.full((1, 1, 8, 1), 1.0), torch.zeros(1, 1, 8, 1)
    k[0, 0, 3] = 1e4
    pairs = (
        [(0, 3), (1, 3)]
        if not dense_graph
        else [(row, key) for row in range(2, 8) for key in range(8)] + [(0, 3), (1, 3)]
    )
    index = torch.tensor(pairs).mT.flip(0).contiguous()
    index = torch.cat([index, torch.tensor([[5], [0]])], dim=1)
    view = rg.look(q, k, mask=rg.Edges(index), score=rg.Dot(scale=1.0), top=3)
    assert view.top_keys[0, 0, 0].tolist() == [3, 5, -1] and view.top_weights[0, 0, 0].tolist() == [1.0, 0.0, 0.0]
    assert view.top_keys[0, 0, 1].tolist() == [3, -1, -1]


def test_dead_rows() -> None:
    for mask in (~rg.Everything(), rg.Edges(torch.zeros(2, 0, dtype=torch.int64)), rg.Lengths(torch.tensor([0]))):
        view = rg.look(*torch.randn(3, 1, 2, 5, 4), mask=mask, top=2, map=3, weights=True)
        assert bool((view.lse == -torch.inf).all()) and bool((view.top_keys == -1).all())
        for name in ("entropy", "distance", "peak", "received", "map", "weights", "top_weights"):
            assert not getattr(view, name).any(), name


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (7, 13), (8, 8), (13, 4), (53, 53), (60, 100)], ids=str)
def test_map_rows_of_live_queries_sum_to_one(size: tuple[int, int]) -> None:
    q, k = torch.randn(1, 2, 53, 4, dtype=torch.float64), torch.randn(1, 2, 41, 4, dtype=torch.float64)
    view = rg.look(q, k, map=size)
    filled = torch.tensor([len(bucket(53, size[0], r)) > 0 for r in range(size[0])])
    torch.testing.assert_close(view.map.sum(-1), filled.double().expand(1, 2, -1))
    assert view.map.shape == (1, 2, *size)


def test_map_of_one_number_is_square() -> None:
    q = torch.randn(1, 1, 9, 4)
    torch.testing.assert_close(rg.look(q, q, map=3).map, rg.look(q, q, map=(3, 3)).map)


@pytest.mark.parametrize("number", range(40))
def test_attend_is_the_weights_times_v(number: int) -> None:
    draw = RandomCalls(f"weights times v {number}")
    case = dataclasses.replace(draw.case(*draw.sizes(), torch.float64), dropout=0.0)
    weights = rg.look(case.q, case.k, case.v, **case.parts(), mask=case.mask, weights=True).weights
    v = case.v.repeat_interleave(case.q.shape[1] // case.k.shape[1], dim=1)
    torch.testing.assert_close(
        rg.attend(case.q, case.k, case.v, **case.parts(), mask=case.mask), weights @ v, rtol=0, atol=1e-12
    )


def test_what_was_not_requested_is_none() -> None:
    q = torch.randn(1, 2, 5, 4)
    requests: dict[str, dict[str, Any]] = {
        "top_weights": {"top": 2},
        "top_keys": {"top": 2},
        "map": {"map": 2},
        "weights": {"weights": True},
    }
    view = rg.look(q, q)
    assert all(getattr(view, name) is not None for name in STATISTICS)
    assert all(getattr(view, name) is None for name in OPTIONAL)
    for name, options in requests.items():
        view = rg.look(q, q, **options)
        there = [other for other in OPTIONAL if getattr(view, other) is not None]
        assert there == (["top_weights", "top_keys"] if name.startswith("top") else [name])


def test_a_view_is_a_frozen_value_that_prints() -> None:
    q = torch.randn(1, 2, 5, 4)
    view = rg.look(q, q, mask=rg.Causal(), position=rg.Alibi(), top=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.lse = None  # type: ignore[misc]
    assert all(word in repr(view) for word in ("Dot()", "Alibi()", "Causal()", "5 queries", "5 keys", "2 heads"))
    assert (view.queries, view.keys) == (5, 5)


def test_values_are_not_needed_and_not_read() -> None:
    q, k = torch.randn(1, 4, 5, 6), torch.randn(1, 2, 7, 6)
    alone = rg.look(q, k, top=2, weights=True)
    for v in (torch.randn(1, 2, 7, 3), torch.full((1, 2, 7, 6), torch.nan), torch.randn(1, 2, 7, 0)):
        beside = rg.look(q, k, v, top=2, weights=True)
        assert all(
            torch.equal(getattr(alone, name), getattr(beside, name)) for name in [*STATISTICS, "weights", "top_keys"]
        )


@pytest.mark.parametrize("graph", [False, True])
def test_looking_needs_no_gradient_and_changes_nothing(graph: bool) -> None:
    q, k, v, weight = (
        torch.randn(s, requires_grad=True) for s in [(1, 2, 30, 4), (1, 2, 30, 4), (1, 2, 30, 4), (2, 4)]
    )
    parts: dict[str, Any] = {"score": rg.Additive(weight), "position": rg.Alibi()}
    parts["mask"] = rg.Edges(torch.tensor([[0, 1, 4], [1, 2, 2]])) if graph else rg.Causal()
    before = rg.attend(q, k, v, **parts)
    kept = [x.detach().clone() for x in (q, k, v, weight)]
    view = rg.look(q, k, v, **parts, top=2, map=2, weights=True)
    assert all(not getattr(view, name).requires_grad for name in STATISTICS + OPTIONAL)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v, weight), kept, strict=True))
    assert torch.equal(before, rg.attend(q, k, v, **parts))
    with torch.inference_mode():
        assert torch.equal(rg.look(q, k, v, **parts).lse, view.lse)


def test_looking_leaves_random_numbers_alone() -> None:
    q = torch.randn(1, 2, 9, 4)
    state = torch.get_rng_state()
    rg.look(q, q, mask=rg.bigbird(2), top=3, map=2, weights=True)
    assert torch.equal(state, torch.get_rng_state())


def test_planning_leaves_random_numbers_alone() -> None:
    q = torch.randn(1, 2, 9, 4)
    state = torch.get_rng_state()
    rg.plan(q, q, q, mask=rg.bigbird(2), dropout=0.5)
    assert torch.equal(state, torch.get_rng_state())


LINEAR: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal window and global": {"mask": (rg.Causal() & rg.Window(511)) | rg.Global(4)},
    "Alibi": {"position": rg.Alibi(), "mask": rg.Causal()},
    "T5Bias": {"position": rg.T5Bias(torch.randn(1, 32))},
    "Shaw": {"position": rg.Shaw(torch.randn(1, 33, 8), zero=16), "mask": rg.Causal()},
    "TransformerXL": {
        "position": rg.TransformerXL(torch.randn(1, 4096, 8), torch.randn(1, 8), torch.randn(1, 8)),
        "mask": rg.Causal(),
    },
    "Rotary": {"position": rg.Rotary(), "mask": rg.Window(100, 100)},
    "Additive": {"score": rg.Additive(torch.randn(1, 8)), "mask": rg.Window(600)},
    "Lengths": {"mask": rg.Lengths(torch.tensor([3000]))},
    "RandomBlocks": {"mask": rg.bigbird(64)},
    "Dropout": {"dropout": 0.1, "mask": rg.Causal()},
    "graph": {"mask": rg.Edges(torch.randint(4096, (2, 20_000), generator=torch.Generator().manual_seed(0)))},
    "graph, additive": {"score": rg.Additive(torch.ones(1, 8)), "mask": rg.Edges(torch.arange(4096).repeat(2, 1))},
}
TOKENS = 4096


@pytest.mark.parametrize("name", [name for name in LINEAR if name != "Dropout"])
def test_look_allocates_no_quadratic_tensor(name: str) -> None:
    q, k = torch.randn(2, 1, 1, TOKENS, 8)
    assert largest_allocation(lambda: rg.look(q, k, **LINEAR[name], top=4, map=(32, 32))) < TOKENS * TOKENS / 4


@pytest.mark.parametrize("name", LINEAR)
def test_attend_allocates_no_quadratic_tensor(name: str) -> None:
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, TOKENS, 8))
    backend = "edges" if "graph" in name else "blockwise"
    work = lambda: rg.attend(q, k, v, **LINEAR[name], backend=backend).sum().backward()  # noqa: E731
    assert largest_allocation(work) < TOKENS * TOKENS / 4
    assert q.grad is not None and k.grad is not None and v.grad is not None


def test_memory_tracking_sees_a_quadratic_tensor() -> None:
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, 512, 8))
    assert largest_allocation(lambda: rg.attend(q, k, v, backend="reference").sum().backward()) >= 512 * 512
    assert largest_allocation(lambda: rg.look(q, k, weights=True)) >= 512 * 512


def test_a_graph_allocates_no_quadratic_tensor() -> None:
    """20,000 nodes: a square of float32 would be 1.6 GB, whatever operation made it."""
    nodes = 20_000
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, nodes, 4))
    graph = rg.Edges(torch.randint(nodes, (2, 50_000)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rg.attend(q, k, v, mask=graph, backend="edges").sum().backward()
    rg.look(q, k, mask=graph, top=2, map=16)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kilobytes
