"""Recurrence beside attention: the notes' table, computed, and the operations of both by length and dimension."""

from __future__ import annotations

import numpy as np

from ....experiments.experiment import Bilingual
from ...controls import Choice, Slider
from ...pictures import Drawing, Lines, NumberTable
from ...step import Evidence, Finding, Result, Step

BOTH = (Bilingual("recurrent network", "循环网络"), Bilingual("self-attention", "自注意力"))


def compute_recurrence_table(tokens: int, memory: float) -> Result:
    dim, random = 8, np.random.default_rng(1)
    x, u = random.normal(size=(tokens, dim)), random.normal(size=(dim, dim)) / np.sqrt(dim)
    w = memory * np.linalg.qr(random.normal(size=(dim, dim)))[0]  # keeps that share of the state at each step
    x[-1] = 1.1 * x[0]  # the last word asks for what the first one has
    ends = []
    for order in (x[::-1], x):
        h, first = np.zeros(dim), u  # the state, and its derivative in the first word
        for n, word in enumerate(order):  # each step waits for the one before
            h = np.tanh(w @ h + u @ word)
            first = (1 - h**2)[:, None] * (w @ first if n else u)
        weights = np.exp(order @ order.T)  # all positions at once
        weights = weights / weights.sum(1, keepdims=True)
        ends.append((h, (weights @ order).mean(0)))
    recurrent_gradient, attention_gradient = np.linalg.norm(first, 2), weights[-1, 0]
    recurrent_change, attention_change = (np.abs(a - b).max() for a, b in zip(*ends, strict=True))
    return dict(
        table=np.array(
            [
                [tokens, 1],
                [tokens, 1],
                [recurrent_gradient, attention_gradient],
                [2 * tokens * dim**2, 2 * tokens**2 * dim],
                [recurrent_change, attention_change],
            ]
        ),
        tokens=tokens,
        recurrent_gradient=recurrent_gradient,
        attention_gradient=attention_gradient,
        recurrent_change=recurrent_change,
        attention_change=attention_change,
    )


RECURRENCE_TABLE = Step(
    name="recurrence-table",
    title=Bilingual("Recurrence and attention, row by row", "循环与注意力，逐行比较"),
    claim=Bilingual(
        "A recurrent network computes one position after another, so distant words are joined by a long path and early "
        "ones fade; word order is built in. Attention computes all positions at once and joins any two directly, but "
        "costs L² and needs codes for order.",
        "循环网络逐个位置计算，所以相距远的词要走很长的路，早先的词会淡出；次序则天然包含在结构里。"
        "注意力一次算完所有位置，任意两个词直接相连，但开销是 L²，次序要靠编码。",
    ),
    task=Bilingual(
        "Every number is computed here, with 8-dimensional random vectors. Lengthen the text and look at the third "
        "row: what is left of the first word at the last one. Raise the share that the state keeps: does it help?",
        "表里每个数都是现场算出的，用的是 8 维随机向量。把文本调长，看第三行：到最后一个词时，第一个词还剩多少影响？"
        "再调大状态保留的比例，有帮助吗？",
    ),
    controls=(
        Slider("tokens", Bilingual("words, L", "词数 L"), 30, 3, 200, 1, whole=True),
        Slider(
            "memory", Bilingual("share of the state kept at each step", "每一步保留状态的比例"), 0.9, 0.1, 1.2, 0.05
        ),
    ),
    compute=compute_recurrence_table,
    pictures=(
        NumberTable(
            Bilingual("one layer of each, d = 8", "各一层，d = 8"),
            "table",
            (
                Bilingual("steps that wait for each other", "必须依次进行的步数"),
                Bilingual("path between first and last word", "首尾两词之间的路径"),
                Bilingual("gradient of the last output in the first word’s value", "最后的输出对第一个词（值）的梯度"),
                Bilingual("multiplications, 2 L d² and 2 L² d", "乘法次数，2 L d² 与 2 L² d"),
                Bilingual("change of the summary when the order is reversed", "倒序后整体表示的变化"),
            ),
            BOTH,
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "Over {tokens} words the gradient is {recurrent_gradient:.1e} in the recurrent network and "
                "{attention_gradient:.2f} in attention.",
                "隔着 {tokens} 个词，循环网络的梯度是 {recurrent_gradient:.1e}，注意力是 {attention_gradient:.2f}。",
            ),
            lambda result: result["recurrent_gradient"] < 0.01 < result["attention_gradient"],
        ),
        Finding(
            Bilingual(
                "Reversing the words changes the recurrent state by {recurrent_change:.2f}, the mean of attention's "
                "outputs by {attention_change:.0e}.",
                "把词倒过来，循环网络的状态变化 {recurrent_change:.2f}，注意力输出的平均变化 {attention_change:.0e}。",
            ),
            lambda result: result["recurrent_change"] > 0.1 and result["attention_change"] < 1e-12,
        ),
    ),
    evidence=(
        Evidence("long-range", ("attention", "lstm-near", "lstm-far", "chrono-far")),
        Evidence("paths", ("attention-path", "recurrent-path")),
        Evidence("order", ("chance",)),
        Evidence("cost", ("time", "linear")),
    ),
)


