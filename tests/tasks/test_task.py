"""What the contract of tasks gives to all of them."""

from __future__ import annotations

import pytest

from regard.data.json_values import ParsedObject
from regard.errors import BadInput
from regard.tasks import find_task

TARGET = {"kind": "class", "labels": ["bad", "good"]}
SAVED: dict[str, ParsedObject] = {
    "lm": {},
    "translate": {"target": None},
    "transcribe": {"rate": 16000, "bins": 40, "spaced": True},
    "answer": {"own_tokenizer": True, "unanswered": False, "max_length": 128},
    "pairs": {"target": TARGET, "inputs": {}},
    "classify": {"labels": TARGET["labels"], "kind": "text", "inputs": {"vector_dim": None}},
    "spans": {"words": [], "letters": [], "tags": ["PER"], "given_words": True, "subwords": {"max_length": 8}},
    "multi": {"heads": []},
}
"""What `as_dict` of a task without examples saves."""


@pytest.mark.parametrize("name", SAVED)
def test_a_run_whose_tokenizer_is_missing_is_refused(name: str) -> None:
    task = find_task(name)
    with pytest.raises(BadInput, match=r"no tokenizer.*Copy the whole folder"):
        task.from_dict(SAVED[name], task.Settings(), None)


def test_a_tag_run_needs_no_tokenizer() -> None:
    task = find_task("tag")
    opened = task.from_dict({"words": ["a"], "letters": ["a"], "tags": ["X"]}, task.Settings(), None)
    assert opened.labels == ["X"] and opened.tokenizer is None
