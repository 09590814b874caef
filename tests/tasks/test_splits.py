"""Which examples are learned from and chosen by: what the files say, what is given beside them, or a tenth."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import regard as rg
from regard.data.reading import Reading
from regard.tasks.splits import select_split, split_data
from regard.tasks.task import Task


def reading(*splits: str) -> Reading:
    return Reading(tuple(SimpleNamespace(split=split, number=n) for n, split in enumerate(splits)))


def numbers(one: Reading) -> list[int]:
    return [example.number for example in one.examples]


def test_a_file_that_defines_its_splits() -> None:
    learned, chosen = split_data(reading("train", "test", "dev", "train"), None, Task, 0)
    assert (numbers(learned), numbers(chosen)) == ([0, 3], [2])


def test_test_is_not_looked_at_unless_it_is_given() -> None:
    whole = reading(*["train"] * 20, *["test"] * 5)
    learned, chosen = split_data(whole, None, Task, 0)
    assert len(chosen) == 2 and max(numbers(learned) + numbers(chosen)) < 20
    assert numbers(split_data(whole, whole, Task, 0)[1]) == list(range(20, 25))


def test_files_that_name_none() -> None:
    learned, chosen = split_data(reading("", ""), reading("", "", ""), Task, 0)
    assert (len(learned), len(chosen)) == (2, 3)
    assert numbers(select_split(reading("", ""), "test", "dev")) == [0, 1]
    with pytest.raises(rg.BadInput, match="a split needs two"):
        split_data(reading(""), None, Task, 0)
