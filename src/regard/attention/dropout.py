"""Dropout as a function of (seed, batch, head, i, j): the same weights are dropped on every backend and in backward.

Murmur3's finaliser mixes the numbers, 32 bits at a time; kernels do the same arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = 0x9E3779B1
LIMIT = 1 << 31


def draw_seed(generator: torch.Generator | None, device: torch.device) -> Tensor:
    """A random number from the generator, as a tensor `[1]` on `device`."""
    source = generator.device if generator is not None else device
    return torch.randint(0, LIMIT - 1, (1,), generator=generator, device=source).to(device)


def row_keys(seed: Tensor, batch: Tensor, heads: Tensor, i: Tensor) -> Tensor:
    """A hash of each (batch, head, query), `[batch, heads, queries]`, in 32 bits of an int64."""
    x = mix(mix(seed)[:, None] ^ batch[:, None])  # [batch, 1]
    x = mix(x ^ heads)[:, :, None]  # [batch, heads, 1]
    return mix(x ^ (i & 0xFFFFFFFF))


def keep_mask(rows: Tensor, j: Tensor, dropout: float) -> Tensor:
    """Whether each weight is kept: rows `[..., queries]` from `row_keys`, j `[keys]` → `[..., queries, keys]`."""
    x = to_int32(rows)[..., None] ^ to_int32(j * GOLDEN & 0xFFFFFFFF)
    return (mix_int32(x) & 0x7FFFFFFF) >= threshold(dropout)


def threshold(dropout: float) -> int:
    """The least 31-bit number that is kept."""
    return min(round(dropout * LIMIT), LIMIT - 1)


def keep_scale(dropout: float) -> float:
    """What kept weights are multiplied with, so that their expected sum stays 1."""
    return 1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0


def to_int32(x: Tensor) -> Tensor:
    """The low 32 bits of an int64 as an int32."""
    return (x - ((x >> 31) << 32)).to(torch.int32)


def mix(x: Tensor) -> Tensor:
    """Murmur3's finaliser over the low 32 bits of an int64."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def mix_int32(x: Tensor) -> Tensor:
    """`mix` over int32, whose products wrap; a mask makes shifts logical."""
    x = (x ^ (x >> 16 & 0xFFFF)) * (0x85EBCA6B - (1 << 32))
    x = (x ^ (x >> 13 & 0x7FFFF)) * (0xC2B2AE35 - (1 << 32))
    return x ^ (x >> 16 & 0xFFFF)
