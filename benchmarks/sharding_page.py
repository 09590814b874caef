"""The page of the documentation about sharded attention at scale, with its figure, from results/sharding.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"en": DOCS / "sharding-results.md", "zh": DOCS / "sharding-results.zh.md"}
FIGURE = DOCS / "pictures" / "sharding.svg"
OURS = ("equal runs", "equal work", "zigzag", "longest first")
OTHERS = ("all-gather", "ring", "Ulysses")
MASKS_ZH = {
    "causal": "因果",
    "causal window": "因果窗口",
    "documents": "文档",
    "Longformer": "Longformer",
    "BigBird": "BigBird",
}
WORDS: dict[str, dict[str, Any]] = {
    "en": {
        "title": "Sharded attention at scale",
        "intro": "What [sequences over several processes](how-to/long-sequences.md) cost: predicted to ten million tokens "
        "beside an all-gather of all keys, a ring and Ulysses, and checked on one machine. `python "
        "benchmarks/sharding.py` measures again; `--write` generates this page from "
        "`benchmarks/results/sharding.json`.",
        "predicted": "Predictions",
        "predicted text": "`regard plan scale`: one forward pass, 32 heads over 8 of 128, bfloat16, InfiniBand of 400 "
        "Gbit/s. Ours is the fastest of the four strategies. Each cell: milliseconds, and megabytes that a rank receives. "
        "Ulysses needs a head for each rank, so it ends at 32 ranks.",
        "predicted head": ("mask", "tokens, ranks", "ours", "strategy", "balance", *OTHERS),
        "figure": "Predicted time by mask and method",
        "gloo": "Checked on this machine",
        "gloo text": "gloo, processes of one CPU core or less, {tokens} tokens, 4 heads of 32, float32. Bytes are counted "
        "as they arrive. The plan knows the latency, the bandwidth, the speed of dense attention and the time of a piece "
        "that were measured just before, in the same processes; it does not know that a mask's mixed tiles cost more than full ones, "
        "and that BigBird's tiles are mostly empty. Others use the machine: where processes share a core, a dense mask takes up to three times what is predicted.",
        "gloo head": ("mask", "processes", "strategy", "bytes equal the plan's", "times fewer than an all-gather",
                      "ms measured", "ms planned"),
        "torch": "Beside torch's context parallelism",
        "torch text": "`flex_cp_allgather` with FlexAttention compiled (torch {version}), forward, 8,192 tokens, the same "
        "processes. Its ring for SDPA does not run on CPUs. It has no Longformer and no BigBird to compare with here: "
        "its mask is one function of two positions. Times are of a shared machine.",
        "torch head": ("mask", "processes", "greatest difference", "MB received", "MB of torch", "ms", "ms of torch"),
        "calls": "Random calls",
        "calls text": "Random masks, scores, positions, sinks, biases and dropout over several processes, float64, beside "
        "the reference in one process: outputs and all gradients. The bytes that each process receives in a forward pass are "
        "counted as they arrive.",
        "calls head": ("processes", "calls", "greatest relative error", "of views", "same bits twice",
                       "bytes equal the plan's"),
        "gpu": "Random calls on a GPU",
        "gpu text": "The same kinds of calls over {ranks} processes that share one {device} (torch {torch}, Triton {triton}, {date}), "
        "{calls} in all: {kernels}. Each output and each gradient is beside the reference in float64; the error is given as a "
        "share of what is allowed, twice the error of the reference in the type itself and a few roundings. What is beyond it is "
        "computed in one process too. The pieces of a call that learns a part are "
        "summed with exact weights, and the gradients of parts over the processes in float32.",
        "gpu head": ("type", "calls", "tensors", "greatest share of the allowed error", "calls beyond it", "of these in one process too",
                     "same bits twice and on all processes"),
        "kernels": {"triton": "fused kernels compute the pieces of {}", "edges": "sums along edges those of {}",
                    "blockwise": "tiles those of {}"},
        "comma": ", ",
        "yes": "yes", "no": "no",
    },
    "zh": {
        "title": "大规模分片注意力",
        "intro": "[把长序列分到多个进程](how-to/long-sequences.md)的代价：预测到一千万个词元，与收集全部键（all-gather）、环形传递（ring）和 Ulysses 对比，"
        "并在一台机器上核对。`python benchmarks/sharding.py` 重新测量；`--write` 由 `benchmarks/results/sharding.json` 生成本页。",
        "predicted": "预测",
        "predicted text": "`regard plan scale`：一次前向，32 个头对 8 个键值头，维度 128，bfloat16，400 Gbit/s 的 InfiniBand。“本项目”是四种策略中最快的。"
        "每格：毫秒，以及一个进程收到的兆字节。Ulysses 的进程数不能超过头数，因此止于 32 个进程。",
        "predicted head": ("掩码", "词元数，进程数", "本项目", "策略", "均衡", *OTHERS),
        "figure": "各掩码、各方法的预测时间",
        "gloo": "在本机核对",
        "gloo text": "gloo，每个进程至多一个 CPU 核心，{tokens} 个词元，4 个头，维度 32，float32。字节数在到达时统计。预测使用事先在同样的进程中测得的延迟、带宽、稠密注意力的速度和"
        "每一小块的时间；它没有计入掩码的混合分块比全满分块更费时，"
        "也没有计入 BigBird 的分块大半是空的。机器由多人共用：多个进程共用一个核心时，稠密掩码最多用预测时间的三倍。",
        "gloo head": ("掩码", "进程数", "策略", "字节数与计划相等", "比 all-gather 少（倍）", "实测毫秒", "预测毫秒"),
        "torch": "与 torch 的上下文并行对比",
        "torch text": "`flex_cp_allgather` 加编译后的 FlexAttention（torch {version}），前向，8,192 个词元，进程相同。它的 SDPA 环不能在 CPU 上运行。"
        "它的掩码是两个位置的一个函数，这里不比较 Longformer 和 BigBird。时间是在共用的机器上测的。",
        "torch head": ("掩码", "进程数", "最大差别", "收到 MB", "torch 收到 MB", "毫秒", "torch 毫秒"),
        "calls": "随机调用",
        "calls text": "随机的掩码、打分函数、位置编码、sink、偏置和 dropout，分到多个进程，float64，与单进程的参考实现对比：输出和全部梯度。"
        "每个进程在前向中收到的字节数在到达时统计。",
        "calls head": ("进程数", "调用数", "最大相对误差", "视图的误差", "两次逐位相同", "字节数与计划相等"),
        "gpu": "GPU 上的随机调用",
        "gpu text": "同样的几类调用，分到共用一块 {device} 的 {ranks} 个进程（torch {torch}，Triton {triton}，{date}），共 {calls} 次：{kernels}。"
        "每个输出和每个梯度都与 float64 的参考实现对比；误差写成允许误差的几分之几，允许误差是参考实现在该类型下自身误差的两倍再加几次舍入。超出的调用也在单进程中算了一遍。"
        "学习某个部件的调用，其小块用精确的权重求和，部件的梯度在各进程之间以 float32 相加。",
        "gpu head": ("类型", "调用数", "张量数", "误差与允许误差之比的最大值", "超出的调用数", "其中单进程也超出", "两次以及各进程逐位相同"),
        "kernels": {"triton": "{} 次的小块由融合内核计算", "edges": "{} 次沿边求和", "blockwise": "{} 次由分块计算"},
        "comma": "，",
        "yes": "是", "no": "否",
    },
}  # fmt: skip


def table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in [list(head), ["---"] * len(head), *rows]]
    return "\n".join(lines)


def mask_name(name: str, language: str) -> str:
    """The name of a mask in a language; numbers stay."""
    if language == "en":
        return name
    first = next((key for key in sorted(MASKS_ZH, key=len, reverse=True) if name.startswith(key)), name)
    return f"{MASKS_ZH.get(first, first)} {''.join(c for c in name if c.isdigit())}".strip()


def best(methods: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest of our strategies."""
    return min((one for one in methods if one["method"] in OURS), key=lambda one: one["seconds"])


