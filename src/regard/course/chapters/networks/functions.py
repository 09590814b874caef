"""What a network can represent: curved boundaries, any continuous function, columns of a table."""

from __future__ import annotations

import numpy as np

from ....experiments.experiment import Bilingual
from ...controls import Choice, Numbers, Slider
from ...pictures import Bars, Drawing, Lines
from ...step import Evidence, Finding, Result, Step
from .layers import ACTIVATIONS

POINTS = tuple(Bilingual(f"inside {n}", f"里 {n}") for n in range(1, 6)) + tuple(
    Bilingual(f"outside {n}", f"外 {n}") for n in range(1, 6)
)


def compute_decision_boundary(points: np.ndarray, width: int, activation: str) -> Result:
    rng = np.random.default_rng(0)
    weights, biases = rng.normal(size=(2, width)), rng.uniform(-2, 2, size=width)
    apply = dict(none=lambda z: z, relu=lambda z: np.maximum(z, 0), tanh=np.tanh)[activation]
    # first half inside, second half outside
    classes = np.repeat([1.0, -1.0], len(points) // 2)

    def classify(x, apply):  # a random hidden layer; the output layer is solved for
        hidden = apply(np.vstack([points, x]) @ weights + biases)
        hidden = np.column_stack([hidden, np.ones(len(hidden))])
        known, new = hidden[: len(points)], hidden[len(points) :]
        gram = known.T @ known + 1e-3 * np.eye(width + 1)
        return new @ np.linalg.solve(gram, known.T @ classes)

    side = np.linspace(-3, 3, 31)
    grid = np.stack(np.meshgrid(side, side[::-1]), -1).reshape(-1, 2)
    surface = classify(grid, apply).reshape(31, 31)
    right = (classify(points, apply) * classes > 0).sum()
    straight = (classify(points, lambda z: z) * classes > 0).sum()
    return dict(
        surface=np.clip(surface, -1.5, 1.5),
        right=int(right),
        straight=int(straight),
        count=len(points),
    )


DECISION_BOUNDARY = Step(
    name="decision-boundary",
    title=Bilingual("Boundaries that bend", "会弯曲的决策边界"),
    claim=Bilingual(
        "To split points into two classes, a linear model can draw one straight line, however deep it is. With an "
        "activation function each hidden neuron adds a bend, and the boundary can close around a class.",
        "把点分成两类时，线性模型再深也只能画一条直线。有了激活函数，每个隐藏神经元都能添一道弯，"
        "边界可以把一类点圈起来。",
    ),
    task=Bilingual(
        "Drag the points. Set the activation to “none”: no straight line puts a ring outside and its middle inside. "
        "Then raise the width from 1 to 40 with ReLU.",
        "拖动这些点。把激活函数设为“无”：没有一条直线能把一圈点和中间的点分开。再用 ReLU，把宽度从 1 加到 40。",
    ),
    controls=(
        Choice("activation", Bilingual("activation function", "激活函数"), "relu", ACTIVATIONS),
        Slider("width", Bilingual("hidden neurons", "隐藏神经元个数"), 30, 1, 60, 1, whole=True),
        Numbers(
            "points",
            Bilingual("points", "点"),
            (
                (0.0, 0.3),
                (0.6, -0.3),
                (-0.5, -0.4),
                (-0.4, 0.8),
                (0.7, 0.7),
                (2.1, 0.4),
                (0.5, 2.2),
                (-1.9, 1.2),
                (-1.6, -1.7),
                (1.4, -1.9),
            ),
            -3,
            3,
            rows=POINTS,
        ),
    ),
    compute=compute_decision_boundary,
    pictures=(
        Drawing(
            Bilingual("the two classes and the boundary between them", "两类点和它们之间的边界"), "decision_boundary"
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "The network puts {right} of {count} points on the right side; without an activation it is {straight}.",
                "网络把 {count} 个点中的 {right} 个分对；没有激活函数时是 {straight} 个。",
            ),
            lambda result: result["right"] == result["count"] > result["straight"],
        ),
    ),
    evidence=(Evidence("activation", ("no-better", "curved")),),
)


def compute_universal_approximation(width: int, shape: str) -> Result:
    x = np.linspace(-3, 3, 241)
    peaks = np.exp(-4 * np.abs(x - 1)) - np.exp(-8 * (x + 1) ** 2)
    target = dict(wave=np.sin(2.5 * x), step=np.sign(x), peaks=peaks)[shape]

    # one hidden layer of ReLU neurons whose bends are spread evenly
    def fit(width):
        bends = np.linspace(-3, 3, width + 1)[:-1]
        hidden = np.column_stack([np.maximum(x[:, None] - bends, 0), np.ones_like(x)])
        gram = hidden.T @ hidden + 1e-9 * np.eye(width + 1)
        return hidden @ np.linalg.solve(gram, hidden.T @ target)

    widths = np.array([1, 2, 4, 8, 16, 32, 64])
    errors = np.array([np.abs(fit(n) - target).mean() for n in widths])
    output = fit(width)
    return dict(
        x=x,
        target=target,
        output=output,
        widths=widths,
        errors=errors,
        width=width,
        error=np.abs(output - target).mean(),
        straight=errors[0],
        widest=errors[-1],
    )


