"""The built-in recall finds earlier occurrences."""

from __future__ import annotations

import pytest
import torch

from regard.lab.builtin.recall import recall

LINE = "The owl sat in the oak.\n猫坐在垫子上。\n"
POEM = f"{LINE}The more he saw the less he spoke.\n{LINE}"


def test_recall_finds_what_stood_there_before() -> None:
    text = POEM.replace("\n", " ")
    attention = recall(text).attention(0)
    second = text.index("The owl", 10)
    weights = attention.weights(0)
    for n in range(second + 4, second + 20):  # what came after the same letters, a line and more ago
        assert int(weights[n].argmax()) in (
            n - second + 1,
            *(i + 1 for i in range(n) if text[i - 3 : i + 1] == text[n - 3 : n + 1]),
        )
    again = text.rindex("垫")
    assert int(attention.weights(1)[again, :again].argmax()) == text.index("垫")
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(text), dtype=weights.dtype))


@pytest.mark.parametrize("text", ["ab", "猫狗", "abc", "abcd"])
def test_texts_shorter_than_a_run_are_read(text):
    weights = recall(text).attentions[0].weights(None)
    assert weights.shape == (2, len(text), len(text))
    assert torch.allclose(weights.sum(-1), torch.ones_like(weights.sum(-1)))
