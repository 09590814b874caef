"""Every example shows what its caption says, by the weights of its model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.lab.api import alignment
from regard.lab.inputs.examples import EXAMPLES, list_examples
from regard.lab.lab import Lab
from regard.lab.server.jobs import Job


def largest_key(weights: torch.Tensor, keys: list[str], own: int | None) -> str:
    """The key with the largest weight, the query's own token aside."""
    others = weights.clone()
    if own is not None:
        others[own] = -1.0
    return keys[int(others.argmax())].strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=[example["name"] for example in EXAMPLES])
def test_an_example_shows_what_its_caption_says(lab: Lab, example: dict[str, Any]) -> None:
    assert example["model"] in lab.library.entries()
    request = {"model": example["model"], "input": {"text": example["text"]}}
    if "alignment" in example:
        place = example["alignment"]
        target = alignment.write(lab, request, Job())["finished"][0]["tokens"]
        request["input"]["target"] = target
        read = alignment.read(lab, request | {"attention": place["attention"], "head": place["head"]}, Job())
        assert read["target_tokens"][place["query"]]["text"].strip() == example["token"]
        keys = [token["text"] for token in read["tokens"]]
        assert largest_key(read["weights"][place["query"]], keys, None) == example["key"]
        return
    capture = lab.capture(request, Job())
    tokens = [token.text for token in capture.tokens["source"]]
    weights = capture.attention(example["attention"]).weights(example["head"])
    assert (
        tokens[example["query"]].strip() == example["token"] and not capture.tokens["source"][example["query"]].unknown
    )
    row, own = weights[example["query"]], example["query"]
    assert largest_key(row, tokens, own) == example["key"]
    if row[own] >= row.max() - 1e-6:  # a caption says so where the token attends to itself as much
        assert "itself" in example["title"]["en"] and "除自身外" in example["title"]["zh"]
    assert all(example["key"] in caption and example["token"] in caption for caption in example["title"].values())


@pytest.mark.parametrize("name", ["chase", "hit"])
def test_the_order_of_words_does_not_matter_to_head_0_of_meanings(lab: Lab, name: str) -> None:
    example = next(example for example in EXAMPLES if example["name"] == name)
    first, second = (
        lab.capture({"model": "meanings", "input": {"text": example[key]}}, Job()) for key in ("text", "other")
    )
    weights = [run.attention(0).weights(0) for run in (first, second)]
    torch.testing.assert_close(weights[0].flip(0, 1), weights[1])
    assert [token.text for token in first.tokens["source"]] == [token.text for token in second.tokens["source"]][::-1]


@pytest.mark.parametrize("name", ["grey-ball", "grey-ball-zh"])
def test_every_white_gets_the_same_weight(lab: Lab, name: str) -> None:
    example = next(example for example in EXAMPLES if example["name"] == name)
    run = lab.capture({"model": "meanings", "input": {"text": example["text"]}}, Job())
    row = run.attention(0).weights(0)[example["query"]]
    white = row[[n for n, token in enumerate(run.tokens["source"]) if token.text == example["key"]]]
    torch.testing.assert_close(white, white[:1].expand_as(white))


def test_examples_of_models_that_are_not_there_are_not_listed() -> None:
    assert all(example["model"] == "tagger" for example in list_examples({"tagger"}))
    assert not any(example in EXAMPLES for example in list_examples(set()))
