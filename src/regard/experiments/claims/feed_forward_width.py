"""The width of the feed-forward layer: 512 to 2048 and back, and other widths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...nn import FeedForward, MultiHeadAttention
from ..experiment import Claim, Criterion, Measurements, Verdict, judge
from ..parameters import (
    DIM_TEXT,
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
from ..toolkit.figures import draw_reference_line, label_axes, line_style, plot_summaries, set_length_ticks, subplots
from ..toolkit.metrics import count_parameters, means, summarize
from ..toolkit.training import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=26,
    name="feed-forward-width",
    title=Bilingual("The feed-forward layer: 512 → 2048 → 512", "前馈网络的宽度：512 → 2048 → 512"),
    claim=Bilingual(
        "The feed-forward layer widens each token to four times its dimension and narrows it again: the wide layer "
        "holds the features, and four times is a good width. Most weights of a block are there.",
        "前馈网络先把每个词元扩展到四倍维度，再压缩回来：宽的一层容纳特征，四倍是合适的宽度。"
        "一个块的大部分权重都在这里。",
    ),
    setup=Bilingual(
        "A layer of dim 32 must store facts: 2,048 random vectors, each with a random class out of "
        "16. One feed-forward layer of width 1/4 to 16 times the dim, with a residual, and a linear head are trained "
        "with the same steps; a fact counts if its class is predicted. The weights of attention and of the "
        "feed-forward layer are counted at dim 512.",
        "一个维度为 32 的层要记住事实：2048 个随机向量，每个对应 16 类中的随机一类。"
        "宽度为维度的 1/4 到 16 倍的一个前馈网络（带残差）加线性输出，用同样的步数训练；类别预测正确即算记住。"
        "注意力与前馈网络的权重数在维度 512 时统计。",
    ),
    criteria=(
        Criterion(
            "wider",
            Bilingual(
                "Four times the dim stores at least 10 points more facts than one time",
                "四倍宽度比一倍宽度至少多记住 10 个百分点",
            ),
            ">=",
            0.1,
        ),
        Criterion(
            "enough",
            Bilingual("Four times the dim is enough: at least 95 % are stored", "四倍宽度已经足够：记住至少 95%"),
            ">=",
            0.95,
        ),
        Criterion(
            "diminishing",
            Bilingual("Sixteen times adds at most 5 points more", "十六倍宽度最多再增加 5 个百分点"),
            "<=",
            0.05,
        ),
        Criterion(
            "weights",
            Bilingual(
                "At 512 → 2048 → 512 the feed-forward layer has most weights of a block (over half)",
                "512 → 2048 → 512 时，前馈网络占一个块权重的大部分（一半以上）",
            ),
            ">=",
            0.5,
        ),
    ),
)

CLASSES, BLOCK_DIM, BLOCK_HEADS = 16, 512, 8
RATIOS = (0.25, 0.5, 1, 2, 4, 8, 16)
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"dim": 8, "facts": 64, "steps": 10, "seeds": 1},
    "usual": {"dim": 32, "facts": 2048, "steps": 500, "seeds": 2},
    "full": {"dim": 64, "facts": 4096, "steps": 3000, "seeds": 5},
}
PARAMETERS = (
    from_sizes(SIZES, "facts", Bilingual("facts to store", "要记住的事实数"), 16, 20000),
    from_sizes(SIZES, "dim", DIM_TEXT, 4, 256, multiple=4),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "seeds", SEEDS_TEXT, 1, 20),
)


class FactStore(nn.Module):
    """A feed-forward layer with a residual, and a linear head."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.feed_forward, self.head = FeedForward(dim, hidden, "relu"), nn.Linear(dim, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.feed_forward(x))


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`stored[ratio]` summarized over seeds, `weights` of a block's two halves by ratio at dim 512."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    jobs = [(ratio, n) for ratio in RATIOS for n in range(config["seeds"])]
    stored: dict[float, list[float]] = {ratio: [] for ratio in RATIOS}
    for m, (ratio, n) in enumerate(jobs):
        stored[ratio].append(store_facts(ratio, config, seed + n, nth_subprogress(progress, m, len(jobs), f"{ratio}×")))
    return {
        "ratios": list(RATIOS),
        "stored": [summarize(stored[ratio]) for ratio in RATIOS],
        "feed_forward": [count_parameters(FeedForward(BLOCK_DIM, int(ratio * BLOCK_DIM))) for ratio in RATIOS],
        "attention": count_parameters(MultiHeadAttention(BLOCK_DIM, BLOCK_HEADS)),
        "chance": 1 / CLASSES,
    }


