"""A table of numbers by distance that is being learned, from the table itself to its gradient in one kernel each.

A position makes numbers by distance of its table (T5's buckets), and kernels read them along a line. Both are gathers
with indices that stay the same, so that one gather does; its adjoint sums what `d_rel_bias_kernel` leaves for each
distance, entry by entry, in a fixed order.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...parts.positions import Bias, T5Bias
from ..launch import Launch, align, next_power
from .passes import DotInputs, OutputGrad, along_line, rel_bias_schedule
from .schedule import DotConfig

MAX_ENTRIES = 1 << 11  # of a table; the gradient of each is summed by a program
BLOCK, BATCHES = 128, 16  # numbers of a program at once, and rows of a batch


class LearnedTable:
    """The table of a position for calls of one configuration. It does not refer to the position's own table."""

    def __init__(self, position: Bias | T5Bias, q: Tensor, k: Tensor):
        self.heads, self.entries = position.table.shape
        self.position = replace(position, table=torch.zeros_like(position.table, memory_format=torch.contiguous_format))
        numbers = torch.arange(self.entries, dtype=torch.float32, device=q.device).expand(self.heads, -1)
        self.places = replace(position, table=numbers).rel_bias(q, k)  # numbered entries, by distance
        self.line_launch: Launch | None = None
        self.sum_launch: Launch | None = None

    def line(self, c: DotConfig, table: Tensor) -> Tensor:
        """The numbers along the line in units of the scale, `[heads, 8, length]`."""
        line = torch.empty((self.heads, 8, c.length), dtype=torch.float32, device=table.device)
        if self.line_launch is None:
            entries = self.along_line(c)
            self.line_launch = Launch(
                line_kernel, -(-entries.numel() // BLOCK) * self.heads, p_entries=entries, count=entries.numel(),
                entries=self.entries, heads=self.heads, scale=c.scale, BLOCK=BLOCK,
            )  # fmt: skip
        self.line_launch(align(table.contiguous()), line)
        return line

    def along_line(self, c: DotConfig) -> Tensor:
        """The entry at each place of the line, `[8, length]`."""
        return along_line(c, self.places.table, self.places.zero, 8)[0].int().contiguous()

    def gradient(self, inputs: DotInputs, rows: OutputGrad, dtype: torch.dtype) -> Tensor:
        """The gradient of the table, in its type."""
        c, (schedule, batch, diagonals, first) = inputs.config, inputs.schedule(rel_bias_schedule)
        size = schedule.shape.columns
        sums = inputs.plan.empty32((batch, self.heads, diagonals * 2 * size, 1))
        tensors = (inputs.q, inputs.k, inputs.v, inputs.rel_bias, inputs.pairs, inputs.seed, *rows)
        schedule.sum_lists(tensors, (sums,), 2 * size)
        grad = torch.empty((self.heads, self.entries), dtype=dtype, device=sums.device)
        if self.sum_launch is None:
            order, starts = self.gradient_order(c, first, diagonals, size)
            self.sum_launch = Launch(
                sum_kernel, self.heads * self.entries, p_order=order, p_starts=starts, batches=batch, heads=self.heads,
                numbers=diagonals * 2 * size, entries=self.entries, BLOCK=BLOCK, BB=min(next_power(batch), BATCHES),
            )  # fmt: skip
        self.sum_launch(sums, grad)
        return grad

    def gradient_order(self, c: DotConfig, first: int, diagonals: int, size: int) -> tuple[Tensor, Tensor]:
        """The numbers of a head in the order of their entries, and where each entry's begin."""
        entries = self.along_line(c)[0].long()
        high = first + torch.arange(diagonals * size, device=entries.device).view(diagonals, size)
        places = torch.cat([high - size, high], 1).flatten()  # on the line, of the numbers that the kernel leaves
        inside = (places >= 0) & (places < c.length)
        found = torch.where(inside, entries[places.clamp(0, c.length - 1)], self.entries)
        found, order = found.sort(stable=True)
        starts = torch.searchsorted(found, torch.arange(self.entries + 1, device=found.device))
        return order.int(), starts.int()


@triton.jit(do_not_specialize=["count", "entries", "heads"])
def line_kernel(p_table, p_line, p_entries, count, entries, heads, scale, BLOCK: tl.constexpr):
    """`count` places of a line for each head."""
    i_h, i_block = tl.program_id(0) % heads, tl.program_id(0) // heads
    o_x = i_block * BLOCK + tl.arange(0, BLOCK)
    i_entry = tl.load(p_entries + o_x, mask=o_x < count, other=0)
    b_number = tl.load(p_table + i_h * entries + i_entry).to(tl.float32) / scale
    tl.store(p_line + i_h.to(tl.int64) * count + o_x, b_number, mask=o_x < count)


@triton.jit(do_not_specialize=["batches", "heads", "numbers", "entries"])
def sum_kernel(
    p_sums, p_grad, p_order, p_starts, batches, heads, numbers, entries, BLOCK: tl.constexpr, BB: tl.constexpr
):
    """The sum of all numbers of an entry, over the rows of the batch."""
    i_h, i_entry = tl.program_id(0) // entries, tl.program_id(0) % entries
    i_first, i_last = tl.load(p_starts + i_entry), tl.load(p_starts + i_entry + 1)
    o_b = tl.arange(0, BB)
    b_sum = tl.zeros([BB, BLOCK], tl.float32)
    for i_b in range(0, batches, BB):
        o_row = ((i_b + o_b).to(tl.int64) * heads + i_h) * numbers
        for x in range(i_first, i_last, BLOCK):
            o_x = x + tl.arange(0, BLOCK)
            o_number = tl.load(p_order + o_x, mask=o_x < i_last, other=0)
            inside = (i_b + o_b < batches)[:, None] & (o_x < i_last)[None, :]
            b_sum += tl.load(p_sums + o_row[:, None] + o_number[None, :], mask=inside, other=0.0)
    tl.store(p_grad + i_h * entries + i_entry, tl.sum(tl.sum(b_sum, 1), 0))
