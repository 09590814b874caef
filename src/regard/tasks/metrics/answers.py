"""Scores of answers as SQuAD defines them: exact match and F1 of words, of normalised texts."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from .classification import f1_score

ARTICLES = re.compile(r"\b(a|an|the)\b")
CHINESE = re.compile("[\u3400-\u9fff\uf900-\ufaff]")


def normalize_answer(text: str) -> list[str]:
    """The words of an answer in lower case, without punctuation and articles; each Chinese character is a word.

    >>> normalize_answer("The Eiffel-Tower!"), normalize_answer("北京。")
    (['eiffeltower'], ['北', '京'])
    """
    plain = "".join(c for c in text.lower() if c not in string.punctuation and c not in "。，、！？；：“”‘’（）《》")
    return CHINESE.sub(r" \g<0> ", ARTICLES.sub(" ", plain)).split()


def exact_match(predicted: str, gold: Sequence[str]) -> float:
    """1 if the answer is one of the gold answers; an empty one is right where there is none."""
    return float(any(normalize_answer(predicted) == normalize_answer(text) for text in gold or [""]))


def answer_f1(predicted: str, gold: Sequence[str]) -> float:
    """The highest F1 of words over the gold answers; where either has no words, whether both have none.

    >>> answer_f1("in the city of Paris", ["Paris", "the city of Paris"])
    0.8571428571428571
    """
    best = 0.0
    for text in gold or [""]:
        a, b = normalize_answer(predicted), normalize_answer(text)
        common = (Counter(a) & Counter(b)).total()
        best = max(best, float(a == b) if not a or not b else f1_score(common, len(a), len(b)))
    return best
