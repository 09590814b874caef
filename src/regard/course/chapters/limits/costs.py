"""What attention costs and where it falls short: n², local detail, and weights as an explanation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Numbers, Slider
from ...pictures import Bars, Lines, NumberTable
from ...step import Evidence, Finding, Result, Step


def compute_square_cost(doublings: int, heads: int, side: int) -> Result:
    tokens = 2**doublings
    weights_bytes = 4 * heads * tokens**2  # float32
    inputs_bytes = 4 * 3 * heads * 64 * tokens  # q, k and v of 64 numbers a head
    lengths = 2.0 ** np.arange(6, 18)
    weights_curve = 4 * heads * lengths**2
    inputs_curve = 4 * 3 * heads * 64 * lengths
    pixels, patches = side**2, (side // 16) ** 2
    table = np.array([[pixels, 4 * heads * pixels**2 / 2**30], [patches, 4 * heads * patches**2 / 2**30]])
    return dict(
        tokens=tokens,
        lengths=lengths,
        weights_curve=weights_curve / 2**30,
        inputs_curve=inputs_curve / 2**30,
        gigabytes=weights_bytes / 2**30,
        inputs_gigabytes=inputs_bytes / 2**30,
        doubled=(2 * tokens) ** 2 / tokens**2,
        table=table,
        side=side,
    )


SQUARE_COST = Step(
    name="square-cost",
    title=Bilingual("The matrix of weights grows with n²", "权重矩阵按 n² 增长"),
    claim=Bilingual(
        "The attention matrix has n² entries. Long texts and large images use up memory and time.",
        "注意力矩阵有 n² 个元素。长文本、高分辨率图像会耗尽显存和算力。",
    ),
    task=Bilingual(
        "Double n by moving the slider one step: the weights take four times the memory, the queries, keys and values "
        "twice. In the table, compare an image pixel by pixel with its patches of 16 × 16.",
        "把滑块移一格，n 就翻倍：权重的内存变成四倍，查询、键、值只变成两倍。表里比较的是逐像素的图像与 16 × 16 "
        "的图块。",
    ),
    controls=(
        Slider("doublings", Bilingual("n = 2 to the power of", "n = 2 的几次方"), 13, 6, 17, 1, whole=True),
        Slider("heads", Bilingual("heads", "头数"), 8, 1, 32, 1, whole=True),
        Slider("side", Bilingual("side of an image in pixels", "图像边长（像素）"), 224, 32, 512, 16, whole=True),
    ),
    compute=compute_square_cost,
    pictures=(
        Lines(
            Bilingual("memory of one layer, GiB", "一层的内存，GiB"),
            "lengths",
            (
                ("weights_curve", Bilingual("weights", "权重")),
                ("inputs_curve", Bilingual("queries, keys, values", "查询、键、值")),
            ),
            Bilingual("tokens n", "词元数 n"),
            Bilingual("GiB", "GiB"),
            log_x=True,
            log_y=True,
            marker="tokens",
        ),
        NumberTable(
            Bilingual("an image as tokens", "把图像当作词元"),
            "table",
            (Bilingual("pixels", "像素"), Bilingual("patches of 16 × 16", "16 × 16 的图块")),
            (Bilingual("tokens", "词元数"), Bilingual("GiB of weights", "权重（GiB）")),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{tokens:,} tokens need {gigabytes:.2f} GiB for the weights of one layer and "
                "{inputs_gigabytes:.2f} GiB "
                "for what they are computed from. Twice the tokens, {doubled:.0f} times the weights.",
                "{tokens:,} 个词元，一层的权重要 {gigabytes:.2f} GiB，而算出它们的输入只要 {inputs_gigabytes:.2f} GiB。"
                "词元翻倍，权重变成 {doubled:.0f} 倍。",
            ),
            lambda result: result["doubled"] == 4 and result["gigabytes"] > result["inputs_gigabytes"],
        ),
    ),
    evidence=(Evidence("cost", ("time", "memory", "blockwise-memory")),),
    link="long",
)


def compute_local_detail(locality: float, strength: float) -> Result:
    place = np.arange(24)
    texture = np.where((place >= 8) & (place < 16), strength * (-1.0) ** place, 0.0)  # fine stripes
    scores = -locality * np.abs(place[:, None] - place)
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    output = weights @ texture  # attention on the pixels themselves
    edges = np.abs(np.convolve(texture, [-0.5, 1, -0.5], "same"))  # a convolution first
    hybrid = weights @ edges  # and attention on what it found
    kept = np.abs(output).max() / strength
    hybrid_kept = hybrid.max() / strength
    return dict(place=place, texture=texture, output=output, hybrid=hybrid, kept=kept, hybrid_kept=hybrid_kept)


def attend_local_detail(locality: float, strength: float) -> Tensor:
    place = torch.arange(24)
    stripes = strength * (1.0 - 2 * (place % 2)).double()
    texture = torch.where((place >= 8) & (place < 16), stripes, 0.0)[None, None, :, None]
    zeros = torch.zeros_like(texture)
    slopes = torch.tensor([locality], dtype=torch.float64)
    return rg.attend(zeros, zeros, texture, position=rg.Alibi(slopes)).flatten()


LOCAL_DETAIL = Step(
    name="local-detail",
    title=Bilingual("Local detail is diluted", "局部细节被稀释"),
    claim=Bilingual(
        "Attention that looks everywhere averages fine local patterns away: edges, textures. Convolutions or "
        "hierarchical attention before it bring them back.",
        "处处都看的注意力会把细小的局部模式（边缘、纹理）平均掉。在它前面加上卷积，或者用层次化注意力，可以补回来。",
    ),
    task=Bilingual(
        "A row of 24 pixels has fine stripes in the middle. With locality 0 the mean over all pixels shows nothing of "
        "them. Raise the locality: attention sees them when it looks at single pixels. Or take a convolution first: "
        "the last curve finds the stripes even with a global view.",
        "一行 24 个像素，中间有细条纹。局部性为 0 时，对全部像素平均，条纹一点不剩。调大局部性："
        "注意力只看近处时才看得见条纹。"
        "或者先做卷积：最后那条曲线即使看全局，也能发现条纹。",
    ),
    controls=(
        Slider("locality", Bilingual("locality of attention", "注意力的局部性"), 0, 0, 4, 0.1),
        Slider("strength", Bilingual("strength of the stripes", "条纹的强度"), 1, 0.1, 2, 0.1),
    ),
    compute=compute_local_detail,
    attend=attend_local_detail,
    pictures=(
        Lines(
            Bilingual("pixels, and what each layer makes of them", "像素，以及各层的输出"),
            "place",
            (
                ("texture", Bilingual("pixels", "像素")),
                ("output", Bilingual("attention", "注意力")),
                ("hybrid", Bilingual("convolution, then attention", "先卷积，再注意力")),
            ),
            Bilingual("place", "位置"),
            Bilingual("value", "值"),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "Of the stripes {kept:.2f} is left after attention, {hybrid_kept:.2f} after convolution and attention.",
                "经过注意力，条纹只剩 {kept:.2f}；先卷积再注意力，还有 {hybrid_kept:.2f}。",
            ),
            lambda result: result["kept"] < 0.01 and result["hybrid_kept"] > 0.2,
        ),
    ),
    evidence=(Evidence("images"),),
    link="image",
)

KEYS = tuple(Bilingual(f"key {n}", f"键 {n}") for n in range(1, 5))


def compute_other_weights(scores: np.ndarray, values: np.ndarray, change: float) -> Result:
    weights = np.exp(scores - scores.max())
    weights = weights / weights.sum()
    output = weights @ values
    conditions = np.vstack([values.T, np.ones(len(values))])  # same output, and a sum of one
    direction = np.linalg.svd(conditions)[2][-1]  # changes of the weights that neither notices
    moving = np.abs(direction) > 1e-12
    most = np.min(weights[moving] / np.abs(direction[moving]))  # before a weight gets negative
    other = weights + change * most * direction
    other_output = other @ values
    moved = np.abs(other - weights).sum() / 2
    return dict(
        both=np.stack([weights, other]),
        output=output,
        other_output=other_output,
        difference=np.abs(output - other_output).max(),
        moved=moved,
        lowest=other.min(),
        heaviest=int(weights.argmax()) + 1,
        other_heaviest=int(other.argmax()) + 1,
    )


def attend_other_weights(scores: Tensor, values: Tensor, change: float) -> Tensor:
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    return rg.attend(q, scores.view(1, 1, -1, 1), values[None, None], score=rg.Dot(scale=1.0)).flatten()


OTHER_WEIGHTS = Step(
    name="other-weights",
    title=Bilingual("Different weights, the same output", "权重不同，输出相同"),
    claim=Bilingual(
        "Weights can be drawn, but they are not an explanation in human terms: a picture of weights is not the only "
        "one that leads to the model's answer.",
        "权重可以画出来，却不等于人能理解的解释：得出同一个答案的权重，并不只有画出来的那一种。",
    ),
    task=Bilingual(
        "There are four keys and values of two numbers. Move the slider: the weights change, and the output stays "
        "where it is. Which of the two sets of bars is “the explanation”?",
        "这里有四个键，值是两个数。移动滑块：权重变了，输出却不动。两组条形，哪一组才是“解释”？",
    ),
    controls=(
        Slider("change", Bilingual("move to other weights", "换成别的权重"), 1, -1, 1, 0.05),
        Numbers("scores", Bilingual("scores", "分数"), (1.0, 0.2, 0.4, 0.8), -3, 3, columns=KEYS),
        Numbers(
            "values",
            Bilingual("values", "值"),
            ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.2, 0.1)),
            -2,
            2,
            rows=KEYS,
        ),
    ),
    compute=compute_other_weights,
    attend=attend_other_weights,
    pictures=(
        Bars(
            Bilingual("two sets of weights", "两组权重"),
            "both",
            KEYS,
            (Bilingual("from the scores", "由分数算出"), Bilingual("others", "另一组")),
            low=0,
            high=1,
        ),
        Bars(Bilingual("output of the first", "第一组的输出"), "output", role="output"),
        Bars(Bilingual("output of the others", "另一组的输出"), "other_output", role="output"),
    ),
    findings=(
        Finding(
            Bilingual(
                "{moved:.2f} of the weight has moved, from key {heaviest} as the heaviest to key {other_heaviest}; the "
                "outputs differ by {difference:.0e}.",
                "{moved:.2f} 的权重换了位置，最重的键从 {heaviest} 变成 {other_heaviest}；输出只差 {difference:.0e}。",
            ),
            lambda result: result["moved"] > 0.2 and result["difference"] < 1e-9 and result["lowest"] > -1e-9,
        ),
    ),
    evidence=(Evidence("explanation", ("related", "classifier", "unique")),),
    link="honest",
)

STEPS = (SQUARE_COST, LOCAL_DETAIL, OTHER_WEIGHTS)
