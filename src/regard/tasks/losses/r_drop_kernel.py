"""The loss of `agreement` as a kernel: a program reads both answers for a label once, and writes their gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def log_softmax(p_row, o_class, m_class):
    """ln p of a row of logits, −∞ beyond it."""
    x = tl.load(p_row + o_class, mask=m_class, other=-float("inf")).to(tl.float32)
    x -= tl.max(x, 0)
    return x - tl.log(tl.sum(tl.exp(x), 0))


@triton.jit
def agree(p_logits, p_labels, p_losses, p_gradient, labels, classes, smoothing, weight, CLASSES: tl.constexpr):
    i_label = tl.program_id(0)
    o_class = tl.arange(0, CLASSES)
    m_class = o_class < classes
    first, second = i_label.to(tl.int64) * classes, (i_label + labels).to(tl.int64) * classes
    b_p = log_softmax(p_logits + first, o_class, m_class)
    b_q = log_softmax(p_logits + second, o_class, m_class)
    b_label = tl.load(p_labels + i_label)
    counts = tl.where(b_label >= 0, 1.0, 0.0)
    b_target = tl.where(o_class == b_label, 1.0 - smoothing, 0.0) + smoothing / classes
    b_wrong = tl.sum(tl.where(m_class, -b_target * (b_p + b_q), 0.0), 0)
    b_apart = tl.where(m_class, b_p - b_q, 0.0)
    b_p, b_q = tl.exp(b_p), tl.exp(b_q)
    b_pq, b_qp = tl.sum(b_p * b_apart, 0), -tl.sum(b_q * b_apart, 0)  # KL(p‖q), KL(q‖p)
    tl.store(p_losses + i_label, counts * (0.5 * b_wrong + 0.25 * weight * (b_pq + b_qp)))
    share = 0.25 * weight
    b_dp = b_p * (share * (1.0 + b_apart - b_pq) + 0.5) - share * b_q - 0.5 * b_target
    b_dq = b_q * (share * (1.0 - b_apart - b_qp) + 0.5) - share * b_p - 0.5 * b_target
    tl.store(p_gradient + first + o_class, (counts * b_dp).to(p_gradient.dtype.element_ty), mask=m_class)
    tl.store(p_gradient + second + o_class, (counts * b_dq).to(p_gradient.dtype.element_ty), mask=m_class)


def losses_and_gradient(logits: Tensor, labels: Tensor, smoothing: float, weight: float) -> tuple[Tensor, Tensor]:
    """(losses `[labels]` in float32, gradient of their sum as the logits `[2 · labels, classes]`)."""
    count, classes = labels.shape[0], logits.shape[1]
    losses = torch.empty(count, device=logits.device, dtype=torch.float32)
    gradient = torch.empty_like(logits)
    padded = triton.next_power_of_2(classes)
    warps = min(16, max(4, padded // 512))
    tensors = (logits, labels, losses, gradient)
    agree[(count,)](*tensors, count, classes, smoothing, weight, padded, num_warps=warps)  # type: ignore[call-arg]
    return losses, gradient
