"""The feed-forward layer: attention without it, with a linear one, and with an activation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from ...attention.attend import attend
from ...nn.attention import MultiHeadAttention
from ...nn.block import FeedForward
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import (
    DIM_TEXT,
    NO_SETTINGS,
    SEEDS_TEXT,
    STEPS_TEXT,
    TOKENS_TEXT,
    Settings,
    from_sizes,
    resolve_counts,
)
from ..progress import ProgressCallback, nth_subprogress
from ..toolkit.figures import line_style, subplots
from ..toolkit.metrics import Summary, summarize_seeds
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=14,
    name="feed-forward",
    title=Bilingual("The feed-forward layer", "前馈网络的作用"),
    claim=Bilingual(
        "Attention is linear and cannot form complex features; the feed-forward layer with its activation can. It is "
        "position-wise: it applies the same network to each position independently and does not depend on the "
        "position.",
        "注意力是线性的，无法提取复杂特征；带激活函数的前馈网络可以。Position-wise 指对每个位置独立应用同一个网络，"
        "而不是依赖位置。",
    ),
    setup=Bilingual(
        "Every token has two bits and points at another token. The targets are a bit of the token it points at "
        "(relation), the parity of its own bits (feature) and the parity of the other token's bits (both). One layer "
        "of attention, three layers of attention, and one layer followed by a feed-forward layer without and with "
        "activation are trained on each target with equal steps, without normalization. On random tokens, f(x + y) "
        "is compared with f(x) + f(y), and the output at one position is tested for dependence on the order and on "
        "other positions.",
        "每个词元有两个比特并指向另一个词元。目标有三种：所指词元的一个比特（关系）、自身比特的奇偶（特征）、"
        "所指词元比特的奇偶（两者）。一层注意力、三层注意力、一层注意力后接不带与带激活函数的前馈网络，都不用归一化，"
        "以同样步数分别训练。另用随机词元测量 f(x + y) 与 f(x) + f(y) 之差，"
        "以及某位置的输出是否随次序或其他位置变化。",
    ),
    criteria=(
        Criterion(
            "features",
            Bilingual(
                "With a feed-forward layer and ReLU every target is learned (at least 95 %)",
                "有带 ReLU 的前馈网络时，各目标都能学会（不低于 95%）",
            ),
            ">=",
            0.95,
            core=True,
        ),
        Criterion(
            "attention-alone",
            Bilingual(
                "Attention alone cannot form the features (both parities at most 75 %)",
                "只有注意力时学不会特征（两种奇偶都不高于 75%）",
            ),
            "<=",
            0.75,
            core=True,
        ),
        Criterion(
            "no-activation",
            Bilingual(
                "A feed-forward layer without activation does not help (both parities at most 75 %)",
                "不带激活函数的前馈网络没有帮助（两种奇偶都不高于 75%）",
            ),
            "<=",
            0.75,
            core=True,
        ),
        Criterion(
            "more-layers",
            Bilingual(
                "Three layers of attention do not help either (both parities at most 75 %)",
                "三层注意力也没有帮助（两种奇偶都不高于 75%）",
            ),
            "<=",
            0.75,
        ),
        Criterion(
            "linear",
            Bilingual(
                "Attention is linear in its input (additive to 1e-4)", "注意力对输入是线性的（可加性误差不超过 1e-4）"
            ),
            "<=",
            1e-4,
        ),
        Criterion(
            "position-wise",
            Bilingual(
                "The feed-forward output at a position depends on no other position or order (1e-6)",
                "前馈网络在某位置的输出不依赖其他位置和次序（1e-6）",
            ),
            "<=",
            1e-6,
            core=True,
        ),
    ),
)

TASKS = {
    "relation": Bilingual("bit of the other", "所指词元的比特"),
    "feature": Bilingual("own parity", "自身的奇偶"),
    "both": Bilingual("parity of the other", "所指词元的奇偶"),
}
NAMES = {
    "attention": Bilingual("attention alone", "只有注意力"),
    "three": Bilingual("three layers of attention", "三层注意力"),
    "linear": Bilingual("+ feed-forward, no activation", "＋前馈网络，无激活"),
    "full": Bilingual("+ feed-forward, ReLU", "＋前馈网络，ReLU"),
}
BITS = 2
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"tokens": 4, "dim": 16, "steps": 6, "batch": 8, "seeds": 1},
    "usual": {"tokens": 8, "dim": 32, "steps": 500, "batch": 32, "seeds": 2},
    "full": {"tokens": 16, "dim": 64, "steps": 5000, "batch": 64, "seeds": 5},
}
PARAMETERS = (
    from_sizes(SIZES, "tokens", TOKENS_TEXT, 2, 64),
    from_sizes(SIZES, "dim", DIM_TEXT, 4, 256, multiple=4),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "seeds", SEEDS_TEXT, 1, 20),
)


class AttentionLayers(nn.Module):
    """Attention layers over tokens of bits, position and pointer, optionally a feed-forward layer; one logit per token."""

    def __init__(self, name: str, tokens: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Linear(BITS + 2 * tokens, dim)
        self.attention = nn.ModuleList(MultiHeadAttention(dim, 4) for _ in range(3 if name == "three" else 1))
        activation = {"linear": "none", "full": "relu"}.get(name)
        self.feed_forward = FeedForward(dim, 4 * dim, activation) if activation else None
        self.head = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for attention in self.attention:
            x = x + attention(x)
        x = x if self.feed_forward is None else x + self.feed_forward(x)
        return self.head(x).squeeze(-1)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`right[name][task]` summarized over seeds; `additivity` and `places`: `additivity()` and `position_effects()`."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    seeds = range(seed, seed + config["seeds"])
    jobs = [(name, task) for name in NAMES for task in TASKS]
    right: dict[str, dict[str, Summary]] = {name: {} for name in NAMES}
    for n, (name, task) in enumerate(jobs):
        run_progress = nth_subprogress(progress, n, len(jobs), f"{name}, {task}")
        right[name][task] = summarize_seeds(partial(train_task, name, task, config), seeds, run_progress)
    return {"right": right, "additivity": additivity(seed), "places": position_effects(seed)}


def train_task(name: str, task: str, config: dict[str, int], seed: int, progress: ProgressCallback) -> float:
    """Train a model on a task; returns its accuracy."""
    torch.manual_seed(seed)
    generator = seeded_generator(seed)
    model = AttentionLayers(name, config["tokens"], config["dim"])

    def loss() -> Tensor:
        x, target = sample_rows(config["batch"], config["tokens"], task, generator)
        return binary_cross_entropy_with_logits(model(x), target)

    fit(model, loss, config["steps"], 5e-3, progress)
    x, target = sample_rows(32 * config["batch"], config["tokens"], task, generator)
    with torch.no_grad():
        return ((model(x) > 0) == (target > 0.5)).float().mean().item()


def sample_rows(batch: int, tokens: int, task: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens `[batch, tokens, bits + 2 · tokens]`, and the target of each, 0 or 1."""
    bits = torch.randint(2, (batch, tokens, BITS), generator=generator) * 2.0 - 1.0
    pointers = torch.randint(tokens, (batch, tokens), generator=generator)
    positions = torch.eye(tokens).expand(batch, -1, -1)
    x = torch.cat([bits, positions, one_hot(pointers, tokens).float()], -1)
    other = bits.gather(1, pointers[..., None].expand(-1, -1, BITS))
    targets = {"relation": other[..., 0], "feature": bits.prod(-1), "both": other.prod(-1)}
    return x, (targets[task] + 1) / 2


