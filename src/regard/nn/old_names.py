"""Keyword arguments of earlier versions: functions and configurations accept them under their old names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., object])
R = TypeVar("R")


def accept_old_names(**names: str) -> Callable[[C], C]:
    """A decorator for a function or a class that renames keyword arguments, old name to new.

    >>> @accept_old_names(places="positions")
    ... def count(positions: int) -> int:
    ...     return positions
    >>> count(places=3), count(positions=4)
    (3, 4)
    """

    def rename(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> R:
            for old, new in names.items():
                if old in kwargs and new not in kwargs:
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    def decorate(target: Any) -> Any:
        if not isinstance(target, type):
            return rename(target)
        setattr(target, "__init__", rename(target.__init__))  # noqa: B010
        return target

    return decorate
