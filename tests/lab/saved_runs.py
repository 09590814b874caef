"""Folders of runs as training leaves them, with small models: a translator, and one classifier from two seeds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from regard.data.text import LabelledText, Parallel
from regard.settings import Training
from regard.tasks.architecture import Architecture
from regard.tasks.classify import Classify, ClassifySettings
from regard.tasks.task import Scores
from regard.tasks.translate import Translate, TranslateSettings
from regard.train.run_folder import RunFolder
from regard.train.trainer import TrainEvent, TrainState

ARCHITECTURE = Architecture(dim=16, layers=2, heads=2, hidden=32, dropout=0.0)
SOURCES = ("the cat sat", "a dog ran", "the dog sat", "a cat ran", "the animal was too tired to cross the street")
TARGETS = ("猫 坐 了", "狗 跑 了", "狗 坐 了", "猫 跑 了", "动物 太 累 了")


def save_runs(root: Path) -> None:
    """`pair`, `reviews-0` and `reviews-1` below the folder."""
    pairs = [Parallel(*pair) for pair in zip(SOURCES, TARGETS, strict=True)]
    translate = Translate.prepare(pairs, TranslateSettings(vocab_size=80, unit="words"))
    save_run(root / "pair", translate, pairs, 0, Scores({"bleu": 12.5}, "bleu", hypotheses=list(TARGETS)))
    texts = [
        LabelledText(text, label) for text, label in zip(SOURCES, ("good", "bad", "good", "bad", "bad"), strict=True)
    ]
    for seed in (0, 1):
        classify = Classify.prepare(texts, ClassifySettings(modality="text", unit="words", lowercase=True))
        save_run(
            root / f"reviews-{seed}",
            classify,
            texts,
            seed,
            Scores({"accuracy": 0.5 + seed / 4}, "accuracy", hypotheses=["good", "bad"]),
        )


def train_model(
    task: Any, examples: list[Any], seed: int, steps: int, architecture: Architecture = ARCHITECTURE
) -> Any:
    """A model that has seen the few examples so often that its answers end and its weights differ."""
    torch.manual_seed(seed)
    model = task.config(architecture).build()
    optimizer, batch = torch.optim.Adam(model.parameters(), lr=0.04), task.batch(examples)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    return model.eval()


def save_run(
    path: Path, task: Any, examples: list[Any], seed: int, scores: Scores, architecture: Architecture = ARCHITECTURE
) -> None:
    model = train_model(task, examples, seed, 14 if task.name == "translate" else 3, architecture)
    model.tokenizer, model.rules = getattr(task, "tokenizer", None), getattr(task, "rules", None)
    folder = RunFolder(path)
    folder.write(
        "run.json",
        {
            "task": task.name,
            "settings": asdict(task.settings),
            "architecture": asdict(architecture),
            "training": asdict(Training(seed=seed)),
            "data": {"train": ["made.tsv"]},
        },
    )
    folder.write("task.json", task.as_dict())
    folder.save_best(model, scores)
    for step in range(1, 31):
        folder.log_event(
            TrainEvent("step", TrainState(step=step, epoch=step // 10), 30, {"loss": 3.0 / step + seed, "rate": 0.001})
        )
        if step % 10 == 0:
            folder.log_event(
                TrainEvent(
                    "score",
                    TrainState(step=step, epoch=step // 10),
                    30,
                    {scores.main: scores.metrics[scores.main] * step / 30},
                )
            )
    folder.log_event(TrainEvent("finished", TrainState(step=30, epoch=3), 30, {}))
