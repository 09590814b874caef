"""Experiments 1 to 6 at toy size, what they compute, and how they judge made numbers."""

import copy
import json
import math
from typing import Any

import pytest
import torch

from regard.experiments import learning, lookup
from regard.experiments.claims import embedding_scaling, fixed_weights, grey_ball, order, scaling, soft_dictionary
from regard.nn import MultiHeadAttention

ALL = (soft_dictionary, grey_ball, fixed_weights, scaling, embedding_scaling, order)


def held(*values: float) -> dict[str, Any]:
    return learning.spread(values)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.CLAIM.name)
def test_toy(one: Any) -> None:
    shares: list[float] = []
    numbers = one.measure("toy", 3, lambda share, text: shares.append(share))
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] <= 1
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert one.verdict(numbers).kind in ("holds", "limited", "fails")
    for language in ("en", "zh"):
        figure = one.draw(numbers, language)
        assert all(axes.get_xlabel() + axes.get_ylabel() for axes in figure.axes)
        assert all(axes.get_title() for axes in figure.axes if axes.get_label() != "<colorbar>")
        figure.draw_without_rendering()


@pytest.mark.parametrize("one", (soft_dictionary, order), ids=lambda one: one.CLAIM.name)
def test_same_seed_same_numbers(one: Any) -> None:
    assert one.measure("toy", 3, learning.silent) == one.measure("toy", 3, learning.silent)
    assert one.measure("toy", 3, learning.silent) != one.measure("toy", 4, learning.silent)


def soft_numbers(**errors: float) -> dict[str, Any]:
    found = {"soft, concept": 0.01, "hard, concept": 1.0, "soft, word": 0.01, "hard, word": 0.0}
    found |= {name.replace("_", ", "): value for name, value in errors.items()}
    return {
        "answer": held(8.01),
        "weights": [[0.6, 0.4, 1e-4]],
        "errors": {name: held(value) for name, value in found.items()},
    }


def test_soft_dictionary_judges() -> None:
    assert soft_dictionary.verdict(soft_numbers()).kind == "holds"
    assert soft_dictionary.verdict(soft_numbers(soft_word=0.3)).kind == "limited"
    assert soft_dictionary.verdict(soft_numbers(soft_concept=0.9)).kind == "fails"
    assert soft_dictionary.verdict(soft_numbers() | {"answer": held(8.0, 7.8)}).kind == "limited"


def test_the_note_is_in_the_dictionary() -> None:
    table = soft_dictionary.shares(torch.Generator().manual_seed(0))
    names = [word for word, _ in soft_dictionary.WORDS]
    fruit = table[len(names)]
    assert fruit[names.index("apple")].item() == pytest.approx(0.6)
    assert sum(
        fruit[names.index(word)].item() * value for word, value in soft_dictionary.NOTE.items()
    ) == pytest.approx(8)


def test_dictionaries_have_an_answer() -> None:
    generator = torch.Generator().manual_seed(0)
    table = soft_dictionary.shares(generator)
    for concepts in (True, False, None):
        _, words, _, weights = soft_dictionary.dictionaries(table, 50, concepts, generator)
        assert torch.allclose(weights.sum(1), torch.ones(50))
        assert all(len(set(row)) == len(row) for row in words.tolist())


def ball_numbers(**changed: float) -> dict[str, Any]:
    found = {"attention": 0.99, "convolution": 0.5, "recurrent": 0.5, "fully connected": 0.1} | changed
    pointed = {f"{query}, darker or lighter": held(value) for query, value in (("held", 0.99), ("learned", 0.5))}
    return {
        "balls": [10, 100],
        "found": {"rule": [held(1.0)]} | {name: [held(1.0), held(at)] for name, at in found.items()},
        "pointed": pointed,
    }


