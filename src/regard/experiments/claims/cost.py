"""What it costs: measured time and memory of recurrence, convolution and attention as sequences grow."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...attention.attend import attend
from ...nn.attention import MultiHeadAttention
from ...nn.baselines.convolution import Convolution
from ...nn.baselines.recurrent import Recurrent
from ...nn.cache import Cache
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import panels, processor_times, style
from ..sequences import lengths_axis

CLAIM = Claim(
    number=9,
    name="cost",
    title=Both("Cost against length", "开销与长度"),
    claim=Both(
        "Attention takes time and memory that grow with the square of the length; recurrence, convolution, a window and "
        "a low-rank approximation grow in proportion to it. Attention and convolution compute all places at once, "
        "recurrence one after the other.",
        "注意力的时间和内存随长度的平方增长；循环、卷积、窗口注意力和低秩近似与长度成正比。注意力和卷积可同时计算所有位置，循环只能逐个计算。",
    ),
    setup=Both(
        "One layer each, forward pass, batch 1, on this machine's processor. Time is processor time on one thread, "
        "the median of several calls that take turns; memory is the peak of what torch allocates. Attention runs twice: with its weights written out as "
        "in the formula, and block by block. The exponent is the slope of log cost over log length, over the longer "
        "half of the lengths. One pass is also timed against going token by token through a cache.",
        "每种各取一层，只做前向计算，批大小为 1，在本机处理器上测量。时间是单线程的处理器时间，取轮流调用的中位数；内存是 torch 分配量的峰值。注意力测两种："
        "按公式写出全部权重，以及分块计算。指数是在较长的一半长度上，开销的对数对长度的对数的斜率。另外比较一次算完与借助缓存逐词元计算的时间。",
    ),
    threshold=Both(
        "Holds if attention's exponents are at least 1.6 in time and in memory, however it is computed, and each "
        "other's at most 1.3 in both; limited if that is so but for the memory of attention computed in blocks; else it "
        "does not hold.",
        "若无论怎样计算，注意力在时间和内存上的指数都不低于 1.6，而其余各种都不高于 1.3，则成立；若仅有分块计算的注意力的内存不符，则有条件成立；否则不成立。",
    ),
)

NAMES = {
    "recurrence": Both("LSTM", "LSTM"),
    "convolution": Both("convolution", "卷积"),
    "attention": Both("attention, weights written out", "注意力（写出权重）"),
    "blocks": Both("attention, in blocks", "注意力（分块计算）"),
    "window": Both("attention in a window of 129", "窗口注意力（129）"),
    "low rank": Both("Linformer of rank 64", "Linformer（秩 64）"),
}
LINEAR = ("recurrence", "convolution", "window", "low rank")
HEADS = 2
TIMED = True
SIZES: dict[Size, dict[str, Any]] = {
    "toy": {"lengths": [32, 64, 128, 256], "dim": 16, "budget": 0.0, "steps": 16},
    "usual": {"lengths": [256, 512, 1024, 2048, 4096, 8192], "dim": 64, "budget": 3.0, "steps": 512},
    "full": {"lengths": [512, 1024, 2048, 4096, 8192, 16384], "dim": 128, "budget": 4.0, "steps": 2048},
}

Call = Callable[[], object]


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """`bytes[name][length]`; in `times`, seconds by name and length, and seconds of passes and of steps."""
    set_up = SIZES[size]
    lengths = set_up["lengths"]
    torch.manual_seed(seed)
    seconds, peaks = {name: [] for name in NAMES}, {name: [] for name in NAMES}
    with torch.no_grad():
        for n, tokens in enumerate(lengths):
            tell(0.9 * n / len(lengths), f"{tokens} tokens")
            calls = layers(tokens, set_up["dim"])
            found = processor_times(calls, set_up["budget"])
            for name, call in calls.items():
                seconds[name].append(found[name])
                peaks[name].append(peak_bytes(call))
        tell(0.9, "one pass and step by step")
        passes = in_turn(set_up["steps"], set_up["dim"], set_up["budget"])
    return {
        "lengths": lengths,
        "bytes": peaks,
        "steps": set_up["steps"],
        "times": {"layers": seconds, "passes": passes},
    }


def layers(tokens: int, dim: int) -> dict[str, Call]:
    """A call of each layer on so many tokens."""
    x = torch.randn(1, tokens, dim)
    rank = min(64, tokens // 2)
    made = {
        "recurrence": Recurrent(dim, 1, "lstm"),
        "convolution": Convolution(dim, 1),
        "attention": WrittenOut(dim),
        "blocks": MultiHeadAttention(dim, HEADS),
        "window": MultiHeadAttention(dim, HEADS, mask="Window(before=64, after=64)"),
        "low rank": MultiHeadAttention(dim, HEADS, method=f"Linformer(tokens={tokens}, rank={rank})"),
    }
    return {name: bound(layer.eval(), x) for name, layer in made.items()}


class WrittenOut(MultiHeadAttention):
    """Multi-head attention by the formula, its matrix of weights in memory."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, HEADS)
        self.attend = Formula()


class Formula(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, **parts: Any) -> Tensor:
        return attend(q, k, v, backend="reference", **parts)


def bound(layer: nn.Module, x: Tensor) -> Call:
    return lambda: layer(x)


