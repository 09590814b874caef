"""The kernels of `cross_entropy`: a program a row for the losses, several a row for the gradient."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.backends.triton import device_guard

WIDE = 8192  # words that a program reads at once
LOWEST = tl.constexpr(-1.0e30)  # where a running maximum starts: finite, so that 0 · (old − new) is 0


@triton.jit
def loss_kernel(p_x, p_label, p_lse, p_loss, words, columns, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, total = tl.full([1], LOWEST, tl.float32), tl.zeros([1], tl.float32)
    for start in range(0, words, BLOCK):
        o_word = start + tl.arange(0, BLOCK)
        b_x = tl.load(p_x + row * columns + o_word, mask=o_word < words, other=-float("inf")).to(tl.float32)
        above = tl.maximum(top, tl.max(b_x, 0, keep_dims=True))
        total = total * tl.exp(top - above) + tl.sum(tl.exp(b_x - above), 0, keep_dims=True)
        top = above
    lse = tl.sum(top + tl.log(total), 0)
    label = tl.load(p_label + row)
    known = (label >= 0) & (label < words)  # another one makes the loss no number
    at = tl.load(p_x + row * columns + tl.where(known, label, 0)).to(tl.float32)
    loss = tl.where(known, lse - at, float("nan"))
    tl.store(p_lse + row, lse)
    tl.store(p_loss + row, tl.where(label == ignored, 0.0, loss))


@triton.jit
def gradient_kernel(p_x, p_label, p_lse, p_grad, p_out, words, columns, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    o_word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_column = o_word < columns
    label = tl.load(p_label + row)
    grad = tl.where(label == ignored, 0.0, tl.load(p_grad).to(tl.float32))
    b_x = tl.load(p_x + row * columns + o_word, mask=o_word < words, other=-float("inf")).to(tl.float32)
    b_weight = tl.exp(b_x - tl.load(p_lse + row)) - tl.where(o_word == label, 1.0, 0.0)
    b_out = tl.where(label == ignored, 0.0, b_weight * grad)
    tl.store(p_out + row * columns + o_word, b_out.to(p_out.dtype.element_ty), mask=m_column)


def losses(logits: Tensor, labels: Tensor, words: int, ignored: int) -> tuple[Tensor, Tensor]:
    """The loss and the log-sum-exp of each row, float32 `[rows]`."""
    rows, columns = logits.shape
    found, lse = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    with device_guard(logits):
        loss_kernel[(rows,)](logits, labels.contiguous(), lse, found, words, columns, ignored, **run(words))
    return found, lse


def gradient(logits: Tensor, labels: Tensor, lse: Tensor, grad: Tensor, words: int, ignored: int) -> Tensor:
    """What `grad`, a number, sends to the logits: grad · (exp(logits − lse) − 1 at the label), in their type."""
    rows, columns = logits.shape
    out, how = torch.empty_like(logits), run(columns)
    grid = rows, triton.cdiv(columns, how["BLOCK"])
    with device_guard(logits):
        gradient_kernel[grid](logits, labels.contiguous(), lse, grad, out, words, columns, ignored, **how)
    return out


def run(words: int) -> dict[str, Any]:
    """How a program runs over so many words."""
    return {"BLOCK": min(WIDE, 1 << max(words - 1, 0).bit_length()), "num_warps": 8}