def store_facts(ratio: float, config: dict[str, int], seed: int, progress: ProgressCallback) -> float:
    """Train a layer of this width on the facts; returns the fraction that it stores."""
    torch.manual_seed(seed)
    x, labels = torch.randn(config["facts"], config["dim"]), torch.randint(CLASSES, (config["facts"],))
    model = FactStore(config["dim"], int(ratio * config["dim"]))
    fit(model, lambda: nn.functional.cross_entropy(model(x), labels), config["steps"], 1e-2, progress)
    with torch.no_grad():
        return (model(x).argmax(-1) == labels).float().mean().item()


def verdict(numbers: Measurements) -> Verdict:
    stored = dict(zip(numbers["ratios"], means(numbers["stored"]), strict=True))
    four = numbers["feed_forward"][numbers["ratios"].index(4)]
    share = four / (four + numbers["attention"])
    measured = {
        "wider": (
            stored[4] - stored[1],
            Bilingual(f"{stored[4]:.0%} against {stored[1]:.0%}", f"{stored[4]:.0%}，一倍时 {stored[1]:.0%}"),
        ),
        "enough": (stored[4], Bilingual.same(f"{stored[4]:.0%}")),
        "diminishing": (
            stored[16] - stored[4],
            Bilingual(f"{stored[16]:.0%} against {stored[4]:.0%}", f"{stored[16]:.0%}，四倍时 {stored[4]:.0%}"),
        ),
        "weights": (share, Bilingual(f"{share:.0%} ({four:,} weights)", f"{share:.0%}（{four:,} 个权重）")),
    }
    row = ", ".join(f"{ratio:g}×: {value:.0%}" for ratio, value in stored.items())
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"facts stored at 1, 4 and 16 times the dim: {stored[1]:.0%}, {stored[4]:.0%}, {stored[16]:.0%}",
            f"宽度为 1、4、16 倍时记住的事实：{stored[1]:.0%}、{stored[4]:.0%}、{stored[16]:.0%}",
        ),
        Bilingual(
            f"Facts stored by width: {row} (chance {numbers['chance']:.0%}). At dim 512 attention has "
            f"{numbers['attention']:,} weights and the feed-forward layer of 2048 {four:,}, {share:.0%} of both.",
            f"不同宽度记住的事实：{row.replace(', ', '，')}（随机 {numbers['chance']:.0%}）。维度 512 时，注意力有 "
            f"{numbers['attention']:,} 个权重，宽 2048 的前馈网络有 {four:,} 个，占两者的 {share:.0%}。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    zh = language == "zh"
    with subplots(language, 2) as (figure, (left, right)):
        ratios = numbers["ratios"]
        plot_summaries(left, 0, ratios, numbers["stored"], "记住的事实" if zh else "facts stored")
        draw_reference_line(left, numbers["chance"], "随机" if zh else "chance")
        right.plot(ratios, numbers["feed_forward"], label="前馈网络" if zh else "feed-forward", **line_style(0))
        draw_reference_line(right, numbers["attention"], "注意力" if zh else "attention")
        right.set_yscale("log")
        for axes in (left, right):
            set_length_ticks(axes, ratios)
            axes.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
            axes.legend()
        width = "宽度 / 维度" if zh else "width / dim"
        left.set_ylim(0, 1.1)
        label_axes(left, "记住的事实" if zh else "Facts stored", width, "比例" if zh else "fraction")
        label_axes(right, "维度 512 时的权重数" if zh else "Weights at dim 512", width, "权重数" if zh else "weights")
        return figure
