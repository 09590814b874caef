"""The kernel of the R-Drop loss: a program reads both rows of logits of a label once, and writes their gradient.

With p and q the two softmaxes, t the smoothed label, and λ the weight of the divergence:

    loss = −½ t·(ln p + ln q) + ¼ λ (KL(p‖q) + KL(q‖p))
    dp = p (¼ λ (1 + ln p − ln q − KL(p‖q)) + ½) − ¼ λ q − ½ t,      dq likewise
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention.kernels.launch import next_power, start


@triton.jit
def log_softmax(p_row, o_class, m_class):
    """ln p of a row of logits, −∞ beyond it."""
    b_x = tl.load(p_row + o_class, mask=m_class, other=-float("inf")).to(tl.float32)
    b_x -= tl.max(b_x, 0)
    return b_x - tl.log(tl.sum(tl.exp(b_x), 0))


@triton.jit
def r_drop_kernel(p_logits, p_labels, p_losses, p_gradient, labels, classes, smoothing, weight, CLASSES: tl.constexpr):
    """Loss of one label, and the gradient of its two rows; both are 0 for a negative label."""
    i_label = tl.program_id(0)
    o_class = tl.arange(0, CLASSES)
    m_class = o_class < classes
    first, second = i_label.to(tl.int64) * classes, (i_label + labels).to(tl.int64) * classes
    b_p = log_softmax(p_logits + first, o_class, m_class)
    b_q = log_softmax(p_logits + second, o_class, m_class)
    label = tl.load(p_labels + i_label)
    counts = tl.where(label >= 0, 1.0, 0.0)
    b_target = tl.where(o_class == label, 1.0 - smoothing, 0.0) + smoothing / classes
    nll = tl.sum(tl.where(m_class, -b_target * (b_p + b_q), 0.0), 0)
    b_log_ratio = tl.where(m_class, b_p - b_q, 0.0)
    b_p, b_q = tl.exp(b_p), tl.exp(b_q)
    kl_pq, kl_qp = tl.sum(b_p * b_log_ratio, 0), -tl.sum(b_q * b_log_ratio, 0)
    tl.store(p_losses + i_label, counts * (0.5 * nll + 0.25 * weight * (kl_pq + kl_qp)))
    factor = 0.25 * weight
    b_dp = b_p * (factor * (1.0 + b_log_ratio - kl_pq) + 0.5) - factor * b_q - 0.5 * b_target
    b_dq = b_q * (factor * (1.0 - b_log_ratio - kl_qp) + 0.5) - factor * b_p - 0.5 * b_target
    tl.store(p_gradient + first + o_class, (counts * b_dp).to(p_gradient.dtype.element_ty), mask=m_class)
    tl.store(p_gradient + second + o_class, (counts * b_dq).to(p_gradient.dtype.element_ty), mask=m_class)


def losses_and_gradient(logits: Tensor, labels: Tensor, smoothing: float, weight: float) -> tuple[Tensor, Tensor]:
    """(losses `[labels]` in float32, gradient of their sum as the logits `[2 · labels, classes]`)."""
    count, classes = labels.shape[0], logits.shape[1]
    losses = torch.empty(count, device=logits.device, dtype=torch.float32)
    gradient = torch.empty_like(logits)
    padded = next_power(classes)
    warps = min(16, max(4, padded // 512))
    tensors = (logits, labels, losses, gradient)
    start(r_drop_kernel, (count,), *tensors, count, classes, smoothing, weight, CLASSES=padded, num_warps=warps)
    return losses, gradient
