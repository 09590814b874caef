"""Consistency losses over two forward passes with different dropout: R-Drop (Liang et al. 2021) and GRAND."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...attention.backends.triton import unsupported_device
from ...nn.cross_entropy import IGNORED

WIDEST = 32768
"""Classes up to which the kernel is used: a program holds two rows."""

TEMPERATURE = 0.5
"""The temperature at which `consistency_loss` sharpens probabilities, as in the paper."""


def r_drop_loss(logits: Tensor, labels: Tensor, smoothing: float, weight: float) -> Tensor:
    """The sum over labels of R-Drop's loss, for rows that were computed twice, as p and as q.

        ½ (loss(p) + loss(q)) + weight · ¼ (KL(p‖q) + KL(q‖p))

    logits `[2 · labels, classes]`, the second passes below the first; labels `[labels]`, of which −100 does not count.
    The paper's α is `weight`, and its loss is twice this one. On a GPU one kernel reads the logits once and writes
    their gradient; torch's functions read them about thirty times.
    """
    if logits.is_cuda and unsupported_device(logits.device) is None and logits.shape[1] <= WIDEST and logits.shape[0]:
        return FusedRDrop.apply(logits.contiguous(), labels, smoothing, weight)  # type: ignore[no-any-return]
    return r_drop_reference(logits.float(), labels, smoothing, weight)


def r_drop_reference(logits: Tensor, labels: Tensor, smoothing: float, weight: float) -> Tensor:
    """`r_drop_loss` with torch's functions."""
    counts = (labels != IGNORED).repeat(2)[:, None]
    logs = logits.log_softmax(-1) * counts
    of_label, of_all = logs.gather(1, labels.clamp(min=0).repeat(2)[:, None]).sum(), logs.mean(-1).sum()
    return (-(1 - smoothing) * of_label - smoothing * of_all + weight / 2 * symmetric_kl(logs)) / 2


def repeat_batch(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch with every example repeated below; tensors without a batch dimension are unchanged."""
    return {name: torch.cat([x, x]) if x.dim() else x for name, x in batch.items()}


def symmetric_kl(logs: Tensor) -> Tensor:
    """Σ KL(p‖q) + KL(q‖p) = Σ (p − q)·(ln p − ln q), of the first half of the rows `[2·n, classes]` and the second."""
    p, q = logs.chunk(2)
    return ((p.exp() - q.exp()) * (p - q)).sum()


def consistency_loss(logits: Tensor) -> Tensor:
    """Σ ½ (|p − t|² + |q − t|²), of the first half of the rows `[2·n, classes]` and the second.

    t ∝ ((p + q) / 2)^(1 / TEMPERATURE) is the sharpened mean of p and q, without gradient. Rows without a label are
    trained too (GRAND, Feng et al. 2020).
    """
    p, q = logits.softmax(-1).chunk(2)
    with torch.no_grad():
        mean = ((p + q) / 2) ** (1 / TEMPERATURE)
        target = mean / mean.sum(-1, keepdim=True)
    return ((p - target) ** 2 + (q - target) ** 2).sum() / 2


class FusedRDrop(torch.autograd.Function):
    """The kernel, which computes the gradient with the loss."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float, weight: float) -> Tensor:
        from .r_drop_kernel import losses_and_gradient

        losses, gradient = losses_and_gradient(logits.detach(), labels, smoothing, weight)
        ctx.save_for_backward(gradient)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (gradient,) = ctx.saved_tensors
        return gradient * above.to(gradient.dtype), None, None, None
