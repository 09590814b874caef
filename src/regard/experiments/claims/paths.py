"""Paths between distant tokens, and operations by length and dimension: attention, recurrence, convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from ..experiment import Claim, Criterion, Measurements, Verdict, judge
from ..parameters import (
    NO_SETTINGS,
    Bilingual,
    Language,
    Parameter,
    Settings,
    Size,
    count,
    resolve_counts,
    resolve_settings,
)
from ..progress import ProgressCallback
from ..toolkit.figures import label_axes, line_style, set_length_ticks, subplots
from ..toolkit.profiling import median_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=24,
    name="paths",
    title=Bilingual("Paths and operations", "路径长度与计算量"),
    claim=Bilingual(
        "Between two tokens at distance L, information passes O(1) steps in attention, O(L) in a recurrent network and "
        "in a convolution, O(log L) in a dilated one. A layer of attention costs L²·d, a recurrent layer L·d²: attention "
        "is cheaper while L is smaller than d.",
        "相距 L 的两个词元之间，信息在注意力中经过 O(1) 步，在循环网络和卷积中经过 O(L) 步，在膨胀卷积中经过 O(log L) 步。"
        "一层注意力的计算量为 L²·d，一层循环网络为 L·d²：只要 L 小于 d，注意力更便宜。",
    ),
    setup=Bilingual(
        "Path: layers of attention or convolution (kernel 3) are added until something of the first token reaches the "
        "last output; for a GRU the longest chain of recurrent steps is counted in autograd's graph. Time: the softmax attention of one head (scores, softmax, mixing) and a GRU, forward, CPU time on "
        "one thread, over the length at fixed dim and over the dim at fixed length; exponents are slopes over the "
        "largest three sizes.",
        "路径：逐层增加注意力或卷积（核为 3），直到第一个词元的信息到达最后的输出；对 GRU，在自动求导的计算图中"
        "数出最长的循环步链。时间：单头 softmax 注意力（分数、softmax、加权求和）与 GRU，"
        "前向，单线程 CPU 时间，先固定维度改变长度，再固定长度改变维度；指数是最大三个规模上的斜率。",
    ),
    criteria=(
        Criterion(
            "attention-path",
            Bilingual(
                "The path of attention does not grow with the distance (exponent at most 0.1)",
                "注意力的路径不随距离增长（指数不高于 0.1）",
            ),
            "<=",
            0.1,
            core=True,
        ),
        Criterion(
            "recurrent-path",
            Bilingual(
                "That of recurrence grows linearly (exponent at least 0.9)", "循环网络的路径线性增长（指数不低于 0.9）"
            ),
            ">=",
            0.9,
        ),
        Criterion(
            "convolution-path",
            Bilingual(
                "So does the number of convolutional layers needed (exponent at least 0.9)",
                "所需的卷积层数也线性增长（指数不低于 0.9）",
            ),
            ">=",
            0.9,
        ),
        Criterion(
            "dilated-path",
            Bilingual(
                "With doubling dilation it grows like log L (one more layer per doubling, within 10 %)",
                "膨胀率倍增时按 log L 增长（每加倍多一层，误差 10% 以内）",
            ),
            "<=",
            1.1,
        ),
        Criterion(
            "attention-length",
            Bilingual(
                "The time of attention grows with L² (exponent at least 1.6)",
                "注意力的时间随 L² 增长（指数不低于 1.6）",
            ),
            ">=",
            1.6,
        ),
        Criterion(
            "attention-dim",
            Bilingual("and with d (exponent at most 1.3)", "并随 d 增长（指数不高于 1.3）"),
            "<=",
            1.3,
        ),
        Criterion(
            "recurrent-length",
            Bilingual(
                "The time of recurrence grows with L (exponent at most 1.3)",
                "循环网络的时间随 L 增长（指数不高于 1.3）",
            ),
            "<=",
            1.3,
        ),
        Criterion(
            "recurrent-dim",
            Bilingual("and with d² (exponent at least 1.6)", "并随 d² 增长（指数不低于 1.6）"),
            ">=",
            1.6,
        ),
        Criterion(
            "short",
            Bilingual(
                "For L far below d attention is faster (time ratio at most 1)",
                "L 远小于 d 时注意力更快（时间之比不高于 1）",
            ),
            "<=",
            1,
        ),
        Criterion(
            "long",
            Bilingual(
                "For L far above d it is slower (time ratio at least 1)", "L 远大于 d 时注意力更慢（时间之比不低于 1）"
            ),
            ">=",
            1,
        ),
    ),
)

TIMED = True
NETWORKS = {
    "attention": Bilingual("attention", "注意力"),
    "recurrent": Bilingual("recurrent (GRU)", "循环（GRU）"),
    "convolution": Bilingual("convolution, kernel 3", "卷积，核为 3"),
    "dilated": Bilingual("convolution, doubling dilation", "卷积，膨胀率倍增"),
}
DISTANCES: dict[Size, list[int]] = {
    "toy": [4, 8, 16],
    "usual": [4, 8, 16, 32, 64, 128],
    "full": [4, 8, 16, 32, 64, 128, 256],
}
LENGTHS: dict[Size, list[int]] = {
    "toy": [32, 64, 128],
    "usual": [256, 512, 1024, 2048, 4096],
    "full": [256, 512, 1024, 2048, 4096, 8192],
}
DIMS: dict[Size, list[int]] = {
    "toy": [8, 16, 32],
    "usual": [64, 128, 256, 512, 1024],
    "full": [64, 128, 256, 512, 1024, 2048],
}
SECONDS: dict[Size, float] = {"toy": 0.0, "usual": 1.0, "full": 4.0}
PARAMETERS = (
    count(
        "dim", Bilingual("dim while the length grows", "长度增长时的维度"), 4, 512, {"toy": 8, "usual": 64, "full": 64}
    ),
    count(
        "length",
        Bilingual("length while the dim grows", "维度增长时的长度"),
        4,
        2048,
        {"toy": 32, "usual": 128, "full": 128},
    ),
    Parameter(
        "budget",
        Bilingual("seconds per measurement", "每次测量的秒数"),
        0.0,
        30.0,
        SECONDS,
    ),
)
PATH_DIM = 4


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`path[network][distance]`; in `times`, seconds by network over the lengths and over the dims."""
    counts = resolve_counts(PARAMETERS, size, settings)
    seconds_per_call = resolve_settings(PARAMETERS, size, settings)["budget"]
    torch.manual_seed(seed)
    path = {name: [path_length(name, distance) for distance in DISTANCES[size]] for name in NETWORKS}
    progress(0.2, "time by length")
    points = [(length, counts["dim"]) for length in LENGTHS[size]]
    points += [(counts["length"], dim) for dim in DIMS[size]]
    seconds: list[dict[str, float]] = []
    with torch.no_grad():
        for n, (length, dim) in enumerate(points):
            progress(0.2 + 0.8 * n / len(points), f"{length} tokens, dim {dim}")
            seconds.append(median_times(layer_calls(length, dim), seconds_per_call))
    split = len(LENGTHS[size])
    return {
        "distances": DISTANCES[size],
        "path": path,
        "lengths": LENGTHS[size],
        "dims": DIMS[size],
        "dim": counts["dim"],
        "length": counts["length"],
        "times": {
            name: {"length": [row[name] for row in seconds[:split]], "dim": [row[name] for row in seconds[split:]]}
            for name in ("attention", "recurrent")
        },
    }


