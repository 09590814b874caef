"""ROUGE (Lin 2004): overlap of words, word pairs and longest common subsequences with a reference."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

WORDS = re.compile(r"[\u3400-\u9fff\uf900-\ufaff\u3040-\u30ff]|[^\W_\u3400-\u9fff\uf900-\ufaff\u3040-\u30ff]+")


def rouge(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """ROUGE-1, -2 and -L as F1, each the mean over the texts; of several references the best score counts.

    Words are runs of letters and digits in lower case, or single Chinese or Japanese characters. There is no stemming.

    >>> rouge(["the cat sat"], [["the cat sat on the mat"]])["rouge1"]
    0.6666666666666666
    """
    if not hypotheses:
        return {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}
    rows = [
        [max(values) for values in zip(*(scores(text, reference) for reference in several), strict=True)]
        for text, several in zip(hypotheses, references, strict=True)
    ]
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return dict(zip(("rouge1", "rouge2", "rougeL"), means, strict=True))


def scores(text: str, reference: str) -> tuple[float, float, float]:
    """ROUGE-1, -2, -L of one text and one reference."""
    a, b = words_of(text), words_of(reference)
    return ngram_f1(a, b, 1), ngram_f1(a, b, 2), f1(longest_common(a, b), len(a), len(b))


def words_of(text: str) -> list[str]:
    """The words of a text.

    >>> words_of("A state-of-the-art 模型.")
    ['a', 'state', 'of', 'the', 'art', '模', '型']
    """
    return WORDS.findall(text.lower())


def ngram_f1(a: list[str], b: list[str], size: int) -> float:
    """F1 of the n-grams of `size` words that two texts share."""
    left, right = (Counter(zip(*(words[n:] for n in range(size)), strict=False)) for words in (a, b))
    return f1((left & right).total(), left.total(), right.total())


def f1(shared: int, left: int, right: int) -> float:
    """2·shared / (left + right), the harmonic mean of shared/left and shared/right; 0 if nothing is shared."""
    return 2 * shared / (left + right) if shared else 0.0


def longest_common(a: list[str], b: list[str]) -> int:
    """The length of the longest common subsequence.

    >>> longest_common("the cat sat on the mat".split(), "the dog sat on a mat".split())
    4
    """
    row = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for n, other in enumerate(b, 1):
            before, row[n] = row[n], before + 1 if word == other else max(row[n], row[n - 1])
    return row[-1]
