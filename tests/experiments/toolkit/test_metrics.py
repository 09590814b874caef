"""Metrics and summaries of experiments."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from regard.experiments.progress import ProgressCallback
from regard.experiments.toolkit.metrics import smooth_curve, summarize_seeds, token_accuracy
from regard.models.heads import IGNORED
from regard.tasks.metrics.rank_correlation import rank_correlation


def test_smooth_keeps_the_mean() -> None:
    assert smooth_curve([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert smooth_curve([1.0, 2.0], 60) == [1.0, 2.0]


def test_rank_correlation_equals_scipys() -> None:
    x, y = torch.randint(5, (2, 20), generator=torch.Generator().manual_seed(0)).double()
    assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert rank_correlation(x, torch.ones(20)) == 0.0


def test_seeds_share_the_progress() -> None:
    fractions: list[float] = []

    def run(seed: int, progress: ProgressCallback) -> float:
        progress(0.5, "half")
        return float(seed)

    summary = summarize_seeds(run, [3, 4], lambda fraction, text: fractions.append(fraction))
    assert summary["all"] == [3.0, 4.0] and fractions == [0.25, 0.75]


def test_token_accuracy_skips_ignored_labels() -> None:
    class Echo(nn.Module):
        def forward(self, tokens: Tensor, labels: Tensor) -> Any:
            return SimpleNamespace(logits=nn.functional.one_hot(tokens, 3).float())

    batch = {"tokens": torch.tensor([[0, 1, 2, 2]]), "labels": torch.tensor([[0, 2, IGNORED, 2]])}
    assert token_accuracy(Echo(), batch) == pytest.approx(2 / 3)
