"""Kernels started again and again, and compiled together: what Triton finds out about arguments is found out once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime import driver

OPTIONS = ("num_warps", "num_stages", "maxnreg")
COMPILED: set[Any] = set()  # kinds of calls whose kernels are
COMPILING: ContextVar[list[Any] | None] = ContextVar("kernels that are compiled and not started", default=None)


def begin(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> Any:
    """Start a kernel and return it compiled; in the work of `compile_together`, only compile it, and return None."""
    kernels = COMPILING.get()
    if kernels is None:
        return kernel[grid](*arguments, **settings)
    kernels.append(kernel.warmup(*arguments, grid=grid, **settings))
    return None


def compile_together(kind: Any, work: Callable[[], object]) -> None:
    """The first time that a kind of call is seen, compile the kernels that `work` begins at the same time, in threads.

    None of them is started: what `work` leaves in tensors means nothing.
    """
    if kind in COMPILED or triton.knobs.runtime.interpret:
        return
    COMPILED.add(kind)
    kernels: list[Any] = []
    token = COMPILING.set(kernels)
    try:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            with triton.AsyncCompileMode(threads):
                work()
            list(threads.map(build_launcher, kernels))
    finally:
        COMPILING.reset(token)


def build_launcher(kernel: Any) -> None:
    """Have Triton compile the piece of C that starts a kernel, and leave it in its cache.

    What fails here fails again when the kernel is started, and is said there.
    """
    with contextlib.suppress(Exception):
        kernel = kernel.result() if hasattr(kernel, "result") else kernel
        driver.active.launcher_cls(kernel.src, kernel.metadata)


class Launch:
    """A kernel with all of its arguments known but the tensors that come first.

    The first start goes through Triton, which looks at every argument, compiles, and leaves a kernel; later starts hand
    addresses to that kernel's launcher, past Triton's hooks. So the tensors must keep their types and device, and lie
    at multiples of 16 bytes (`aligned`), as the first ones did. Of `fixed` the kernel gets what it has names for.
    """

    def __init__(self, kernel: Any, *programs: int, **fixed: Any):
        self.kernel, self.grid = kernel, (*programs, 1, 1)[:3]
        self.fixed = {name: x for name, x in fixed.items() if name in kernel.arg_names or name in OPTIONS}
        self.run: Any = None

    def __call__(self, *tensors: Tensor | None) -> None:
        if self.run is None:
            self.first(*tensors)
        elif COMPILING.get() is None:
            pointers = [None if x is None else x.data_ptr() for x in tensors]
            self.run(*self.grid, self.stream(self.device), *self.compiled, *pointers, *self.rest)

    def first(self, *tensors: Tensor | None) -> None:
        compiled = begin(self.kernel, self.grid, *tensors, **self.fixed)
        if compiled is None:  # it was compiled and not started; or Triton's interpreter runs it, and compiles nothing
            return
        names = self.kernel.arg_names[len(tensors) :]
        self.rest = tuple(address(self.fixed[name]) for name in names)
        self.compiled = (compiled.function, compiled.packed_metadata, None, None, None)
        self.stream, self.device = driver.active.get_current_stream, driver.active.get_current_device()
        self.run = compiled.run


def address(x: Any) -> Any:
    """A tensor as a number that is a pointer to a kernel; anything else as it is."""
    return x.data_ptr() if isinstance(x, Tensor) else x


def aligned(x: Tensor) -> Tensor:
    """x with the numbers of a token side by side, beginning where loads of 16 bytes can be."""
    fits = x.stride(-1) == 1 and x.data_ptr() % 16 == 0
    return x if fits else x.clone(memory_format=torch.contiguous_format)
