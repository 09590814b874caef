"""Agreement of attributions with ablation: the number, its noise floor, and when it is not stated."""

from __future__ import annotations

import pytest
import torch

from regard.lab.attribution.agreement import MIN_UNITS, count_units, measure_agreement
from regard.lab.attribution.methods import rank_correlations

from ..api_call import ask

NONE = None


def draw(units: int, seed: int) -> torch.Tensor:
    return torch.randn(units, generator=torch.Generator().manual_seed(seed))


def test_the_number_is_the_mean_rank_correlation():
    values = {name: draw(15, n) for n, name in enumerate(("raw", "value", "gradient", "effect"))}
    found = measure_agreement(values)
    wanted = rank_correlations(dict(values))["effect"]
    assert found is not None and found.units == 15
    for name in ("raw", "value", "gradient"):
        assert found.each[name] == pytest.approx(wanted[name], abs=1e-9)
    assert found.mean == pytest.approx(sum(found.each.values()) / 3, abs=1e-9)


def test_random_importances_stay_below_the_floor_nineteen_times_in_twenty():
    above = 0
    for seed in range(200):
        found = measure_agreement({"raw": draw(12, 2 * seed), "effect": draw(12, 2 * seed + 1)}, seed)
        assert found is not None
        above += found.mean > found.floor
    assert 2 <= above <= 20


def test_the_floor_falls_with_the_units_and_is_the_known_quantile():
    floors = []
    for units in (6, 10, 20, 60):
        found = measure_agreement({"raw": draw(units, 0), "effect": draw(units, 1)})
        assert found is not None
        floors.append(found.floor)
    assert floors == sorted(floors, reverse=True)
    assert floors[1] == pytest.approx(0.564, abs=0.04)  # the one-sided 5 % point of Spearman's coefficient of ten


def test_true_importances_are_above_it_and_chance_is_small():
    effect = draw(12, 3)
    found = measure_agreement({"raw": effect * 2, "value": effect + 0.01 * draw(12, 4), "effect": effect})
    assert found is not None and found.mean > 0.95 > found.floor and found.chance < 0.01


def test_few_units_and_missing_methods_are_not_judged():
    few = MIN_UNITS - 1
    assert measure_agreement({"raw": draw(few, 0), "effect": draw(few, 1)}) is None
    effect = draw(MIN_UNITS, 1)
    effect[2] = float("nan")
    assert measure_agreement({"raw": draw(MIN_UNITS, 0), "effect": effect}) is None
    assert count_units({"raw": draw(MIN_UNITS, 0), "value": NONE, "effect": effect}) == MIN_UNITS - 1
    assert measure_agreement({"raw": None, "effect": draw(9, 1)}) is None


def test_a_reading_says_how_far_it_can_be_trusted(lab):
    short = ask(lab, "honest/read", model="reviews-0", input={"text": "the cat sat"})
    assert short["agreement"] is None and short["units"]["count"] < short["units"]["least"] == MIN_UNITS
    found = ask(lab, "honest/read", model="reviews-0", input={"text": "the cat sat on the mat and the dog ran"})
    sizes = found["correlations"]["size"]["effect"]
    methods = ("raw", "value", "rollout", "gradient")
    assert found["agreement"]["mean"] == pytest.approx(sum(sizes[name] for name in methods) / 4, abs=1e-6)
    assert 0 < found["agreement"]["floor"] < 1 and found["agreement"]["units"] == len(found["tokens"])
    assert found["repeated"]["ablation"] != found["ablation"] and -1 <= found["repeated"]["correlation"] <= 1


def test_the_default_question_is_the_token_that_is_least_certain():
    from regard.lab.lab import Lab

    text = "He left the light bag on the left side of the light room."
    shipped = Lab()
    found = ask(shipped, "honest/read", model="tagger", input={"text": text})
    tags = ask(shipped, "formula/run", model="tagger", input={"text": text})["prediction"]["items"]
    least = min(tags, key=lambda item: item["probability"])
    assert found["question"]["place"] == least["token"] and found["question"]["probability"] < 0.7
    effect = found["attributions"]["effect"].clone()
    effect[least["token"]] = 0
    assert float(effect.abs().max()) > 0.5  # another token matters
