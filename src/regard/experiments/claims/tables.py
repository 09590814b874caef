"""Tables: a fully connected network beside a linear model, attention over the columns and boosted trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...nn import Stack, StackConfig
from ..experiment import Claim, Criterion, Measurements, Verdict, judge
from ..parameters import (
    NO_SETTINGS,
    SEEDS_TEXT,
    STEPS_TEXT,
    Bilingual,
    Language,
    Settings,
    Size,
    from_sizes,
    resolve_counts,
)
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.boosting import BoostedTrees
from ..toolkit.figures import draw_reference_line, label_axes, plot_bars, subplots
from ..toolkit.metrics import accuracy, format_percent, summarize
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=30,
    name="tables",
    title=Bilingual("Networks for tables", "用于表格的网络"),
    claim=Bilingual(
        "The columns of a table have neither order nor neighbours, so a fully connected network (MLP) is the natural "
        "choice: it is better than a linear model, does not depend on the order of the columns, and nothing more "
        "elaborate is needed.",
        "表格的各列没有次序，也没有相邻关系，所以全连接网络（MLP）是自然的选择：它比线性模型好，"
        "与列的次序无关，也不需要更复杂的模型。",
    ),
    setup=Bilingual(
        "Made-up rows of normal columns. The label depends on six of them: one linearly, two through the sign of their "
        "product, one through a band, two through thresholds that must both be passed; the others are irrelevant, and "
        "some noise is added. Rules about single columns suit trees. Logistic regression, an MLP (three hidden layers of 256, dropout 0.5), attention over the "
        "columns (each column a token with its own vector, two layers of four heads) and gradient boosting (600 trees of "
        "depth 4, written for this experiment) learn from the same rows and are tested on new ones; then all of it again "
        "with the columns in another order. The MLP has three times as many steps as attention, which takes about the "
        "same time. Width, depth, dropout, learning rates and the number and depth of the trees were chosen on other "
        "rows, drawn for that.",
        "虚构的数据，各列服从正态分布。标签取决于其中六列：一列线性起作用，两列通过乘积的符号，一列通过区间，"
        "两列须同时超过各自的阈值；其余各列无关，另加少量噪声。针对单列的规则对树有利。逻辑回归、MLP（三个 256 维隐藏层，dropout 0.5）、"
        "对列做注意力（每列是一个词元，有自己的向量；两层，四个头）和梯度提升（600 棵深度为 4 的树，为本实验所写）"
        "在同样的行上训练，用新的行测试；然后把列换一种次序，全部重做一遍。MLP 的训练步数是注意力的三倍，所用时间大致相同。"
        "宽度、深度、dropout、学习率以及树的数目和深度，都是在另外生成的数据上选定的。",
    ),
    criteria=(
        Criterion(
            "linear",
            Bilingual(
                "The MLP is at least 5 points better than logistic regression", "MLP 至少比逻辑回归好 5 个百分点"
            ),
            ">=",
            0.05,
            core=True,
        ),
        Criterion(
            "order",
            Bilingual(
                "Another order of the columns changes the MLP by at most 2 points",
                "列的次序改变时，MLP 的准确率最多变 2 个百分点",
            ),
            "<=",
            0.02,
        ),
        Criterion(
            "order-attention",
            Bilingual("and attention over the columns by at most 2 points", "对列做注意力时最多变 2 个百分点"),
            "<=",
            0.02,
        ),
        Criterion(
            "attention",
            Bilingual(
                "Attention over the columns is no better than the MLP (at most 1 point)",
                "对列做注意力不比 MLP 好（最多高 1 个百分点）",
            ),
            "<=",
            0.01,
        ),
        Criterion(
            "trees",
            Bilingual(
                "Boosted trees are no better than the MLP (at most 1 point)", "提升树不比 MLP 好（最多高 1 个百分点）"
            ),
            "<=",
            0.01,
        ),
    ),
)

MODELS = {
    "linear": Bilingual("logistic regression", "逻辑回归"),
    "mlp": Bilingual("MLP", "MLP"),
    "attention": Bilingual("attention over columns", "对列做注意力"),
    "trees": Bilingual("boosted trees", "提升树"),
}
ORDERS = {"given": Bilingual("columns as given", "原来的列序"), "permuted": Bilingual("columns permuted", "打乱的列序")}
RELEVANT = 6
BATCH = 128
HIDDEN = 256
LEARNING_RATE = 1e-2
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"rows": 60, "irrelevant": 2, "steps": 3, "seeds": 1, "trees": 3, "tested": 60},
    "usual": {"rows": 3000, "irrelevant": 6, "steps": 600, "seeds": 2, "trees": 600, "tested": 4000},
    "full": {"rows": 3000, "irrelevant": 6, "steps": 2000, "seeds": 8, "trees": 600, "tested": 10000},
}
PARAMETERS = (
    from_sizes(SIZES, "rows", Bilingual("training rows", "训练行数"), 16, 100000),
    from_sizes(SIZES, "irrelevant", Bilingual("irrelevant columns", "无关的列数"), 0, 64),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "seeds", SEEDS_TEXT, 1, 20),
)


class ColumnAttention(nn.Module):
    """Each column is a token, its value times a learned vector plus another; attention mixes them, their mean decides."""

    def __init__(self, columns: int, dim: int = 32) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(columns, dim) / dim**0.5)
        self.shift = nn.Parameter(torch.randn(columns, dim) / dim**0.5)
        self.stack = Stack(StackConfig(dim=dim, layers=2, heads=4))
        self.head = nn.Linear(dim, 2)

    def forward(self, rows: Tensor) -> Tensor:
        tokens = rows[..., None] * self.scale + self.shift  # [rows, columns, dim]
        return self.head(self.stack(tokens).mean(1))


def build_network(name: str, columns: int) -> nn.Module:
    if name == "linear":
        return nn.Linear(columns, 2)
    if name == "attention":
        return ColumnAttention(columns)
    layers: list[nn.Module] = []
    for inputs in (columns, HIDDEN, HIDDEN):
        layers += [nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, 2))


def sample_rows(count: int, irrelevant: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows `[count, RELEVANT + irrelevant]` and labels, 1 for about half of the rows."""
    rows = torch.randn(count, RELEVANT + irrelevant, generator=generator)
    noise = 0.3 * torch.randn(count, generator=generator)
    linear, first, second, band, left, right = rows[:, :RELEVANT].T
    score = linear + 1.2 * (first * second).sign()
    score = score + 1.2 * torch.where(band.abs() > 0.6745, 1.0, -1.0)  # outside the quartiles
    score = score + torch.where((left > -0.5449) & (right > -0.5449), 1.0, -1.0)  # both thresholds: half of the rows
    return rows, (score + noise > 0).long()


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`accuracy[model][order]`, summarized over seeds, and the accuracy of the more frequent label."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    jobs = [(n, name, order) for n in range(config["seeds"]) for name in MODELS for order in ORDERS]
    right: dict[str, dict[str, list[float]]] = {name: {order: [] for order in ORDERS} for name in MODELS}
    frequent: list[float] = []
    for m, (n, name, order) in enumerate(jobs):
        generator = seeded_generator(seed * 1000 + n)
        train, test = (sample_rows(config[key], config["irrelevant"], generator) for key in ("rows", "tested"))
        columns = torch.randperm(train[0].shape[1], generator=generator)
        if order == "permuted":
            train, test = ((rows[:, columns], labels) for rows, labels in (train, test))
        torch.manual_seed(seed * 1000 + n)
        job_progress = nth_subprogress(progress, m, len(jobs), f"{name}, {order}")
        run = run_trees if name == "trees" else run_network
        right[name][order].append(run(name, train, test, config, job_progress))
        if (name, order) == ("linear", "given"):
            ones = test[1].float().mean().item()
            frequent.append(max(ones, 1 - ones))
    return {
        "columns": RELEVANT + config["irrelevant"],
        "rows": config["rows"],
        "accuracy": {name: {order: summarize(values) for order, values in row.items()} for name, row in right.items()},
        "frequent": summarize(frequent),
    }


