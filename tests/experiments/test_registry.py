"""Finding experiments by name and by number, and refusing broken ones."""

import re
import sys
from types import ModuleType
from typing import Any

import pytest

from regard.errors import BadInput
from regard.experiments import Bilingual, Claim, find_experiment, list_experiments, registry

TEXT = Bilingual("text", "文字")


def test_experiments_are_listed_by_number() -> None:
    claims = [experiment.CLAIM for experiment in list_experiments()]
    numbers = [claim.number for claim in claims]
    assert numbers == sorted(set(numbers))
    assert [claim.name for claim in claims if claim.number <= 6] == [
        "soft-dictionary",
        "grey-ball",
        "fixed-weights",
        "scaling",
        "embedding-scaling",
        "order",
    ]


def test_claims_have_both_languages() -> None:
    for claim in (experiment.CLAIM for experiment in list_experiments()):
        for text in (claim.title, claim.claim, claim.setup, *(criterion.text for criterion in claim.criteria)):
            assert text.en and not re.search("[\u4e00-\u9fff]{6}", text.en), claim.name
            assert text is claim.title or re.search("[\u4e00-\u9fff]", text.zh), claim.name


def test_find_by_name_suggests_the_nearest() -> None:
    assert find_experiment("grey-ball").CLAIM.number == 2
    with pytest.raises(BadInput, match="grey-ball"):
        find_experiment("gray-ball")
    with pytest.raises(BadInput, match="no experiment 'runner'"):
        find_experiment("runner")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"CLAIM": "a claim"}, "not a Claim"),
        ({"CLAIM": Claim(99, "other", TEXT, TEXT, TEXT, ())}, "file and name must agree"),
        ({"draw": None}, r"no draw\(\)"),
        ({"PARAMETERS": None}, "no PARAMETERS"),
    ],
)
def test_broken_experiment_is_named(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, experiment_factory: Any
) -> None:
    module = ModuleType("regard.experiments.claims.made")
    module.__dict__.update(vars(experiment_factory(**changes)))
    monkeypatch.setitem(sys.modules, "regard.experiments.claims.made", module)
    with pytest.raises(BadInput, match=f"made.*{message}"):
        registry.load_experiment("made")


def test_failed_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "regard.experiments.claims.made", None)
    with pytest.raises(BadInput, match="made cannot be imported: ModuleNotFoundError"):
        registry.load_experiment("made")


def test_duplicate_number_is_named(monkeypatch: pytest.MonkeyPatch, experiment_factory: Any) -> None:
    both = {"first": experiment_factory("first"), "second": experiment_factory("second")}
    monkeypatch.setattr(registry, "module_names", lambda: list(both))
    monkeypatch.setattr(registry, "load_experiment", both.__getitem__)
    with pytest.raises(BadInput, match="first and second both have the number 99"):
        list_experiments()
