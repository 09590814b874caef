"""Self-attention for speech, images and graphs: windows, receptive fields, edges."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import regard as rg

from ....experiments.experiment import Bilingual
from ...controls import MaskGrid, Numbers, Slider
from ...pictures import Drawing, Heatmap, Lines
from ...step import Evidence, Finding, Result, Step


def compute_truncated(frames: int, reach: int, seconds: int) -> Result:
    time = np.arange(frames)
    x = 2 * np.stack([np.sin(time / 2), np.cos(time / 2)], axis=1)  # a sound that repeats
    scores = x @ x.T / np.sqrt(2)
    far = np.abs(time[:, None] - time) > reach
    truncated = np.where(far, -np.inf, scores)
    weights = np.exp(truncated - truncated.max(1, keepdims=True))
    weights = weights / weights.sum(1, keepdims=True)
    output = weights @ x
    length = 100 * seconds  # a frame every 10 ms
    pairs_full = length**2
    near = min(reach, length - 1)
    pairs_window = length * (2 * near + 1) - near * (near + 1)  # the two ends have fewer
    lengths = np.arange(1, 61) * 100
    return dict(
        weights=weights,
        far=far,
        output=output,
        lengths=lengths / 100,
        full=lengths.astype(float) ** 2,
        window=lengths * (2.0 * reach + 1) - reach * (reach + 1),
        seconds=seconds,
        reach=reach,
        pairs_full=pairs_full,
        pairs_window=pairs_window,
        times=pairs_full / pairs_window,
        outside=weights[far].sum(),
    )


def attend_truncated(frames: int, reach: int, seconds: int) -> Tensor:
    time = torch.arange(frames, dtype=torch.float64)
    x = 2 * torch.stack([(time / 2).sin(), (time / 2).cos()], dim=1)[None, None]
    return rg.attend(x, x, x, mask=rg.Window(reach, reach))[0, 0]


TRUNCATED = Step(
    name="truncated-speech",
    title=Bilingual("Speech: attention cut off at a window", "语音：只在窗口内计算的注意力"),
    claim=Bilingual(
        "A recording has thousands of frames, and attention over all of them compares L × L pairs. Truncated "
        "self-attention lets a frame attend only to the frames near it.",
        "一段录音有成千上万帧，对全部帧做注意力要比较 L × L 对。截断自注意力让每一帧只关注附近的帧。",
    ),
    task=Bilingual(
        "Narrow the window: the band of weights shrinks, and so does the lower curve. The sound repeats every 12 to 13 "
        "frames; from which window on does a frame find its earlier copy?",
        "把窗口调窄：权重带变窄，下面那条曲线也变低。这段声音每 12 到 13 帧重复一次；窗口多宽时，"
        "一帧才找得到它之前的重复？",
    ),
    controls=(
        Slider("frames", Bilingual("frames in the picture", "图中的帧数"), 30, 8, 48, 1, whole=True),
        Slider("reach", Bilingual("frames on either side", "每侧的帧数"), 4, 0, 47, 1, whole=True),
        Slider("seconds", Bilingual("seconds of the recording", "录音的秒数"), 20, 1, 60, 1, whole=True),
    ),
    compute=compute_truncated,
    attend=attend_truncated,
    pictures=(
        Heatmap(Bilingual("weights, a row for each frame", "权重，每行一帧"), "weights", masked="far"),
        Lines(
            Bilingual("pairs that are compared", "要比较的对数"),
            "lengths",
            (("full", Bilingual("all pairs", "全部")), ("window", Bilingual("within the window", "窗口内"))),
            Bilingual("seconds of sound", "秒"),
            Bilingual("pairs", "对数"),
            log_y=True,
            marker="seconds",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{seconds} s of speech: {pairs_full:,} pairs in full, {pairs_window:,} within {reach} frames on either "
                "side, {times:.0f} times fewer.",
                "{seconds} 秒语音：全部要 {pairs_full:,} 对，每侧 {reach} 帧的窗口只要 {pairs_window:,} 对，"
                "是全部的 1/{times:.0f}。",
            ),
            lambda result: result["times"] > 10 and result["outside"] == 0,
        ),
    ),
    evidence=(Evidence("sparse", ("window", "cost")), Evidence("cost", ("time", "linear"))),
    link="sound",
)

IMAGE = (
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    (0.0, 0.0, 5.0, 5.0, 0.0, 0.0),
    (0.0, 0.0, 5.0, 5.0, 0.0, 0.0),
    (0.0, 0.0, 5.0, 5.0, 0.0, 0.0),
    (0.0, 0.0, 5.0, 5.0, 5.0, 0.0),
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
)


def compute_convolution(image: np.ndarray, kernel: np.ndarray, pixel: int) -> Result:
    height, width = image.shape
    x = image.reshape(-1)
    row, column = np.divmod(np.arange(x.size), width)
    heads = np.zeros(x.size)
    for (dy, dx), weight in np.ndenumerate(kernel):  # nine heads, each looks at one neighbour with weight 1
        looks = (row == row[:, None] + dy - 1) & (column == column[:, None] + dx - 1)
        heads += looks @ (weight * x)
    padded = np.pad(image, 1)
    shifted = [padded[dy : dy + height, dx : dx + width] for dy, dx in np.ndindex(3, 3)]
    convolution = np.tensordot(kernel.reshape(-1), np.stack(shifted), axes=1)
    scores = -0.3 * (x - x[pixel]) ** 2  # attention by content: similar pixels, wherever they are
    field = (np.exp(scores) / np.exp(scores).sum()).reshape(height, width)
    near = (np.abs(row - row[pixel]) <= 1) & (np.abs(column - column[pixel]) <= 1)
    return dict(
        image=image,
        convolution=convolution,
        heads=heads,
        field=field,
        difference=np.abs(convolution.reshape(-1) - heads).max(),
        far=field.reshape(-1)[~near].sum(),
        pixels=x.size,
        kernel_field=near.reshape(height, width).astype(float),
    )


def attend_convolution(image: Tensor, kernel: Tensor, pixel: int) -> Tensor:
    x = image.reshape(-1)
    row, column = torch.arange(len(x)) // image.shape[1], torch.arange(len(x)) % image.shape[1]
    looks = [(row == row[:, None] + dy) & (column == column[:, None] + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    v = kernel.reshape(1, 9, 1, 1) * x[:, None]  # [1, heads, pixels, 1]
    zeros = torch.zeros_like(v)
    return rg.attend(zeros, zeros, v, mask=rg.Pairs(torch.stack(looks))).sum(1).flatten()


CONVOLUTION = Step(
    name="convolution-window",
    title=Bilingual("Images: convolution is attention with a small field", "图像：卷积是视野受限的注意力"),
    claim=Bilingual(
        "An image is a set of pixel (or patch) vectors. A convolution is self-attention that sees only a fixed "
        "neighbourhood with fixed weights; self-attention is a convolution whose field covers the image and takes its "
        "shape from the content.",
        "图像是像素（或图块）向量的集合。卷积就是只看固定邻域、权重也固定的自注意力；"
        "自注意力则像视野覆盖全图、形状由内容决定的卷积。",
    ),
    task=Bilingual(
        "Edit the kernel or the image: nine heads of attention, each looking at one neighbour, give exactly the "
        "convolution. Then move the chosen pixel: the field of attention by content follows the shape in the image, "
        "the kernel's field stays a square.",
        "改一改卷积核或图像：九个各看一个邻居的注意力头，正好给出卷积的结果。再移动所选像素："
        "按内容的注意力，视野随图形而变；卷积核的视野始终是方块。",
    ),
    controls=(
        Numbers("image", Bilingual("image", "图像"), IMAGE, 0, 9, 1),
        Numbers(
            "kernel",
            Bilingual("kernel", "卷积核"),
            ((0.0, -1.0, 0.0), (-1.0, 4.0, -1.0), (0.0, -1.0, 0.0)),
            -4,
            4,
            0.5,
        ),
        Slider("pixel", Bilingual("chosen pixel", "所选像素"), 14, 0, 35, 1, whole=True),
    ),
    compute=compute_convolution,
    attend=attend_convolution,
    answer="heads",
    pictures=(
        Heatmap(Bilingual("image", "图像"), "image", role="plain"),
        Heatmap(Bilingual("convolution", "卷积"), "convolution", role="output"),
        Heatmap(Bilingual("field of the kernel at the chosen pixel", "卷积核在所选像素处的视野"), "kernel_field"),
        Heatmap(Bilingual("field of attention by content", "按内容的注意力的视野"), "field"),
    ),
    findings=(
        Finding(
            Bilingual(
                "Nine heads and the convolution differ by {difference:.0e} at most, over {pixels} pixels.",
                "九个头与卷积在 {pixels} 个像素上最多相差 {difference:.0e}。",
            ),
            lambda result: result["difference"] < 1e-9,
        ),
        Finding(
            Bilingual(
                "Attention by content gives {far:.2f} of its weight to pixels outside the 3 × 3 square.",
                "按内容的注意力把 {far:.2f} 的权重给了 3 × 3 方块之外的像素。",
            ),
            lambda result: result["far"] > 0.3,
        ),
    ),
    evidence=(Evidence("convolution"),),
    link="image",
)

NODES = tuple(
    Bilingual(en, zh)
    for en, zh in (("Ann", "安"), ("Bo", "博"), ("Chen", "陈"), ("Dan", "丹"), ("Eve", "夏"), ("Fei", "飞"))
)
FRIENDS = ((0, 1), (1, 2), (2, 3), (3, 4), (2, 5))
EDGES = tuple(tuple((i, j) in FRIENDS or (j, i) in FRIENDS or i == j for j in range(6)) for i in range(6))


def compute_graph(edges: np.ndarray, news: np.ndarray, interest: float, layers: int) -> Result:
    scores = interest * np.cos(np.arange(6)[:, None] - np.arange(6))  # who finds whom interesting
    scores = np.where(edges, scores, -np.inf)  # only along edges
    weights = np.where(edges, np.exp(scores), 0)
    weights = weights / np.maximum(weights.sum(1, keepdims=True), 1e-300)  # no edge at all: zeros
    state, history = news, [news]
    for _ in range(layers):
        state = weights @ state
        history.append(state)
    reached = int((np.abs(state) > 1e-12).sum())
    one_layer = int((np.abs(weights @ news) > 1e-12).sum())
    return dict(
        weights=weights,
        missing=~edges,
        state=state,
        history=np.stack(history),
        layer_names=[str(n) for n in range(layers + 1)],
        reached=reached,
        one_layer=one_layer,
        layers=layers,
    )


def attend_graph(edges: Tensor, news: Tensor, interest: float, layers: int) -> Tensor:
    angle = torch.arange(6, dtype=torch.float64)
    x = torch.stack([angle.cos(), angle.sin()], dim=1)[None, None]  # cos(i − j) as a dot product
    mask = rg.Edges(edges.nonzero().T.flip(0))  # [2, edges]: from the key to the query
    for _ in range(layers):
        news = rg.attend(interest * x, x, news.view(1, 1, -1, 1), score=rg.Dot(scale=1.0), mask=mask).flatten()
    return news


GRAPH = Step(
    name="graph-edges",
    title=Bilingual("Graphs: attention along edges only", "图：只沿着边计算注意力"),
    claim=Bilingual(
        "In a graph the edges say who is connected. Attention can be restricted to connected nodes; what a node knows "
        "then travels one edge in each layer. That is the idea of graph attention networks.",
        "图里的边说明谁与谁相连。可以让注意力只在相连的节点之间计算；这样一来，信息每层沿边走一步。"
        "这就是图注意力网络的想法。",
    ),
    task=Bilingual(
        "Ann has news. Add layers and watch it travel; paint an edge from Eve to Ann and it arrives at once. Paint all "
        "pairs for full attention.",
        "安有个消息。增加层数，看消息怎样传开；在夏与安之间画一条边，消息就立刻到达。把所有格子都画上，就是全注意力。",
    ),
    controls=(
        MaskGrid("edges", Bilingual("edges: the row attends to the column", "边：行关注列"), EDGES, NODES, NODES),
        Slider("layers", Bilingual("layers", "层数"), 2, 1, 6, 1, whole=True),
        Numbers(
            "news", Bilingual("news at the start", "开始时的消息"), (1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0, 1, columns=NODES
        ),
        Slider("interest", Bilingual("weight of shared interests", "共同兴趣的作用"), 1, 0, 4, 0.5),
    ),
    compute=compute_graph,
    attend=attend_graph,
    answer="state",
    pictures=(
        Drawing(Bilingual("the graph; shade is news, lines are weights", "图：颜色深浅是消息，线是权重"), "graph"),
        Heatmap(Bilingual("weights", "权重"), "weights", NODES, NODES, masked="missing"),
        Heatmap(Bilingual("news after each layer", "每层之后的消息"), "history", "layer_names", NODES, "value"),
    ),
    findings=(
        Finding(
            Bilingual(
                "After {layers} layers the news has reached {reached} of 6 people; after one layer {one_layer}.",
                "{layers} 层之后消息传到 6 人中的 {reached} 人；一层之后是 {one_layer} 人。",
            ),
            lambda result: result["one_layer"] == 2 and result["reached"] == 3,
        ),
    ),
    evidence=(Evidence("graphs", ("edges", "better")),),
    link="graph?model=karate",
)

STEPS = (TRUNCATED, CONVOLUTION, GRAPH)
