"""Convolution as attention: one head for each offset gives the same numbers, and attention finds them from data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, one_hot, pad

from ...attention.parts.positions import Bias
from ...nn.attention import MultiHeadAttention
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import drawing, fit, panels, part, smooth, spread, style

CLAIM = Claim(
    number=10,
    name="convolution",
    title=Both("Convolution as attention", "卷积是受限的注意力"),
    claim=Both(
        "A convolution is attention that may only look at fixed offsets; attention is a convolution that learns where "
        "to look.",
        "CNN 是 self-attention 的受限版本：只能关注固定的、局部的感受野；self-attention 是感受野可学习的 CNN。",
    ),
    setup=Both(
        "An attention with one head for each offset of a kernel, whose positions allow that offset alone, takes over a "
        "random convolution's weights, and outputs and gradients are compared. An attention with learned numbers by "
        "distance (up to 4 either way) then learns a random convolution of kernel 3 from its outputs. Last, both learn "
        "a task where the content says where to look: repeat the one marked token everywhere.",
        "为卷积核的每个偏移设一个头，其位置偏置只允许该偏移，再接管一个随机卷积的权重，比较输出和梯度。然后，让带有可学习距离偏置（左右各 4）的注意力"
        "从一个核为 3 的随机卷积的输出中学习。最后，两者学习由内容决定看哪里的任务：在各处重复唯一被标记的词元。",
    ),
    threshold=Both(
        "Holds if outputs and gradients agree to 1e-5 in float32 and 1e-12 in float64 (relative), the learned attention "
        "leaves at most 5 % of the convolution's variance and gives the kernel's offsets at least 90 % of its weight, "
        "and on the marked token the convolution leaves at least 50 % of the variance where attention leaves at most "
        "10 %. Limited if only the equality is met; else it does not hold.",
        "若输出和梯度的相对误差在 float32 下不超过 1e-5、在 float64 下不超过 1e-12；学得的注意力剩余方差不超过 5%，且至少 90% 的权重落在核的偏移上；"
        "在标记任务上卷积剩余方差不低于 50% 而注意力不高于 10%，则成立。若只满足相等，则有条件成立；否则不成立。",
    ),
)

FORBIDDEN = -1e4
KERNEL, REACH = 3, 4
SIZES: dict[Size, dict[str, Any]] = {
    "toy": {"dim": 4, "tokens": 12, "steps": 10, "batch": 4, "seeds": 1},
    "usual": {"dim": 8, "tokens": 24, "steps": 500, "batch": 32, "seeds": 3},
    "full": {"dim": 16, "tokens": 64, "steps": 3000, "batch": 64, "seeds": 5},
}


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """`equal`: errors by kernel and type; `learned`: what is left of a convolution; `marked`: and of a choice."""
    set_up, seeds = SIZES[size], range(seed, seed + SIZES[size]["seeds"])
    equal = [compared(kernel, kind, seed) for kernel in (1, 3, 5, 9) for kind in (torch.float32, torch.float64)]
    tell(0.05, "equality")
    runs = []
    for n, own in enumerate(seeds):
        told = part(tell, 0.05 + 0.95 * n / len(seeds), 0.05 + 0.95 * (n + 1) / len(seeds), f"seed {own}")
        runs.append(learned(set_up, own, told))
    return {
        "equal": equal,
        "learned": spread([run["left"] for run in runs]),
        "inside": spread([run["inside"] for run in runs]),
        "marked": {name: spread([run["marked"][name] for run in runs]) for name in ("attention", "convolution")},
        "weights": runs[0]["weights"],
        "losses": runs[0]["losses"],
    }


def compared(kernel: int, dtype: torch.dtype, seed: int) -> dict[str, Any]:
    """The relative errors between a convolution and the attention that takes over its weights."""
    torch.manual_seed(seed)
    dim, tokens = 6, 19
    convolution = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, dtype=dtype)
    attention = as_attention(convolution)
    x = torch.randn(2, tokens, dim, dtype=dtype, requires_grad=True)
    wanted, got = convolution(x.mT).mT, padded(attention, x, kernel // 2)
    ahead = torch.randn_like(wanted)
    slopes = [torch.autograd.grad(y, x, ahead)[0] for y in (got, wanted)]
    return {
        "kernel": kernel,
        "type": str(dtype).removeprefix("torch."),
        "output": away(got, wanted),
        "gradient": away(*slopes),
    }


def as_attention(convolution: nn.Conv1d) -> MultiHeadAttention:
    """The attention with one head an offset that computes this convolution.

    Queries and keys are zero, so that the position alone decides; values are the tokens; the last matrix holds the
    kernel, one offset beside the other.
    """
    kernel, dim, dtype = convolution.kernel_size[0], convolution.in_channels, convolution.weight.dtype
    layer = MultiHeadAttention(dim, kernel, head_dim=dim, bias="o", position=offsets(kernel, dtype)).to(dtype)
    with torch.no_grad():
        layer.q.weight.zero_()
        layer.k.weight.zero_()
        layer.v.weight.copy_(torch.eye(dim, dtype=dtype).repeat(kernel, 1))
        layer.out.weight.copy_(convolution.weight.permute(0, 2, 1).flatten(1))  # [dim, kernel · dim]
        layer.out.bias.copy_(convolution.bias)  # type: ignore[arg-type]
    return layer


def offsets(kernel: int, dtype: torch.dtype) -> Bias:
    """A table by which head h sees the token at j − i = h − kernel // 2 and no other.

    The nearest end serves distances beyond the table: one more entry at each end keeps them out.
    """
    reach = kernel // 2 + 1
    table = torch.full((kernel, 2 * reach + 1), FORBIDDEN, dtype=dtype)
    heads = torch.arange(kernel)
    table[heads, reach + kernel // 2 - heads] = 0.0
    return Bias(table, reach)


def padded(attention: MultiHeadAttention, x: Tensor, reach: int) -> Tensor:
    """Attention over tokens with zeros around them, as a convolution sees them."""
    return attention(pad(x, (0, 0, reach, reach)))[:, reach : reach + x.shape[1]]


def away(got: Tensor, wanted: Tensor) -> float:
    """‖got − wanted‖ / ‖wanted‖."""
    return ((got - wanted).norm() / wanted.norm()).item()


def learned(set_up: dict[str, Any], seed: int, tell: Tell) -> dict[str, Any]:
    """What attention leaves of a convolution that it learns from, and both of a choice by content."""
    torch.manual_seed(seed)
    dim = set_up["dim"]
    teacher = nn.Conv1d(dim, dim, KERNEL, padding=KERNEL // 2).requires_grad_(False)
    attention = looking(dim)
    follow = examples(set_up, seed, lambda x: teacher(x.mT).mT)
    losses = trained(attention, follow, set_up["steps"], part(tell, 0.0, 0.4, "attention learns a convolution"))
    weights = offset_weights(attention)
    middle = slice(REACH - KERNEL // 2, REACH + KERNEL // 2 + 1)
    choose = examples(set_up, seed, repeated)
    rivals = {"attention": looking(dim), "convolution": Sliding(dim)}
    marked = {}
    for n, (name, model) in enumerate(rivals.items()):
        trained(model, choose, set_up["steps"], part(tell, 0.4 + 0.3 * n, 0.7 + 0.3 * n, f"{name}, marked token"))
        marked[name] = left(model, choose)
    return {
        "left": left(attention, follow),
        "inside": weights[:, middle].sum(1).mean().item(),
        "weights": weights.tolist(),
        "losses": smooth(losses),
        "marked": marked,
    }


def looking(dim: int) -> MultiHeadAttention:
    """Attention with as many heads as the kernel has offsets, which learns where to look; no head begins like another."""
    layer = MultiHeadAttention(dim, KERNEL, head_dim=dim, position=f"Bias(reach={REACH})")
    nn.init.normal_(layer.position.table)  # type: ignore[union-attr,arg-type]
    return layer


class Sliding(nn.Module):
    """A convolution that sees as far as the attention's table reaches."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = nn.Conv1d(dim, dim, 2 * REACH + 1, padding=REACH)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.mT).mT


