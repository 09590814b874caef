"""Recipes that cannot be read."""

from __future__ import annotations

import pytest

from regard.errors import BadInput
from regard.train.recipes import read_recipe


@pytest.mark.parametrize(
    "text, why",
    [
        ("task = ", "is not TOML"),
        (f"task = 'tag'\nsteps = {'9' * 5000}", "is not TOML"),
        (f"task = {'[' * 100_000}", "is not TOML"),
        ("steps = 3", "incomplete"),
    ],
    ids=["no value", "many digits", "deep", "no task"],
)
def test_recipe_that_cannot_be_read(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        read_recipe("mine", text)
