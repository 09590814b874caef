"""The other half of a block: what the feed-forward network adds, its width, and why it is called position-wise."""

from __future__ import annotations

import numpy as np
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Choice, Numbers, Slider
from ...pictures import Bars, Lines, NumberTable
from ...step import Evidence, Finding, Result, Step

MAPS = (
    Bilingual("attention, weights held fixed", "注意力，权重固定"),
    Bilingual("attention, weights from the input", "注意力，权重由输入算出"),
    Bilingual("feed-forward without activation", "前馈网络，不用激活"),
    Bilingual("feed-forward with ReLU", "前馈网络，用 ReLU"),
)
WORDS = (Bilingual("cat", "猫"), Bilingual("sits on", "坐在"), Bilingual("mat", "垫子"), Bilingual("today", "今天"))


def compute_linearity(tokens: int, mix: float, seed: int) -> Result:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, tokens, 4))
    w_1, w_2 = rng.normal(size=(4, 16)), rng.normal(size=(16, 4))

    def attention(z, scores):
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True) @ z

    maps = [
        lambda z: attention(z, x @ x.T),  # the weights of x, whatever z is
        lambda z: attention(z, z @ z.T),
        lambda z: z @ w_1 @ w_2,
        lambda z: np.maximum(0, z @ w_1) @ w_2,
    ]
    blend = mix * x + (1 - mix) * y  # linear: f(blend) is the blend of f(x) and f(y)
    errors = [np.abs(f(blend) - mix * f(x) - (1 - mix) * f(y)).max() / np.abs(f(blend)).max() for f in maps]
    return dict(
        errors=np.array(errors), fixed=errors[0], whole=errors[1], flat=errors[2], relu=errors[3], tokens=tokens
    )


LINEARITY = Step(
    name="linearity",
    title=Bilingual("Is attention linear?", "注意力是线性的吗？"),
    claim=Bilingual(
        "A block is multi-head attention and a feed-forward network, FFN(x) = max(0, xW₁ + b₁)W₂ + b₂, each with "
        "residual and layer normalisation. Attention is said to be linear, so that only the network with its ReLU "
        "can form complex features.",
        "一个模块由多头注意力和前馈网络 FFN(x) = max(0, xW₁ + b₁)W₂ + b₂ 组成，各带残差与层归一化。有人说多头注意力是"
        "线性的，复杂的特征要靠带 ReLU 的前馈网络。",
    ),
    task=Bilingual(
        "A linear map of a blend is the blend of its outputs; the bars show by how much each map misses that. Reduce "
        "the tokens to 1 and look at the second bar.",
        "线性映射作用于混合，等于输出的混合；条形表示各映射偏离了多少。把词元数减到 1，看第二根条。",
    ),
    controls=(
        Slider("tokens", Bilingual("tokens", "词元数"), 5, 1, 12, 1, whole=True),
        Slider(
            "mix",
            Bilingual(
                "share of the first input in the blend",
                "混合中第一个输入的比例",
            ),
            0.5,
            0.0,
            1.0,
            0.05,
        ),
        Slider("seed", Bilingual("random inputs and weights, number", "随机输入与参数，编号"), 0, 0, 20, 1, whole=True),
    ),
    compute=compute_linearity,
    answer="errors",
    pictures=(
        Bars(
            Bilingual(
                "error of linearity (relative)",
                "偏离线性的程度（相对误差）",
            ),
            "errors",
            MAPS,
            role="output",
            low=0,
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "For given weights attention is linear in the values (error {fixed:.0e}), as the network without "
                "activation is ({flat:.0e}).",
                "权重给定时，注意力对值是线性的（误差 {fixed:.0e}），不带激活的前馈网络也是（{flat:.0e}）。",
            ),
            lambda result: result["fixed"] < 1e-12 and result["flat"] < 1e-12,
        ),
        Finding(
            Bilingual(
                "As a whole it is not: its weights depend on the input, error {whole:.2f}; the network with ReLU "
                "{relu:.2f}. Only for a single token is attention linear, since its one weight is 1.",
                "但整体上它不是线性的：权重随输入而变，误差 {whole:.2f}；带 ReLU 的前馈网络为 {relu:.2f}。只有一个词"
                "元时注意力才是线性的，因为唯一的权重恒为 1。",
            ),
            lambda result: (
                result["relu"] > 0.01 and (result["whole"] > 0.01 if result["tokens"] > 1 else result["whole"] < 1e-12)
            ),
        ),
    ),
    evidence=(Evidence("feed-forward", ("features", "attention-alone", "no-activation", "linear")),),
)


