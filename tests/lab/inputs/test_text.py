"""Texts as tokens with character offsets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard as rg
from regard.lab.api import heads
from regard.lab.inputs.model_input import Limits
from regard.lab.inputs.text import check_text, tag_input, tokens_from_offsets
from regard.lab.lab import Lab
from regard.lab.server.jobs import Job

from ..conftest import SENTENCE


def test_pieces_of_one_character_are_a_group(lab: Lab) -> None:
    found = heads.run(lab, {"model": "llama", "input": {"text": "cat 猫鱼"}}, Job())["tokens"]["source"]
    groups = [token["group"] for token in found]
    pieces = [n for n, token in enumerate(found) if token["text"] == "鱼"]  # in no training text: bytes
    assert len(pieces) == 3 and {groups[n] for n in pieces} == {pieces[0]}
    assert [
        token.text for token in tokens_from_offsets("鱼a", [(0, 1), (0, 1), (1, 2)], ["x", "y", "z"], [False] * 3)
    ] == [
        "鱼",
        "鱼",
        "a",
    ]


def test_a_tagger_reads_words_as_treebanks_part_them() -> None:
    class Tagger:
        labels = ("X",)

        def text_inputs(self, text: str) -> dict[str, Any]:
            self.words = text.split()
            return {"tokens": torch.zeros(1)}

    task = Tagger()
    prepared = tag_input(task, "It didn't, well-known.")  # type: ignore[arg-type]
    assert task.words == ["It", "did", "n't", ",", "well-known", "."]
    assert [(one.start, one.end) for one in prepared.tokens["source"]][1:3] == [(3, 6), (6, 9)]


def test_texts_have_limits() -> None:
    with pytest.raises(rg.BadInput, match="recall"):
        check_text({"text": "abc"}, Limits(2, 2))


def test_a_sentence_is_read_whole(lab: Lab) -> None:
    tokens = heads.run(lab, {"model": "bert", "input": {"text": SENTENCE}}, Job())["tokens"]["source"]
    assert [token["special"] for token in tokens][:2] == [True, False] and tokens[-1]["special"]
    for token in tokens[1:-1]:
        assert SENTENCE[token["start"] : token["end"]] == token["text"]
