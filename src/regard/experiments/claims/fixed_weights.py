"""Fixed weights against weights made from the input: what a layer mixes into what, and inputs of other lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...nn import FullyConnected, MultiHeadAttention
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import drawing, panels, part, spread, style
from ..lookup import TRAINED, Lookup, learn_lookup, lookups

CLAIM = Claim(
    number=3,
    name="fixed-weights",
    title=Both("Fixed weights, weights from the input", "固定权重与动态权重"),
    claim=Both(
        "A fully connected layer mixes its inputs by the same matrix whatever they are; attention's mixing changes "
        "with "
        "them, and so works at any length without retraining.",
        "全连接层的权重对所有输入样本一视同仁，不随输入改变；注意力的权重由输入动态计算，"
        "因此无需重新训练就能处理变长输入。",
    ),
    setup=Both(
        "Task: a query and pairs of key and value; the answer is the value of the query's key. A fully connected "
        "network "
        "and one layer of attention learn it with 8 pairs. What a layer mixes into what is its Jacobian, d output / d "
        "input, measured at many pairs of inputs: the change between two inputs, divided by the size. Then 4 to 32 "
        "pairs are given without retraining; the fully connected network has places for 8, so it sees the first 8.",
        "任务：一个查询和若干键值对，答案是查询的键所对应的值。全连接网络与一层注意力都用 8 对来学习。"
        "一层把什么混合到什么，"
        "就是它的雅可比矩阵（输出对输入的导数）；在许多对输入之间测量它的变化除以它的大小。之后不重新训练，"
        "直接给 4 到 32 对；全连接网络只有 8 对的位置，所以只看前 8 对。",
    ),
    threshold=Both(
        "Holds if, in the mean of the seeds, the fully connected layer's mixing changes by at most 1e-5 and "
        "attention's "
        "by at least 0.1, and attention's accuracy is at least 0.9 at every length while the fully connected network's "
        "at 32 pairs is at most half of it. Limited if that is so, but the mixing of the fully connected layer "
        "followed "
        "by its activation changes by 0.1 or more, too. Fails otherwise.",
        "若按随机种子的平均，全连接层的混合变化不超过 1e-5，注意力的变化不小于 0.1，"
        "且注意力在每种长度上的准确率不低于 0.9，"
        "而全连接网络在 32 对时至多为它的一半，则成立。若以上成立，但全连接层加上激活函数后其混合的变化也达到 0.1，"
        "则有条件成立。否则不成立。",
    ),
)

PAIRS = (4, 8, 16, 32)
STEPS = {"toy": 20, "usual": 1500, "full": 6000}
SEEDS = {"toy": 1, "usual": 3, "full": 5}
LAYERS = ("fully connected", "fully connected, activation", "attention")


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    count = SEEDS[size]
    runs = [one_seed(size, seed + n, part(tell, n / count, (n + 1) / count, f"seed {seed + n}")) for n in range(count)]
    return {
        "pairs": list(PAIRS),
        "change": {name: spread([run["change"][name] for run in runs]) for name in LAYERS},
        "accuracy": {
            name: [spread(at) for at in zip(*(run["accuracy"][name] for run in runs), strict=True)]
            for name in runs[0]["accuracy"]
        },
        "mixing": runs[0]["mixing"],
    }


def one_seed(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """Train both, then measure their layers' mixing and their accuracy at every length."""
    torch.manual_seed(seed)
    connected = Lookup(FullyConnected(24, 1, 1 + TRAINED, hidden=256), 24, most=1 + TRAINED)
    attention = Lookup(MultiHeadAttention(32, 2), 32)
    for n, model in enumerate((connected, attention)):
        learn_lookup(model, STEPS[size], 5e-3, seed, part(tell, n / 2, (n + 1) / 2))
    layer: Any = connected.body.layers[0]  # type: ignore[union-attr, index]
    inputs = {name: connected for name in LAYERS[:2]} | {"attention": attention}
    layers = {
        "fully connected": lambda x: layer.up(x.flatten(1)).unflatten(1, (4, -1)),
        "fully connected, activation": lambda x: layer(x.flatten(1)).unflatten(1, (1 + TRAINED, -1)),
        "attention": attention.body,
    }
    jacobians = {name: mixings(layers[name], inputs[name], seed) for name in LAYERS}
    return {
        "change": {name: change(found) for name, found in jacobians.items()},
        "accuracy": {
            name: [accuracy(model, pairs, seed) for pairs in PAIRS]
            for name, model in (("fully connected", connected), ("attention", attention))
        },
        "mixing": {name: [by_token(one) for one in jacobians[name][:2]] for name in LAYERS[1:]},
    }


def mixings(layer: Any, model: Lookup, seed: int, count: int = 6) -> list[Tensor]:
    """The Jacobians of a layer at `count` inputs of its model, each `[tokens, dim, tokens, dim]`."""
    keys, values, _ = lookups(count, TRAINED, drawing(seed + 2000))
    with torch.no_grad():
        inputs = model.embed(keys, values)
    return [jacobian(layer, x[None]) for x in inputs]


def jacobian(layer: Any, x: Tensor) -> Tensor:
    found = torch.autograd.functional.jacobian(layer, x)  # [1, tokens, dim, 1, tokens, dim]
    return found[0, :, :, 0]  # type: ignore[index, call-overload]


def change(jacobians: list[Tensor]) -> float:
    """The mean over successive inputs of ‖J(x) − J(y)‖ / ‖J(x)‖."""
    pairs = zip(jacobians, jacobians[1:] + jacobians[:1], strict=True)
    return sum(((a - b).norm() / a.norm()).item() for a, b in pairs) / len(jacobians)


