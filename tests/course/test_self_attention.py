"""Chapter 5, first half: the four steps, the three vectors, heads and the pronoun."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from regard.course import find_step
from regard.course.controls import Choice, Slider

NAMES = ("four-steps", "roles", "three-vectors", "multi-head", "coreference")


def run(name: str, **values: Any) -> dict[str, Any]:
    return find_step(name).run(values)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_computes_and_equals_attend(name: str) -> None:
    step = find_step(name)
    for control in step.controls:
        options = [option for option, _ in control.options] if isinstance(control, Choice) else []
        ends = [control.low, control.high] if isinstance(control, Slider) else []
        for value in [*options, *ends]:
            result = step.run({control.name: value})
            attended = step.run_attend({control.name: value})
            assert np.abs(attended - result[step.answer]).max() <= 1e-6
            for finding in step.findings:
                assert finding.text.en.format(**result) and finding.text.zh.format(**result)


def test_the_cat_attends_to_the_others_more_than_to_itself() -> None:
    result = run("four-steps")
    assert result["words"] == ["猫", "坐在", "垫子"]
    assert result["weights"][0, 0] < 0.1 and result["weights"][0, 1:].sum() > 0.9
    w_q = find_step("four-steps").start_values("en")["w_q"]
    w_q[0] = [3.0, 0.0, 0.0, 0.0]
    turned = run("four-steps", w_q=w_q)
    assert turned["weights"][0].argmax() == 0 and not find_step("four-steps").findings[0].check(turned)


def test_four_steps_are_those_of_torch() -> None:
    result = run("four-steps")
    x, w_q, w_k, w_v = (torch.from_numpy(result[name]) for name in ("inputs", "w_q", "w_k", "w_v"))
    expected = torch.nn.functional.scaled_dot_product_attention((x @ w_q)[None], (x @ w_k)[None], (x @ w_v)[None])[0]
    assert np.allclose(result["output"], expected.numpy())


@pytest.mark.parametrize("word", [1, 2, 3])
def test_what_query_key_and_value_decide(word: int) -> None:
    assert run("roles", word=word)["table"].tolist() == [[1, 3, 3, 1], [3, 1, 9, 3], [0, 0, 0, 3]]
    query = run("roles", vector="query", word=word)
    assert np.flatnonzero(np.abs(query["scores_change"]).max(axis=1) > 1e-12).tolist() == [word - 1]
    key = run("roles", vector="key", word=word)
    assert np.flatnonzero(np.abs(key["scores_change"]).max(axis=0) > 1e-12).tolist() == [word - 1]
    value = run("roles", vector="value", word=word, amount=2.0)
    assert np.all(value["change"] == 0) and np.all(value["output_change"] > 0)


def test_each_ablation_loses_what_the_step_says() -> None:
    ages, asks = [20.0, 30.0, 40.0, 50.0], [4.0, 4.0, 1.0, 2.0]
    result = run("three-vectors", ages=ages, asks=asks, sharpness=24.0)
    wanted, full, tied, joined, without = result["answers"].T
    assert np.allclose(full, wanted, atol=0.01) and np.allclose(without, wanted, atol=0.01)
    assert np.allclose(tied, ages, atol=0.01), "W_q = W_k: everybody finds themselves"
    assert np.allclose(joined, 35.0)
    older = run("three-vectors", ages=[21.0, 31.0, 41.0, 51.0], asks=asks, sharpness=24.0)
    assert np.array_equal(result["found"], older["found"]), "K = V: no age arrives"


@pytest.mark.parametrize("heads", ["1", "2", "4"])
def test_heads_concatenate_as_in_torch(heads: str) -> None:
    result = run("multi-head", heads=heads)
    w_q, w_k, w_v, w_o = torch.from_numpy(np.random.default_rng(8).normal(0, 2, (4, 4, 4)))
    torchs = torch.nn.MultiheadAttention(4, int(heads), bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        torchs.in_proj_weight.copy_(torch.cat([w_q.T, w_k.T, w_v.T]))
        torchs.out_proj.weight.copy_(w_o.T)
        x = torch.tensor(find_step("multi-head").start_values("en")["inputs"], dtype=torch.float64)[None]
        expected, weights = torchs(x, x, x, average_attn_weights=False)
    assert np.allclose(result["output"], expected[0].numpy())
    assert np.allclose(result["maps"], weights[0].reshape(-1, 3).numpy())


def test_it_follows_the_ending_and_knows_nothing_without_context() -> None:
    tired, wide = run("coreference"), run("coreference", ending="wide")
    assert tired["best"] == "animal" and wide["best"] == "street"
    assert wide["words"][-1] == "wide"
    alone = run("coreference", context=0.0)
    assert np.isclose(alone["animal"], alone["street"])
    assert not find_step("coreference").findings[0].check(alone)
