"""Attribution calls: models from other seeds, every kind of text model, refusals."""

from __future__ import annotations

import math

import pytest

from regard import BadInput
from regard.lab.api import attribution
from regard.lab.server.jobs import Job
from regard.lab.server.wire import pack, unpack

REVIEW = {"model": "reviews-0", "input": {"text": "the cat sat"}}


def test_models_from_other_seeds_stand_beside(lab):
    answer = attribution.baselines(lab, REVIEW, Job())
    assert [(one["model"], one["seed"]) for one in answer["others"]] == [("reviews-1", 1)]
    assert -1 <= answer["others"][0]["correlation"] <= 1
    assert [one["change_kind"] for one in answer["baselines"]] == ["uniform", "mean", "silent"]
    assert len({one["score"] for one in answer["shuffled"]}) > 1
    other = attribution.read(lab, {**REVIEW, "model": "reviews-1"}, Job())["question"]
    assert answer["others"][0]["question"] == other


def test_honest_reading_of_every_kind_of_text_model(lab):
    for model, kind in (("reviews-0", "class"), ("llama", "next"), ("meanings", "vector"), ("bert", None)):
        answer = unpack(pack(attribution.read(lab, {"model": model, "input": {"text": "one two three"}}, Job())))
        assert kind in (None, answer["question"]["type"])
        sizes = {values.shape for values in answer["attributions"].values()}
        assert sizes == {(len(answer["tokens"]),)} and list(answer["attributions"]) == [
            "raw",
            "value",
            "rollout",
            "gradient",
            "effect",
        ]
        assert math.isclose(float(answer["read"].sum()), 1.0, rel_tol=1e-5)
        assert all(abs(value) <= 1 + 1e-9 for row in answer["correlations"]["size"].values() for value in row.values())


def test_honest_calls_that_cannot_be(lab):
    for ask, words in (
        ({**REVIEW, "attention": 9}, "attention is 9"),
        ({**REVIEW, "head": 9}, "head is 9"),
        ({**REVIEW, "label": "x"}, "label is 'x'"),
        ({**REVIEW, "ablation": "burn"}, "must be"),
    ):
        with pytest.raises(BadInput, match=words):
            attribution.read(lab, ask, Job())
    with pytest.raises(BadInput, match="An edit is"):
        attribution.change(lab, {**REVIEW, "edits": [{"head": 1}]}, Job())
    with pytest.raises(BadInput, match="The change is"):
        attribution.heads(lab, {**REVIEW, "change": "loud"}, Job())
