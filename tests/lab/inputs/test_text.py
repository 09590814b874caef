"""Texts as tokens with character offsets."""

from __future__ import annotations

import pytest

import regard as rg
from regard.data.tagged import Tagged
from regard.lab.api import heads
from regard.lab.inputs.model_input import LONG, SHORT
from regard.lab.inputs.text import check_text, tag_input, tokens_from_offsets
from regard.lab.lab import Lab
from regard.lab.server.jobs import Job
from regard.settings import update_settings
from regard.tasks.texts.tag import Tag

from ..conftest import SENTENCE


def test_pieces_of_one_character_are_a_group(lab: Lab) -> None:
    found = heads.run(lab, {"model": "llama", "input": {"text": "cat 猫鱼"}}, Job())["tokens"]["source"]
    groups = [token["group"] for token in found]
    pieces = [n for n, token in enumerate(found) if token["text"] == "鱼"]  # in no training text: bytes
    assert len(pieces) == 3 and {groups[n] for n in pieces} == {pieces[0]}
    tokens = tokens_from_offsets("鱼a", [(0, 1), (0, 1), (1, 2)], ["x", "y", "z"], [False] * 3, [False] * 3)
    assert [token.text for token in tokens] == ["鱼", "鱼", "a"]


def make_tagger(unit: str, *words: str) -> Tag:
    settings = update_settings(Tag.Settings(), {"unit": unit})
    return Tag.prepare([Tagged(words, ("X",) * len(words))], settings)


def test_a_tagger_reads_words_as_treebanks_part_them() -> None:
    task = make_tagger("words", "It", "did", "n't", ",", "well-known", ".")
    tokens = tag_input(task, "It didn't, well-known.", SHORT).tokens["source"]
    assert [token.text for token in tokens] == ["It", "did", "n't", ",", "well-known", "."]
    assert [(token.start, token.end) for token in tokens][1:3] == [(3, 6), (6, 9)]
    assert not any(token.unknown for token in tokens)


def test_a_word_is_unknown_when_none_of_its_letters_is_known() -> None:
    tokens = tag_input(make_tagger("words", "cat", "sat"), "cat tact 猫 zoo", SHORT).tokens["source"]
    assert {token.text: token.unknown for token in tokens} == {"cat": False, "tact": False, "猫": True, "zoo": True}


def test_a_tagger_of_unsegmented_text_reads_characters() -> None:
    prepared = tag_input(make_tagger("characters", "猫", "追", "狗"), "猫追 鱼", SHORT)
    tokens = prepared.tokens["source"]
    assert [(token.text, token.start, token.unknown) for token in tokens] == [
        ("猫", 0, False),
        ("追", 1, False),
        ("鱼", 3, True),
    ]
    assert prepared.arguments["tokens"].shape[:2] == (1, 3)


def test_texts_have_limits_and_advice_that_leads_on() -> None:
    with pytest.raises(rg.BadInput, match="page Long text"):
        check_text({"text": "a" * (SHORT.characters + 1)})
    with pytest.raises(rg.BadInput) as refused:  # the model recall has this limit too
        check_text({"text": "a" * (LONG.characters + 1)}, LONG)
    assert "Shorten it." in str(refused.value) and "recall" not in str(refused.value)
    task = make_tagger("words", "a")
    with pytest.raises(rg.BadInput, match="let it be read by windows"):
        tag_input(task, "a " * (LONG.tokens + 1), LONG)
    assert len(tag_input(task, "a " * (SHORT.tokens + 1), LONG).tokens["source"]) == SHORT.tokens + 1


def test_a_sentence_is_read_whole(lab: Lab) -> None:
    tokens = heads.run(lab, {"model": "bert", "input": {"text": SENTENCE}}, Job())["tokens"]["source"]
    assert [token["special"] for token in tokens][:2] == [True, False] and tokens[-1]["special"]
    for token in tokens[1:-1]:
        assert SENTENCE[token["start"] : token["end"]] == token["text"]
