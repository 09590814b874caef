"""Fixed weights and weights computed from the input: what queries, keys and values are for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Numbers, Slider
from ...pictures import Bars, Heatmap, Lines, Plane
from ...step import Evidence, Finding, Result, Step

WORDS = (Bilingual("the", "这只"), Bilingual("grey", "灰"), Bilingual("cat", "猫"), Bilingual("sleeps", "睡了"))


def compute_fixed_weights(first: np.ndarray, second: np.ndarray) -> Result:
    # W: set by training, then the same for any input
    learned = np.random.default_rng(2).dirichlet(np.ones(4), size=4)

    def attention_weights(words):
        scores = np.exp(words @ words.T / np.sqrt(words.shape[1]))
        return scores / scores.sum(-1, keepdims=True)

    first_weights, second_weights = attention_weights(first), attention_weights(second)
    # 0: the same mix, 2: nothing in common
    change = np.abs(first_weights - second_weights).sum(-1).mean()
    fixed_output, output = learned @ first, first_weights @ first
    return dict(
        learned=learned,
        first_weights=first_weights,
        second_weights=second_weights,
        change=change,
        fixed_output=fixed_output,
        output=output,
    )


def attend_fixed_weights(first: Tensor, second: Tensor) -> Tensor:
    words = first[None, None]
    return rg.attend(words, words, words)[0, 0]


FIXED_WEIGHTS = Step(
    name="fixed-weights",
    title=Bilingual("Fixed weights, computed weights", "固定的权重，算出来的权重"),
    claim=Bilingual(
        "A fully connected layer computes σ(W·x + b): training sets W, and from then on every input is mixed by the "
        "same W. Attention computes softmax(Q·Kᵀ/√d)·V: its mixing weights are made anew for each input, out of the "
        "input.",
        "全连接层计算 σ(W·x + b)：W 由训练确定，此后无论输入什么，都用同一个 W 来混合。"
        "注意力计算 softmax(Q·Kᵀ/√d)·V：混合用的权重是每次由输入现算出来的。",
    ),
    task=Bilingual(
        "Drag a word of the first sentence. Its attention map changes at once; the map of the fully connected layer "
        "stays as it is. Then compare the maps of the two sentences.",
        "拖动第一句里的某个词：它的注意力图立刻改变，全连接层的图纹丝不动。再比较两句话的注意力图。",
    ),
    controls=(
        Numbers(
            "first",
            Bilingual("first sentence, a vector for each word", "第一句，每个词一个向量"),
            ((0.2, 0.4), (1.4, 0.3), (1.2, 1.6), (-1.5, 0.8)),
            -3,
            3,
            rows=WORDS,
        ),
        Numbers(
            "second",
            Bilingual("second sentence", "第二句"),
            ((-1.8, -0.4), (0.3, 1.9), (-0.2, -1.6), (1.7, -0.9)),
            -3,
            3,
            rows=WORDS,
        ),
    ),
    compute=compute_fixed_weights,
    attend=attend_fixed_weights,
    pictures=(
        Plane(
            Bilingual("the words of the first sentence", "第一句的词"),
            (("first", "key"),),
            (("first", WORDS),),
        ),
        Heatmap(Bilingual("fully connected: any sentence", "全连接：任何句子都用它"), "learned", WORDS, WORDS),
        Heatmap(Bilingual("attention: first sentence", "注意力：第一句"), "first_weights", WORDS, WORDS),
        Heatmap(Bilingual("attention: second sentence", "注意力：第二句"), "second_weights", WORDS, WORDS),
    ),
    findings=(
        Finding(
            Bilingual(
                "Between the two sentences the attention weights of a word change by {change:.2f} on average (2 would "
                "be a different mix altogether). W changes by 0.",
                "两句之间，一个词的注意力权重平均改变 {change:.2f}（完全不同时为 2）。W 的改变是 0。",
            ),
            lambda result: result["change"] > 0.3,
        ),
    ),
    evidence=(Evidence("fixed-weights", ("fixed", "dynamic", "network")),),
)


def compute_frozen_query(frozen: float) -> Result:
    first, second, constant = np.random.default_rng(1).normal(size=(3, 4, 3))

    def layer(x, frozen):
        # queries and keys are made of this, values always of x
        source = (1 - frozen) * x + frozen * constant
        weights = np.exp(source @ source.T)
        weights = weights / weights.sum(-1, keepdims=True)
        return weights, weights @ x

    def linearity_error(frozen):  # a linear layer has f(a + b) = f(a) + f(b)
        of_sum, of_a, of_b = (layer(x, frozen)[1] for x in (first + second, first, second))
        return np.abs(of_sum - of_a - of_b).max()

    (first_weights, output), (second_weights, _) = layer(first, frozen), layer(second, frozen)
    steps = np.linspace(0, 1, 41)
    errors = np.array([linearity_error(step) for step in steps])
    return dict(
        first_weights=first_weights,
        second_weights=second_weights,
        change=np.abs(first_weights - second_weights).sum(-1).mean(),
        error=linearity_error(frozen),
        frozen_error=errors[-1],
        steps=steps,
        errors=errors,
        frozen=frozen,
        output=output,
    )


def attend_frozen_query(frozen: float) -> Tensor:
    rng = np.random.default_rng(1)
    first, _, constant = torch.from_numpy(rng.normal(size=(3, 4, 3)))
    source = ((1 - frozen) * first + frozen * constant)[None, None]
    return rg.attend(source, source, first[None, None], score=rg.Dot(scale=1.0))[0, 0]


FROZEN_QUERY = Step(
    name="frozen-query",
    title=Bilingual("Why a fully connected layer has no query", "全连接层为什么没有查询"),
    claim=Bilingual(
        "Is the query the whole difference? What matters is that queries and keys depend on the input. A fully "
        "connected layer maps its input to another space by one matrix and does not ask which part matters now, so it "
        "has nothing to ask with. Freeze the queries and keys of an attention, and it becomes a fully connected layer.",
        "区别就只是有没有查询吗？关键在于查询和键随输入而变。全连接层用一个矩阵把输入映射到另一个空间，"
        "并不问眼下哪一部分重要，自然用不着查询。把注意力的查询和键冻结，它就变成了全连接层。",
    ),
    task=Bilingual(
        "Move the slider to 1. The maps of two different inputs become the same, and the layer becomes linear: the "
        "error of f(a + b) = f(a) + f(b) falls to 0.",
        "把滑块推到 1：两个不同输入的权重图变得一样，这一层也变成线性的：f(a + b) = f(a) + f(b) 的误差降到 0。",
    ),
    controls=(
        Slider("frozen", Bilingual("how frozen queries and keys are", "查询和键的冻结程度"), 0.0, 0.0, 1.0, 0.05),
    ),
    compute=compute_frozen_query,
    attend=attend_frozen_query,
    pictures=(
        Heatmap(Bilingual("weights for the input a", "输入 a 的权重"), "first_weights"),
        Heatmap(Bilingual("weights for the input b", "输入 b 的权重"), "second_weights"),
        Lines(
            Bilingual("how far the layer is from a linear one", "这一层离线性有多远"),
            "steps",
            (("errors", Bilingual("error of f(a + b) = f(a) + f(b)", "f(a + b) = f(a) + f(b) 的误差")),),
            Bilingual("how frozen queries and keys are", "查询和键的冻结程度"),
            Bilingual("largest error", "最大误差"),
            marker="frozen",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "Here the weights of a and b differ by {change:.2f}, and the error of linearity is {error:.2f}.",
                "此时 a 与 b 的权重相差 {change:.2f}，线性的误差是 {error:.2f}。",
            ),
            lambda result: result["change"] > 0.3 and result["error"] > 0.1,
        ),
        Finding(
            Bilingual(
                "With queries and keys wholly frozen the error is {frozen_error:.1g}: a linear layer with a fixed "
                "matrix.",
                "查询和键完全冻结时，误差为 {frozen_error:.1g}：这就是一个矩阵固定的线性层。",
            ),
            lambda result: result["frozen_error"] < 1e-12,
        ),
    ),
    evidence=(Evidence("fixed-weights", ("fixed", "dynamic")),),
)

STATIONS = (
    Bilingual("coast", "海边"),
    Bilingual("city", "城里"),
    Bilingual("forest", "森林"),
    Bilingual("valley", "山谷"),
    Bilingual("summit", "山顶"),
)


def compute_query_key_value(query: np.ndarray, keys: np.ndarray, values: np.ndarray, sharpness: float) -> Result:
    # the query is compared with every key
    distances = ((keys - query) ** 2).sum(-1)
    scores = -sharpness * distances
    weights = np.exp(scores - scores.max())
    weights = weights / weights.sum()
    answer = weights @ values  # the values are mixed by the weights
    # what a database returns: the one best record
    nearest = values[distances.argmin()]
    fixed = values.mean()  # what fixed weights return, wherever you ask
    return dict(
        distances=distances,
        weights=weights,
        answer=answer,
        nearest=nearest,
        fixed=fixed,
        answers=np.array([fixed, answer, nearest]),
    )


def attend_query_key_value(query: Tensor, keys: Tensor, values: Tensor, sharpness: float) -> Tensor:
    # -|q - k|² = 2 q·k - |k|² - |q|², and softmax ignores the last term
    q = torch.cat([query, torch.ones(1, dtype=query.dtype)])[None, None, None]
    k = torch.cat([2 * keys, -(keys**2).sum(-1, keepdim=True)], -1)[None, None]
    v = values[None, None, :, None]
    return rg.attend(q, k, v, score=rg.Dot(scale=sharpness)).squeeze()


QUERY_KEY_VALUE = Step(
    name="query-key-value",
    title=Bilingual("Query, key, value: asking a database", "查询、键、值：向数据库提问"),
    claim=Bilingual(
        "The query says what I am looking for, a key says what a record can be found by, a value is what the record "
        "gives. A fully connected layer is a box that turns what goes in into what comes out; attention is a database: "
        "each query finds its keys and returns their values.",
        "查询说的是“我要找什么”，键说的是“凭什么能找到我”，值是“我真正给出的内容”。"
        "全连接层像一个黑盒子，进去什么就变出什么；注意力像一个数据库：每个查询去找对应的键，取回它们的值。",
    ),
    task=Bilingual(
        "Five weather stations: where they stand is the key, their temperature the value. Drag the query over the map "
        "and read the answer. Then raise the sharpness: the mix becomes the one nearest record.",
        "五个气象站：所在的位置是键，测得的气温是值。在地图上拖动查询，看答案怎样变。"
        "再提高锐度：混合的答案会变成最近的那一条记录。",
    ),
    controls=(
        Numbers("query", Bilingual("query: where you stand", "查询：你站的地方"), (-0.8, 0.4), -3, 3),
        Numbers(
            "keys",
            Bilingual("keys: where the stations are", "键：气象站的位置"),
            ((-2.2, -1.2), (-0.9, 1.0), (0.6, -0.6), (1.5, 1.2), (2.4, -1.6)),
            -3,
            3,
            rows=STATIONS,
        ),
        Numbers(
            "values",
            Bilingual("values: temperature in °C", "值：气温（°C）"),
            (19.0, 24.0, 17.0, 14.0, 3.0),
            -20,
            40,
            step=1,
            columns=STATIONS,
        ),
        Slider("sharpness", Bilingual("sharpness", "锐度"), 1.0, 0.0, 20.0, 0.1),
    ),
    compute=compute_query_key_value,
    attend=attend_query_key_value,
    answer="answer",
    pictures=(
        Plane(
            Bilingual("query and keys on the map", "地图上的查询与键"),
            (("query", "query"), ("keys", "key")),
            (("keys", STATIONS),),
        ),
        Bars(Bilingual("weights of the records", "各条记录的权重"), "weights", STATIONS, low=0, high=1),
        Bars(
            Bilingual("the answer in °C", "答案（°C）"),
            "answers",
            (
                Bilingual("fixed weights", "固定权重"),
                Bilingual("attention", "注意力"),
                Bilingual("best record", "最近一条"),
            ),
            role="output",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "The answer here is {answer:.1f} °C. Fixed equal weights would say {fixed:.1f} °C wherever you stand.",
                "这里的答案是 {answer:.1f} °C。若权重固定且相等，无论站在哪里都是 {fixed:.1f} °C。",
            ),
            lambda result: abs(result["answer"] - result["fixed"]) > 2,
        ),
        Finding(
            Bilingual(
                "The nearest record alone says {nearest:.1f} °C.",
                "只取最近的一条记录，是 {nearest:.1f} °C。",
            ),
            lambda result: result["nearest"] == 24,
        ),
    ),
    evidence=(Evidence("soft-dictionary", ("mix", "hard")),),
)
