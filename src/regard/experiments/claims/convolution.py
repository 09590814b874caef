"""Convolution as attention: one head per offset computes the same, and attention learns it from data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, one_hot, pad

from ...attention.parts.positions import Bias
from ...nn.attention import MultiHeadAttention
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
from ..progress import ProgressCallback, subprogress
from ..toolkit.figures import line_style, subplots
from ..toolkit.metrics import smooth_curve, summarize
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=10,
    name="convolution",
    title=Bilingual("Convolution as attention", "卷积是受限的注意力"),
    claim=Bilingual(
        "A convolution is attention restricted to fixed offsets; attention is a convolution with a learned receptive "
        "field.",
        "CNN 是自注意力的受限版本：只能关注固定的、局部的感受野；自注意力是感受野可学习的 CNN。",
    ),
    setup=Bilingual(
        "Attention with one head per offset of a kernel, whose position bias allows only that offset, copies the "
        "weights of a random convolution; outputs and gradients are compared. Then attention with a learned distance "
        "bias (up to 4 in both directions) is trained on the outputs of a random convolution of kernel 3. Last, both "
        "are trained on a task where the content decides where to attend: copy the one marked token to every "
        "position.",
        "为卷积核的每个偏移设一个头，其位置偏置只允许该偏移，复制一个随机卷积的权重，比较输出和梯度。"
        "然后用一个核为 3 的随机卷积的输出，训练带可学习距离偏置（左右各 4）的注意力。最后，"
        "两者学习由内容决定关注位置的任务：把唯一的标记词元复制到所有位置。",
    ),
    criteria=(
        Criterion(
            "equal-float32",
            Bilingual(
                "One head per offset equals a convolution, gradients included (1e-5 in float32)",
                "每个偏移一个头就等于卷积，含梯度（float32 下 1e-5）",
            ),
            "<=",
            1e-5,
            core=True,
        ),
        Criterion(
            "equal-float64",
            Bilingual("The same in float64 (1e-12)", "float64 下同样（1e-12）"),
            "<=",
            1e-12,
            core=True,
        ),
        Criterion(
            "learned",
            Bilingual(
                "Trained on a convolution, attention leaves at most 5 % of the variance",
                "用卷积的输出训练后，注意力剩余方差不超过 5%",
            ),
            "<=",
            0.05,
        ),
        Criterion(
            "offsets",
            Bilingual(
                "It then gives the kernel's offsets at least 90 % of its weight", "此时至少 90% 的权重落在核的偏移上"
            ),
            ">=",
            0.9,
        ),
        Criterion(
            "content",
            Bilingual(
                "On a token chosen by content, attention leaves at most 10 % of the variance",
                "对由内容选定的词元，注意力剩余方差不超过 10%",
            ),
            "<=",
            0.1,
        ),
        Criterion(
            "fixed-offsets",
            Bilingual("A convolution leaves at least 50 % there", "卷积在那里剩余至少 50%"),
            ">=",
            0.5,
        ),
    ),
)

MASKED_BIAS = -1e4
BatchFunction = Callable[[], tuple[Tensor, Tensor]]
"""Draws tokens and their targets."""
KERNEL, REACH = 3, 4
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"dim": 4, "tokens": 12, "steps": 10, "batch": 4, "seeds": 1},
    "usual": {"dim": 8, "tokens": 24, "steps": 500, "batch": 32, "seeds": 3},
    "full": {"dim": 16, "tokens": 64, "steps": 3000, "batch": 64, "seeds": 5},
}
PARAMETERS = (
    from_sizes(SIZES, "dim", DIM_TEXT, 1, 64),
    from_sizes(SIZES, "tokens", TOKENS_TEXT, 10, 256),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "seeds", SEEDS_TEXT, 1, 20),
)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`equal`: errors by kernel and dtype; `learned` and `marked`: unexplained variance of the two tasks."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    seeds = range(seed, seed + config["seeds"])
    equal = [
        compare_attention(kernel, dtype, seed) for kernel in (1, 3, 5, 9) for dtype in (torch.float32, torch.float64)
    ]
    progress(0.05, "equality")
    runs = []
    for n, run_seed in enumerate(seeds):
        run_progress = subprogress(
            progress, 0.05 + 0.95 * n / len(seeds), 0.05 + 0.95 * (n + 1) / len(seeds), f"seed {run_seed}"
        )
        runs.append(train_both_tasks(config, run_seed, run_progress))
    return {
        "equal": equal,
        "learned": summarize([run["left"] for run in runs]),
        "inside": summarize([run["inside"] for run in runs]),
        "marked": {name: summarize([run["marked"][name] for run in runs]) for name in ("attention", "convolution")},
        "weights": runs[0]["weights"],
        "losses": runs[0]["losses"],
    }


def compare_attention(kernel: int, dtype: torch.dtype, seed: int) -> Measurements:
    """The relative errors between a convolution and the attention with its weights."""
    torch.manual_seed(seed)
    dim, tokens = 6, 19
    convolution = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, dtype=dtype)
    attention = convolution_to_attention(convolution)
    x = torch.randn(2, tokens, dim, dtype=dtype, requires_grad=True)
    target, got = convolution(x.mT).mT, attend_padded(attention, x, kernel // 2)
    upstream = torch.randn_like(target)
    gradients = [torch.autograd.grad(y, x, upstream)[0] for y in (got, target)]
    return {
        "kernel": kernel,
        "type": str(dtype).removeprefix("torch."),
        "output": relative_error(got, target),
        "gradient": relative_error(*gradients),
    }


def convolution_to_attention(convolution: nn.Conv1d) -> MultiHeadAttention:
    """Attention with one head per offset that computes this convolution.

    Queries and keys are zero, so that the position alone decides; values are the tokens; the last matrix holds the
    kernel, one offset beside the other.
    """
    kernel, dim, dtype = convolution.kernel_size[0], convolution.in_channels, convolution.weight.dtype
    layer = MultiHeadAttention(dim, kernel, head_dim=dim, bias="o", position=offset_bias(kernel, dtype)).to(dtype)
    with torch.no_grad():
        layer.q.weight.zero_()
        layer.k.weight.zero_()
        layer.v.weight.copy_(torch.eye(dim, dtype=dtype).repeat(kernel, 1))
        layer.out.weight.copy_(convolution.weight.permute(0, 2, 1).flatten(1))  # [dim, kernel · dim]
        layer.out.bias.copy_(convolution.bias)  # type: ignore[arg-type]
    return layer


def offset_bias(kernel: int, dtype: torch.dtype) -> Bias:
    """A bias table with which head h attends only to the token at j − i = h − kernel // 2.

    The nearest end serves distances beyond the table: one more entry at each end keeps them out.
    """
    reach = kernel // 2 + 1
    table = torch.full((kernel, 2 * reach + 1), MASKED_BIAS, dtype=dtype)
    heads = torch.arange(kernel)
    table[heads, reach + kernel // 2 - heads] = 0.0
    return Bias(table, reach)


def attend_padded(attention: MultiHeadAttention, x: Tensor, reach: int) -> Tensor:
    """Attention over zero-padded tokens, as in a convolution."""
    return attention(pad(x, (0, 0, reach, reach)))[:, reach : reach + x.shape[1]]


def relative_error(got: Tensor, target: Tensor) -> float:
    """‖got − target‖ / ‖target‖."""
    return ((got - target).norm() / target.norm()).item()


def train_both_tasks(config: dict[str, int], seed: int, progress: ProgressCallback) -> Measurements:
    """Train attention on a convolution's output, and attention and convolution on copying a marked token."""
    torch.manual_seed(seed)
    dim = config["dim"]
    teacher = nn.Conv1d(dim, dim, KERNEL, padding=KERNEL // 2).requires_grad_(False)
    attention = build_attention(dim)
    convolution_batch = batch_sampler(config, seed, lambda x: teacher(x.mT).mT)
    losses = train_regression(
        attention, convolution_batch, config["steps"], subprogress(progress, 0.0, 0.4, "attention learns a convolution")
    )
    weights = offset_weights(attention)
    middle = slice(REACH - KERNEL // 2, REACH + KERNEL // 2 + 1)
    marked_batch = batch_sampler(config, seed, repeat_marked_token)
    models = {"attention": build_attention(dim), "convolution": SlidingConvolution(dim)}
    marked = {}
    for n, (name, model) in enumerate(models.items()):
        train_regression(
            model,
            marked_batch,
            config["steps"],
            subprogress(progress, 0.4 + 0.3 * n, 0.7 + 0.3 * n, f"{name}, marked token"),
        )
        marked[name] = unexplained_variance(model, marked_batch)
    return {
        "left": unexplained_variance(attention, convolution_batch),
        "inside": weights[:, middle].sum(1).mean().item(),
        "weights": weights.tolist(),
        "losses": smooth_curve(losses),
        "marked": marked,
    }


def build_attention(dim: int) -> MultiHeadAttention:
    """Attention with one head per offset and a learned bias table, randomly initialized."""
    layer = MultiHeadAttention(dim, KERNEL, head_dim=dim, position=f"Bias(reach={REACH})")
    nn.init.normal_(layer.position.table)  # type: ignore[union-attr,arg-type]
    return layer


class SlidingConvolution(nn.Module):
    """A convolution as wide as the attention's bias table."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = nn.Conv1d(dim, dim, 2 * REACH + 1, padding=REACH)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.mT).mT


def batch_sampler(config: dict[str, int], seed: int, make_targets: Callable[[Tensor], Tensor]) -> BatchFunction:
    """A function that draws tokens `x` and `make_targets(x)`; one token of each row is marked."""
    generator = seeded_generator(seed)

    def draw_batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(config["batch"], config["tokens"], config["dim"], generator=generator)
        marked = torch.randint(config["tokens"], (config["batch"],), generator=generator)
        x[..., 0] = 3.0 * one_hot(marked, config["tokens"])
        return x, make_targets(x)

    return draw_batch


def repeat_marked_token(x: Tensor) -> Tensor:
    """The marked token of each row at every position."""
    marked = x[..., 0].argmax(1)
    return x[torch.arange(len(x)), marked][:, None].expand_as(x)


def train_regression(
    model: nn.Module, draw_batch: BatchFunction, steps: int, progress: ProgressCallback
) -> list[float]:
    def loss() -> Tensor:
        x, target = draw_batch()
        return mse_loss(model(x), target)

    return fit(model, loss, steps, 1e-2, progress)


@torch.no_grad()
def unexplained_variance(model: nn.Module, draw_batch: BatchFunction) -> float:
    """The fraction of variance that a model does not explain on new tokens."""
    x, target = draw_batch()
    return (mse_loss(model(x), target) / (target - target.mean((0, 1))).square().mean()).item()


@torch.no_grad()
def offset_weights(layer: MultiHeadAttention) -> Tensor:
    """`[heads, offsets]`: the softmax of each head's bias table, from the earliest to the latest key."""
    table: Tensor = layer.position.table  # type: ignore[union-attr,assignment]
    return table.softmax(-1).flip(-1)


def verdict(numbers: Measurements) -> Verdict:
    worst = {
        dtype: max(max(row["output"], row["gradient"]) for row in numbers["equal"] if row["type"] == dtype)
        for dtype in ("float32", "float64")
    }
    unexplained, inside = numbers["learned"]["mean"], numbers["inside"]["mean"]
    marked = {name: row["mean"] for name, row in numbers["marked"].items()}
    measured = {
        "equal-float32": (worst["float32"], Bilingual.same(f"{worst['float32']:.0e}")),
        "equal-float64": (worst["float64"], Bilingual.same(f"{worst['float64']:.0e}")),
        "learned": (unexplained, Bilingual.same(f"{unexplained:.1%}")),
        "offsets": (inside, Bilingual.same(f"{inside:.0%}")),
        "content": (marked["attention"], Bilingual.same(f"{marked['attention']:.1%}")),
        "fixed-offsets": (marked["convolution"], Bilingual.same(f"{marked['convolution']:.0%}")),
    }
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"differs by {worst['float64']:.0e} in float64; after training {unexplained:.1%} of the variance is left",
            f"float64 下相差 {worst['float64']:.0e}；训练后剩余方差 {unexplained:.1%}",
        ),
        Bilingual(
            f"One head per offset equals the convolution to {worst['float32']:.0e} in float32 and "
            f"{worst['float64']:.0e} in float64, gradients included. Attention trained on a convolution leaves "
            f"{unexplained:.1%} of its variance, with {inside:.0%} of its weight on the kernel's offsets. On the token "
            f"chosen by content, attention leaves {marked['attention']:.1%}, the convolution {marked['convolution']:.0%}.",
            f"每个偏移一个头时，与卷积的差别在 float32 下为 {worst['float32']:.0e}，在 float64 下为 {worst['float64']:.0e}（含梯度）。"
            f"用卷积的输出训练的注意力剩余方差 {unexplained:.1%}，{inside:.0%} 的权重落在核的偏移上。"
            f"对由内容选定的词元，注意力剩余方差 {marked['attention']:.1%}，卷积为 {marked['convolution']:.0%}。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    """The errors of equality, the learned bias of the heads, and both tasks."""
    with subplots(language, 3, width=4.2, height=3.8) as (figure, axes):
        draw_equality(axes[0], numbers["equal"], language)
        image = axes[1].imshow(
            numbers["weights"], aspect="auto", cmap="viridis", vmin=0, vmax=1, extent=(-REACH - 0.5, REACH + 0.5, KERNEL - 0.5, -0.5)
        )  # fmt: skip
        axes[1].grid(False)
        axes[1].set_yticks(range(KERNEL), [str(head + 1) for head in range(KERNEL)])
        axes[1].set_xlabel(Bilingual("offset of the key (tokens)", "键的偏移（词元）")(language))
        axes[1].set_ylabel(Bilingual("head", "头")(language))
        axes[1].set_title(
            Bilingual("Weights of the heads trained on\na convolution of kernel 3", "用核为 3 的卷积训练后各头的权重")(
                language
            )
        )
        figure.colorbar(image, ax=axes[1], label=Bilingual("weight of the position bias", "位置偏置的权重")(language))
        draw_unexplained(axes[2], numbers, language)
    return figure


def draw_equality(axes: Axes, equal: list[Measurements], language: Language) -> None:
    names = {"output": Bilingual("output", "输出"), "gradient": Bilingual("gradient", "梯度")}
    series = [(dtype, quantity) for dtype in ("float32", "float64") for quantity in names]
    for n, (dtype, quantity) in enumerate(series):
        rows = [row for row in equal if row["type"] == dtype]
        values = [max(row[quantity], 1e-18) for row in rows]
        axes.plot(
            [row["kernel"] for row in rows], values, label=f"{dtype}, {names[quantity](language)}", **line_style(n)
        )
    axes.set_yscale("log")
    axes.set_xticks([row["kernel"] for row in equal if row["type"] == "float32"])
    axes.set_xlabel(Bilingual("kernel (tokens)", "卷积核（词元）")(language))
    axes.set_ylabel(Bilingual("relative error", "相对误差")(language))
    axes.set_title(
        Bilingual("Attention with one head per offset\nminus the convolution", "每个偏移一个头的注意力与卷积之差")(
            language
        )
    )
    axes.legend(frameon=False)


def draw_unexplained(axes: Axes, numbers: Measurements, language: Language) -> None:
    bars = (
        (Bilingual("attention:\nconvolution", "注意力：\n一个卷积"), numbers["learned"]),
        (Bilingual("attention:\nmarked token", "注意力：\n标记词元"), numbers["marked"]["attention"]),
        (Bilingual("convolution:\nmarked token", "卷积：\n标记词元"), numbers["marked"]["convolution"]),
    )
    for n, (_, summary) in enumerate(bars):
        axes.bar(
            n,
            summary["mean"],
            0.6,
            yerr=summary["spread"],
            color=line_style(n)["color"],
            hatch=("", "//", "..")[n],
            capsize=3,
        )
        axes.text(n, summary["mean"] + summary["spread"] + 0.02, f"{summary['mean']:.1%}", ha="center", fontsize=8)
    axes.set_xticks(range(3), [name(language) for name, _ in bars])
    axes.set_ylim(0, max(1.1, max(summary["mean"] + summary["spread"] for _, summary in bars) * 1.15))
    axes.set_ylabel(Bilingual("variance left (fraction)", "剩余方差（比例）")(language))
    axes.set_title(Bilingual("Unexplained variance", "未解释的方差")(language))
