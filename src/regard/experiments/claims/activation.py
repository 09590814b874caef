"""Activation functions: a deep network without them is one linear layer; with them, error falls with width."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...tasks.metrics.rank_correlation import rank_correlation
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import NO_SETTINGS, SEEDS_TEXT, Parameter, Settings, constant, count, resolve_counts, resolve_settings
from ..progress import ProgressCallback, nth_subprogress, subprogress
from ..toolkit.figures import COLOURS, draw_reference_line, label_axes, localizer, plot_summaries, subplots
from ..toolkit.metrics import accuracy, format_percent, summarize
from ..toolkit.training import choose_by_size, fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=15,
    name="activation",
    title=Bilingual("Activation functions", "激活函数的作用"),
    claim=Bilingual(
        "A network without activation functions is one linear layer, however deep it is. With activation functions "
        "it learns curved decision boundaries, and one hidden layer approximates any continuous function if it is "
        "wide enough.",
        "没有激活函数的网络再深也只是一个线性层；有了激活函数才能学到弯曲的决策边界，并且只要足够宽，"
        "一个隐藏层就能逼近任何连续函数。",
    ),
    setup=Bilingual(
        "Classification of two spiral arms of one and a half turns with networks of four hidden layers of width 32, "
        "with and without activation, tested on new points. Also, regression of a curve on [−1, 1] with one hidden "
        "layer of increasing width.",
        "用四个宽 32 的隐藏层对两条各转一圈半的螺旋臂分类，有或没有激活函数，在新的点上测试。"
        "另外用宽度递增的单隐藏层网络拟合 [−1, 1] 上的一条曲线。",
    ),
    criteria=(
        Criterion(
            "one-matrix",
            Bilingual(
                "A deep network without activation is one matrix (relative difference below 1e-9)",
                "没有激活函数的深层网络就是一个矩阵（相对误差小于 1e-9）",
            ),
            "<=",
            1e-9,
            core=True,
        ),
        Criterion(
            "no-better",
            Bilingual(
                "It classifies at most 2 points better than one linear layer", "它的准确率最多比单个线性层高 2 个百分点"
            ),
            "<=",
            0.02,
            core=True,
        ),
        Criterion(
            "curved",
            Bilingual(
                "With any of the activations the spiral is learned (at least 95 %)",
                "有任一种激活函数都能学会螺旋（不低于 95%）",
            ),
            ">=",
            0.95,
            core=True,
        ),
        Criterion(
            "wide",
            Bilingual(
                "The error of the curve at the largest width is at most a tenth of that at width 2",
                "最大宽度的曲线误差不超过宽度 2 时的十分之一",
            ),
            "<=",
            0.1,
        ),
        Criterion(
            "falls",
            Bilingual(
                "The error falls with width (rank correlation at most −0.9)", "误差随宽度下降（秩相关不高于 −0.9）"
            ),
            "<=",
            -0.9,
        ),
    ),
)

ACTIVATIONS: dict[str, type[nn.Module] | None] = {
    "deep linear": None,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
}
TURNS = 1.5
PARAMETERS = (
    Parameter("turns", Bilingual("turns of the spiral", "螺旋的圈数"), 0.1, 4.0, constant(TURNS)),
    count("width", Bilingual("hidden units per layer", "每层的隐藏单元数"), 1, 256, 32),
    count(
        "steps",
        Bilingual("training steps on the spiral", "螺旋上的训练步数"),
        1,
        20000,
        {"toy": 30, "usual": 700, "full": 700},
    ),
    count("seeds", SEEDS_TEXT, 1, 20, {"toy": 1, "usual": 3, "full": 8}),
)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    torch.manual_seed(seed)
    counts = resolve_counts(PARAMETERS, size, settings)
    turns = resolve_settings(PARAMETERS, size, settings)["turns"]
    seeds = counts["seeds"]
    runs = [
        run_spiral(
            size,
            counts,
            turns,
            seed * 1000 + n,
            nth_subprogress(subprogress(progress, 0, 0.5), n, seeds, f"spiral {n}"),
        )
        for n in range(seeds)
    ]
    names = runs[0]["accuracy"]
    return {
        "accuracy": {name: summarize([run["accuracy"][name] for run in runs]) for name in names},
        "folded": max(run["folded"] for run in runs),
        "field": runs[0]["field"],
        "points": runs[0]["points"],
        **run_curve(size, seed, subprogress(progress, 0.5, 1.0, "curve")),
    }


def run_spiral(size: Size, counts: dict[str, int], turns: float, seed: int, progress: ProgressCallback) -> Measurements:
    """Train every network on one spiral and test it on new points."""
    torch.manual_seed(seed)
    points, labels = sample_spiral(choose_by_size(size, 200, 600), turns)
    test_points, test_labels = sample_spiral(2000, turns)
    nets = {"one linear layer": nn.Linear(2, 2).double()} | {
        name: build_mlp(activation, counts["width"]) for name, activation in ACTIVATIONS.items()
    }
    for n, (name, net) in enumerate(nets.items()):
        fit(
            net,
            lambda net=net: nn.functional.cross_entropy(net(points), labels),
            counts["steps"],
            1e-2,
            nth_subprogress(progress, n, len(nets), name),
            cuda_graph=False,  # on an H200 a step of these float64 networks could not be captured
        )
    with torch.no_grad():
        return {
            "accuracy": {name: accuracy(net(test_points), test_labels) for name, net in nets.items()},
            "folded": folding_error(nets["deep linear"], test_points),
            "field": {name: probability_grid(nets[name]) for name in ("deep linear", "relu")},
            "points": [
                [round(v, 3) for v in (*xy, float(label))]
                for xy, label in zip(points[:200].tolist(), labels[:200], strict=True)
            ],
        }


def sample_spiral(count: int, turns: float = TURNS) -> tuple[Tensor, Tensor]:
    """Points `[count, 2]` on two spiral arms and the arm of each, `[count]`."""
    labels = torch.randint(2, (count,))
    along = torch.rand(count, dtype=torch.float64).sqrt()
    angle = 2 * math.pi * turns * along + math.pi * labels
    points = torch.stack([angle.cos(), angle.sin()], 1) * along[:, None]
    return points + 0.02 * torch.randn_like(points), labels


def build_mlp(activation: type[nn.Module] | None, width: int = 32, layers: int = 4) -> nn.Sequential:
    """An MLP; without an activation if it is None."""
    sizes = [2, *[width] * layers, 2]
    modules: list[nn.Module] = []
    for n, (inputs, outputs) in enumerate(pairwise(sizes)):
        modules += [nn.Linear(inputs, outputs)] + ([activation()] if activation and n < layers else [])
    return nn.Sequential(*modules).double()


def folding_error(net: nn.Module, x: Tensor) -> float:
    """The relative error between the network and the product of its weight matrices."""
    weight, bias = torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for layer in (m for m in net.modules() if isinstance(m, nn.Linear)):
        weight, bias = layer.weight @ weight, layer.weight @ bias + layer.bias
    y = net(x)
    return ((x @ weight.T + bias - y).norm() / y.norm()).item()


def probability_grid(net: nn.Module, cells: int = 41) -> list[list[float]]:
    """The probability of the second arm on a square grid from −1.1 to 1.1."""
    side = torch.linspace(-1.1, 1.1, cells, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side).flip(1)
    probability = net(grid).softmax(-1)[:, 1].reshape(cells, cells)
    return [[round(v, 2) for v in row] for row in probability.tolist()]


def run_curve(size: Size, seed: int, progress: ProgressCallback) -> Measurements:
    """The error of one hidden layer by its width, and some fitted curves."""
    widths = choose_by_size(size, [2, 8, 32], [1, 2, 4, 8, 16, 32, 64, 128, 256])
    seeds, steps = choose_by_size(size, 2, 3, 8), choose_by_size(size, 40, 1500)
    x = torch.linspace(-1, 1, 256)[:, None]
    errors, curves = {}, {}
    for n, width in enumerate(widths):
        torch.manual_seed(seed * 1000 + width)
        net = ParallelMlps(seeds, width)
        fit(
            net,
            lambda net=net: (net(x) - target_curve(x)).square().mean(),
            steps,
            1e-2,
            nth_subprogress(progress, n, len(widths), str(width)),
        )
        with torch.no_grad():
            y = net(x)
        errors[str(width)] = summarize((y - target_curve(x)).square().mean((1, 2)).sqrt().tolist())
        curves[str(width)] = [round(v, 4) for v in y[0, ::4, 0].tolist()]
    drawn_curves = {str(w): curves[str(w)] for w in (2, 8, widths[-1]) if str(w) in curves}
    return {
        "widths": widths,
        "errors": errors,
        "curves": drawn_curves,
        "curve": [round(v, 4) for v in target_curve(x)[::4, 0].tolist()],
    }


def target_curve(x: Tensor) -> Tensor:
    return torch.sin(3 * math.pi * x) + 0.5 * torch.cos(7 * x) * x.abs()


class ParallelMlps(nn.Module):
    """One network of one hidden layer for each seed, computed together: [256, 1] → [seeds, 256, 1]."""

    def __init__(self, seeds: int, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(3 * torch.randn(seeds, 1, width))
        self.shift = nn.Parameter(3 * (2 * torch.rand(seeds, 1, width) - 1))
        self.down = nn.Parameter(torch.randn(seeds, width, 1) / width)
        self.bias = nn.Parameter(torch.zeros(seeds, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.up + self.shift).tanh() @ self.down + self.bias


def verdict(numbers: Measurements) -> Verdict:
    accuracies = {name: summary["mean"] for name, summary in numbers["accuracy"].items()}
    straight, linear = accuracies["one linear layer"], accuracies["deep linear"]
    worst = min(accuracies[name] for name in ACTIVATIONS if name != "deep linear")
    errors = [numbers["errors"][str(w)]["mean"] for w in numbers["widths"]]
    two, last = numbers["errors"]["2"]["mean"], errors[-1]
    falls = rank_correlation(torch.tensor(numbers["widths"]).double(), torch.tensor(errors).double())
    measured = {
        "one-matrix": (numbers["folded"], Bilingual.same(f"{numbers['folded']:.0e}")),
        "no-better": (
            linear - straight,
            Bilingual(
                f"{format_percent(linear)} against {format_percent(straight)}",
                f"{format_percent(linear)}，单层 {format_percent(straight)}",
            ),
        ),
        "curved": (worst, Bilingual(f"{format_percent(worst)} at worst", f"最低 {format_percent(worst)}")),
        "wide": (last / two, Bilingual(f"{last:.3g} against {two:.3g}", f"{last:.3g}，宽度 2 时 {two:.3g}")),
        "falls": (falls, Bilingual.same(f"{falls:.2f}")),
    }
    key = Bilingual(
        f"accuracy on the spiral: {format_percent(linear)} without activation, {format_percent(worst)} with",
        f"螺旋上的准确率：无激活 {format_percent(linear)}，有激活 {format_percent(worst)}",
    )
    return judge(CLAIM, measured, key, Bilingual(
        f"Multiplied out to one matrix, the deep linear network differs by {numbers['folded']:.1e}; its accuracy is "
        f"{format_percent(linear)} on "
        f"the spiral, that of one linear layer {format_percent(straight)}, of the worst activation {format_percent(worst)}. The curve's error "
        "falls "
        f"from {two:.3g} (width 2) to {last:.3g} (width {numbers['widths'][-1]}), rank correlation with width "
        f"{falls:.2f}.",
        f"深层线性网络乘成一个矩阵后相差 {numbers['folded']:.1e}；它在螺旋上的准确率为 {format_percent(linear)}，"
        f"单个线性层为 {format_percent(straight)}，"
        f"最差的激活函数为 {format_percent(worst)}。曲线误差从宽度 2 的 {two:.3g} 降到宽度 {numbers['widths'][-1]} 的 "
        f"{last:.3g}，与宽度的秩相关为 {falls:.2f}。",
    ))  # fmt: skip


def draw(numbers: Measurements, language: Language) -> Figure:
    tr = localizer(language)
    title = tr("Two spiral arms, and one hidden layer of increasing width", "两条螺旋臂，以及不断变宽的单隐藏层")
    with subplots(language, 4, width=3.6) as (figure, (left, middle, fits, right)):
        figure.suptitle(title)
        names = {
            "deep linear": tr("5 layers, no activation", "5 层，无激活函数"),
            "relu": tr("5 layers, ReLU", "5 层，ReLU"),
        }
        for axes, name in ((left, "deep linear"), (middle, "relu")):
            draw_decision_boundary(axes, numbers, name)
            score = format_percent(numbers["accuracy"][name]["mean"])
            label_axes(axes, f"{names[name]}\n{tr('accuracy on new points', '新点上的准确率')}: {score}", "x", "y")
        x = [-1 + 2 * 4 * n / 255 for n in range(len(numbers["curve"]))]
        fits.plot(x, numbers["curve"], color="#888888", linewidth=4, alpha=0.5, label=tr("target curve", "目标曲线"))
        for n, (width, y) in enumerate(numbers["curves"].items()):
            label = tr(f"width {width}", f"宽度 {width}")
            fits.plot(x, y, label=label, color=COLOURS[n], linestyle=("-", "--", ":")[n])
        label_axes(fits, tr("One hidden layer (tanh)", "单隐藏层（tanh）"), "x", "f(x)")
        fits.set_ylim(-1.4, 2.4)
        fits.legend(fontsize=7, ncols=2, loc="upper left")
        errors = [numbers["errors"][str(w)] for w in numbers["widths"]]
        plot_summaries(right, 0, numbers["widths"], errors, tr("mean over seeds", "各随机种子的平均"))
        right.set(xscale="log", yscale="log")
        ticks = numbers["widths"][::2]
        right.set_xticks(ticks, [str(width) for width in ticks])
        right.minorticks_off()
        draw_reference_line(
            right, numbers["errors"]["2"]["mean"] / 10, tr("a tenth of the error at width 2", "宽度 2 误差的十分之一")
        )
        label_axes(
            right,
            tr("Error by width", "误差与宽度"),
            tr("hidden units", "隐藏单元数"),
            tr("root mean square error", "均方根误差"),
        )
        right.legend(fontsize=7)
    return figure


def draw_decision_boundary(axes: Axes, numbers: Measurements, name: str) -> None:
    """The predicted probability on the plane, and the training points."""
    axes.imshow(
        numbers["field"][name], origin="lower", extent=(-1.1, 1.1, -1.1, 1.1), cmap="PuOr", vmin=0, vmax=1, alpha=0.7
    )
    for label, marker, colour in ((0.0, "o", "#7f3b08"), (1.0, "^", "#2d004b")):
        points = [(x, y) for x, y, arm in numbers["points"] if arm == label]
        axes.scatter(*zip(*points, strict=True), s=8, marker=marker, color=colour)
    axes.grid(False)
