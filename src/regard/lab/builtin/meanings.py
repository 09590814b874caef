"""A model of words with meanings set by hand, for a first look without training."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import regard as rg

from ...models.model import Output
from ...nn.attention import Attend

if TYPE_CHECKING:
    from ..inputs.model_input import Limits, ModelInput

#            living  place  moving  state  grammar
MEANINGS = {
    "The": (0.0, 0.0, 0.0, 0.0, 1.0),
    "animal": (1.0, 0.0, 0.3, 0.2, 0.0),
    "didn't": (0.0, 0.0, 0.4, 0.0, 0.8),
    "cross": (0.2, 0.5, 1.0, 0.0, 0.0),
    "the": (0.0, 0.0, 0.0, 0.0, 1.0),
    "street": (0.0, 1.0, 0.2, 0.0, 0.0),
    "because": (0.0, 0.0, 0.0, 0.2, 1.0),
    "it": (0.9, 0.1, 0.0, 0.4, 0.2),
    "was": (0.0, 0.0, 0.0, 0.6, 0.8),
    "too": (0.0, 0.0, 0.0, 0.7, 0.5),
    "tired": (0.6, 0.0, 0.1, 1.0, 0.0),
}
"""The words of the first sentence; more follow."""

MORE = {
    "wide": (0.0, 0.9, 0.0, 0.5, 0.0),
    "cat": (1.0, 0.0, 0.4, 0.2, 0.0),
    "dog": (1.0, 0.0, 0.5, 0.1, 0.0),
    "sat": (0.3, 0.6, 0.2, 0.5, 0.0),
    "on": (0.0, 0.4, 0.0, 0.0, 0.8),
    "mat": (0.0, 0.9, 0.0, 0.1, 0.0),
    "fruit": (0.5, 0.0, 0.0, 0.0, 0.1),
    "apple": (0.5, 0.1, 0.0, 0.1, 0.0),
    "banana": (0.5, 0.1, 0.0, 0.0, 0.0),
    "chair": (0.0, 0.7, 0.0, 0.1, 0.0),
    "ball": (0.0, 0.2, 0.6, 0.0, 0.0),
    "white": (0.0, 0.0, 0.0, 0.8, 0.0),
    "grey": (0.0, 0.0, 0.0, 1.0, 0.1),
    "猫": (1.0, 0.0, 0.4, 0.2, 0.0),
    "狗": (1.0, 0.0, 0.5, 0.1, 0.0),
    "坐在": (0.4, 0.6, 0.2, 0.5, 0.0),
    "坐": (0.4, 0.5, 0.2, 0.5, 0.0),
    "在": (0.0, 0.5, 0.0, 0.0, 0.8),
    "垫子": (0.1, 0.9, 0.0, 0.1, 0.0),
    "追": (0.3, 0.2, 1.0, 0.0, 0.0),
    "打了": (0.3, 0.0, 0.9, 0.2, 0.1),
    "A": (0.9, 0.0, 0.3, 0.0, 0.0),
    "B": (0.9, 0.1, 0.3, 0.0, 0.0),
    "水果": (0.5, 0.0, 0.0, 0.0, 0.1),
    "苹果": (0.5, 0.1, 0.0, 0.1, 0.0),
    "香蕉": (0.5, 0.1, 0.0, 0.0, 0.0),
    "椅子": (0.0, 0.7, 0.0, 0.1, 0.0),
    "球": (0.0, 0.2, 0.6, 0.0, 0.0),
    "白": (0.0, 0.0, 0.0, 0.8, 0.0),
    "灰": (0.0, 0.0, 0.0, 1.0, 0.1),
    "的": (0.0, 0.0, 0.0, 0.1, 1.0),
    **{mark: (0.0, 0.0, 0.0, 0.0, 0.5) for mark in ".,;:!?。，、；：！？"},
}
KNOWN = MEANINGS | MORE
CHINESE = "\u3400-\u9fff\uf900-\ufaff"
LETTER = rf"(?:(?![{CHINESE}])[^\W_])"
PARTS = re.compile(
    "|".join(
        [
            *(re.escape(word) for word in sorted(KNOWN, key=len, reverse=True) if not word.isascii()),
            f"[{CHINESE}]",
            f"{LETTER}+(?:['’]{LETTER}+)?",
            r"[^\w\s]|_",
        ]
    )
)
"""Words: the Chinese ones of KNOWN, any other Chinese character, runs of letters, and every other sign."""


def meaning(word: str) -> tuple[float, ...]:
    """A word's five numbers; an unknown word gets a fixed hash of its letters."""
    for spelling in spellings(word):
        if spelling in KNOWN:
            return KNOWN[spelling]
    digest = hashlib.sha256(word.lower().encode()).digest()
    return tuple(round(byte / 255 * 0.8, 3) for byte in digest[:5])


def spellings(word: str) -> tuple[str, str, str]:
    return word, word.lower(), word.capitalize()


def is_known(word: str) -> bool:
    """Whether a word has numbers set by hand."""
    return any(spelling in KNOWN for spelling in spellings(word))


def words_in(text: str) -> list[tuple[str, int, int]]:
    """The words of a text with their first character and the one after their last.

    >>> [word for word, _, _ in words_in("猫坐在垫子, A打了B")]
    ['猫', '坐在', '垫子', ',', 'A', '打了', 'B']
    """
    return [(match[0], match.start(), match.end()) for match in PARTS.finditer(text)]


class Meanings(nn.Module):
    """One attention over meanings set by hand: similar words attend to each other, in head 1 only nearby ones.

    q = 6 · meaning, k = v = meaning; the second head subtracts the distance of two words from their score, so that the
    order of the words matters to it and not to the first.
    """

    slopes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.attend = Attend()
        self.register_buffer("slopes", torch.tensor([0.0, 1.0]))

    def forward(self, *, meanings: Tensor) -> Output:
        """meanings `[batch, tokens, 5]` → the outputs of both heads, `[batch, tokens, 10]`."""
        k = meanings[:, None].expand(-1, 2, -1, -1)
        y = self.attend(6.0 * k, k, k, position=rg.Alibi(self.slopes))
        return Output(hidden=y.transpose(1, 2).flatten(2))

    def prepare(self, text: str, limits: Limits) -> ModelInput:
        """The model's input for a text."""
        from ..inputs.model_input import ModelInput, Token, check_token_count

        words = words_in(text)
        check_token_count(len(words), limits=limits)
        if not words:
            raise rg.BadInput("The text contains no words. Enter a sentence.")
        numbers = torch.tensor([[meaning(word) for word, _, _ in words]])
        tokens = [Token(word, start, end, unknown=not is_known(word)) for word, start, end in words]
        return ModelInput({"meanings": numbers}, {"source": tokens}, "source", {"hand_made": True})
