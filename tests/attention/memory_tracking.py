"""The largest tensor that a function allocates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.utils._python_dispatch import TorchDispatchMode


class LargestAllocation(TorchDispatchMode):
    """Remembers how many elements the largest tensor had that any operation made, inside the library's operators too.

    Views count by what they show: an expanded tensor holds less, but whoever writes it out does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "regard":
            with self:  # so that what the operator does inside is seen as well
                return func.redispatch(DispatchKeySet(DispatchKey.CPU), *args, **(kwargs or {}))
        actual = func(*args, **(kwargs or {}))
        self.operations += 1
        for x in actual if isinstance(actual, tuple | list) else [actual]:
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.numel() if x.layout == torch.strided else x._nnz())
        return actual


def largest_allocation(work: Callable[[], object]) -> int:
    """The elements of the largest tensor that `work()` makes."""
    with LargestAllocation() as seen:
        work()
    assert seen.operations > 0, "nothing was seen"
    return seen.elements
