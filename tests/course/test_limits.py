"""Chapter 5, second half: what each step shows, at its start values and at others."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from regard.course.chapters.limits import LIMITS
from regard.course.chapters.limits.levels import TASKS
from regard.course.step import Step
from regard.tasks.architecture import MODELS

STEPS = {step.name: step for step in LIMITS}
OTHER_VALUES = [
    ("reorder", {"sentence": "a b c d e", "code": "sine"}),
    ("absolute-relative", {"scheme": "relative", "decay": 2.0}),
    ("absolute-relative", {"scheme": "none"}),
    *[("separate-positions", {"part": part, "layers": 3}) for part in ("sine", "distance", "causal")],
    ("local-detail", {"locality": 1.5, "strength": 0.5}),
    ("other-weights", {"change": -0.4}),
    *[("sparse-mask", {"pattern": pattern}) for pattern in ("full", "window", "bigbird", "painted")],
    ("sparse-mask", {"pattern": "painted", "painted": np.zeros((10, 10)).tolist()}),
    *[("blockwise", {"block": block, "query": [-3.0, 4.0]}) for block in (1, 5, 24)],
    *[("low-rank", {"rank": rank, "sharpness": 3.0}) for rank in (1, 7, 24)],
    ("hierarchical", {"sentence_scores": [-4.0, 4.0, 0.0]}),
    *[("applications", {"task": task, "units": 6}) for task, _ in TASKS],
]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("step", LIMITS, ids=lambda step: step.name)
def test_findings_hold_at_the_start_and_attend_is_equal(step: Step, language):
    result = step.run(language=language)
    for finding in step.findings:
        assert finding.check(result) and "{" not in finding.text(language).format(**result)
    if step.attend is not None:
        assert np.abs(step.run_attend(language=language) - result[step.answer]).max() < 1e-6


@pytest.mark.parametrize(("name", "values"), OTHER_VALUES)
def test_attend_is_equal_for_other_values(name, values):
    step = STEPS[name]
    assert np.abs(step.run_attend(values) - step.run(values)[step.answer]).max() < 1e-6


@pytest.mark.parametrize("words", ["猫 追 狗", "狗 追 猫", "追 狗 猫"])
def test_reordering_permutes_the_outputs(words):
    start, other = STEPS["reorder"].run({"sentence": "猫 追 狗"}), STEPS["reorder"].run({"sentence": words})
    assert start["listed"] == other["listed"]
    assert np.allclose(start["by_word"], other["by_word"]) and np.allclose(start["pair"], other["pair"])
    coded = [STEPS["reorder"].run({"sentence": text, "code": "sine"})["by_word"] for text in ("猫 追 狗", words)]
    assert np.allclose(*coded) == (words == "猫 追 狗")


def test_a_sentence_with_a_code_is_found_to_change():
    finding = STEPS["reorder"].findings[0]
    assert not finding.check(STEPS["reorder"].run({"code": "sine"}))


def test_relative_positions_do_not_notice_a_shift_and_weigh_what_is_near():
    relative = [STEPS["absolute-relative"].run({"scheme": "relative", "decay": decay}) for decay in (0.5, 3.0)]
    assert [result["change"] for result in relative] == [0, 0]
    assert relative[0]["near"] < relative[1]["near"]
    assert STEPS["absolute-relative"].run({"shift": 0})["change"] == 0


@pytest.mark.parametrize("layers", [1, 4])
def test_only_a_part_for_positions_tells_equal_words_apart(layers):
    spreads = {
        part: STEPS["separate-positions"].run({"part": part, "layers": layers})["spread"]
        for part in ("none", "sine", "distance", "causal")
    }
    assert spreads["none"] < 1e-9 and min(spreads["sine"], spreads["distance"], spreads["causal"]) > 0.01


def test_twice_the_tokens_take_four_times_the_memory():
    small, large = (STEPS["square-cost"].run({"doublings": doublings}) for doublings in (10, 11))
    assert large["gigabytes"] == 4 * small["gigabytes"]
    assert large["inputs_gigabytes"] == 2 * small["inputs_gigabytes"]
    assert STEPS["square-cost"].run({"side": 224})["table"][:, 0].tolist() == [224**2, 14**2]


def test_stripes_come_back_when_attention_is_local():
    kept = [STEPS["local-detail"].run({"locality": locality})["kept"] for locality in (0, 1, 4)]
    assert kept[0] < 1e-12 and kept == sorted(kept) and kept[2] > 0.9


@pytest.mark.parametrize("change", [-1, -0.3, 0, 0.7])
def test_other_weights_are_weights_with_the_same_output(change):
    result = STEPS["other-weights"].run({"change": change})
    assert np.allclose(result["both"].sum(1), 1) and result["both"].min() > -1e-12
    assert result["difference"] < 1e-12 and (result["moved"] > 0.01) == (change != 0)


def test_patterns_join_more_with_more_pairs():
    patterns = ("window", "longformer", "bigbird", "full")
    results = [STEPS["sparse-mask"].run({"pattern": pattern}) for pattern in patterns]
    for less, more in pairwise(results):
        assert less["pairs"] < more["pairs"] and less["kept"] < more["kept"] and less["reach"] <= more["reach"]
    assert results[0]["reach"] < 0.5 and results[-1]["error"] < 1e-12
    painted = np.eye(10)
    assert STEPS["sparse-mask"].run({"pattern": "painted", "painted": painted.tolist()})["pairs"] == 10


@pytest.mark.parametrize("block", [1, 7, 24])
def test_blocks_of_every_size_give_the_same_output(block):
    result = STEPS["blockwise"].run({"block": block})
    assert result["blocks"] == -(-24 // block) and np.allclose(result["output"], STEPS["blockwise"].run()["output"])


def test_error_falls_with_rank_and_full_rank_is_exact():
    errors = [STEPS["low-rank"].run({"rank": rank})["error"] for rank in range(1, 25)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-12
    assert STEPS["low-rank"].run({"rank": 24})["loss"] < 1e-12


def test_the_mood_turns_with_the_sentence_that_is_heard():
    result = STEPS["hierarchical"].run({"sentence_scores": [0.0, 3.0, 0.0]})
    assert result["document"] < 0 and np.isclose(result["shares"].sum(), 1)
    assert np.allclose(result["shares"].sum(1), result["sentence_weights"])


def test_the_model_that_the_step_names_exists():
    assert "classify --model hierarchical" in STEPS["hierarchical"].task.en and "hierarchical" in MODELS


def test_applications_differ_in_queries_and_mask():
    pairs = {task: STEPS["applications"].run({"task": task, "units": 8})["pairs"] for task, _ in TASKS}
    assert pairs == {
        "translation": 48,
        "generation": 36,
        "classification": 8,
        "images": 64,
        "detection": 24,
        "matching": 32,
        "speech": 32,
    }