def run_network(
    name: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    config: dict[str, int],
    progress: ProgressCallback,
) -> float:
    """The accuracy of a trained network on the test rows."""
    rows, labels = train
    model = build_network(name, rows.shape[1])

    def loss() -> Tensor:
        chosen = torch.randint(len(rows), (BATCH,))
        return nn.functional.cross_entropy(model(rows[chosen]), labels[chosen])

    steps = config["steps"] * (3 if name == "mlp" else 1)  # its steps are shorter
    fit(model, loss, steps, LEARNING_RATE, progress)
    with torch.no_grad():
        return accuracy(model(test[0]), test[1])


def run_trees(
    name: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    config: dict[str, int],
    progress: ProgressCallback,
) -> float:
    """The accuracy of boosted trees on the test rows."""
    model = BoostedTrees(config["trees"], depth=4).fit(*(part.cpu().double().numpy() for part in train))
    progress(1.0, name)
    return float((model.predict(test[0].cpu().double().numpy()) == test[1].cpu().numpy()).mean())


def verdict(numbers: Measurements) -> Verdict:
    mean = {name: row["given"]["mean"] for name, row in numbers["accuracy"].items()}
    changed = {name: mean_change(row["given"]["all"], row["permuted"]["all"]) for name, row in numbers["accuracy"].items()}  # fmt: skip
    percent = {name: format_percent(value) for name, value in mean.items()}

    def against(name: str, other: str) -> Bilingual:
        return Bilingual(
            f"{percent[name]} against {percent[other]}", f"{percent[name]}，{MODELS[other].zh} {percent[other]}"
        )

    def points(value: float) -> Bilingual:
        return Bilingual(f"{100 * value:.1f} points", f"{100 * value:.1f} 个百分点")

    measured = {
        "linear": (mean["mlp"] - mean["linear"], against("mlp", "linear")),
        "order": (changed["mlp"], points(changed["mlp"])),
        "order-attention": (changed["attention"], points(changed["attention"])),
        "attention": (mean["attention"] - mean["mlp"], against("attention", "mlp")),
        "trees": (mean["trees"] - mean["mlp"], against("trees", "mlp")),
    }
    listed = [", ".join(f"{MODELS[name].en} {percent[name]}" for name in MODELS), "，".join(f"{MODELS[name].zh} {percent[name]}" for name in MODELS)]  # fmt: skip
    changes = [", ".join(f"{MODELS[name].en} {100 * changed[name]:.1f}" for name in MODELS), "，".join(f"{MODELS[name].zh} {100 * changed[name]:.1f}" for name in MODELS)]  # fmt: skip
    frequent = format_percent(numbers["frequent"]["mean"])
    return judge(
        CLAIM,
        measured,
        Bilingual(f"accuracy: {listed[0]}", f"准确率：{listed[1]}"),
        Bilingual(
            f"Accuracy on new rows ({numbers['rows']} rows of {numbers['columns']} columns to learn from; the more "
            f"frequent label: {frequent}): {listed[0]}. Points by which another order of the columns changes it: {changes[0]}.",
            f"在新的行上的准确率（{numbers['rows']} 行、{numbers['columns']} 列用于训练；总猜较多的标签：{frequent}）："
            f"{listed[1]}。列的次序改变时变化的百分点：{changes[1]}。",
        ),
    )


