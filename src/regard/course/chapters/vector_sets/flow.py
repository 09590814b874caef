"""Self-attention from a¹ … a⁴ to b¹ … b⁴, and two heads side by side."""

from __future__ import annotations

import numpy as np
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Numbers, Slider
from ...pictures import Bars, Drawing, Heatmap, Plane
from ...step import Evidence, Finding, Result, Step

INPUTS = tuple(Bilingual(f"a{n}", f"a{n}") for n in "¹²³⁴")
OUTPUTS = tuple(Bilingual(f"b{n}", f"b{n}") for n in "¹²³⁴")
KEYS = tuple(Bilingual(f"k{n}", f"k{n}") for n in "¹²³⁴")
QUERIES = tuple(Bilingual(f"q{n}", f"q{n}") for n in "¹²³⁴")


def compute_flow(inputs: np.ndarray, w_q: np.ndarray, w_k: np.ndarray, w_v: np.ndarray) -> Result:
    q, k, v = inputs @ w_q.T, inputs @ w_k.T, inputs @ w_v.T  # qⁱ = W^q aⁱ, kⁱ = W^k aⁱ, vⁱ = W^v aⁱ
    scores = q @ k.T  # αᵢⱼ = qⁱ · kʲ
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights = weights / weights.sum(1, keepdims=True)  # each row sums to one
    output = weights @ v  # b¹ … b⁴ at once
    first = sum(weights[0, j] * v[j] for j in range(len(v)))  # b¹ by itself
    difference = np.abs(output[0] - first).max()
    heaviest = int(weights[0].argmax())
    nearest = int(np.linalg.norm(v - output[0], axis=1).argmin())
    return dict(
        q=q,
        k=k,
        v=v,
        scores=scores,
        weights=weights,
        output=output,
        difference=difference,
        name="a" + "¹²³⁴"[heaviest],
        share=weights[0, heaviest],
        nearest="v" + "¹²³⁴"[nearest],
        agree=heaviest == nearest,
        smallest=weights.min(),
        error=np.abs(weights.sum(1) - 1).max(),
    )