def examples(set_up: dict[str, Any], seed: int, answer: Any) -> Any:
    """A function that draws tokens and what is wanted of them; one token of each row carries a mark."""
    generator = drawing(seed)

    def draw_batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(set_up["batch"], set_up["tokens"], set_up["dim"], generator=generator)
        marked = torch.randint(set_up["tokens"], (set_up["batch"],), generator=generator)
        x[..., 0] = 3.0 * one_hot(marked, set_up["tokens"])
        return x, answer(x)

    return draw_batch


def repeated(x: Tensor) -> Tensor:
    """The marked token of each row, at every place."""
    marked = x[..., 0].argmax(1)
    return x[torch.arange(len(x)), marked][:, None].expand_as(x)


def trained(model: nn.Module, draw_batch: Any, steps: int, tell: Tell) -> list[float]:
    def loss() -> Tensor:
        x, wanted = draw_batch()
        return mse_loss(model(x), wanted)

    return fit(model, loss, steps, 1e-2, tell)


@torch.no_grad()
def left(model: nn.Module, draw_batch: Any) -> float:
    """The share of variance that a model does not explain, on fresh tokens."""
    x, wanted = draw_batch()
    return (mse_loss(model(x), wanted) / (wanted - wanted.mean((0, 1))).square().mean()).item()


@torch.no_grad()
def offset_weights(layer: MultiHeadAttention) -> Tensor:
    """`[heads, offsets]`: the softmax of a head's table alone, from the key before to the key after."""
    table: Tensor = layer.position.table  # type: ignore[union-attr,assignment]
    return table.softmax(-1).flip(-1)


