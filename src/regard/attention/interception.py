"""Calls of `attend` that another function answers, by which `regard.watch` and `regard.edit` see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Required

import torch
from torch import Tensor

from .parts.parts import PartOptions
from .sharding import SequenceLayout


class AttendArguments(PartOptions, total=False):
    """All arguments of `attend`, by name."""

    q: Required[Tensor]
    k: Required[Tensor]
    v: Required[Tensor]
    generator: torch.Generator | None
    backend: str
    layout: SequenceLayout | None


Interceptor = Callable[[AttendArguments], Tensor | None]

INTERCEPTORS: list[Interceptor] = []
"""Asked at every call of `attend`; empty unless something is watched or edited."""


def intercept(arguments: AttendArguments) -> Tensor | None:
    """The output of the first interceptor that answers a call with these arguments; None where none does."""
    for interceptor in tuple(INTERCEPTORS):
        output = interceptor(arguments)
        if output is not None:
            return output
    return None