def compute_width(multiple: int, activation: str) -> Result:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 8))
    target = x[:, :4] * x[:, 4:]  # products of features: no linear map makes them
    w_1, b_1 = rng.normal(size=(8, 64)), rng.normal(size=64)
    multiples, errors = np.array([1, 2, 4, 8]), []
    for width in 8 * multiples:  # 8 → width → 4
        hidden = x @ w_1[:, :width] + b_1[:width]
        hidden = np.maximum(0, hidden) if activation == "relu" else hidden
        a, b = hidden[:300], target[:300]
        w_2 = np.linalg.solve(a.T @ a + 1e-6 * np.eye(width), a.T @ b)  # least squares
        errors.append(((hidden[300:] @ w_2 - target[300:]) ** 2).mean() / target[300:].var())
    errors, chosen, rank = np.array(errors), 2**multiple, np.linalg.matrix_rank(w_1)
    feed_forward, attention = 2 * 512 * 512 * chosen + 512 * chosen + 512, 4 * (512 * 512 + 512)
    return dict(
        multiples=multiples, errors=errors, chosen=chosen, error=errors[multiple], narrow=errors[0], wide=512 * chosen,
        parameters=[[f"512 → {512 * chosen} → 512", f"{feed_forward:,}"], ["512", f"{attention:,}"]],
        share=feed_forward / (feed_forward + attention), rank=int(rank),
    )  # fmt: skip


WIDTH = Step(
    name="feed-forward-width",
    title=Bilingual("512 → 2048 → 512", "512 → 2048 → 512"),
    claim=Bilingual(
        "The feed-forward network first raises the dimension, usually four times (512 → 2048), works there, and "
        "returns to 512. With ReLU it is a universal approximator: a wider layer expresses more.",
        "前馈网络先升维，通常升到四倍（512 → 2048），在高维空间做非线性变换，再降回 512。带 ReLU 的前馈网络是通用近似"
        "器：层越宽，能表达的越多。",
    ),
    task=Bilingual(
        "Here 8 → 8·m → 4 learns products of two features, which no linear map can. Move the width, then remove ReLU: "
        "the curve becomes flat.",
        "这里用 8 → 8·m → 4 学习两个特征的乘积，线性映射做不到。改变宽度，再去掉 ReLU：曲线变平了。",
    ),
    controls=(
        Slider("multiple", Bilingual("log₂ of the width multiple m", "宽度倍数 m 的 log₂"), 2, 0, 3, 1, whole=True),
        Choice(
            "activation",
            Bilingual("activation", "激活函数"),
            "relu",
            (("relu", Bilingual("ReLU", "ReLU")), ("none", Bilingual("none", "无"))),
        ),
    ),
    compute=compute_width,
    answer="errors",
    pictures=(
        Lines(
            Bilingual("error on 200 new inputs (1 = predicts nothing)", "在 200 个新输入上的误差（1 表示毫无所学）"),
            "multiples",
            (("errors", Bilingual("error", "误差")),),
            Bilingual("width ÷ dim", "宽度 ÷ 维度"),
            Bilingual("error", "误差"),
            log_x=True,
            marker="chosen",
        ),
        NumberTable(
            Bilingual("parameters at dim 512", "维度 512 时的参数量"),
            "parameters",
            (Bilingual("feed-forward", "前馈网络"), Bilingual("attention, 8 heads", "注意力，8 个头")),
            (Bilingual("sizes", "尺寸"), Bilingual("parameters", "参数量")),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "At {chosen} times the dimension the error is {error:.2f}; at 1 times it is {narrow:.2f}.",
                "宽度为维度的 {chosen} 倍时误差是 {error:.2f}，1 倍时是 {narrow:.2f}。",
            ),
            lambda result: result["error"] < 0.7 * result["narrow"],
        ),
        Finding(
            Bilingual(
                "512 → {wide} → 512 has {share:.0%} of the parameters of its block. Width alone does not help: "
                "without an activation the matrices of this example are one of rank {rank}, however wide they are.",
                "512 → {wide} → 512 占模块参数的 {share:.0%}。只加宽没有用：没有激活函数，再宽的两个矩阵合起来也只是"
                "一个秩为 {rank} 的矩阵。",
            ),
            lambda result: 0.6 < result["share"] < 0.7 and result["rank"] == 8,
        ),
    ),
    evidence=(Evidence("feed-forward-width"),),
)


