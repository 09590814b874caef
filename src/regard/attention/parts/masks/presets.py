"""Masks of models, combined from others: Longformer's and BigBird's."""

from __future__ import annotations

from torch import Tensor

from ..mask import Mask
from ..part import check_count
from .blocks import NearBlocks, RandomBlocks
from .tokens import Global
from .windows import Causal, Dilated, Window


def longformer(window: int, tokens: int | tuple[int, ...] | Tensor = 1, *, causal: bool = False, step: int = 1) -> Mask:
    """Longformer's mask: a window of `window` keys around each query (half on each side) and global tokens.

    `causal` leaves out later keys; a `step` above 1 dilates the window.

    >>> longformer(512, tokens=1)
    Window(before=256, after=256) | Global(tokens=1)
    """
    half = window // 2
    near: Mask = Window(half, half) if step == 1 else Dilated(half, half, step)
    mask = near | Global(tokens)
    return mask & Causal() if causal else mask


def bigbird(block: int = 64, *, window: int = 3, random: int = 3, tokens: int | None = None, seed: int = 0) -> Mask:
    """BigBird's mask, in blocks: `window` blocks around each, `random` random ones, and global ones at the start.

    `tokens` are the global tokens, one block of them unless given.
    """
    check_count(window, "bigbird's window", 1)
    return (
        NearBlocks(block, window // 2) | RandomBlocks(block, random, seed) | Global(block if tokens is None else tokens)
    )
