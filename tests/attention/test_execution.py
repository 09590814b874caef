"""What is worked out once is used again, and never for another mask or for tensors that have changed since."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import regard as rg
from regard.attention.execution import PlanCache
from regard.attention.tensor_cache import tensor_cache

from .random_calls import Stripes


class Listed(rg.Mask):
    """A mask whose field cannot be compared by value."""

    def __init__(self, places: list[int]):
        self.places = places

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return torch.isin(j, torch.tensor(self.places)) | (i < 0)


class Counter:
    """A maker that counts what it made."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, *_: Any) -> Any:
        self.made += 1
        return torch.zeros(self.made)


def made_for(*masks: rg.Mask, key: Any = 0) -> int:
    """How many things are made when these masks are asked for in turn."""
    cache, make = PlanCache(), Counter()
    for mask in masks:
        cache.mask(mask).get(key, make)
    return make.made


LENGTHS = torch.tensor([2, 3])
LISTED = Listed([1])


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
    assert made_for(one, two, one) == 1


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
        (Listed([1]), Listed([1])),
    ],
    ids=str,
)
def test_another_mask(one: rg.Mask, two: rg.Mask) -> None:
    assert made_for(one, two) == 2


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


def test_nothing_is_kept_of_tensors_that_are_gone() -> None:
    cache, make = PlanCache(), Counter()
    cache.mask(rg.Lengths(torch.tensor([2]))).get(0, make)
    cache.mask(rg.Causal()).get(0, make)
    assert len(cache.masks.values) == 1


def test_the_longest_unused_are_forgotten() -> None:
    cache, make = PlanCache(2), Counter()
    for before in (1, 2, 1, 3):  # 2 is the one to go
        cache.mask(rg.Window(before)).get(0, make)
    cache.mask(rg.Window(1)).get(0, make)
    assert make.made == 3
    cache.mask(rg.Window(2)).get(0, make)
    assert make.made == 4


def test_constants_are_made_once_and_can_be_trained_with() -> None:
    make = Counter()
    find = tensor_cache(make)
    with torch.inference_mode():
        first = find(1, "cpu")
    assert find(1, "cpu") is first and not first.is_inference()
    assert find(2, "cpu") is not first


def test_pretended_tensors_are_neither_kept_nor_mixed_with_real_ones() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    find = tensor_cache(lambda n: torch.zeros(n))
    with FakeTensorMode():
        assert isinstance(find(3), FakeTensor)
    assert not isinstance(find(3), FakeTensor)
    with FakeTensorMode():
        assert isinstance(find(3), FakeTensor)


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


def test_dropout_is_drawn_anew_for_a_settled_call() -> None:
    inputs = qkv(40)
    assert not torch.equal(rg.attend(*inputs, dropout=0.5), rg.attend(*inputs, dropout=0.5))


def test_a_mask_that_is_gone_is_not_kept_by_what_was_worked_out_for_it() -> None:
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
