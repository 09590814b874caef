"""Paths and receptive fields of a convolution, a recurrent network and attention, and how they grow with the length."""

from __future__ import annotations

import numpy as np

from ....experiments.experiment import Bilingual
from ...controls import Slider
from ...pictures import Drawing, Lines, NumberTable
from ...step import Evidence, Finding, Result, Step


def compute_paths(tokens: int, layers: int, kernel: int, output: int) -> Result:
    i, j = np.indices((tokens, tokens))
    output = min(output, tokens) - 1
    moves = [np.abs(i - j) <= kernel // 2, (i - j == 0) | (i - j == 1), i >= 0]  # who hands to whom in one step
    hops = np.full((3, tokens), np.inf)
    for row, move, limit in zip(hops, moves, (layers, tokens, layers), strict=True):
        reach = i == j
        for steps in range(limit + 1):  # recurrence takes a step for each token, the others for each layer
            row[reach[output] & np.isinf(row)] = steps
            reach = reach @ move
    even = [move / move.sum(axis=1, keepdims=True) for move in moves]  # each node averages what enters it
    even[1] = np.where(j <= i, 0.5 ** (i - j + 1.0), 0)
    even[1] = even[1] / even[1].sum(axis=1, keepdims=True)
    influence = np.stack([np.linalg.matrix_power(a, layers)[output] for a in even])
    reached, farthest = np.isfinite(hops).sum(axis=1), np.where(np.isfinite(hops), hops, 0).max(axis=1)
    return dict(
        tokens=tokens, layers=layers, kernel=kernel, output=output, hops=hops, influence=influence, reached=reached,
        farthest=farthest, sequential=np.array([layers, tokens + layers - 1, layers]), seen=int(reached[0]),
        steps=int(farthest[1]), direct=int(farthest[2]), first=influence[1, 0],
    )  # fmt: skip


PATHS = Step(
    name="paths",
    title=Bilingual("Which inputs reach an output, and in how many steps", "哪些输入能到达一个输出，要走几步"),
    claim=Bilingual(
        "A convolution sees a neighbourhood and must be stacked to see everything; the path between distant "
        "positions is long, and information fades on it. A recurrent network passes everything through its state. "
        "Attention connects every position with every other in one step.",
        "卷积只看邻域，要堆叠多层才能看到全局：远处的位置之间路径长，信息沿途衰减。RNN 的一切都要经过状态逐步传递。注"
        "意力一步就把任意两个位置连起来。",
    ),
    task=Bilingual(
        "Click an output (top) and see which inputs reach it; the number in an input is its distance in steps. Click "
        "an input to see its path. Add layers until the convolution sees everything.",
        "点一个输出（最上一行），看哪些输入能到达它；输入里的数字是要走的步数。点一个输入看它的路径。增加层数，直到卷"
        "积看到全部输入。",
    ),
    controls=(
        Slider("tokens", Bilingual("tokens", "词元数"), 9, 4, 14, 1, whole=True),
        Slider("layers", Bilingual("layers", "层数"), 2, 1, 6, 1, whole=True),
        Slider("kernel", Bilingual("kernel of the convolution", "卷积核大小"), 3, 3, 7, 2, whole=True),
        Slider("output", Bilingual("output", "输出"), 9, 1, 14, 1, whole=True),
    ),
    compute=compute_paths,
    answer="hops",
    pictures=(Drawing(Bilingual("from inputs (bottom) to outputs (top)", "从输入（下）到输出（上）"), "paths"),),
    findings=(
        Finding(
            Bilingual(
                "With {layers} layers the convolution reaches {seen} of {tokens} inputs. The recurrent network "
                "reaches the first after {steps} steps, attention after {direct}.",
                "{layers} 层卷积到达 {tokens} 个输入中的 {seen} 个；RNN 到第一个输入要走 {steps} 步，注意力只要 "
                "{direct} 步。",
            ),
            lambda result: (
                result["seen"] < result["tokens"] and result["steps"] == result["output"] and result["direct"] == 1
            ),
        ),
        Finding(
            Bilingual(
                "If every node averages what enters it, the first input is {first:.1e} of the recurrent network's "
                "output.",
                "如果每个节点都对进来的量求平均，RNN 的输出里第一个输入只占 {first:.1e}。",
            ),
            lambda result: result["first"] < 1 / result["tokens"],
        ),
    ),
    evidence=(
        Evidence("paths", ("attention-path", "recurrent-path", "convolution-path")),
        Evidence("long-range", ("convolution-shallow", "convolution-deep")),
    ),
)


def compute_path_table(kernel: int, log_length: int) -> Result:
    def longest(tokens, name):  # count the steps until the last output has heard of the first input
        reach = np.zeros(tokens, bool)
        reach[0] = True
        for steps in range(1, tokens + 1):
            width = {"recurrent": 1, "convolution": kernel // 2, "attention": tokens}.get(name)
            width = kernel // 2 * 2 ** (steps - 1) if width is None else width  # dilation doubles with each layer
            reach[: min(tokens, reach.nonzero()[0][-1] + width + 1)] = True
            if reach[-1]:
                return steps

    names, lengths = ["recurrent", "convolution", "dilated", "attention"], 2 ** np.arange(2, 11)
    paths = np.array([[longest(n, name) for n in lengths] for name in names])
    exponents = np.polyfit(np.log(lengths[4:]), np.log(paths[:, 4:]).T, 1)[0]
    here, tokens = log_length - 2, 2**log_length
    return dict(
        lengths=lengths, paths=paths, recurrent=paths[0], convolution=paths[1], dilated=paths[2], attention=paths[3], tokens=tokens,
        table=[[int(p[here]), s, f"L^{e:.2f}"] for p, s, e in zip(paths, [tokens, 1, 1, 1], exponents, strict=True)],
        exponents=exponents, doubling=int(paths[2, here]), layers=int(paths[1, here]),
    )  # fmt: skip


NETWORKS = (
    Bilingual("recurrent", "RNN"),
    Bilingual("convolution", "卷积"),
    Bilingual("convolution, dilated", "膨胀卷积"),
    Bilingual("attention", "注意力"),
)
PATH_TABLE = Step(
    name="path-table",
    title=Bilingual("O(1) and O(L): the table, counted", "O(1) 与 O(L)：数出来的表"),
    claim=Bilingual(
        "The longest path between two positions is O(L) in a recurrent network and O(1) in attention; a convolution "
        "needs a stack of layers in between. Recurrence takes L steps one after another, the others one for each "
        "layer.",
        "两个位置之间的最长路径，RNN 是 O(L)，注意力是 O(1)；卷积介于两者之间，要靠堆叠层。RNN 必须先后走 L 步，其余"
        "的每层只要一步。",
    ),
    task=Bilingual(
        "Move the length. In this plot a slope of 1 is O(L) and a flat line O(1). Widen the kernel: the line moves "
        "down, its slope stays.",
        "改变长度。图里斜率为 1 就是 O(L)，水平就是 O(1)。加大卷积核：直线下移，斜率不变。",
    ),
    controls=(
        Slider("log_length", Bilingual("log₂ of the length L", "长度 L 的 log₂"), 6, 2, 10, 1, whole=True),
        Slider("kernel", Bilingual("kernel of the convolution", "卷积核大小"), 5, 3, 31, 2, whole=True),
    ),
    compute=compute_path_table,
    answer="paths",
    pictures=(
        Lines(
            Bilingual("steps from the first input to the last output", "从第一个输入到最后一个输出的步数"),
            "lengths",
            tuple(zip(("recurrent", "convolution", "dilated", "attention"), NETWORKS, strict=True)),
            Bilingual("length L", "长度 L"),
            Bilingual("steps", "步数"),
            log_x=True,
            log_y=True,
            marker="tokens",
        ),
        NumberTable(
            Bilingual("at this length", "在这个长度上"),
            "table",
            NETWORKS,
            (
                Bilingual("longest path (steps)", "最长路径（步）"),
                Bilingual("one after another, a layer", "每层先后进行的步数"),
                Bilingual("path grows as", "路径的增长"),
            ),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "Counted at L = {tokens}: the convolution needs {layers} layers, with doubling dilation {doubling}, "
                "attention 1. So O(L) holds for a plain convolution only; dilation makes it O(log L).",
                "在 L = {tokens} 上数得：卷积要 {layers} 层，膨胀率逐层加倍则要 {doubling} 层，注意力 1 层。可见 "
                "O(L) 只适用于普通卷积；膨胀卷积是 O(log L)。",
            ),
            lambda result: (
                abs(result["exponents"][0] - 1) < 0.02
                and result["exponents"][2] < 0.35
                and abs(result["exponents"][3]) < 1e-9
            ),
        ),
    ),
    evidence=(
        Evidence("paths", ("attention-path", "recurrent-path", "convolution-path", "dilated-path")),
        Evidence("cost", ("time", "linear")),
    ),
)
