"""Any number of vectors: three shared matrices, a matrix of weights that grows, and the round table."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Numbers, Slider
from ...pictures import Drawing, Heatmap, Lines
from ...step import Evidence, Finding, Result, Step


def compute_any_length(tokens: int, dim: int) -> Result:
    random = np.random.default_rng(2)
    w_q, w_k, w_v = random.normal(size=(3, dim, dim)) / np.sqrt(dim)  # made once, for every length
    x = random.normal(size=(50, dim))[:tokens]
    scores = (x @ w_q.T) @ (x @ w_k.T).T / np.sqrt(dim)  # as many rows and columns as there are vectors
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights = weights / weights.sum(1, keepdims=True)
    output = weights @ (x @ w_v.T)  # one vector of the same size for each
    attention_size = w_q.size + w_k.size + w_v.size
    layer_size = (tokens * dim) ** 2  # a fully connected layer between all inputs and all outputs
    lengths = np.arange(1, 51)
    return dict(
        weights=weights,
        output=output,
        lengths=lengths,
        attention_sizes=np.full(50, attention_size),
        layer_sizes=(lengths * dim) ** 2,
        attention_size=attention_size,
        layer_size=layer_size,
        tokens=tokens,
        dim=dim,
        pairs=weights.size,
        error=np.abs(weights.sum(1) - 1).max(),
        last=output.shape[1],
    )


def attend_any_length(tokens: int, dim: int) -> Tensor:
    random = np.random.default_rng(2)
    w_q, w_k, w_v = torch.from_numpy(random.normal(size=(3, dim, dim)) / np.sqrt(dim))
    x = torch.from_numpy(random.normal(size=(50, dim))[:tokens])
    return rg.attend(*((x @ w.T)[None, None] for w in (w_q, w_k, w_v)))[0, 0]


ANY_LENGTH = Step(
    name="any-length",
    title=Bilingual("Five vectors or fifty, with the same three matrices", "五个或五十个向量，同样三个矩阵"),
    claim=Bilingual(
        "Attention fits any length for three reasons. The three matrices are shared by all vectors, so the parameters "
        "do not depend on the length. The L × L weights are not stored but computed from the content. Softmax makes a "
        "distribution of any number of scores, and the weighted sum is always one vector of the same size.",
        "注意力适应任意长度，靠三点：三个矩阵由所有向量共用，参数量与长度无关；L × L 的权重不是存下来的，"
        "而是由内容算出来的；无论多少个分数，softmax 都能变成分布，加权和总是同样大小的一个向量。",
    ),
    task=Bilingual(
        "Move the number of vectors from 5 to 50. The matrix of weights grows, the parameters of attention stay; "
        "compare them with a fully connected layer made for exactly this length.",
        "把向量个数从 5 调到 50：权重矩阵变大，注意力的参数不变；再与专为这个长度做的全连接层比较。",
    ),
    controls=(
        Slider("tokens", Bilingual("vectors, L", "向量个数 L"), 5, 1, 50, 1, whole=True),
        Slider("dim", Bilingual("size of a vector, d", "向量大小 d"), 8, 2, 32, 2, whole=True),
    ),
    compute=compute_any_length,
    attend=attend_any_length,
    pictures=(
        Heatmap(Bilingual("weights, L × L", "权重，L × L"), "weights"),
        Lines(
            Bilingual("parameters", "参数量"),
            "lengths",
            (
                ("layer_sizes", Bilingual("fully connected, (L d)²", "全连接，(L d)²")),
                ("attention_sizes", Bilingual("attention, 3 d²", "注意力，3 d²")),
            ),
            Bilingual("vectors L", "向量个数 L"),
            Bilingual("parameters", "参数量"),
            log_y=True,
            marker="tokens",
        ),
        Heatmap(Bilingual("outputs: one vector each", "输出：各一个向量"), "output", role="output"),
    ),
    findings=(
        Finding(
            Bilingual(
                "{tokens} vectors: {pairs} weights from {attention_size} parameters; a fully connected layer for this "
                "length has {layer_size:,}.",
                "{tokens} 个向量：{attention_size} 个参数算出 {pairs} 个权重；为这个长度做的全连接层有 "
                "{layer_size:,} 个参数。",
            ),
            lambda result: (
                result["pairs"] == result["tokens"] ** 2 and result["attention_size"] == 3 * result["dim"] ** 2
            ),
        ),
        Finding(
            Bilingual(
                "Every row of weights sums to 1 (error {error:.0e}), and every output has {last} numbers.",
                "每行权重之和都是 1（误差 {error:.0e}），每个输出都是 {last} 个数。",
            ),
            lambda result: result["error"] < 1e-12 and result["last"] == result["dim"],
        ),
    ),
    evidence=(
        Evidence("fixed-weights", ("any-length", "one-length")),
        Evidence("grey-ball", ("fixed-size", "any-size")),
    ),
)

GUESTS = (
    Bilingual("cook", "厨师"),
    Bilingual("doctor", "医生"),
    Bilingual("engineer", "工程师"),
    Bilingual("farmer", "农民"),
    Bilingual("athlete", "运动员"),
    Bilingual("driver", "司机"),
    Bilingual("nurse", "护士"),
    Bilingual("student", "学生"),
)
TOPICS = (
    Bilingual("asks: food", "想问：饮食"),
    Bilingual("asks: health", "想问：健康"),
    Bilingual("asks: machines", "想问：机器"),
    Bilingual("card: food", "身份：饮食"),
    Bilingual("card: health", "身份：健康"),
    Bilingual("card: machines", "身份：机器"),
    Bilingual("opinion", "观点"),
)
PEOPLE = (
    (0.0, 1.0, 0.3, 1.0, 0.1, 0.0, 0.8),
    (0.6, 0.0, 0.7, 0.1, 1.0, 0.1, -0.6),
    (0.9, 0.4, 0.0, 0.0, 0.0, 1.0, 0.2),
    (0.0, 0.2, 1.0, 0.9, 0.0, 0.4, 0.6),
    (0.7, 0.9, 0.0, 0.2, 0.6, 0.0, -0.3),
    (0.3, 0.5, 0.8, 0.0, 0.0, 0.7, 0.9),
    (0.8, 0.2, 0.1, 0.1, 0.9, 0.2, -0.8),
    (0.6, 0.3, 0.9, 0.3, 0.2, 0.2, 0.0),
)


def compute_round_table(people: np.ndarray, count: int, listener: int, focus: float) -> Result:
    guests = people[np.arange(count) % len(people)]  # the ninth guest is another cook, and so on
    changes = 0.3 * np.random.default_rng(6).uniform(-1, 1, size=(50, 7))[:count]
    guests = guests + changes * (np.arange(count) >= len(people))[:, None]  # with views of their own
    w_q, w_k, w_v = np.eye(7)[0:3], np.eye(7)[3:6], np.eye(7)[6:7]  # the rules of the meeting
    questions, cards, opinions = guests @ w_q.T, guests @ w_k.T, guests @ w_v.T
    scores = focus * questions @ cards.T  # everyone reads every card
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights = weights / weights.sum(1, keepdims=True)
    views = weights @ opinions  # everyone leaves with one view
    me = min(listener, count) - 1
    return dict(
        questions=questions,
        cards=cards,
        opinions=opinions[:, 0],
        weights=weights,
        views=views[:, 0],
        listener=me + 1,
        view=views[me, 0],
        heaviest=int(weights[me].argmax()) + 1,
        share=weights[me].max(),
        count=count,
        pairs=count**2,
        rules=w_q.size + w_k.size + w_v.size,
        low=opinions.min(),
        high=opinions.max(),
    )


def attend_round_table(people: Tensor, count: int, listener: int, focus: float) -> Tensor:
    changes = torch.from_numpy(0.3 * np.random.default_rng(6).uniform(-1, 1, size=(50, 7)))[:count]
    guests = people[torch.arange(count) % len(people)]
    guests = guests + changes * (torch.arange(count) >= len(people))[:, None]
    q, k, v = guests[:, 0:3], guests[:, 3:6], guests[:, 6:7]
    return rg.attend(q[None, None], k[None, None], v[None, None], score=rg.Dot(scale=focus)).flatten()


ROUND_TABLE = Step(
    name="round-table",
    title=Bilingual("A round table that people join", "可以随时加入的圆桌会议"),
    claim=Bilingual(
        "Attention is like a meeting at a round table, for five people or fifty. The rules are fixed: everyone "
        "brings a "
        "question (query), a name card (key) and an opinion (value). Everyone reads all cards, decides whom to listen "
        "to, and leaves with one view of their own.",
        "注意力像一场圆桌会议，五个人可以开，五十个人也可以开。规则是固定的：每人带来一个问题（查询）、"
        "一张身份牌（键）和一个观点（值）。每个人看过所有身份牌，决定重点听谁的，最后形成自己的一个观点。",
    ),
    task=Bilingual(
        "Click a person: the lines show whom they listen to. Let more people join, up to fifty. Turn the focus down to "
        "0 and everyone is heard alike; turn it up and one voice decides.",
        "点一个人：线的粗细表示他在听谁。让更多人加入，最多五十人。把专注程度调到 0，对所有人一视同仁；调高，"
        "就只听一个人的。",
    ),
    controls=(
        Slider("count", Bilingual("people at the table", "参会人数"), 5, 1, 50, 1, whole=True),
        Slider("listener", Bilingual("who listens", "谁在听"), 1, 1, 50, 1, whole=True),
        Slider("focus", Bilingual("focus", "专注程度"), 4, 0, 12, 0.5),
        Numbers(
            "people", Bilingual("what the first eight bring", "前八位带来什么"), PEOPLE, -1, 1, 0.1, GUESTS, TOPICS
        ),
    ),
    compute=compute_round_table,
    attend=attend_round_table,
    answer="views",
    pictures=(
        Drawing(Bilingual("the round table", "圆桌"), "round_table"),
        Heatmap(Bilingual("who listens to whom, L × L", "谁在听谁，L × L"), "weights"),
    ),
    findings=(
        Finding(
            Bilingual(
                "Person {listener} listens most to person {heaviest} ({share:.2f}) and leaves with the view "
                "{view:+.2f}, "
                "between the lowest opinion {low:+.2f} and the highest {high:+.2f}.",
                "第 {listener} 位最听第 {heaviest} 位的（{share:.2f}），最后的观点是 {view:+.2f}，"
                "介于最低的 {low:+.2f} 和最高的 {high:+.2f} 之间。",
            ),
            lambda result: bool(result["low"] <= result["view"] <= result["high"]),
        ),
        Finding(
            Bilingual(
                "{count} people make a table of {pairs} weights; the rules stay {rules} numbers, however many come.",
                "{count} 个人构成 {pairs} 个权重的关系表；无论来多少人，规则都是那 {rules} 个数。",
            ),
            lambda result: result["weights"].size == result["pairs"] and result["rules"] == 49,
        ),
    ),
    evidence=(Evidence("fixed-weights", ("dynamic", "any-length")),),
)

STEPS = (ANY_LENGTH, ROUND_TABLE)
