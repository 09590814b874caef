"""Whether the host may look into tensors.

In a compiled graph, and while a step is recorded for a GPU to repeat by itself, what is done may depend on the sizes of
tensors and not on what is in them: nothing is packed, no list is made of a mask's contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_open = 0


def in_cuda_graph() -> bool:
    """Whether a step is being recorded, or run as it will be."""
    return _open > 0


def shapes_only() -> bool:
    """Whether only the sizes of tensors may be known."""
    return torch.compiler.is_compiling() or in_cuda_graph()


@contextmanager
def cuda_graph_mode() -> Iterator[None]:
    """While open, every thread of this process sees `shapes_only`: autograd runs backward in threads of its own."""
    global _open
    _open += 1
    try:
        yield
    finally:
        _open -= 1
