"""Whether code may depend on the contents of tensors.

In a compiled graph, and in a training step that is captured as a CUDA graph, it may depend on their shapes only: no
sequences are packed, and no tile list is made of a mask's contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_open = 0


def in_cuda_graph() -> bool:
    """Whether a step is being captured as a CUDA graph, or run as it will be."""
    return _open > 0


def shapes_only() -> bool:
    """Whether code may depend on the shapes of tensors only."""
    return torch.compiler.is_compiling() or in_cuda_graph()


@contextmanager
def cuda_graph_mode() -> Iterator[None]:
    """While open, `in_cuda_graph` holds in every thread of this process: autograd runs backward in its own threads."""
    global _open
    _open += 1
    try:
        yield
    finally:
        _open -= 1
