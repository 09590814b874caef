"""A short training loop for experiments, which replays CUDA graphs on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...errors import Unsupported
from ...train.cuda_graph import CudaGraphStep
from ..experiment import Size
from ..progress import ProgressCallback, ignore_progress

T = TypeVar("T")
CONVERGED_STEPS = 20
"""Training stops early after this many steps below the target loss."""


def choose_by_size(size: Size, toy: T, usual: T, full: T | None = None) -> T:
    """The value for a size; `full` equals `usual` unless given."""
    by_size: dict[Size, T] = {"toy": toy, "usual": usual, "full": usual if full is None else full}
    return by_size[size]


def seeded_generator(seed: int) -> torch.Generator:
    """A seeded random generator on the default device.

    On a GPU it is the device's default generator, which a replayed CUDA graph advances.
    """
    if torch.get_default_device().type == "cpu":
        return torch.Generator().manual_seed(seed)
    return torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)


def fit(
    model: nn.Module,
    loss: Callable[[], Tensor],
    steps: int,
    learning_rate: float = 1e-3,
    progress: ProgressCallback = ignore_progress,
    target_loss: float = 0.0,
    cuda_graph: bool = True,
) -> list[float]:
    """Train a model with AdamW on `loss()`, which draws a fresh batch at each call; returns the loss of each step.

    The learning rate follows `linear_warmup_decay`; gradients are clipped to norm 1. Training stops early when the last
    `CONVERGED_STEPS` losses are all below `target_loss`.

    On a GPU the step is captured in a CUDA graph. Pass `cuda_graph=False` where `loss()` does different work on the host
    at each call, or draws random numbers there.
    """
    step = FitStep(model, loss, learning_rate, cuda_graph)
    losses = []
    model.train()
    for n in range(steps):
        losses.append(step(linear_warmup_decay(n, steps)))
        if n % 10 == 0:
            progress((n + 1) / steps, f"loss {losses[-1]:.3f}")
        if len(losses) >= CONVERGED_STEPS and max(losses[-CONVERGED_STEPS:]) < target_loss:
            break
    model.eval()
    return losses


class FitStep:
    """One update of a model at a fraction of the learning rate; returns the loss."""

    def __init__(self, model: nn.Module, loss: Callable[[], Tensor], learning_rate: float, cuda_graph: bool) -> None:
        self.model, self.loss, self.learning_rate = model, loss, learning_rate
        gpu = torch.get_default_device().type == "cuda"
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=torch.tensor(learning_rate) if gpu else learning_rate,
            weight_decay=0.0,
            fused=gpu or None,
            capturable=gpu,
        )
        self.graph = CudaGraphStep(lambda _: self.update()) if gpu and cuda_graph else None

    def __call__(self, fraction: float) -> float:
        for group in self.optimizer.param_groups:
            rate = self.learning_rate * fraction
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
        if self.graph is not None:
            try:
                return self.graph({}).item()
            except Unsupported as error:
                warnings.warn(f"{error} The experiment continues without a CUDA graph.", stacklevel=3)
                self.graph = None
        return self.update().item()

    def update(self) -> Tensor:
        loss = self.loss()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def linear_warmup_decay(step: int, steps: int) -> float:
    """The fraction of the learning rate at a step: linear up over the first twentieth, then linear down to 0."""
    warmup = max(steps // 20, 1)
    return min((step + 1) / warmup, (steps - step) / max(steps - warmup, 1))
