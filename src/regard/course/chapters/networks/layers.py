"""Layers and activation functions: the MLP, feed-forward networks, linear layers in a row."""

from __future__ import annotations

import numpy as np

from ....experiments.experiment import Bilingual
from ...controls import Choice, MaskGrid, Numbers, Slider
from ...pictures import Bars, Drawing, Lines
from ...step import Evidence, Finding, Result, Step

HIDDEN = tuple(Bilingual(f"h{n}", f"h{n}") for n in range(1, 5))
ACTIVATIONS = (
    ("none", Bilingual("none", "无")),
    ("relu", Bilingual("ReLU", "ReLU")),
    ("tanh", Bilingual("tanh", "tanh")),
)


def compute_mlp(inputs: np.ndarray, hidden_weights: np.ndarray, output_weights: np.ndarray, activation: str) -> Result:
    before = hidden_weights @ inputs  # the linear layer carries and adds up
    hidden = before
    if activation == "relu":  # the activation works on what was carried
        hidden = np.maximum(before, 0)
    if activation == "tanh":
        hidden = np.tanh(before)
    output = output_weights @ hidden
    return dict(
        inputs=inputs,
        hidden=hidden,
        hidden_carried=hidden_weights * inputs,
        output_carried=output_weights * hidden,
        stages=np.array([before, hidden]),
        output=output,
        connections=hidden_weights.size + output_weights.size,
        silent=int((hidden == 0).sum()),
        first=output[0],
    )


MLP = Step(
    name="mlp",
    title=Bilingual("A multilayer perceptron", "多层感知机"),
    claim=Bilingual(
        "The basic network: input layer, hidden layer, output layer, and every neuron connected to every neuron of "
        "the layer before. Nothing is assumed about the input, so no connection is left out. The linear layers are "
        "porters: they carry and add. The activation function is the machine that works on what they bring.",
        "最基本的网络：输入层、隐藏层、输出层，每个神经元都与上一层的每个神经元相连。对输入不作任何假设，"
        "所以一条连接也不省。线性层是搬运工，只管搬运和相加；激活函数是加工机器，对搬来的东西进行加工。",
    ),
    task=Bilingual(
        "Change the inputs and follow the numbers through the layers. A hidden neuron whose sum is negative is shut by "
        "ReLU: what it received goes no further. Then take the activation away.",
        "改变输入，看数字怎样逐层传过去。总和为负的隐藏神经元会被 ReLU 关掉，它收到的东西到此为止。"
        "再把激活函数拿掉看看。",
    ),
    controls=(
        Numbers("inputs", Bilingual("inputs", "输入"), (1.0, -0.5, 2.0), -3, 3),
        Choice("activation", Bilingual("activation function", "激活函数"), "relu", ACTIVATIONS),
        Numbers(
            "hidden_weights",
            Bilingual("weights of the hidden layer", "隐藏层的权重"),
            ((0.8, -0.6, 0.3), (-1.0, 0.5, 0.2), (0.4, 0.9, -0.7), (0.2, 0.3, 0.9)),
            -2,
            2,
            rows=HIDDEN,
        ),
        Numbers(
            "output_weights",
            Bilingual("weights of the output layer", "输出层的权重"),
            ((0.9, -0.8, 0.5, 0.3), (-0.4, 0.7, 0.6, 1.0)),
            -2,
            2,
            columns=HIDDEN,
        ),
    ),
    compute=compute_mlp,
    pictures=(
        Drawing(
            Bilingual("every neuron is connected to all of the layer before", "每个神经元与上一层全部相连"), "network"
        ),
        Bars(
            Bilingual("the hidden layer", "隐藏层"),
            "stages",
            HIDDEN,
            (
                Bilingual("carried: weighted sums", "搬运：加权求和"),
                Bilingual("worked on: after the activation", "加工：激活之后"),
            ),
            role="plain",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{connections} connections carry the input to 2 outputs; {silent} of the 4 hidden neurons are shut.",
                "{connections} 条连接把输入送到 2 个输出；4 个隐藏神经元中有 {silent} 个被关掉。",
            ),
            lambda result: result["connections"] == 20 and 0 < result["silent"] < 4,
        ),
    ),
    evidence=(Evidence("activation", ("curved",)),),
)

NEURONS = tuple(Bilingual(name, name) for name in ("x1", "x2", "h1", "h2", "y1", "y2"))


def compute_feed_forward_family(reads: np.ndarray) -> Result:
    layer = np.array([0, 0, 1, 1, 2, 2])
    # an MLP: each neuron reads the whole layer before
    full = layer[:, None] - layer == 1
    steps, longest = reads.astype(float), 0
    paths, reachable = steps, reads.copy()
    for length in range(1, 7):  # paths of 1 to 6 connections
        if paths.any():
            longest = length
        reachable = reachable | (paths > 0)
        paths = (paths @ steps > 0) * 1.0
    loops = np.diag(reachable)  # neurons that can be reached from themselves
    return dict(
        reads=reads,
        loops=loops,
        cycles=int(loops.sum()),
        longest="∞" if loops.any() else str(longest),
        connections=int(reads.sum()),
        mlp=bool((reads == full).all()),
        family=0 if loops.any() else 2 if (reads == full).all() else 1,
    )


