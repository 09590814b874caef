"""The claim soft-dictionary: its verdict, its data and its models."""

from typing import Any

import pytest
import torch

from regard.experiments.claims import soft_dictionary
from regard.experiments.toolkit.metrics import summarize


def make_numbers(**errors: float) -> dict[str, Any]:
    values = {"soft, concept": 0.01, "hard, concept": 1.0, "soft, word": 0.01, "hard, word": 0.0}
    values |= {name.replace("_", ", "): value for name, value in errors.items()}
    return {
        "answer": summarize([8.01]),
        "weights": [[0.6, 0.4, 1e-4]],
        "errors": {name: summarize([value]) for name, value in values.items()},
    }


def test_verdict() -> None:
    assert soft_dictionary.verdict(make_numbers()).kind == "holds"
    assert soft_dictionary.verdict(make_numbers(soft_word=0.3)).kind == "limited"
    assert soft_dictionary.verdict(make_numbers(soft_concept=0.9)).kind == "fails"
    assert soft_dictionary.verdict(make_numbers() | {"answer": summarize([8.0, 7.8])}).kind == "limited"


def test_example_has_the_stated_memberships() -> None:
    table = soft_dictionary.sample_memberships(torch.Generator().manual_seed(0))
    names = [word for word, _ in soft_dictionary.WORDS]
    fruit = table[len(names)]
    assert fruit[names.index("apple")].item() == pytest.approx(0.6)
    assert sum(
        fruit[names.index(word)].item() * value for word, value in soft_dictionary.EXAMPLE.items()
    ) == pytest.approx(8)


def test_dictionaries_have_a_target() -> None:
    generator = torch.Generator().manual_seed(0)
    table = soft_dictionary.sample_memberships(generator)
    for concepts in (True, False, None):
        _, words, _, weights = soft_dictionary.sample_dictionaries(table, 50, concepts, generator)
        assert torch.allclose(weights.sum(1), torch.ones(50))
        assert all(len(set(row)) == len(row) for row in words.tolist())