@torch.no_grad()
def additivity(seed: int) -> dict[str, float]:
    """‖f(x + y) − f(x) − f(y)‖ / ‖f(x + y)‖ of layers without biases."""
    torch.manual_seed(seed)
    dim = 32
    x, y = torch.randn(2, 4, 9, dim)
    q, k = torch.randn(2, 4, 1, 9, dim)
    layers = {
        "values": lambda v: attend(q, k, v[:, None])[:, 0],
        "attention": MultiHeadAttention(dim, 4, bias=""),
        "linear": FeedForward(dim, 4 * dim, "none", bias=False),
        "full": FeedForward(dim, 4 * dim, "relu", bias=False),
    }
    return {name: ((f(x + y) - f(x) - f(y)).norm() / f(x + y).norm()).item() for name, f in layers.items()}


def position_effects(seed: int) -> dict[str, dict[str, float]]:
    """The relative dependence of an output on the order of tokens (`order`) and on other tokens (`others`)."""
    torch.manual_seed(seed)
    dim = 32
    layers = {"feed-forward": FeedForward(dim, 4 * dim, "relu"), "attention": MultiHeadAttention(dim, 4)}
    x, order = torch.randn(4, 9, dim), torch.randperm(9)
    return {
        name: {"order": permutation_error(layer, x, order), "others": cross_token_influence(layer, x)}
        for name, layer in layers.items()
    }


@torch.no_grad()
def permutation_error(layer: nn.Module, x: Tensor, order: Tensor) -> float:
    """‖f(x in another order) − f(x) in that order‖ / ‖f(x)‖."""
    return ((layer(x[:, order]) - layer(x)[:, order]).norm() / layer(x).norm()).item()


def cross_token_influence(layer: nn.Module, x: Tensor) -> float:
    """The gradient norm of the first output with respect to other tokens, relative to all tokens."""
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[:, 0].sum(), x)
    return (gradient[:, 1:].norm() / gradient.norm()).item()


