"""Recurrence beside attention: how far a gradient comes, how much a state holds, and the copy task."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import Slider
from ...pictures import Bars, Heatmap, Lines
from ...step import Evidence, Finding, Result, Step


def compute_recurrence(tokens: int, gain: float) -> Result:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(tokens, 8))
    w = gain * np.linalg.qr(rng.normal(size=(8, 8)))[0]
    h, jacobians = np.zeros(8), []
    for t in range(tokens):  # h_t = tanh(W h + x_t): token by token
        h = np.tanh(w @ h + x[t])
        jacobians.append(np.diag(1 - h**2))
    product, recurrent = np.eye(8), []
    for t in reversed(range(tokens)):  # ∂h_n / ∂x_t: one factor for each token in between
        product = product @ jacobians[t]
        recurrent.append(np.linalg.norm(product, 2))
        product = product @ w
    scores = x @ x[-1] / np.sqrt(8)  # attention: all tokens at once, one step to each
    weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    attention, output = weights[::-1], weights @ x
    return dict(
        output=output, distance=np.arange(tokens), recurrent=np.array(recurrent), attention=attention, tokens=tokens,
        far=np.mean(recurrent[-5:]), far_attention=attention[-5:].mean(),
        far_half=attention[tokens // 2 :].sum(), gain=gain,
        steps=np.array([tokens, 1]),
    )  # fmt: skip


def attend_recurrence(tokens: int, gain: float) -> Tensor:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(tokens, 8)))[None, None]
    return rg.attend(x[:, :, -1:], x, x)[0, 0, 0]


RECURRENCE = Step(
    name="recurrence",
    title=Bilingual("Recurrence and attention", "循环与注意力"),
    claim=Bilingual(
        "A recurrent network hands a state from token to token: context is implicit and gradients must pass every "
        "step. A Transformer has no recurrence over time; it relates all pairs explicitly and in parallel, and gets "
        "order from position codes.",
        "RNN 用循环的隐状态逐步传递上下文，依赖是隐式的，梯度要穿过每一步。Transformer 在时间上没有循环：它显式地并行"
        "计算任意两个位置的关系，顺序则由位置编码给出。",
    ),
    task=Bilingual(
        "Make the sequence longer: the recurrent curve falls by a factor for each token, attention's does not. Then "
        "raise the recurrent gain and try to save the far gradient.",
        "把序列加长：RNN 的曲线每隔一个词元就乘上一个因子，注意力的曲线不会。再调大循环增益，试着救回远处的梯度。",
    ),
    controls=(
        Slider("tokens", Bilingual("tokens", "词元数"), 40, 10, 100, 1, whole=True),
        Slider("gain", Bilingual("gain of the recurrent matrix", "循环矩阵的增益"), 1.0, 0.5, 2.5, 0.1),
    ),
    compute=compute_recurrence,
    attend=attend_recurrence,
    pictures=(
        Lines(
            Bilingual("what of a token's gradient arrives at the end", "一个词元的梯度有多少到达末尾"),
            "distance",
            (
                ("recurrent", Bilingual("recurrent: norm of ∂h_n/∂x", "RNN：∂h_n/∂x 的范数")),
                ("attention", Bilingual("attention: weight on the value", "注意力：值上的权重")),
            ),
            Bilingual("distance from the last token", "到最后一个词元的距离"),
            Bilingual("gradient", "梯度"),
            log_y=True,
        ),
        Bars(
            Bilingual("steps one after another", "必须先后进行的步数"),
            "steps",
            (Bilingual("recurrent", "RNN"), Bilingual("attention", "注意力")),
            role="plain",
            low=0,
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "Of the five earliest of {tokens} tokens the recurrent network's gradient is {far:.1e}, that of "
                "attention {far_attention:.1e}.",
                "对 {tokens} 个词元中最早的五个，RNN 的梯度是 {far:.1e}，注意力是 {far_attention:.1e}。",
            ),
            lambda result: result["far"] < 1e-3 * result["far_attention"],
        ),
        Finding(
            Bilingual(
                "Attention's gradient does not fade with distance (the far half of the tokens has {far_half:.0%} of "
                "the weight), but it is shared, since the weights sum to 1. And only reading and training are "
                "parallel: text is still generated token by token.",
                "注意力的梯度不随距离衰减（远处那一半词元占权重的 {far_half:.0%}），但要分摊，因为权重之和为 1。另外，"
                "能并行的是阅读和训练：生成文本时仍要一个词元一个词元来。",
            ),
            lambda result: 0.2 < result["far_half"] < 0.8,
        ),
    ),
    evidence=(
        Evidence("long-range", ("attention", "lstm-near", "lstm-far", "chrono-far")),
        Evidence("cost", ("time", "linear")),
    ),
)


def compute_copy(tokens: int, state: int, sharpness: float) -> Result:
    rng = np.random.default_rng(0)
    x = rng.normal(size=tokens)  # the sequence to be copied
    turn, start = np.linalg.qr(rng.normal(size=(state, state)))[0], rng.normal(size=state)

    traces = [np.linalg.matrix_power(turn, n) @ start for n in range(32)]  # what an input leaves, n steps later

    def recall(n):  # the best linear reading of n inputs from h ← turn · h + start · x
        history = np.stack(traces[:n][::-1], axis=1)
        return np.linalg.pinv(history) @ history

    lengths = np.arange(1, 33)
    errors = np.array([1 - np.trace(recall(n)) / n for n in lengths])
    angles = np.arange(tokens)[:, None] / 40 ** (np.arange(8) / 8)
    keys = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)  # attention: output t asks for position t
    scores = sharpness * keys @ keys.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = weights / weights.sum(axis=1, keepdims=True)
    output = weights @ x
    return dict(
        lengths=lengths, errors=errors, tokens=tokens, state=state, weights=weights, output=output,
        error=errors[tokens - 1], rows=np.stack([x, recall(tokens) @ x, output]),
        attention_error=np.abs(output - x).max(),
        predicted=max(0, 1 - state / tokens), names=[str(n + 1) for n in range(tokens)],
    )  # fmt: skip


def attend_copy(tokens: int, state: int, sharpness: float) -> Tensor:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=tokens))
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] / 40 ** (torch.arange(8, dtype=torch.float64) / 8)
    keys = torch.cat([angles.sin(), angles.cos()], dim=1)[None, None]
    return rg.attend(keys, keys, x.view(1, 1, -1, 1), score=rg.Dot(scale=sharpness))[0, 0, :, 0]


COPY = Step(
    name="copy",
    title=Bilingual("The copy task", "序列复制任务"),
    claim=Bilingual(
        "Read a sequence, then repeat it. A recurrent network must keep all of it in a state of fixed size; "
        "attention asks each position for its value.",
        "读一个序列，再原样写出来。RNN 要把全部内容装进大小固定的状态里；注意力只需逐个位置去取值。",
    ),
    task=Bilingual(
        "Make the sequence longer than the state. The second row stops being a copy, the third does not. Then lower "
        "the sharpness: attention has its own way to fail.",
        "让序列比状态更长：第二行不再是复制，第三行仍是。再降低锐度：注意力也有它自己的失败方式。",
    ),
    controls=(
        Slider("tokens", Bilingual("tokens", "词元数"), 12, 1, 32, 1, whole=True),
        Slider("state", Bilingual("numbers in the recurrent state", "循环状态里的数的个数"), 6, 1, 32, 1, whole=True),
        Slider("sharpness", Bilingual("sharpness (scale of the scores)", "锐度（分数的倍数）"), 10.0, 0.5, 20.0, 0.5),
    ),
    compute=compute_copy,
    attend=attend_copy,
    pictures=(
        Heatmap(
            Bilingual("the sequence and its two copies", "序列与两个副本"),
            "rows",
            (
                Bilingual(
                    "sequence",
                    "序列",
                ),
                Bilingual(
                    "from a state",
                    "由状态读出",
                ),
                Bilingual(
                    "by attention",
                    "由注意力取得",
                ),
            ),
            "names",
            role="value",
        ),
        Lines(
            Bilingual("what a state loses", "状态丢掉了多少"),
            "lengths",
            (("errors", Bilingual("share of the sequence lost", "丢失的比例")),),
            Bilingual("tokens", "词元数"),
            Bilingual("lost", "丢失"),
            marker="tokens",
        ),
        Heatmap(Bilingual("weights of attention", "注意力的权重"), "weights"),
    ),
    findings=(
        Finding(
            Bilingual(
                "The best reading of a state of {state} numbers loses {error:.0%} of {tokens} tokens; attention is "
                "wrong by at most {attention_error:.1e}.",
                "用最好的读法从 {state} 个数的状态里读 {tokens} 个词元，丢失 {error:.0%}；注意力的误差最多 "
                "{attention_error:.1e}。",
            ),
            lambda result: abs(result["error"] - result["predicted"]) < 1e-6 and result["attention_error"] < 0.05,
        ),
    ),
    evidence=(Evidence("copy"),),
)
