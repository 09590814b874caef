"""Two maps on common tokens: alignments, the signed difference, and which heads of a model differ most."""

from __future__ import annotations

import pytest
import torch

from regard import BadInput
from regard.lab.inputs.model_input import Token
from regard.lab.inspect.compare import MapDifference, align_characters, align_tokens, pool_weights
from regard.lab.server.jobs import Job

from ..api_call import ask

BITES = {"model": "llama", "input": {"text": "one two three four"}}
OTHER = {"model": "llama", "input": {"text": "four two three one"}}


def side(lab, given, attention, head):
    return lab.capture(given, Job()).attentions[attention].weights(head)


def test_words_are_aligned_wherever_they_stand(lab):
    answer = ask(lab, "compare/maps", a=BITES | {"attention": 1, "head": 2}, b=OTHER | {"attention": 1, "head": 2})
    assert answer["alignment"] == "words" and answer["same_head"]
    rows, columns = answer["rows"], answer["columns"]
    assert [t["text"].strip() for t in rows["a"]] == [t["text"].strip() for t in rows["b"]]
    a, b = side(lab, BITES, 1, 2), side(lab, OTHER, 1, 2)
    wanted = b[rows["places_b"]][:, columns["places_b"]] - a[rows["places_a"]][:, columns["places_a"]]
    torch.testing.assert_close(answer["difference"], wanted.float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(answer["difference"], answer["aligned_b"] - answer["aligned_a"], atol=1e-6, rtol=0)
    assert answer["mean"] == pytest.approx(float(answer["grid"][1][2]), abs=1e-6)
    assert float(answer["distance"].max()) <= 1


def test_places_are_aligned_when_asked(lab):
    ask_for = {"a": BITES | {"head": 1}, "b": OTHER | {"head": 1}, "alignment": "places"}
    answer = ask(lab, "compare/maps", **ask_for)
    a, b = side(lab, BITES, 0, 1), side(lab, OTHER, 0, 1)
    n = min(len(a), len(b))
    wanted, rest = b[:n, :n] - a[:n, :n], b[:n, n:].sum(-1) + a[:n, n:].sum(-1)
    torch.testing.assert_close(answer["difference"], wanted.float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(answer["distance"], (wanted.abs().sum(-1) + rest).float() / 2, atol=1e-6, rtol=0)


def test_two_heads_of_one_text(lab):
    answer = ask(lab, "compare/maps", a=BITES | {"attention": 0, "head": 0}, b=BITES | {"attention": 1, "head": 3})
    assert not answer["same_head"] and answer["alignment"] == "characters"
    wanted = side(lab, BITES, 1, 3) - side(lab, BITES, 0, 0)
    torch.testing.assert_close(answer["difference"], wanted.float(), atol=1e-6, rtol=0)
    distances = [
        float((side(lab, BITES, n, h) - side(lab, BITES, 0, 0)).abs().sum(-1).mean() / 2)
        for n in range(2)
        for h in range(4)
    ]
    assert torch.cat(answer["grid"]).tolist() == pytest.approx(distances, abs=1e-6)
    assert distances[0] == 0


def test_two_models_that_split_a_text_differently(lab):
    text = {"text": "The animal didn't cross the street."}
    answer = ask(
        lab, "compare/maps", a={"model": "bert", "input": text}, b={"model": "llama", "input": text, "head": 3}
    )
    for name in ("rows", "columns"):
        plain = [(a, b) for a, b in zip(answer[name]["a"], answer[name]["b"], strict=True) if not a["special"]]
        assert plain and all(a["end"] == b["end"] for a, b in plain)
    full = answer["aligned_b"].sum(-1)
    assert full.max() <= 1 + 1e-6 and full.min() > 0.5
    marked = [Token("[CLS]", special=True), Token("ab", 0, 2)]
    assert align_characters(marked, [Token("a", 0, 1), Token("b", 1, 2)]) == [([1], [0, 1])]


def test_masked_pairs_are_told_from_small_ones(lab):
    answer = ask(lab, "compare/maps", a=BITES, b=BITES)
    count = answer["difference"].shape[0]
    future = ~torch.ones(count, count, dtype=torch.bool).tril()
    assert torch.equal(answer["masked_a"].bool(), future) and torch.equal(answer["masked_b"].bool(), future)
    other = ask(lab, "compare/maps", a={"model": "bert", "input": BITES["input"]}, b=BITES)
    assert not other["masked_a"].any() and other["masked_b"].any()


def test_a_text_with_itself_does_not_differ(lab):
    answer = ask(lab, "compare/maps", a=BITES, b=BITES)
    assert float(answer["difference"].abs().max()) == 0 == answer["mean"]
    assert all(float(distance.max()) == 0 for distance in answer["grid"])


def test_pooled_rows_are_means_and_columns_sums():
    weights = torch.rand(4, 5, dtype=torch.float64).softmax(-1)
    pooled = pool_weights(weights, [[0], [1, 3]], [[0, 1], [4], [2, 3]])
    torch.testing.assert_close(pooled.sum(-1), torch.ones(2, dtype=torch.float64))
    assert float(pooled[1, 0]) == pytest.approx(float((weights[1, :2].sum() + weights[3, :2].sum()) / 2))
    gone = MapDifference(torch.tensor([[0.5, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0.5]))
    assert gone.distance.tolist() == [1.0]


def test_characters_that_never_meet_have_no_partner():
    first = [Token("abc", 0, 3), Token("d", 3, 4)]
    assert align_characters(first, [Token("ab", 0, 2), Token("cd", 2, 4)]) == [([0, 1], [0, 1])]
    assert align_tokens(first, [Token("x", 0, 2)], "characters") == []


def test_comparisons_that_cannot_be(lab):
    for given, words in (
        ({"a": BITES, "b": 3}, "b is 3"),
        ({"a": BITES, "b": OTHER | {"head": 9}}, "head is 9"),
        ({"a": BITES, "b": OTHER, "alignment": "luck"}, "alignment is 'luck'"),
        ({"a": BITES, "b": {"model": "llama", "input": {"text": "猫追狗"}}}, "no word in common"),
        ({"a": {"model": "bert", "input": {"text": "one two " * 270}}, "b": BITES}, "more than 512 tokens"),
    ):
        with pytest.raises(BadInput, match=words):
            ask(lab, "compare/maps", **given)