def attend_flow(inputs: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    q, k, v = (inputs @ w.T for w in (w_q, w_k, w_v))
    return rg.attend(q[None, None], k[None, None], v[None, None], score=rg.Dot(scale=1.0))[0, 0]


FLOW = Step(
    name="flow",
    title=Bilingual("From a¹ … a⁴ to b¹ … b⁴, all at once", "从 a¹ … a⁴ 到 b¹ … b⁴，一次算完"),
    claim=Bilingual(
        "Each input vector gets a query, a key and a value from three learned matrices. The query of a¹ is compared "
        "with every key, softmax turns the scores into weights, and b¹ is the weighted sum of the values. No b waits "
        "for another, so all are computed at the same time, and each has seen the whole sequence.",
        "每个输入向量经三个可学习的矩阵得到查询、键和值。a¹ 的查询与所有键比较，softmax 把分数变成权重，"
        "b¹ 就是各个值的加权和。各个 b 互不等待，所以能同时算出，而且每一个都看过整个序列。",
    ),
    task=Bilingual(
        "Click b² … b⁴ to see where each comes from. Drag a³ towards a¹ and watch the thickest line of b¹; then edit a "
        "matrix: all four outputs change.",
        "点击 b² … b⁴，看它们各自从哪里来。把 a³ 拖近 a¹，看 b¹ 最粗的线怎样变；再改一改矩阵：四个输出都会变。",
    ),
    controls=(
        Numbers(
            "inputs",
            Bilingual("inputs", "输入"),
            ((1.5, 0.5), (-1.0, 1.0), (0.2, -1.6), (1.4, 1.6)),
            -3,
            3,
            rows=INPUTS,
        ),
        Numbers("w_q", Bilingual("W^q", "W^q"), ((1.0, 0.2), (0.0, 1.0)), -2, 2),
        Numbers("w_k", Bilingual("W^k", "W^k"), ((0.8, 0.0), (0.3, 1.0)), -2, 2),
        Numbers("w_v", Bilingual("W^v", "W^v"), ((1.0, 0.0), (0.0, 1.0)), -2, 2),
    ),
    compute=compute_flow,
    attend=attend_flow,
    pictures=(
        Drawing(Bilingual("which inputs flow into which output", "哪些输入流入哪个输出"), "flow"),
        Plane(
            Bilingual("inputs and outputs", "输入与输出"),
            (("inputs", "plain"), ("output", "output")),
            (("inputs", INPUTS), ("output", OUTPUTS)),
        ),
        Heatmap(Bilingual("scores α", "分数 α"), "scores", QUERIES, KEYS, "score"),
        Heatmap(Bilingual("weights α̂ = softmax(α)", "权重 α̂ = softmax(α)"), "weights", OUTPUTS, INPUTS),
    ),
    findings=(
        Finding(
            Bilingual(
                "b¹ computed alone and b¹ from the product of matrices differ by {difference:.0e}.",
                "单独算出的 b¹ 与矩阵乘法得到的 b¹ 相差 {difference:.0e}。",
            ),
            lambda result: result["difference"] < 1e-12,
        ),
        Finding(
            Bilingual(
                "b¹ takes most from {name} ({share:.2f}), and of all values it lies nearest to {nearest}.",
                "b¹ 从 {name} 取得最多（{share:.2f}），在所有的值里也离 {nearest} 最近。",
            ),
            lambda result: result["agree"],
        ),
        Finding(
            Bilingual(
                "No weight is zero (the smallest is {smallest:.4f}): every output has seen every input.",
                "没有权重是零（最小的是 {smallest:.4f}）：每个输出都看过每个输入。",
            ),
            lambda result: result["smallest"] > 0 and result["error"] < 1e-9,
        ),
    ),
    evidence=(Evidence("fixed-weights", ("dynamic", "any-length")),),
)

PEOPLE = (Bilingual("she", "她"), Bilingual("reads", "读"), Bilingual("poems", "诗"))
FEATURES = (
    Bilingual("asks for a verb", "找动词"),
    Bilingual("is a verb", "是动词"),
    Bilingual("asks for a topic", "找话题"),
    Bilingual("is a topic", "是话题"),
)


def compute_two_heads(inputs: np.ndarray, sharpness: float, w_o: np.ndarray) -> Result:
    w_q = np.eye(4)[[0, 2]].reshape(2, 1, 4) * sharpness  # head 1 asks for a verb, head 2 for a topic
    w_k = np.eye(4)[[1, 3]].reshape(2, 1, 4)
    w_v = np.eye(4).reshape(2, 2, 4)  # each head carries half of the vector
    q, k, v = (np.einsum("hdc,nc->hnd", w, inputs) for w in (w_q, w_k, w_v))
    scores = q @ k.transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    weights = weights / weights.sum(2, keepdims=True)
    heads = weights @ v  # bⁱ¹ and bⁱ²
    output = np.concatenate(list(heads), axis=1) @ w_o.T  # bⁱ = W^O concat(bⁱ¹, bⁱ²)
    first = np.stack([weights[0, 0], weights[1, 0]])
    return dict(
        first=first,
        output=output,
        concat=np.concatenate(list(heads), axis=1),
        verb=first[0, 1],
        topic=first[1, 2],
        both=np.abs(first[0] - first[1]).max(),
    )


def attend_two_heads(inputs: Tensor, sharpness: float, w_o: Tensor) -> Tensor:
    q = sharpness * inputs[:, [0, 2]].T[None, :, :, None]  # [batch, heads, tokens, head_dim]
    k = inputs[:, [1, 3]].T[None, :, :, None]
    v = inputs.view(-1, 2, 2).transpose(0, 1)[None]
    heads = rg.attend(q, k, v, score=rg.Dot(scale=1.0))[0]
    return heads.transpose(0, 1).flatten(1) @ w_o.T


TWO_HEADS = Step(
    name="two-heads",
    title=Bilingual("Two heads, two kinds of relation", "两个头，两种关系"),
    claim=Bilingual(
        "One set of weights follows one kind of relation. Several heads have matrices of their own, attend "
        "separately, and their outputs are concatenated and mixed by one more learned matrix, W^O.",
        "一组权重只能表达一种关系。多个头各有自己的矩阵，分别计算注意力，再把输出拼接起来，"
        "由另一个可学习的矩阵 W^O 融合。",
    ),
    task=Bilingual(
        "“She” asks head 1 for a verb and head 2 for a topic. Set one of its questions to 0: that head spreads its "
        "weight evenly. Then change W^O: the weights stay, the mix changes. (Chapter 5 goes on with heads.)",
        "“她”向头 1 找动词，向头 2 找话题。把其中一个提问改成 0：那个头的权重就平均了。再改 W^O："
        "权重不变，混合的方式变了。（第 5 章会继续讲多头。）",
    ),
    controls=(
        Numbers(
            "inputs",
            Bilingual("inputs", "输入"),
            ((1.0, 0.0, 1.0, 0.0), (0.0, 1.0, 0.5, 0.2), (0.5, 0.0, 0.0, 1.0)),
            -2,
            2,
            rows=PEOPLE,
            columns=FEATURES,
        ),
        Slider("sharpness", Bilingual("scale of the queries", "查询的倍数"), 4, 0, 8, 0.5),
        Numbers(
            "w_o",
            Bilingual("W^O", "W^O"),
            ((1.0, 0.0, 0.5, 0.0), (0.0, 1.0, 0.0, 0.5), (0.5, 0.0, 1.0, 0.0), (0.0, 0.5, 0.0, 1.0)),
            -2,
            2,
        ),
    ),
    compute=compute_two_heads,
    attend=attend_two_heads,
    pictures=(
        Bars(
            Bilingual("weights of “she”", "“她”的权重"),
            "first",
            PEOPLE,
            (Bilingual("head 1", "头 1"), Bilingual("head 2", "头 2")),
            low=0,
            high=1,
        ),
        Heatmap(
            Bilingual("outputs of both heads, concatenated", "两个头的输出，拼接后"), "concat", PEOPLE, role="value"
        ),
        Heatmap(Bilingual("after W^O: b¹, b², b³", "乘以 W^O 之后：b¹、b²、b³"), "output", PEOPLE, role="output"),
    ),
    findings=(
        Finding(
            Bilingual(
                "Head 1 gives {verb:.2f} to “reads”, head 2 gives {topic:.2f} to “poems”: one softmax could not give "
                "both more than half.",
                "头 1 把 {verb:.2f} 给“读”，头 2 把 {topic:.2f} 给“诗”：一个 softmax 不可能让两者都超过一半。",
            ),
            lambda result: result["verb"] > 0.5 and result["topic"] > 0.5,
        ),
    ),
    evidence=(Evidence("heads"),),
)

STEPS = (FLOW, TWO_HEADS)
