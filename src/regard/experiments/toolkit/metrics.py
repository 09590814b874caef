"""Metrics of experiments and their summaries over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from ...models.heads import IGNORED
from ..experiment import Measurements
from ..progress import ProgressCallback, nth_subprogress


class Summary(TypedDict):
    """The mean, the standard deviation and the values of a number over seeds."""

    mean: float
    spread: float
    all: list[float]


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The fraction of rows whose largest logit is the label's."""
    return (logits.argmax(-1) == labels).float().mean().item()


@torch.no_grad()
def token_accuracy(model: nn.Module, batch: Mapping[str, Tensor]) -> float:
    """The fraction of labels that a model predicts; ignored labels do not count."""
    labels = batch["labels"]
    right = model(**batch).logits.argmax(-1) == labels
    return right[labels != IGNORED].float().mean().item()


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def format_percent(fraction: float) -> str:
    """A fraction as text.

    >>> format_percent(0.123)
    '12.3 %'
    """
    return f"{100 * fraction:.1f} %"


def summarize(values: Sequence[float]) -> Summary:
    """The mean, the standard deviation and the values themselves.

    >>> summarize([1.0, 2.0, 3.0])
    {'mean': 2.0, 'spread': 1.0, 'all': [1.0, 2.0, 3.0]}
    """
    numbers = [float(value) for value in values]
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return {"mean": statistics.fmean(numbers), "spread": deviation, "all": numbers}


def means(summaries: Sequence[Summary]) -> list[float]:
    """The mean of each summary."""
    return [summary["mean"] for summary in summaries]


def summarize_seeds(
    run: Callable[[int, ProgressCallback], float], seeds: Sequence[int], progress: ProgressCallback
) -> Summary:
    """The summary of `run(seed, progress)` over several seeds.

    >>> summarize_seeds(lambda seed, progress: 2.0 * seed, [1, 2], lambda fraction, text: None)["mean"]
    3.0
    """
    return summarize([run(seed, nth_subprogress(progress, n, len(seeds))) for n, seed in enumerate(seeds)])


def smooth_curve(values: Sequence[float], points: int = 60) -> list[float]:
    """The means of about `points` equal intervals of a curve."""
    interval = max(len(values) // points, 1)
    return [statistics.fmean(values[at : at + interval]) for at in range(0, len(values) - interval + 1, interval)]


def summarize_losses(losses: Sequence[Sequence[float]]) -> Measurements:
    """The summary of each seed's mean loss, and the smoothed mean curve of all seeds."""
    curve = [statistics.fmean(at) for at in zip(*losses, strict=True)]
    return {"mean loss": summarize([statistics.fmean(seed) for seed in losses]), "curve": smooth_curve(curve)}
