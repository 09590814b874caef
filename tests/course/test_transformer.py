"""Chapter 2: each step's numbers follow from its formula, and change as its task says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import regard as rg
from regard.course import find_step, list_chapters
from regard.course.controls import Choice, Slider
from regard.course.drawings.paths import find_sources, list_edges

STEPS = list_chapters()[1].steps


def run(name: str, **values: Any) -> dict[str, Any]:
    return find_step(name).run(values)


def vary_controls(name: str) -> Iterator[dict[str, Any]]:
    """The start values with each control at its ends, or at each option, one at a time."""
    yield {}
    for control in find_step(name).controls:
        if isinstance(control, Choice):
            yield from ({control.name: option} for option, _ in control.options)
        elif isinstance(control, Slider):
            yield from ({control.name: value} for value in (control.low, control.high))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_end_of_a_control_computes_and_equals_attend(step: Any) -> None:
    for values in vary_controls(step.name):
        result = step.run(values)
        for finding in step.findings:
            assert finding.text.en.format(**result) and finding.text.zh.format(**result)
            assert finding.check(result) in (True, False)
        if step.attend is not None:
            difference = np.abs(step.run_attend(values) - np.asarray(result[step.answer]))
            assert difference.max() <= 1e-6, values


def test_difference_is_a_special_case_of_the_additive_score() -> None:
    query, keys = [0.5, 1.5], [[1.0, 0.5], [2.0, -1.0], [-1.5, 1.0], [-1.0, -2.0]]
    shifted = {"query": [1.5, 0.5], "keys": [[x + 1, y - 1] for x, y in keys]}
    before = run("additive-score", query=query, keys=keys, matrices="difference")
    after = run("additive-score", matrices="difference", **shifted)
    assert np.allclose(before["scores"], after["scores"])
    assert not np.allclose(
        run("additive-score", query=query, keys=keys)["scores"], run("additive-score", **shifted)["scores"]
    )


def test_additive_score_without_tanh_ignores_the_query() -> None:
    linear = [run("additive-score", activation="none", query=query)["weights"] for query in ([3.0, -3.0], [-2.0, 1.0])]
    fused = [run("additive-score", query=query)["weights"] for query in ([3.0, -3.0], [-2.0, 1.0])]
    assert np.allclose(*linear)
    assert not np.allclose(*fused, atol=0.01)


def test_difference_curve_is_point_symmetric() -> None:
    passing = run("additive-score", matrices="difference")["passing"]
    assert np.allclose(passing, -passing[::-1])


def test_stages_are_those_of_torch() -> None:
    step = find_step("scaled-dot-product")
    result = step.run()
    q, k, v = (torch.from_numpy(result[name]) for name in ("queries", "keys", "values"))
    expected = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    assert np.allclose(result["output"], expected.numpy())
    assert np.allclose(result["products"], 2 * result["scaled"])
    unscaled = step.run({"scale": "none"})
    assert unscaled["heaviest"] > result["heaviest"]


def test_unscaled_weights_sharpen_and_the_gradient_falls_with_dim() -> None:
    result = run("sqrt-dim")
    assert result["peak"][-1] > 0.8 > 0.4 > result["peak_scaled"][-1]
    assert result["slope"][-1] < 0.3 * result["slope"][1] < result["slope_scaled"][-1]
    assert np.ptp(result["peak_scaled"]) < 0.1
    doubled = run("sqrt-dim", deviation=2.0)
    assert np.allclose(doubled["std"], 4 * result["std"], rtol=1e-5)
    assert doubled["peak_scaled"][-1] > result["peak_scaled"][-1] + 0.2


@pytest.mark.parametrize("inner", [1, 2, 3, 4, 8])
def test_two_projections_are_one_matrix_of_limited_rank(inner: int) -> None:
    result = run("projections", inner=inner)
    assert np.allclose(result["twice"], result["once"])
    assert result["rank"] == min(inner, 4)


def test_cross_attention_aligns_and_self_attention_in_the_decoder_is_causal() -> None:
    assert run("self-and-cross")["weights"].shape == (4, 3)
    assert run("self-and-cross", attention="encoder")["weights"].shape == (3, 3)
    decoder = run("self-and-cross", attention="decoder")["weights"]
    assert np.all(np.triu(decoder, 1) == 0) and np.allclose(decoder.sum(axis=1), 1)
    assert np.allclose(run("self-and-cross", focus=0.0)["weights"], 1 / 3)


@pytest.mark.parametrize("seed", range(6))
def test_attention_is_linear_for_one_token_only(seed: int) -> None:
    assert run("linearity", tokens=1, seed=seed)["whole"] < 1e-12
    assert run("linearity", tokens=4, seed=seed)["whole"] > 1e-3
    assert run("linearity", seed=seed)["fixed"] < 1e-12


def test_width_helps_with_relu_only_and_parameters_are_those_of_torch() -> None:
    with_relu, without = run("feed-forward-width")["errors"], run("feed-forward-width", activation="none")["errors"]
    assert np.all(np.diff(with_relu) < 0) and with_relu[-1] < 0.5
    assert np.ptp(without) < 0.02 and without.min() > 0.9
    layer = torch.nn.TransformerEncoderLayer(512, 8, dim_feedforward=2048, device="meta")
    feed_forward = sum(p.numel() for part in (layer.linear1, layer.linear2) for p in part.parameters())
    attention = sum(p.numel() for p in layer.self_attn.parameters())
    assert [row[1] for row in run("feed-forward-width")["parameters"]] == [f"{feed_forward:,}", f"{attention:,}"]


def test_feed_forward_touches_its_own_position_and_order_needs_positions() -> None:
    changes = run("position-wise")["changes"]
    assert np.count_nonzero(changes[1]) == 1 and np.all(changes[0] > 0)
    swapped = run("position-wise", action="swap")["changes"]
    assert np.all(swapped < 1e-12)
    coded = run("position-wise", action="swap", positions="added")["changes"]
    assert coded[0].max() > 0.05


def test_residual_keeps_tokens_apart_and_normalisation_their_size() -> None:
    result = run("block", layers=12)
    assert np.all(result["bare_likeness"] > result["likeness"] - 1e-9)
    assert np.all(np.diff(result["wild_size"]) > 0) and np.allclose(result["size"], 8)
    assert run("block", strength=0.2)["last"] < run("block", strength=1.0)["last"]


@pytest.mark.parametrize("log_dim", [5, 7, 10])
def test_scaled_embedding_is_root_two_of_the_position_code(log_dim: int) -> None:
    result = run("embedding-scale", log_dim=log_dim)
    assert np.isclose(result["scaled"], np.sqrt(2), atol=0.06)
    assert np.isclose(result["code_norm"], np.sqrt(2**log_dim / 2))
    assert np.isclose(result["share_scaled"], 2 / 3, atol=0.02)
    library = rg.nn.SinusoidalPositions(2**log_dim)(torch.tensor([10]))[0]
    assert np.allclose(library[:32].numpy(), result["code"], atol=1e-5)


def test_embeddings_of_deviation_one_need_no_scaling() -> None:
    result = run("embedding-scale", start="one")
    assert np.isclose(result["plain"], np.sqrt(2), atol=0.06) and result["share_scaled"] > 0.99


def test_recurrent_gradient_is_that_of_autograd_and_fades() -> None:
    result = run("recurrence", tokens=12, gain=1.2)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(12, 8)))
    w = torch.from_numpy(1.2 * np.linalg.qr(rng.normal(size=(8, 8)))[0])

    def last_state(first: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(8, dtype=torch.float64)
        for t in range(12):
            h = torch.tanh(w @ h + (first if t == 0 else x[t]))
        return h

    jacobian = torch.autograd.functional.jacobian(last_state, x[0])
    assert np.isclose(float(torch.linalg.matrix_norm(jacobian, 2)), result["recurrent"][-1])
    longer = run("recurrence", tokens=80)
    assert longer["recurrent"][-1] < 1e-8 < longer["attention"].min()


def hops_by_search(network: int, tokens: int, layers: int, kernel: int, output: int) -> list[float]:
    """The least number of steps between positions on any path of the drawn graph, by breadth-first search."""
    edges = list_edges(network, tokens, layers, kernel)
    costs: dict[tuple[int, int], float] = {(layers, output): 0}
    waiting = [(layers, output)]
    while waiting:
        node = waiting.pop(0)
        for start, end in edges:
            cost = costs[node] + (start[1] != end[1])
            if end == node and cost < costs.get(start, np.inf):
                costs[start] = cost
                waiting.append(start)
    return [costs.get((0, token), np.inf) for token in range(tokens)]


@pytest.mark.parametrize(
    ("tokens", "layers", "kernel", "output"), [(9, 2, 3, 9), (7, 3, 5, 4), (5, 1, 3, 1), (6, 4, 3, 6)]
)
def test_hops_are_those_of_the_drawn_graph(tokens: int, layers: int, kernel: int, output: int) -> None:
    result = run("paths", tokens=tokens, layers=layers, kernel=kernel, output=output)
    for network in range(3):
        assert result["hops"][network].tolist() == hops_by_search(network, tokens, layers, kernel, output - 1)
        sources = find_sources(list_edges(network, tokens, layers, kernel), (layers, output - 1))
        assert result["reached"][network] == sum((0, token) in sources for token in range(tokens))
        assert np.isclose(result["influence"][network].sum(), 1)


def test_convolution_reaches_everything_with_enough_layers() -> None:
    assert [int(run("paths", layers=layers, output=5)["reached"][0]) for layers in (1, 2, 4)] == [3, 5, 9]
    assert run("paths", kernel=7, layers=3)["reached"][0] == 9


def test_path_table_counts_what_the_formulas_say() -> None:
    result = run("path-table", kernel=5, log_length=8)
    lengths = result["lengths"]
    assert result["recurrent"].tolist() == (lengths - 1).tolist()
    assert result["convolution"].tolist() == np.ceil((lengths - 1) / 2).tolist()
    assert result["attention"].tolist() == [1] * len(lengths)
    assert np.all(np.diff(result["dilated"]) <= 1)


def test_kernel_does_not_follow_the_tokens() -> None:
    start = find_step("dynamic-weights").start_values("en")["tokens"]
    other = [[-x, y] if n % 2 else [x, y] for n, (x, y) in enumerate(start)]
    before, after = run("dynamic-weights"), run("dynamic-weights", tokens=other)
    assert np.array_equal(before["fixed"], after["fixed"])
    assert not np.allclose(before["weights"], after["weights"], atol=0.05)
    wide = run("dynamic-weights", kernel=[1.0, 0.0, -1.0])
    assert np.allclose(wide["convolved"][1:-1], np.asarray(start)[:-2] - np.asarray(start)[2:])


def test_stacked_local_layers_reach_farther() -> None:
    result = run("local-to-global", locality=1.0)
    assert np.all(np.diff(result["near"]) > 0) and np.all(np.asarray(result["wide"]) > np.asarray(result["near"]))
    assert np.allclose(run("local-to-global", locality=0.0)["near"], result["wide"])
    assert np.isclose(result["token"].sum(), 1)


def test_a_painted_patch_is_found_at_once() -> None:
    picture = find_step("image-patches").start_values("en")["picture"]
    assert run("image-patches")["weights"][15] < 0.02
    for i in (6, 7):
        picture[i][6:] = [True, True]
    result = run("image-patches", picture=picture)
    assert np.isclose(result["weights"][15], result["weights"][0]) and result["alike"] == 4


@pytest.mark.parametrize(("tokens", "state"), [(4, 6), (6, 6), (12, 6), (30, 3)])
def test_a_state_holds_as_many_tokens_as_it_has_numbers(tokens: int, state: int) -> None:
    result = run("copy", tokens=tokens, state=state)
    assert np.isclose(result["error"], max(0, 1 - state / tokens), atol=1e-6)
    sequence, copied, attended = result["rows"]
    assert np.allclose(sequence, copied) == (tokens <= state)
    assert np.abs(attended - sequence).max() < 0.05
    assert run("copy", sharpness=0.5)["attention_error"] > 0.3
