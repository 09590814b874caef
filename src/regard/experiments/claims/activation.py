"""Experiment 15: layers without activation are one layer; with it, width buys what is wanted."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..comparing import accuracy, by_size, level, line, name_axes, nth, percent, rank_correlation, speaker
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import COLOURS, fit, panels, part, spread

CLAIM = Claim(
    number=15,
    name="activation",
    title=Both("What the activation function is for", "激活函数的作用"),
    claim=Both(
        "However deep, a network without activation is one linear layer; with activation it learns curved borders, "
        "and one hidden layer comes as near to a continuous function as one likes if it is wide enough.",
        "没有激活函数的网络再深也只是一个线性层；有了激活函数就能学会弯曲的边界，而且只要足够宽，"
        "一个隐藏层就能逼近任何连续函数。",
    ),
    setup=Both(
        "Two spiral arms of one and a half turns, networks of four hidden layers of 32, with and without activation, "
        "tested on new points. Then one hidden layer of growing width learns a curve on [−1, 1].",
        "两条各转一圈半的螺旋臂；四个宽 32 的隐藏层，有或没有激活函数，用新的点检验。"
        "另外用宽度递增的单隐藏层网络拟合 [−1, 1] 上的一条曲线。",
    ),
    threshold=Both(
        "Holds if (1) the deep linear network folded into one matrix differs by less than 1e-9 (relative) and is at "
        "most 2 points better than one linear layer, (2) every activation reaches 95 % on new points in the mean, "
        "(3) the curve's error at the largest width is at most a tenth of that at width 2 and falls with width "
        "(rank correlation ≤ −0.9). Limited if only (3) is missed. Fails otherwise.",
        "成立：（1）深层线性网络折成一个矩阵后相对误差小于 1e-9，且准确率至多比单个线性层高 2 个百分点；"
        "（2）每种激活函数在新点上的平均准确率达到 95 %；"
        "（3）最大宽度的误差至多为宽度 2 时的十分之一，且误差随宽度下降（秩相关 ≤ −0.9）。只差（3）为有条件成立，"
        "其余为不成立。",
    ),
)

KINDS: dict[str, type[nn.Module] | None] = {"deep linear": None, "relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
TURNS = 1.5


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    torch.manual_seed(seed)
    seeds = by_size(size, 1, 3, 8)
    runs = [spiral_run(size, seed * 1000 + n, nth(part(tell, 0, 0.5), n, seeds, f"spiral {n}")) for n in range(seeds)]
    names = runs[0]["accuracy"]
    return {
        "accuracy": {name: spread([run["accuracy"][name] for run in runs]) for name in names},
        "folded": max(run["folded"] for run in runs),
        "field": runs[0]["field"],
        "points": runs[0]["points"],
        **curve_runs(size, seed, part(tell, 0.5, 1.0, "curve")),
    }


def spiral_run(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """Every kind of network on one spiral."""
    torch.manual_seed(seed)
    points, labels = spiral(by_size(size, 200, 600))
    fresh, truth = spiral(2000)
    steps = by_size(size, 30, 700)
    nets = {"one linear layer": nn.Linear(2, 2).double()} | {name: deep(kind) for name, kind in KINDS.items()}
    for n, (name, net) in enumerate(nets.items()):
        fit(
            net,
            lambda net=net: nn.functional.cross_entropy(net(points), labels),
            steps,
            1e-2,
            nth(tell, n, len(nets), name),
            repeats=False,  # tried on an H200, a step of these float64 networks could not be recorded
        )
    with torch.no_grad():
        return {
            "accuracy": {name: accuracy(net(fresh), truth) for name, net in nets.items()},
            "folded": folding_error(nets["deep linear"], fresh),
            "field": {name: field(nets[name]) for name in ("deep linear", "relu")},
            "points": [
                [round(v, 3) for v in (*xy, float(one))]
                for xy, one in zip(points[:200].tolist(), labels[:200], strict=True)
            ],
        }


def spiral(count: int) -> tuple[Tensor, Tensor]:
    """Points `[count, 2]` on two arms, and which arm, `[count]`."""
    labels = torch.randint(2, (count,))
    along = torch.rand(count, dtype=torch.float64).sqrt()
    angle = 2 * math.pi * TURNS * along + math.pi * labels
    points = torch.stack([angle.cos(), angle.sin()], 1) * along[:, None]
    return points + 0.02 * torch.randn_like(points), labels


def deep(kind: type[nn.Module] | None, width: int = 32, layers: int = 4) -> nn.Sequential:
    """Linear layers with an activation between them, or with none."""
    sizes = [2, *[width] * layers, 2]
    made: list[nn.Module] = []
    for n, (before, after) in enumerate(pairwise(sizes)):
        made += [nn.Linear(before, after)] + ([kind()] if kind and n < layers else [])
    return nn.Sequential(*made).double()


def folding_error(net: nn.Module, x: Tensor) -> float:
    """How far the net is, relative to its output, from the one linear layer that its matrices multiply to."""
    weight, bias = torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for layer in (m for m in net.modules() if isinstance(m, nn.Linear)):
        weight, bias = layer.weight @ weight, layer.weight @ bias + layer.bias
    y = net(x)
    return ((x @ weight.T + bias - y).norm() / y.norm()).item()


def field(net: nn.Module, cells: int = 41) -> list[list[float]]:
    """The probability of the second arm on a square grid from −1.1 to 1.1."""
    side = torch.linspace(-1.1, 1.1, cells, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side).flip(1)
    share = net(grid).softmax(-1)[:, 1].reshape(cells, cells)
    return [[round(v, 2) for v in row] for row in share.tolist()]


def curve_runs(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """The error of one hidden layer by its width, and the curves of two of them."""
    widths = by_size(size, [2, 8, 32], [1, 2, 4, 8, 16, 32, 64, 128, 256])
    seeds, steps = by_size(size, 2, 3, 8), by_size(size, 40, 1500)
    x = torch.linspace(-1, 1, 256)[:, None]
    errors, curves = {}, {}
    for n, width in enumerate(widths):
        torch.manual_seed(seed * 1000 + width)
        net = Wide(seeds, width)
        fit(
            net, lambda net=net: (net(x) - curve(x)).square().mean(), steps, 1e-2, nth(tell, n, len(widths), str(width))
        )
        with torch.no_grad():
            y = net(x)
        errors[str(width)] = spread((y - curve(x)).square().mean((1, 2)).sqrt().tolist())
        curves[str(width)] = [round(v, 4) for v in y[0, ::4, 0].tolist()]
    shown = {str(w): curves[str(w)] for w in (2, 8, widths[-1]) if str(w) in curves}
    return {
        "widths": widths,
        "errors": errors,
        "curves": shown,
        "curve": [round(v, 4) for v in curve(x)[::4, 0].tolist()],
    }


def curve(x: Tensor) -> Tensor:
    return torch.sin(3 * math.pi * x) + 0.5 * torch.cos(7 * x) * x.abs()


class Wide(nn.Module):
    """As many networks of one hidden layer at once as there are seeds: [256, 1] → [seeds, 256, 1]."""

    def __init__(self, seeds: int, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(3 * torch.randn(seeds, 1, width))
        self.shift = nn.Parameter(3 * (2 * torch.rand(seeds, 1, width) - 1))
        self.down = nn.Parameter(torch.randn(seeds, width, 1) / width)
        self.bias = nn.Parameter(torch.zeros(seeds, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.up + self.shift).tanh() @ self.down + self.bias


def verdict(numbers: dict[str, Any]) -> Verdict:
    found = {name: one["mean"] for name, one in numbers["accuracy"].items()}
    straight, linear = found["one linear layer"], found["deep linear"]
    worst = min(found[name] for name in KINDS if name != "deep linear")
    errors = [numbers["errors"][str(w)]["mean"] for w in numbers["widths"]]
    two, last = numbers["errors"]["2"]["mean"], errors[-1]
    falls = rank_correlation(torch.tensor(numbers["widths"]).double(), torch.tensor(errors).double())
    one = numbers["folded"] < 1e-9 and linear <= straight + 0.02
    learned, wide = worst >= 0.95, last <= two / 10 and falls <= -0.9
    kind = "fails" if not (one and learned) else "holds" if wide else "limited"
    key = Both(
        f"spiral right: {percent(linear)} without activation, {percent(worst)} with",
        f"螺旋正确率：无激活 {percent(linear)}，有激活 {percent(worst)}",
    )
    return Verdict(kind, key, Both(
        f"Folded into one matrix the deep linear network differs by {numbers['folded']:.1e}; it gets "
        f"{percent(linear)} of "
        f"the spiral, one linear layer {percent(straight)}, the worst activation {percent(worst)}. The curve's error "
        "goes "
        f"from {two:.3g} (width 2) to {last:.3g} (width {numbers['widths'][-1]}), rank correlation with width "
        f"{falls:.2f}.",
        f"深层线性网络折成一个矩阵后相差 {numbers['folded']:.1e}；它在螺旋上的准确率为 {percent(linear)}，"
        f"单个线性层为 {percent(straight)}，"
        f"最差的激活函数为 {percent(worst)}。曲线误差从宽度 2 的 {two:.3g} 降到宽度 {numbers['widths'][-1]} 的 "
        f"{last:.3g}，与宽度的秩相关为 {falls:.2f}。",
    ))  # fmt: skip


def draw(numbers: dict[str, Any], language: Language) -> Any:
    say = speaker(language)
    title = say("Two spiral arms, and one hidden layer that grows", "两条螺旋臂，以及不断变宽的单隐藏层")
    with panels(language, 4, width=3.6) as (figure, (left, middle, fits, right)):
        figure.suptitle(title)
        names = {
            "deep linear": say("5 layers, no activation", "5 层，无激活函数"),
            "relu": say("5 layers, ReLU", "5 层，ReLU"),
        }
        for axes, kind in ((left, "deep linear"), (middle, "relu")):
            border(axes, numbers, kind)
            score = percent(numbers["accuracy"][kind]["mean"])
            name_axes(axes, f"{names[kind]}\n{say('new points right', '新点正确率')}: {score}", "x", "y")
        places = [-1 + 2 * 4 * n / 255 for n in range(len(numbers["curve"]))]
        fits.plot(places, numbers["curve"], color="#888888", linewidth=4, alpha=0.5, label=say("the curve", "目标曲线"))
        for n, (width, y) in enumerate(numbers["curves"].items()):
            look: dict[str, Any] = {"color": COLOURS[n], "linestyle": ("-", "--", ":")[n]}
            fits.plot(places, y, label=say(f"width {width}", f"宽度 {width}"), **look)
        name_axes(fits, say("One hidden layer (tanh)", "单隐藏层（tanh）"), "x", "f(x)")
        fits.set_ylim(-1.4, 2.4)
        fits.legend(fontsize=7, ncols=2, loc="upper left")
        errors = [numbers["errors"][str(w)] for w in numbers["widths"]]
        line(right, 0, numbers["widths"], errors, say("mean of seeds", "各随机种子的平均"))
        right.set(xscale="log", yscale="log")
        shown = numbers["widths"][::2]
        right.set_xticks(shown, [str(width) for width in shown])
        right.minorticks_off()
        level(right, numbers["errors"]["2"]["mean"] / 10, say("a tenth of width 2's", "宽度 2 误差的十分之一"))
        name_axes(
            right,
            say("Error against width", "误差与宽度"),
            say("hidden units", "隐藏单元数"),
            say("root mean square error", "均方根误差"),
        )
        right.legend(fontsize=7)
    return figure


def border(axes: Any, numbers: dict[str, Any], kind: str) -> None:
    """What the network says of every place, and the points it learned from."""
    axes.imshow(
        numbers["field"][kind], origin="lower", extent=(-1.1, 1.1, -1.1, 1.1), cmap="PuOr", vmin=0, vmax=1, alpha=0.7
    )
    for label, marker, colour in ((0.0, "o", "#7f3b08"), (1.0, "^", "#2d004b")):
        chosen = [(x, y) for x, y, one in numbers["points"] if one == label]
        axes.scatter(*zip(*chosen, strict=True), s=8, marker=marker, color=colour)
    axes.grid(False)
