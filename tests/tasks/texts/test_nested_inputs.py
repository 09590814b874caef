"""Inputs of `predict` in JSON that is nested too deeply."""

from __future__ import annotations

import pytest

from regard.errors import BadInput
from regard.tasks.texts.pair_inputs import parse_object
from regard.tasks.texts.rank import candidates_in

DEEP = "[" * 100_000


def test_an_object_is_refused() -> None:
    with pytest.raises(BadInput, match="no JSON object"):
        parse_object('{"first":' + DEEP)


def test_a_text_that_begins_with_a_bracket_is_a_text() -> None:
    assert candidates_in({"candidates": DEEP}, ["candidates"]) == [DEEP]
