"""Chapter 4: what each step shows when its controls are moved."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from regard.course import find_step


def run(name: str, **values: Any) -> dict[str, Any]:
    """The result of a step; `attend` is compared with it, where there is one."""
    step = find_step(name)
    result = step.run(values)
    if step.attend is not None:
        assert np.abs(step.run_attend(values) - np.asarray(result[step.answer])).max(initial=0) <= 1e-6
    return result


def test_an_mlp_is_what_torch_computes() -> None:
    import torch

    step = find_step("mlp")
    start = {name: torch.tensor(value) for name, value in step.start_values("en").items() if name != "activation"}
    for name, apply in (("none", lambda x: x), ("relu", torch.relu), ("tanh", torch.tanh)):
        output = start["output_weights"] @ apply(start["hidden_weights"] @ start["inputs"])
        assert np.allclose(run("mlp", activation=name)["output"], output)
    halved = [x / 2 for x in step.start_values("en")["inputs"]]
    linear, half = run("mlp", activation="none"), run("mlp", activation="none", inputs=halved)
    assert np.allclose(half["output"], linear["output"] / 2)
    assert run("mlp", inputs=[0.0, 0.0, 0.0])["silent"] == 4


def paint(*changes: tuple[int, int, bool]) -> list[list[bool]]:
    """The start of the grid of connections with some cells changed."""
    grid = find_step("feed-forward-family").start_values("en")["reads"]
    for row, column, on in changes:
        grid[row][column] = on
    return grid


@pytest.mark.parametrize(
    ("changes", "family", "longest"),
    [
        ((), 2, "2"),
        (((2, 0, False),), 1, "2"),
        (((4, 0, True),), 1, "2"),
        (((3, 2, True),), 1, "3"),
        (((2, 4, True),), 0, "∞"),
        (((5, 5, True),), 0, "∞"),
    ],
)
def test_a_path_that_returns_makes_a_network_recurrent(changes: Any, family: int, longest: str) -> None:
    result = run("feed-forward-family", reads=paint(*changes))
    assert (result["family"], result["longest"]) == (family, longest)
    assert (result["cycles"] > 0) == (family == 0)


@pytest.mark.parametrize("layers", [1, 5, 12])
def test_layers_without_activation_are_one_matrix(layers: int) -> None:
    linear = run("linear-layers", layers=layers)
    assert linear["error"] < 1e-10 * max(1, np.abs(linear["stack"]).max()) and linear["bends"] == 0
    for activation in ("relu", "tanh"):
        curved = run("linear-layers", layers=layers, activation=activation)
        assert curved["error"] > 0.01 and curved["bends"] > 0


def test_boundaries_bend_only_with_an_activation() -> None:
    straight = run("decision-boundary", activation="none", width=60)
    assert straight["right"] < 10
    flat = np.diff(straight["surface"][:, 10:20], 2, axis=1)
    assert np.abs(flat).max() < 1e-9
    assert run("decision-boundary", activation="tanh")["right"] == 10
    # two groups that a line can split need no activation
    apart = [[-2.0, 0.1 * n] for n in range(5)] + [[2.0, 0.1 * n] for n in range(5)]
    assert run("decision-boundary", activation="none", points=apart)["right"] == 10


@pytest.mark.parametrize("shape", ["wave", "peaks", "step"])
def test_the_error_falls_with_width(shape: str) -> None:
    result = run("universal-approximation", shape=shape, width=64)
    assert (np.diff(result["errors"][2:]) < 0).all()
    assert result["error"] == pytest.approx(result["errors"][-1])
    assert result["errors"][-1] < result["errors"][0] / 20


def test_any_two_columns_may_belong_together() -> None:
    for first in range(1, 7):
        for second in range(first + 1, 7):
            result = run("table-columns", first=first, second=second)
            assert result["full"] < 0.25
            assert (result["windowed"] < 0.25) == (result["distance"] < 3)
            assert result["single"] > 0.4
    assert np.array_equal(run("table-columns", first=2, second=2)["errors"] < 1e-6, [True] * 3)


def test_the_soft_dictionary_moves_to_the_chair() -> None:
    assert run("soft-dictionary", query=[-3.0, -2.0])["answer"] == pytest.approx(2, abs=1e-3)
    assert run("soft-dictionary", query=[0.0, 0.0])["answer"] == pytest.approx(17 / 3)


def test_dot_products_change_sign_at_a_right_angle() -> None:
    keys = find_step("dot-sign").start_values("en")["keys"]
    for degrees in range(0, 360, 15):
        query = [2 * math.cos(math.radians(degrees)), 2 * math.sin(math.radians(degrees))]
        result = run("dot-sign", query=query)
        away = np.abs(result["angles"] - 90) > 1e-6
        assert np.array_equal((result["dots"] > 0)[away], (result["angles"] < 90)[away])
    longer = run("dot-sign", query=[4.0, 2.0])
    assert np.allclose(longer["dots"], 2 * run("dot-sign")["dots"])
    assert np.allclose(longer["dots"], np.array(keys) @ [4, 2])


def test_queries_do_not_disturb_each_other() -> None:
    start, moved = run("many-queries"), run("many-queries", queries=[[2.0, 1.0], [1.5, -2.5]])
    assert np.array_equal(start["weights"][0], moved["weights"][0])
    assert not np.allclose(start["weights"][1], moved["weights"][1])
    valued = run("many-queries", values=[[1.0, 1.0, 1.0]] * 3)
    assert np.array_equal(valued["weights"], start["weights"]) and np.allclose(valued["output"], 1)
    assert np.allclose(start["inside"].sum(-1), 1) and not np.allclose(start["output"].sum(-1), 1)


def test_e_to_the_fifty_and_the_end_of_float32() -> None:
    assert run("softmax-range")["exponential"] == pytest.approx(5.185e21, rel=1e-3)
    assert np.isfinite(run("softmax-range", score=88.0)["single"])
    assert run("softmax-range", score=89.0)["single"] == np.inf


def test_scaling_keeps_the_softmax_soft() -> None:
    sharp, soft = run("softmax-range", dim=1024), run("softmax-range", dim=1024, scaled="yes")
    assert sharp["peak"] > 0.9 > 0.4 > soft["peak"]
    assert soft["slope"] > 100 * sharp["slope"]
    assert sharp["peak"] == pytest.approx(sharp["unscaled_peaks"][-1])
    assert soft["peak"] == pytest.approx(soft["scaled_peaks"][-1])
    assert np.ptp(soft["scaled_peaks"][3:]) < 0.15


def test_layer_norm_works_on_rows_and_batch_norm_on_columns() -> None:
    start = find_step("layer-and-batch-norm").start_values("en")["x"]
    huge = [[50.0, *start[0][1:]], *start[1:]]
    for kind, axis in (("layer", -1), ("batch", 0)):
        plain, changed = run("layer-and-batch-norm", kind=kind), run("layer-and-batch-norm", kind=kind, x=huge)
        assert np.allclose(plain["output"].mean(axis), 0) and np.allclose(plain["output"].std(axis), 1, atol=1e-3)
        others = np.isclose(plain["output"], changed["output"])
        assert others[1:].all() if kind == "layer" else (others[:, 1:].all() and not others[:, 0].any())
    assert np.array_equal(run("layer-and-batch-norm", kind="none")["output"], start)


def test_self_attention_with_one_matrix_is_symmetric() -> None:
    identity = [[1.0, 0.0], [0.0, 1.0]]
    same = run("attention-xxx", w_q=identity)
    assert same["asymmetry"] == 0 and np.allclose(same["own"], same["plain"])
    encoded = find_step("attention-xxx").start_values("en")["x"]
    assert np.allclose(run("attention-xxx", encoded=encoded)["cross"], run("attention-xxx")["own"])


def test_painted_masks_hide_and_leak() -> None:
    mask = find_step("painted-mask").start_values("en")["mask"]
    mask[1][4] = True
    leaking = run("painted-mask", mask=mask)
    assert leaking["leaks"] == 1 and leaking["moved"][1, 4] > 0 and leaking["leak"] > 0
    mask[1] = [False] * 5
    empty = run("painted-mask", mask=mask)
    assert not empty["weights"][1].any() and not empty["output"][1].any()
    everyone = run("painted-mask", mask=[[True] * 5] * 5)
    assert (everyone["weights"] > 0).all() and np.allclose(everyone["weights"].sum(-1), 1)


def test_one_masked_pass_equals_all_prefixes() -> None:
    for sentence in ("<BOS>", "a b", "<BOS> I like you and me <EOS>", "<BOS> 我 喜欢 你 <EOS>"):
        result = run("one-pass", sentence=sentence)
        assert result["difference"] < 1e-12
        assert result["passes"] == len(sentence.split()) - 1 == len(result["table"])
    seen = run("one-pass", masked="no")
    assert seen["difference"] > 0.1 and seen["differences"][-1] < 1e-12
    assert [row[-1] for row in seen["table"]] == ["→ I", "→ like", "→ you", "→ <EOS>"]
