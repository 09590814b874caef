"""Kernels of `cross_entropy`: a program per row for the losses, several per row for the gradient.

loss = lse − x_label,   lse = log Σ_w exp(x_w),      dx_w = grad · (exp(x_w − lse) − [w is the label])
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.call import device_guard
from ..attention.kernels.launch import next_power, start
from ..attention.kernels.prelude import MAX_INIT

MAX_BLOCK = 8192  # words that a program reads at once


@triton.jit
def loss_kernel(p_x, p_label, p_lse, p_loss, words, columns, ignored, BLOCK: tl.constexpr):
    """Loss and log-sum-exp of one row; NaN for a label that is no word, 0 for an ignored one."""
    i_row = tl.program_id(0).to(tl.int64)
    b_m, b_l = tl.full([1], MAX_INIT, tl.float32), tl.zeros([1], tl.float32)
    for first in range(0, words, BLOCK):
        o_word = first + tl.arange(0, BLOCK)
        b_x = tl.load(p_x + i_row * columns + o_word, mask=o_word < words, other=-float("inf")).to(tl.float32)
        b_new_m = tl.maximum(b_m, tl.max(b_x, 0, keep_dims=True))
        b_l = b_l * tl.exp(b_m - b_new_m) + tl.sum(tl.exp(b_x - b_new_m), 0, keep_dims=True)
        b_m = b_new_m
    lse = tl.sum(b_m + tl.log(b_l), 0)
    label = tl.load(p_label + i_row)
    known = (label >= 0) & (label < words)
    x_label = tl.load(p_x + i_row * columns + tl.where(known, label, 0)).to(tl.float32)
    loss = tl.where(known, lse - x_label, float("nan"))
    tl.store(p_lse + i_row, lse)
    tl.store(p_loss + i_row, tl.where(label == ignored, 0.0, loss))


@triton.jit
def gradient_kernel(p_x, p_label, p_lse, p_grad, p_dx, words, columns, ignored, BLOCK: tl.constexpr):
    """dx of BLOCK words of one row; 0 beyond the words and for an ignored label."""
    i_row = tl.program_id(0).to(tl.int64)
    o_word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(p_label + i_row)
    grad = tl.where(label == ignored, 0.0, tl.load(p_grad).to(tl.float32))
    b_x = tl.load(p_x + i_row * columns + o_word, mask=o_word < words, other=-float("inf")).to(tl.float32)
    b_dx = tl.exp(b_x - tl.load(p_lse + i_row)) - tl.where(o_word == label, 1.0, 0.0)
    b_dx = tl.where(label == ignored, 0.0, b_dx * grad)
    tl.store(p_dx + i_row * columns + o_word, b_dx.to(p_dx.dtype.element_ty), mask=o_word < columns)


def losses(logits: Tensor, labels: Tensor, words: int, ignored: int) -> tuple[Tensor, Tensor]:
    """The loss and the log-sum-exp of each row, float32 `[rows]`."""
    rows, columns = logits.shape
    loss, lse = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    tensors = (logits, labels.contiguous(), lse, loss)
    with device_guard(logits):
        start(loss_kernel, (rows,), *tensors, words, columns, ignored, BLOCK=choose_block(words), num_warps=8)
    return loss, lse


def gradient(logits: Tensor, labels: Tensor, lse: Tensor, grad: Tensor, words: int, ignored: int) -> Tensor:
    """The gradient of the logits, in their type, from that of the summed loss."""
    rows, columns = logits.shape
    dx, block = torch.empty_like(logits), choose_block(columns)
    tensors = (logits, labels.contiguous(), lse, grad, dx)
    with device_guard(logits):
        start(
            gradient_kernel, (rows, -(-columns // block)), *tensors, words, columns, ignored, BLOCK=block, num_warps=8
        )
    return dx


def choose_block(words: int) -> int:
    return min(MAX_BLOCK, next_power(words))
