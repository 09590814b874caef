"""Chapter 3: what each step shows, at its start values and at others."""

from __future__ import annotations

import numpy as np
import pytest

from regard.course.chapters.vector_sets import CHAPTER
from regard.course.chapters.vector_sets.lengths import PEOPLE
from regard.course.step import Step

STEPS = {step.name: step for step in CHAPTER.steps}
OTHER_VALUES = [
    ("window-layer", {"tokens": 31, "reach": 9}),
    ("flow", {"w_q": [[-1.0, 0.5], [0.3, 2.0]]}),
    ("two-heads", {"sharpness": 0.5}),
    ("word-order", {"sentence": "one two one three", "code": "sine"}),
    ("word-order", {"code": "learned"}),
    ("sine-code", {"positions": 17, "dim": 8}),
    ("truncated-speech", {"frames": 23, "reach": 0}),
    ("truncated-speech", {"reach": 47}),
    ("convolution-window", {"kernel": [[1, 2, -3], [0, 0.5, 4], [-1, 0, 1]]}),
    ("graph-edges", {"edges": np.zeros((6, 6)).tolist(), "layers": 3}),
    ("graph-edges", {"edges": np.ones((6, 6)).tolist(), "interest": 4}),
    ("any-length", {"tokens": 50, "dim": 2}),
    ("round-table", {"count": 50, "listener": 50, "focus": 12}),
    ("round-table", {"count": 1, "listener": 7}),
]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("step", CHAPTER.steps, ids=lambda step: step.name)
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


def test_queen_can_be_dragged_away_from_the_guess():
    start = STEPS["one-hot"].start_values("en")["embeddings"]
    moved = STEPS["one-hot"].run({"embeddings": [start[0], [-2.0, 2.0], *start[2:]]})
    assert moved["distances"].argmin() != 1 and moved["king_queen"] < 0.5
    assert np.array_equal(moved["one_hot_cosines"], STEPS["one-hot"].run()["one_hot_cosines"])


def test_longer_inputs_are_more_vectors_of_the_same_size():
    short, long = (STEPS["vector-inputs"].run({"seconds": seconds, "side": 64}) for seconds in (0.2, 0.4))
    assert long["frames"] > 1.9 * short["frames"] and long["sizes"][1, 1] == short["sizes"][1, 1] == 16
    assert short["patches"] == 256
    low, high = (STEPS["vector-inputs"].run({"pitch": pitch})["spectrum"] for pitch in (200, 1200))
    assert low[:, 0].argmax() > high[:, 0].argmax()  # a higher tone is in a higher row


@pytest.mark.parametrize("count", [1, 4, 12])
def test_outputs_are_n_one_or_as_many_as_the_model_decides(count):
    lazy, eager = (STEPS["output-counts"].run({"count": count, "stop": stop}) for stop in (2.0, 0.3))
    assert len(eager["each"]) == count and isinstance(eager["whole"], int)
    assert len(lazy["free"]) < len(eager["free"]) <= 24


def test_a_window_reads_the_first_word_only_if_it_covers_it():
    answers = [STEPS["window-layer"].run({"tokens": 12, "reach": reach})["window_answer"] for reach in (10, 11)]
    assert answers == [0, 1]
    sizes = [STEPS["window-layer"].run({"tokens": tokens}) for tokens in (5, 40)]
    assert sizes[0]["attention_size"] == sizes[1]["attention_size"] < sizes[1]["covering_size"]


def test_all_outputs_change_when_one_input_does():
    start = STEPS["flow"].start_values("en")["inputs"]
    moved = STEPS["flow"].run({"inputs": [*start[:3], [-1.0, 2.0]]})
    assert (np.abs(moved["output"] - STEPS["flow"].run()["output"]).max(1) > 1e-3).all()


def test_a_head_without_a_question_spreads_its_weight():
    start = STEPS["two-heads"].start_values("en")["inputs"]
    moved = STEPS["two-heads"].run({"inputs": [[1.0, 0.0, 0.0, 0.0], *start[1:]]})
    assert np.allclose(moved["first"][1], 1 / 3) and moved["verb"] == STEPS["two-heads"].run()["verb"]


@pytest.mark.parametrize("code", ["sine", "learned"])
def test_a_code_tells_the_two_sentences_apart(code):
    assert STEPS["word-order"].run({"code": code}, "zh")["gap"] > 0.01 > STEPS["word-order"].run({}, "zh")["gap"]


def test_similarity_of_codes_moves_with_the_position():
    here, there = (STEPS["sine-code"].run({"position": position})["similarity"] for position in (10, 20))
    assert np.allclose(here[5:25], there[15:35]) and here.argmax() == 10


