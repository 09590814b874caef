"""What experiments with tokens share: a small model built of any stack, how often it is right, an axis of lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..models.config import Sequence as SequenceConfig
from ..models.heads import IGNORED, Classes
from ..models.model import SequenceModel
from ..nn.embeddings.text import Text
from .experiment import Tell
from .learning import part, spread

Batch = Mapping[str, Tensor]
"""What a model is called with, `labels` included."""


def tagger(stack: Any, vocabulary: int, classes: int, places: Any = None) -> SequenceModel:
    """A model that gives each token one of `classes`, built of any stack's configuration.

    >>> from regard.nn import ConvolutionConfig
    >>> model = tagger(ConvolutionConfig(dim=8, layers=1), vocabulary=5, classes=3)
    >>> model(tokens=torch.tensor([[0, 4, 2, 1]])).logits.shape
    torch.Size([1, 4, 3])
    """
    embed = Text(vocabulary, stack.dim, places=places, scaled=True)
    return SequenceConfig(embed, stack, head=Classes(classes, stack.dim, per_token=True)).build()


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch) -> float:
    """The share of labels that a model gives right; ignored places do not count."""
    labels = batch["labels"]
    right = model(**batch).logits.argmax(-1) == labels
    return right[labels != IGNORED].float().mean().item()


def over_seeds(run: Callable[[int, Tell], float], seeds: Sequence[int], tell: Tell) -> dict[str, Any]:
    """The spread of what `run(seed, tell)` gives for several seeds, each telling its share of the way.

    >>> over_seeds(lambda seed, tell: 2.0 * seed, [1, 2], lambda share, text: None)["mean"]
    3.0
    """
    count = len(seeds)
    return spread([run(seed, part(tell, n / count, (n + 1) / count)) for n, seed in enumerate(seeds)])


def means(found: Sequence[Mapping[str, Any]]) -> list[float]:
    """The means of several spreads."""
    return [one["mean"] for one in found]


def lengths_axis(axes: Any, lengths: Sequence[int]) -> None:
    """A logarithmic axis that names these lengths alone."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
