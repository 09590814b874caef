"""A small task with dropout and augmentation, for the loop's tests: is the sum of a row's numbers even?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.reading import Reading
from regard.models.config import SequenceConfig
from regard.models.heads import ClassificationHeadConfig
from regard.nn import StackConfig, TextEmbeddingConfig
from regard.settings import Settings, setting
from regard.tasks.architecture import Architecture
from regard.tasks.task import Scores, Task


@dataclass(frozen=True)
class ToySettings(Settings):
    noise: float = setting(0.1, "Share of numbers that are hidden in training.", ge=0, lt=1)


class Toy(Task[ToySettings, list[int], list[int]]):
    """Rows of numbers below 5; the class is whether there are more 1s than 2s."""

    name = "toy"
    Settings = ToySettings
    settings = ToySettings()

    @classmethod
    def read(cls, paths: Sequence[Path], settings: ToySettings) -> Reading[list[int]]:
        return Reading(tuple(examples(50)))

    @classmethod
    def prepare(cls, examples: Sequence[list[int]], settings: ToySettings) -> Toy:
        return cls()

    def as_dict(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: ToySettings, tokenizer: Any = None) -> Toy:
        return cls()

    def config(self, a: Architecture) -> SequenceConfig:
        raise NotImplementedError

    def sizes(self, examples: Sequence[list[int]]) -> list[int]:
        return [len(row) for row in examples]

    def batch(self, examples: Sequence[list[int]], rng: Random | None = None) -> dict[str, Tensor]:
        longest = max(len(row) for row in examples)
        rows = [[5 if rng and rng.random() < self.settings.noise else n for n in row] for row in examples]
        return {
            "tokens": torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
            "lengths": torch.tensor([len(row) for row in rows]),
            "labels": torch.tensor([int(row.count(1) > row.count(2)) for row in examples]),
        }

    def count(self, batch: dict[str, Tensor]) -> int:
        return len(batch["labels"])

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        logits = model(tokens=batch["tokens"], lengths=batch["lengths"]).logits
        return functional.cross_entropy(logits, batch["labels"], label_smoothing=smoothing, reduction="sum")

    def evaluate(self, model: nn.Module, examples: Sequence[list[int]]) -> Scores:
        device = next(model.parameters()).device
        batch = {name: x.to(device) for name, x in self.batch(examples).items()}
        best = model(tokens=batch["tokens"], lengths=batch["lengths"]).logits.argmax(-1)
        return Scores({"accuracy": float((best == batch["labels"]).float().mean())}, "accuracy")

    def predict(self, model: nn.Module, inputs: Sequence[str]) -> list[Any]:
        raise NotImplementedError

    def describe(self, examples: Sequence[list[int]]) -> dict[str, Any]:
        return {"examples": len(examples)}


def examples(count: int, seed: int = 0) -> list[list[int]]:
    draw = Random(seed)
    return [[draw.randrange(1, 5) for _ in range(draw.randrange(3, 12))] for _ in range(count)]


def model(seed: int = 0, dropout: float = 0.2) -> nn.Module:
    torch.manual_seed(seed)
    stack = StackConfig(16, 2, 2, dropout=dropout, attention_dropout=dropout)
    return SequenceConfig(
        TextEmbeddingConfig(6, 16, "sinusoidal"), stack, head=ClassificationHeadConfig(2, 16, pool="mean")
    ).build()
