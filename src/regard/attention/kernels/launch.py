"""Kernel launches from the host: compiled together, started with few checks, given aligned tensors and strides."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.runtime import driver

from ..call import LoweredCall

LOG2E = math.log2(math.e)
OPTIONS = ("num_warps", "num_stages", "maxnreg")
COMPILED: set[Hashable] = set()  # keys of `compile_together` in this process
COMPILING: ContextVar[list[Any] | None] = ContextVar("kernels that are compiled and not started", default=None)


class TileShape(NamedTuple):
    """A tile of `rows` queries × `columns` keys, and the warps and stages of a program that computes such tiles.

    `registers` bounds those of a thread, so that more programs share a multiprocessor; 0 sets no bound.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    registers: int = 0

    def arguments(self) -> dict[str, int]:
        limit = {"maxnreg": self.registers} if self.registers else {}
        return {"BM": self.rows, "BN": self.columns, "num_warps": self.warps, "num_stages": self.stages, **limit}


ShapeTable = dict[int, dict[int, TileShape]]
"""Tile shapes by bytes of an element, then by padded head_dim."""


def select_shape(table: ShapeTable, itemsize: int, head_dim: int) -> TileShape:
    """The shape for the nearest head_dim that is not smaller."""
    shapes = table[itemsize]
    return shapes[min(x for x in shapes if x >= head_dim)]


class PairLayout(NamedTuple):
    """What a kernel is compiled for of a bias by pair: its strides, 0 where it broadcasts; type and alignment."""

    strides: tuple[int, ...]
    dtype: torch.dtype
    aligned: bool

    @classmethod
    def of(cls, bias: Tensor | None) -> PairLayout | None:
        if bias is None:
            return None
        steps = [0 if size == 1 else step for size, step in zip(bias.shape, bias.stride(), strict=True)]
        return cls(tuple(steps), bias.dtype, bias.data_ptr() % 16 == 0)

    def vectors(self, keys: int) -> bool:
        """Whether all rows of so many keys are whole vectors of 16 bytes."""
        *outer, last = self.strides
        return self.aligned and last == 1 and not any(x * self.dtype.itemsize % 16 for x in (*outer, keys))


class PlacedTable(NamedTuple):
    """A table by distance that is read at explicit places, which may differ by batch row."""

    zero: int
    entries: int
    by_batch: bool

    @classmethod
    def of(cls, p: LoweredCall) -> PlacedTable | None:
        """That of a call; None without places, or without a part by distance."""
        part = p.rel_bias or p.rel_vectors or p.key_vectors
        if p.places is None or part is None:
            return None
        return cls(part.zero, part.table.shape[1], max(map(len, p.places)) > 1)


def pack_places(p: LoweredCall) -> Tensor | None:
    """The places of queries and then of keys, from 0 on, int32 `[batch or 1, queries + keys]`; None if no part by
    distance reads them."""
    if p.places is None or PlacedTable.of(p) is None:
        return None
    batch = max(map(len, p.places))
    places = torch.cat([x.expand(batch, -1) for x in p.places], 1)
    return (places - places.min()).int()


def start(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> Any:
    """Start a kernel and return it compiled; inside `compile_together` only compile it, and return None."""
    kernels = COMPILING.get()
    if kernels is None:
        return kernel[grid](*arguments, **settings)
    kernels.append(kernel.warmup(*arguments, grid=grid, **settings))
    return None


def compile_together(key: Hashable, work: Callable[[], object]) -> None:
    """The first time for a key, compile the kernels that `work` starts in parallel threads.

    None of them runs, so the contents of the tensors that `work` makes are undefined.
    """
    if key in COMPILED or knobs.runtime.interpret:
        return
    COMPILED.add(key)
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
    """Make Triton compile a kernel's launcher, a piece of C, into its cache.

    An error here is raised again when the kernel is started.
    """
    with contextlib.suppress(Exception):
        kernel = kernel.result() if hasattr(kernel, "result") else kernel
        active_driver().launcher_cls(kernel.src, kernel.metadata)


def active_driver() -> Any:
    """Triton's driver of the GPU in use; its type depends on the backend that Triton finds."""
    return driver.active


class Launch:
    """A kernel with fixed arguments; a call passes the leading tensors and starts it.

    The first start goes through Triton, which inspects every argument and compiles; later starts hand addresses to the
    compiled kernel's launcher, without Triton's hooks. So the tensors must keep their types and device, and begin at
    multiples of 16 bytes (`align`) where the first ones did; then an address may stand for a tensor. Of `fixed` the
    kernel gets the arguments it has names for.
    """

    def __init__(self, kernel: Any, *programs: int, **fixed: Any):
        self.kernel, self.grid = kernel, (*programs, 1, 1)[:3]
        self.fixed = {name: x for name, x in fixed.items() if name in kernel.arg_names or name in OPTIONS}
        self.run: Any = None

    def __call__(self, *tensors: Tensor | int | None) -> None:
        if self.run is None:
            self.start_first(*tensors)
        elif COMPILING.get() is None:
            pointers = [x.data_ptr() if isinstance(x, Tensor) else x for x in tensors]
            self.run(*self.grid, self.stream(self.device), *self.compiled, *pointers, *self.rest)

    def start_first(self, *tensors: Tensor | int | None) -> None:
        compiled = start(self.kernel, self.grid, *tensors, **self.fixed)
        if compiled is None:  # compiled and not started; or run by Triton's interpreter, which compiles nothing
            return
        names = self.kernel.arg_names[len(tensors) :]
        values = (self.fixed[name] for name in names)
        self.rest = tuple(x.data_ptr() if isinstance(x, Tensor) else x for x in values)
        self.compiled = (compiled.function, compiled.packed_metadata, None, None, None)
        device = active_driver()
        self.stream, self.device = device.get_current_stream, device.get_current_device()
        self.run = compiled.run


def align(x: Tensor) -> Tensor:
    """x with a contiguous last axis, starting at a multiple of 16 bytes."""
    fits = x.stride(-1) == 1 and x.data_ptr() % 16 == 0
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of batch, heads and tokens; 0 for an axis of size 1, so that kernels are not specialised for it."""
    batch, heads, tokens = (0 if size == 1 else step for step, size in zip(x.stride()[:3], x.shape[:3], strict=True))
    return batch, heads, tokens


def stride_arguments(**tensors: Tensor) -> dict[str, int]:
    """`stride_qb`, `stride_qh` and `stride_qn` for `q=…`, and likewise for other letters."""
    return {f"stride_{x}{axis}": step for x, t in tensors.items() for axis, step in zip("bhn", strides(t), strict=True)}


def next_power(n: int) -> int:
    """The least power of two that is not below n.

    >>> [next_power(n) for n in (0, 1, 5, 64)]
    [1, 1, 8, 64]
    """
    return 1 << max(n - 1, 0).bit_length()


def pad_dot(n: int) -> int:
    """The least power of two not below n that a matrix product takes: 16 at least."""
    return max(next_power(n), 16)


@functools.cache
def multiprocessors(device: torch.device, otherwise: int) -> int:
    """Multiprocessors of a GPU; `otherwise` where there is none."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else otherwise


def split_tokens(tokens: int, step: int, blocks: int, programs: int, device: torch.device) -> tuple[int, int]:
    """(splits, tokens of each) of a sum over tokens that `blocks` programs each take part in.

    There are enough splits for `programs` programs on every multiprocessor; each has a multiple of `step` tokens.
    """
    tiles = -(-tokens // step)
    splits = min(max(multiprocessors(device, 2) * programs // blocks, 1), tiles)
    size = -(-tiles // splits)
    return -(-tiles // size), size * step
