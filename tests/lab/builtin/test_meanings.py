"""The built-in model of words with given meanings."""

from __future__ import annotations

import torch

from regard.lab.builtin.meanings import Meanings, words_in
from regard.lab.inputs.model_input import SHORT


def test_order_matters_to_the_second_head_alone() -> None:
    model = Meanings()
    there, back = (model(**model.prepare(text, SHORT).arguments).hidden[0] for text in ("猫追狗", "狗追猫"))
    torch.testing.assert_close(there[:, :5], back.flip(0)[:, :5])
    torch.testing.assert_close(there[:, 5:], back.flip(0)[:, 5:])  # distances are the same both ways
    one, other = (model(**model.prepare(text, SHORT).arguments).hidden[0] for text in ("猫追狗跑", "猫狗追跑"))
    torch.testing.assert_close(one[0, :5], other[0, :5])
    assert (one[0, 5:] - other[0, 5:]).abs().max() > 1e-3


def test_words_keep_their_places() -> None:
    text = "猫坐在垫子, don't 垫x"
    for word, start, end in words_in(text):
        assert text[start:end] == word
    assert [word for word, _, _ in words_in(text)] == ["猫", "坐在", "垫子", ",", "don't", "垫", "x"]
