"""Averages of weights: an exponential moving average, and the mean over the last evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from .processes.fsdp import full_tensor, local_shard


class ExponentialMovingAverage:
    """average ← decay·average + (1 − decay)·weights, the decay smaller at the beginning."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.average: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        weights = float_tensors(model)
        if not self.average:
            self.average = {name: x.detach().clone() for name, x in weights.items()}
            return
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        old, new = [local_shard(self.average[name]) for name in weights], [local_shard(x) for x in weights.values()]
        torch._foreach_lerp_(old, [x.detach() for x in new], share)

    def swap_into(self, model: nn.Module) -> AbstractContextManager[None]:
        """While open, the model has the averaged weights."""
        return swap_weights(model, self.average)


class CheckpointAverage:
    """The mean of the weights at the last `count` evaluations."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.weights: list[dict[str, Tensor]] = []

    def add(self, model: nn.Module) -> None:
        weights = {name: x.detach().cpu().clone() for name, x in float_tensors(model).items()}
        self.weights = [*self.weights, weights][-self.count :]

    def swap_into(self, model: nn.Module) -> AbstractContextManager[None]:
        """While open, the model has the averaged weights."""
        names = self.weights[0]
        mean = {name: torch.stack([weights[name] for weights in self.weights]).mean(0) for name in names}
        return swap_weights(model, mean)


def float_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's floating-point parameters and buffers, by name."""
    buffers = {name: x for name, x in model.named_buffers() if x.is_floating_point()}
    return dict(model.named_parameters()) | buffers


@contextmanager
def swap_weights(model: nn.Module, weights: dict[str, Tensor]) -> Iterator[None]:
    """While open, the model has other weights."""
    current = float_tensors(model)
    own = {name: x.detach().clone() for name, x in current.items()}
    try:
        with torch.no_grad():
            for name, x in current.items():
                x.copy_(full_tensor(weights[name]))
        yield
    finally:
        with torch.no_grad():
            for name, x in current.items():
                x.copy_(own[name])
