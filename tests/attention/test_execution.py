"""Execution plans: cached for the same mask and kind of call, never used for another mask or changed tensors."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import regard as rg
from regard.attention import attend as attend_module
from regard.attention.attend import resolve
from regard.attention.backends import sdpa
from regard.attention.backends.blockwise import schedule
from regard.attention.execution import PlanCache, tensor_cache
from regard.attention.parts import edges

from .random_calls import Stripes


class ListMask(rg.Mask):
    """A mask whose field cannot be compared by value."""

    def __init__(self, places: list[int]):
        self.places = places

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return torch.isin(j, torch.tensor(self.places)) | (i < 0)


class Counter:
    """A function that counts its calls."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, *_: Any) -> Any:
        self.made += 1
        return torch.zeros(self.made)


def count_made(*masks: rg.Mask, key: Any = 0) -> int:
    """How many values are made when these masks are looked up in turn."""
    cache, make = PlanCache(), Counter()
    for mask in masks:
        cache.mask(mask).get(key, make)
    return make.made


LENGTHS = torch.tensor([2, 3])
LISTED = ListMask([1])


@pytest.mark.parametrize(
    "one, two",
    [
        (rg.Causal(), rg.Causal()),
        (rg.Window(3, 1), rg.Window(3, 1)),
        ((rg.Causal() & rg.Window(3)) | ~rg.Global((0, 2)), (rg.Causal() & rg.Window(3)) | ~rg.Global((0, 2))),
        (rg.Lengths(LENGTHS), rg.Lengths(LENGTHS)),
        (Stripes(2), Stripes(2)),
        (LISTED, LISTED),
    ],
    ids=str,
)
def test_the_same_mask(one: rg.Mask, two: rg.Mask) -> None:
    assert count_made(one, two, one) == 1


@pytest.mark.parametrize(
    "one, two",
    [
        (rg.Causal(), rg.Everything()),
        (rg.Window(3, 1), rg.Window(1, 3)),
        (rg.Causal() & rg.Window(3), rg.Causal() | rg.Window(3)),
        (rg.Global((0, 2)), rg.Global((0, 1))),
        (rg.Lengths(LENGTHS), rg.Lengths(LENGTHS.clone())),
        (rg.Lengths(LENGTHS), rg.Lengths(LENGTHS, LENGTHS)),
        (Stripes(2), Stripes(3)),
        (ListMask([1]), ListMask([1])),
    ],
    ids=str,
)
def test_another_mask(one: rg.Mask, two: rg.Mask) -> None:
    assert count_made(one, two) == 2


def test_another_key() -> None:
    cache, make = PlanCache(), Counter()
    assert cache.mask(rg.Causal()).get(1, make) is not cache.mask(rg.Causal()).get(2, make)


@pytest.mark.parametrize("inference", [False, True])
def test_a_tensor_that_was_written_to(inference: bool) -> None:
    """torch counts the versions of ordinary tensors; those of inference mode are compared."""
    with torch.inference_mode(inference):
        lengths = torch.tensor([2, 3])
        cache, make = PlanCache(), Counter()
        mask = rg.Lengths(lengths)
        first = cache.mask(mask).get(0, make)
        assert cache.mask(mask).get(0, make) is first
        lengths[0] = 1
        assert cache.mask(mask).get(0, make) is not first


def test_an_object_is_found_by_its_id_while_nothing_changes() -> None:
    """Without a key of all its fields: the mask, the mask with a position, and neither once it is gone."""
    cache, table = PlanCache(2), torch.zeros(2, 5)
    mask, position = rg.Lengths(torch.tensor([2, 3])), rg.Bias(table, 2)
    alone, both = cache.mask(mask), cache.mask(mask, position)
    assert alone is not both and cache.mask(mask) is alone and cache.mask(mask, position) is both
    assert cache.mask(mask, rg.Bias(table, 2)) is both  # another object of the same fields
    table[0, 0] = 1.0
    changed = cache.mask(mask, position)
    assert changed is not both and cache.mask(mask) is alone and cache.mask(mask, position) is changed
    for before in (1, 2):
        cache.mask(rg.Window(before))
    assert cache.mask(mask) is not alone  # it was the least recently used
    del mask, position
    gc.collect()
    assert all(known.constant is not None for known in cache.frozen.values())


