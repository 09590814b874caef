"""What the feed-forward layer is for: attention without it, with it but no activation, and with both."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from ...attention.attend import attend
from ...nn.attention import MultiHeadAttention
from ...nn.block import FeedForward
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import drawing, fit, panels, part, style
from ..sequences import over_seeds

CLAIM = Claim(
    number=14,
    name="feed-forward",
    title=Both("The feed-forward layer", "前馈网络的作用"),
    claim=Both(
        "Attention is linear and cannot form complex features; the feed-forward layer with its activation can. It works "
        "position-wise: on each place alone and alike, which is not to depend on the place.",
        "注意力是线性的，无法捕获复杂特征；带激活函数的前馈网络可以。Position-wise 指逐位置独立应用同一网络，而不是依赖位置。",
    ),
    setup=Both(
        "Every token has two bits and points at a token. Asked for are a bit of the token it points at (relation), "
        "the parity of its own bits (feature) and the parity of the other's bits (both). Attention alone, three layers "
        "of it, and one followed by a feed-forward layer without and with activation learn each with equal steps, "
        "without norms. Whether f(x + y) = f(x) + f(y), and whether a place's output changes with order or with other "
        "places, is measured on random tokens.",
        "每个词元有两个比特并指向一个词元。要求说出：所指词元的一个比特（关系）、自身比特的奇偶（特征）、所指词元比特的奇偶（两者）。"
        "单独一层注意力、三层注意力、一层后接不带与带激活函数的前馈网络，不用归一化，以同样步数分别学习。"
        "另用随机词元测量 f(x + y) 与 f(x) + f(y) 之差，以及某位置的输出是否随次序或其他位置而变。",
    ),
    threshold=Both(
        "Holds if with activation every task is answered at least 95 % right, without it (and with attention alone) both "
        "parities at most 75 %, the feed-forward layer's output at a place depends on no other place or order (1e-6), and "
        "attention is additive to 1e-4. Limited if all is so but attention's additivity, or but for three layers of "
        "attention; else it does not hold.",
        "若带激活函数时各任务正确率都不低于 95%，不带（以及只有注意力）时两种奇偶都不高于 75%，前馈网络在某位置的输出不依赖其他位置和次序（1e-6），"
        "且注意力满足可加性（1e-4），则成立。若只有注意力的可加性或三层注意力不符，则有条件成立；否则不成立。",
    ),
)

TASKS = {
    "relation": Both("bit of another", "他者的比特"),
    "feature": Both("own parity", "自身的奇偶"),
    "both": Both("parity of another", "他者的奇偶"),
}
NAMES = {
    "attention": Both("attention alone", "只有注意力"),
    "three": Both("three layers of attention", "三层注意力"),
    "linear": Both("+ feed-forward, no activation", "＋前馈，无激活"),
    "full": Both("+ feed-forward, ReLU", "＋前馈，ReLU"),
}
BITS = 2
SIZES: dict[Size, dict[str, Any]] = {
    "toy": {"tokens": 4, "dim": 16, "steps": 6, "batch": 8, "seeds": 1},
    "usual": {"tokens": 8, "dim": 32, "steps": 500, "batch": 32, "seeds": 2},
    "full": {"tokens": 16, "dim": 64, "steps": 5000, "batch": 64, "seeds": 5},
}


class Layers(nn.Module):
    """Tokens as bits, place and pointer; layers of attention, a feed-forward layer where asked; one answer a token."""

    def __init__(self, name: str, tokens: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Linear(BITS + 2 * tokens, dim)
        self.attention = nn.ModuleList(MultiHeadAttention(dim, 4) for _ in range(3 if name == "three" else 1))
        activation = {"linear": "none", "full": "relu"}.get(name)
        self.feed_forward = FeedForward(dim, 4 * dim, activation) if activation else None
        self.answer = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for attention in self.attention:
            x = x + attention(x)
        x = x if self.feed_forward is None else x + self.feed_forward(x)
        return self.answer(x).squeeze(-1)


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """`right[name][task]`, spread over seeds; `laws`: how far layers are from additive, and places from alone."""
    set_up = SIZES[size]
    seeds = range(seed, seed + set_up["seeds"])
    jobs = [(name, task) for name in NAMES for task in TASKS]
    right: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
    for n, (name, task) in enumerate(jobs):
        told = part(tell, n / len(jobs), (n + 1) / len(jobs), f"{name}, {task}")
        right[name][task] = over_seeds(partial(tried, name, task, set_up), seeds, told)
    return {"right": right, "additivity": additivity(seed), "places": places(seed)}


def tried(name: str, task: str, set_up: dict[str, Any], seed: int, tell: Tell) -> float:
    """The share of right answers after training."""
    torch.manual_seed(seed)
    generator = drawing(seed)
    model = Layers(name, set_up["tokens"], set_up["dim"])

    def loss() -> Tensor:
        x, wanted = rows(set_up["batch"], set_up["tokens"], task, generator)
        return binary_cross_entropy_with_logits(model(x), wanted)

    fit(model, loss, set_up["steps"], 5e-3, tell)
    x, wanted = rows(32 * set_up["batch"], set_up["tokens"], task, generator)
    with torch.no_grad():
        return ((model(x) > 0) == (wanted > 0.5)).float().mean().item()


def rows(batch: int, tokens: int, task: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens `[batch, tokens, bits + 2 · tokens]`, and what is asked of each as 0 or 1."""
    bits = torch.randint(2, (batch, tokens, BITS), generator=generator) * 2.0 - 1.0
    pointers = torch.randint(tokens, (batch, tokens), generator=generator)
    where = torch.eye(tokens).expand(batch, -1, -1)
    x = torch.cat([bits, where, one_hot(pointers, tokens).float()], -1)
    other = bits.gather(1, pointers[..., None].expand(-1, -1, BITS))
    answers = {"relation": other[..., 0], "feature": bits.prod(-1), "both": other.prod(-1)}
    return x, (answers[task] + 1) / 2


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


