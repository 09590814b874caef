"""Caches of what is computed for examples: tensors, and results of methods."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Generic, ParamSpec, TypeVar

from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class MethodCache(Generic[P, T]):
    """`function` with a cache of its `size` most recent results. It is pickled and copied without them.

    >>> cached = MethodCache(str.upper, 2)
    >>> cached("a"), cached.cache_info().misses
    ('A', 1)
    """

    def __init__(self, function: Callable[P, T], size: int) -> None:
        self.function, self.size = function, size
        self.cached = lru_cache(size)(function)
        self.cache_clear, self.cache_info = self.cached.cache_clear, self.cached.cache_info

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.cached(*args, **kwargs)

    def __reduce__(self) -> tuple[type[MethodCache[..., object]], tuple[Callable[P, T], int]]:
        return MethodCache, (self.function, self.size)


class TensorCache(Generic[K]):
    """`make(key)`, cached until the cache holds `limit` bytes; later keys are computed each time.

    >>> import torch
    >>> cache = TensorCache(lambda size: torch.zeros(size), limit=20)
    >>> cache(5) is cache(5), cache(3) is cache(3)
    (True, False)
    """

    def __init__(self, make: Callable[[K], Tensor], limit: int = 1 << 30) -> None:
        self.make, self.left = make, limit
        self.tensors: dict[K, Tensor] = {}

    def __call__(self, key: K) -> Tensor:
        if key in self.tensors:
            return self.tensors[key]
        tensor = self.make(key)
        size = tensor.numel() * tensor.element_size()
        if size <= self.left:
            self.left -= size
            self.tensors[key] = tensor
        return tensor