def path_length(name: str, distance: int) -> int:
    """The steps from the first token to the last output: layers, or recurrent steps in the chain of one layer."""
    if name == "recurrent":
        x, state = torch.randn(1, distance + 1, PATH_DIM), torch.zeros(1, PATH_DIM)
        cell, marks = nn.GRUCell(PATH_DIM, PATH_DIM), list[Node]()
        for n in range(distance + 1):
            state = cell(x[:, n], state)
            assert state.grad_fn is not None
            marks.append(state.grad_fn)
        return longest_chain(state, marks)
    first = torch.zeros(1, distance + 1, PATH_DIM, dtype=torch.float64)
    first[:, 0] = 1  # what comes from the first token
    layers = 0
    while layers <= distance and not first[0, -1].any():
        first, layers = add_layer(name, first, layers), layers + 1
    return layers


def add_layer(name: str, first: Tensor, n: int) -> Tensor:
    """What comes from the first token after the n-th layer: attention mixes all, a convolution its neighbours."""
    if name == "attention":
        tokens = first.shape[1]
        return torch.full((tokens, tokens), 1 / tokens, dtype=first.dtype).softmax(-1) @ first
    dilation = 2**n if name == "dilated" else 1
    weight = torch.full((PATH_DIM, PATH_DIM, 3), 1 / PATH_DIM, dtype=torch.float64)
    return nn.functional.conv1d(first.mT, weight, padding=dilation, dilation=dilation).mT