def cell(one: dict[str, Any] | None) -> str:
    if one is None:
        return "–"
    time = one["seconds"] * 1e3
    return f"{f'{time:,.0f}' if time >= 1000 else f'{time:.3g}'} ms, {one['received'] / 1e6:,.0f} MB"


def prediction_rows(result: dict[str, Any], language: str) -> list[list[str]]:
    rows = []
    for one in result.get("predictions", []):
        methods, ours = {x["method"]: x for x in one["methods"]}, best(one["methods"])
        size = f"{one['tokens']:,}, {one['ranks']}"
        front = [mask_name(one["mask"], language), size, cell(ours), ours["method"], f"{ours['balance']:.2f}"]
        rows.append([*front, *(cell(methods.get(name)) for name in OTHERS)])
    return rows


def gloo_rows(result: dict[str, Any], language: str) -> list[list[str]]:
    words, rows = WORDS[language], []
    for run in result.get("gloo", []):
        for one in run["rows"]:
            mean = sum(one["bytes received"]) / len(one["bytes received"])
            fewer = f"{one['bytes of an all-gather'] / mean:.1f}" if mean else "∞"
            equal = words["yes" if one["bytes equal the plan's"] else "no"]
            times = [f"{one[name] * 1e3:.0f}" for name in ("seconds", "seconds planned")]
            rows.append(
                [mask_name(one["mask"], language), str(run["ranks"]), f"`{one['strategy']}`", equal, fewer, *times]
            )
    return rows


