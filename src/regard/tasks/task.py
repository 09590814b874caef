"""What every task is: how examples become a batch, a loss, scores and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from torch import Tensor, nn


@dataclass(frozen=True)
class Scores:
    """What an evaluation found: `metrics` by name, the one that decides, and what the model said of each example."""

    metrics: dict[str, float]
    main: str
    higher: bool = True
    hypotheses: list[str] = field(default_factory=list, repr=False)
    details: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def value(self) -> float:
        """The deciding metric, turned so that more is better."""
        return self.metrics[self.main] if self.higher else -self.metrics[self.main]


class Task(Protocol):
    """A task, once its vocabulary and settings are known.

    `batch` draws what is random about a batch (cropping, noise) from `draw`, so that a batch is a function of its place
    in the order. `loss` is a sum over the batch's `count` labels: means are taken over whole updates.

    A task that learns from running text also has `cut(examples, draw)`, the examples of one epoch, always as many. One
    with a model that is counted and not trained has `fit(architecture, examples)`: that model, or None.
    """

    name: str
    settings: Any

    def sizes(self, examples: Sequence[Any]) -> list[int]:
        """How many tokens each example counts for in a batch."""
        ...

    def batch(self, examples: Sequence[Any], draw: Random | None = None) -> dict[str, Tensor]:
        """Tensors of a batch, on the CPU; `draw` is None when nothing is to be random."""
        ...

    def count(self, batch: dict[str, Tensor]) -> int:
        """How many labels a batch has."""
        ...

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """The sum of the losses of a batch's labels."""
        ...

    def evaluate(self, model: nn.Module, examples: Sequence[Any]) -> Scores:
        """Scores of a model in evaluation mode."""
        ...