def longest_chain(state: Tensor, marks: Sequence[Node]) -> int:
    """How many of the marked operations lie on the longest chain behind a tensor."""
    depth: dict[Node, int] = {}
    marked = set(marks)
    last = state.grad_fn
    assert last is not None
    stack = [last]
    while stack:
        node = stack[-1]
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        waiting = [parent for parent in parents if parent not in depth]
        if waiting:
            stack.extend(waiting)
            continue
        depth[node] = (node in marked) + max((depth[parent] for parent in parents), default=0)
        stack.pop()
    return depth[last]


def layer_calls(length: int, dim: int) -> dict[str, Callable[[], object]]:
    """Attention of one head and a GRU over random tokens."""
    q, k, v = (torch.randn(length, dim) for _ in range(3))
    x, layer = torch.randn(1, length, dim), nn.GRU(dim, dim, batch_first=True)
    return {
        "attention": lambda: (q @ k.T / math.sqrt(dim)).softmax(-1) @ v,
        "recurrent": lambda: layer(x),
    }


def slope(x: Sequence[float], y: Sequence[float], points: int = 3) -> float:
    """The slope of log y over log x through the last points.

    >>> round(slope([1, 2, 4], [1, 4, 16]), 6)
    2.0
    """
    xs, ys = ([math.log(value) for value in values[-points:]] for values in (x, y))
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(xs, ys, strict=True)) / sum((a - mean_x) ** 2 for a in xs)


