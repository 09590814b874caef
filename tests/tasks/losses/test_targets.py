"""Targets: what labels are taken for, their losses, scores and results."""

from __future__ import annotations

import json
import math
from random import Random

import pytest
import torch
from torch.nn import functional

from regard import BadInput
from regard.data.tables.label_types import infer_label_type, split_labels
from regard.tasks.losses.choose_target import input_target_from_dict, make_target, stratify_labels, target_note
from regard.tasks.losses.targets import ClassTarget, LabelsTarget, RegressionTarget, best_threshold


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["spam", "ham"] * 5, "class"),
        ([str(n % 5 + 1) for n in range(50)], "class"),  # stars
        ([str(n % 77) for n in range(770)], "class"),  # indices of classes
        (["0.0", "1.0"] * 5, "class"),
        ([f"{n / 7:.2f}" for n in range(30)], "number"),
        ([str(20 + 3 * n) for n in range(30)], "number"),  # ages, prices
        ([*(f"{n / 7:.2f}" for n in range(30)), "n/a"], "number"),  # the reader reports what is none
        (["drama|crime", "drama", "crime;war", "war|crime"], "labels"),
        (['["a", "b"]', '["a"]', "[]"], "labels"),
        (["either|or"] * 4 + ["yes"] * 4, "class"),  # one combination only: the name of a class
    ],
)
def test_labels_are_what_they_look_like(labels: list[str], expected: str) -> None:
    assert infer_label_type(labels) == expected


def test_a_number_is_standardized_and_comes_back_in_its_unit() -> None:
    labels = [str(100 + 10 * n) for n in range(5)]
    target = make_target(labels, "number")
    assert isinstance(target, RegressionTarget) and target.mean == [120.0]
    logits = (target.tensor(labels) - 120) / target.std[0]
    assert target.loss(logits, target.tensor(labels), 0.0).item() == pytest.approx(0.0, abs=1e-9)
    scores = target.scores(logits, labels)
    assert scores.metrics["RMSE"] == pytest.approx(0, abs=1e-4) and scores.metrics["R2"] == pytest.approx(1)
    assert not scores.higher and scores.metrics["Spearman"] == pytest.approx(1)
    (result, *_) = target.predictions(["a"] * 5, logits)
    assert result.to_dict() == {"input": "a", "value": 100.0}
    shifted = target.scores(logits + 10 / target.std[0], labels).metrics
    assert shifted["MAE"] == pytest.approx(10, rel=1e-4) and shifted["R2"] == pytest.approx(1 - 100 / 200, rel=1e-3)
    huber = make_target(labels, "number", "huber")
    far = logits + 3.0
    assert huber.loss(far, target.tensor(labels), 0.0).item() == pytest.approx(5 * 2.5, rel=1e-5)


def test_spearman_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = Random(0)
    values = [str(rng.randint(0, 9)) for _ in range(60)]  # with ties
    logits = torch.tensor([[rng.randint(0, 5) / 2] for _ in values])
    target = RegressionTarget.fit(values)
    expected = stats.spearmanr([float(v) for v in values], logits[:, 0].tolist()).statistic
    assert target.scores(logits, values).metrics["Spearman"] == pytest.approx(expected)


def test_sets_of_labels_have_the_scores_of_their_definition() -> None:
    target = make_target(["a|b", "b", "c;a", "[]"], "labels")
    assert isinstance(target, LabelsTarget) and target.labels == ["a", "b", "c"]
    logits = torch.tensor([[2.0, -2.0, -2.0], [-2.0, 2.0, 2.0]])
    labels = ["a|b", "b|c"]
    metrics = target.scores(logits, labels).metrics
    assert metrics["micro F1"] == pytest.approx(2 * 3 / (3 + 4))
    assert metrics["macro F1"] == pytest.approx((1 + 2 / 3 + 1) / 3)
    assert metrics["subset accuracy"] == 0.5
    expected = functional.binary_cross_entropy_with_logits(logits, torch.tensor([[1.0, 1, 0], [0, 1, 1]]))
    assert metrics["loss"] == pytest.approx(expected.item())
    assert target.predictions(["x", "y"], logits)[1].to_dict()["labels"] == ["b", "c"]
    assert target.unknown(["a|zebra"]) == {"zebra": 1}


def test_thresholds_are_tuned_and_restored() -> None:
    target = LabelsTarget(["a", "b"])
    rows = ["a"] * 20 + ["b"] * 20
    logits = torch.tensor([[-1.0, -3.0]] * 20 + [[-2.0, -2.0]] * 20)  # right order, all under one half
    assert target.scores(logits, rows).metrics["micro F1"] == 0
    target.tune(logits, rows)
    assert target.scores(logits, rows).metrics["micro F1"] == 1
    again = input_target_from_dict(json.loads(json.dumps(target.as_dict())))
    again.restore_tuned(json.loads(json.dumps(target.tuned_values())))
    assert again.scores(logits, rows).metrics["subset accuracy"] == 1
    assert best_threshold(torch.tensor([0.2, 0.2, 0.9]), torch.tensor([True, False, True])) < 0.2


def test_rare_labels_count_more_when_balanced() -> None:
    rows = ["a"] * 9 + ["a|b"]
    plain, balanced = make_target(rows, "labels"), make_target(rows, "labels", balanced=True)
    logits, labels = torch.zeros(1, 2), plain.tensor(["b"])
    assert plain.loss(logits, labels, 0.0).item() == pytest.approx(2 * math.log(2))
    assert balanced.loss(logits, labels, 0.0, True).item() == pytest.approx((1 + 9) * math.log(2))
    assert balanced.loss(logits, labels, 0.0).item() == pytest.approx(2 * math.log(2))  # not in evaluation
    with pytest.raises(BadInput, match="labels are numbers"):
        make_target(["1.5", "2.5"], "auto", balanced=True)


def test_what_labels_are_taken_for_is_said() -> None:
    numbers = [f"{n / 7:.2f}" for n in range(30)]
    assert "regression. Give target=class" in target_note(make_target(numbers, "auto"), numbers)
    sets = ["a|b", "b|c", "a"]
    assert "sets of 3 labels, 1.67 an example" in target_note(make_target(sets, "auto"), sets)
    stars = [str(n % 5) for n in range(50)]
    assert "5 classes with numbers for names" in target_note(make_target(stars, "auto"), stars)
    assert target_note(make_target(["x", "y"], "auto"), ["x", "y"]) == ""
    with pytest.raises(BadInput, match="is 'many', and this model predicts numbers"):
        RegressionTarget([0.0], [1.0]).tensor(["1", "many"])
    with pytest.raises(BadInput, match="There is 1 class in 2 examples"):
        make_target(["x", "x"], "auto")


def test_strata_have_the_rarest_label_or_a_tenth_of_the_numbers() -> None:
    strata = stratify_labels(["a|b", "a|b", "a", "a|c"])
    assert strata == ["b", "b", "a", "c"]
    numbers = stratify_labels([f"{n}.5" for n in range(100)])
    assert [numbers.count(str(n)) for n in range(10)] == [10] * 10
    assert stratify_labels(["x", "y"]) == ["x", "y"]


def test_splitting_of_cells() -> None:
    assert split_labels("one") == ("one",)
    assert split_labels("[1, 2]") == ("1", "2")
    assert split_labels("[sic] not JSON") == ("[sic] not JSON",)
    assert isinstance(make_target(["1", "2"], "class"), ClassTarget)