def compute_recurrence_cost(length: int, dim: int, cell: str, projections: str) -> Result:
    gates = dict(rnn=1, gru=3, lstm=4)[cell]  # matrices of a cell, for the state and for the input
    extra = dict(mixing=0, all=4)[projections]  # W^q, W^k, W^v and W^o
    lengths = 2.0 ** np.arange(4, 15)
    recurrence = 2 * gates * lengths * dim**2
    attention = 2 * lengths**2 * dim + extra * lengths * dim**2  # q·k and weights·v, then the projections
    own_recurrence = 2 * gates * length * dim**2
    own_attention = 2 * length**2 * dim + extra * length * dim**2
    crossing = max(0.0, (gates - extra / 2) * dim)  # beyond it attention costs more
    ratio = own_attention / own_recurrence
    return dict(
        lengths=lengths,
        recurrence=recurrence,
        attention=attention,
        own_recurrence=own_recurrence,
        own_attention=own_attention,
        crossing=crossing,
        ratio=ratio,
        length=length,
        dim=dim,
        expected=extra / (2 * gates) + length / (gates * dim),
    )


RECURRENCE_COST = Step(
    name="recurrence-cost",
    title=Bilingual("L · d² against L² · d", "L · d² 与 L² · d"),
    claim=Bilingual(
        "A recurrent layer costs about L · d², attention about L² · d: attention is cheaper while the text is shorter "
        "than the vectors are long, and dear for long texts.",
        "循环层的开销约为 L · d²，注意力约为 L² · d：文本比向量短时注意力更省，文本很长时就贵了。",
    ),
    task=Bilingual(
        "Move L and d: the curves cross where L = d. Then count the projections too, and take an LSTM: where do they "
        "cross now? The last picture has times measured over L and over d.",
        "移动 L 和 d：两条线在 L = d 处相交。再把投影也算进去，换成 LSTM：交点到了哪里？"
        "最后一张图是随 L 和 d 实测的时间。",
    ),
    controls=(
        Slider("length", Bilingual("words, L", "词数 L"), 1024, 16, 16384, 16, whole=True),
        Slider("dim", Bilingual("size of a vector, d", "向量大小 d"), 64, 16, 1024, 16, whole=True),
        Choice(
            "cell",
            Bilingual("recurrent cell", "循环单元"),
            "rnn",
            (
                ("rnn", Bilingual("simple RNN", "简单 RNN")),
                ("gru", Bilingual("GRU", "GRU")),
                ("lstm", Bilingual("LSTM", "LSTM")),
            ),
        ),
        Choice(
            "projections",
            Bilingual("count of attention", "注意力的计数"),
            "mixing",
            (
                ("mixing", Bilingual("scores and weighted sum only", "只算打分与加权和")),
                ("all", Bilingual("with W^q, W^k, W^v, W^O", "连同 W^q、W^k、W^v、W^O")),
            ),
        ),
    ),
    compute=compute_recurrence_cost,
    pictures=(
        Lines(
            Bilingual("multiplications of one layer", "一层的乘法次数"),
            "lengths",
            (("recurrence", BOTH[0]), ("attention", BOTH[1])),
            Bilingual("words L", "词数 L"),
            Bilingual("multiplications", "乘法次数"),
            log_x=True,
            log_y=True,
            marker="length",
        ),
        Drawing(
            Bilingual("measured: time of one layer on a CPU", "实测：一层在 CPU 上的时间"), "measured_cost", "paths"
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "At L = {length} and d = {dim} attention needs {ratio:.2f} times the multiplications of the recurrent "
                "layer; beyond L = {crossing:.0f} it needs more.",
                "L = {length}、d = {dim} 时，注意力的乘法次数是循环层的 {ratio:.2f} 倍；"
                "L 超过 {crossing:.0f} 之后它需要更多。",
            ),
            lambda result: bool(
                abs(result["ratio"] - result["expected"]) < 1e-9
                and (result["length"] > result["crossing"]) == (result["ratio"] > 1)
            ),
        ),
    ),
    evidence=(
        Evidence("paths", ("attention-length", "attention-dim", "recurrent-length", "recurrent-dim", "short", "long")),
    ),
    link="long",
)

STEPS = (RECURRENCE_TABLE, RECURRENCE_COST)
