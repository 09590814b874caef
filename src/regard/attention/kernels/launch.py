"""Kernels started again and again: what Triton finds out about arguments is found out once."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Launch:
    """A kernel with all of its arguments known but the tensors that come first.

    The first start goes through Triton, which looks at every argument, compiles, and leaves a kernel; later starts take
    that kernel and hand it addresses. So the tensors must keep their types, and lie at multiples of 16 bytes, as the
    first ones did.
    """

    def __init__(self, kernel: Any, programs: int, **fixed: Any):
        self.kernel, self.grid, self.fixed = kernel, (programs, 1, 1), fixed
        self.again: Any = None
        self.rest: tuple[Any, ...] = ()

    def __call__(self, *tensors: Tensor | None) -> None:
        if self.again is not None:
            self.again(*[None if x is None else x.data_ptr() for x in tensors], *self.rest)
            return
        compiled = self.kernel[self.grid](*tensors, **self.fixed)
        if compiled is not None:  # Triton's interpreter compiles nothing
            names = self.kernel.arg_names[len(tensors) :]
            self.rest = tuple(address(self.fixed[name]) for name in names)
            self.again = compiled[self.grid]


def address(x: Any) -> Any:
    """A tensor as a number that is a pointer to a kernel; anything else as it is."""
    return x.data_ptr() if isinstance(x, Tensor) else x
