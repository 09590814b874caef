"""Time and memory of recurrence, convolution and attention by sequence length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor, nn

from ...attention.attend import attend
from ...nn.attention import Attend, MultiHeadAttention, ShardedOptions
from ...nn.baselines.convolution import Convolution
from ...nn.baselines.recurrent import Recurrent
from ...nn.cache import Cache
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import DIM_TEXT, NO_SETTINGS, Settings, count, from_sizes, resolve_counts
from ..progress import ProgressCallback
from ..toolkit.figures import line_style, set_length_ticks, subplots
from ..toolkit.profiling import Call, median_times, peak_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=9,
    name="cost",
    title=Bilingual("Cost and sequence length", "开销与序列长度"),
    claim=Bilingual(
        "The time and memory of attention grow with the square of the length; those of recurrence, convolution, "
        "windowed attention and low-rank approximations grow linearly. Attention and convolution compute all "
        "positions in parallel, recurrence computes them sequentially.",
        "注意力的时间和内存随长度的平方增长；循环、卷积、窗口注意力和低秩近似与长度成正比。"
        "注意力和卷积可并行计算所有位置，循环只能逐个计算。",
    ),
    setup=Bilingual(
        "One layer each, forward pass, batch 1, on the CPU. Time is CPU time on one thread, the median of several "
        "interleaved calls; memory is the peak of torch's allocations. Attention is measured twice: with the weights "
        "materialized as in the formula, and block by block. The exponent is the slope of log cost over log length, "
        "over the longer half of the lengths. One parallel pass is also timed against token-by-token computation "
        "with a cache.",
        "每种各取一层，只做前向计算，批大小为 1，在 CPU 上测量。时间是单线程的 CPU 时间，取交替调用的中位数；"
        "内存是 torch 分配量的峰值。注意力测两种：按公式显式存储全部权重，以及分块计算。指数是在较长的一半长度上，"
        "开销的对数对长度的对数的斜率。另外比较一次并行计算与使用缓存逐词元计算的时间。",
    ),
    criteria=(
        Criterion(
            "time",
            Bilingual(
                "The time of attention grows with the square of the length (exponent at least 1.6, weights materialized or blockwise)",
                "注意力的时间随长度的平方增长（指数不低于 1.6，无论显式存储权重还是分块计算）",
            ),
            ">=",
            1.6,
            core=True,
        ),
        Criterion(
            "memory",
            Bilingual(
                "So does its memory if the weights are materialized (exponent at least 1.6)",
                "显式存储权重时，内存也是如此（指数不低于 1.6）",
            ),
            ">=",
            1.6,
            core=True,
        ),
        Criterion(
            "blockwise-memory",
            Bilingual(
                "So does its memory if it is computed blockwise (exponent at least 1.6)",
                "分块计算时，内存也是如此（指数不低于 1.6）",
            ),
            ">=",
            1.6,
        ),
        Criterion(
            "linear",
            Bilingual(
                "Recurrence, convolution, windows and low rank grow linearly in time and memory (exponents at most 1.3)",
                "循环、卷积、窗口和低秩近似的时间和内存都线性增长（指数不高于 1.3）",
            ),
            "<=",
            1.3,
            core=True,
        ),
    ),
)

LAYER_LABELS = {
    "recurrence": Bilingual("LSTM", "LSTM"),
    "convolution": Bilingual("convolution", "卷积"),
    "attention": Bilingual("attention, weights materialized", "注意力（显式权重）"),
    "blocks": Bilingual("attention, blockwise", "注意力（分块计算）"),
    "window": Bilingual("windowed attention (129)", "窗口注意力（129）"),
    "low rank": Bilingual("Linformer (rank 64)", "Linformer（秩 64）"),
}
LINEAR_LAYERS = ("recurrence", "convolution", "window", "low rank")
HEADS = 2
TIMED = True
LENGTHS: dict[Size, list[int]] = {
    "toy": [32, 64, 128, 256],
    "usual": [256, 512, 1024, 2048, 4096, 8192],
    "full": [512, 1024, 2048, 4096, 8192, 16384],
}
SECONDS: dict[Size, float] = {"toy": 0.0, "usual": 3.0, "full": 4.0}
SIZES: dict[Size, dict[str, int]] = {
    "toy": {"dim": 16, "steps": 16},
    "usual": {"dim": 64, "steps": 512},
    "full": {"dim": 128, "steps": 2048},
}
PARAMETERS = (
    from_sizes(SIZES, "dim", DIM_TEXT, 4, 512, multiple=4),
    count(
        "longest",
        Bilingual("longest sequence", "最长序列"),
        64,
        32768,
        {size: LENGTHS[size][-1] for size in LENGTHS},
    ),
    count(
        "steps",
        Bilingual("tokens computed one by one", "逐个计算的词元数"),
        2,
        4096,
        {size: SIZES[size]["steps"] for size in SIZES},
    ),
)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    """`bytes[name][length]`; in `times`, seconds by name and length, and seconds of passes and of steps."""
    config = SIZES[size] | resolve_counts(PARAMETERS, size, settings)
    lengths = [length for length in LENGTHS[size] if length < config["longest"]] + [config["longest"]]
    torch.manual_seed(seed)
    seconds, peaks = {name: [] for name in LAYER_LABELS}, {name: [] for name in LAYER_LABELS}
    with torch.no_grad():
        for n, tokens in enumerate(lengths):
            progress(0.9 * n / len(lengths), f"{tokens} tokens")
            calls = layer_calls(tokens, config["dim"])
            times = median_times(calls, SECONDS[size])
            for name, call in calls.items():
                seconds[name].append(times[name])
                peaks[name].append(peak_bytes(call))
        progress(0.9, "one pass and step by step")
        passes = time_passes(config["steps"], config["dim"], SECONDS[size])
    return {
        "lengths": lengths,
        "bytes": peaks,
        "steps": config["steps"],
        "times": {"layers": seconds, "passes": passes},
    }


def layer_calls(tokens: int, dim: int) -> dict[str, Call]:
    """A call of each layer on a sequence of `tokens`."""
    x = torch.randn(1, tokens, dim)
    rank = min(64, tokens // 2)
    layers = {
        "recurrence": Recurrent(dim, 1, "lstm"),
        "convolution": Convolution(dim, 1),
        "attention": MaterializedAttention(dim),
        "blocks": MultiHeadAttention(dim, HEADS),
        "window": MultiHeadAttention(dim, HEADS, mask="Window(before=64, after=64)"),
        "low rank": MultiHeadAttention(dim, HEADS, method=f"Linformer(tokens={tokens}, rank={rank})"),
    }
    return {name: bind_input(layer.eval(), x) for name, layer in layers.items()}


class MaterializedAttention(MultiHeadAttention):
    """Multi-head attention that materializes its weights."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, HEADS)
        self.attend = ReferenceAttend()


