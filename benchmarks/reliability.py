"""Writes the figures of the last large runs into docs/reliability.md and docs/reliability.zh.md.

python benchmarks/reliability.py        from benchmarks/results/{fuzz,hostile,kills,restarts,nonfinite,kernels-*}.json
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {"en": ROOT / "docs" / "reliability.md", "zh": ROOT / "docs" / "reliability.zh.md"}
MARKED = re.compile(r"(<!-- figures:(\w+) -->\n).*?(<!-- /figures -->)", re.DOTALL)
MODELS = ("model folder", "run folder", "word vectors", "settings")
"""How the names of families that are not data begin."""

TEXTS = {
    "en": {
        "fuzz": "| files | families | inputs | foreign exceptions | crashes | over 5 s | longest | most memory |",
        "data": "data",
        "models": "models, runs, word vectors, settings",
        "kernels": "| device | calls | tensors compared | of them gradients | backends | off by more than allowed |",
        "restarts": "| jobs | kills | jobs that resumed | jobs with the same bits | half-written files |",
        "kills": "| what happened | times | bits lost, or nothing noticed |",
        "operations": "`kill -9` before each operation of a run that changes a file",
        "random": "`kill -9` at a random moment",
        "signals": "a signal (the longest until the process had saved and ended: {seconds} s)",
        "flips": "a flipped bit in a checkpoint",
        "model_flips": "a flipped bit in a model",
        "left": "half-written files that were left",
        "hostile": "| what | number | refused or answered | longest | most memory |",
        "data_bombs": "bombs for data",
        "models_bombs": "bombs for models",
        "requests": "random requests to the lab",
        "nonfinite": "| call | forward, µs | of it the look | with backward, µs | of it the look |",
        "none": "Not run yet.",
    },
    "zh": {
        "fuzz": "| 文件 | 类别 | 输入数 | 外来异常 | 崩溃 | 超过 5 秒 | 最长 | 最多内存 |",
        "data": "数据",
        "models": "模型、训练目录、词向量、设置",
        "kernels": "| 设备 | 调用数 | 比较的张量 | 其中梯度 | 后端 | 超出允许误差 |",
        "restarts": "| 任务数 | 杀死次数 | 恢复的任务 | 逐位相同的任务 | 残留的半成品文件 |",
        "kills": "| 发生了什么 | 次数 | 丢失数据或未被发现 |",
        "operations": "在训练每一次改动文件的操作之前 `kill -9`",
        "random": "在随机时刻 `kill -9`",
        "signals": "信号（从发出到保存并退出最长 {seconds} 秒）",
        "flips": "检查点中的位翻转",
        "model_flips": "模型中的位翻转",
        "left": "残留的半成品文件",
        "hostile": "| 内容 | 数量 | 被拒绝或得到回答 | 最长 | 最多内存 |",
        "data_bombs": "数据炸弹",
        "models_bombs": "模型炸弹",
        "requests": "对实验室的随机请求",
        "nonfinite": "| 调用 | 前向，µs | 其中检查 | 含反向，µs | 其中检查 |",
        "none": "尚未运行。",
    },
}


def read_result(name: str) -> dict[str, Any] | None:
    """A file of benchmarks/results; None where there is none."""
    path = RESULTS / name
    return json.loads(path.read_text("utf8")) if path.is_file() else None


def table(heading: str, rows: list[list[str]]) -> str:
    """A Markdown table."""
    rule = "|" + " --- |" * (heading.count("|") - 1)
    return "\n".join([heading, rule, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def count(value: int | dict[str, int]) -> int:
    """A number, or the sum of the numbers by cause."""
    return sum(value.values()) if isinstance(value, dict) else value


def fuzz_table(language: str) -> str:
    """Mutated files, data and models."""
    families = (read_result("fuzz.json") or {"families": {}})["families"]
    rows = []
    for group in ("data", "models"):
        chosen = [f for name, f in families.items() if name.startswith(MODELS) == (group == "models")]
        if chosen:
            total = {key: sum(count(f[key]) for f in chosen) for key in ("inputs", "foreign", "crashes", "slow")}
            longest, most = (max(f[key] for f in chosen) for key in ("max_seconds", "max_mib"))
            numbers = [len(chosen), *total.values()]
            rows.append([TEXTS[language][group], *(f"{n:,}" for n in numbers), f"{longest:.1f} s", f"{most:.0f} MiB"])
    return table(TEXTS[language]["fuzz"], rows) if rows else TEXTS[language]["none"] + "\n"


def kernels_table(language: str) -> str:
    """Random calls beside the formula in float64."""
    rows = []
    for name in ("kernels-cpu.json", "kernels-cpu-parts.json", "kernels-cuda.json", "kernels-cuda-before.json"):
        if result := read_result(name):
            backends = ", ".join(sorted(result["backends"]))
            tensors = sum(backend["tensors"] for backend in result["backends"].values())
            numbers = [f"{n:,}" for n in (result["calls"], tensors, result["gradients"])]
            rows.append([result["device"], *numbers, backends, str(result["failed"])])
    return table(TEXTS[language]["kernels"], rows) if rows else TEXTS[language]["none"] + "\n"


def restarts_table(language: str) -> str:
    """Killed processes that torchrun started again."""
    result = read_result("restarts.json")
    if result is None:
        return TEXTS[language]["none"] + "\n"
    keys = ("jobs", "kills", "jobs_resumed", "same_bits", "half_written_files")
    return table(TEXTS[language]["restarts"], [[str(result[key]) for key in keys]])


def kills_table(language: str) -> str:
    """What was done to runs of one process, and how often something was lost."""
    result, texts = read_result("kills.json"), TEXTS[language]
    if result is None:
        return texts["none"] + "\n"
    lost = {
        key: result[key] - result[f"{key}_{good}"] for key, good in (("operations", "same_bits"), ("signals", "saved"))
    }
    lost |= {key: result[key] - result[f"{key}_noticed"] for key in ("flips", "model_flips")}
    jobs = result["random_jobs"]
    rows = [[texts["operations"], f"{result['operations']:,}", str(lost["operations"])]]
    rows += [[texts["random"], f"{result['random_kills']:,}", str(jobs - result["random_same_bits"])]]
    signals = texts["signals"].format(seconds=result["longest_signal_seconds"])
    rows += [[signals, str(result["signals"]), str(lost["signals"])]]
    rows += [[texts[key], str(result[key]), str(lost[key])] for key in ("flips", "model_flips")]
    return table(texts["kills"], [*rows, [texts["left"], str(result["half_written_files"]), ""]])


def hostile_table(language: str) -> str:
    """Bombs and random requests."""
    result, texts = read_result("hostile.json"), TEXTS[language]
    if result is None:
        return texts["none"] + "\n"
    rows = []
    for kind, found in result["bombs"].items():
        counts = [str(found["bombs"]), str(found["refused"])]
        rows.append([texts[f"{kind}_bombs"], *counts, f"{found['max_seconds']:.1f} s", f"{found['max_mib']} MiB"])
    found = result["requests"]
    counts = [f"{n:,}" for n in (found["requests"], found["requests"] - found["failed"])]
    return table(texts["hostile"], [*rows, [texts["requests"], *counts, f"{found['max_seconds']:.1f} s", ""]])


def nonfinite_table(language: str) -> str:
    """What looking for NaN and infinity takes."""
    result = read_result("nonfinite.json")
    if result is None:
        return TEXTS[language]["none"] + "\n"
    rows = []
    for row in result["rows"]:
        cells = [(f"{row[kind]['us']:,.0f}", f"{row[kind]['cost']:.1%}") for kind in ("forward", "with backward")]
        rows.append([row["call"], *cells[0], *cells[1]])
    return table(TEXTS[language]["nonfinite"], rows)


def fill_page(text: str, language: str) -> str:
    """A page with its tables as the results have them."""
    made = {"fuzz": fuzz_table, "kernels": kernels_table, "restarts": restarts_table}
    made |= {"kills": kills_table, "hostile": hostile_table, "nonfinite": nonfinite_table}
    return MARKED.sub(lambda found: f"{found[1]}{made[found[2]](language)}{found[3]}", text)


def main() -> None:
    for language, page in PAGES.items():
        page.write_text(fill_page(page.read_text("utf8"), language), "utf8")


if __name__ == "__main__":
    main()
