"""Fixed weights and input-dependent weights: how layers mix tokens, and inputs of other lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...nn import FullyConnected, MultiHeadAttention
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import NO_SETTINGS, SEEDS_TEXT, STEPS_TEXT, Settings, count, resolve_counts
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import line_style, subplots
from ..toolkit.key_value import TRAINING_PAIRS, KeyValueModel, sample_lookups, train_key_value
from ..toolkit.metrics import summarize
from ..toolkit.training import seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=3,
    name="fixed-weights",
    title=Bilingual("Fixed weights and input-dependent weights", "固定权重与动态权重"),
    claim=Bilingual(
        "A fully connected layer mixes its inputs with a fixed matrix; attention computes its mixing weights from "
        "the input, and so handles any length without retraining.",
        "全连接层的权重对所有输入样本都相同，不随输入改变；注意力的权重由输入动态计算，"
        "因此无需重新训练就能处理变长输入。",
    ),
    setup=Bilingual(
        "Task: a query and key-value pairs; the target is the value of the query's key. A fully connected network "
        "and one layer of attention are trained with 8 pairs. The mixing of a layer is its Jacobian, d output / d "
        "input; its relative change is measured between many pairs of inputs. Then 4 to 32 pairs are given without "
        "retraining; the fully connected network has inputs for 8 pairs, so it receives the first 8.",
        "任务：一个查询和若干键值对，目标是查询的键所对应的值。全连接网络与一层注意力都用 8 对训练。"
        "一层的混合方式由雅可比矩阵（输出对输入的导数）表示；在许多对输入之间测量它的相对变化。之后不重新训练，"
        "直接输入 4 到 32 对；全连接网络只有 8 对的输入，所以只接收前 8 对。",
    ),
    criteria=(
        Criterion(
            "fixed",
            Bilingual(
                "The mixing of a fully connected layer does not depend on the input (changes by at most 1e-5)",
                "全连接层的混合不随输入改变（变化不超过 1e-5）",
            ),
            "<=",
            1e-5,
            core=True,
        ),
        Criterion(
            "dynamic",
            Bilingual(
                "The mixing of attention does (changes by at least 0.1)", "注意力的混合随输入改变（变化不小于 0.1）"
            ),
            ">=",
            0.1,
            core=True,
        ),
        Criterion(
            "any-length",
            Bilingual(
                "Attention trained on 8 pairs works at every length (accuracy at least 0.9)",
                "用 8 对训练的注意力在每种长度上都有效（准确率不低于 0.9）",
            ),
            ">=",
            0.9,
            core=True,
        ),
        Criterion(
            "one-length",
            Bilingual(
                "The fully connected network does not: at 32 pairs it reaches at most half of attention's accuracy",
                "全连接网络不行：32 对时的准确率不超过注意力的一半",
            ),
            "<=",
            0.5,
        ),
        Criterion(
            "network",
            Bilingual(
                "With its activation the mixing of the fully connected layer is still fixed (changes by less than 0.1)",
                "加上激活函数后，全连接层的混合仍然固定（变化小于 0.1）",
            ),
            "<=",
            0.1,
        ),
    ),
)

PAIRS = (4, 8, 16, 32)
STEPS: dict[Size, int] = {"toy": 20, "usual": 1500, "full": 6000}
SEEDS: dict[Size, int] = {"toy": 1, "usual": 3, "full": 5}
LAYERS = ("fully connected", "fully connected, activation", "attention")
PARAMETERS = (
    count("head_dim", Bilingual("dim of each of the two heads of attention", "注意力两个头各自的维度"), 1, 128, 16),
    count(
        "hidden",
        Bilingual("hidden units of the fully connected layer", "全连接层的隐藏单元数"),
        36,
        1800,
        256,
        multiple=4,
    ),
    count("steps", STEPS_TEXT, 1, 20000, STEPS),
    count("seeds", SEEDS_TEXT, 1, 20, SEEDS),
)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    values = resolve_counts(PARAMETERS, size, settings)
    seeds = values["seeds"]
    runs = [run_seed(values, seed + n, nth_subprogress(progress, n, seeds, f"seed {seed + n}")) for n in range(seeds)]
    return {
        "pairs": list(PAIRS),
        "change": {name: summarize([run["change"][name] for run in runs]) for name in LAYERS},
        "accuracy": {
            name: [summarize(at) for at in zip(*(run["accuracy"][name] for run in runs), strict=True)]
            for name in runs[0]["accuracy"]
        },
        "mixing": runs[0]["mixing"],
    }


def run_seed(values: dict[str, int], seed: int, progress: ProgressCallback) -> Measurements:
    """Train both models, then measure their Jacobians and their accuracy at every length."""
    torch.manual_seed(seed)
    body = FullyConnected(24, 1, 1 + TRAINING_PAIRS, hidden=values["hidden"])
    connected = KeyValueModel(body, 24, max_tokens=1 + TRAINING_PAIRS)
    dim = 2 * values["head_dim"]
    attention = KeyValueModel(MultiHeadAttention(dim, 2), dim)
    for n, model in enumerate((connected, attention)):
        train_key_value(model, values["steps"], 5e-3, seed, nth_subprogress(progress, n, 2))
    (layer,) = body.layers
    inputs = {name: connected for name in LAYERS[:2]} | {"attention": attention}
    layers = {
        "fully connected": lambda x: layer.get_submodule("up")(x.flatten(1)).unflatten(1, (4, -1)),
        "fully connected, activation": lambda x: layer(x.flatten(1)).unflatten(1, (1 + TRAINING_PAIRS, -1)),
        "attention": attention.body,
    }
    jacobians = {name: layer_jacobians(layers[name], inputs[name], seed) for name in LAYERS}
    return {
        "change": {name: relative_change(matrices) for name, matrices in jacobians.items()},
        "accuracy": {
            name: [lookup_accuracy(model, pairs, seed) for pairs in PAIRS]
            for name, model in (("fully connected", connected), ("attention", attention))
        },
        "mixing": {name: [token_norms(matrix) for matrix in jacobians[name][:2]] for name in LAYERS[1:]},
    }


def layer_jacobians(layer: Callable[[Tensor], Tensor], model: KeyValueModel, seed: int, count: int = 6) -> list[Tensor]:
    """The Jacobians of a layer at `count` inputs of its model, each `[tokens, dim, tokens, dim]`."""
    keys, values, _ = sample_lookups(count, TRAINING_PAIRS, seeded_generator(seed + 2000))
    with torch.no_grad():
        inputs = model.embed(keys, values)
    return [jacobian(layer, x[None]) for x in inputs]


def jacobian(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    matrix = torch.autograd.functional.jacobian(layer, x)  # [1, tokens, dim, 1, tokens, dim]
    return matrix[0, :, :, 0]  # type: ignore[index, call-overload]


def relative_change(jacobians: list[Tensor]) -> float:
    """The mean over successive inputs of ‖J(x) − J(y)‖ / ‖J(x)‖."""
    pairs = zip(jacobians, jacobians[1:] + jacobians[:1], strict=True)
    return sum(((a - b).norm() / a.norm()).item() for a, b in pairs) / len(jacobians)


def token_norms(matrix: Tensor) -> list[list[float]]:
    """The norm of the Jacobian from each token (column) to each token (row)."""
    return [[round(value, 5) for value in row] for row in matrix.norm(dim=(1, 3)).tolist()]


@torch.no_grad()
def lookup_accuracy(model: KeyValueModel, pairs: int, seed: int) -> float:
    keys, values, targets = sample_lookups(1000, pairs, seeded_generator(seed + 1000))
    return (model(keys, values).argmax(1) == targets).float().mean().item()


def verdict(numbers: Measurements) -> Verdict:
    changes = {name: summaries["mean"] for name, summaries in numbers["change"].items()}
    accuracies = {name: [at["mean"] for at in summaries] for name, summaries in numbers["accuracy"].items()}
    last, trained = accuracies["fully connected"][-1], accuracies["fully connected"][PAIRS.index(TRAINING_PAIRS)]
    activated = changes["fully connected, activation"]
    lowest, ratio = min(accuracies["attention"]), last / max(accuracies["attention"][-1], 1e-9)
    measured = {
        "fixed": (changes["fully connected"], Bilingual.same(f"{changes['fully connected']:.0e}")),
        "dynamic": (changes["attention"], Bilingual.same(f"{changes['attention']:.2f}")),
        "any-length": (lowest, Bilingual(f"{lowest:.0%} at worst", f"最低 {lowest:.0%}")),
        "one-length": (
            ratio,
            Bilingual(
                f"{last:.0%} against {accuracies['attention'][-1]:.0%}",
                f"{last:.0%}，注意力 {accuracies['attention'][-1]:.0%}",
            ),
        ),
        "network": (activated, Bilingual.same(f"{activated:.2f}")),
    }
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"mixing changes by {changes['fully connected']:.0e} (layer), {changes['attention']:.2f} (attention)",
            f"混合的变化：全连接层 {changes['fully connected']:.0e}，注意力 {changes['attention']:.2f}",
        ),
        Bilingual(
            f"Between two inputs the mixing changes by {changes['fully connected']:.1e} in the fully connected "
            f"layer, "
            f"by {changes['attention']:.2f} in attention; with its activation the fully connected layer changes by "
            f"{activated:.2f}: the layer is fixed, the network is not. Trained on 8 pairs, attention reaches at "
            f"least {min(accuracies['attention']):.0%} accuracy at 4 to 32 pairs; the fully connected network {trained:.0%} "
            f"at 8 and {last:.0%} at 32.",
            f"在两个输入之间，全连接层的混合变化为 {changes['fully connected']:.1e}，"
            f"注意力为 {changes['attention']:.2f}；"
            f"全连接层加上激活函数后变化为 {activated:.2f}：固定的是层，而不是网络。用 8 对训练后，"
            f"注意力在 4 到 32 对上的准确率"
            f"不低于 {min(accuracies['attention']):.0%}；全连接网络在 8 对时为 {trained:.0%}，在 32 对时为 {last:.0%}。",
        ),
    )


NAMES_ZH = {"fully connected": "全连接", "fully connected, activation": "全连接＋激活", "attention": "注意力"}


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    with subplots(language, 3, 2, width=3.6, height=3.0) as (figure, axes):
        for row, name in enumerate(LAYERS[1:]):
            for column in range(2):
                draw_jacobian(axes[3 * row + column], numbers["mixing"][name], column, name, zh)
        draw_change(axes[2], numbers["change"], zh)
        draw_lengths(axes[5], numbers, zh)
        return figure


def draw_jacobian(axes: Axes, matrices: list[list[list[float]]], n: int, name: str, zh: bool) -> None:
    """The token norms of the Jacobian at one of two inputs, on one colour scale."""
    top = max(value for matrix in matrices for row in matrix for value in row)
    image = axes.imshow(matrices[n], cmap="cividis", vmin=0, vmax=top)
    if n == 1:
        axes.figure.colorbar(image, ax=axes, label="‖∂输出/∂输入‖" if zh else "‖d output / d input‖")
    axes.grid(False)
    axes.set_xticks(range(0, 9, 2))
    axes.set_yticks(range(0, 9, 2))
    axes.set_title(f"{NAMES_ZH[name]}，输入 {n + 1}" if zh else f"{name},\ninput {n + 1}")
    axes.set_xlabel("从词元（0 是查询）" if zh else "from token (0 is the query)")
    axes.set_ylabel("到词元" if zh else "to token")


def draw_change(axes: Axes, changes: Measurements, zh: bool) -> None:
    names = [NAMES_ZH[name].replace("＋", "\n＋") if zh else name.replace(" ", "\n", 1) for name in LAYERS]
    summaries = [changes[name] for name in LAYERS]
    bars = axes.bar(
        names,
        [summary["mean"] for summary in summaries],
        yerr=[summary["spread"] for summary in summaries],
        color="#0072b2",
        capsize=3,
    )
    axes.bar_label(bars, [f"{summary['mean']:.2g}" for summary in summaries])
    axes.set_ylim(0, 1.25 * max(summary["mean"] + summary["spread"] for summary in summaries) + 0.1)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_ylabel("相对变化" if zh else "relative change")
    axes.set_title("混合随输入的变化" if zh else "Change of the mixing with the input")


def draw_lengths(axes: Axes, numbers: Measurements, zh: bool) -> None:
    for n, (name, summaries) in enumerate(numbers["accuracy"].items()):
        means, spreads = [at["mean"] for at in summaries], [at["spread"] for at in summaries]
        axes.errorbar(
            numbers["pairs"], means, spreads, capsize=2, label=NAMES_ZH[name] if zh else name, **line_style(n)
        )
    axes.axvline(TRAINING_PAIRS, color="#999999", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers["pairs"], map(str, numbers["pairs"]))
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("键值对数（竖线：训练用的 8 对）" if zh else "pairs (vertical line: trained on 8)")
    axes.set_ylabel("准确率" if zh else "accuracy")
    axes.set_title("其他长度，不重新训练" if zh else "Other lengths, without retraining")
    axes.legend()