def places(seed: int) -> dict[str, dict[str, float]]:
    """How a place's output changes with the order of tokens (`order`) and with other tokens (`others`), relative."""
    torch.manual_seed(seed)
    dim = 32
    layers = {"feed-forward": FeedForward(dim, 4 * dim, "relu"), "attention": MultiHeadAttention(dim, 4)}
    x, mixed = torch.randn(4, 9, dim), torch.randperm(9)
    return {
        name: {"order": reordered(layer, x, mixed), "others": influence(layer, x)} for name, layer in layers.items()
    }


@torch.no_grad()
def reordered(layer: nn.Module, x: Tensor, order: Tensor) -> float:
    """‖f(x in another order) − f(x) in that order‖ / ‖f(x)‖."""
    return ((layer(x[:, order]) - layer(x)[:, order]).norm() / layer(x).norm()).item()


def influence(layer: nn.Module, x: Tensor) -> float:
    """The size of the first place's gradient with respect to the other tokens, over that with respect to all."""
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[:, 0].sum(), x)
    return (gradient[:, 1:].norm() / gradient.norm()).item()


def verdict(numbers: dict[str, Any]) -> Verdict:
    right = {name: {task: one["mean"] for task, one in tasks.items()} for name, tasks in numbers["right"].items()}
    most = {name: max(right[name]["feature"], right[name]["both"]) for name in NAMES}
    alone = numbers["places"]["feed-forward"]
    main = min(right["full"].values()) >= 0.95 and max(most["attention"], most["linear"]) <= 0.75
    main = main and max(alone.values()) <= 1e-6
    additive = numbers["additivity"]["attention"]
    limits = additive > 1e-4 or most["three"] > 0.75
    shown = {name: " / ".join(f"{value:.0%}" for value in right[name].values()) for name in NAMES}
    kept = numbers["additivity"]["values"]
    return Verdict(
        "fails" if not main else "limited" if limits else "holds",
        Both(
            f"right: {min(right['full'].values()):.0%} with it, at most {max(most['attention'], most['linear']):.0%} without",
            f"正确率：有前馈 {min(right['full'].values()):.0%}，没有时至多 {max(most['attention'], most['linear']):.0%}",
        ),
        Both(
            f"Right on {' / '.join(task.en for task in TASKS.values())}: "
            + "; ".join(f"{NAMES[name].en} {text}" for name, text in shown.items())
            + f". Attention is linear in its values for given weights (off by {kept:.0e}) but not in its input (off by "
            f"{additive:.0%}): its weights depend on it. A place's feed-forward output changes by {alone['order']:.0e} "
            f"with the order and by {alone['others']:.0e} with other tokens.",
            f"在{'／'.join(task.zh for task in TASKS.values())}上的正确率："
            + "；".join(f"{NAMES[name].zh} {text}" for name, text in shown.items())
            + f"。权重给定时注意力对 Value 是线性的（偏差 {kept:.0e}），但对输入不是（偏差 {additive:.0%}），因为权重取决于输入。"
            f"前馈网络在某位置的输出随次序变化 {alone['order']:.0e}，随其他词元变化 {alone['others']:.0e}。",
        ),
    )


