"""Following a search: what is told of it is what was done, and a text read again reads as it was written."""

from __future__ import annotations

import math

import pytest
import torch

from regard import BadInput
from regard.lab.api import alignment
from regard.lab.inspect.decoding import trace_search
from regard.lab.server.jobs import Cancelled, Job
from regard.lab.server.wire import pack, unpack
from regard.nn.hooks.watch import watch

ASK = {"model": "pair", "input": {"text": "the cat sat"}}


def parts(lab):
    loaded = lab.open("pair", Job())
    rows = loaded.task.rows(loaded.task.tokenizer, ["the cat sat"])
    return loaded.model, {"tokens": torch.tensor(rows)}


def trace_back(steps, at, place):
    """The tokens of a continuation and the ln p of each, back through those that it continues."""
    path = []
    candidate = steps[at][place]
    while True:
        path.insert(0, (candidate["token"], candidate["log_prob"]))
        if at == 0:
            return path
        at, candidate = at - 1, next(held for held in steps[at - 1] if held.get("slot") == candidate["parent"])


@pytest.mark.parametrize("beams", [1, 3])
def test_the_search_that_is_followed_is_generates(lab, beams):
    model, inputs = parts(lab)
    trace = trace_search(model, inputs, beams=beams, length_penalty=1.0, max_new=12, job=Job())
    wanted = model.generate(**inputs, beams=beams, max_new=12)[0].tolist()
    assert trace["start"] + trace["finished"][0]["tokens"] == wanted
    assert trace["finished"][0]["ended"]


def test_every_step_adds_up(lab):
    model, inputs = parts(lab)
    trace = trace_search(model, inputs, beams=3, length_penalty=1.0, max_new=12, job=Job())
    steps = trace["steps"]
    for at, step in enumerate(steps):
        scores = [candidate["score"] for candidate in step]
        assert scores == sorted(scores, reverse=True)
        assert sorted(candidate["slot"] for candidate in step if candidate["status"] == "runs") == list(
            range(sum(candidate["status"] == "runs" for candidate in step))
        )
        for place, candidate in enumerate(step):
            path = trace_back(steps, at, place)
            assert math.isclose(sum(chance for _, chance in path), candidate["score"], abs_tol=1e-4)
    ended = {
        tuple(token for token, _ in trace_back(steps, at, place)): candidate["score"] / (at + 1)
        for at, step in enumerate(steps)
        for place, candidate in enumerate(step)
        if candidate["status"] == "ends"
    }
    for candidate in trace["finished"]:
        assert math.isclose(ended[tuple(candidate["tokens"])], candidate["score"], abs_tol=1e-5)


def test_chances_are_the_models(lab):
    """ln p of each token, from one pass over the whole text."""
    model, inputs = parts(lab)
    trace = trace_search(model, inputs, beams=2, length_penalty=1.0, max_new=12, job=Job())
    best = trace["finished"][0]["tokens"]
    targets = torch.tensor([trace["start"] + best[:-1]])
    with torch.no_grad():
        logits = model(**inputs, targets=targets).logits[0]
    wanted = logits.log_softmax(-1)[torch.arange(len(best)), torch.tensor(best)]
    at = len(best) - 1
    place = next(
        n for n, candidate in enumerate(trace["steps"][at]) if [t for t, _ in trace_back(trace["steps"], at, n)] == best
    )
    chances = torch.tensor([chance for _, chance in trace_back(trace["steps"], at, place)])
    assert torch.allclose(chances, wanted, atol=1e-4)


def test_weights_of_a_text_are_those_it_was_written_with(lab):
    """The map of a finished text has, row by row, what the decoder looked at while it wrote."""
    model, inputs = parts(lab)
    with watch(model, weights=True) as seen:
        wrote = model.generate(**inputs, max_new=12)[0].tolist()
    name = "decoder.blocks.1.cross"
    rows = torch.cat([view.weights[0] for view in seen.calls(name)], 1)  # [heads, targets, sources]
    for head in (None, 1):
        ask = {**ASK, "input": {"text": "the cat sat", "target": wrote[1:]}, "head": head, "attention": 1}
        read = unpack(pack(alignment.read(lab, ask, Job())))
        assert torch.allclose(read["weights"], rows.mean(0) if head is None else rows[head], atol=1e-6)
        assert torch.allclose(read["weights"].sum(1), torch.ones(len(wrote) - 1), atol=1e-6)
        assert read["norms"].shape == read["weights"].shape and not read["masked"].any()
    assert [token["text"].strip() for token in read["target_tokens"]][:2] == ["猫", "坐"]
    assert read["difference"]["largest"] < 1e-4


def test_a_translation_of_ones_own(lab):
    read = alignment.read(lab, {**ASK, "input": {"text": "the cat sat", "target": "狗 跑 了"}}, Job())
    assert [token["text"].strip() for token in read["target_tokens"]] == ["狗", "跑", "了", "</s>"]
    assert not read["generated"] and all(0 < token["probability"] < 1 for token in read["target_tokens"])
    assert alignment.read(lab, ASK, Job())["generated"]


def test_the_page_call_names_tokens_and_texts(lab):
    trace = alignment.write(lab, {**ASK, "beams": 3}, Job())
    assert trace["finished"][0]["text"] == "猫坐了"
    assert [token["text"].strip() for token in trace["tokens"]][1:-1] == ["the", "cat", "sat"]
    assert all(candidate["piece"] for step in trace["steps"] for candidate in step)
    assert {candidate["prefix"] for candidate in trace["steps"][0]} == {""}
    assert "猫坐" in {candidate["prefix"] for candidate in trace["steps"][2]}


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({**ASK, "beams": 99}, "99 beams"),
        ({**ASK, "beams": "many"}, "whole number"),
        ({"model": "bert", "input": {"text": "a"}}, "generates no text"),
        ({"model": "pair", "input": {}}, "Give it as input.text"),
    ],
)
def test_wrong_calls(lab, ask, words):
    with pytest.raises(BadInput, match=words):
        alignment.write(lab, ask, Job())


def test_wrong_readings(lab):
    for more, words in (({"attention": 7}, "attention is 7"), ({"head": 9}, "head is 9")):
        with pytest.raises(BadInput, match=words):
            alignment.read(lab, ASK | more, Job())
    with pytest.raises(BadInput, match="token ids"):
        alignment.read(lab, {**ASK, "input": {"text": "the cat", "target": [10**6]}}, Job())
    with pytest.raises(BadInput, match="no cross-attention"):
        alignment.read(lab, {"model": "bert", "input": {"text": "one two"}}, Job())


def test_a_search_can_be_stopped(lab):
    job = Job()
    job.cancel()
    with pytest.raises(Cancelled):
        alignment.write(lab, ASK, job)
