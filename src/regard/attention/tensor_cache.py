"""A cache for tensors that are made of plain numbers, such as the angles of `Rotary` at given positions."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

ENTRIES = 32  # of each function
P = ParamSpec("P")
T = TypeVar("T")


def tensor_cache(make: Callable[P, T]) -> Callable[P, T]:
    """Decorate `make`, a function from plain numbers to tensors, with a cache of its last results.

    Nothing is cached or reused where tensors are fake (in a compiled graph, under a dispatch mode of torch), nor cached
    during the capture of a CUDA graph, which owns its memory.
    """
    cache: OrderedDict[tuple, T] = OrderedDict()

    @functools.wraps(make)
    def lookup(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
            return make(*args, **kwargs)
        key = (*args, *kwargs.items())
        value = cache.get(key)
        if value is None:
            with torch.inference_mode(False):
                value = make(*args, **kwargs)
            if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
                cache[key] = value
                while len(cache) > ENTRIES:
                    cache.popitem(last=False)
        return value

    return lookup