UNIVERSAL_APPROXIMATION = Step(
    name="universal-approximation",
    title=Bilingual("One wide layer draws any curve", "一层够宽，什么曲线都画得出"),
    claim=Bilingual(
        "A theorem says that one hidden layer can approximate every continuous function as closely as wanted, if it is "
        "wide enough and its activation is not linear. That is the reason to begin with a fully connected network.",
        "通用逼近定理：只要隐藏层足够宽、激活函数非线性，一层隐藏层就能以任意精度逼近任何连续函数。"
        "这是以全连接网络为起点的理由。",
    ),
    task=Bilingual(
        "Widen the layer and watch the curve close in. The step is not continuous: there the error shrinks, but never "
        "at the jump itself.",
        "把层加宽，看曲线怎样贴近目标。阶跃函数不连续：误差会变小，但在跳变的地方总是贴不上。",
    ),
    controls=(
        Slider("width", Bilingual("hidden neurons", "隐藏神经元个数"), 6, 1, 64, 1, whole=True),
        Choice(
            "shape",
            Bilingual("target", "目标"),
            "wave",
            (
                ("wave", Bilingual("wave", "波")),
                ("peaks", Bilingual("peaks", "尖峰")),
                ("step", Bilingual("step", "阶跃")),
            ),
        ),
    ),
    compute=compute_universal_approximation,
    pictures=(
        Lines(
            Bilingual("target and network", "目标与网络"),
            "x",
            (("target", Bilingual("target", "目标")), ("output", Bilingual("network", "网络"))),
            Bilingual("input", "输入"),
            Bilingual("output", "输出"),
        ),
        Lines(
            Bilingual("mean error by width", "平均误差与宽度"),
            "widths",
            (("errors", Bilingual("mean error", "平均误差")),),
            Bilingual("hidden neurons", "隐藏神经元个数"),
            Bilingual("mean error", "平均误差"),
            log_x=True,
            log_y=True,
            marker="width",
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "{width} neurons leave a mean error of {error:.3f}; 64 leave {widest:.4f}, one leaves {straight:.2f}.",
                "{width} 个神经元的平均误差是 {error:.3f}；64 个时是 {widest:.4f}，1 个时是 {straight:.2f}。",
            ),
            lambda result: result["widest"] < result["straight"] / 50,
        ),
    ),
    evidence=(Evidence("activation", ("wide", "falls")),),
)

COLUMNS = tuple(Bilingual(f"column {n}", f"第 {n} 列") for n in range(1, 7))


def compute_table_columns(first: int, second: int) -> Result:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 6))
    # depends on two columns, wherever they stand
    target = np.abs(rows[:, first - 1] - rows[:, second - 1])
    weights, biases = rng.normal(size=(6, 120)), rng.normal(size=120)

    def error(window):  # each hidden neuron sees `window` columns in a row
        near = (np.arange(6)[:, None] - np.arange(120)) % 6 < window
        hidden = np.maximum(rows @ (weights * near) + biases, 0)
        gram = hidden[:300].T @ hidden[:300] + np.eye(120)
        output = np.linalg.solve(gram, hidden[:300].T @ target[:300])
        rest = hidden[300:] @ output - target[300:]
        return (rest**2).mean() / max(target[300:].var(), 1e-9)

    errors = np.array([error(6), error(3), error(1)])
    distance = min(abs(first - second), 6 - abs(first - second))
    return dict(errors=errors, full=errors[0], windowed=errors[1], single=errors[2], distance=distance)


TABLE_COLUMNS = Step(
    name="table-columns",
    title=Bilingual("Tables: when nothing is known about the input", "表格：对输入一无所知的时候"),
    claim=Bilingual(
        "Images have neighbours, sentences have an order, graphs have edges. The columns of a table have none of "
        "these: any two may belong together. So each neuron has to try all of them, and full connection is the "
        "default.",
        "图像有相邻的像素，句子有先后，图有边。表格的各列没有这些结构，任意两列都可能有关系。"
        "于是只好让每个神经元把所有列都试一遍：全连接是默认的选择。",
    ),
    task=Bilingual(
        "The target depends on two columns of 400 made-up rows. Choose neighbours, then columns far apart, and look at "
        "the network that sees only three columns in a row.",
        "400 行虚构数据，目标取决于其中两列。先选相邻的两列，再选相隔很远的两列，看只能同时看到相邻三列的网络会怎样。",
    ),
    controls=(
        Slider("first", Bilingual("first column that matters", "起作用的第一列"), 1, 1, 6, 1, whole=True),
        Slider("second", Bilingual("second column that matters", "起作用的第二列"), 4, 1, 6, 1, whole=True),
    ),
    compute=compute_table_columns,
    pictures=(
        Bars(
            Bilingual("what is left unexplained on new rows (1: everything)", "在新的行上没能解释的部分（1 为全部）"),
            "errors",
            (
                Bilingual("all 6 columns", "全部 6 列"),
                Bilingual("3 neighbouring columns", "相邻 3 列"),
                Bilingual("1 column", "单独 1 列"),
            ),
            role="output",
            low=0,
            high=1,
        ),
    ),
    findings=(
        Finding(
            Bilingual(
                "The columns are {distance} apart. Fully connected leaves {full:.0%} unexplained, windows of three "
                "{windowed:.0%}.",
                "两列相距 {distance}。全连接有 {full:.0%} 没能解释，三列窗口有 {windowed:.0%}。",
            ),
            lambda result: result["full"] < 0.5 * result["windowed"],
        ),
    ),
    evidence=(Evidence("tables", ("linear", "order", "attention", "trees")),),
)
