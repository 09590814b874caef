"""Weights that are means of others: a running one, and that of the last few evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .fsdp import own_part, whole


class Ema:
    """A running mean of the weights: kept ← decay·kept + (1 − decay)·weights, the decay smaller at the beginning."""

    def __init__(self, decay: float) -> None:
        self.decay, self.kept = decay, {}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        now = floating(model)
        if not self.kept:
            self.kept = {name: x.detach().clone() for name, x in now.items()}
            return
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        kept, new = [own_part(self.kept[name]) for name in now], [own_part(x.detach()) for x in now.values()]
        torch._foreach_lerp_(kept, new, share)

    def lent_to(self, model: nn.Module):
        return lent(model, self.kept)


class Averages:
    """The mean of the weights at the last `count` evaluations."""

    def __init__(self, count: int) -> None:
        self.count, self.kept = count, []

    def add(self, model: nn.Module) -> None:
        self.kept = [*self.kept, {name: x.detach().cpu().clone() for name, x in floating(model).items()}][-self.count :]

    def lent_to(self, model: nn.Module):
        return lent(model, {name: torch.stack([one[name] for one in self.kept]).mean(0) for name in self.kept[0]})


def floating(model: nn.Module) -> dict[str, Tensor]:
    """The model's floating tensors, each once."""
    return {name: x for name, x in model.named_parameters()} | {
        name: x for name, x in model.named_buffers() if x.is_floating_point()
    }


@contextmanager
def lent(model: nn.Module, weights: dict[str, Tensor]) -> Iterator[None]:
    """While open, the model has other weights."""
    now = floating(model)
    own = {name: x.detach().clone() for name, x in now.items()}
    try:
        with torch.no_grad():
            for name, x in now.items():
                x.copy_(whole(weights[name]))
        yield
    finally:
        with torch.no_grad():
            for name, x in now.items():
                x.copy_(own[name])
