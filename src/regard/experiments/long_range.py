"""Long-range recall: what each kind of layer still knows of a token that stood far back, and how far it sees at all."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..models.heads import IGNORED
from ..nn.block import StackConfig
from ..nn.convolution import ConvolutionConfig
from ..nn.recurrent import RecurrentConfig
from .experiment import Both, Claim, Language, Size, Tell, Verdict
from .learning import fit, panels, part, style
from .sequences import accuracy, lengths_axis, means, over_seeds, tagger

CLAIM = Claim(
    number=8,
    name="long-range",
    title=Both("Long-range recall", "长距离依赖"),
    claim=Both(
        "Attention links two tokens directly at any distance; a recurrent network finds distant ones hard, and a "
        "convolution needs many layers to reach them.",
        "注意力可直接关联任意距离的两个词元；循环网络难以捕捉长距离依赖；卷积必须堆叠多层才能覆盖远处。",
    ),
    setup=Both(
        "A symbol is shown once, noise follows, and at the end the symbol is asked for. For every distance a convolution "
        "of 4 layers, one whose steps double in as many layers as reach the distance, an LSTM as torch starts it, and "
        "one layer of causal attention without positions learn with equal steps. How far each layer sees is measured "
        "before training by the gradient of one token in the middle with respect to every input token.",
        "先出现一个符号，随后是噪声，最后要求说出该符号。对每个距离，以下模型用同样的步数学习：4 层卷积、层数足以达到该距离的倍增膨胀卷积、"
        "按 torch 默认方式初始化的 LSTM、一层不带位置的因果注意力。每层能看多远，在训练前由正中一个词元对各输入词元的梯度测得。",
    ),
    threshold=Both(
        "Holds if attention recalls at least 95 % at every distance and each other model less than 50 % at the longest; "
        "limited if attention does but another reaches 50 % there too; else it does not hold.",
        "若注意力在所有距离上的正确率都不低于 95%，且其他每种模型在最远距离上都低于 50%，则成立；若注意力做到而另有模型在最远处也达到 50%，"
        "则有限成立；否则不成立。",
    ),
)

NAMES = {
    "convolution": Both("convolution, 4 layers", "卷积，4 层"),
    "dilated": Both("dilated convolution", "膨胀卷积"),
    "LSTM": Both("LSTM", "LSTM"),
    "attention": Both("attention, 1 layer", "注意力，1 层"),
}
SYMBOLS, NOISE = 8, 8
ASK = SYMBOLS + NOISE
DIM = 32
SIZES: dict[Size, dict[str, Any]] = {
    "toy": {"distances": [4, 16], "steps": 8, "batch": 8, "seeds": 1, "tested": 16, "view": 17, "layers": 2},
    "usual": {"distances": [16, 64, 256, 1024], "steps": 120, "batch": 8, "seeds": 1, "tested": 128, "view": 65, "layers": 4},
    "full": {"distances": [16, 64, 256, 1024], "steps": 2000, "batch": 32, "seeds": 5, "tested": 512, "view": 129, "layers": 6},
}  # fmt: skip


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """`accuracy[model][distance]`, spread over seeds, and `fields[model][layer][token]`, gradients of the middle."""
    set_up = SIZES[size]
    distances, seeds = set_up["distances"], range(seed, seed + set_up["seeds"])
    # a step's time grows with the distance, and so does its share of the way
    costs = [(name, distance, distance + 64) for distance in distances for name in NAMES]
    whole, done = sum(cost for *_, cost in costs), 0
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    for name, distance, cost in costs:
        told = part(tell, 0.95 * done / whole, 0.95 * (done + cost) / whole, f"{name}, distance {distance}")
        found[name].append(over_seeds(partial(recalled, name, distance, set_up), seeds, told))
        done += cost
    tell(0.95, "how far each layer sees")
    fields = {name: [field(name, n + 1, set_up["view"], seed) for n in range(set_up["layers"])] for name in NAMES}
    return {
        "distances": distances,
        "accuracy": found,
        "fields": fields,
        "chance": 1 / SYMBOLS,
        "steps": set_up["steps"],
    }


def stack_of(name: str, layers: int, causal: bool = True) -> Any:
    """The configuration of a stack of so many layers."""
    mask = "Causal()" if causal else None
    return {
        "convolution": ConvolutionConfig(DIM, layers, causal=causal),
        "dilated": ConvolutionConfig(DIM, layers, dilation="doubling", causal=causal),
        "LSTM": RecurrentConfig(DIM, layers, "lstm", bidirectional=not causal),
        "attention": StackConfig(DIM, layers, 4, hidden=DIM, mask=mask),
    }[name]


def recalled(name: str, distance: int, set_up: dict[str, Any], seed: int, tell: Tell) -> float:
    """The share of symbols that a model recalls after training at a distance."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    layers = {"convolution": 4, "dilated": doublings(distance)}.get(name, 1)
    model = tagger(stack_of(name, layers), ASK + 1, SYMBOLS)
    fit(model, lambda: model(**asked(set_up["batch"], distance, generator)).loss, set_up["steps"], 5e-3, tell)
    return accuracy(model, asked(set_up["tested"], distance, generator))


def doublings(distance: int) -> int:
    """How many causal layers of kernel 3 whose steps double see so far back: n of them see 2 · (2ⁿ − 1) tokens.

    >>> doublings(14), doublings(15), doublings(1024)
    (3, 4, 10)
    """
    return (distance + 1).bit_length() - 1


