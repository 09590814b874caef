"""Keys and values in 8 bits: int8 or fp8 (e4m3) codes, with a scale for each head and token.

    x  ≈  channel · scale · code,     scale = max |x / channel| / largest code

Values have one scale for each token of a head, since a query mixes whole tokens and a token with large numbers must not
coarsen others. Keys also have a `channel` scale for each number of the head: in trained models a few channels are large
in the keys of all tokens (KIVI, Liu et al. 2024, quantises keys by channel for that reason), and one scale for a token
would give all its digits to them. It is fixed by the first tokens, if they are enough to know the channels by, so that
a code is computed once and never again.

A number errs by at most half a step of its code: channel · scale / 2 in int8; in fp8 |x| · 2⁻⁴, and channel · scale ·
2⁻¹⁰ near zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .buffers import TokenBuffer, refuse_gradients

CodeType = Literal["int8", "fp8"]
FP8 = torch.float8_e4m3fn
LARGEST = {"int8": 127.0, "fp8": torch.finfo(FP8).max}
SMALLEST_SCALE = 1e-20  # of a token of zeros
FEWEST_TOKENS = 32  # whose channels are compared
SMALLEST_CHANNEL = 1 / 16  # so that one that grows later costs the others at most four bits


class Codes(NamedTuple):
    """`codes [batch, kv_heads, tokens, head_dim]` of one byte, `scales [batch, kv_heads, tokens, 1]` in float32."""

    codes: Tensor
    scales: Tensor


def quantize(x: Tensor, code_type: CodeType, channel: Tensor | None = None) -> Codes:
    """The codes of x `[batch, kv_heads, tokens, head_dim]`; `channel [batch, kv_heads, 1, head_dim]` divides it first.

    >>> x = torch.tensor([[[[0.0, 0.5, -2.0]]]])
    >>> dequantize(*quantize(x, "int8"), "int8").round(decimals=2).tolist()
    [[[[0.0, 0.5, -2.0]]]]
    """
    x = x.float() if channel is None else x.float() / channel
    scales = x.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_SCALE) / LARGEST[code_type]
    x = x / scales
    if code_type == "int8":
        return Codes(x.round().clamp(-127, 127).to(torch.int8), scales)
    return Codes(x.clamp(-LARGEST["fp8"], LARGEST["fp8"]).to(FP8).view(torch.int8), scales)


def dequantize(codes: Tensor, scales: Tensor, code_type: CodeType, channel: Tensor | None = None) -> Tensor:
    """The numbers of the codes, float32."""
    x = (codes if code_type == "int8" else codes.view(FP8)).float() * scales
    return x if channel is None else x * channel


def channel_scales(x: Tensor) -> Tensor | None:
    """The largest number of each channel relative to that of the head, `[batch, kv_heads, 1, head_dim]`."""
    if x.shape[2] < FEWEST_TOKENS:
        return None
    largest = x.float().abs().nan_to_num(0.0, 0.0, 0.0).amax(2, keepdim=True)
    return (largest / largest.amax(-1, keepdim=True).clamp(min=SMALLEST_SCALE)).clamp(min=SMALLEST_CHANNEL)


class QuantizedBuffer:
    """Keys or values in 8 bits, read back in `dtype`."""

    def __init__(
        self, codes: TokenBuffer, scales: TokenBuffer, code_type: CodeType, dtype: torch.dtype, channel: Tensor | None
    ) -> None:
        self.codes, self.scales, self.channel, self.dtype = codes, scales, channel, dtype
        self.code_type: CodeType = code_type

    @staticmethod
    def allocate(x: Tensor, code_type: CodeType, by_channel: bool) -> QuantizedBuffer:
        """A buffer that begins with x; `by_channel` scales channels by their largest number in x."""
        channel = channel_scales(x.detach()) if by_channel else None
        codes, scales = encode(x, code_type, channel)
        return QuantizedBuffer(TokenBuffer(codes), TokenBuffer(scales), code_type, x.dtype, channel)

    def replace(self, codes: TokenBuffer, scales: TokenBuffer, channel: Tensor | None) -> QuantizedBuffer:
        return QuantizedBuffer(codes, scales, self.code_type, self.dtype, channel)

    def append(self, x: Tensor, start: int, end: int) -> tuple[QuantizedBuffer, int]:
        codes, scales = encode(x, self.code_type, self.channel)
        buffer, first = self.codes.append(codes, start, end)
        return self.replace(buffer, self.scales.append(scales, start, end)[0], self.channel), first

    def keep(self, start: int, end: int) -> tuple[QuantizedBuffer, int]:
        codes, first = self.codes.keep(start, end)
        return self.replace(codes, self.scales.keep(start, end)[0], self.channel), first

    def select(self, rows: Tensor, start: int, end: int) -> tuple[QuantizedBuffer, int]:
        codes, first = self.codes.select(rows, start, end)
        channel = None if self.channel is None else self.channel[rows]
        return self.replace(codes, self.scales.select(rows, start, end)[0], channel), first

    def read(self, start: int, end: int) -> Tensor:
        codes, scales = self.codes.read(start, end), self.scales.read(start, end)
        return dequantize(codes, scales, self.code_type, self.channel).to(self.dtype)

    def error(self, start: int, end: int) -> float:
        return float(self.errors(start, end).max()) if end > start else 0.0

    def errors(self, start: int, end: int) -> Tensor:
        """The most by which each number can differ, `[batch, kv_heads, tokens, head_dim]`."""
        step = self.scales.read(start, end) * (1.0 if self.channel is None else self.channel)
        x = self.read(start, end).float().abs()
        rounding = 2 * torch.finfo(self.dtype).eps * x  # of two divisions, two products and the conversion to dtype
        if self.code_type == "int8":
            return step / 2 + rounding
        return torch.maximum(x * 2.0**-4, step * 2.0**-10) + rounding

    def allocations(self) -> Iterator[tuple[object, int]]:
        yield from self.codes.allocations()
        yield from self.scales.allocations()


def encode(x: Tensor, code_type: CodeType, channel: Tensor | None) -> Codes:
    """`quantize`, which has no gradient."""
    if torch.is_grad_enabled() and x.requires_grad:
        refuse_gradients("quantized")
    return quantize(x, code_type, channel)
