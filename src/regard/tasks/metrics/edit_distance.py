"""Edit distance, word error rate and character error rate."""

from __future__ import annotations

from collections.abc import Sequence


def edit_distance(a: Sequence[object], b: Sequence[object]) -> int:
    """The least number of insertions, deletions and replacements that turn a into b (Levenshtein).

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


def error_rate(references: Sequence[Sequence[object]], hypotheses: Sequence[Sequence[object]]) -> float:
    """The edits of all hypotheses, divided by the length of all references; it can exceed 1.

    >>> error_rate(["abcd", "xy"], ["abd", "xyz"])
    0.3333333333333333
    """
    edits = sum(edit_distance(a, b) for a, b in zip(references, hypotheses, strict=True))
    return edits / max(1, sum(map(len, references)))


def word_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """`error_rate` of words, which are separated by spaces."""
    return error_rate([text.split() for text in references], [text.split() for text in hypotheses])


def character_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """`error_rate` of characters; several spaces between words count as one."""
    return error_rate([" ".join(text.split()) for text in references], [" ".join(text.split()) for text in hypotheses])