def test_entries_of_freed_tensors_are_dropped() -> None:
    cache, make = PlanCache(), Counter()
    cache.mask(rg.Lengths(torch.tensor([2]))).get(0, make)
    cache.mask(rg.Causal()).get(0, make)
    assert len(cache.masks.values) == 1


def test_least_recently_used_entries_are_dropped() -> None:
    cache, make = PlanCache(2), Counter()
    for before in (1, 2, 1, 3):  # 2 is the one to go
        cache.mask(rg.Window(before)).get(0, make)
    cache.mask(rg.Window(1)).get(0, make)
    assert make.made == 3
    cache.mask(rg.Window(2)).get(0, make)
    assert make.made == 4


def qkv(tokens: int = 7) -> list[Tensor]:
    return [torch.randn(2, 2, tokens, 4) for _ in range(3)]


def test_a_kind_of_call_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = rg.Causal() & rg.Window(3)
    want = rg.attend(*(inputs := qkv()), mask=mask, position=rg.Alibi())
    monkeypatch.setattr(sys.modules["regard.attention.attend"], "make_plan", lambda *_: pytest.fail("planned again"))
    assert torch.equal(rg.attend(*inputs, mask=rg.Causal() & rg.Window(3), position=rg.Alibi()), want)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask": rg.Lengths(torch.tensor([1, 2, 3]))},
        {"position": rg.Bias(torch.zeros(3, 5))},
        {"dropout": 1.5},
        {"backend": "edges"},
        {"score": rg.Additive(torch.zeros(2, 5))},
    ],
    ids=str,
)
def test_a_wrong_call_is_refused_every_time(wrong: dict[str, Any]) -> None:
    rg.attend(*(inputs := qkv()))
    for _ in range(2):
        with pytest.raises((rg.BadInput, rg.Unsupported)):
            rg.attend(*inputs, **wrong)


def test_indices_that_are_moved_out_of_range_are_noticed() -> None:
    tokens = torch.tensor([0, 3])
    inputs = qkv()
    rg.attend(*inputs, mask=rg.Global(tokens))
    tokens[0] = 9
    with pytest.raises(rg.BadInput, match="reach from 3 to 9"):
        rg.attend(*inputs, mask=rg.Global(tokens))


def test_dropout_differs_between_calls_of_one_plan() -> None:
    inputs = qkv(40)
    assert not torch.equal(rg.attend(*inputs, dropout=0.5), rg.attend(*inputs, dropout=0.5))


def test_a_plan_does_not_keep_the_mask_alive() -> None:
    pytest.importorskip("triton")
    from regard.attention.call import lower, make_call
    from regard.attention.kernels.dot import passes

    lengths = torch.tensor([3, 5])
    alive = weakref.ref(lengths)
    p = lower(make_call(*qkv(), mask=rg.Lengths(lengths)))
    passes.DotInputs(p)
    del p, lengths
    gc.collect()
    assert alive() is None


def test_calls_of_one_kind_share_a_plan() -> None:
    parts = rg.Parts(mask=rg.Window(2), position=rg.Alibi())
    plan = resolve(*qkv(), parts).plan
    assert resolve(*qkv(), rg.Parts(mask=rg.Window(2), position=rg.Alibi())).plan is plan
    assert resolve(*qkv(8), parts).plan is not plan
    assert resolve(*qkv(), parts, backend="reference").plan is not plan
    assert resolve(*(x.double() for x in qkv()), parts).plan is not plan


def test_chunks_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = rg.Causal() & rg.Window(5)
    want = rg.attend(*(inputs := qkv(30)), mask=mask, backend="blockwise")
    monkeypatch.setattr(schedule, "make_chunks", lambda *_: pytest.fail("computed again"))
    assert torch.equal(rg.attend(*inputs, mask=mask, backend="blockwise"), want)