class ReferenceAttend(Attend):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Unpack[ShardedOptions]) -> Tensor:
        return attend(q, k, v, **options, backend="reference")


def bind_input(layer: nn.Module, x: Tensor) -> Call:
    return lambda: layer(x)


def time_passes(tokens: int, dim: int, budget: float) -> dict[str, dict[str, float]]:
    """Seconds of a causal layer for a sequence in one pass and token by token."""
    x = torch.randn(1, tokens, dim)
    layers = {
        "recurrence": Recurrent(dim, 1, "lstm"),
        "convolution": Convolution(dim, 1, causal=True),
        "attention": MultiHeadAttention(dim, HEADS, mask="Causal()"),
    }
    times = {}
    for name, layer in layers.items():
        layer.eval()
        times[name] = median_times({"pass": bind_input(layer, x), "steps": step_by_step(name, layer, x)}, budget / 3)
    return times


def step_by_step(name: str, layer: nn.Module, x: Tensor) -> Call:
    """A call that processes one token at a time with a cache."""

    def call() -> None:
        cache = Cache()
        for token in x.split(1, dim=1):
            layer(token, cache=cache.layer(0) if name == "attention" else cache)
            cache.length += 1

    return call


def exponent(lengths: Sequence[int], costs: Sequence[float]) -> float:
    """The slope of log cost over log length by least squares, over the longer half of the lengths.

    >>> round(exponent([1, 2, 4, 8], [3, 12, 48, 192]), 6)
    2.0
    """
    half = len(lengths) // 2
    x, y = [[math.log(max(value, 1e-12)) for value in values[half:]] for values in (lengths, costs)]
    middle, height = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True))
    return rise / sum((a - middle) ** 2 for a in x)


def exponents(numbers: Measurements) -> dict[str, tuple[float, float]]:
    """The exponents of time and memory of each layer."""
    lengths, seconds = numbers["lengths"], numbers["times"]["layers"]
    return {
        name: (exponent(lengths, seconds[name]), exponent(lengths, numbers["bytes"][name])) for name in LAYER_LABELS
    }