def test_truncation_counts_the_pairs_of_the_mask():
    result = STEPS["truncated-speech"].run({"seconds": 1, "reach": 7})
    distance = np.abs(np.arange(100)[:, None] - np.arange(100))
    assert result["pairs_window"] == (distance <= 7).sum() and result["pairs_full"] == 10_000
    wide = STEPS["truncated-speech"].run({"reach": 13})["weights"]
    assert wide[20, 7] > 2 * wide[20, 14]  # the earlier copy, thirteen frames back


def test_the_field_of_attention_follows_the_content():
    inside, outside = (STEPS["convolution-window"].run({"pixel": pixel})["field"] for pixel in (14, 0))
    assert inside[4, 4] > inside[0, 1] and outside[4, 4] < outside[0, 5]
    flat = STEPS["convolution-window"].run({"image": np.full((6, 6), 3.0).tolist()})
    assert np.abs(flat["convolution"][1:-1, 1:-1]).max() == 0  # no edges inside a flat image


def test_news_travels_one_edge_a_layer():
    reached = [STEPS["graph-edges"].run({"layers": layers})["reached"] for layers in (1, 2, 3, 4)]
    assert reached == [2, 3, 5, 6]
    assert STEPS["graph-edges"].run({"edges": np.ones((6, 6)).tolist(), "layers": 1})["reached"] == 6
    alone = STEPS["graph-edges"].run({"edges": np.zeros((6, 6)).tolist()})
    assert not alone["state"].any()


def test_the_recurrent_gradient_fades_and_attention_needs_no_steps():
    short, long = (STEPS["recurrence-table"].run({"tokens": tokens}) for tokens in (5, 100))
    assert long["recurrent_gradient"] < 1e-9 < 1e-3 < short["recurrent_gradient"]
    assert long["attention_gradient"] > 0.01
    assert long["table"][0].tolist() == [100, 1] and long["table"][3].tolist() == [2 * 100 * 64, 2 * 100**2 * 8]


@pytest.mark.parametrize(("cell", "projections", "crossing"), [("rnn", "mixing", 128), ("lstm", "all", 256)])
def test_the_curves_cross_where_the_step_says(cell, projections, crossing):
    values = {"dim": 128, "cell": cell, "projections": projections}
    at, beyond = (STEPS["recurrence-cost"].run(values | {"length": length}) for length in (crossing, 2 * crossing))
    assert at["crossing"] == crossing and at["ratio"] == 1 < beyond["ratio"]
    always = STEPS["recurrence-cost"].run({"cell": "rnn", "projections": "all", "length": 16})
    assert always["crossing"] == 0 and always["ratio"] > 1  # with its projections attention never costs less


def test_the_drawing_shows_the_times_that_the_experiment_measured(monkeypatch):
    from matplotlib.figure import Figure

    from regard.course.drawings import measured_cost
    from regard.experiments.progress import ignore_progress
    from regard.experiments.registry import find_experiment

    numbers = find_experiment("paths").measure("toy", 1, ignore_progress)
    monkeypatch.setattr(
        measured_cost, "published_result", lambda name: {"numbers": numbers} if name == "paths" else None
    )
    axes = Figure().add_subplot()
    measured_cost.draw(axes, STEPS["recurrence-cost"].run(), "zh")
    curves = [line.get_ydata() for chart in axes.child_axes for line in chart.get_lines()]
    times = [numbers["times"][name][over] for over in ("length", "dim") for name in ("recurrent", "attention")]
    assert len(curves) == 6 and all(
        any(np.array_equal(1000 * np.array(row), curve) for curve in curves) for row in times
    )


def test_parameters_do_not_depend_on_the_length():
    five, fifty = (STEPS["any-length"].run({"tokens": tokens}) for tokens in (5, 50))
    assert five["attention_size"] == fifty["attention_size"] == 192
    assert fifty["layer_size"] == 100 * five["layer_size"] and fifty["weights"].shape == (50, 50)


def test_at_the_round_table_focus_decides_who_is_heard():
    step = STEPS["round-table"]
    alike, sharp = (step.run({"count": 50, "focus": focus}) for focus in (0, 12))
    assert np.allclose(alike["weights"], 1 / 50) and np.allclose(alike["views"], alike["opinions"].mean())
    assert sharp["share"] > 10 / 50
    five, nine = step.run({"count": 5}), step.run({"count": 9, "listener": 50})
    assert np.array_equal(five["opinions"], np.array(PEOPLE)[:5, 6]) and nine["listener"] == 9
    assert nine["cards"].shape == (9, 3) and not np.array_equal(nine["cards"][8], nine["cards"][0])