def test_grey_ball_judges() -> None:
    assert grey_ball.verdict(ball_numbers()).kind == "holds"
    also = grey_ball.verdict(ball_numbers(convolution=0.97))
    assert (
        also.kind == "limited" and "also, without attention: convolution" in also.why.en and "还有：卷积" in also.why.zh
    )
    assert grey_ball.verdict(ball_numbers(attention=0.9)).kind == "fails"
    without = grey_ball.verdict(ball_numbers(attention=0.9, recurrent=0.97)).why.en
    assert "attention 90% (of 100 balls)" in without and "only, without attention: recurrent" in without
    useless = ball_numbers()
    useless["pointed"]["learned, darker or lighter"] = held(0.98)
    assert grey_ball.verdict(useless).kind == "limited"


def test_grey_ball_is_the_darkest() -> None:
    colours, odd, white = grey_ball.bags(500, 10, False, torch.Generator().manual_seed(0))
    assert (colours.mean(-1).argmin(1) == odd).float().mean() > 0.99
    assert white.shape == (500, 3)
    both = grey_ball.bags(500, 10, True, torch.Generator().manual_seed(0))
    assert 0.4 < (both[0].mean(-1).argmin(1) == both[1]).float().mean() < 0.65


def test_fully_connected_sees_ten() -> None:
    model = grey_ball.finders()["fully connected"]
    colours = torch.randn(2, 30, 3)
    assert torch.equal(model(colours)[:, :10], model(colours[:, :10]))
    assert (model(colours)[:, 10:] < 0).all()


def test_pointer_weights_sum_to_one() -> None:
    for query in grey_ball.QUERIES:
        weights = grey_ball.Pointer(query)(torch.randn(4, 7, 3), torch.randn(4, 3))
        assert torch.allclose(weights.sum(1), torch.ones(4))


def weight_numbers() -> dict[str, Any]:
    accuracy = {"fully connected": [held(0.6)] * 3 + [held(0.2)], "attention": [held(0.99)] * 4}
    change = {"fully connected": held(0.0), "fully connected, activation": held(0.05), "attention": held(0.7)}
    return {"accuracy": accuracy, "change": change}


def test_fixed_weights_judges() -> None:
    numbers = weight_numbers()
    assert fixed_weights.verdict(numbers).kind == "holds"
    numbers["change"]["fully connected, activation"] = held(0.5)
    assert fixed_weights.verdict(numbers).kind == "limited"
    numbers["change"]["fully connected"] = held(0.01)
    assert fixed_weights.verdict(numbers).kind == "fails"
    shorter = weight_numbers()
    shorter["accuracy"]["attention"][-1] = held(0.8)
    assert fixed_weights.verdict(shorter).kind == "fails"


def test_a_linear_layer_mixes_the_same_and_attention_does_not() -> None:
    line, attention = torch.nn.Linear(4, 4), MultiHeadAttention(4, 2)
    for layer, least, most in ((line, 0.0, 0.0), (attention, 1e-3, math.inf)):
        jacobians = [fixed_weights.jacobian(layer, torch.randn(1, 5, 4)) for _ in range(3)]
        assert jacobians[0].shape == (5, 4, 5, 4)
        assert least <= fixed_weights.change(jacobians) <= most


def test_lookup_answers_with_the_asked_value() -> None:
    keys, values, answer = lookup.lookups(50, 6, torch.Generator().manual_seed(0))
    for row in range(50):
        assert values[row, 1:][keys[row, 1:] == keys[row, 0]].tolist() == [answer[row].item()]


def scale_numbers(peak: float = 0.97, loss: float = 1.5) -> dict[str, Any]:
    still = {"peak, unscaled": [0.3, peak], "peak, scaled": [0.1, 0.11], "overflow": [0.0, 0.5]}
    still |= {"gradient, unscaled": [0.2, 0.01], "gradient, scaled": [0.2, 0.2]}
    still |= {"median, unscaled": [0.2, 0.001], "median, scaled": [0.2, 0.2]}
    curves = {"scaled": {"mean loss": held(1.0)}, "unscaled": {"mean loss": held(loss)}}
    return {"still": still, "learning": {"64": curves, "256": copy.deepcopy(curves)}}


def test_scaling_judges() -> None:
    assert scaling.verdict(scale_numbers()).kind == "holds"
    assert scaling.verdict(scale_numbers(loss=1.0)).kind == "limited"
    assert scaling.verdict(scale_numbers(peak=0.5)).kind == "fails"


