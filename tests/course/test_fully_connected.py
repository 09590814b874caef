"""Chapter 1: what each step shows when its controls are moved."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest

from regard.course import find_step
from regard.experiments.results import published_result, published_verdict


def run(name: str, **values: Any) -> dict[str, Any]:
    """The result of a step; `attend` is compared with it, where there is one."""
    step = find_step(name)
    result = step.run(values)
    if step.attend is not None:
        assert np.abs(step.run_attend(values) - np.asarray(result[step.answer])).max() <= 1e-6
    return result


def test_only_attention_follows_the_input() -> None:
    start = run("fixed-weights")
    other = [[1.0, -2.0], [0.3, 0.3], [-1.0, 0.5], [2.0, 2.0]]
    moved = run("fixed-weights", first=other)
    assert np.array_equal(start["learned"], moved["learned"])
    assert np.abs(start["first_weights"] - moved["first_weights"]).max() > 0.1
    assert np.allclose(moved["first_weights"].sum(-1), 1)
    assert run("fixed-weights", first=other, second=other)["change"] == 0


@pytest.mark.parametrize("window", [1, 2, 3, 5, 11])
def test_windows_reach_one_window_further_with_each_layer(window: int) -> None:
    distance = np.abs(np.arange(12)[:, None] - np.arange(12))
    for layers in (1, 3):
        result = run("reach", window=window, layers=layers)
        assert np.array_equal(result["influence"] > 0, distance <= window * layers)
    assert result["needed"] == ceil(11 / window)
    assert (result["attention"] > 0).all()


def test_a_weight_is_not_yet_an_effect() -> None:
    start, silent = run("readable-weights"), run("readable-weights", size=0.0)
    assert silent["cat_weight"] == start["cat_weight"] > 0.8
    assert silent["cat_effect"] == 0
    assert silent["misplaced"] > silent["fixed_misplaced"]
    rows = [run("readable-weights", target=target) for target in ("I", "like", "cats", "very much")]
    assert [int(row["bars"][0].argmax()) for row in rows] == [0, 2, 3, 1]
    assert all(np.array_equal(row["bars"][2], rows[0]["bars"][2]) for row in rows)


def test_parameters_of_attention_do_not_depend_on_the_length() -> None:
    few, many = run("parameters", words=5, dim=128), run("parameters", words=50, dim=128)
    assert few["counts"][2] == many["counts"][2] == 4 * 128**2
    assert many["counts"][1] == 100 * few["counts"][1] == (50 * 128) ** 2
    pairs = many["attention"] - 4 * many["lengths"] * 128**2
    assert np.allclose(pairs, 2 * many["lengths"] ** 2 * 128)
    assert (np.diff(many["windowed"], 2)[10:] == 0).all()


@pytest.mark.parametrize(("kernel", "reached"), [(1, 1), (3, 2), (5, 3), (7, 4)])
def test_plugged_in_attention_reaches_everything(kernel: int, reached: int) -> None:
    assert run("plug-in", kernel=kernel)["reached"] == reached
    assert run("plug-in", kernel=kernel, plugged="yes")["reached"] == 12
    assert run("plug-in", kernel=kernel, place=6)["reached"] == kernel


def test_attention_reads_sentences_of_any_length() -> None:
    for count in range(2, 13):
        result = run("fixed-inputs", sentence=" ".join(["cat", *"abcdefghijkl"[: count - 2], "cat"]))
        assert result["match"] == "cat" and result["both"][0].argmax() == 0
        assert result["read"] == min(count, 5) and result["lost"] == max(0, count - 5)
    assert run("fixed-inputs", sentence="cat")["weight"] == 0
    assert run("fixed-inputs", sentence="cat dog")["padding"] == 3


def test_a_block_without_attention_keeps_words_apart() -> None:
    assert run("block-of-both", parts="network")["across"] == 0
    assert run("block-of-both", parts="attention")["across"] > 0
    assert run("block-of-both", push=0.0)["influence"].max() == 0


def test_frozen_queries_make_a_linear_layer() -> None:
    frozen = run("frozen-query", frozen=1.0)
    assert frozen["change"] == 0 and frozen["error"] < 1e-12
    assert run("frozen-query", frozen=0.5)["error"] > 0.01


def test_the_database_is_sharp_or_soft() -> None:
    assert run("query-key-value", sharpness=0.0)["answer"] == pytest.approx(77 / 5)
    sharp = run("query-key-value", sharpness=20.0)
    assert sharp["answer"] == pytest.approx(sharp["nearest"], abs=0.01)
    assert run("query-key-value", query=[2.4, -1.6], sharpness=4.0)["answer"] == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("name", ["comparison", "query-table"])
def test_tables_link_to_their_measurements(name: str) -> None:
    result = run(name, words=50)
    assert len(result["links"]) == len(result["table"])
    for source in result["links"]:
        place, target = source.split(":")
        assert find_step(target) if place == "step" else published_verdict(target)


def test_tables_hold_the_numbers_of_their_sources() -> None:
    rows = run("comparison", words=50, dim=32)["table"]
    change = (published_result("fixed-weights") or {})["numbers"]["change"]
    found = (published_result("grey-ball") or {})["numbers"]["found"]
    assert rows[0] == [f"{change[name]['mean']:.2f}" for name in ("fully connected", "attention")]
    assert rows[2] == [str(ceil(49 / 2)), "1"]
    work = run("parameters", words=50, dim=32)
    assert rows[4] == [f"{work['sentence'][-1]:,.0f}", f"{work['attention'][-1]:,.0f}"]
    assert rows[5][1] == f"{min(size['mean'] for size in found['attention']):.0%}"
    assert run("query-table", words=7)["table"][0] == ["0", "49"]


@pytest.mark.parametrize("odd", range(1, 10))
@pytest.mark.parametrize("light", ["day", "evening", "shade"])
def test_the_hand_finds_the_odd_ball_under_any_lamp(odd: int, light: str) -> None:
    for darkness in (-0.04, 0.04, 0.3):
        assert run("grey-ball", odd=odd, light=light, darkness=darkness)["pick"] == odd


def test_memory_finds_a_darker_ball_but_no_lighter_one_under_another_lamp() -> None:
    assert run("grey-ball", light="evening", darkness=0.06)["memory_pick"] == 6
    lighter = run("grey-ball", light="evening", darkness=-0.04)
    assert lighter["pick"] == 6 != lighter["memory_pick"]


def test_another_query_gets_another_answer() -> None:
    start = run("grey-ball")
    for n, paint in enumerate(start["paint"]):
        assert np.allclose(run("grey-ball", hand=float(paint))["weights"], start["held_in_turn"][n])
    grey = float(start["paint"][5])
    assert run("grey-ball", hand=grey)["pick"] != 6
    assert run("grey-ball", hand=grey, search="alike")["pick"] == 6


def test_sharpness_of_the_comparison() -> None:
    assert np.allclose(run("grey-ball", sharpness=0.0)["weights"], 1 / 9)
    peaks = [run("grey-ball", sharpness=sharpness)["peak"] for sharpness in (10.0, 25.5, 100.0)]
    assert peaks == sorted(peaks) and peaks[-1] > 0.999
    result = run("grey-ball")
    assert np.allclose(result["differences"][:3].sum(0), result["differences"][3])
    assert np.allclose(result["output"], result["weights"] @ result["keys"])