FEED_FORWARD_FAMILY = Step(
    name="feed-forward-family",
    title=Bilingual("Feed-forward networks and the MLP", "前馈网络与多层感知机"),
    claim=Bilingual(
        "A feed-forward network passes everything on and nothing back: no path of connections returns to its start. "
        "The MLP is its most common member, and what textbooks call “the” neural network is usually an MLP.",
        "前馈网络只向前传，不往回传：顺着连接走，永远回不到起点。多层感知机（MLP）是其中最常见的一种，"
        "教科书里说的“神经网络”通常就是它。",
    ),
    task=Bilingual(
        "Row i is filled where neuron i reads neuron j. Remove a connection: still feed-forward, but no longer an MLP. "
        "Let h1 read y1: a path returns, and the network has become recurrent.",
        "第 i 行涂色处表示神经元 i 读取神经元 j。去掉一条连接：仍是前馈网络，但不再是 MLP。"
        "让 h1 读取 y1：路径绕了回来，就成了循环网络。",
    ),
    controls=(
        MaskGrid(
            "reads",
            Bilingual("who reads whom", "谁读取谁"),
            (
                (False, False, False, False, False, False),
                (False, False, False, False, False, False),
                (True, True, False, False, False, False),
                (True, True, False, False, False, False),
                (False, False, True, True, False, False),
                (False, False, True, True, False, False),
            ),
            NEURONS,
            NEURONS,
        ),
    ),
    compute=compute_feed_forward_family,
    pictures=(Drawing(Bilingual("the network and its family", "这个网络和它所属的一类"), "feed_forward"),),
    findings=(
        Finding(
            Bilingual(
                "{cycles} neurons can be reached from themselves; the longest path has {longest} connections.",
                "能绕回自己的神经元有 {cycles} 个；最长的路径有 {longest} 条连接。",
            ),
            lambda result: result["cycles"] == 0,
        ),
    ),
    evidence=(),
)


def compute_linear_layers(layers: int, activation: str) -> Result:
    rng = np.random.default_rng(4)
    x, width = np.linspace(-2, 2, 81), 8
    weights = rng.normal(size=(layers, width, width)) / np.sqrt(width) * 1.3
    biases = rng.normal(size=(layers, width, 1)) / 2
    first, last = rng.normal(size=(width, 1)), rng.normal(size=(1, width))
    apply = dict(none=lambda z: z, relu=lambda z: np.maximum(z, 0), tanh=np.tanh)[activation]
    values, matrix, offset = first * x, first, np.zeros((width, 1))
    for weight, bias in zip(weights, biases, strict=True):
        values = apply(weight @ values + bias)
        # all layers as one
        matrix, offset = weight @ matrix, weight @ offset + bias
    stack, collapsed = (last @ values)[0], (last @ matrix)[0] * x + (last @ offset)[0]
    bends = int((np.abs(np.diff(stack, 2)) > 1e-9).sum())
    return dict(
        x=x, stack=stack, collapsed=collapsed, error=np.abs(stack - collapsed).max(), bends=bends, layers=layers
    )


LINEAR_LAYERS = Step(
    name="linear-layers",
    title=Bilingual("Linear layers stay linear", "线性层叠再多还是线性"),
    claim=Bilingual(
        "Without activation functions, layers upon layers are one linear map: their matrices multiply out to a single "
        "one. However often things are carried, nothing has been worked on. With an activation each layer makes new "
        "features out of those of the layer before: that is what depth is for.",
        "没有激活函数，层层相叠仍然只是一个线性变换：所有矩阵乘起来就是一个矩阵。搬运再多次，也没有加工。"
        "有了激活函数，每一层都能在前一层的基础上提取新的特征，加深才有意义。",
    ),
    task=Bilingual(
        "Add layers: the curve of the network lies on the line of the one matrix. Then choose ReLU or tanh.",
        "增加层数：网络的曲线始终落在那一个矩阵的直线上。再选 ReLU 或 tanh 看看。",
    ),
    controls=(
        Slider("layers", Bilingual("layers", "层数"), 4, 1, 12, 1, whole=True),
        Choice("activation", Bilingual("activation function", "激活函数"), "none", ACTIVATIONS),
    ),
    compute=compute_linear_layers,
    pictures=(
        Lines(
            Bilingual("output of the network over its input", "网络的输出随输入的变化"),
            "x",
            (
                ("stack", Bilingual("the layers one after another", "逐层计算")),
                ("collapsed", Bilingual("all matrices multiplied into one", "所有矩阵乘成一个")),
            ),
            Bilingual("input", "输入"),
            Bilingual("output", "输出"),
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{layers} layers and the one matrix differ by {error:.1g}; the curve bends at {bends} places.",
                "{layers} 层与那一个矩阵相差 {error:.1g}；曲线有 {bends} 处弯折。",
            ),
            lambda result: result["error"] < 1e-12 and result["bends"] == 0,
        ),
    ),
    evidence=(Evidence("activation", ("one-matrix", "no-better")),),
)
