"""Why three vectors: what is lost when two of them are the same."""

from __future__ import annotations

import numpy as np
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Numbers, Slider
from ...pictures import Bars, Heatmap, NumberTable
from ...step import Evidence, Finding, Result, Step

PEOPLE = (Bilingual("Ann", "小安"), Bilingual("Bo", "小波"), Bilingual("Cy", "小岑"), Bilingual("Di", "小迪"))
VARIANTS = (
    Bilingual("W_q, W_k, W_v", "W_q、W_k、W_v"),
    Bilingual("W_q = W_k", "W_q = W_k"),
    Bilingual("K = V (guess)", "K = V（只能猜）"),
    Bilingual("no W_v", "没有 W_v"),
)


def compute_three_vectors(asks: np.ndarray, ages: np.ndarray, sharpness: float) -> Result:
    names = np.eye(4)  # a token: the own name, the name asked for, the age
    tokens = np.concatenate([names, names[asks.astype(int) - 1], ages[:, None] / 10], axis=1)
    name, asked, age = tokens[:, :4], tokens[:, 4:8], tokens[:, 8:]  # what W_k, W_q and W_v pick out

    def attention(q, k, v):
        scores = sharpness * q @ k.T / 2
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights = weights / weights.sum(axis=1, keepdims=True)
        return scores, weights, weights @ v

    scores, weights, output = attention(asked, name, 10 * age[:, 0])
    same_scores, same, own = attention(name, name, 10 * age[:, 0])  # W_q = W_k: everybody asks for the own name
    found = attention(asked, name, name)[2]  # K = V: the name of who was asked for; no age can be read from it
    mixed = attention(asked, name, tokens)[2]  # no W_v: the whole vector of the other, age among 9 numbers
    wanted = ages[asks.astype(int) - 1]
    answers = np.stack([wanted, output, own, np.full(4, ages.mean()), 10 * mixed[:, 8]], axis=1)
    errors = np.abs(answers[:, 1:] - wanted[:, None]).mean(axis=0)
    return dict(
        weights=weights, same=same, output=output, answers=answers, errors=errors, full=errors[0],
        tied=errors[1], joined=errors[2], symmetric=np.abs(same_scores - same_scores.T).max(),
        asymmetric=np.abs(scores - scores.T).max(), width=mixed.shape[1], found=found,
    )  # fmt: skip


def attend_three_vectors(asks: Tensor, ages: Tensor, sharpness: float) -> Tensor:
    names = ages.new_tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    q, k, v = names[asks.long() - 1][None, None], names[None, None], ages.view(1, 1, -1, 1)
    return rg.attend(q, k, v, score=rg.Dot(scale=sharpness / 2))[0, 0, :, 0]


THREE_VECTORS = Step(
    name="three-vectors",
    title=Bilingual("Why three different vectors?", "为什么需要三个不同的向量？"),
    claim=Bilingual(
        "Three vectors divide the labour: the query can say what a word needs while key and value say what it "
        "offers. With fewer vectors the model is less flexible.",
        "三个向量分工明确：查询说“我需要什么”，键和值说“我能提供什么”。少一个向量，模型就少一分灵活。",
    ),
    task=Bilingual(
        "Each person knows a name, an age and whose age is asked for (1 to 4). Change who asks for whom and compare "
        "the columns with the wanted age.",
        "每个人有名字、年龄，还想打听某个人（1 到 4）的年龄。改动谁打听谁，把各列与想要的年龄比较。",
    ),
    controls=(
        Numbers(
            "asks",
            Bilingual(
                "asks for the age of (1 to 4)",
                "打听谁的年龄（1 到 4）",
            ),
            (2.0, 3.0, 3.0, 1.0),
            1,
            4,
            1,
            columns=PEOPLE,
        ),
        Numbers("ages", Bilingual("age", "年龄"), (31.0, 45.0, 18.0, 62.0), 1, 99, 1, columns=PEOPLE),
        Slider("sharpness", Bilingual("sharpness (scale of the scores)", "锐度（分数的倍数）"), 16.0, 0.0, 24.0, 1.0),
    ),
    compute=compute_three_vectors,
    attend=attend_three_vectors,
    pictures=(
        NumberTable(
            Bilingual("who gets which answer", "每个人得到的答案"),
            "answers",
            PEOPLE,
            (Bilingual("wanted", "想要的"), *VARIANTS),
        ),
        Bars(Bilingual("mean error (years)", "平均误差（岁）"), "errors", VARIANTS, role="output", low=0),
        Heatmap(Bilingual("weights, three matrices", "权重，三个矩阵"), "weights", PEOPLE, PEOPLE),
        Heatmap(Bilingual("weights, W_q = W_k", "权重，W_q = W_k"), "same", PEOPLE, PEOPLE),
    ),
    findings=(
        Finding(
            Bilingual(
                "With three matrices the answers are off by {full:.2f} years. With W_q = W_k scores are symmetric "
                "(to {symmetric:.0e}): everybody matches best with themselves and is {tied:.0f} years off.",
                "三个矩阵时答案平均差 {full:.2f} 岁。W_q = W_k 时分数是对称的（误差 {symmetric:.0e}）：人人与自己最匹"
                "配，平均差 {tied:.0f} 岁。",
            ),
            lambda result: (
                result["full"] < 0.1 and result["symmetric"] < 1e-12 < result["asymmetric"] and result["tied"] > 5
            ),
        ),
        Finding(
            Bilingual(
                "With K = V what arrives is the name that was matched, not the age; the best guess is {joined:.0f} "
                "years off. Without W_v the age arrives as one of {width} numbers that all come along, and a later "
                "matrix can pick it out: here W_v is the one that could be spared.",
                "K = V 时拿到的是被匹配的名字，不是年龄，只能猜，平均差 {joined:.0f} 岁。没有 W_v 时年龄夹在一并带来"
                "的 {width} 个数里，后面的矩阵仍能把它挑出来：在这个例子里，可以省的是 W_v。",
            ),
            lambda result: result["joined"] > 5 and abs(result["errors"][3] - result["full"]) < 1e-9,
        ),
    ),
    evidence=(Evidence("three-vectors"),),
)
