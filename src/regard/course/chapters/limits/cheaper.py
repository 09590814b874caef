"""Cheaper attention: sparse masks, computing in blocks, low rank."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, MaskGrid, Numbers, Slider
from ...pictures import Bars, Heatmap, Lines, Plane
from ...step import Evidence, Finding, Result, Step

TOKENS = 10
DILATED = tuple(tuple(abs(i - j) <= 4 and (i - j) % 2 == 0 for j in range(TOKENS)) for i in range(TOKENS))


def compute_sparse(pattern: str, painted: np.ndarray) -> Result:
    n = np.arange(10)
    window = np.abs(n[:, None] - n) <= 1
    longformer = window | (n == 0) | (n == 0)[:, None]  # and a token that sees all and is seen by all
    bigbird = longformer | (n == (3 * n[:, None] + 5) % 10)  # and one far key for each query
    patterns = dict(full=window | True, window=window, longformer=longformer, bigbird=bigbird, painted=painted)
    allowed = patterns[pattern]
    x = np.random.default_rng(2).normal(size=(10, 4)).cumsum(0)  # neighbours are alike, as in speech or text
    x = x - x.mean(0)
    powers = np.exp(x @ x.T / 2 - (x @ x.T / 2).max(1, keepdims=True))
    weights = powers * allowed / np.maximum((powers * allowed).sum(1, keepdims=True), 1e-300)
    output = weights @ x
    full = powers / powers.sum(1, keepdims=True)
    kept = (full * allowed).sum(1).mean()  # the share of the full weights on these pairs
    reach = (allowed.astype(float) @ allowed > 0).mean()  # pairs joined by two layers
    return dict(
        weights=weights,
        absent=~allowed,
        output=output,
        pairs=int(allowed.sum()),
        all_pairs=allowed.size,
        share=allowed.mean(),
        kept=kept,
        reach=reach,
        error=np.abs(output - full @ x).mean(),
    )


def attend_sparse(pattern: str, painted: Tensor) -> Tensor:
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(10, 4)).cumsum(0))
    x = (x - x.mean(0))[None, None]
    n = torch.arange(10)
    far = rg.Pairs(n == (3 * n[:, None] + 5) % 10)
    longformer = rg.longformer(window=2, tokens=1)
    masks = {"window": rg.Window(1, 1), "longformer": longformer, "bigbird": longformer | far, "full": None}
    return rg.attend(x, x, x, mask=rg.Pairs(painted) if pattern == "painted" else masks[pattern])[0, 0]


SPARSE = Step(
    name="sparse-mask",
    title=Bilingual("Sparse attention: paint the pairs", "稀疏注意力：自己画出要算的对"),
    claim=Bilingual(
        "Most pairs can be left out: each token attends to its neighbourhood and to a few important tokens, as in "
        "Longformer and BigBird.",
        "大多数的对可以不算：每个词元只关注邻近的词元和少数重要的词元，如 Longformer 和 BigBird。",
    ),
    task=Bilingual(
        "Go through the patterns: a window, with a global token, with random far keys. How many pairs do two layers "
        "join? Then choose “painted” and draw your own pattern.",
        "依次试试各种模式：窗口、加上全局词元、再加上随机的远处键。两层之后有多少对词元连得上？再选“自己画”，"
        "画一个自己的模式。",
    ),
    controls=(
        Choice(
            "pattern",
            Bilingual("pattern", "模式"),
            "longformer",
            (
                ("full", Bilingual("all pairs", "全部")),
                ("window", Bilingual("window", "窗口")),
                ("longformer", Bilingual("window and a global token (Longformer)", "窗口加全局词元（Longformer）")),
                ("bigbird", Bilingual("with far keys too (BigBird)", "再加远处的键（BigBird）")),
                ("painted", Bilingual("painted", "自己画")),
            ),
        ),
        MaskGrid("painted", Bilingual("painted: the row attends to the column", "自己画：行关注列"), DILATED),
    ),
    compute=compute_sparse,
    attend=attend_sparse,
    pictures=(Heatmap(Bilingual("weights", "权重"), "weights", masked="absent"),),
    findings=(
        Finding(
            Bilingual(
                "{pairs} of {all_pairs} pairs are computed ({share:.0%}); they carry {kept:.0%} of full attention’s "
                "weight, and two layers join {reach:.0%} of all pairs.",
                "{all_pairs} 对里只算 {pairs} 对（{share:.0%}）；它们占全注意力权重的 {kept:.0%}，"
                "两层之后有 {reach:.0%} 的对连得上。",
            ),
            lambda result: result["share"] < 0.5 and result["reach"] == 1,
        ),
    ),
    evidence=(Evidence("sparse", ("cost", "window", "longformer", "bigbird")),),
    link="mechanisms",
)


def compute_blockwise(block: int, query: np.ndarray) -> Result:
    keys, values = np.random.default_rng(9).normal(size=(2, 24, 2))
    highest, total, output, running = -np.inf, 0.0, np.zeros(2), []
    for start in range(0, 24, block):  # the scores of one block at a time
        scores = keys[start : start + block] @ query
        top = max(highest, scores.max())
        weights, shrink = np.exp(scores - top), np.exp(highest - top)  # earlier sums had a lower maximum
        total = total * shrink + weights.sum()
        output = output * shrink + weights @ values[start : start + block]
        highest = top
        running.append(output / total)
    output = output / total
    scores = keys @ query
    whole = np.exp(scores) / np.exp(scores).sum() @ values  # all scores at once
    running = np.array(running)
    return dict(
        output=output,
        whole=whole,
        first=running[:, 0],
        second=running[:, 1],
        keys_read=np.minimum(np.arange(1, len(running) + 1) * block, 24),
        difference=np.abs(output - whole).max(),
        block=block,
        blocks=len(running),
    )


def attend_blockwise(block: int, query: Tensor) -> Tensor:
    keys, values = torch.from_numpy(np.random.default_rng(9).normal(size=(2, 24, 2)))
    return rg.attend(query.view(1, 1, 1, 2), keys[None, None], values[None, None], score=rg.Dot(scale=1.0)).flatten()


BLOCKWISE = Step(
    name="blockwise",
    title=Bilingual("Block by block, with the same result", "分块计算，结果相同"),
    claim=Bilingual(
        "The matrix of weights need not exist: keys can be read in blocks, with a running maximum, a running sum and a "
        "running output. Memory falls from n² to n, and nothing is approximated.",
        "权重矩阵不必整个存下来：键可以一块一块地读，只保留当前的最大值、总和与输出。内存从 n² 降到 n，"
        "而且没有任何近似。",
    ),
    task=Bilingual(
        "Change the size of the blocks: the output on the way differs, the last one never does. Drag the query.",
        "改变块的大小：中途的输出不同，最后的结果始终一样。也可以拖动查询。",
    ),
    controls=(
        Slider("block", Bilingual("keys in a block", "每块的键数"), 4, 1, 24, 1, whole=True),
        Numbers("query", Bilingual("query", "查询"), (1.5, 1.0), -4, 4),
    ),
    compute=compute_blockwise,
    attend=attend_blockwise,
    pictures=(
        Lines(
            Bilingual("output after the keys read so far", "读到目前为止的输出"),
            "keys_read",
            (("first", Bilingual("first number", "第一个数")), ("second", Bilingual("second number", "第二个数"))),
            Bilingual("keys read", "已读的键"),
            Bilingual("output", "输出"),
        ),
        Plane(
            Bilingual("query, and both outputs", "查询与两种输出"),
            (("query", "query"), ("output", "output"), ("whole", "value")),
            (
                ("query", (Bilingual("query", "查询"),)),
                ("output", (Bilingual("in blocks", "分块"),)),
                ("whole", (Bilingual("at once", "一次算完"),)),
            ),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{blocks} blocks of at most {block} scores give the output of all 24 at once, to {difference:.0e}.",
                "{blocks} 块、每块最多 {block} 个分数，与一次算完 24 个的结果只差 {difference:.0e}。",
            ),
            lambda result: result["difference"] < 1e-12,
        ),
    ),
    evidence=(Evidence("sparse", ("blockwise",)), Evidence("cost", ("blockwise-memory",))),
    link="long",
)


def compute_low_rank(rank: int, sharpness: float) -> Result:
    place = np.arange(24)
    x = np.random.default_rng(4).normal(size=(24, 4)).cumsum(0) / 2  # neighbours are alike
    x = x - x.mean(0)
    scores = sharpness * x @ x.T / 2
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights = weights / weights.sum(1, keepdims=True)
    left, sizes, right = np.linalg.svd(weights)
    approximation = left[:, :rank] * sizes[:rank] @ right[:rank]  # the best matrix of that rank
    error = np.linalg.norm(weights - approximation) / np.linalg.norm(weights)
    groups = np.arange(rank)[:, None] == place * rank // 24
    means = groups / groups.sum(1, keepdims=True)  # Linformer with means: keys and values of groups
    scores = sharpness * x @ (means @ x).T / 2
    few = np.exp(scores - scores.max(1, keepdims=True))
    output = few / few.sum(1, keepdims=True) @ (means @ x)
    loss = np.linalg.norm(weights @ x - output) / np.linalg.norm(weights @ x)
    return dict(
        weights=weights,
        approximation=approximation,
        sizes=sizes,
        output=output,
        error=error,
        loss=loss,
        rank=rank,
        share=rank / 24,
        ranks=place + 1,
    )


def attend_low_rank(rank: int, sharpness: float) -> Tensor:
    x = torch.from_numpy(np.random.default_rng(4).normal(size=(24, 4)).cumsum(0) / 2)
    x = (x - x.mean(0))[None, None]
    groups = (torch.arange(rank)[:, None] == torch.arange(24) * rank // 24).double()
    means = groups / groups.sum(1, keepdim=True)
    return rg.attend(x, x, x, score=rg.Dot(scale=sharpness / 2), method=rg.Linformer(means))[0, 0]


LOW_RANK = Step(
    name="low-rank",
    title=Bilingual("Low rank: fewer keys stand for many", "低秩：少量的键代表许多键"),
    claim=Bilingual(
        "The matrix of weights can be approximated by the product of two narrow ones, which need far fewer "
        "multiplications.",
        "权重矩阵可以用两个窄矩阵的乘积来近似，乘法次数少得多。",
    ),
    task=Bilingual(
        "Raise the rank and watch the error. Then sharpen the scores: how many singular values are large now? "
        "Linformer cannot look for the best matrix; here it replaces the keys by means of groups and loses more.",
        "提高秩，看误差怎样变。再把分数调得更尖锐：现在有多少个奇异值是大的？"
        "Linformer 没法去找最好的矩阵；这里它用各组的平均代替键，损失更大。",
    ),
    controls=(
        Slider("rank", Bilingual("rank", "秩"), 8, 1, 24, 1, whole=True),
        Slider("sharpness", Bilingual("sharpness of the scores", "分数的尖锐程度"), 1, 0.2, 5, 0.2),
    ),
    compute=compute_low_rank,
    attend=attend_low_rank,
    pictures=(
        Heatmap(Bilingual("weights", "权重"), "weights"),
        Heatmap(Bilingual("best matrix of this rank", "该秩下最好的矩阵"), "approximation"),
        Bars(Bilingual("singular values", "奇异值"), "sizes", role="plain"),
    ),
    findings=(
        Finding(
            Bilingual(
                "With rank {rank} of 24 the best matrix errs by {error:.1%}; the outputs of a Linformer with "
                "means err by "
                "{loss:.0%}, at {share:.0%} of the multiplications.",
                "秩取 24 中的 {rank} 时，最好的矩阵误差 {error:.1%}；用平均的 Linformer，输出误差 {loss:.0%}，"
                "乘法次数是原来的 {share:.0%}。",
            ),
            lambda result: result["error"] < 0.2 and result["loss"] > result["error"],
        ),
    ),
    evidence=(Evidence("sparse", ("linformer", "nystrom", "performer")),),
)

STEPS = (SPARSE, BLOCKWISE, LOW_RANK)