def mean_change(given: list[float], permuted: list[float]) -> float:
    """The mean absolute difference, seed by seed.

    >>> mean_change([1.0, 0.5], [0.5, 1.0])
    0.5
    """
    return sum(abs(a - b) for a, b in zip(given, permuted, strict=True)) / len(given)


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    with subplots(language, 1, width=7.0) as (figure, (axes,)):
        plot_bars(
            axes,
            [label(language) for label in MODELS.values()],
            {label(language): [numbers["accuracy"][name][order] for name in MODELS] for order, label in ORDERS.items()},
        )
        for n, name in enumerate(MODELS):
            value = numbers["accuracy"][name]["given"]["mean"]
            axes.annotate(format_percent(value), (n - 0.2, value), (0, 7), textcoords="offset points", ha="center", fontsize=8)  # fmt: skip
        draw_reference_line(axes, numbers["frequent"]["mean"], "总猜较多的标签" if zh else "the more frequent label")
        axes.set_ylim(0, 1.2)
        label_axes(
            axes,
            "新的行上的准确率，列序不变与打乱"
            if zh
            else "Accuracy on new rows, with the columns as given and permuted",
            "模型" if zh else "model",
            "准确率" if zh else "accuracy",
        )
        axes.legend(loc="upper left", ncols=3)
        return figure
