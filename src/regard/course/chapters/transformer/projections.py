"""Where queries, keys and values come from: projections, and attention within one sequence or between two."""

from __future__ import annotations

import numpy as np
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, Numbers, Slider
from ...pictures import Heatmap, NumberTable
from ...step import Finding, Result, Step

SOURCE = (Bilingual("猫", "猫"), Bilingual("坐在", "坐在"), Bilingual("垫子", "垫子"))
TARGET = (Bilingual("the", "the"), Bilingual("cat", "cat"), Bilingual("sits", "sits"), Bilingual("mat", "mat"))


def compute_projections(embeddings: np.ndarray, inner: int) -> Result:
    rng = np.random.default_rng(1)
    first = [rng.normal(size=(4, inner)) for _ in "qkv"]  # W_Q, W_K, W_V
    second = [rng.normal(size=(inner, 4)) for _ in "qkv"]  # W_iQ, W_iK, W_iV of one head

    def attention(q, k, v):
        scores = q @ k.T / np.sqrt(k.shape[1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True) @ v

    twice = attention(*[embeddings @ a @ b for a, b in zip(first, second, strict=True)])  # Q = E W_Q, then Q W_iQ
    once = attention(*[embeddings @ (a @ b) for a, b in zip(first, second, strict=True)])  # one matrix W_Q W_iQ
    rank = np.linalg.matrix_rank(first[0] @ second[0])
    return dict(
        twice=twice, once=once, gap=np.abs(twice - once).max(), rank=int(rank), inner=inner,
        numbers=[[24 * inner, int(rank)], [3 * 4 * 4, 4]],
    )  # fmt: skip


def attend_projections(embeddings: Tensor, inner: int) -> Tensor:
    rng = np.random.default_rng(1)
    first = [rng.normal(size=(4, inner)) for _ in "qkv"]
    second = [rng.normal(size=(inner, 4)) for _ in "qkv"]
    merged = [embeddings.new_tensor(a @ b) for a, b in zip(first, second, strict=True)]
    q, k, v = (embeddings[None, None] @ matrix for matrix in merged)
    return rg.attend(q, k, v)[0, 0]


PROJECTIONS = Step(
    name="projections",
    title=Bilingual("E·W_i or Q·W_i: the same head", "E·W_i 与 Q·W_i：同一个头"),
    claim=Bilingual(
        "Q = E·W_Q, K = E·W_K and V = E·W_V are learned linear maps of the embeddings E. A head can be written "
        "Attention(E·W_iQ, E·W_iK, E·W_iV) or Attention(Q·W_iQ, K·W_iK, V·W_iV): Q, K and V are intermediate "
        "variables, and the two forms are equivalent.",
        "Q = E·W_Q、K = E·W_K、V = E·W_V 都是对嵌入 E 的可学习的线性变换。一个头写成 "
        "Attention(E·W_iQ, …) 或 Attention(Q·W_iQ, …)，数学上等价：Q、K、V 只是中间变量。",
    ),
    task=Bilingual(
        "Edit the embeddings: the two outputs stay equal. Then lower the inner width below 4: they are still equal, "
        "but the merged matrix has lost rank.",
        "改动嵌入：两个输出始终相同。再把中间宽度调到 4 以下：输出仍然相同，但合并后的矩阵秩变小了。",
    ),
    controls=(
        Numbers(
            "embeddings",
            Bilingual("embeddings E", "嵌入 E"),
            ((1.0, 0.0, 0.5, -0.5), (0.0, 1.0, -0.5, 0.5), (0.5, 0.5, 1.0, 0.0)),
            -3,
            3,
            rows=SOURCE,
        ),
        Slider("inner", Bilingual("inner width (columns of W_Q)", "中间宽度（W_Q 的列数）"), 4, 1, 8, 1, whole=True),
    ),
    compute=compute_projections,
    attend=attend_projections,
    answer="twice",
    pictures=(
        Heatmap(Bilingual("two products: (E·W_Q)·W_iQ …", "乘两次：(E·W_Q)·W_iQ …"), "twice", SOURCE, role="output"),
        Heatmap(Bilingual("one product: E·(W_Q·W_iQ) …", "乘一次：E·(W_Q·W_iQ) …"), "once", SOURCE, role="output"),
        NumberTable(
            Bilingual("what each form costs", "两种写法的代价"),
            "numbers",
            (Bilingual("two matrices", "两个矩阵"), Bilingual("one matrix", "一个矩阵")),
            (Bilingual("parameters (Q, K, V)", "参数量（Q、K、V）"), Bilingual("largest rank", "可达的秩")),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "The outputs differ by {gap:.1e}: rounding. Since the product of two matrices is one matrix, the "
                "second one adds parameters, not abilities.",
                "两个输出相差 {gap:.1e}，只是舍入误差。两个矩阵的乘积仍是一个矩阵：多出来的矩阵增加参数，不增加能力。",
            ),
            lambda result: result["gap"] < 1e-10,
        ),
        Finding(
            Bilingual(
                "The limit of the equivalence is the rank: with an inner width of {inner} the merged matrix has rank "
                "{rank} of 4. The first form reaches every matrix only if the inner width is at least 4.",
                "等价的界限是秩：中间宽度为 {inner} 时合并矩阵的秩是 {rank}（满秩为 4）。中间宽度不小于 4，"
                "前一种写法才能表示任意矩阵。",
            ),
            lambda result: result["rank"] == min(result["inner"], 4),
        ),
    ),
)