def test_jacobian_size_is_autograds() -> None:
    scores = torch.randn(5, dtype=torch.float64)
    found = torch.autograd.functional.jacobian(lambda x: x.softmax(0), scores)
    assert scaling.jacobian_size(scores.softmax(0)[None]).item() == pytest.approx(torch.as_tensor(found).norm().item())


def test_projections_begin_with_spread_one() -> None:
    torch.manual_seed(0)
    model = lookup.Lookup(layer := scaling.first_weights(MultiHeadAttention(256, 1)), 256)
    keys, values, _ = lookup.lookups(64, 8, torch.Generator().manual_seed(0))
    assert layer.q(model.embed(keys, values)).std().item() == pytest.approx(1.0, rel=0.1)


def embedding_numbers(scaled: float = 7.0, loss: float = 2.0) -> dict[str, Any]:
    lengths = {"unscaled": [1.0], "scaled": [scaled], "position": [5.0]}
    losses = {"unscaled": loss, "scaled": 1.0, "spread 1": 1.0}
    return {"lengths": lengths, "learning": {kind: {"mean loss": held(value)} for kind, value in losses.items()}}


def test_embedding_scaling_judges() -> None:
    assert embedding_scaling.verdict(embedding_numbers()).kind == "holds"
    assert embedding_scaling.verdict(embedding_numbers(loss=1.05)).kind == "limited"
    assert embedding_scaling.verdict(embedding_numbers(scaled=11.0)).kind == "fails"


def test_lengths_are_the_formulas() -> None:
    found = embedding_scaling.lengths(torch.Generator().manual_seed(0))
    for n, dim in enumerate(embedding_scaling.DIMS):
        assert found["position"][n] == pytest.approx(math.sqrt(dim / 2), rel=1e-5)
        assert found["scaled"][n] == pytest.approx(math.sqrt(dim), rel=0.02)


def test_the_answer_follows_the_marker() -> None:
    tokens, answer = embedding_scaling.rows(100, torch.Generator().manual_seed(0))
    at = (tokens == 0).nonzero()
    assert len(at) == 100
    assert torch.equal(tokens[at[:, 0], at[:, 1] + 1], answer)


def order_numbers(**changed: float) -> dict[str, Any]:
    right = dict.fromkeys(order.SCHEMES, 0.99) | {"none": 0.5} | changed
    return {"shuffled": {"none": 1e-15}, "accuracy": {scheme: held(value) for scheme, value in right.items()}}


def test_order_judges() -> None:
    assert order.verdict(order_numbers()).kind == "holds"
    mirrored = order.verdict(order_numbers(ALiBi=0.5))
    assert mirrored.kind == "limited" and "mirror" in mirrored.why.en and "镜像" in mirrored.why.zh
    assert order.verdict(order_numbers(none=0.9)).kind == "fails"


def test_only_order_tells_sentences_apart() -> None:
    assert order.shuffled("none", 0) < 1e-12
    for scheme in ("sinusoidal", "learned", "rotary", "ALiBi", "none, causal"):
        assert order.shuffled(scheme, 0) > 1e-6, scheme


def test_alibi_cannot_tell_a_sentence_from_its_mirror_image() -> None:
    torch.manual_seed(0)
    words = torch.randint(20, (4, 3))
    for scheme, least, most in (("ALiBi", 0.0, 1e-12), ("ALiBi, causal", 1e-3, math.inf), ("rotary", 1e-3, math.inf)):
        model = order.Reader(scheme).double().eval()
        far = (model(words) - model(words.flip(1))).abs().max().item()
        assert least <= far <= most, scheme


def test_tested_pairs_are_not_learned() -> None:
    known, unseen = order.split_pairs(torch.Generator().manual_seed(0))
    pairs = [{tuple(pair) for pair in half.tolist()} for half in (known, unseen)]
    assert not pairs[0] & pairs[1]
    assert len(pairs[0] | pairs[1]) == 20 * 19
    assert all((b, a) in pairs[1] for a, b in pairs[1])