def in_turn(tokens: int, dim: int, budget: float) -> dict[str, dict[str, float]]:
    """Seconds of a causal layer for a whole text: in one pass, and token by token."""
    x = torch.randn(1, tokens, dim)
    made = {
        "recurrence": Recurrent(dim, 1, "lstm"),
        "convolution": Convolution(dim, 1, causal=True),
        "attention": MultiHeadAttention(dim, HEADS, mask="Causal()"),
    }
    found = {}
    for name, layer in made.items():
        layer.eval()
        found[name] = processor_times({"pass": bound(layer, x), "steps": stepped(name, layer, x)}, budget / 3)
    return found


def stepped(name: str, layer: nn.Module, x: Tensor) -> Call:
    """A call that hands the tokens over one by one; what came before is remembered."""

    def call() -> None:
        cache = Cache()
        for token in x.split(1, dim=1):
            layer(token, cache=cache.at(0) if name == "attention" else cache)
            cache.length += 1

    return call


def peak_bytes(call: Call) -> int:
    """The most bytes of tensors that a call holds at once beyond what stood before, by torch's record of allocations."""
    if torch.get_default_device().type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with hushed(), torch.profiler.profile(activities=activities, profile_memory=True) as record:
        call()
    profiler: Any = record.profiler
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@contextmanager
def hushed() -> Iterator[None]:
    """While open, what native code writes to the error stream is dropped: torch's profiler reports its own start."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


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


def exponents(numbers: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Of time and of memory, by name."""
    lengths, seconds = numbers["lengths"], numbers["times"]["layers"]
    return {name: (exponent(lengths, seconds[name]), exponent(lengths, numbers["bytes"][name])) for name in NAMES}


def verdict(numbers: dict[str, Any]) -> Verdict:
    found = exponents(numbers)
    square = min(found["attention"]) >= 1.6 and found["blocks"][0] >= 1.6
    straight = all(max(found[name]) <= 1.3 for name in LINEAR)
    kind = "fails" if not (square and straight) else "holds" if found["blocks"][1] >= 1.6 else "limited"
    ratio = {name: one["steps"] / one["pass"] for name, one in numbers["times"]["passes"].items()}
    return Verdict(
        kind,
        Both(
            f"time grows as n^{found['attention'][0]:.2f}; memory as n^{found['attention'][1]:.2f}, in blocks n^{found['blocks'][1]:.2f}",
            f"时间按 n^{found['attention'][0]:.2f} 增长；内存按 n^{found['attention'][1]:.2f}，分块时 n^{found['blocks'][1]:.2f}",
        ),
        Both(
            "Exponents of time and memory: "
            + "; ".join(f"{NAMES[name].en} {a:.2f} and {b:.2f}" for name, (a, b) in found.items())
            + f". {numbers['steps']} tokens one by one take, against one pass, "
            + ", ".join(f"{NAMES[name].en.split(',')[0]} {value:.1f}" for name, value in ratio.items())
            + " times as long.",
            "时间与内存的指数："
            + "；".join(f"{NAMES[name].zh} {a:.2f} 与 {b:.2f}" for name, (a, b) in found.items())
            + f"。逐个计算 {numbers['steps']} 个词元所需时间与一次算完之比："
            + "，".join(f"{NAMES[name].zh.split('（')[0]} {value:.1f} 倍" for name, value in ratio.items())
            + "。",
        ),
    )


def draw(numbers: dict[str, Any], language: Language) -> Any:
    """Time and memory against length, and one pass beside step by step."""
    with panels(language, 3, width=4.0, height=4.4) as (figure, axes):
        found = exponents(numbers)
        milliseconds = {name: [1e3 * value for value in row] for name, row in numbers["times"]["layers"].items()}
        megabytes = {name: [value / 1e6 for value in row] for name, row in numbers["bytes"].items()}
        kinds = (
            (milliseconds, Both("processor time (ms)", "处理器时间（毫秒）"), Both("Time of one layer", "一层的时间")),
            (megabytes, Both("peak memory (MB)", "内存峰值（MB）"), Both("Memory of one layer", "一层的内存")),
        )
        for place, (rows, unit, title) in enumerate(kinds):
            draw_growth(axes[place], numbers["lengths"], rows, [found[name][place] for name in NAMES], language)
            axes[place].set_ylabel(unit(language))
            axes[place].set_title(title(language))
        draw_passes(axes[2], numbers, language)
    return figure


def draw_growth(axes: Any, lengths: list[int], rows: dict[str, list[float]], slopes: list[float], language: Language):
    for n, (name, slope) in enumerate(zip(NAMES, slopes, strict=True)):
        axes.plot(lengths, rows[name], label=f"{NAMES[name](language)}: n^{slope:.2f}", **style(n))
    axes.set_yscale("log")
    lengths_axis(axes, lengths)
    axes.set_xlabel(Both("tokens", "词元数")(language))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def draw_passes(axes: Any, numbers: dict[str, Any], language: Language) -> None:
    passes = numbers["times"]["passes"]
    words = (("pass", Both("one pass", "一次算完"), ""), ("steps", Both("token by token", "逐词元"), "//"))
    for n, (kind, label, hatch) in enumerate(words):
        at = [place + 0.4 * n - 0.2 for place in range(len(passes))]
        values = [1e3 * one[kind] for one in passes.values()]
        colour = style(n)["color"]
        axes.bar(at, values, 0.38, label=label(language), color=colour, hatch=hatch, edgecolor="white")
    axes.set_yscale("log")
    names = [NAMES[name](language).split(",")[0].split("（")[0] for name in passes]
    axes.set_xticks(range(len(passes)), names)
    axes.set_ylabel(Both("processor time (ms)", "处理器时间（毫秒）")(language))
    axes.set_title(Both(f"{numbers['steps']} tokens, causal", f"{numbers['steps']} 个词元，因果")(language))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