def draw(numbers: dict[str, Any], language: Language) -> Any:
    """Right answers by task, additivity, and what a place depends on."""
    with panels(language, 3, width=4.3, height=4.2) as (figure, axes):
        draw_tasks(axes[0], numbers["right"], language)
        laws = {
            "values": Both("attention,\nweights given", "注意力\n（权重给定）"),
            "attention": Both("attention", "注意力"),
            "linear": Both("feed-forward,\nno activation", "前馈\n（无激活）"),
            "full": Both("feed-forward,\nReLU", "前馈\n（ReLU）"),
        }
        found = [numbers["additivity"][name] for name in laws]
        draw_bars(axes[1], [label(language) for label in laws.values()], found)
        axes[1].set_ylabel(Both("relative error", "相对误差")(language))
        axes[1].set_title(Both("How far f(x + y) is from f(x) + f(y)", "f(x + y) 与 f(x) + f(y) 之差")(language))
        others = numbers["places"]
        names = {"feed-forward": Both("feed-forward", "前馈"), "attention": Both("attention", "注意力")}
        draw_bars(axes[2], [names[name](language) for name in others], [one["others"] for one in others.values()])
        axes[2].set_ylabel(Both("gradient, share of others", "梯度中他者所占")(language))
        axes[2].set_title(Both("How much a place depends on others", "某位置对其他位置的依赖")(language))
    return figure


def draw_tasks(axes: Any, right: dict[str, Any], language: Language) -> None:
    """Bars by task, one a model."""
    for n, (name, label) in enumerate(NAMES.items()):
        at = [place + 0.2 * n - 0.3 for place in range(len(TASKS))]
        values, bars = ([right[name][task][what] for task in TASKS] for what in ("mean", "spread"))
        hatch = ("", "//", "..", "xx")[n]
        axes.bar(at, values, 0.19, yerr=bars, label=label(language), color=style(n)["color"], hatch=hatch, capsize=2)
    axes.axhline(0.5, color="#777777", linewidth=0.8)
    axes.set_xticks(range(len(TASKS)), [label(language) for label in TASKS.values()])
    axes.set_ylim(0, 1.05)
    axes.set_ylabel(Both("right (share; chance 0.5)", "正确率（随机为 0.5）")(language))
    axes.set_title(Both("What is learned", "学到了什么")(language))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, fontsize=7)


def draw_bars(axes: Any, names: list[str], values: list[float]) -> None:
    """Bars with their numbers on top."""
    for n, value in enumerate(values):
        axes.bar(n, value, 0.6, color=style(n)["color"], hatch=("", "//", "..", "xx")[n])
        axes.text(n, value, f"{value:.1e}" if value < 0.01 else f"{value:.2f}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(0, max(values) * 1.15)
