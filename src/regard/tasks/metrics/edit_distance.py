"""How far what was written is from what was said: the fewest words (or characters) to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def edit_distance(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The fewest insertions, deletions and replacements that make b of a (Levenshtein).

        d(i, j) = min(d(i−1, j) + 1, d(i, j−1) + 1, d(i−1, j−1) + [a_i ≠ b_j])

    >>> edit_distance("kitten", "sitting"), edit_distance("the cat sat".split(), "a cat".split())
    (3, 2)
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
    return row[-1]


def error_rate(references: Sequence[Sequence[Any]], hypotheses: Sequence[Sequence[Any]]) -> float:
    """Edits over all of them, a unit of the references; more than 1 where more is written than was said.

    >>> error_rate(["abcd", "xy"], ["abd", "xyz"])
    0.3333333333333333
    """
    edits = sum(edit_distance(a, b) for a, b in zip(references, hypotheses, strict=True))
    return edits / max(1, sum(map(len, references)))


def word_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """`error_rate` of words, which blanks part."""
    return error_rate([text.split() for text in references], [text.split() for text in hypotheses])


def character_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """`error_rate` of characters, blanks between words counted as one each."""
    return error_rate([" ".join(text.split()) for text in references], [" ".join(text.split()) for text in hypotheses])
