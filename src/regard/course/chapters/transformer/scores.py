"""How a query and a key are compared: the additive score, the scaled dot product and its √dim."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, Numbers, Slider
from ...pictures import Bars, Drawing, Lines, Plane
from ...step import Evidence, Finding, Result, Step

KEYS = tuple(Bilingual(f"key {n}", f"键 {n}") for n in range(1, 5))


def compute_additive_score(query: np.ndarray, keys: np.ndarray, matrices: str, activation: str) -> Result:
    w_q = np.array([[1.0, 0.5], [-0.5, 1.0], [0.3, -0.8]])
    w_k = -w_q if matrices == "difference" else np.array([[0.9, 0.2], [0.4, 1.1], [-1.0, 0.6]])
    v = np.array([1.5, 1.0, -1.2])

    def score(q, k, w_k=w_k, act=np.tanh if activation == "tanh" else np.positive):
        return act(q @ w_q.T + k @ w_k.T) @ v  # vᵀ tanh(W_q q + W_k k)

    scores = score(query, keys)
    weights = np.exp(scores - scores.max())
    weights = weights / weights.sum()
    shift = np.abs(score(query + 1, keys + 1, -w_q) - score(query, keys, -w_q)).max()  # W_k = −W_q
    turned = np.ptp(score(-query, keys, act=np.positive) - score(query, keys, act=np.positive))  # no tanh
    offset = np.linspace(-3, 3, 61)  # a key that passes the query from left to right
    passing = score(query, query + offset[:, None] * [1, 0])
    best, output = offset[passing.argmax()], weights @ keys
    return dict(
        scores=scores, weights=weights, output=output, shift=shift, turned=turned,
        offset=offset, passing=passing, best=best,
    )  # fmt: skip


def attend_additive_score(query: Tensor, keys: Tensor, matrices: str, activation: str) -> Tensor:
    w_q = torch.tensor([[1.0, 0.5], [-0.5, 1.0], [0.3, -0.8]], dtype=torch.float64)
    w_k = torch.tensor([[0.9, 0.2], [0.4, 1.1], [-1.0, 0.6]], dtype=torch.float64)
    w_k = -w_q if matrices == "difference" else w_k
    v = torch.tensor([[1.5, 1.0, -1.2]], dtype=torch.float64)
    score = rg.Additive(v) if activation == "tanh" else rg.Additive(v, "leaky_relu", slope=1.0)
    q, k = (query @ w_q.T).view(1, 1, 1, -1), (keys @ w_k.T)[None, None]
    return rg.attend(q, k, keys[None, None], score=score)[0, 0, 0]


ADDITIVE_SCORE = Step(
    name="additive-score",
    title=Bilingual("The additive score", "加性打分"),
    claim=Bilingual(
        "Everything depends on how alike a query and a key are said to be. The additive score maps both linearly, adds "
        "them and fuses them by tanh: vᵀ tanh(W_q q + W_k k). Taking the difference q − k is the special case "
        "W_k = −W_q.",
        "关键在于怎样衡量查询与键的相似程度。加性打分先把两者各做一次线性映射，相加，再用 tanh 融合："
        "vᵀ tanh(W_q q + W_k k)。直接取差 q − k 只是 W_k = −W_q 时的特例。",
    ),
    task=Bilingual(
        "Choose the difference and look at the curve: it is point-symmetric, so the best key is not the one equal to "
        "the query. Then remove tanh and drag the query: the weights no longer move.",
        "选“差值”，看曲线：它关于原点对称，得分最高的键并不是与查询相同的那个。再去掉 tanh，拖动查询：权重一动不动。",
    ),
    controls=(
        Numbers("query", Bilingual("query", "查询"), (0.5, 1.5), -4, 4),
        Numbers(
            "keys", Bilingual("keys", "键"), ((1.0, 0.5), (2.0, -1.0), (-1.5, 1.0), (-1.0, -2.0)), -4, 4, rows=KEYS
        ),
        Choice(
            "matrices",
            Bilingual("W_q and W_k", "W_q 与 W_k"),
            "free",
            (
                ("free", Bilingual("both learned", "各自学习")),
                ("difference", Bilingual("difference: W_k = −W_q", "差值：W_k = −W_q")),
            ),
        ),
        Choice(
            "activation",
            Bilingual("fuse by", "融合方式"),
            "tanh",
            (("tanh", Bilingual("tanh", "tanh")), ("none", Bilingual("nothing (linear)", "不用激活（线性）"))),
        ),
    ),
    compute=compute_additive_score,
    attend=attend_additive_score,
    pictures=(
        Plane(
            Bilingual("query and keys", "查询与键"), (("query", "query"), ("keys", "key")), (("keys", KEYS),), extent=4
        ),
        Bars(Bilingual("weights", "权重"), "weights", KEYS, low=0, high=1),
        Lines(
            Bilingual("a key moves past the query", "一个键从查询旁经过"),
            "offset",
            (("passing", Bilingual("score", "分数")),),
            Bilingual("key − query (first coordinate)", "键 − 查询（第一维）"),
            Bilingual("score", "分数"),
            marker="best",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "With W_k = −W_q only q − k matters: moving query and keys together by (1, 1) changes the scores by "
                "{shift:.1e}.",
                "W_k = −W_q 时只有 q − k 起作用：查询与键一同平移 (1, 1)，分数只变 {shift:.1e}。",
            ),
            lambda result: result["shift"] < 1e-12,
        ),
        Finding(
            Bilingual(
                "Without tanh the query adds the same number to every score, and softmax removes it: turning the query "
                "around changes the differences between scores by {turned:.1e}. The non-linear step is not optional.",
                "不用 tanh，查询给每个分数加上同一个数，softmax 又把它消掉：把查询反向，分数之差只变 {turned:.1e}。"
                "非线性这一步不可省略。",
            ),
            lambda result: result["turned"] < 1e-12,
        ),
        Finding(
            Bilingual(
                "The score is largest for a key {best:+.1f} away from the query, not for the key that equals it: "
                "without a bias, neither a difference nor a sum inside tanh measures closeness.",
                "得分最高的键与查询相差 {best:+.1f}，而不是与它相等的键：没有偏置时，tanh 里的差或和都不衡量远近。",
            ),
            lambda result: abs(result["best"]) > 0.5,
        ),
    ),
    evidence=(Evidence("additive"),),
)


def compute_scaled_dot_product(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: str) -> Result:
    products = queries @ keys.T  # every query with every key
    factor = np.sqrt(keys.shape[1]) if scale == "sqrt" else 1.0
    scaled = products / factor
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    weights = powers / powers.sum(axis=1, keepdims=True)
    output = weights @ values
    return dict(
        queries=queries, keys=keys, values=values, products=products, factor=factor, scaled=scaled, weights=weights,
        output=output, row_sum=weights.sum(axis=1).max(), heaviest=weights[0].max(),
    )  # fmt: skip


def attend_scaled_dot_product(queries: Tensor, keys: Tensor, values: Tensor, scale: str) -> Tensor:
    score = rg.Dot() if scale == "sqrt" else rg.Dot(scale=1.0)
    return rg.attend(queries[None, None], keys[None, None], values[None, None], score=score)[0, 0]


SCALED_DOT_PRODUCT = Step(
    name="scaled-dot-product",
    title=Bilingual("Scaled dot-product attention, stage by stage", "缩放点积注意力，一步一步"),
    claim=Bilingual(
        "If the inner product measures likeness, attention is four operations: every query times every key; divided by "
        "the root of the keys' dimension; softmax over each row; the values mixed by these weights. "
        "Attention(Q, K, V) = softmax(QKᵀ / √d_k) V.",
        "假设内积可以衡量相似，注意力就是四步：每个查询与每个键做点积；除以键的维度的平方根；逐行做 softmax；"
        "再按权重混合值。Attention(Q, K, V) = softmax(QKᵀ / √d_k) V。",
    ),
    task=Bilingual(
        "Go through the stages and click a cell: the numbers it is made of light up and are written out below. "
        "Change a number of Q, K or V and follow where it ends up.",
        "逐个点开四个阶段，再点一个格子：组成它的数会亮起，算式写在下面。改动 Q、K 或 V 中的一个数，看它流到哪里。",
    ),
    controls=(
        Numbers("queries", Bilingual("queries Q", "查询 Q"), ((1.0, 2.0, 0.0, 1.0), (0.0, 1.0, 2.0, -1.0)), -5, 5, 0.5),
        Numbers(
            "keys",
            Bilingual("keys K", "键 K"),
            ((1.0, 2.0, 0.0, 1.0), (0.0, 1.0, 1.0, 0.0), (2.0, 0.0, -1.0, 1.0), (-1.0, 0.0, 2.0, -1.0)),
            -5,
            5,
            0.5,
            rows=KEYS,
        ),
        Numbers(
            "values",
            Bilingual("values V", "值 V"),
            ((10.0, 0.0), (0.0, 10.0), (5.0, 5.0), (-10.0, 0.0)),
            -20,
            20,
            1.0,
            rows=KEYS,
        ),
        Choice(
            "scale",
            Bilingual("divide by", "除以"),
            "sqrt",
            (("sqrt", Bilingual("√d = 2", "√d = 2")), ("none", Bilingual("1 (no scaling)", "1（不缩放）"))),
        ),
    ),
    compute=compute_scaled_dot_product,
    attend=attend_scaled_dot_product,
    pictures=(Drawing(Bilingual("Q, K, V and the four stages", "Q、K、V 与四个阶段"), "stages"),),
    findings=(
        Finding(
            Bilingual(
                "Each row of weights sums to {row_sum:.6f}; the heaviest weight of the first query is {heaviest:.2f}.",
                "权重的每一行之和为 {row_sum:.6f}；第一个查询最大的权重是 {heaviest:.2f}。",
            ),
            lambda result: abs(result["row_sum"] - 1) < 1e-12 and result["heaviest"] < 1,
        ),
    ),
)


def compute_sqrt_dim(log_dim: int, keys: int, deviation: float) -> Result:
    rng, dims = np.random.default_rng(0), 2 ** np.arange(10)
    q, k = rng.standard_normal((32, 1, 512), np.float32), rng.standard_normal((32, keys, 512), np.float32)
    sums = np.cumsum(deviation**2 * q * k, axis=2)  # the dot product of the first 1, 2, 3, … components
    stats = []
    for dim in dims:
        products = sums[:, :, dim - 1]
        row = [products.std()]
        for scores in (products, products / np.sqrt(dim)):
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights = weights / weights.sum(axis=1, keepdims=True)
            slope = (weights * (1 - weights)).sum(axis=1)  # trace of the Jacobian of softmax
            row += [weights.max(axis=1).mean(), slope.mean(), np.median(slope)]
        stats.append(row)
    std, peak, slope, median, peak_scaled, slope_scaled, median_scaled = np.array(stats).T
    return dict(
        dims=dims, dim=2**log_dim, std=std, root=np.sqrt(dims) * deviation**2, peak=peak, peak_scaled=peak_scaled,
        slope=slope, slope_scaled=slope_scaled, median=median, std_here=std[log_dim], root_here=2 ** (log_dim / 2),
        peak_here=peak[log_dim], peak_scaled_here=peak_scaled[log_dim], slope_here=slope[log_dim],
        median_here=median[log_dim], slope_scaled_here=slope_scaled[log_dim], median_scaled=median_scaled,
    )  # fmt: skip


SQRT_DIM = Step(
    name="sqrt-dim",
    title=Bilingual("Why divide by √dim", "为什么除以 √dim"),
    claim=Bilingual(
        "The dot product of two random vectors grows with √dim. Large scores make softmax almost one-hot, and there "
        "its gradient vanishes; dividing by √dim prevents it.",
        "两个随机向量的点积随 √dim 变大。分数一大，softmax 就几乎成了独热，梯度也随之消失；除以 √dim 可以避免。",
    ),
    task=Bilingual(
        "Move dim from 1 to 512. Compare the two curves of the gradient, then make the vectors twice as long: √dim "
        "assumes components of variance 1.",
        "把维度从 1 拖到 512，比较两条梯度曲线；再把分量的标准差加倍：√dim 的前提是分量方差为 1。",
    ),
    controls=(
        Slider("log_dim", Bilingual("log₂ dim", "log₂ 维度"), 9, 0, 9, 1, whole=True),
        Slider("keys", Bilingual("keys", "键的个数"), 16, 2, 32, 1, whole=True),
        Slider("deviation", Bilingual("standard deviation of a component", "每个分量的标准差"), 1.0, 0.5, 2.0, 0.25),
    ),
    compute=compute_sqrt_dim,
    answer="slope",
    pictures=(
        Lines(
            Bilingual("spread of the dot products", "点积的标准差"),
            "dims",
            (("std", Bilingual("measured", "实测")), ("root", Bilingual("σ²√dim", "σ²√dim"))),
            Bilingual("dim", "维度"),
            Bilingual("standard deviation", "标准差"),
            log_x=True,
            log_y=True,
            marker="dim",
        ),
        Lines(
            Bilingual("heaviest weight (mean of 32 queries)", "最大的权重（32 个查询的均值）"),
            "dims",
            (("peak", Bilingual("unscaled", "不缩放")), ("peak_scaled", Bilingual("divided by √dim", "除以 √dim"))),
            Bilingual("dim", "维度"),
            Bilingual("weight", "权重"),
            log_x=True,
            marker="dim",
        ),
        Lines(
            Bilingual("gradient of softmax (trace of its Jacobian)", "softmax 的梯度（雅可比矩阵的迹）"),
            "dims",
            (
                ("slope", Bilingual("unscaled, mean", "不缩放，均值")),
                ("median", Bilingual("unscaled, median", "不缩放，中位数")),
                ("slope_scaled", Bilingual("divided by √dim, mean", "除以 √dim，均值")),
                ("median_scaled", Bilingual("divided by √dim, median", "除以 √dim，中位数")),
            ),
            Bilingual("dim", "维度"),
            Bilingual("gradient", "梯度"),
            log_x=True,
            marker="dim",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "At dim {dim} the dot products have standard deviation {std_here:.1f} (√dim = {root_here:.1f}), and "
                "the heaviest of the weights is {peak_here:.2f} unscaled, {peak_scaled_here:.2f} scaled.",
                "维度 {dim} 时点积的标准差是 {std_here:.1f}（√dim = {root_here:.1f}），最大的权重不缩放时是 "
                "{peak_here:.2f}，缩放后是 {peak_scaled_here:.2f}。",
            ),
            lambda result: (
                abs(result["std_here"] / result["root_here"] - 1) < 0.1
                and result["peak_here"] > 0.8 > 0.5 > result["peak_scaled_here"]
            ),
        ),
        Finding(
            Bilingual(
                "The gradient is {slope_here:.3f} on average and {median_here:.4f} in the median, against "
                "{slope_scaled_here:.2f} scaled. It vanishes for most queries, not for all: where two keys compete "
                "it stays.",
                "梯度的均值是 {slope_here:.3f}，中位数是 {median_here:.4f}，缩放后是 {slope_scaled_here:.2f}。消失的"
                "是多数查询的梯度，不是全部：两个键不相上下时梯度仍在。",
            ),
            lambda result: (
                result["median_here"] < 0.2 * result["slope_scaled_here"]
                and result["median_here"] < result["slope_here"]
            ),
        ),
    ),
    evidence=(Evidence("scaling"),),
)
