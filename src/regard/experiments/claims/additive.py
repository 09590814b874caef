"""Additive against dot-product scores: what they find, how long they take and what they hold in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from ...attention.attend import attend
from ...nn.parts import SCORES, part_module
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import drawing, fit, panels, part, processor_times, style
from ..sequences import over_seeds
from .cost import Call, peak_bytes

CLAIM = Claim(
    number=12,
    name="additive",
    title=Both("Additive and dot-product scores", "加性与点积"),
    claim=Both(
        "The dot product is the quicker score; the additive one, wᵀtanh(W_q q + W_k k), is for queries and keys of "
        "different dims, and for large ones.",
        "点积是最高效的打分方式；加性打分 wᵀtanh(W_q q + W_k k) 用于 Query 和 Key 维度不同、或维度很大的情形。",
    ),
    setup=Both(
        "A query is a noisy copy of one of 16 random keys, seen through a fixed random matrix; the score must find it. "
        "Additive, scaled dot and unscaled dot scores, each after linear maps of query (with a bias) and key, learn it "
        "until the loss is small, for at most as many steps as one another, at several dims, and once with queries of a "
        "third of the keys' dim. Processor time and memory are those "
        "of one head, forward and backward, with all scores written out.",
        "Query 是 16 个随机 Key 之一带噪声的副本，并经过一个固定的随机矩阵；打分要找出它。加性、缩放点积、不缩放点积都先对 Query（带偏置）和 Key 作线性映射，"
        "在若干维度上学习到损失足够小为止，步数上限相同，另有一次 Query 的维度只有 Key 的三分之一。处理器时间和内存取单头、前向加反向、写出全部分数时的值。",
    ),
    threshold=Both(
        "Holds if additive scores take at least twice the time and twice the memory of dot products at the largest dim, "
        "and find the key at least 5 points more often than scaled dot products both where dims differ and at the "
        "largest dim. Limited if the costs are so but not both findings; else it does not hold.",
        "若在最大维度上加性打分的时间和内存都至少是点积的两倍，并且在维度不同时和最大维度上，找对的比例都比缩放点积至少高 5 个百分点，则成立；"
        "若开销如此而两处的比例并非都如此，则有条件成立；否则不成立。",
    ),
)

NAMES = {
    "additive": Both("additive", "加性"),
    "dot": Both("dot, scaled", "点积（缩放）"),
    "plain dot": Both("dot, not scaled", "点积（不缩放）"),
}
LINES = {"additive": "Additive()", "dot": "Dot()", "plain dot": "Dot(scale=1.0)"}
KEYS = 16
TIMED = True
SIZES: dict[Size, dict[str, Any]] = {
    "toy": {"dims": [6, 12], "steps": 10, "batch": 8, "seeds": 1, "tokens": 16, "budget": 0.0},
    "usual": {"dims": [6, 24, 64, 192], "steps": 1000, "batch": 32, "seeds": 2, "tokens": 256, "budget": 1.0},
    "full": {"dims": [6, 24, 96, 384], "steps": 4000, "batch": 128, "seeds": 5, "tokens": 512, "budget": 4.0},
}


class Finder(nn.Module):
    """One query looks for a key: the weights `[batch, keys]` of attention after linear maps to `dim`."""

    def __init__(self, query_dim: int, key_dim: int, score: str) -> None:
        super().__init__()
        # without a bias Σ w tanh(q + k) changes its sign with (q, k), which no measure of likeness does
        self.q, self.k = nn.Linear(query_dim, key_dim), nn.Linear(key_dim, key_dim, bias=False)
        self.score = part_module(LINES[score], SCORES, 1, key_dim)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        names = torch.eye(KEYS, dtype=query.dtype).expand(len(query), 1, -1, -1)
        found = attend(self.q(query)[:, None, None], self.k(keys)[:, None], names, score=self.score())
        return found[:, 0, 0]


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    """`found[name][dim]` and `unequal[name]`, spread over seeds; `bytes` and, in `times`, `seconds` by name and dim."""
    set_up = SIZES[size]
    dims, seeds = set_up["dims"], range(seed, seed + set_up["seeds"])
    jobs = [(name, dim, dim) for name in NAMES for dim in dims] + [(name, dims[1] // 3, dims[1]) for name in NAMES]
    results = []
    for n, (name, query_dim, dim) in enumerate(jobs):
        told = part(tell, 0.8 * n / len(jobs), 0.8 * (n + 1) / len(jobs), f"{name}, dims {query_dim} and {dim}")
        results.append(over_seeds(partial(searched, name, query_dim, dim, set_up), seeds, told))
    tell(0.8, "time and memory")
    seconds, peaks = costs(dims, set_up["tokens"], set_up["budget"], seed)
    count = len(dims)
    return {
        "dims": dims,
        "tokens": set_up["tokens"],
        "found": {name: results[n * count : (n + 1) * count] for n, name in enumerate(NAMES)},
        "unequal": dict(zip(NAMES, results[-len(NAMES) :], strict=True)),
        "unequal_dims": [dims[1] // 3, dims[1]],
        "bytes": peaks,
        "times": {"seconds": seconds},
    }


def searched(name: str, query_dim: int, dim: int, set_up: dict[str, Any], seed: int, tell: Tell) -> float:
    """The share of queries whose key gets the largest weight."""
    torch.manual_seed(seed)
    generator = drawing(seed)
    through = torch.randn(dim, query_dim, generator=generator) / dim**0.5
    model = Finder(query_dim, dim, name)

    def batch(rows: int) -> tuple[Tensor, Tensor, Tensor]:
        keys = torch.randn(rows, KEYS, dim, generator=generator)
        wanted = torch.randint(KEYS, (rows,), generator=generator)
        query = keys[torch.arange(rows), wanted] @ through
        return query + 0.2 * torch.randn(query.shape, generator=generator), keys, wanted

    def loss() -> Tensor:
        query, keys, wanted = batch(set_up["batch"])
        return nll_loss(model(query, keys).clamp(min=1e-9).log(), wanted)

    fit(model, loss, set_up["steps"], 5e-3, tell, enough=0.02)
    query, keys, wanted = batch(1024)
    with torch.no_grad():
        return (model(query, keys).argmax(-1) == wanted).float().mean().item()


def costs(
    dims: list[int], tokens: int, budget: float, seed: int
) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    """Seconds and peak bytes of one head, forward and backward, by score and dim."""
    torch.manual_seed(seed)
    seconds: dict[str, list[float]] = {name: [] for name in ("additive", "dot")}
    peaks: dict[str, list[int]] = {name: [] for name in seconds}
    for dim in dims:
        calls = {name: there_and_back(name, tokens, dim) for name in seconds}
        found = processor_times(calls, budget)
        for name, call in calls.items():
            seconds[name].append(found[name])
            peaks[name].append(peak_bytes(call))
    return seconds, peaks


def there_and_back(name: str, tokens: int, dim: int) -> Call:
    q, k, v = (torch.randn(1, 1, tokens, dim, requires_grad=True) for _ in range(3))
    score = part_module(LINES[name], SCORES, 1, dim)()

    def call() -> None:
        torch.autograd.grad(attend(q, k, v, score=score, backend="reference").sum(), (q, k, v))

    return call


def verdict(numbers: dict[str, Any]) -> Verdict:
    seconds, peaks = numbers["times"]["seconds"], numbers["bytes"]
    slower, larger = (costs["additive"][-1] / costs["dot"][-1] for costs in (seconds, peaks))
    ahead = {
        "unequal": numbers["unequal"]["additive"]["mean"] - numbers["unequal"]["dot"]["mean"],
        "large": numbers["found"]["additive"][-1]["mean"] - numbers["found"]["dot"][-1]["mean"],
    }
    points = {case: round(100 * value) for case, value in ahead.items()}
    dear = min(slower, larger) >= 2
    kind = "fails" if not dear else "holds" if min(ahead.values()) >= 0.05 else "limited"
    dim, (query_dim, key_dim) = numbers["dims"][-1], numbers["unequal_dims"]
    shares = {name: [numbers["unequal"][name]["mean"], numbers["found"][name][-1]["mean"]] for name in NAMES}
    return Verdict(
        kind,
        Both(
            f"{slower:.0f} times the time and {larger:.0f} times the memory; finds {points['unequal']:+d} points more "
            f"where dims differ, {points['large']:+d} at dim {dim}",
            f"时间 {slower:.0f} 倍，内存 {larger:.0f} 倍；找对的比例在维度不同时相差 {points['unequal']:+d} 个百分点，"
            f"维度 {dim} 时 {points['large']:+d} 个",
        ),
        Both(
            f"At dim {dim} and {numbers['tokens']} tokens additive scores take {slower:.1f} times the time and "
            f"{larger:.1f} times the memory. Keys found with dims {query_dim} and {key_dim}, and at dim {dim}: "
            + "; ".join(f"{NAMES[name].en} {a:.0%} and {b:.0%}" for name, (a, b) in shares.items())
            + f". Additive against scaled dot: {points['unequal']:+d} points where dims differ, "
            f"{points['large']:+d} at dim {dim}.",
            f"在维度 {dim}、{numbers['tokens']} 个词元时，加性打分的时间是点积的 {slower:.1f} 倍，内存是 {larger:.1f} 倍。维度为 {query_dim} 与 "
            f"{key_dim} 时，以及维度 {dim} 时，找对的比例："
            + "；".join(f"{NAMES[name].zh} {a:.0%} 与 {b:.0%}" for name, (a, b) in shares.items())
            + f"。加性与缩放点积之差：维度不同时 {points['unequal']:+d} 个百分点，维度 {dim} 时 {points['large']:+d} 个百分点。",
        ),
    )


def draw(numbers: dict[str, Any], language: Language) -> Any:
    """Keys found by dim, found with different dims, time, memory."""
    with panels(language, 4, width=3.2, height=3.7) as (figure, axes):
        dims = numbers["dims"]
        for n, (name, label) in enumerate(NAMES.items()):
            values, one = numbers["found"][name], numbers["unequal"][name]
            bars = [value["spread"] for value in values]
            axes[0].errorbar(dims, [value["mean"] for value in values], bars, label=label(language), **style(n))
            colour, hatch = style(n)["color"], ("", "//", "..")[n]
            axes[1].bar(n, one["mean"], 0.6, yerr=one["spread"], color=colour, hatch=hatch, capsize=3)
        axes[0].legend(frameon=False, loc="lower left")
        axes[1].set_xticks(
            range(len(NAMES)), [label(language).replace(", ", ",\n").replace("（", "\n（") for label in NAMES.values()]
        )
        for n, name in enumerate(("additive", "dot")):
            label = NAMES[name](language)
            axes[2].plot(dims, [1e3 * value for value in numbers["times"]["seconds"][name]], label=label, **style(n))
            axes[3].plot(dims, [value / 1e6 for value in numbers["bytes"][name]], label=label, **style(n))
        name_panels(axes, numbers, language)
    return figure


def name_panels(axes: list[Any], numbers: dict[str, Any], language: Language) -> None:
    """Titles, units and scales."""
    query_dim, key_dim = numbers["unequal_dims"]
    titles = (
        Both("Key found, equal dims", "维度相同时找对的比例"),
        Both(f"Key found, dims {query_dim} and {key_dim}", f"维度 {query_dim} 与 {key_dim} 时找对的比例"),
        Both(f"Time, {numbers['tokens']} tokens", f"时间，{numbers['tokens']} 个词元"),
        Both(f"Memory, {numbers['tokens']} tokens", f"内存，{numbers['tokens']} 个词元"),
    )
    units = (Both("share", "比例"), Both("share", "比例"), Both("ms", "毫秒"), Both("peak, MB", "峰值，MB"))
    for axis, title, unit in zip(axes, titles, units, strict=True):
        axis.set_title(title(language))
        axis.set_ylabel(unit(language))
    for axis in (axes[0], axes[2], axes[3]):
        axis.set_xscale("log")
        axis.set_xticks(numbers["dims"], [str(dim) for dim in numbers["dims"]])
        axis.minorticks_off()
        axis.set_xlabel(Both("dim", "维度")(language))
    for axis in axes[:2]:
        axis.set_ylim(0, 1.05)
    for axis in axes[2:]:
        axis.set_yscale("log")
        axis.legend(frameon=False)
