"""The results page of the documentation: the scores of each recipe, as a table and in detail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from regard.settings import Training, former_names
from regard.tasks import find_task
from regard.tasks.architecture import Architecture
from regard.train.recipes import find_recipe

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {"en": DOCS / "results.md", "zh": DOCS / "results.zh.md"}

WORDS = {
    "en": {
        "head": ("task", "others", "goal", "Regard", "seeds", "parameters", "updates", "time of a run"),
        "met": "met",
        "not met": "not met",
        "seconds": "s",
    },
    "zh": {
        "head": ("任务", "其他工作", "目标", "Regard", "种子数", "参数量", "更新次数", "一次训练用时"),
        "met": "达到",
        "not met": "未达到",
        "seconds": "秒",
    },
}

CHINESE = {
    "multi30k-en-de": "Multi30k 英→德，test 2016，小写分词 BLEU",
    "multi30k-en-fr": "Multi30k 英→法，test 2016，小写分词 BLEU",
    "tatoeba-en-zh": "Tatoeba 英→中，dev，按字 BLEU",
    "tatoeba-zh-en": "Tatoeba 中→英，dev，BLEU",
    "ewt": "UD 英语 EWT 词性，dev",
    "chinese-gsd": "UD 中文 GSD 1.4 词性，dev",
    "chinese-characters": "UD 中文，未分词文本，词与词性的 F1，dev",
    "sst2": "SST-2 整句，dev",
    "cora": "Cora 公开划分，GAT，test",
    "shakespeare-char": "tiny Shakespeare 逐字符，末十分之一全部，nats",
    "tang-poems": "唐诗逐字，nats，dev",
    "english-induction": "英文子词，含重复段落，nats，dev",
    "mnist-vit": "MNIST，ViT，test",
    "digits": "scikit-learn 手写数字，ViT，最后 360 张",
    "cifar-vit": "CIFAR-10，18,000 张 JPEG，卷积切块的 ViT，2,000 张 test",
    "cifar-patches": "CIFAR-10，18,000 张 JPEG，普通切块的 ViT，2,000 张 test",
    "cifar-cnn": "CIFAR-10，18,000 张 JPEG，CNN，2,000 张 test",
    "fsdd": "口语数字（FSDD），官方划分，test",
    "an4": "AN4 语音，13 维倒谱，词错误率，dev（训练集的十分之一）",
    "emoji": "表情与名称，以名找图（328 张中的前 10），test",
    "emoji-classes": "两种画风的表情，12 类，留出表情的 test",
    "bccd": "血细胞（BCCD），AP50，test",
    "scitldr": "SciTLDR 摘要，ROUGE-1，dev",
    "esol": "溶解度（ESOL），RMSE，test（其他骨架）",
    "bbbp": "能否透过血脑屏障（BBBP），ROC-AUC，test（其他骨架）",
}
"""The names of the rows in Chinese."""

CHINESE_ANCHORS = {
    "most frequent tag": "最常见标签",
    "CNN without vectors, trained on phrases": "不用词向量的 CNN，用短语训练",
    "GAT paper": "GAT 论文",
    "the CNN below": "下面的 CNN",
    "CNN, random split": "CNN，随机划分",
    "saying nothing": "什么也不输出",
    "chance": "随机",
    "boxes of the middle size on a grid": "网格上的中等大小方框",
    "the first sentence": "取第一句",
    "the mean": "取均值",
    "the nearest training sentence": "最接近的训练句子",
    "longest match, ": "最长匹配，",
    "nearest image": "最接近的图片",
}
"""Phrases of the column of other results, in Chinese."""

INTRODUCTION = {
    "en": """# Task results

This page lists the scores of the recipes. `python benchmarks/tasks.py --write` generates it from
`benchmarks/results/tasks.json`; `python benchmarks/tasks.py --data DIR` trains and scores again.

- Weights are selected on dev. A test set is scored once, with the selected weights.
- ± is the standard deviation over seeds.
- "Time of a run" is wall-clock time while up to seventeen runs shared one GPU and sixteen cores (or the few cores of
  a CPU). It is the time spent, not the speed of a single run.
- A run that was ended by the clock has `--minutes` in its command.
- The score of SST-2 comes from three encoders and a linear model scaled by naive Bayes. The linear model alone scores
  82.3, the encoders alone 80.2.
- [Comparison](compare.md) has three tasks with five kinds of layers each.
""",
    "zh": """# 任务结果

本页列出各个配方达到的结果，由 `python benchmarks/tasks.py --write` 根据 `benchmarks/results/tasks.json` 生成；
`python benchmarks/tasks.py --data DIR` 重新训练和评分。

- 权重在 dev 上选择；test 只用选定的权重评一次。
- ± 是各种子之间的标准差。
- “一次训练用时”是实际经过的时间，
  当时最多有十七个训练共用一块 GPU 和十六个核心（或一台 CPU 的几个核心）。
  它说明花费了多少，不代表单独训练的速度。
