"""Additive and dot-product scores: accuracy, time and memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from ...attention.attend import attend
from ...attention.parts.scores import Dot, Score
from ...nn.parts.config import build_part
from ...nn.parts.learned import LearnedAdditive
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import NO_SETTINGS, SEEDS_TEXT, STEPS_TEXT, Settings, count, from_sizes, resolve_counts
from ..progress import ProgressCallback, subprogress
from ..toolkit.figures import line_style, subplots
from ..toolkit.metrics import summarize_seeds
from ..toolkit.profiling import Call, median_times, peak_bytes
from ..toolkit.training import fit, seeded_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=12,
    name="additive",
    title=Bilingual("Additive and dot-product scores", "加性与点积打分函数"),
    claim=Bilingual(
        "The dot product is the faster score function. The additive score, wᵀtanh(W_q q + W_k k), is meant for "
        "queries and keys of different or large dimension.",
        "点积是最高效的打分函数；加性打分函数 wᵀtanh(W_q q + W_k k) 适用于查询和键的维度不同或维度很大的情形。",
    ),
    setup=Bilingual(
        "A query is a noisy copy of one of 16 random keys, transformed by a fixed random matrix; the model must "
        "identify the key. Additive, scaled dot and unscaled dot scores, each after linear maps of the query (with "
        "bias) and the key, are trained until the loss is small, with the same maximum number of steps, at several "
        "dims, and once with queries of a third of the keys' dim. Time is CPU time and memory is the peak of one "
        "head, forward and backward, with all scores materialized.",
        "查询是 16 个随机键之一加噪声，再乘以一个固定的随机矩阵；模型要找出这个键。加性、缩放点积、"
        "不缩放点积都先对查询（带偏置）和键做线性映射，训练到损失足够小为止，步数上限相同，测试若干维度，"
        "另有一次查询的维度只有键的三分之一。CPU 时间和内存取单头、前向加反向、显式存储全部分数时的值。",
    ),
    criteria=(
        Criterion(
            "time",
            Bilingual(
                "Additive scores take at least twice the time of dot products at the largest dim",
                "在最大维度上，加性打分的时间至少是点积的两倍",
            ),
            ">=",
            2,
            core=True,
        ),
        Criterion(
            "memory",
            Bilingual("They take at least twice the memory", "内存至少是两倍"),
            ">=",
            2,
            core=True,
        ),
        Criterion(
            "unequal-dims",
            Bilingual(
                "With queries and keys of different dims they are at least 5 points more accurate",
                "查询与键的维度不同时，准确率至少高 5 个百分点",
            ),
            ">=",
            0.05,
        ),
        Criterion(
            "large-dim",
            Bilingual(
                "At the largest dim they are at least 5 points more accurate", "在最大维度上，准确率至少高 5 个百分点"
            ),
            ">=",
            0.05,
        ),
    ),
)

NAMES = {
    "additive": Bilingual("additive", "加性"),
    "dot": Bilingual("dot, scaled", "点积（缩放）"),
    "plain dot": Bilingual("dot, not scaled", "点积（不缩放）"),
}
SCORES_BY_NAME: dict[str, Score] = {"additive": LearnedAdditive(), "dot": Dot(), "plain dot": Dot(scale=1.0)}
KEYS = 16
TIMED = True
DIMS: dict[Size, list[int]] = {"toy": [6, 12], "usual": [6, 24, 64, 192], "full": [6, 24, 96, 384]}
SECONDS: dict[Size, float] = {"toy": 0.0, "usual": 1.0, "full": 4.0}
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"steps": 10, "batch": 8, "seeds": 1, "tokens": 16},
    "usual": {"steps": 1000, "batch": 32, "seeds": 2, "tokens": 256},
    "full": {"steps": 4000, "batch": 128, "seeds": 5, "tokens": 512},
}
PARAMETERS = (
    count("largest_dim", Bilingual("largest dim", "最大维度"), 8, 1024, {size: DIMS[size][-1] for size in DIMS}),
    from_sizes(SIZES, "tokens", Bilingual("tokens when time is measured", "测量时间时的词元数"), 2, 1024),
    from_sizes(SIZES, "steps", STEPS_TEXT, 1, 20000),
    from_sizes(SIZES, "seeds", SEEDS_TEXT, 1, 20),
)


class KeyFinder(nn.Module):
    """The attention weights `[batch, keys]` of one query after linear projections."""

    def __init__(self, query_dim: int, key_dim: int, score: str) -> None:
        super().__init__()
        # without a bias Σ w tanh(q + k) is odd in (q, k), which no similarity is
        self.q, self.k = nn.Linear(query_dim, key_dim), nn.Linear(key_dim, key_dim, bias=False)
        self.score = build_part(SCORES_BY_NAME[score], 1, key_dim)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        one_hot = torch.eye(KEYS, dtype=query.dtype).expand(len(query), 1, -1, -1)
        weights = attend(self.q(query)[:, None, None], self.k(keys)[:, None], one_hot, score=self.score())
        return weights[:, 0, 0]


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`found[name][dim]` and `unequal[name]`, summarized over seeds; `bytes` and, in `times`, `seconds` by name and dim."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    dims, seeds = [*DIMS[size][:-1], config["largest_dim"]], range(seed, seed + config["seeds"])
    jobs = [(name, dim, dim) for name in NAMES for dim in dims] + [(name, dims[1] // 3, dims[1]) for name in NAMES]
    results = []
    for n, (name, query_dim, dim) in enumerate(jobs):
        run_progress = subprogress(
            progress, 0.8 * n / len(jobs), 0.8 * (n + 1) / len(jobs), f"{name}, dims {query_dim} and {dim}"
        )
        results.append(summarize_seeds(partial(train_finder, name, query_dim, dim, config), seeds, run_progress))
    progress(0.8, "time and memory")
    seconds, peaks = measure_costs(dims, config["tokens"], SECONDS[size], seed)
    count = len(dims)
    return {
        "dims": dims,
        "tokens": config["tokens"],
        "found": {name: results[n * count : (n + 1) * count] for n, name in enumerate(NAMES)},
        "unequal": dict(zip(NAMES, results[-len(NAMES) :], strict=True)),
        "unequal_dims": [dims[1] // 3, dims[1]],
        "bytes": peaks,
        "times": {"seconds": seconds},
    }


def train_finder(
    name: str, query_dim: int, dim: int, config: dict[str, int], seed: int, progress: ProgressCallback
) -> float:
    """Train and test: the fraction of queries whose key gets the largest weight."""
    torch.manual_seed(seed)
    generator = seeded_generator(seed)
    projection = torch.randn(dim, query_dim, generator=generator) / dim**0.5
    model = KeyFinder(query_dim, dim, name)

    def sample_batch(rows: int) -> tuple[Tensor, Tensor, Tensor]:
        keys = torch.randn(rows, KEYS, dim, generator=generator)
        target = torch.randint(KEYS, (rows,), generator=generator)
        query = keys[torch.arange(rows), target] @ projection
        return query + 0.2 * torch.randn(query.shape, generator=generator), keys, target

    def loss() -> Tensor:
        query, keys, target = sample_batch(config["batch"])
        return nll_loss(model(query, keys).clamp(min=1e-9).log(), target)

    fit(model, loss, config["steps"], 5e-3, progress, target_loss=0.02)
    query, keys, target = sample_batch(1024)
    with torch.no_grad():
        return (model(query, keys).argmax(-1) == target).float().mean().item()


def measure_costs(
    dims: list[int], tokens: int, budget: float, seed: int
) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    """Seconds and peak bytes of one head, forward and backward, by score and dim."""
    torch.manual_seed(seed)
    seconds: dict[str, list[float]] = {name: [] for name in ("additive", "dot")}
    peaks: dict[str, list[int]] = {name: [] for name in seconds}
    for dim in dims:
        calls = {name: forward_backward(name, tokens, dim) for name in seconds}
        times = median_times(calls, budget)
        for name, call in calls.items():
            seconds[name].append(times[name])
            peaks[name].append(peak_bytes(call))
    return seconds, peaks


def forward_backward(name: str, tokens: int, dim: int) -> Call:
    q, k, v = (torch.randn(1, 1, tokens, dim, requires_grad=True) for _ in range(3))
    score = build_part(SCORES_BY_NAME[name], 1, dim)()

    def call() -> None:
        torch.autograd.grad(attend(q, k, v, score=score, backend="reference").sum(), (q, k, v))

    return call


def verdict(numbers: Measurements) -> Verdict:
    seconds, peaks = numbers["times"]["seconds"], numbers["bytes"]
    slower, larger = (costs["additive"][-1] / costs["dot"][-1] for costs in (seconds, peaks))
    advantage = {
        "unequal": numbers["unequal"]["additive"]["mean"] - numbers["unequal"]["dot"]["mean"],
        "large": numbers["found"]["additive"][-1]["mean"] - numbers["found"]["dot"][-1]["mean"],
    }
    points = {case: round(100 * value) for case, value in advantage.items()}
    measured = {
        "time": (slower, Bilingual(f"{slower:.0f} times", f"{slower:.0f} 倍")),
        "memory": (larger, Bilingual(f"{larger:.0f} times", f"{larger:.0f} 倍")),
        "unequal-dims": (
            advantage["unequal"],
            Bilingual(f"{points['unequal']:+d} points", f"{points['unequal']:+d} 个百分点"),
        ),
        "large-dim": (advantage["large"], Bilingual(f"{points['large']:+d} points", f"{points['large']:+d} 个百分点")),
    }
    dim, (query_dim, key_dim) = numbers["dims"][-1], numbers["unequal_dims"]
    fractions = {name: [numbers["unequal"][name]["mean"], numbers["found"][name][-1]["mean"]] for name in NAMES}
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"{slower:.0f} times the time and {larger:.0f} times the memory; accuracy {points['unequal']:+d} points "
            f"with different dims, {points['large']:+d} at dim {dim}",
            f"时间 {slower:.0f} 倍，内存 {larger:.0f} 倍；准确率之差：维度不同时 {points['unequal']:+d} 个百分点，"
            f"维度 {dim} 时 {points['large']:+d} 个",
        ),
        Bilingual(
            f"At dim {dim} and {numbers['tokens']} tokens additive scores take {slower:.1f} times the time and "
            f"{larger:.1f} times the memory. Accuracy with dims {query_dim} and {key_dim}, and at dim {dim}: "
            + "; ".join(f"{NAMES[name].en} {a:.0%} and {b:.0%}" for name, (a, b) in fractions.items())
            + f". Additive minus scaled dot: {points['unequal']:+d} points with different dims, "
            f"{points['large']:+d} at dim {dim}.",
            f"在维度 {dim}、{numbers['tokens']} 个词元时，加性打分函数的时间是点积的 {slower:.1f} 倍，内存是 {larger:.1f} 倍。维度为 {query_dim} 与 "
            f"{key_dim} 时，以及维度 {dim} 时的准确率："
            + "；".join(f"{NAMES[name].zh} {a:.0%} 与 {b:.0%}" for name, (a, b) in fractions.items())
            + f"。加性与缩放点积之差：维度不同时 {points['unequal']:+d} 个百分点，维度 {dim} 时 {points['large']:+d} 个百分点。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    """Accuracy by dim, accuracy with unequal dims, time, memory."""
    with subplots(language, 4, width=3.2, height=3.7) as (figure, axes):
        dims = numbers["dims"]
        for n, (name, label) in enumerate(NAMES.items()):
            values, unequal = numbers["found"][name], numbers["unequal"][name]
            bars = [value["spread"] for value in values]
            axes[0].errorbar(dims, [value["mean"] for value in values], bars, label=label(language), **line_style(n))
            colour, hatch = line_style(n)["color"], ("", "//", "..")[n]
            axes[1].bar(n, unequal["mean"], 0.6, yerr=unequal["spread"], color=colour, hatch=hatch, capsize=3)
        axes[0].legend(frameon=False, loc="lower left")
        axes[1].set_xticks(
            range(len(NAMES)), [label(language).replace(", ", ",\n").replace("（", "\n（") for label in NAMES.values()]
        )
        for n, name in enumerate(("additive", "dot")):
            label = NAMES[name](language)
            axes[2].plot(
                dims, [1e3 * value for value in numbers["times"]["seconds"][name]], label=label, **line_style(n)
            )
            axes[3].plot(dims, [value / 1e6 for value in numbers["bytes"][name]], label=label, **line_style(n))
        label_panels(axes, numbers, language)
    return figure


def label_panels(axes: list[Axes], numbers: Measurements, language: Language) -> None:
    """Titles, units and scales."""
    query_dim, key_dim = numbers["unequal_dims"]
    titles = (
        Bilingual("Accuracy, equal dims", "维度相同时的准确率"),
        Bilingual(f"Accuracy, dims {query_dim} and {key_dim}", f"维度 {query_dim} 与 {key_dim} 时的准确率"),
        Bilingual(f"Time, {numbers['tokens']} tokens", f"时间，{numbers['tokens']} 个词元"),
        Bilingual(f"Memory, {numbers['tokens']} tokens", f"内存，{numbers['tokens']} 个词元"),
    )
    units = (
        Bilingual("accuracy", "准确率"),
        Bilingual("accuracy", "准确率"),
        Bilingual("ms", "毫秒"),
        Bilingual("peak, MB", "峰值，MB"),
    )
    for axis, title, unit in zip(axes, titles, units, strict=True):
        axis.set_title(title(language))
        axis.set_ylabel(unit(language))
    for axis in (axes[0], axes[2], axes[3]):
        axis.set_xscale("log")
        axis.set_xticks(numbers["dims"], [str(dim) for dim in numbers["dims"]])
        axis.minorticks_off()
        axis.set_xlabel(Bilingual("dim", "维度")(language))
    for axis in axes[:2]:
        axis.set_ylim(0, 1.05)
    for axis in axes[2:]:
        axis.set_yscale("log")
        axis.legend(frameon=False)
