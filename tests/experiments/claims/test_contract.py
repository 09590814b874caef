"""The contract of every claim: its numbers, its verdict, its figure, its progress and its texts."""

import json
import math
import re
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from regard.experiments import list_experiments
from regard.experiments.claims import (
    additive,
    coreference,
    embedding_scaling,
    explanation,
    fixed_weights,
    grey_ball,
    heads,
    layers,
    length,
    long_range,
    masked_training,
    order,
    scaling,
    soft_dictionary,
)
from regard.experiments.progress import ignore_progress
from regard.experiments.toolkit import minilm

NEEDS_MINILM = pytest.mark.skipif(find_spec(minilm.PACKAGE) is None, reason=f"{minilm.PACKAGE} is not installed")
CLAIMS: list[Any] = list(list_experiments())
CHINESE = re.compile("[\u4e00-\u9fff]")


def parameters(*modules: Any) -> list[Any]:
    """Parameters of a test over these claims, by name."""
    uses_minilm = (coreference, explanation, layers)
    return [
        pytest.param(module, id=module.CLAIM.name, marks=NEEDS_MINILM if module in uses_minilm else ())
        for module in modules
    ]


def without_times(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in numbers.items() if name != "times"}


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from leaves(child)
    else:
        yield value


@pytest.mark.parametrize("module", parameters(*CLAIMS))
def test_numbers_are_finite_json(module: ModuleType, toy: Any) -> None:
    numbers = toy(module)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert all(math.isfinite(leaf) for leaf in leaves(numbers) if isinstance(leaf, int | float))


@pytest.mark.parametrize("module", parameters(*CLAIMS))
def test_same_seed_gives_the_same_numbers(module: ModuleType, toy: Any) -> None:
    assert without_times(module.measure("toy", 0, ignore_progress)) == without_times(toy(module))


@pytest.mark.parametrize(
    "module", parameters(soft_dictionary, order, length, long_range, heads, additive, masked_training)
)
def test_other_seed_gives_other_numbers(module: ModuleType, toy: Any) -> None:
    assert without_times(module.measure("toy", 1, ignore_progress)) != without_times(toy(module))


@pytest.mark.parametrize("module", parameters(*CLAIMS))
def test_progress_rises_from_0_to_1(module: ModuleType) -> None:
    fractions: list[float] = []
    module.measure("toy", 1, lambda fraction, text: fractions.append(fraction))
    assert fractions and fractions == sorted(fractions) and fractions[0] >= 0 and fractions[-1] <= 1
    if module in (soft_dictionary, grey_ball, fixed_weights, scaling, embedding_scaling, order):
        assert fractions[0] > 0, "the first report comes after work"


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("module", parameters(*CLAIMS))
def test_figure_is_labelled_in_the_language(module: Any, language: Any, toy: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = module.draw(toy(module), language)
        figure.savefig(tmp_path / "figure.png")
    titles = [axes.get_title() for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert all(titles)
    assert bool(CHINESE.search("".join(titles))) == (language == "zh")
    assert all(axes.get_xlabel() + axes.get_ylabel() for axes in figure.axes if axes.axison)


@pytest.mark.parametrize("module", parameters(*CLAIMS))
def test_verdict_is_one_of_three_in_both_languages(module: Any, toy: Any) -> None:
    verdict = module.verdict(toy(module))
    assert verdict.kind in ("holds", "limited", "fails")
    for text in (verdict.key, verdict.why):
        assert CHINESE.search(text.zh) and not CHINESE.search(text.en)
    assert [part.name for part in verdict.subclaims] == [part.name for part in module.CLAIM.criteria]
    for part in verdict.subclaims:
        assert part.figures.en and part.figures.zh and not CHINESE.search(part.figures.en)


@pytest.mark.parametrize("module", [module for module in parameters(*CLAIMS) if module.values[0] is not order])
def test_claim_is_stated_in_both_languages(module: Any) -> None:
    """`order` quotes a Chinese sentence in its English text."""
    claim = module.CLAIM
    for text in (claim.title, claim.claim, claim.setup, *(criterion.text for criterion in claim.criteria)):
        assert CHINESE.search(text.zh) and not CHINESE.search(text.en)


def test_numbers_and_names_match_the_modules() -> None:
    assert [module.CLAIM.number for module in CLAIMS] == list(range(1, len(CLAIMS) + 1))
    modules = [module.__name__.split(".")[-1] for module in CLAIMS]
    assert [module.CLAIM.name.replace("-", "_") for module in CLAIMS] == modules