@pytest.mark.parametrize("mask", [rg.Window(2, 1), rg.Window(2, 1) & rg.Lengths(torch.tensor([4, 7]))], ids=str)
def test_mask_tensors_are_made_once_and_can_be_trained_with(mask: rg.Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = qkv()
    with torch.inference_mode():
        want = rg.attend(q, k, v, mask=mask, backend="sdpa")
    monkeypatch.setattr(sdpa, "make_mask_tensor", lambda *_: pytest.fail("made again"))
    q.requires_grad_()
    actual = rg.attend(q, k, v, mask=mask, backend="sdpa")
    assert torch.equal(actual, want)
    actual.sum().backward()


def test_a_mask_tensor_follows_the_lengths() -> None:
    lengths, inputs = torch.tensor([2, 7]), qkv()
    mask = rg.Window(2, 1) & rg.Lengths(lengths)
    for length in (2, 5):
        lengths[0] = length
        actual, want = (rg.attend(*inputs, mask=mask, backend=name) for name in ("sdpa", "reference"))
        assert torch.allclose(actual, want, atol=1e-6)


def test_edges_are_sorted_once_until_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    sort, sorted_graphs = edges.sort_both_ways, []
    monkeypatch.setattr(edges, "sort_both_ways", lambda *x: sorted_graphs.append(x) or sort(*x))
    graph, x = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.randn(1, 2, 4, 8)
    with torch.inference_mode():
        rg.attend(x, x, x, mask=rg.Edges(graph))
    leaf = x.clone().requires_grad_()
    rg.attend(leaf, leaf, leaf, mask=rg.Edges(graph)).sum().backward()
    assert len(sorted_graphs) == 1
    mask = rg.Edges(graph)
    graph[0, 0] = 3
    assert torch.equal(mask.dense(4, 4), rg.Edges(graph.clone()).dense(4, 4))
    assert torch.equal(rg.attend(x, x, x, mask=mask), rg.attend(x, x, x, mask=rg.Edges(graph.clone())))


def test_tensors_are_made_once_and_outside_inference_mode() -> None:
    find = tensor_cache(lambda n, device: torch.zeros(n, device=device))
    with torch.inference_mode():
        first = find(1, "cpu")
    assert find(1, "cpu") is first and not first.is_inference()
    assert find(2, "cpu") is not first


def test_fake_tensors_are_not_cached() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    find = tensor_cache(lambda n: torch.zeros(n))
    with FakeTensorMode():
        assert isinstance(find(3), FakeTensor)
    assert not isinstance(find(3), FakeTensor)
    with FakeTensorMode():
        assert isinstance(find(3), FakeTensor)


def test_a_mask_like_an_earlier_one_takes_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the lengths of another batch: nothing is planned, and the contents are its own."""
    q, k, v = (torch.randn(2, 2, 20, 8) for _ in range(3))
    rg.attend(q, k, v, mask=rg.Lengths(torch.tensor([3, 20])))
    monkeypatch.setattr(attend_module, "resolve", lambda *_: pytest.fail("planned again"))
    for lengths in ([20, 1], [0, 7], [5, 5]):
        mask = rg.Lengths(torch.tensor(lengths))
        found = rg.attend(q, k, v, mask=mask)
        monkeypatch.undo()
        torch.testing.assert_close(found, rg.attend(q, k, v, mask=mask, backend="reference"))
        monkeypatch.setattr(attend_module, "resolve", lambda *_: pytest.fail("planned again"))


def test_a_plan_is_not_that_of_other_parts() -> None:
    """Scores, positions, backends and deterministic algorithms are part of what a plan is found by."""
    x = torch.randn(1, 2, 9, 4)
    outputs = [
        rg.attend(x, x, x, **parts)
        for parts in (
            {},
            {"score": rg.Dot(2.0)},
            {"score": rg.Dot(3.0)},
            {"position": rg.Alibi()},
            {"mask": rg.Causal()},
        )
        for _ in range(2)
    ]
    for first, second in zip(outputs[::2], outputs[1::2], strict=True):
        torch.testing.assert_close(first, second)
    assert all(not torch.allclose(a, b) for n, a in enumerate(outputs[::2]) for b in outputs[::2][:n])
    table = torch.randn(2, 17)
    one = rg.attend(x, x, x, position=rg.Bias(table, 8))
    table.mul_(2.0)
    assert not torch.allclose(rg.attend(x, x, x, position=rg.Bias(table, 8)), one)
