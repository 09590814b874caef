"""Parts as one value: it compares, prints as the line that makes it, and refuses what is not a part."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard as rg

from .strategies import masks


def test_the_default_is_plain_attention() -> None:
    assert rg.Parts() == rg.Parts(rg.Dot(), None, None, rg.Exact(), 0.0)
    assert rg.Parts(score=None, method=None) == rg.Parts() and repr(rg.Parts()) == "Parts()"


@given(masks, st.sampled_from([None, rg.Alibi(), rg.Rotary(dim=2)]), st.floats(0, 1))
def test_it_prints_as_the_line_that_makes_it(mask: rg.Mask, position: rg.Position | None, dropout: float) -> None:
    parts = rg.Parts(rg.Dot(scale=2.0), position, mask, rg.Nystrom(landmarks=4), dropout)
    assert eval(repr(parts), vars(rg)) == parts


def test_it_compares_by_value_and_hashes() -> None:
    one, two = (rg.Parts(position=rg.Bias(torch.zeros(2, 3)), mask=rg.Window(3)) for _ in range(2))
    assert one == two and hash(one) == hash(two)
    assert one != replace(one, position=rg.Bias(torch.ones(2, 3)))


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        rg.Parts().dropout = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"score": "Dot()"}, r"score is 'Dot\(\)'; it must be a Score. Pass a part."),
        ({"score": 1.0}, "score is 1.0; it must be a Score"),
        ({"score": rg.Dot}, r"it must be a Score. Call it: Dot\(...\)."),
        ({"position": rg.Causal()}, r"position is Causal\(\); it must be a Position"),
        ({"mask": torch.ones(2, 2)}, r"it must be a Mask. Wrap a boolean tensor in regard.Pairs\(...\)"),
        ({"method": "exact"}, r"method is 'exact'; it must be a Method, such as Exact\(\)"),
        ({"dropout": 1.5}, "dropout is 1.5; it must be a number from 0 to 1."),
        ({"dropout": None}, "dropout is None; it must be a number"),
    ],
    ids=str,
)
def test_refusals(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(rg.BadInput, match=message):
        rg.Parts(**wrong)
