"""Writes everything in README and docs that comes from results/: three numbers, the benchmark tables, the task results.

python benchmarks/readme.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import task_pages
import tasks
from regard.bench.result import (
    BenchmarkResult,
    BenchmarkRow,
    GpuBenchmarkRow,
    format_markdown,
    format_quantity,
    format_ratio,
    replace_section,
)

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
READMES = {"en": ROOT / "README.md", "zh": ROOT / "README.zh.md"}
TABLES = {"en": ROOT / "docs" / "benchmarks.md", "zh": ROOT / "docs" / "benchmarks.zh.md"}
FILES = {"cpu": "cpu", "gpu": "h200", "gpu-parts": "h200-parts"}
FILES |= {"cpu-models": "cpu-models", "gpu-models": "h200-models"}
"""The file of results that fills each pair of markers in the benchmark pages."""

CHAR_GPT = {
    "en": "A character model of 10.7 million parameters reaches the loss {0} on the last tenth of tiny Shakespeare\n"
    "after {1} updates and {2:.1f} s of training. nanoGPT's loop, compiled, needs {3} updates and {4:.1f} s,\n"
    "{5:.1f} times as long (`python -m regard.bench.char_gpt --text input.txt`; {6}).",
    "zh": "一个 1070 万参数的字符模型在 tiny Shakespeare 末十分之一上达到损失 {0}，"
    "用了 {1} 次更新、{2:.1f} 秒训练时间；编译后的 nanoGPT 循环用了 {3} 次更新、{4:.1f} 秒，是它的 {5:.1f} 倍"
    "（`python -m regard.bench.char_gpt --text input.txt`；{6}）。",
}
NUMBERS = {
    "en": {
        "head": ("work", "Regard", "other", "ratio"),
        "window": "causal window of 256 tokens, 8,192 tokens, forward + backward, CPU",
        "bigbird": "BigBird-base, one compiled training step, 16,384 tokens, H200",
        "look": "statistics of all weights, 16 heads × 16,384 tokens, memory, H200",
        "others": ("SDPA with the mask as a tensor", "transformers, eager", "the formula in torch"),
    },
    "zh": {
        "head": ("工作", "Regard", "其他实现", "倍数"),
        "window": "256 个词元的因果窗口，8,192 个词元，前向加反向，CPU",
        "bigbird": "BigBird-base 编译后训练一步，16,384 个词元，H200",
        "look": "全部权重的统计量，16 个头 × 16,384 个词元，显存，H200",
        "others": ("SDPA，掩码写成张量", "transformers，未编译", "用 torch 写的公式"),
    },
}


def main() -> None:
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Every page with its generated parts up to date."""
    updated = {}
    for language in ("en", "zh"):
        readme = READMES[language].read_text(encoding="utf-8")
        updated[READMES[language]] = replace_section(readme, three_numbers(language), "numbers")
        tables = TABLES[language].read_text(encoding="utf-8")
        for marker, name in FILES.items():
            tables = replace_section(
                tables, format_markdown(BenchmarkResult.read(RESULTS / f"{name}.json"), language), marker
            )
        updated[TABLES[language]] = replace_section(tables, char_gpt(language), "char-gpt")
        updated[task_pages.PAGES[language]] = task_pages.page(tasks.read_results(), tasks.ROWS, language)
    return updated


def three_numbers(language: str) -> str:
    """The table of the README: one comparison each of time on a CPU, time on a GPU, and memory."""
    words = NUMBERS[language]
    window = find_row("cpu", "causal window of 255 back", "SDPA")
    bigbird = find_row("h200-models", "BigBird-base, a step of training", "transformers")
    look = find_row("h200", "look: entropy, top 8, received, map 256 × 256", "eager")
    assert isinstance(window, BenchmarkRow) and isinstance(bigbird, BenchmarkRow) and isinstance(look, GpuBenchmarkRow)
    measured = (
        (words["window"], window.ours, window.theirs, "time"),
        (words["bigbird"], bigbird.ours, bigbird.theirs, "time"),
        (words["look"], look.ours.forward_bytes, look.theirs.forward_bytes, "memory"),
    )
    lines = ["| " + " | ".join(words["head"]) + " |", "| --- | --- | --- | --- |"]
    for (title, ours, theirs, measure), other in zip(measured, words["others"], strict=True):
        cells = (
            title,
            format_quantity(ours, measure),
            f"{format_quantity(theirs, measure)} ({other})",
            format_ratio(theirs / ours),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def find_row(name: str, work: str, against: str) -> BenchmarkRow | GpuBenchmarkRow:
    """The first row of a file of results that compares this work with that alternative."""
    rows = BenchmarkResult.read(RESULTS / f"{name}.json").rows
    return next(row for row in rows if row.work == work and row.against == against)


def char_gpt(language: str) -> str:
    """The result of `regard.bench.char_gpt` in a sentence."""
    result: dict[str, Any] = json.loads((RESULTS / "h200-char-gpt.json").read_text("utf8"))
    (steps, seconds), (their_steps, their_seconds) = (result["reached"][name] for name in ("regard", "plain loop"))
    machine = f"{result['device']}, torch {result['versions']['torch']}, {result['date'][:10]}"
    ratio = their_seconds / seconds
    numbers = (result["goal"], f"{steps:,}", seconds, f"{their_steps:,}", their_seconds, ratio, machine)
    return CHAR_GPT[language].format(*numbers)


if __name__ == "__main__":
    main()