def verdict(numbers: Measurements) -> Verdict:
    path, times = numbers["path"], numbers["times"]
    growth = {name: slope(numbers["distances"], rows) for name, rows in path.items()}
    doublings = math.log2(numbers["distances"][-1] / numbers["distances"][0])
    per_doubling = (path["dilated"][-1] - path["dilated"][0]) / doublings
    exponents = {
        name: (slope(numbers["lengths"], rows["length"]), slope(numbers["dims"], rows["dim"]))
        for name, rows in times.items()
    }
    short = times["attention"]["dim"][-1] / times["recurrent"]["dim"][-1]
    long = times["attention"]["length"][-1] / times["recurrent"]["length"][-1]
    (length_a, dim_a), (length_r, dim_r) = exponents["attention"], exponents["recurrent"]
    far = numbers["distances"][-1]
    steps = {name: rows[-1] for name, rows in path.items()}
    measured = {
        "attention-path": (growth["attention"], Bilingual(f"{steps['attention']} step at distance {far}", f"距离 {far} 时 {steps['attention']} 步")),
        "recurrent-path": (growth["recurrent"], Bilingual(f"{steps['recurrent']} steps, exponent {growth['recurrent']:.2f}", f"{steps['recurrent']} 步，指数 {growth['recurrent']:.2f}")),
        "convolution-path": (growth["convolution"], Bilingual(f"{steps['convolution']} layers, exponent {growth['convolution']:.2f}", f"{steps['convolution']} 层，指数 {growth['convolution']:.2f}")),
        "dilated-path": (per_doubling, Bilingual(f"{steps['dilated']} layers, {per_doubling:.2f} per doubling", f"{steps['dilated']} 层，每加倍 {per_doubling:.2f} 层")),
        "attention-length": (length_a, Bilingual.same(f"L^{length_a:.2f}")),
        "attention-dim": (dim_a, Bilingual.same(f"d^{dim_a:.2f}")),
        "recurrent-length": (length_r, Bilingual.same(f"L^{length_r:.2f}")),
        "recurrent-dim": (dim_r, Bilingual.same(f"d^{dim_r:.2f}")),
        "short": (short, Bilingual(f"{short:.2f} at L = {numbers['length']}, d = {numbers['dims'][-1]}", f"L = {numbers['length']}、d = {numbers['dims'][-1]} 时 {short:.2f}")),
        "long": (long, Bilingual(f"{long:.2f} at L = {numbers['lengths'][-1]}, d = {numbers['dim']}", f"L = {numbers['lengths'][-1]}、d = {numbers['dim']} 时 {long:.2f}")),
    }  # fmt: skip
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"steps at distance {far}: attention {steps['attention']}, GRU {steps['recurrent']}, convolution "
            f"{steps['convolution']}, dilated {steps['dilated']}",
            f"距离 {far} 的步数：注意力 {steps['attention']}，GRU {steps['recurrent']}，卷积 {steps['convolution']}，"
            f"膨胀卷积 {steps['dilated']}",
        ),
        Bilingual(
            f"Steps from the first token to the last output at distance {far}: attention {steps['attention']}, GRU "
            f"{steps['recurrent']}, convolution {steps['convolution']}, with doubling dilation {steps['dilated']}. Time of "
            f"attention: L^{length_a:.2f}, d^{dim_a:.2f}; of the GRU: L^{length_r:.2f}, d^{dim_r:.2f}. Attention takes "
            f"{short:.2f} times as long as the GRU at L = {numbers['length']}, d = {numbers['dims'][-1]}, and {long:.2f} "
            f"times at L = {numbers['lengths'][-1]}, d = {numbers['dim']}.",
            f"距离 {far} 时，从第一个词元到最后的输出经过的步数：注意力 {steps['attention']}，GRU {steps['recurrent']}，"
            f"卷积 {steps['convolution']}，膨胀率倍增 {steps['dilated']}。注意力的时间：L^{length_a:.2f}、d^{dim_a:.2f}；"
            f"GRU：L^{length_r:.2f}、d^{dim_r:.2f}。注意力与 GRU 的时间之比：L = {numbers['length']}、"
            f"d = {numbers['dims'][-1]} 时 {short:.2f}，L = {numbers['lengths'][-1]}、d = {numbers['dim']} 时 {long:.2f}。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    with subplots(language, 3, width=4.0) as (figure, (left, middle, right)):
        for n, (name, label) in enumerate(NETWORKS.items()):
            left.plot(numbers["distances"], numbers["path"][name], label=label(language), **line_style(n))
        left.set_yscale("log", base=2)
        set_length_ticks(left, numbers["distances"])
        label_axes(
            left,
            "从一个词元到另一个的步数" if zh else "Steps from one token to another",
            "距离（词元）" if zh else "distance (tokens)",
            "层数或循环步数" if zh else "layers or recurrent steps",
        )
        left.legend()
        draw_times(middle, numbers, "length", language)
        draw_times(right, numbers, "dim", language)
        return figure


def draw_times(axes: Axes, numbers: Measurements, over: str, language: Language) -> None:
    """Time over the length at fixed dim, or over the dim at fixed length."""
    zh = language == "zh"
    x = numbers["lengths" if over == "length" else "dims"]
    for n, name in enumerate(("attention", "recurrent")):
        rows = [1000 * seconds for seconds in numbers["times"][name][over]]
        power = slope(x, rows)
        axes.plot(
            x,
            rows,
            label=f"{NETWORKS[name](language)}: {'L' if over == 'length' else 'd'}^{power:.2f}",
            **line_style(n),
        )
    axes.set_yscale("log")
    set_length_ticks(axes, x)
    fixed = f"d = {numbers['dim']}" if over == "length" else f"L = {numbers['length']}"
    title = f"{'时间' if zh else 'Time'}, {fixed}"
    label_axes(
        axes, title, ("长度 L" if zh else "length L") if over == "length" else ("维度 d" if zh else "dim d"), "CPU ms"
    )
    axes.legend()
