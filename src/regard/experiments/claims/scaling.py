"""Why scores are divided by √dim: what softmax and its gradient do as dim grows, and what it does to learning."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ...nn import MultiHeadAttention
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import drawing, panels, part, style, training_of
from ..lookup import Lookup, learn_lookup

CLAIM = Claim(
    number=4,
    name="scaling",
    title=Both("Scores divided by √dim", "点积除以 √dim"),
    claim=Both(
        "When dim is large, dot products are large, softmax comes close to one-hot and its gradient vanishes; dividing "
        "by √dim prevents it, and training becomes stable.",
        "当 dim 很大时，点积会很大，softmax 接近 one-hot 分布，梯度消失；除以 √dim 可以防止这一点，使训练稳定。",
    ),
    setup=Both(
        "Random q and k with numbers of spread 1, 64 keys, dims 4 to 1024: the largest weight of a query, and the "
        "size of "
        "the softmax's Jacobian (Frobenius), with and without 1/√dim. Then one layer of attention with one head of "
        "dim 64 "
        "and 256 learns to look up a value by its key, with the same data and first weights. The projections begin "
        "such "
        "that q and k have numbers of spread 1, as the argument supposes.",
        "随机的 q 与 k（各数标准差为 1），64 个键，dim 从 4 到 1024：分别在除与不除 √dim 时，测量一个查询的最大权重和 "
        "softmax 的雅可比矩阵大小（Frobenius 范数）。之后，单头 dim 为 64 和 256 的一层注意力学习按键查值，"
        "数据与初始权重相同；"
        "投影的初始值使 q 与 k 各数的标准差为 1，正如该论证所假设的。",
    ),
    threshold=Both(
        "Holds if at dim 1024 without scaling the largest weight is at least 0.9 on average and the gradient at most a "
        "tenth of the scaled one's, the scaled one's largest weight at all dims lies within a factor of 2, and at "
        "every "
        "trained dim the mean loss over training (all seeds) is at least 10 % higher without scaling. Limited if only "
        "the part about training is missed. Fails otherwise.",
        "若 dim 为 1024 且不缩放时，最大权重平均不低于 0.9，梯度至多为缩放时的十分之一，缩放后的最大权重在各 dim "
        "之间相差不超过 2 倍，且在每个训练的 dim 上，不缩放时整个训练过程的平均损失（所有随机种子）至少高 10%，则成立。"
        "若只有训练一条不满足，则有条件成立。否则不成立。",
    ),
)

DIMS, KEYS, LEARNED_DIMS = (4, 16, 64, 256, 1024), 64, (64, 256)
ROWS = {"toy": 50, "usual": 1000, "full": 10000}
STEPS = {"toy": 15, "usual": 300, "full": 3000}
SEEDS = {"toy": 1, "usual": 3, "full": 5}
KINDS = ("scaled", "unscaled")


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    generator = drawing(seed)
    still = [saturation(dim, ROWS[size], generator) for dim in DIMS]
    return {
        "dims": list(DIMS),
        "still": {name: [one[name] for one in still] for name in still[0]},
        "learning": {
            str(dim): curves(dim, size, seed, part(tell, n / 2, (n + 1) / 2)) for n, dim in enumerate(LEARNED_DIMS)
        },
    }


def saturation(dim: int, rows: int, generator: torch.Generator) -> dict[str, float]:
    """Largest weight and size of the gradient of random scores, with and without scaling; overflow of a plain exp."""
    q = torch.randn(rows, 1, dim, generator=generator)
    scores = (q @ torch.randn(rows, dim, KEYS, generator=generator)).squeeze(1)  # [rows, keys]
    found = {"overflow": scores.exp().isinf().any(1).float().mean().item()}
    for name, weights in (("unscaled", scores.softmax(1)), ("scaled", (scores / math.sqrt(dim)).softmax(1))):
        found[f"peak, {name}"] = weights.amax(1).mean().item()
        sizes = jacobian_size(weights.double())
        found[f"gradient, {name}"], found[f"median, {name}"] = sizes.mean().item(), sizes.median().item()
    return found


def jacobian_size(weights: Tensor) -> Tensor:
    """‖diag(w) − w wᵀ‖, which is √(Σw² − 2Σw³ + (Σw²)²), of each row."""
    squares = weights.square().sum(1)
    return (squares - 2 * weights.pow(3).sum(1) + squares.square()).clamp(min=0).sqrt()


def curves(dim: int, size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """The losses while learning, with and without scaling: a curve of all seeds' means, and the mean of each seed."""
    losses: dict[str, list[list[float]]] = {name: [] for name in KINDS}
    count = 2 * SEEDS[size]
    for n in range(count):
        name = KINDS[n % 2]
        losses[name].append(
            learn(dim, name, STEPS[size], seed + n // 2, part(tell, n / count, (n + 1) / count, f"{dim}, {name}"))
        )
    return {name: training_of(held) for name, held in losses.items()}


def learn(dim: int, kind: str, steps: int, seed: int, tell: Tell) -> list[float]:
    torch.manual_seed(seed)
    model = Lookup(
        first_weights(MultiHeadAttention(dim, 1, score="Dot()" if kind == "scaled" else "Dot(scale=1.0)")), dim
    )
    return learn_lookup(model, steps, 1e-3, seed, tell)


def first_weights(layer: MultiHeadAttention) -> MultiHeadAttention:
    """Projections that make q and k of spread 1 from tokens whose numbers have spread √2 (a key's plus a value's)."""
    for projection in (layer.q, layer.k):
        nn.init.normal_(projection.weight, std=(2 * projection.weight.shape[1]) ** -0.5)
    return layer


def verdict(numbers: dict[str, Any]) -> Verdict:
    still = numbers["still"]
    peak, scaled = still["peak, unscaled"][-1], still["peak, scaled"]
    gradient = still["gradient, unscaled"][-1] / still["gradient, scaled"][-1]
    median = still["median, unscaled"][-1] / still["median, scaled"][-1]
    times = {
        dim: held["unscaled"]["mean loss"]["mean"] / held["scaled"]["mean loss"]["mean"]
        for dim, held in numbers["learning"].items()
    }
    saturates = peak >= 0.9 and gradient <= 0.1 and max(scaled) <= 2 * min(scaled)
    kind = "fails" if not saturates else "holds" if min(times.values()) >= 1.1 else "limited"
    each = ", ".join(f"{value:.2f} times (dim {dim})" for dim, value in times.items())
    each_zh = "，".join(f"{value:.2f} 倍（dim {dim}）" for dim, value in times.items())
    return Verdict(
        kind,
        Both(
            f"largest weight at dim 1024: {peak:.2f} unscaled, {scaled[-1]:.2f} scaled",
            f"dim 1024 时的最大权重：不缩放 {peak:.2f}，缩放 {scaled[-1]:.2f}",
        ),
        Both(
            f"At dim 1024 without scaling the largest weight is {peak:.2f} (scaled {scaled[-1]:.2f}) and the gradient "
            f"{gradient:.2f} of the scaled one's on average, {median:.2f} in the median: most rows have almost none, "
            f"a few with two rivals have much. The mean loss of training without scaling is {each} the scaled one's. "
            "A softmax that does not subtract the largest score first would overflow in "
            f"{still['overflow'][-1]:.0%} of the rows; every real one subtracts it.",
            f"dim 为 1024 且不缩放时，最大权重为 {peak:.2f}（缩放时 {scaled[-1]:.2f}），"
            f"梯度平均是缩放时的 {gradient:.2f}，中位数是 {median:.2f}：多数行几乎没有梯度，少数势均力敌的行仍有。"
            f"训练中不缩放的平均损失是缩放时的 {each_zh}。若 softmax 不先减去最大值，"
            f"会有 {still['overflow'][-1]:.0%} 的行溢出；"
            "实际的实现都会先减去。",
        ),
    )


def draw(numbers: dict[str, Any], language: Language) -> Any:
    zh = language == "zh"
    with panels(language, 3, width=4.1) as (figure, axes):
        titles = (
            ("最大权重", "softmax 梯度的大小")
            if zh
            else ("Largest weight of a query", "Size of the softmax's gradient")
        )
        units = ("权重（0–1）", "‖∂权重/∂分数‖") if zh else ("weight (0–1)", "‖d weights / d scores‖")
        for one, name, title, unit in zip(axes, ("peak", "gradient"), titles, units, strict=False):
            for n, kind in enumerate(KINDS):
                one.plot(numbers["dims"], numbers["still"][f"{name}, {kind}"], label=label(kind, zh), **style(n))
            one.set_xscale("log", base=2)
            one.set_ylim(bottom=0)
            one.set_xlabel("dim（维数）" if zh else "dim (numbers in q and k)")
            one.set_ylabel(unit)
            one.set_title(title)
            one.legend()
        draw_learning(axes[2], numbers["learning"], zh)
        return figure


def label(kind: str, zh: bool) -> str:
    if zh:
        return "除以 √dim" if kind == "scaled" else "不缩放"
    return "divided by √dim" if kind == "scaled" else "not scaled"


def draw_learning(axes: Any, learning: dict[str, Any], zh: bool) -> None:
    """Loss against the share of training, a line a dim and kind."""
    for n, (dim, kind) in enumerate((dim, kind) for dim in learning for kind in KINDS):
        curve = learning[dim][kind]["curve"]
        share = [100 * (at + 0.5) / len(curve) for at in range(len(curve))]
        axes.plot(share, curve, label=f"dim {dim}, {label(kind, zh)}", markevery=10, **style(n))
    axes.set_ylim(0, 3.4)
    axes.set_xlabel("训练进度（%）" if zh else "training done (%)")
    axes.set_ylabel("损失（nats）" if zh else "loss (nats)")
    axes.set_title("学习按键查值" if zh else "Learning to look up a value")
    axes.legend()
