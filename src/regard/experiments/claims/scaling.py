"""Scores divided by √dim: saturation of softmax and its gradient by dim, and the effect on training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...nn import MultiHeadAttention
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import (
    NO_SETTINGS,
    SEEDS_TEXT,
    STEPS_TEXT,
    Parameter,
    Settings,
    constant,
    count,
    resolve_counts,
    resolve_settings,
)
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import line_style, subplots
from ..toolkit.key_value import KeyValueModel, train_key_value
from ..toolkit.metrics import summarize_losses
from ..toolkit.training import seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=4,
    name="scaling",
    title=Bilingual("Scores divided by √dim", "点积除以 √dim"),
    claim=Bilingual(
        "When dim is large, dot products are large, softmax is close to one-hot and its gradient vanishes; dividing "
        "by √dim prevents this and makes training stable.",
        "当 dim 很大时，点积会很大，softmax 接近 one-hot 分布，梯度消失；除以 √dim 可以防止这一点，使训练稳定。",
    ),
    setup=Bilingual(
        "Random q and k with standard deviation 1, 64 keys, dims 4 to 1024: the largest weight of a query and the "
        "Frobenius norm of the softmax Jacobian, with and without 1/√dim. Then one layer of attention with one head "
        "of dim 64 and 256 is trained to look up a value by its key, with the same data and initial weights. The "
        "projections are initialized so that q and k have standard deviation 1, as the argument assumes.",
        "随机的 q 与 k（标准差为 1），64 个键，dim 从 4 到 1024：分别在除与不除 √dim 时，"
        "测量一个查询的最大权重和 softmax 雅可比矩阵的 Frobenius 范数。之后，"
        "训练单头 dim 为 64 和 256 的一层注意力按键查值，数据与初始权重相同；投影的初始化使 q 与 k 的标准差为 1，"
        "与该论证的假设一致。",
    ),
    criteria=(
        Criterion(
            "one-hot",
            Bilingual(
                "At the largest dim without scaling the softmax is close to one-hot (mean largest weight at least 0.9)",
                "在最大的 dim 且不缩放时，softmax 接近 one-hot（最大权重平均不低于 0.9）",
            ),
            ">=",
            0.9,
            core=True,
        ),
        Criterion(
            "median-gradient",
            Bilingual(
                "The gradient of the median query vanishes without scaling (at most a tenth of the scaled one)",
                "不缩放时，居中的查询梯度消失（不超过缩放时的十分之一）",
            ),
            "<=",
            0.1,
        ),
        Criterion(
            "mean-gradient",
            Bilingual(
                "The mean gradient vanishes too (at most a tenth of the scaled one)",
                "平均梯度也消失（不超过缩放时的十分之一）",
            ),
            "<=",
            0.1,
        ),
        Criterion(
            "constant",
            Bilingual(
                "With scaling the largest weight hardly depends on dim (by a factor of at most 2)",
                "缩放后最大权重几乎不随 dim 变化（相差不超过 2 倍）",
            ),
            "<=",
            2,
            core=True,
        ),
        Criterion(
            "training",
            Bilingual(
                "Training is worse without scaling (mean loss at least 10 % higher at every trained dim)",
                "不缩放时训练更差（在每个训练的 dim 上平均损失至少高 10%）",
            ),
            ">=",
            1.1,
        ),
    ),
)

DIMS, KEYS, LEARNED_DIMS = (4, 16, 64, 256, 1024), 64, (64, 256)
ROWS = {"toy": 50, "usual": 1000, "full": 10000}
STEPS: dict[Size, int] = {"toy": 15, "usual": 300, "full": 3000}
SEEDS: dict[Size, int] = {"toy": 1, "usual": 3, "full": 5}
SCALINGS = ("scaled", "unscaled")
PARAMETERS = (
    count("keys", Bilingual("keys per query", "每个查询的键数"), 2, 1024, KEYS),
    Parameter("std", Bilingual("standard deviation of q and k", "q 与 k 的标准差"), 0.05, 4.0, constant(1.0)),
    count("steps", STEPS_TEXT, 1, 20000, STEPS),
    count("seeds", SEEDS_TEXT, 1, 20, SEEDS),
)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    generator, counts = seeded_generator(seed), resolve_counts(PARAMETERS, size, settings)
    std = resolve_settings(PARAMETERS, size, settings)["std"]
    saturation = [measure_saturation(dim, ROWS[size], generator, counts["keys"], std) for dim in DIMS]
    return {
        "dims": list(DIMS),
        "still": {name: [row[name] for row in saturation] for name in saturation[0]},
        "learning": {
            str(dim): run_training(dim, std, counts, seed, nth_subprogress(progress, n, 2))
            for n, dim in enumerate(LEARNED_DIMS)
        },
    }


def measure_saturation(
    dim: int, rows: int, generator: torch.Generator, keys: int = KEYS, std: float = 1.0
) -> dict[str, float]:
    """Largest weight and gradient norm for random scores, with and without scaling; overflow of exp."""
    q = torch.randn(rows, 1, dim, generator=generator)
    scores = std**2 * (q @ torch.randn(rows, dim, keys, generator=generator)).squeeze(1)  # [rows, keys]
    measured = {"overflow": scores.exp().isinf().any(1).float().mean().item()}
    for name, weights in (("unscaled", scores.softmax(1)), ("scaled", (scores / math.sqrt(dim)).softmax(1))):
        measured[f"peak, {name}"] = weights.amax(1).mean().item()
        sizes = softmax_jacobian_norm(weights.double())
        measured[f"gradient, {name}"], measured[f"median, {name}"] = sizes.mean().item(), sizes.median().item()
    return measured


def softmax_jacobian_norm(weights: Tensor) -> Tensor:
    """‖diag(w) − w wᵀ‖, which is √(Σw² − 2Σw³ + (Σw²)²), of each row."""
    squares = weights.square().sum(1)
    return (squares - 2 * weights.pow(3).sum(1) + squares.square()).clamp(min=0).sqrt()


def run_training(dim: int, std: float, counts: dict[str, int], seed: int, progress: ProgressCallback) -> Measurements:
    """Training losses with and without scaling, summarized over seeds."""
    losses: dict[str, list[list[float]]] = {name: [] for name in SCALINGS}
    runs = 2 * counts["seeds"]
    for n in range(runs):
        name = SCALINGS[n % 2]
        losses[name].append(
            train_lookup(
                dim, name, std, counts["steps"], seed + n // 2, nth_subprogress(progress, n, runs, f"{dim}, {name}")
            )
        )
    return {name: summarize_losses(curves) for name, curves in losses.items()}


def train_lookup(dim: int, scaling: str, std: float, steps: int, seed: int, progress: ProgressCallback) -> list[float]:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(dim, 1, score="Dot()" if scaling == "scaled" else "Dot(scale=1.0)")
    model = KeyValueModel(init_variance(layer, std), dim)
    return train_key_value(model, steps, 1e-3, seed, progress)


def init_variance(layer: MultiHeadAttention, std: float = 1.0) -> MultiHeadAttention:
    """Initialize the projections so that q and k have this deviation for tokens of variance 2 (key plus value)."""
    for projection in (layer.q, layer.k):
        nn.init.normal_(projection.weight, std=std * (2 * projection.weight.shape[1]) ** -0.5)
    return layer


def verdict(numbers: Measurements) -> Verdict:
    saturation = numbers["still"]
    peak, scaled = saturation["peak, unscaled"][-1], saturation["peak, scaled"]
    gradient = saturation["gradient, unscaled"][-1] / saturation["gradient, scaled"][-1]
    median = saturation["median, unscaled"][-1] / saturation["median, scaled"][-1]
    ratios = {
        dim: training["unscaled"]["mean loss"]["mean"] / training["scaled"]["mean loss"]["mean"]
        for dim, training in numbers["learning"].items()
    }
    worst, factor = min(ratios.values()), max(scaled) / min(scaled)
    losses = ", ".join(f"{ratio:.1f}× (dim {dim})" for dim, ratio in ratios.items())
    measured = {
        "one-hot": (peak, Bilingual(f"{peak:.2f} (scaled {scaled[-1]:.2f})", f"{peak:.2f}（缩放时 {scaled[-1]:.2f}）")),
        "median-gradient": (median, Bilingual.same(f"{median:.2f}")),
        "mean-gradient": (gradient, Bilingual.same(f"{gradient:.2f}")),
        "constant": (factor, Bilingual.same(f"{factor:.2f}×")),
        "training": (worst, Bilingual(f"loss {losses}", f"损失 {losses}")),
    }
    english = ", ".join(f"{ratio:.2f} times (dim {dim})" for dim, ratio in ratios.items())
    chinese = "，".join(f"{ratio:.2f} 倍（dim {dim}）" for dim, ratio in ratios.items())
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"largest weight at dim 1024: {peak:.2f} unscaled, {scaled[-1]:.2f} scaled",
            f"dim 1024 时的最大权重：不缩放 {peak:.2f}，缩放 {scaled[-1]:.2f}",
        ),
        Bilingual(
            f"At dim 1024 without scaling the largest weight is {peak:.2f} (scaled {scaled[-1]:.2f}) and the gradient "
            f"{gradient:.2f} of the scaled one on average, {median:.2f} in the median: most queries have almost none, "
            f"a few with two competing keys have a large one. The mean training loss without scaling is {english} that with scaling. "
            "A softmax that does not subtract the largest score first would overflow in "
            f"{saturation['overflow'][-1]:.0%} of the queries; all implementations subtract it.",
            f"dim 为 1024 且不缩放时，最大权重为 {peak:.2f}（缩放时 {scaled[-1]:.2f}），"
            f"梯度平均是缩放时的 {gradient:.2f}，中位数是 {median:.2f}：多数查询几乎没有梯度，少数有两个分数接近的键的查询仍有。"
            f"训练中不缩放的平均损失是缩放时的 {chinese}。若 softmax 不先减去最大分数，"
            f"会有 {saturation['overflow'][-1]:.0%} 的查询溢出；"
            "实际的实现都会先减去最大值。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    with subplots(language, 3, width=4.1) as (figure, axes):
        titles = (
            ("最大权重", "softmax 梯度的范数")
            if zh
            else ("Largest weight of a query", "Size of the softmax's gradient")
        )
        units = ("权重（0–1）", "‖∂权重/∂分数‖") if zh else ("weight (0–1)", "‖d weights / d scores‖")
        for panel, name, title, unit in zip(axes, ("peak", "gradient"), titles, units, strict=False):
            for n, scaling in enumerate(SCALINGS):
                panel.plot(
                    numbers["dims"],
                    numbers["still"][f"{name}, {scaling}"],
                    label=scaling_label(scaling, zh),
                    **line_style(n),
                )
            panel.set_xscale("log", base=2)
            panel.set_ylim(bottom=0)
            panel.set_xlabel("dim")
            panel.set_ylabel(unit)
            panel.set_title(title)
            panel.legend()
        draw_training(axes[2], numbers["learning"], zh)
        return figure


def scaling_label(scaling: str, zh: bool) -> str:
    if zh:
        return "除以 √dim" if scaling == "scaled" else "不缩放"
    return "divided by √dim" if scaling == "scaled" else "not scaled"


def draw_training(axes: Axes, learning: Measurements, zh: bool) -> None:
    """Loss by training progress, one line for each dim and scaling."""
    for n, (dim, scaling) in enumerate((dim, scaling) for dim in learning for scaling in SCALINGS):
        curve = learning[dim][scaling]["curve"]
        percent = [100 * (at + 0.5) / len(curve) for at in range(len(curve))]
        axes.plot(percent, curve, label=f"dim {dim}, {scaling_label(scaling, zh)}", markevery=10, **line_style(n))
    axes.set_ylim(0, 3.4)
    axes.set_xlabel("训练进度（%）" if zh else "training progress (%)")
    axes.set_ylabel("损失（nat）" if zh else "loss (nats)")
    axes.set_title("按键查值" if zh else "Key-value lookup")
    axes.legend()