def verdict(numbers: dict[str, Any]) -> Verdict:
    worst = {
        kind: max(max(one["output"], one["gradient"]) for one in numbers["equal"] if one["type"] == kind)
        for kind in ("float32", "float64")
    }
    equal = worst["float32"] <= 1e-5 and worst["float64"] <= 1e-12
    left_over, inside = numbers["learned"]["mean"], numbers["inside"]["mean"]
    marked = {name: one["mean"] for name, one in numbers["marked"].items()}
    rest = left_over <= 0.05 and inside >= 0.9 and marked["convolution"] >= 0.5 and marked["attention"] <= 0.1
    return Verdict(
        "fails" if not equal else "holds" if rest else "limited",
        Both(
            f"differs by {worst['float64']:.0e} in float64; learned, {left_over:.1%} of the variance is left",
            f"float64 下相差 {worst['float64']:.0e}；学习后剩余方差 {left_over:.1%}",
        ),
        Both(
            f"One head an offset equals the convolution to {worst['float32']:.0e} in float32 and "
            f"{worst['float64']:.0e} in float64, gradients included. Attention that learns from a convolution leaves "
            f"{left_over:.1%} of its variance, with {inside:.0%} of its weight on the kernel's offsets. Of a token "
            f"chosen by content attention leaves {marked['attention']:.1%}, a convolution {marked['convolution']:.0%}.",
            f"每个偏移一个头时，与卷积的差别在 float32 下为 {worst['float32']:.0e}，在 float64 下为 {worst['float64']:.0e}（含梯度）。"
            f"从卷积学习的注意力剩余方差 {left_over:.1%}，{inside:.0%} 的权重落在核的偏移上。"
            f"对由内容选定的词元，注意力剩余方差 {marked['attention']:.1%}，卷积为 {marked['convolution']:.0%}。",
        ),
    )


def draw(numbers: dict[str, Any], language: Language) -> Any:
    """The errors of equality, what the heads learned, and both tasks."""
    with panels(language, 3, width=4.2, height=3.8) as (figure, axes):
        draw_equality(axes[0], numbers["equal"], language)
        image = axes[1].imshow(
            numbers["weights"], aspect="auto", cmap="viridis", vmin=0, vmax=1, extent=(-REACH - 0.5, REACH + 0.5, KERNEL - 0.5, -0.5)
        )  # fmt: skip
        axes[1].grid(False)
        axes[1].set_yticks(range(KERNEL), [str(head + 1) for head in range(KERNEL)])
        axes[1].set_xlabel(Both("offset of the key (tokens)", "键的偏移（词元）")(language))
        axes[1].set_ylabel(Both("head", "头")(language))
        axes[1].set_title(
            Both("Where heads look after learning\na convolution of kernel 3", "学习核为 3 的卷积后各头所看之处")(
                language
            )
        )
        figure.colorbar(image, ax=axes[1], label=Both("weight by position", "位置权重")(language))
        draw_left(axes[2], numbers, language)
    return figure


def draw_equality(axes: Any, equal: list[dict[str, Any]], language: Language) -> None:
    names = {"output": Both("output", "输出"), "gradient": Both("gradient", "梯度")}
    series = [(kind, what) for kind in ("float32", "float64") for what in names]
    for n, (kind, what) in enumerate(series):
        rows = [one for one in equal if one["type"] == kind]
        values = [max(one[what], 1e-18) for one in rows]
        axes.plot([one["kernel"] for one in rows], values, label=f"{kind}, {names[what](language)}", **style(n))
    axes.set_yscale("log")
    axes.set_xticks([one["kernel"] for one in equal if one["type"] == "float32"])
    axes.set_xlabel(Both("kernel (tokens)", "卷积核（词元）")(language))
    axes.set_ylabel(Both("relative error", "相对误差")(language))
    axes.set_title(
        Both("Attention with one head an offset\nagainst the convolution", "每个偏移一个头的注意力与卷积之差")(language)
    )
    axes.legend(frameon=False)


def draw_left(axes: Any, numbers: dict[str, Any], language: Language) -> None:
    bars = (
        (Both("attention:\na convolution", "注意力：\n一个卷积"), numbers["learned"]),
        (Both("attention:\nmarked token", "注意力：\n标记词元"), numbers["marked"]["attention"]),
        (Both("convolution:\nmarked token", "卷积：\n标记词元"), numbers["marked"]["convolution"]),
    )
    for n, (_, one) in enumerate(bars):
        axes.bar(n, one["mean"], 0.6, yerr=one["spread"], color=style(n)["color"], hatch=("", "//", "..")[n], capsize=3)
        axes.text(n, one["mean"] + one["spread"] + 0.02, f"{one['mean']:.1%}", ha="center", fontsize=8)
    axes.set_xticks(range(3), [name(language) for name, _ in bars])
    axes.set_ylim(0, max(1.1, max(one["mean"] + one["spread"] for _, one in bars) * 1.15))
    axes.set_ylabel(Both("variance left (share)", "剩余方差（比例）")(language))
    axes.set_title(Both("What is not learned", "未能学到的部分")(language))
