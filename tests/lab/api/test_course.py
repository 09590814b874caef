"""The calls of the page Course: the list, and the numbers of a step for given values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from regard.course import find_step, list_chapters, list_steps
from regard.lab.api.course import list_course, to_numbers
from regard.lab.server.jobs import Job


def test_list_has_every_step_with_its_parts(lab: Any) -> None:
    course = list_course(lab, {}, Job())
    listed = [step for chapter in course["chapters"] for step in chapter["steps"]]
    assert [step["name"] for step in listed] == [step.name for step in list_steps()]
    assert [chapter["number"] for chapter in course["chapters"]] == [chapter.number for chapter in list_chapters()]
    for described, step in zip(listed, list_steps(), strict=True):
        assert described["title"] == {"en": step.title.en, "zh": step.title.zh}
        assert [control["name"] for control in described["controls"]] == [control.name for control in step.controls]
        assert [part["type"] for part in described["pictures"]] == [type(part).__name__ for part in step.pictures]
        assert described["start"]["zh"] == step.start_values("zh")
        assert described["code"] == step.numpy_code


def test_sub_claims_are_those_that_the_step_names(lab: Any) -> None:
    course = list_course(lab, {}, Job())
    listed = {step["name"]: step for chapter in course["chapters"] for step in chapter["steps"]}
    for step in list_steps():
        for evidence, described in zip(step.evidence, listed[step.name]["evidence"], strict=True):
            if evidence.subclaims and described["verdict"]:
                assert len(described["verdict"]["parts"]) == len(evidence.subclaims)


def test_numbers_follow_the_values(client: Any) -> None:
    step = find_step("soft-dictionary")
    values = {"query": [-2.0, -1.0]}
    status, answer = client.ask("course/run", step="soft-dictionary", values=values, language="zh")
    result = step.run(values, "zh")
    assert status == 200
    assert np.allclose(answer["result"]["weights"], result["weights"], atol=1e-12)
    assert answer["result"]["answer"] == pytest.approx(float(result["answer"]), abs=1e-12)
    assert answer["attend"]["output"] == pytest.approx(float(result["answer"]), abs=1e-6)
    assert answer["attend"]["difference"] < 1e-6
    assert not answer["findings"][0]["holds"] and f"{result['answer']:.2f}" in answer["findings"][0]["zh"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"step": "nowhere"}, "no step 'nowhere'"),
        ({"step": "soft-dictionary", "values": [1]}, "must be an object"),
        ({"step": "soft-dictionary", "values": {"query": [1e9, 0]}}, "from -6 to 6"),
        ({"step": "soft-dictionary", "values": {"query": "__import__('os')"}}, "2 numbers"),
        ({"step": "soft-dictionary", "language": "fr"}, "must be en or zh"),
    ],
)
def test_wrong_requests_are_refused_in_words(client: Any, body: dict[str, Any], words: str) -> None:
    status, answer = client.ask("course/run", **body)
    assert status == 400 and words in answer["error"]


def test_infinities_have_names_in_json() -> None:
    assert to_numbers(np.array([1.5, np.inf, -np.inf, np.nan])) == [1.5, "Infinity", "-Infinity", "NaN"]
    assert to_numbers({"mask": np.array([[True]]), "word": "a", "count": np.int64(3)}) == {
        "mask": [[True]],
        "word": "a",
        "count": 3,
    }
