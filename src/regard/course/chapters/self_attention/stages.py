"""The four steps of self-attention on a sentence of three words, and what queries, keys and values decide."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, Numbers, Slider
from ...pictures import Bars, Drawing, Heatmap, NumberTable
from ...step import Evidence, Finding, Result, Step

WORDS = (Bilingual("猫 cat", "猫"), Bilingual("坐在 sits on", "坐在"), Bilingual("垫子 mat", "垫子"))
FEATURES = (Bilingual("animal", "动物"), Bilingual("action", "动作"), Bilingual("thing", "物体"))
INPUTS = ((1.0, 0.0, 0.1), (0.0, 1.0, 0.0), (0.1, 0.0, 1.0))
W_Q = ((0.0, 3.0, 2.5, 0.0), (2.0, 0.0, 2.0, 0.0), (2.0, 2.0, 0.0, 1.0))
W_K = ((1.5, 0.0, 0.0, 0.0), (0.0, 1.5, 0.0, 0.0), (0.0, 0.0, 1.5, 1.0))
W_V = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))


def compute_four_steps(inputs: np.ndarray, w_q: np.ndarray, w_k: np.ndarray, w_v: np.ndarray) -> Result:
    words = ["猫", "坐在", "垫子"]
    queries, keys, values = inputs @ w_q, inputs @ w_k, inputs @ w_v  # step 1
    products = queries @ keys.T  # step 2
    factor = np.sqrt(keys.shape[1])
    scaled = products / factor  # step 3: scale …
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    weights = powers / powers.sum(axis=1, keepdims=True)  # … and normalise each row
    output = weights @ values  # step 4
    alone = []
    for x in inputs[::-1]:  # the same word by word, from the last to the first
        powers = np.exp(keys @ (x @ w_q) / factor)
        alone.append(powers @ values / powers.sum())
    return dict(
        inputs=inputs, w_q=w_q, w_k=w_k, w_v=w_v, words=words, queries=queries, keys=keys, values=values,
        products=products, factor=factor, scaled=scaled, weights=weights, output=output, itself=weights[0, 0],
        verb=weights[0, 1], mat=weights[0, 2], parallel=np.abs(np.array(alone[::-1]) - output).max(),
    )  # fmt: skip


def attend_four_steps(inputs: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    q, k, v = ((inputs @ matrix)[None, None] for matrix in (w_q, w_k, w_v))
    return rg.attend(q, k, v)[0, 0]


FOUR_STEPS = Step(
    name="four-steps",
    title=Bilingual("猫 坐在 垫子: self-attention in four steps", "猫 坐在 垫子：自注意力的四个步骤"),
    claim=Bilingual(
        "Self-attention makes three vectors of every word (query, key, value), compares each query with every key, "
        "scales and normalises, and adds up the values. In 猫 坐在 垫子 (the cat sits on the mat) the cat should "
        "find that 坐在 and 垫子 matter most to it.",
        "自注意力为每个词生成三个向量（查询、键、值），让每个查询与所有键比较，缩放并归一化，再把值加起来。在“猫 坐在"
        " 垫子”里，“猫”应当发现“坐在”和“垫子”与它关系最大。",
    ),
    task=Bilingual(
        "Click 猫 × 坐在 and read the steps from top to bottom. Then set the first row of W_q to (3, 0, 0, 0): the "
        "cat asks for animals and looks mostly at itself.",
        "点击“猫 × 坐在”的格子，从上往下读。再把 W_q 的第一行改成 (3, 0, 0, 0)：猫去找动物，便主要看自己了。",
    ),
    controls=(
        Numbers("inputs", Bilingual("word vectors X", "词向量 X"), INPUTS, -3, 3, rows=WORDS, columns=FEATURES),
        Numbers("w_q", Bilingual("W_q", "W_q"), W_Q, -5, 5, 0.5, rows=FEATURES),
        Numbers("w_k", Bilingual("W_k", "W_k"), W_K, -5, 5, 0.5, rows=FEATURES),
        Numbers("w_v", Bilingual("W_v", "W_v"), W_V, -5, 5, 0.5, rows=FEATURES),
    ),
    compute=compute_four_steps,
    attend=attend_four_steps,
    pictures=(Drawing(Bilingual("from words to outputs", "从词到输出"), "stages"),),
    findings=(
        Finding(
            Bilingual(
                "猫 gives 坐在 {verb:.2f} and 垫子 {mat:.2f}, itself {itself:.2f}. Its output is mostly, not only, "
                "the values of the other two: no softmax weight is 0.",
                "“猫”给“坐在” {verb:.2f}，给“垫子” {mat:.2f}，给自己 {itself:.2f}。它的输出主要、但不只是另外两个词的"
                "值：softmax 的权重不会是 0。",
            ),
            lambda result: min(result["verb"], result["mat"]) > result["itself"] > 0,
        ),
        Finding(
            Bilingual(
                "Computed word by word, from the last to the first, the outputs differ by {parallel:.0e}: no word "
                "waits for another, so all are computed at once.",
                "从最后一个词开始逐个计算，输出只差 {parallel:.0e}：谁也不用等谁，所以可以一次全部算出。",
            ),
            lambda result: result["parallel"] < 1e-12,
        ),
    ),
    link="formula?model=tagger-zh&text=猫坐在垫子",
)


def compute_roles(vector: str, word: int, amount: float) -> Result:
    queries = np.array([[0, 3, 2.5, 0], [2, 0, 2, 0], [2, 2, 0, 1]])
    keys = np.array([[1.5, 0, 0, 0], [0, 1.5, 0, 0], [0, 0, 1.5, 1]])
    values = np.array([[1.0, 0], [0, 1], [1, 1]])

    def attention(q, k, v):
        powers = np.exp(q @ k.T / 2)
        weights = powers / powers.sum(axis=1, keepdims=True)
        return q @ k.T / 2, weights, weights @ v

    before, after, table = attention(queries, keys, values), {}, []
    for name in ("query", "key", "value"):
        changed = {"query": queries.copy(), "key": keys.copy(), "value": values.copy()}
        changed[name][word - 1] += amount
        after[name] = attention(*changed.values())
        s, w, o = (np.abs(new - old) > 1e-12 for new, old in zip(after[name], before, strict=True))
        table.append([s.any(axis=1).sum(), s.any(axis=0).sum(), w.sum(), o.any(axis=1).sum()])
    scores, weights, output = after[vector]
    return dict(
        weights=weights, output=output, change=weights - before[1], scores_change=scores - before[0],
        output_change=np.abs(output - before[2]).max(axis=1), table=np.array(table),
        rows=table[0][0], own=table[0][3], columns=table[1][1], weights_moved=table[1][2], outputs=table[2][3],
    )  # fmt: skip


def attend_roles(vector: str, word: int, amount: float) -> Tensor:
    queries = torch.tensor([[0.0, 3.0, 2.5, 0.0], [2.0, 0.0, 2.0, 0.0], [2.0, 2.0, 0.0, 1.0]], dtype=torch.float64)
    keys = torch.tensor([[1.5, 0.0, 0.0, 0.0], [0.0, 1.5, 0.0, 0.0], [0.0, 0.0, 1.5, 1.0]], dtype=torch.float64)
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    {"query": queries, "key": keys, "value": values}[vector][word - 1] += amount
    return rg.attend(queries[None, None], keys[None, None], values[None, None])[0, 0]


ROLES = Step(
    name="roles",
    title=Bilingual("What query, key and value decide", "查询、键、值各决定什么"),
    claim=Bilingual(
        "As in a search: the query is the question a word asks, the key is the catchword it is found by, the value "
        "is the content it gives. The query decides where to look, the key who is looked at, the value what is taken "
        "from there.",
        "好比信息检索：查询是一个词提出的问题，键是别人找到它的关键词，值是它提供的内容。查询决定看哪里，键决定谁被看，"
        "值决定从那里拿走什么。",
    ),
    task=Bilingual(
        "Change one vector of one word at a time. A query touches its own row of scores, a key its column, a value "
        "no weight at all.",
        "每次只改一个词的一个向量：查询只影响自己那一行分数，键影响一列，值不影响任何权重。",
    ),
    controls=(
        Choice(
            "vector",
            Bilingual("change the", "改动"),
            "query",
            (
                (
                    "query",
                    Bilingual(
                        "query",
                        "查询",
                    ),
                ),
                (
                    "key",
                    Bilingual(
                        "key",
                        "键",
                    ),
                ),
                (
                    "value",
                    Bilingual(
                        "value",
                        "值",
                    ),
                ),
            ),
        ),
        Slider(
            "word",
            Bilingual(
                "of word (1 猫, 2 坐在, 3 垫子)",
                "哪个词（1 猫，2 坐在，3 垫子）",
            ),
            1,
            1,
            3,
            1,
            whole=True,
        ),
        Slider("amount", Bilingual("added to each of its numbers", "给它的每个数加上"), 1.0, -2.0, 2.0, 0.1),
    ),
    compute=compute_roles,
    attend=attend_roles,
    pictures=(
        Heatmap(Bilingual("change of the scores", "分数的变化"), "scores_change", WORDS, WORDS, role="score"),
        Heatmap(Bilingual("change of the weights", "权重的变化"), "change", WORDS, WORDS, role="score"),
        Bars(Bilingual("change of the outputs", "输出的变化"), "output_change", WORDS, role="output", low=0),
        NumberTable(
            Bilingual("how many of each change", "各有多少个改变"),
            "table",
            (
                Bilingual(
                    "change the query",
                    "改动查询",
                ),
                Bilingual(
                    "change the key",
                    "改动键",
                ),
                Bilingual(
                    "change the value",
                    "改动值",
                ),
            ),
            (
                Bilingual("rows of scores (of 3)", "分数的行（共 3）"),
                Bilingual("columns of scores (of 3)", "分数的列（共 3）"),
                Bilingual("weights (of 9)", "权重（共 9）"),
                Bilingual("outputs (of 3)", "输出（共 3）"),
            ),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "A query changes {rows} row of scores and {own} output; a key changes {columns} column, and through "
                "softmax {weights_moved} weights; a value changes no weight, but {outputs} outputs.",
                "查询改变 {rows} 行分数和 {own} 个输出；键改变 {columns} 列分数，又经 softmax 改变 {weights_moved} 个"
                "权重；值不改变任何权重，却改变 {outputs} 个输出。",
            ),
            lambda result: result["table"].tolist() == [[1, 3, 3, 1], [3, 1, 9, 3], [0, 0, 0, 3]],
        ),
    ),
    evidence=(Evidence("three-vectors", ("all-three",)),),
)
