"""Calls of `attend` that another function answers, by which `regard.watch` and `regard.edit` see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

Interceptor = Callable[[dict[str, Any]], Tensor | None]

INTERCEPTORS: list[Interceptor] = []
"""Asked at every call of `attend`; empty unless something is watched or edited."""


def intercept(arguments: dict[str, Any]) -> Tensor | None:
    """The output of the first interceptor that answers a call with these arguments; None where none does."""
    for interceptor in tuple(INTERCEPTORS):
        output = interceptor(arguments)
        if output is not None:
            return output
    return None
