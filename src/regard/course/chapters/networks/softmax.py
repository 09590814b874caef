"""Numbers kept in range: softmax and the size of its scores, LayerNorm and BatchNorm."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, Numbers, Slider
from ...pictures import Bars, Heatmap, Lines, NumberTable
from ...step import Evidence, Finding, Result, Step


def compute_softmax_range(score: float, dim: int, scaled: str) -> Result:
    # e^50 = 5.2e21; the numbers of float32 end at e^88.7
    exponential, single = np.exp(score), np.exp(np.float32(score))

    def attention_weights(dim, scale):  # 40 queries, 16 keys
        rng = np.random.default_rng(dim)
        queries, keys = rng.normal(size=(40, dim)), rng.normal(size=(16, dim))
        scores = scale * queries @ keys.T
        # the largest score is subtracted first: no exponential exceeds 1
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return scores, weights / weights.sum(-1, keepdims=True)

    scores, weights = attention_weights(dim, dim**-0.5 if scaled == "yes" else 1)
    dims = 2 ** np.arange(0, 11)
    unscaled = [attention_weights(d, 1)[1].max(-1).mean() for d in dims]
    scaled_down = [attention_weights(d, d**-0.5)[1].max(-1).mean() for d in dims]
    # how much the weights move when a score does
    slopes = (weights * (1 - weights)).sum(-1)
    return dict(
        exponential=exponential,
        single=float(single),
        score=score,
        largest=np.abs(scores).max(),
        weights=np.sort(weights[0])[::-1],
        peak=weights.max(-1).mean(),
        slope=np.median(slopes),
        dims=dims,
        dim=dim,
        unscaled_peaks=np.array(unscaled),
        scaled_peaks=np.array(scaled_down),
    )


def attend_softmax_range(score: float, dim: int, scaled: str) -> Tensor:
    rng = np.random.default_rng(dim)
    q, k = (torch.from_numpy(rng.normal(size=(1, 1, n, dim))) for n in (40, 16))
    dot = rg.Dot() if scaled == "yes" else rg.Dot(scale=1.0)
    weights = rg.attend(q, k, torch.eye(16).to(q)[None, None], score=dot)
    return weights[0, 0, 0].sort(descending=True).values


SOFTMAX_RANGE = Step(
    name="softmax-range",
    title=Bilingual("Large scores: e⁵⁰ and a softmax that stops learning", "过大的分数：e⁵⁰ 与学不动的 softmax"),
    claim=Bilingual(
        "With many dimensions dot products get large, and softmax exponentiates them: e⁵⁰ is already 5.2·10²¹. The "
        "weights become almost one-hot, their slope almost 0, and training becomes unstable. Dividing by √d keeps the "
        "scores in range.",
        "维度一高，点积就变大，而 softmax 要对它取指数：e⁵⁰ 已经是 5.2·10²¹。权重几乎成了 one-hot，斜率几乎为 0，"
        "训练变得不稳定。除以 √d 可以把分数控制在合适的范围。",
    ),
    task=Bilingual(
        "Raise the score to 89: float32 overflows. Then raise the dimension without scaling and watch one weight take "
        "everything; switch the scaling on.",
        "把分数提到 89：float32 溢出。再不缩放、只提高维度，看一个权重怎样独占全部；然后打开缩放。",
    ),
    controls=(
        Slider("score", Bilingual("one score x", "一个分数 x"), 50.0, 0.0, 100.0, 1.0),
        Slider("dim", Bilingual("dimension d of queries and keys", "查询和键的维度 d"), 512, 1, 1024, 1, whole=True),
        Choice(
            "scaled",
            Bilingual("scores divided by √d", "分数除以 √d"),
            "no",
            (("no", Bilingual("no", "否")), ("yes", Bilingual("yes", "是"))),
        ),
    ),
    compute=compute_softmax_range,
    attend=attend_softmax_range,
    answer="weights",
    pictures=(
        Bars(Bilingual("weights of one query, sorted", "一个查询的权重，从大到小"), "weights", low=0, high=1),
        Lines(
            Bilingual("largest weight by dimension", "最大权重与维度"),
            "dims",
            (
                ("unscaled_peaks", Bilingual("unscaled", "不缩放")),
                ("scaled_peaks", Bilingual("divided by √d", "除以 √d")),
            ),
            Bilingual("dimension d", "维度 d"),
            Bilingual("largest weight", "最大权重"),
            log_x=True,
            marker="dim",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "e^{score:.0f} = {exponential:.3e}; in float32 it is {single:.3e}.",
                "e^{score:.0f} = {exponential:.3e}；用 float32 算是 {single:.3e}。",
            ),
            lambda result: np.isfinite(result["single"]),
        ),
        Finding(
            Bilingual(
                "At d = {dim} the largest score is {largest:.0f}, the largest weight {peak:.2f} on average, and the "
                "median slope of the softmax {slope:.1e}.",
                "d = {dim} 时，最大的分数是 {largest:.0f}，最大权重平均为 {peak:.2f}，softmax 斜率的中位数是 "
                "{slope:.1e}。",
            ),
            lambda result: result["peak"] > 0.8 and result["slope"] < 0.1,
        ),
    ),
    evidence=(Evidence("scaling"), Evidence("normalisation", ("saturation", "overflow"))),
)

EXAMPLES = tuple(Bilingual(f"example {n}", f"样本 {n}") for n in range(1, 5))
FEATURES = tuple(Bilingual(f"feature {n}", f"特征 {n}") for n in range(1, 4))


def compute_layer_and_batch_norm(x: np.ndarray, kind: str) -> Result:
    output = x
    if kind != "none":
        # LayerNorm: each row by itself; BatchNorm: each column
        axis = -1 if kind == "layer" else 0
        mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
        output = (x - mean) / np.sqrt(variance + 1e-5)

    def attention_weights(x):
        scores = x @ x.T
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    before, after = attention_weights(x), attention_weights(output)
    rows, columns = np.abs(output.mean(-1)).max(), np.abs(output.mean(0)).max()
    return dict(
        output=output,
        table=np.array(
            [
                [np.abs(x.mean(-1)).max(), rows],
                [x.std(-1).max(), output.std(-1).max()],
                [np.abs(x.mean(0)).max(), columns],
                [x.std(0).max(), output.std(0).max()],
                [before.max(-1).mean(), after.max(-1).mean()],
            ]
        ),
        row_mean=rows,
        column_mean=columns,
        peak_before=before.max(-1).mean(),
        peak=after.max(-1).mean(),
    )


def attend_layer_and_batch_norm(x: Tensor, kind: str) -> Tensor:
    normalised = x
    if kind == "layer":
        normalised = torch.nn.functional.layer_norm(x, x.shape[-1:])
    if kind == "batch":
        normalised = torch.nn.functional.batch_norm(x, None, None, training=True)
    return normalised


LAYER_AND_BATCH_NORM = Step(
    name="layer-and-batch-norm",
    title=Bilingual("LayerNorm and BatchNorm: the same concern", "LayerNorm 与 BatchNorm"),
    claim=Bilingual(
        "Scaling the scores has the same motive as the normalisations: keep numbers in a range in which training is "
        "stable. LayerNorm brings each example (row) to mean 0 and variance 1, BatchNorm each feature (column) over "
        "the batch.",
        "缩放分数与各种归一化的动机相同：把数值控制在训练稳定的范围内。LayerNorm 把每个样本（行）变成均值 0、方差 1；"
        "BatchNorm 则对一批样本的每个特征（列）这样做。",
    ),
    task=Bilingual(
        "Make one number huge. With LayerNorm only its row is affected, with BatchNorm its column: the other examples "
        "change too. The last line of the table is the attention of the rows to each other.",
        "把某个数改得很大。用 LayerNorm 时只影响它那一行；用 BatchNorm 时影响整列，别的样本也会变。"
        "表的最后一行是各行之间注意力的最大权重。",
    ),
    controls=(
        Choice(
            "kind",
            Bilingual("normalisation", "归一化"),
            "layer",
            (
                ("none", Bilingual("none", "无")),
                ("layer", Bilingual("LayerNorm", "LayerNorm")),
                ("batch", Bilingual("BatchNorm", "BatchNorm")),
            ),
        ),
        Numbers(
            "x",
            Bilingual("a batch of 4 examples", "一批 4 个样本"),
            ((1.0, 5.0, 12.0), (2.0, -3.0, 9.0), (0.0, 4.0, 15.0), (-1.0, 7.0, 6.0)),
            -50,
            50,
            1.0,
            rows=EXAMPLES,
            columns=FEATURES,
        ),
    ),
    compute=compute_layer_and_batch_norm,
    attend=attend_layer_and_batch_norm,
    pictures=(
        Heatmap(Bilingual("after the normalisation", "归一化之后"), "output", EXAMPLES, FEATURES, role="score"),
        NumberTable(
            Bilingual("before and after", "前后对比"),
            "table",
            (
                Bilingual("rows: largest mean", "行：最大均值"),
                Bilingual("rows: largest deviation", "行：最大标准差"),
                Bilingual("columns: largest mean", "列：最大均值"),
                Bilingual("columns: largest deviation", "列：最大标准差"),
                Bilingual("attention: largest weight", "注意力：最大权重"),
            ),
            (Bilingual("before", "之前"), Bilingual("after", "之后")),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "The rows' largest mean is {row_mean:.4f}, the columns' {column_mean:.4f}; the largest attention "
                "weight falls from {peak_before:.2f} to {peak:.2f}.",
                "行的最大均值是 {row_mean:.4f}，列的是 {column_mean:.4f}；注意力的最大权重从 {peak_before:.2f} 变为 "
                "{peak:.2f}。",
            ),
            lambda result: result["row_mean"] < 1e-6 and result["peak"] < result["peak_before"],
        ),
    ),
    evidence=(Evidence("normalisation", ("growth", "layer-norm", "training", "batch-norm", "mixing")),),
)