def compute_position_wise(inputs: np.ndarray, action: str, positions: str) -> Result:
    rng = np.random.default_rng(2)
    w_1, b_1, w_2 = rng.normal(size=(2, 8)), rng.normal(size=8), rng.normal(size=(8, 2))
    steps = np.array([[0.0, 1.0], [0.8, 0.5], [0.9, -0.4], [0.1, -1.0]])
    code, swap = steps * (positions == "added"), [0, 2, 1, 3]
    order = swap if action == "swap" else [0, 1, 2, 3]  # where each word stood before
    after = inputs[order] + ([[0, 0], [1.5, -1], [0, 0], [0, 0]] if action == "change" else 0)

    def attention(z):
        weights = np.exp(z @ z.T / np.sqrt(2))
        return weights / weights.sum(axis=1, keepdims=True) @ z

    def feed_forward(z):
        return np.maximum(0, z @ w_1 + b_1) @ w_2  # y_i = FFN(x_i), the same W_1, W_2 for every i

    output = attention(after + code)
    changes = [np.abs(f(after + code) - f(inputs + code)[order]).max(axis=1) for f in (attention, feed_forward)]
    plain = np.abs(attention(inputs[swap]) - attention(inputs)[swap]).max()  # two words swapped
    coded = np.abs(attention(inputs[swap] + steps) - attention(inputs + steps)[swap]).max()
    return dict(
        output=output, changes=np.array(changes), attention=int((changes[0] > 1e-9).sum()),
        feed_forward=int((changes[1] > 1e-9).sum()), plain=plain, coded=coded,
    )  # fmt: skip


def attend_position_wise(inputs: Tensor, action: str, positions: str) -> Tensor:
    code = inputs.new_tensor([[0.0, 1.0], [0.8, 0.5], [0.9, -0.4], [0.1, -1.0]]) * (positions == "added")
    after = inputs[[0, 2, 1, 3]] if action == "swap" else inputs.clone()
    after[1] += inputs.new_tensor([1.5, -1.0]) * (action == "change")
    z = (after + code)[None, None]
    return rg.attend(z, z, z)[0, 0]


POSITION_WISE = Step(
    name="position-wise",
    title=Bilingual("Position-wise: each position alone", "逐位置：每个位置各算各的"),
    claim=Bilingual(
        "Attention mixes positions; the feed-forward network treats each position alone, with the same W₁ and W₂: yᵢ "
        "= FFN(xᵢ). “Position-wise” means that it does not cross positions, not that it depends on them. Sequence "
        "order is left to attention.",
        "注意力处理位置之间的关系；前馈网络对每个位置单独计算，共用同一组 W₁、W₂：yᵢ = FFN(xᵢ)。“逐位置”是说它不跨位"
        "置，而不是说它依赖位置。顺序信息交给注意力处理。",
    ),
    task=Bilingual(
        "Change the second word: which outputs change? Then swap two words, without and with positions added.",
        "先改动第二个词：哪些输出变了？再交换两个词，比较不加和加上位置编码的情形。",
    ),
    controls=(
        Choice(
            "action",
            Bilingual("do", "操作"),
            "change",
            (
                ("change", Bilingual("change the second word", "改动第二个词")),
                ("swap", Bilingual("swap the second and third word", "交换第二、三个词")),
            ),
        ),
        Choice(
            "positions",
            Bilingual("position codes", "位置编码"),
            "none",
            (("none", Bilingual("none", "不加")), ("added", Bilingual("added", "加上"))),
        ),
        Numbers(
            "inputs",
            Bilingual("word vectors", "词向量"),
            ((1.0, 0.5), (-0.5, 1.0), (0.8, -0.6), (-1.0, -0.5)),
            -3,
            3,
            rows=WORDS,
        ),
    ),
    compute=compute_position_wise,
    attend=attend_position_wise,
    pictures=(
        Bars(
            Bilingual("how much each word's output changes", "每个词的输出变了多少"),
            "changes",
            WORDS,
            (Bilingual("attention", "注意力"), Bilingual("feed-forward", "前馈网络")),
            role="output",
            low=0,
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{attention} of 4 outputs of attention change, and {feed_forward} of the feed-forward network.",
                "注意力的 4 个输出里变了 {attention} 个，前馈网络变了 {feed_forward} 个。",
            ),
            lambda result: result["attention"] == 4 and result["feed_forward"] == 1,
        ),
        Finding(
            Bilingual(
                "Swapping two words without positions changes attention's outputs by {plain:.0e} (each goes with its "
                "word), with positions by {coded:.2f}. Order is carried by the position code; attention alone has "
                "none.",
                "不加位置编码时交换两个词，注意力的输出只变 {plain:.0e}（输出跟着词走）；加上后变 {coded:.2f}。承载顺"
                "序的是位置编码，注意力本身不含顺序。",
            ),
            lambda result: result["plain"] < 1e-12 and result["coded"] > 0.05,
        ),
    ),
    evidence=(
        Evidence("feed-forward", ("position-wise",)),
        Evidence("order", ("equivariant", "chance", "sinusoidal")),
    ),
)
