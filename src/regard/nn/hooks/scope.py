"""Scopes: what a `with` block opens is seen by its own thread and task only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

OPEN_SCOPES: ContextVar[frozenset[Scope]] = ContextVar("open_scopes", default=frozenset())
"""The scopes that are open in the current thread and task."""


class Scope:
    """A `with` block of `watch` or `edit`. Hooks of a model are called in every thread; they ask whether it is open."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """While open, `is_open` is true in this thread or task and in the tasks that it starts."""
        OPEN_SCOPES.set(OPEN_SCOPES.get() | {self})
        try:
            yield
        finally:
            OPEN_SCOPES.set(OPEN_SCOPES.get() - {self})

    @property
    def is_open(self) -> bool:
        """Whether the caller is in the scope.

        Autograd's own threads, which repeat a forward pass for activation checkpointing, have no context: they are in
        every scope.
        """
        return self in OPEN_SCOPES.get() or in_autograd_thread()


def in_autograd_thread() -> bool:
    """Whether a backward pass runs here, on a thread that Python did not start."""
    inside = torch._C._current_graph_task_id() != -1
    return inside and isinstance(threading.current_thread(), threading._DummyThread)
