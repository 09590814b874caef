"""Queries, keys and values: the soft dictionary, dot products, softmax, normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Numbers
from ...pictures import Bars, Plane
from ...step import Evidence, Finding, Step

WORDS = (Bilingual("apple", "苹果"), Bilingual("banana", "香蕉"), Bilingual("chair", "椅子"))


def compute_soft_dictionary(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    scores = keys @ query
    weights = np.exp(scores - scores.max())
    weights = weights / weights.sum()
    answer = weights @ values
    return dict(scores=scores, weights=weights, answer=answer, chair=weights[2])


def attend_soft_dictionary(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    q, k, v = query.view(1, 1, 1, -1), keys[None, None], values.view(1, 1, -1, 1)
    return rg.attend(q, k, v, score=rg.Dot(scale=1.0)).squeeze()


SOFT_DICTIONARY = Step(
    name="soft-dictionary",
    title=Bilingual("A dictionary that answers with a mix", "会给出混合答案的字典"),
    claim=Bilingual(
        "The query “fruit” is no key of the dictionary. It should return mostly apple, some banana and no chair: "
        "0.6 · 10 + 0.4 · 5 + 0 · 2 = 8.",
        "“水果”不是字典里的键。它应当主要取苹果，部分取香蕉，不取椅子：0.6 · 10 + 0.4 · 5 + 0 · 2 = 8。",
    ),
    task=Bilingual(
        "Drag the arrow of the query towards the chair and watch the answer move from 8 to 2.",
        "把查询的箭头拖向椅子，看答案怎样从 8 变为 2。",
    ),
    controls=(
        Numbers("query", Bilingual("query “fruit”", "查询“水果”"), (2.0, 1.0), -6, 6),
        Numbers("keys", Bilingual("keys", "键"), ((2.0, 0.6), (1.9, 0.4), (-2.5, -1.5)), -6, 6, rows=WORDS),
        Numbers("values", Bilingual("values", "值"), (10.0, 5.0, 2.0), 0, 20, columns=WORDS),
    ),
    compute=compute_soft_dictionary,
    attend=attend_soft_dictionary,
    answer="answer",
    pictures=(
        Plane(
            Bilingual("query and keys", "查询与键"), (("query", "query"), ("keys", "key")), (("keys", WORDS),), extent=4
        ),
        Bars(Bilingual("weights", "权重"), "weights", WORDS, low=0, high=1),
    ),
    findings=(
        Finding(
            Bilingual(
                "The answer is {answer:.2f}, with {chair:.4f} of the chair.",
                "答案是 {answer:.2f}，椅子占 {chair:.4f}。",
            ),
            lambda result: abs(result["answer"] - 8) < 0.1 and result["chair"] < 0.001,
        ),
    ),
    evidence=(Evidence("soft-dictionary"),),
)