- SST-2 的成绩来自三个编码器加一个经朴素贝叶斯加权的线性模型；线性模型单独为 82.3，编码器单独为 80.2。
- 每个种子的成绩和完整命令见英文页面；五种层在三个任务上的比较见[比较](compare.md)。
""",
}

Runs = Sequence[dict[str, Any]]


def value(run: dict[str, Any], row: Any) -> float:
    """The reported score of a run: on test where the row has one, else on dev."""
    return (run["test"] or run["dev"])[row.metric] * row.factor


def score(runs: Runs, row: Any) -> str:
    """Mean and standard deviation over seeds."""
    values, digits = [value(run, row) for run in runs], 4 if row.metric == "loss" else 2
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def goal(runs: Runs, row: Any, words: dict[str, Any]) -> str:
    """The goal of a row and whether the mean reaches it; empty where there is none."""
    if row.goal is None:
        return ""
    average = mean(value(run, row) for run in runs)
    met = average <= row.goal if row.lower_is_better else average >= row.goal
    return f"{'≤' if row.lower_is_better else '≥'} {row.goal:g}, {words['met' if met else 'not met']}"


def runs_of(runs: Runs, row: Any) -> list[dict[str, Any]]:
    """The runs of a row, by seed."""
    return sorted((run for run in runs if run["recipe"] == row.recipe), key=lambda run: run["seed"])


def table(runs: Runs, rows: Sequence[Any], language: str = "en") -> str:
    """One line for each row that has runs."""
    words = WORDS[language]
    lines = ["| " + " | ".join(words["head"]) + " |", "|" + " --- |" * len(words["head"])]
    for row in rows:
        own = runs_of(runs, row)
        if not own:
            continue
        steps, seconds = (round(mean(run[name] for run in own)) for name in ("steps", "seconds"))
        title, anchor = title_of(row, language), translate(row.anchor) if language == "zh" else row.anchor
        parameters = f"{own[0]['parameters'] / 1e6:.2f}M"
        cells = [title, anchor, goal(own, row, words), f"**{score(own, row)}**", str(len(own)), parameters]
        lines.append("| " + " | ".join([*cells, f"{steps:,}", f"{seconds} {words['seconds']}"]) + " |")
    return "\n".join(lines)


def title_of(row: Any, language: str) -> str:
    """The name of a row in a language."""
    return CHINESE[row.recipe] if language == "zh" else row.title


def translate(anchor: str) -> str:
    """A cell of other results in Chinese."""
    for english, chinese in CHINESE_ANCHORS.items():
        anchor = anchor.replace(english, chinese)
    return anchor


def current_names(recipe: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as they were recorded, under the names that they have now."""
    names = former_names(Training, Architecture, find_task(find_recipe(recipe).task).Settings)
    return {names.get(name, name): value for name, value in settings.items()}


def command(row: Any, settings: dict[str, Any]) -> str:
    """The command that trains a row."""
    settings = current_names(row.recipe, settings)
    words = [f"regard train --recipe {row.recipe}"]
    words += [f"--train {path}" for path in row.train] + [f"--dev {path}" for path in row.dev]
    words += [f"--{k} {v}" if k in ("minutes", "epochs", "steps") else f"--set {k}={v}" for k, v in settings.items()]
    return " ".join([*words, "--out RUN --seed N"])


def details(runs: Runs, notes: dict[str, str], rows: Sequence[Any]) -> str:
    """For each row its command, the score of every seed, all metrics, and the note about it."""
    sections = []
    for row in rows:
        own = runs_of(runs, row)
        if not own:
            continue
        first = own[0]
        devices = " or ".join(dict.fromkeys(run["device"] for run in own))
        scores = ", ".join(f"{value(run, row):.{4 if row.metric == 'loss' else 2}f}" for run in own)
        means = {name: mean((run["test"] or run["dev"])[name] for run in own) for name in first["test"] or first["dev"]}
        metrics = ", ".join(f"{name} {average:.4f}" for name, average in means.items())
        seeds = f"Seed {first['seed']}" if len(own) == 1 else f"Seeds {first['seed']}–{own[-1]['seed']}"
        seeds += "" if own[-1]["seed"] - first["seed"] == len(own) - 1 else f", {len(own)} of them"
        text = f"### {row.recipe}\n\n{row.title}.\n\n```sh\n{command(row, first['settings'])}\n```\n\n"
        text += f"{devices}, {first['date']}, torch {first['versions']['torch']}. {seeds}: {scores}. "
        text += f"Means of all metrics: {metrics}.\n"
        sections.append(text + (f"\n{notes[row.recipe]}\n" if row.recipe in notes else ""))
    return "\n".join(sections)


def page(results: dict[str, Any], rows: Sequence[Any], language: str = "en") -> str:
    """The results page; the English one has every seed and command."""
    text = f"{INTRODUCTION[language]}\n{table(results['runs'], rows, language)}\n"
    if language == "zh":
        return text
    missing = [f"`{row.recipe}` ({row.title})" for row in rows if not runs_of(results["runs"], row)]
    text += f"\nNot measured yet: {'; '.join(missing)}.\n" if missing else ""
    return f"{text}\n## Every recipe\n\n{details(results['runs'], results['notes'], rows)}"


def write(results: dict[str, Any], rows: Sequence[Any]) -> None:
    """Write the results page in both languages."""
    for language, path in PAGES.items():
        path.write_text(page(results, rows, language), "utf8")
