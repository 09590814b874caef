"""Splits a text into words as the training data of a tagger did: "Where's the cat?" → Where 's the cat ?"""

from __future__ import annotations

import re
from collections.abc import Container

from ....data.tables.column_profiles import CHINESE_LETTER
from ..cache import MethodCache

CHUNK = re.compile(r"\S+")
PIECE = re.compile(r"\d+(?:[.,:]\d+)*(?!\w)|[^\W_]+|[\W_]")
"""A number, a run of letters and digits, or a single other character."""
NEGATION = re.compile(r"n['’]t(?!\w)", re.IGNORECASE)
UNKNOWN_COST, PIECE_COST = 10.0, 1.0
"""Cost of a piece that is no word of the training data, and of every piece: few known pieces are preferred."""


class WordSplitter:
    """Splits chunks between blanks at punctuation, where the pieces are words of the training data.

    Data that has "cat?" or "don't" as one word, or no "?" as a word, is thus not split there. Letters and digits are
    only separated before "n't", if the data has it as a word. Chinese is split into the fewest words of the data, and
    into characters where there are none.

    >>> splitter = WordSplitter({"Where", "'s", "the", "cat", "?", ",", "do", "n't", "U.S."})
    >>> text = "Where's the dog? Don't, U.S."
    >>> [text[start:end] for start, end in splitter.spans(text)]
    ['Where', "'s", 'the', 'dog', '?', 'Do', "n't", ',', 'U.S.']
    >>> WordSplitter({"我", "喜欢", "。"}).pieces("我喜欢北京。")
    ['我', '喜欢', '北', '京', '。']
    """

    def __init__(self, words: Container[str]) -> None:
        self.words = words
        self.cached_pieces = MethodCache(self.pieces, 1 << 16)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each word."""
        spans = []
        for chunk in CHUNK.finditer(text):
            start = chunk.start()
            for piece in self.cached_pieces(chunk[0]):
                spans.append((start, start + len(piece)))
                start += len(piece)
        return spans

    def knows(self, piece: str) -> bool:
        return piece in self.words or piece.lower() in self.words or piece.replace("’", "'") in self.words

    def pieces(self, chunk: str) -> list[str]:
        """The words of a chunk without blanks: the cheapest way to cut it at the places where it may be cut."""
        chinese = CHINESE_LETTER.search(chunk) is not None
        if self.knows(chunk) or (chunk.isalnum() and not chinese):
            return [chunk]
        cuts = {0, len(chunk), *(match.start() for match in PIECE.finditer(chunk))}
        if self.knows("n't"):
            cuts |= {match.start() for match in NEGATION.finditer(chunk)}
        if chinese:
            cuts |= {place for match in CHINESE_LETTER.finditer(chunk) for place in match.span()}
        cuts = sorted(cuts)
        best: dict[int, tuple[float, list[str]]] = {0: (0.0, [])}
        for n, end in enumerate(cuts[1:], 1):
            options = []
            for start in cuts[max(0, n - 12) : n]:
                cost, pieces = best[start]
                piece = chunk[start:end]
                options.append((cost + self.cost(piece), [*pieces, piece]))
            best[end] = min(options, key=lambda option: option[0])
        return best[len(chunk)][1]

    def cost(self, piece: str) -> float:
        if self.knows(piece):
            return PIECE_COST
        if len(piece) > 1 and CHINESE_LETTER.search(piece):
            return (PIECE_COST + UNKNOWN_COST) * len(piece)
        # a word or a number may be unknown; punctuation that is no word of the data stays with its neighbours
        plain = piece[0].isalnum() and PIECE.fullmatch(piece) is not None
        return PIECE_COST + UNKNOWN_COST * (0.2 if plain else 1.0)