def compute_self_and_cross(encoder: np.ndarray, decoder: np.ndarray, attention: str, focus: float) -> Result:
    queries = {"encoder": encoder, "decoder": decoder, "cross": decoder}[attention]
    memory = {"encoder": encoder, "decoder": decoder, "cross": encoder}[attention]  # keys and values
    scores = focus * queries @ memory.T / np.sqrt(3)
    masked = np.zeros(scores.shape, bool)
    if attention == "decoder":
        masked = np.triu(np.ones(scores.shape, bool), 1)  # a word must not see the words after it
    powers = np.where(masked, 0, np.exp(scores - scores.max(axis=1, keepdims=True)))
    weights = powers / powers.sum(axis=1, keepdims=True)
    source, target = ["猫", "坐在", "垫子"], ["the", "cat", "sits", "mat"]
    rows, columns = (source if queries is encoder else target), (source if memory is encoder else target)
    best, output = weights.argmax(axis=1), weights @ memory
    aligned = "  ".join(f"{row} → {columns[j]}" for row, j in zip(rows, best, strict=True))
    return dict(
        weights=weights, masked=masked, output=output, rows=rows, columns=columns, aligned=aligned,
        queries=len(rows), keys=len(columns), best=best,
    )  # fmt: skip


def attend_self_and_cross(encoder: Tensor, decoder: Tensor, attention: str, focus: float) -> Tensor:
    q = (encoder if attention == "encoder" else decoder)[None, None]
    k = v = (decoder if attention == "decoder" else encoder)[None, None]
    mask = rg.Causal() if attention == "decoder" else None
    return rg.attend(q, k, v, score=rg.Dot(scale=focus / 3**0.5), mask=mask)[0, 0]


SELF_AND_CROSS = Step(
    name="self-and-cross",
    title=Bilingual("Attention within a sentence and between two", "句内的注意力与两句之间的注意力"),
    claim=Bilingual(
        "In the encoder's self-attention Q, K and V come from one sequence. In encoder-decoder attention the queries "
        "are the decoder's states, keys and values the encoder's output: each target word attends to the parts of "
        "the source it needs.",
        "编码器的自注意力里，Q、K、V 来自同一个序列。编码器—解码器注意力里，查询是解码器的状态，键和值是编码器的输出："
        "每个目标词按需要去看源句的不同部分。",
    ),
    task=Bilingual(
        "Choose where queries and keys come from: the table of weights changes its shape. Turn the focus up until each "
        "target word picks one source word.",
        "选择查询与键的来源：权重表的形状随之改变。把“专注程度”调大，直到每个目标词只看一个源词。",
    ),
    controls=(
        Choice(
            "attention",
            Bilingual("which attention", "哪一种注意力"),
            "cross",
            (
                ("encoder", Bilingual("encoder: Q, K, V from the source", "编码器：Q、K、V 都来自源句")),
                (
                    "decoder",
                    Bilingual(
                        "decoder: Q, K, V from the target, causal",
                        "解码器：Q、K、V 都来自目标句，因果",
                    ),
                ),
                (
                    "cross",
                    Bilingual(
                        "cross: Q from the target, K, V from the source",
                        "交叉：Q 来自目标句，K、V 来自源句",
                    ),
                ),
            ),
        ),
        Slider("focus", Bilingual("focus (scale of the scores)", "专注程度（分数的倍数）"), 3.0, 0.0, 8.0, 0.5),
        Numbers(
            "encoder",
            Bilingual("encoder output", "编码器输出"),
            ((2.0, 0.0, 0.0), (0.0, 2.0, 0.0), (0.0, 0.5, 2.0)),
            -3,
            3,
            rows=SOURCE,
        ),
        Numbers(
            "decoder",
            Bilingual("decoder states", "解码器状态"),
            ((1.0, 0.0, 0.2), (1.5, 0.2, 0.0), (0.2, 1.5, 0.0), (0.0, 0.3, 1.5)),
            -3,
            3,
            rows=TARGET,
        ),
    ),
    compute=compute_self_and_cross,
    attend=attend_self_and_cross,
    pictures=(
        Heatmap(
            Bilingual(
                "weights: rows attend to columns",
                "权重：行看列",
            ),
            "weights",
            "rows",
            "columns",
            masked="masked",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{queries} queries and {keys} keys: the two sides need not have the same length. {aligned}.",
                "{queries} 个查询、{keys} 个键：两边的长度不必相同。{aligned}。",
            ),
            lambda result: [int(j) for j in result["best"]] == [0, 0, 1, 2],
        ),
    ),
    link="alignment?model=translator-zh-en",
)
