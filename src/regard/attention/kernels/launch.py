"""Kernels started again and again: what Triton finds out about arguments is found out once."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.runtime import driver

OPTIONS = ("num_warps", "num_stages", "maxnreg")


class Launch:
    """A kernel with all of its arguments known but the tensors that come first.

    The first start goes through Triton, which looks at every argument, compiles, and leaves a kernel; later starts hand
    addresses to that kernel's launcher, past Triton's hooks. So the tensors must keep their types and device, and lie
    at multiples of 16 bytes, as the first ones did. Of `fixed` the kernel gets what it has names for.
    """

    def __init__(self, kernel: Any, programs: int, **fixed: Any):
        self.kernel, self.grid = kernel, (programs, 1, 1)
        self.fixed = {name: x for name, x in fixed.items() if name in kernel.arg_names or name in OPTIONS}
        self.run: Any = None

    def __call__(self, *tensors: Tensor | None) -> None:
        if self.run is None:
            self.first(*tensors)
        else:
            pointers = [None if x is None else x.data_ptr() for x in tensors]
            self.run(*self.grid, self.stream(self.device), *self.compiled, *pointers, *self.rest)

    def first(self, *tensors: Tensor | None) -> None:
        compiled = self.kernel[self.grid](*tensors, **self.fixed)
        if compiled is None:  # Triton's interpreter compiles nothing
            return
        names = self.kernel.arg_names[len(tensors) :]
        self.rest = tuple(address(self.fixed[name]) for name in names)
        self.compiled = (compiled.function, compiled.packed_metadata, None, None, None)
        self.stream, self.device = driver.active.get_current_stream, driver.active.get_current_device()
        self.run = compiled.run


def address(x: Any) -> Any:
    """A tensor as a number that is a pointer to a kernel; anything else as it is."""
    return x.data_ptr() if isinstance(x, Tensor) else x