def torch_rows(result: dict[str, Any], language: str) -> list[list[str]]:
    rows = []
    for run in result.get("torch", []):
        for one in run["rows"]:
            ours = sum(one["bytes"]) / len(one["bytes"])
            sizes = [f"{x / 1e6:.2f}" for x in (ours, one["bytes of torch"])]
            times = [f"{one[name] * 1e3:.0f}" for name in ("seconds", "seconds of torch")]
            front = [mask_name(one["mask"], language), str(run["ranks"]), f"{one['greatest difference']:.0e}"]
            rows.append([*front, *sizes, *times])
    return rows


def call_rows(result: dict[str, Any], language: str) -> list[list[str]]:
    words, rows = WORDS[language], []
    for one in result.get("calls", []):
        errors = [f"{one[name]:.0e}" for name in ("greatest error", "greatest error of views")]
        same = [words["yes" if one[name] else "no"] for name in ("same bits twice", "bytes equal the plan's")]
        rows.append([str(one["ranks"]), str(one["calls"]), *errors, *same])
    return rows


def gpu_rows(result: dict[str, Any], language: str) -> list[list[str]]:
    words, rows = WORDS[language], []
    for one in result.get("gpu", {}).get("rows", []):
        same = words["yes" if one["same bits"] and one["same bits on all ranks"] else "no"]
        share = f"{one['greatest share of the allowed error']:.2g}"
        counts = [str(one[name]) for name in ("beyond what is allowed", "in one process too")]
        rows.append([one["dtype"], str(one["calls"]), str(one["tensors"]), share, *counts, same])
    return rows


def gpu_facts(result: dict[str, Any], language: str) -> dict[str, Any]:
    """What the text about the GPU names; nothing where none was measured."""
    if "gpu" not in result:
        return {}
    words, gpu = WORDS[language], result["gpu"]
    kernels = [text.format(gpu["calls by kernels"].get(name, 0)) for name, text in words["kernels"].items()]
    facts = {name: gpu[name] for name in ("ranks", "device", "date", "calls")}
    facts |= {name: gpu["versions"][name] for name in ("torch", "triton")}
    return facts | {"kernels": words["comma"].join(kernels)}


def page(result: dict[str, Any], language: str) -> str:
    """The page in a language."""
    words = WORDS[language]
    version = result.get("versions", {}).get("torch", "")
    sections = {
        "predicted": prediction_rows(result, language),
        "gloo": gloo_rows(result, language),
        "torch": torch_rows(result, language),
        "calls": call_rows(result, language),
        "gpu": gpu_rows(result, language),
    }
    facts = {"tokens": "16,384", "version": version, **gpu_facts(result, language)}
    parts = [f"# {words['title']}", words["intro"]]
    for name, rows in sections.items():
        if rows:
            text = words[f"{name} text"].format(**facts)
            parts += [f"## {words[name]} {{#{name}}}", text]
            parts += [f"![{words['figure']}](pictures/{FIGURE.name})"] if name == "predicted" else []
            parts.append(table(words[f"{name} head"], rows))
    return "\n\n".join(parts) + "\n"


def draw(result: dict[str, Any]) -> None:
    """The figure: predicted time of each mask by method, one panel for each size."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "regard"
    sizes = list(dict.fromkeys((one["tokens"], one["ranks"]) for one in result["predictions"]))
    figure = Figure(figsize=(4.2 * len(sizes), 3.6), layout="constrained")
    names = ("ours", *OTHERS)
    for axes, size in zip(figure.subplots(1, len(sizes), sharey=False), sizes, strict=True):
        rows = [one for one in result["predictions"] if (one["tokens"], one["ranks"]) == size]
        for n, name in enumerate(names):
            methods = [{x["method"]: x for x in one["methods"]} | {"ours": best(one["methods"])} for one in rows]
            bars = [(k, 1e3 * x[name]["seconds"]) for k, x in enumerate(methods) if name in x]
            axes.bar([k + 0.2 * (n - 1.5) for k, _ in bars], [height for _, height in bars], 0.2, label=name)
        axes.set_yscale("log")
        axes.set_xticks(range(len(rows)), [one["mask"].split(",")[0].replace(" of ", "\n") for one in rows], fontsize=7)
        axes.set(title=f"{size[0]:,} tokens, {size[1]} ranks", ylabel="ms")
    figure.axes[0].legend(fontsize=8)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})


def write_pages(result: dict[str, Any]) -> None:
    """Write the figure and the pages."""
    if result.get("predictions"):
        draw(result)
    for language, path in PAGES.items():
        path.write_text(page(result, language), encoding="utf-8")