def verdict(numbers: Measurements) -> Verdict:
    exponent_pairs = exponents(numbers)
    (time, memory), (block_time, block_memory) = exponent_pairs["attention"], exponent_pairs["blocks"]
    linear = max(max(exponent_pairs[name]) for name in LINEAR_LAYERS)
    measured = {
        "time": (
            min(time, block_time),
            Bilingual(f"n^{time:.2f}, blockwise n^{block_time:.2f}", f"n^{time:.2f}，分块时 n^{block_time:.2f}"),
        ),
        "memory": (memory, Bilingual.same(f"n^{memory:.2f}")),
        "blockwise-memory": (block_memory, Bilingual.same(f"n^{block_memory:.2f}")),
        "linear": (linear, Bilingual(f"at most n^{linear:.2f}", f"最多 n^{linear:.2f}")),
    }
    ratio = {name: times["steps"] / times["pass"] for name, times in numbers["times"]["passes"].items()}
    return judge(
        CLAIM,
        measured,
        Bilingual(
            f"time grows as n^{exponent_pairs['attention'][0]:.2f}; memory as n^{exponent_pairs['attention'][1]:.2f}, blockwise n^{exponent_pairs['blocks'][1]:.2f}",
            f"时间按 n^{exponent_pairs['attention'][0]:.2f} 增长；内存按 n^{exponent_pairs['attention'][1]:.2f}，分块时 n^{exponent_pairs['blocks'][1]:.2f}",
        ),
        Bilingual(
            "Exponents of time and memory: "
            + "; ".join(f"{LAYER_LABELS[name].en} {a:.2f} and {b:.2f}" for name, (a, b) in exponent_pairs.items())
            + f". {numbers['steps']} tokens computed one by one take, compared with one pass, "
            + ", ".join(f"{LAYER_LABELS[name].en.split(',')[0]} {value:.1f}" for name, value in ratio.items())
            + " times as long.",
            "时间与内存的指数："
            + "；".join(f"{LAYER_LABELS[name].zh} {a:.2f} 与 {b:.2f}" for name, (a, b) in exponent_pairs.items())
            + f"。逐个计算 {numbers['steps']} 个词元与一次并行计算的时间之比："
            + "，".join(f"{LAYER_LABELS[name].zh.split('（')[0]} {value:.1f} 倍" for name, value in ratio.items())
            + "。",
        ),
    )


def draw(numbers: Measurements, language: Language) -> Figure:
    """Time and memory by length, and one pass beside token by token."""
    with subplots(language, 3, width=4.0, height=4.4) as (figure, axes):
        exponent_pairs = exponents(numbers)
        milliseconds = {name: [1e3 * value for value in row] for name, row in numbers["times"]["layers"].items()}
        megabytes = {name: [value / 1e6 for value in row] for name, row in numbers["bytes"].items()}
        panels = (
            (
                milliseconds,
                Bilingual("CPU time (ms)", "CPU 时间（毫秒）"),
                Bilingual("Time of one layer", "一层的时间"),
            ),
            (
                megabytes,
                Bilingual("peak memory (MB)", "内存峰值（MB）"),
                Bilingual("Memory of one layer", "一层的内存"),
            ),
        )
        for n, (rows, unit, title) in enumerate(panels):
            draw_growth(axes[n], numbers["lengths"], rows, [exponent_pairs[name][n] for name in LAYER_LABELS], language)
            axes[n].set_ylabel(unit(language))
            axes[n].set_title(title(language))
        draw_passes(axes[2], numbers, language)
    return figure


def draw_growth(axes: Axes, lengths: list[int], rows: dict[str, list[float]], slopes: list[float], language: Language):
    for n, (name, slope) in enumerate(zip(LAYER_LABELS, slopes, strict=True)):
        axes.plot(lengths, rows[name], label=f"{LAYER_LABELS[name](language)}: n^{slope:.2f}", **line_style(n))
    axes.set_yscale("log")
    set_length_ticks(axes, lengths)
    axes.set_xlabel(Bilingual("tokens", "词元数")(language))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def draw_passes(axes: Axes, numbers: Measurements, language: Language) -> None:
    passes = numbers["times"]["passes"]
    series = (
        ("pass", Bilingual("one pass", "一次并行计算"), ""),
        ("steps", Bilingual("token by token", "逐词元"), "//"),
    )
    for n, (key, label, hatch) in enumerate(series):
        at = [n_layer + 0.4 * n - 0.2 for n_layer in range(len(passes))]
        values = [1e3 * times[key] for times in passes.values()]
        colour = line_style(n)["color"]
        axes.bar(at, values, 0.38, label=label(language), color=colour, hatch=hatch, edgecolor="white")
    axes.set_yscale("log")
    names = [LAYER_LABELS[name](language).split(",")[0].split("（")[0] for name in passes]
    axes.set_xticks(range(len(passes)), names)
    axes.set_ylabel(Bilingual("CPU time (ms)", "CPU 时间（毫秒）")(language))
    axes.set_title(Bilingual(f"{numbers['steps']} tokens, causal", f"{numbers['steps']} 个词元，因果")(language))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
