"""The pages that tell what the recipes reached: docs/results.md, and a table for the two READMEs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"

WORDS = {
    "en": {
        "head": ("task", "others", "goal", "Regard", "seeds", "weights", "updates", "a run"),
        "met": "met",
        "not met": "not met",
        "shared": "s",
    },
    "zh": {
        "head": ("任务", "他人", "目标", "Regard", "种子数", "权重数", "更新次数", "一次训练"),
        "met": "达到",
        "not met": "未达到",
        "shared": "秒",
    },
}

CHINESE = {
    "multi30k-en-de": "Multi30k 英→德，test 2016，小写分词 BLEU",
    "multi30k-en-fr": "Multi30k 英→法，test 2016，小写分词 BLEU",
    "tatoeba-en-zh": "Tatoeba 英→中，dev，按字 BLEU",
    "ewt": "UD 英语 EWT 词性，dev",
    "chinese-gsd": "UD 中文 GSD 1.4 词性，dev",
    "sst2": "SST-2 整句，dev",
    "cora": "Cora 公开划分，GAT，test",
    "shakespeare-char": "tiny Shakespeare 逐字符，末十分之一全部，nats",
    "mnist-vit": "MNIST，ViT，test",
    "digits": "scikit-learn 手写数字，ViT，最后 360 张",
    "cifar-vit": "CIFAR-10，18,000 张 JPEG，卷积切块的 ViT，2,000 张 test",
    "cifar-patches": "CIFAR-10，18,000 张 JPEG，普通切块的 ViT，2,000 张 test",
    "cifar-cnn": "CIFAR-10，18,000 张 JPEG，CNN，2,000 张 test",
    "fsdd": "口语数字（FSDD），官方划分，test",
    "an4": "AN4 语音，13 维倒谱，词错误率，dev（训练集的十分之一）",
    "emoji": "表情与名称，以名找图（328 张中的前 10），test",
    "bccd": "血细胞（BCCD），AP50，test",
    "scitldr": "SciTLDR 摘要，ROUGE-1，dev",
    "esol": "溶解度（ESOL），RMSE，test（其他骨架）",
    "bbbp": "能否入脑（BBBP），ROC-AUC，test（其他骨架）",
}
"""What the rows are called in the Chinese README."""

Runs = Sequence[dict[str, Any]]


def value(run: dict[str, Any], row: Any) -> float:
    """What a run is reported with: its score on test where the row has one, else on dev."""
    return (run["test"] or run["dev"])[row.metric] * row.times


def score(runs: Runs, row: Any) -> str:
    """Mean and deviation over seeds."""
    values, digits = [value(run, row) for run in runs], 4 if row.metric == "loss" else 2
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def reached(runs: Runs, row: Any) -> bool | None:
    """Whether the mean is where it should be; None where nothing is asked."""
    if row.goal is None:
        return None
    found = mean(value(run, row) for run in runs)
    return found <= row.goal if row.lower else found >= row.goal


def goal(runs: Runs, row: Any, words: dict[str, Any]) -> str:
    if row.goal is None:
        return ""
    return f"{'≤' if row.lower else '≥'} {row.goal:g}, {words['met' if reached(runs, row) else 'not met']}"


def of_row(runs: Runs, row: Any) -> list[dict[str, Any]]:
    return sorted((run for run in runs if run["recipe"] == row.recipe), key=lambda run: run["seed"])


def table(runs: Runs, rows: Sequence[Any], language: str = "en") -> str:
    """A line a row that has been run."""
    words = WORDS[language]
    lines = ["| " + " | ".join(words["head"]) + " |", "|" + " --- |" * len(words["head"])]
    for row in rows:
        own = of_row(runs, row)
        if not own:
            continue
        weights = f"{own[0]['parameters'] / 1e6:.2f}M"
        steps, seconds = (round(mean(run[name] for run in own)) for name in ("steps", "seconds"))
        what = CHINESE[row.recipe] if language == "zh" else row.what
        cells = [what, row.anchor, goal(own, row, words), f"**{score(own, row)}**", str(len(own)), weights]
        lines.append("| " + " | ".join([*cells, f"{steps:,}", f"{seconds} {words['shared']}"]) + " |")
    return "\n".join(lines)


def command(row: Any, settings: dict[str, Any]) -> str:
    """The line that trains it."""
    parts = [f"regard train --recipe {row.recipe}"]
    parts += [f"--train {one}" for one in row.train] + [f"--dev {one}" for one in row.dev]
    parts += [f"--{k} {v}" if k in ("minutes", "epochs", "steps") else f"--set {k}={v}" for k, v in settings.items()]
    return " ".join([*parts, "--out RUN --seed N"])


def details(runs: Runs, notes: dict[str, str], rows: Sequence[Any]) -> str:
    """Of each row its command, every seed's scores, and what there is to say about them."""
    parts = []
    for row in rows:
        own = of_row(runs, row)
        if not own:
            continue
        first = own[0]
        devices = " or ".join(dict.fromkeys(run["device"] for run in own))
        told = f"{devices}, {first['date']}, torch {first['versions']['torch']}"
        scores = ", ".join(f"{value(run, row):.{4 if row.metric == 'loss' else 2}f}" for run in own)
        other = {name: mean((run["test"] or run["dev"])[name] for run in own) for name in first["test"] or first["dev"]}
        also = ", ".join(f"{name} {one:.4f}" for name, one in other.items())
        text = f"### {row.recipe}\n\n{row.what}.\n\n    {command(row, first['settings'])}\n\n"
        seeds = f"Seed {first['seed']}" if len(own) == 1 else f"Seeds {first['seed']}–{own[-1]['seed']}"
        seeds += "" if own[-1]["seed"] - first["seed"] == len(own) - 1 else f", {len(own)} of them"
        text += f"{told}. {seeds}: {scores}. Means of all metrics: {also}.\n"
        parts.append(text + (f"\n{notes[row.recipe]}\n" if row.recipe in notes else ""))
    return "\n".join(parts)


def not_run(runs: Runs, rows: Sequence[Any]) -> str:
    missing = [f"`{row.recipe}` ({row.what})" for row in rows if not of_row(runs, row)]
    return f"\nNot measured on this machine yet: {'; '.join(missing)}.\n" if missing else ""


def page(results: dict[str, Any], rows: Sequence[Any]) -> str:
    runs = results["runs"]
    return f"""# What the recipes reach

Written by `python benchmarks/tasks.py --write` from `benchmarks/results/tasks.json`; `python benchmarks/tasks.py --data
DIR` measures anew (its first lines say how). Weights are chosen on dev; a test set is scored once, with what was
chosen. ± is the standard deviation over seeds. "A run" is its whole time while up to seventeen runs shared one GPU and
sixteen cores (or, where the device is a CPU, its few cores): it says what was spent, not how fast a run alone would be.
Where the clock ended a run, its command has `--minutes`.

{table(runs, rows)}
{not_run(runs, rows)}
{details(runs, results["notes"], rows)}"""


def write(results: dict[str, Any], rows: Sequence[Any]) -> None:
    PAGE.write_text(page(results, rows), "utf8")
