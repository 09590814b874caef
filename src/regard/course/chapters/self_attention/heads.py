"""Several heads: split, concatenate, project; and a famous sentence whose pronoun must find its noun."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, Numbers, Slider
from ...pictures import Bars, Heatmap, NumberTable, Plane
from ...step import Evidence, Finding, Result, Step

NOUNS = (
    Bilingual(
        "animal",
        "animal",
    ),
    Bilingual(
        "street",
        "street",
    ),
    Bilingual(
        "tired",
        "tired",
    ),
    Bilingual(
        "wide",
        "wide",
    ),
)


def compute_multi_head(heads: str, inputs: np.ndarray) -> Result:
    count, size, rng = int(heads), 4 // int(heads), np.random.default_rng(8)
    w_q, w_k, w_v, w_o = rng.normal(0, 2, (4, 4, 4))
    q, k, v = inputs @ w_q, inputs @ w_k, inputs @ w_v
    outputs, maps, parts = [], [], np.zeros_like(inputs)
    for head in range(count):  # each head has its own columns of Q, K and V
        own = slice(head * size, (head + 1) * size)
        scores = q[:, own] @ k[:, own].T / np.sqrt(size)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        maps.append(weights / weights.sum(axis=1, keepdims=True))
        outputs.append(maps[-1] @ v[:, own])
        parts = parts + outputs[-1] @ w_o[own]  # the rows of W_o that belong to this head
    output = np.concatenate(outputs, axis=1) @ w_o  # Concat(head_1, …, head_h) W_o
    words = ["猫", "坐在", "垫子"]
    return dict(
        output=output, maps=np.concatenate(maps), rows=[f"{n + 1}: {word}" for n in range(count) for word in words],
        columns=words, targets=[[words[j] for j in weights.argmax(axis=1)] for weights in maps], count=count,
        names=[str(n + 1) for n in range(count)], size=size, gap=np.abs(parts - output).max(),
        parameters=4 * w_q.size, disagree=np.ptp(np.array(maps), axis=0).max(),
    )  # fmt: skip


def attend_multi_head(heads: str, inputs: Tensor) -> Tensor:
    w_q, w_k, w_v, w_o = torch.from_numpy(np.random.default_rng(8).normal(0, 2, (4, 4, 4)))
    q, k, v = ((inputs @ w).view(1, 3, int(heads), -1).transpose(1, 2) for w in (w_q, w_k, w_v))
    return rg.attend(q, k, v).transpose(1, 2).reshape(3, 4) @ w_o


MULTI_HEAD = Step(
    name="multi-head",
    title=Bilingual("Several heads: split, concatenate, project", "多头：拆分、拼接、投影"),
    claim=Bilingual(
        "Q, K and V are split into h groups, each group attends by itself, the outputs are concatenated and "
        "projected: MultiHead = Concat(head₁, …, head_h) W_o. Heads can attend to different positions for different "
        "reasons (syntax, meaning, position).",
        "把 Q、K、V 拆成 h 组，每组独立计算注意力，输出拼接后再投影：MultiHead = Concat(head₁, …, head_h) W_o。不同的"
        "头可以出于不同的原因（语法、语义、位置）关注不同的位置。",
    ),
    task=Bilingual(
        "Choose 1, 2 or 4 heads: the same matrices are cut into more, narrower heads. Three rows are one head; look "
        "for a word about which the heads disagree.",
        "选 1、2 或 4 个头：同样的矩阵被切成更多、更窄的头。每三行是一个头；找一个各头意见不同的词。",
    ),
    controls=(
        Choice(
            "heads",
            Bilingual("heads", "头数"),
            "2",
            (
                ("1", Bilingual("1 of width 4", "1 个，宽 4")),
                ("2", Bilingual("2 of width 2", "2 个，宽 2")),
                ("4", Bilingual("4 of width 1", "4 个，宽 1")),
            ),
        ),
        Numbers(
            "inputs",
            Bilingual("word vectors X", "词向量 X"),
            ((1.0, 0.0, 0.5, 0.0), (0.0, 1.0, 0.0, 0.5), (0.5, 0.0, 1.0, 0.0)),
            -3,
            3,
            rows=(Bilingual("猫 cat", "猫"), Bilingual("坐在 sits on", "坐在"), Bilingual("垫子 mat", "垫子")),
        ),
    ),
    compute=compute_multi_head,
    attend=attend_multi_head,
    pictures=(
        Heatmap(Bilingual("weights, head by head", "每个头的权重"), "maps", "rows", "columns"),
        NumberTable(
            Bilingual("each head's heaviest word", "每个头权重最大的词"),
            "targets",
            "names",
            (Bilingual("for 猫", "对“猫”"), Bilingual("for 坐在", "对“坐在”"), Bilingual("for 垫子", "对“垫子”")),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "Concatenating and multiplying by W_o is the same as adding up what each head writes through its own "
                "rows of W_o (difference {gap:.0e}). The {parameters} parameters do not depend on the number of "
                "heads.",
                "拼接后乘 W_o，等于每个头经由 W_o 中属于自己的几行写出、再相加（相差 {gap:.0e}）。参数量 "
                "{parameters} 与头数无关。",
            ),
            lambda result: result["gap"] < 1e-12,
        ),
        Finding(
            Bilingual(
                "The heads' weights for the same pair of words differ by up to {disagree:.2f}; one head has one "
                "opinion only.",
                "对同一对词，各头的权重最多相差 {disagree:.2f}；只有一个头就只有一种意见。",
            ),
            lambda result: result["disagree"] > 0.3,
        ),
    ),
    evidence=(Evidence("heads"),),
    link="heads?model=tagger",
)


def compute_coreference(it: np.ndarray, keys: np.ndarray, ending: str, context: float) -> Result:
    words = ["The", "animal", "didn't", "cross", "the", "street", "because", "it", "was", "too", ending]
    vectors = np.zeros((11, 2))
    vectors[[1, 5]] = keys[:2]  # animal, street
    vectors[10] = keys[2] if ending == "tired" else keys[3]
    query = it + context * vectors[10]  # what an earlier layer has carried from the last word to “it”
    scores = vectors @ query
    weights = np.exp(scores - scores.max())
    weights = weights / weights.sum()
    output = weights @ vectors
    return dict(
        words=words, query=query, scores=scores, weights=weights, output=output, animal=weights[1],
        street=weights[5], ending=ending, context=context, best=words[int(weights[:8].argmax())],
    )  # fmt: skip


def attend_coreference(it: Tensor, keys: Tensor, ending: str, context: float) -> Tensor:
    vectors = keys.new_zeros(1, 1, 11, 2)
    vectors[0, 0, [1, 5, 10]] = keys[[0, 1, 2 if ending == "tired" else 3]]
    query = it + context * vectors[:, :, 10:]
    return rg.attend(query, vectors, vectors, score=rg.Dot(scale=1.0))[0, 0, 0]


COREFERENCE = Step(
    name="coreference",
    title=Bilingual("“it” and the animal", "“it” 与 animal"),
    claim=Bilingual(
        "In “The animal didn't cross the street because it was too tired” self-attention can link “it” with “animal” "
        "directly, however far apart they are. With “wide” it should be the street.",
        "在 “The animal didn't cross the street because it was too tired” 里，自注意力可以直接把 “it” 与 “animal” "
        "联系起来，不论相隔多远。换成 “wide”，就该是 street。",
    ),
    task=Bilingual(
        "The vectors here are set by hand. Switch between tired and wide, then lower the context to 0: “it” alone "
        "cannot know. Below: what heads of a real model do.",
        "这里的向量是手工设定的。在 tired 与 wide 之间切换，再把上下文降到 0：光靠 “it” 无从知道。真实模型的头怎么做，"
        "见下。",
    ),
    controls=(
        Choice(
            "ending",
            Bilingual("last word", "最后一个词"),
            "tired",
            (("tired", Bilingual("tired", "tired")), ("wide", Bilingual("wide", "wide"))),
        ),
        Slider("context", Bilingual("context that has reached “it”", "已传到 “it” 的上下文"), 1.0, 0.0, 2.0, 0.1),
        Numbers("it", Bilingual("“it” by itself", "“it” 本身"), (0.8, 0.8), -3, 3),
        Numbers(
            "keys",
            Bilingual("vectors", "向量"),
            ((2.0, 0.3), (0.3, 2.0), (0.9, -0.4), (-0.4, 0.9)),
            -3,
            3,
            rows=NOUNS,
            columns=(Bilingual("living", "生命"), Bilingual("place", "地点")),
        ),
    ),
    compute=compute_coreference,
    attend=attend_coreference,
    pictures=(
        Plane(
            Bilingual("“it” by itself, and with its context", "“it” 本身，以及带上下文之后"),
            (("keys", "key"), ("it", "plain"), ("query", "query")),
            (("keys", NOUNS), ("it", (Bilingual("it", "it"),)), ("query", (Bilingual("query", "查询"),))),
            extent=3,
        ),
        Bars(Bilingual("weights of “it”", "“it” 的权重"), "weights", "words", low=0, high=1),
    ),
    findings=(
        Finding(
            Bilingual(
                "With “{ending}” and context {context:.1f}, “it” gives animal {animal:.2f} and street {street:.2f}.",
                "最后一个词是 “{ending}”、上下文为 {context:.1f} 时，“it” 给 animal {animal:.2f}，给 street "
                "{street:.2f}。",
            ),
            lambda result: (
                (result["animal"] > 2 * result["street"]) == (result["ending"] == "tired")
                and abs(result["animal"] - result["street"]) > 0.2
            ),
        ),
    ),
    evidence=(Evidence("coreference"),),
    link="heads?model=tagger&attention=2&head=2&query=8"
    "&text=The animal didn't cross the street because it was too tired.",
)
