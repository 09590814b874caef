"""Cross-entropy over a large vocabulary: logits stay in the type they were computed in, and are read, not copied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..attention.backends.triton import interpreting, unsupported_device

IGNORED = -100
"""The label of positions that are ignored."""


def cross_entropy(logits: Tensor, labels: Tensor, words: int | None = None) -> Tensor:
    """Σ over rows of ln Σ_w exp(logits_w) − logits_label, in float32; `logits [rows, words]`, `labels [rows]`.

    Rows with the label −100 are ignored, as are columns beyond the first `words`, if given. On a GPU two kernels
    compute it: one reads the logits for the loss, one reads them again and writes their gradient, so no
    tensor of their size is made in float32.
    """
    if runs_fused(logits):
        return CrossEntropy.apply(logits, labels, words or logits.shape[1])  # type: ignore[return-value]
    return functional.cross_entropy(logits[:, :words].float(), labels, ignore_index=IGNORED, reduction="sum")


def runs_fused(logits: Tensor) -> bool:
    """Whether the kernels can read these logits, and are not only interpreted."""
    fits = logits.dtype in (torch.float16, torch.bfloat16, torch.float32) and logits.numel() > 0
    return (
        fits and not torch.compiler.is_compiling() and unsupported_device(logits.device) is None and not interpreting()
    )


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, words: int) -> Tensor:
        from .cross_entropy_kernel import losses

        logits = logits.contiguous()
        ctx.words = words
        loss, lse = losses(logits, labels, words, IGNORED)
        ctx.save_for_backward(logits, labels, lse)
        return loss.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from .cross_entropy_kernel import gradient

        logits, labels, lse = ctx.saved_tensors
        return gradient(logits, labels, lse, grad_outputs[0], ctx.words, IGNORED), None, None
