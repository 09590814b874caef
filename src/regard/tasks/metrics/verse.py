"""Checks of regular Chinese verse: lines of one length, rhymes at the ends of even lines, parallel couplets.

What rhymes and which characters are alike is learned from poems: two characters rhyme if they end even lines of the
same poems, or of poems with the same rhymes; characters are alike if they stand beside the same characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import torch
from torch import Tensor
from torch.nn import functional

from ..inputs.words.character_vectors import character_vectors

LINE_LENGTHS, LINE_COUNTS = (5, 7), (4, 8)


def verse_lines(poem: str) -> list[str]:
    """The lines of a poem.

    >>> verse_lines("床前明月光，疑是地上霜。")
    ['床前明月光', '疑是地上霜']
    """
    return [line for line in re.split(r"[，。？！；、\s]+", poem) if line]


def is_regular(poem: str) -> bool:
    """Whether a poem has four or eight lines, all of five or all of seven characters."""
    lengths = [len(line) for line in verse_lines(poem)]
    return len(lengths) in LINE_COUNTS and len(set(lengths)) == 1 and lengths[0] in LINE_LENGTHS


def rhyme_characters(poem: str) -> list[str]:
    """The last characters of the even lines."""
    return [line[-1] for line in verse_lines(poem)[1::2]]


def couplets(poem: str) -> list[tuple[str, str]]:
    """Lines 1 and 2, 3 and 4, …"""
    lines = verse_lines(poem)
    return list(zip(lines[::2], lines[1::2], strict=False))


@dataclass(frozen=True)
class VerseRules:
    """Rhymes and likeness of characters, learned from poems with `from_poems`.

    `rhymes` are unit vectors `[characters, characters]` of what each character rhymes with, `vectors` unit vectors of
    what it stands beside. Two characters rhyme if their rows of `rhymes` have a cosine of at least `threshold`.
    """

    number: dict[str, int]
    rhymes: Tensor
    vectors: Tensor
    threshold: float = 0.3

    @classmethod
    def from_poems(cls, poems: Sequence[str], dim: int = 64) -> VerseRules:
        number = {c: n for n, c in enumerate(sorted({c for poem in poems for c in poem}), 1)}
        ends = Counter(pair for poem in poems for pair in combinations(sorted(set(rhyme_characters(poem))), 2))
        partners = torch.zeros(len(number) + 1, len(number) + 1)
        for (a, b), count in ends.items():
            partners[number[a], number[b]] = partners[number[b], number[a]] = count
        partners.diagonal().copy_(partners.amax(1))  # a character rhymes with itself as with its closest partner
        vectors = character_vectors([line for poem in poems for line in verse_lines(poem)], number, dim)
        return cls(number, functional.normalize(partners, dim=1), functional.normalize(vectors, dim=1))

    def rhyme(self, a: str, b: str) -> bool:
        """Whether two different characters rhyme; a character that no poem ends with rhymes with none."""
        if a == b or a not in self.number or b not in self.number:
            return False
        return float(self.rhymes[self.number[a]] @ self.rhymes[self.number[b]]) >= self.threshold

    def rhyme_share(self, poems: Sequence[str]) -> float:
        """The share of neighbouring even lines whose last characters rhyme."""
        pairs = [pair for poem in poems for pair in pairwise(rhyme_characters(poem))]
        return sum(self.rhyme(*pair) for pair in pairs) / max(1, len(pairs))

    def is_parallel(self, first: str, second: str) -> bool:
        """Whether characters at the same position are more alike than characters at different ones, on average."""
        if len(first) != len(second) or len(first) < 2:
            return False
        rows, columns = (self.vectors[[self.number.get(c, 0) for c in line]] for line in (first, second))
        likeness = rows @ columns.T
        same = likeness.diagonal().mean()
        return bool(same > (likeness.sum() - likeness.trace()) / (likeness.numel() - len(first)))

    def parallel_share(self, poems: Sequence[str]) -> float:
        """The share of parallel couplets among the second and third of each poem of eight lines, where rules ask it."""
        middle = [pair for poem in poems if len(verse_lines(poem)) == 8 for pair in couplets(poem)[1:3]]
        return sum(self.is_parallel(*pair) for pair in middle) / max(1, len(middle))


def even_couplet_share(poems: Sequence[str]) -> float:
    """The share of couplets whose lines have the same length, five or seven."""
    pairs = [pair for poem in poems for pair in couplets(poem)]
    return sum(len(a) == len(b) and len(a) in LINE_LENGTHS for a, b in pairs) / max(1, len(pairs))