def verdict(numbers: Measurements) -> Verdict:
    right = {
        name: {task: summary["mean"] for task, summary in tasks.items()} for name, tasks in numbers["right"].items()
    }
    most = {name: max(right[name]["feature"], right[name]["both"]) for name in NAMES}
    alone = numbers["places"]["feed-forward"]
    additive = numbers["additivity"]["attention"]
    lowest, dependence = min(right["full"].values()), max(alone.values())
    measured = {
        "features": (lowest, Bilingual(f"{lowest:.0%} at worst", f"最低 {lowest:.0%}")),
        "attention-alone": (
            most["attention"],
            Bilingual(f"up to {most['attention']:.0%}", f"最高 {most['attention']:.0%}"),
        ),
        "no-activation": (most["linear"], Bilingual(f"up to {most['linear']:.0%}", f"最高 {most['linear']:.0%}")),
        "more-layers": (most["three"], Bilingual(f"up to {most['three']:.0%}", f"最高 {most['three']:.0%}")),
        "linear": (additive, Bilingual(f"off by {additive:.0%}", f"偏差 {additive:.0%}")),
        "position-wise": (dependence, Bilingual.same(f"{dependence:.0e}")),
    }
    percentages = {name: " / ".join(f"{value:.0%}" for value in right[name].values()) for name in NAMES}
    value_error = numbers["additivity"]["values"]
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"accuracy: {min(right['full'].values()):.0%} with it, at most {max(most['attention'], most['linear']):.0%} without",
            f"准确率：有前馈网络 {min(right['full'].values()):.0%}，没有时最多 {max(most['attention'], most['linear']):.0%}",
        ),
        Bilingual(
            f"Accuracy on {' / '.join(task.en for task in TASKS.values())}: "
            + "; ".join(f"{NAMES[name].en} {text}" for name, text in percentages.items())
            + f". For given weights attention is linear in the values (error {value_error:.0e}), but it is not linear in the input (error "
            f"{additive:.0%}): the weights depend on the input. The feed-forward output at a position changes by {alone['order']:.0e} "
            f"with the order and by {alone['others']:.0e} with other tokens.",
            f"在{'／'.join(task.zh for task in TASKS.values())}上的准确率："
            + "；".join(f"{NAMES[name].zh} {text}" for name, text in percentages.items())
            + f"。权重给定时注意力对值是线性的（偏差 {value_error:.0e}），但对输入不是（偏差 {additive:.0%}），因为权重取决于输入。"
            f"前馈网络在某位置的输出随次序变化 {alone['order']:.0e}，随其他词元变化 {alone['others']:.0e}。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    """Accuracy by task, additivity, and dependence on other tokens."""
    with subplots(language, 3, width=4.3, height=4.2) as (figure, axes):
        draw_tasks(axes[0], numbers["right"], language)
        layers = {
            "values": Bilingual("attention,\nweights given", "注意力\n（权重给定）"),
            "attention": Bilingual("attention", "注意力"),
            "linear": Bilingual("feed-forward,\nno activation", "前馈网络\n（无激活）"),
            "full": Bilingual("feed-forward,\nReLU", "前馈网络\n（ReLU）"),
        }
        errors = [numbers["additivity"][name] for name in layers]
        draw_bars(axes[1], [label(language) for label in layers.values()], errors)
        axes[1].set_ylabel(Bilingual("relative error", "相对误差")(language))
        axes[1].set_title(Bilingual("Difference of f(x + y) and f(x) + f(y)", "f(x + y) 与 f(x) + f(y) 之差")(language))
        effects = numbers["places"]
        names = {"feed-forward": Bilingual("feed-forward", "前馈网络"), "attention": Bilingual("attention", "注意力")}
        draw_bars(
            axes[2], [names[name](language) for name in effects], [effect["others"] for effect in effects.values()]
        )
        axes[2].set_ylabel(Bilingual("gradient, fraction of other positions", "梯度中其他位置的比例")(language))
        axes[2].set_title(Bilingual("Dependence on other positions", "对其他位置的依赖")(language))
    return figure


def draw_tasks(axes: Axes, right: Measurements, language: Language) -> None:
    """Bars by task, one for each model."""
    for n, (name, label) in enumerate(NAMES.items()):
        at = [group + 0.2 * n - 0.3 for group in range(len(TASKS))]
        values, bars = ([right[name][task][key] for task in TASKS] for key in ("mean", "spread"))
        hatch = ("", "//", "..", "xx")[n]
        axes.bar(
            at, values, 0.19, yerr=bars, label=label(language), color=line_style(n)["color"], hatch=hatch, capsize=2
        )
    axes.axhline(0.5, color="#777777", linewidth=0.8)
    axes.set_xticks(range(len(TASKS)), [label(language) for label in TASKS.values()])
    axes.set_ylim(0, 1.05)
    axes.set_ylabel(Bilingual("accuracy (chance 0.5)", "准确率（随机为 0.5）")(language))
    axes.set_title(Bilingual("Accuracy by task", "各任务的准确率")(language))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, fontsize=7)


def draw_bars(axes: Axes, names: list[str], values: list[float]) -> None:
    """Bars with their numbers on top."""
    for n, value in enumerate(values):
        axes.bar(n, value, 0.6, color=line_style(n)["color"], hatch=("", "//", "..", "xx")[n])
        axes.text(n, value, f"{value:.1e}" if value < 0.01 else f"{value:.2f}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(0, max(values) * 1.15)