def by_token(found: Tensor) -> list[list[float]]:
    """How much each token (column) goes into each (row): the size of the Jacobian's blocks."""
    return [[round(value, 5) for value in row] for row in found.norm(dim=(1, 3)).tolist()]


@torch.no_grad()
def accuracy(model: Lookup, pairs: int, seed: int) -> float:
    keys, values, answer = lookups(1000, pairs, drawing(seed + 1000))
    return (model(keys, values).argmax(1) == answer).float().mean().item()


def verdict(numbers: dict[str, Any]) -> Verdict:
    change_of = {name: held["mean"] for name, held in numbers["change"].items()}
    reached = {name: [at["mean"] for at in held] for name, held in numbers["accuracy"].items()}
    fixed = change_of["fully connected"] <= 1e-5 and change_of["attention"] >= 0.1
    last, trained = reached["fully connected"][-1], reached["fully connected"][PAIRS.index(TRAINED)]
    any_length = min(reached["attention"]) >= 0.9 and last <= reached["attention"][-1] / 2
    activated = change_of["fully connected, activation"]
    kind = "fails" if not (fixed and any_length) else "limited" if activated >= 0.1 else "holds"
    return Verdict(
        kind,
        Both(
            f"mixing changes by {change_of['fully connected']:.0e} (layer), {change_of['attention']:.2f} (attention)",
            f"混合的变化：全连接层 {change_of['fully connected']:.0e}，注意力 {change_of['attention']:.2f}",
        ),
        Both(
            f"Between two inputs the mixing changes by {change_of['fully connected']:.1e} in the fully connected "
            f"layer, "
            f"by {change_of['attention']:.2f} in attention; with its activation the fully connected one changes by "
            f"{activated:.2f}: the layer is fixed, the network is not. Trained on 8 pairs, attention answers at "
            f"least {min(reached['attention']):.0%} right at 4 to 32 pairs; the fully connected network {trained:.0%} "
            f"at 8 and {last:.0%} at 32.",
            f"在两个输入之间，全连接层的混合变化为 {change_of['fully connected']:.1e}，"
            f"注意力为 {change_of['attention']:.2f}；"
            f"全连接层加上激活函数后变化为 {activated:.2f}：固定的是层，而不是网络。用 8 对训练后，"
            f"注意力在 4 到 32 对上的准确率"
            f"不低于 {min(reached['attention']):.0%}；全连接网络在 8 对时为 {trained:.0%}，在 32 对时为 {last:.0%}。",
        ),
    )


NAMES_ZH = {"fully connected": "全连接", "fully connected, activation": "全连接＋激活", "attention": "注意力"}


def draw(numbers: dict[str, Any], language: Language) -> Any:
    zh = language == "zh"
    with panels(language, 3, 2, width=3.6, height=3.0) as (figure, axes):
        for row, name in enumerate(LAYERS[1:]):
            for column in range(2):
                draw_mixing(axes[3 * row + column], numbers["mixing"][name], column, name, zh)
        draw_change(axes[2], numbers["change"], zh)
        draw_lengths(axes[5], numbers, zh)
        return figure


def draw_mixing(axes: Any, both: list[Any], n: int, name: str, zh: bool) -> None:
    """Which token goes into which at one of two inputs, on one scale for both."""
    top = max(value for one in both for row in one for value in row)
    image = axes.imshow(both[n], cmap="cividis", vmin=0, vmax=top)
    if n == 1:
        axes.figure.colorbar(image, ax=axes, label="‖∂输出/∂输入‖" if zh else "‖d output / d input‖")
    axes.grid(False)
    axes.set_xticks(range(0, 9, 2))
    axes.set_yticks(range(0, 9, 2))
    axes.set_title(f"{NAMES_ZH[name]}，输入 {n + 1}" if zh else f"{name},\ninput {n + 1}")
    axes.set_xlabel("从词元（0 是查询）" if zh else "from token (0 asks)")
    axes.set_ylabel("到词元" if zh else "into token")


def draw_change(axes: Any, changes: dict[str, Any], zh: bool) -> None:
    names = [NAMES_ZH[name].replace("＋", "\n＋") if zh else name.replace(" ", "\n", 1) for name in LAYERS]
    held = [changes[name] for name in LAYERS]
    bars = axes.bar(
        names, [one["mean"] for one in held], yerr=[one["spread"] for one in held], color="#0072b2", capsize=3
    )
    axes.bar_label(bars, [f"{one['mean']:.2g}" for one in held])
    axes.set_ylim(0, 1.25 * max(one["mean"] + one["spread"] for one in held) + 0.1)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_ylabel("相对变化" if zh else "relative change")
    axes.set_title("换一个输入，混合变化多少" if zh else "Change of the mixing with the input")


def draw_lengths(axes: Any, numbers: dict[str, Any], zh: bool) -> None:
    for n, (name, held) in enumerate(numbers["accuracy"].items()):
        means, spreads = [at["mean"] for at in held], [at["spread"] for at in held]
        axes.errorbar(numbers["pairs"], means, spreads, capsize=2, label=NAMES_ZH[name] if zh else name, **style(n))
    axes.axvline(TRAINED, color="#999999", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers["pairs"], map(str, numbers["pairs"]))
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("键值对数（在 8 对上训练，竖线）" if zh else "pairs (trained on 8, the line)")
    axes.set_ylabel("准确率" if zh else "accuracy")
    axes.set_title("不重新训练，换长度" if zh else "Other lengths, not retrained")
    axes.legend()
