"""What was read or computed of an example, kept for the next epoch as long as it fits."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor


class Kept:
    """`make(key)`, remembered until `limit` bytes are held; what comes after is made each time.

    >>> import torch
    >>> kept = Kept(lambda size: torch.zeros(size), limit=20)
    >>> kept(5) is kept(5), kept(3) is kept(3)
    (True, False)
    """

    def __init__(self, make: Callable[[Any], Tensor], limit: int = 1 << 30) -> None:
        self.make, self.left = make, limit
        self.found: dict[Hashable, Tensor] = {}

    def __call__(self, key: Hashable) -> Tensor:
        if key in self.found:
            return self.found[key]
        made = self.make(key)
        size = made.numel() * made.element_size()
        if size <= self.left:
            self.left -= size
            self.found[key] = made
        return made
