"""One sentence through the formula, the first step of the course: its drawing plays the numbers of `compute`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Slider, Words
from ...pictures import Drawing
from ...step import Evidence, Finding, Result, Step


def compute_sentence(sentence: str, query: int) -> Result:
    words = sentence.lower().split()
    row = min(query, len(words)) - 1
    meanings = {"cats dogs 猫 狗": [2, 0, 1], "sit run 坐在 跑过": [0, 2, 1], "mats 垫子": [0, 1, 2]}
    known = {word: meaning for names, meaning in meanings.items() for word in names.split()}
    x = np.array([known.get(word, [0.4, 0.4, 0.4]) for word in words])
    w_q = np.array([[0, 0.9, 0.7], [0.8, 0, 0.9], [0.5, 0.9, 0]])  # what a word looks for
    w_k = np.array([[1, 0, 0.2], [0, 1, 0.1], [0.2, 0, 1]])  # what it offers
    w_v = 3 * np.eye(3)  # what it passes on
    q, k, v = x[row] @ w_q, x @ w_k, x @ w_v
    products = q * k
    scores = products.sum(axis=1)
    scaled = scores / np.sqrt(len(q))
    exponentials = np.exp(scaled)
    weights = exponentials / exponentials.sum()
    output = weights @ v
    return dict(
        words=words,
        row=row,
        x=x,
        q=q,
        k=k,
        v=v,
        products=products,
        scores=scores,
        scaled=scaled,
        exponentials=exponentials,
        weights=weights,
        parts=weights[:, None] * v,
        output=output,
        word=words[row],
        heaviest=words[weights.argmax()],
        share=100 * weights.max(),
        own=100 * weights[row],
        total=weights.sum(),
    )


def attend_sentence(sentence: str, query: int) -> Tensor:
    meanings = {"cats dogs 猫 狗": [2, 0, 1], "sit run 坐在 跑过": [0, 2, 1], "mats 垫子": [0, 1, 2]}
    known = {word: meaning for names, meaning in meanings.items() for word in names.split()}
    rows = [known.get(word, [0.4, 0.4, 0.4]) for word in sentence.lower().split()]
    x = torch.tensor(rows, dtype=torch.float64)
    w_q = torch.tensor([[0, 0.9, 0.7], [0.8, 0, 0.9], [0.5, 0.9, 0]], dtype=torch.float64)
    w_k = torch.tensor([[1, 0, 0.2], [0, 1, 0.1], [0.2, 0, 1]], dtype=torch.float64)
    q, k, v = (x @ w_q)[None, None], (x @ w_k)[None, None], (3 * x)[None, None]
    return rg.attend(q, k, v)[0, 0, min(query, len(rows)) - 1]


SENTENCE = Step(
    name="sentence",
    title=Bilingual("One sentence through the formula", "一个句子走过整个公式"),
    claim=Bilingual(
        "Attention compares a query with every key, turns the scores into weights that add up to 1, and mixes the "
        "values by them.",
        "注意力把一个查询与每个键相比较，把分数变成总和为 1 的权重，再按权重混合各个值。",
    ),
    task=Bilingual(
        "Watch it once. Then click another word, or type your own: cats, dogs, sit, run and mats have a meaning here, "
        "set by hand; other words say little.",
        "先看一遍，再点击另一个词，或输入自己的词。猫、狗、坐在、跑过、垫子在这里有手工设定的含义，其他词几乎没有含义。",
    ),
    controls=(
        Words("sentence", Bilingual("sentence", "句子"), Bilingual("cats sit on mats", "猫 坐在 垫子 上"), 6),
        Slider("query", Bilingual("which word asks", "第几个词提问"), 1, 1, 6, 1, whole=True),
    ),
    compute=compute_sentence,
    attend=attend_sentence,
    pictures=(Drawing(Bilingual("", ""), "sentence"),),
    findings=(
        Finding(
            Bilingual(
                "“{word}” looks most at “{heaviest}”, with {share:.0f} % of its weight, and keeps {own:.0f} % for "
                "itself.",
                "“{word}”最关注“{heaviest}”，给它 {share:.0f} % 的权重，留给自己 {own:.0f} %。",
            ),
            lambda result: result["heaviest"] != result["word"],
        ),
        Finding(
            Bilingual("The weights add up to {total:.3f}.", "权重之和为 {total:.3f}。"),
            lambda result: abs(result["total"] - 1) < 1e-9,
        ),
    ),
    evidence=(Evidence("soft-dictionary"),),
)
