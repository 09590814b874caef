"""Inputs that mutated files led to: what they did once, and the errors of ours that they are now."""

from __future__ import annotations

import pytest

import regard as rg
from regard.assets import resolve_folder
from regard.data.graphs.edge_parts import find_ends
from regard.tasks.inputs.words.features import WordFeatures


@pytest.mark.parametrize("size", ["max_affix", "char_ngrams", "max_word_length"])
def test_features_of_endless_words_are_refused_before_memory_is_filled(size: str) -> None:
    with pytest.raises(rg.RegardError, match="REGARD_MAX_WORD_LETTERS"):
        WordFeatures(["a"], ["a"], ["<a"], **{size: 10**9})


def test_a_name_that_is_too_long_for_a_file_is_an_error_of_ours() -> None:
    with pytest.raises(rg.RegardError, match="cannot be opened"):
        resolve_folder("~" * 5000)


def test_columns_of_the_same_name_are_two_columns() -> None:
    assert find_ends(["", ""]) == (0, 1)
    assert find_ends(["target", "source", "target"]) == (1, 0)
    assert find_ends(["source", "source"]) == (0, 1)
