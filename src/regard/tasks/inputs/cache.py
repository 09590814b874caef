"""A cache of tensors that are computed for examples."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor


class TensorCache:
    """`make(key)`, cached until the cache holds `limit` bytes; later keys are computed each time.

    >>> import torch
    >>> cache = TensorCache(lambda size: torch.zeros(size), limit=20)
    >>> cache(5) is cache(5), cache(3) is cache(3)
    (True, False)
    """

    def __init__(self, make: Callable[[Any], Tensor], limit: int = 1 << 30) -> None:
        self.make, self.left = make, limit
        self.tensors: dict[Hashable, Tensor] = {}

    def __call__(self, key: Hashable) -> Tensor:
        if key in self.tensors:
            return self.tensors[key]
        tensor = self.make(key)
        size = tensor.numel() * tensor.element_size()
        if size <= self.left:
            self.left -= size
            self.tensors[key] = tensor
        return tensor