def asked(rows: int, distance: int, generator: torch.Generator) -> dict[str, Tensor]:
    """A symbol, noise, and after `distance` tokens the question: what was it?"""
    tokens = torch.randint(SYMBOLS, SYMBOLS + NOISE, (rows, distance + 1), generator=generator)
    symbol = torch.randint(SYMBOLS, (rows,), generator=generator)
    tokens[:, 0], tokens[:, -1] = symbol, ASK
    labels = torch.full_like(tokens, IGNORED)
    labels[:, -1] = symbol
    return {"tokens": tokens, "labels": labels}


def field(name: str, layers: int, tokens: int, seed: int) -> list[float]:
    """How much the middle token after so many layers depends on each input token, relative to the most."""
    torch.manual_seed(seed)
    stack = stack_of(name, layers, causal=False).build().eval()
    x = torch.randn(16, tokens, DIM, requires_grad=True)
    middle = stack(x)[:, tokens // 2]
    (gradient,) = torch.autograd.grad((middle * torch.randn_like(middle)).sum(), x)
    size = gradient.norm(dim=-1).mean(0)
    return (size / size.max()).tolist()


def verdict(numbers: dict[str, Any]) -> Verdict:
    found = {name: means(numbers["accuracy"][name]) for name in NAMES}
    rivals = [name for name in NAMES if name != "attention" and found[name][-1] >= 0.5]
    kind = "fails" if min(found["attention"]) < 0.95 else "limited" if rivals else "holds"
    seen = {name: sum(value > 1e-6 for value in numbers["fields"][name][0]) for name in NAMES}
    shown = {name: " / ".join(f"{value:.0%}" for value in values) for name, values in found.items()}
    distances = " / ".join(str(n) for n in numbers["distances"])
    near, far = numbers["distances"][0], numbers["distances"][-1]
    lost = [name for name in NAMES if found[name][0] < 0.5]
    return Verdict(
        kind,
        Both(
            f"Recalled at {distances} tokens after {numbers['steps']} steps: "
            + "; ".join(f"{NAMES[name].en} {text}" for name, text in shown.items())
            + f". At {far} another that also reaches 50 %: {', '.join(NAMES[name].en for name in rivals) or 'none'}. "
            f"Below 50 % already at {near}, so that nothing follows for longer ones: "
            f"{', '.join(NAMES[name].en for name in lost) or 'none'}. "
            f"One layer sees {', '.join(f'{n} tokens ({NAMES[name].en})' for name, n in seen.items())}.",
            f"训练 {numbers['steps']} 步后，在距离 {distances} 处的正确率："
            + "；".join(f"{NAMES[name].zh} {text}" for name, text in shown.items())
            + f"。在距离 {far} 处同样达到 50% 的其他模型：{'、'.join(NAMES[name].zh for name in rivals) or '无'}。"
            f"在距离 {near} 处已低于 50%、因而不能说明更远处的：{'、'.join(NAMES[name].zh for name in lost) or '无'}。"
            f"一层所能看到的词元数：{'，'.join(f'{NAMES[name].zh} {n}' for name, n in seen.items())}。",
        ),
    )


def draw(numbers: dict[str, Any], language: Language) -> Any:
    """Accuracy against distance, and a picture of what each layer sees."""
    with panels(language, 5, width=2.9, height=3.9) as (figure, axes):
        draw_recall(axes[0], numbers, language)
        for axis, name in zip(axes[1:], NAMES, strict=True):
            image = draw_field(axis, numbers["fields"][name], NAMES[name](language), language)
        bar = figure.colorbar(image, ax=axes[1:], shrink=0.8, pad=0.01)
        bar.set_label(Both("size of the gradient (1 = largest)", "梯度大小（最大者为 1）")(language))
        axes[1].set_ylabel(Both("layers", "层数")(language))
    return figure


def draw_recall(axes: Any, numbers: dict[str, Any], language: Language) -> None:
    """A line a model."""
    distances = numbers["distances"]
    for n, (name, shown) in enumerate(NAMES.items()):
        values = numbers["accuracy"][name]
        axes.errorbar(distances, means(values), [one["spread"] for one in values], label=shown(language), **style(n))
    axes.axhline(numbers["chance"], color="#777777", linewidth=0.8, label=Both("chance", "随机猜测")(language))
    lengths_axis(axes, distances)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel(Both("distance (tokens)", "距离（词元）")(language))
    axes.set_ylabel(Both("recalled (share)", "正确率")(language))
    axes.set_title(Both("Recall by distance", "不同距离上的回忆")(language))
    axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def draw_field(axes: Any, rows: list[list[float]], name: str, language: Language) -> Any:
    """How strongly the middle token depends on each input, a row a number of layers; nothing is left white."""
    from matplotlib.colors import LogNorm

    shown = torch.tensor(rows).clamp(min=0)
    shown[shown < 1e-6] = torch.nan
    half = len(rows[0]) // 2
    edges = (-half - 0.5, half + 0.5, 0.5, len(rows) + 0.5)
    image = axes.imshow(
        shown.numpy(),
        aspect="auto",
        origin="lower",
        extent=edges,
        norm=LogNorm(1e-6, 1),
        cmap="viridis",
        interpolation="none",
    )
    axes.grid(False)
    axes.set_yticks(range(1, len(rows) + 1))
    axes.set_xlabel(Both("input token, from the middle", "输入词元（相对正中）")(language))
    axes.set_title(Both(f"Seen by layers: {name.split(',')[0]}", f"各层所见：{name.split('，')[0]}")(language))
    return image
