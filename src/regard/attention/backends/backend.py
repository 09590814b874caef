"""What a backend is: a module (or object) with a name, two reasons against running a call, and `run`."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..call import Call

EDGES_ONLY = "features of edges are summed along edges"
"""Why a backend over tiles cannot run a call with `EdgeFeatures`."""


class Backend(Protocol):
    """One way to compute attention."""

    @property
    def name(self) -> str: ...

    def unsupported_reason(self, call: Call) -> str | None:
        """Why this backend cannot run the call; None when it can."""
        ...

    def slower_reason(self, call: Call) -> str | None:
        """Why another backend would run the call faster; None when none would."""
        ...

    def run(self, call: Call) -> Tensor:
        """The output, `[batch, heads, queries, value dim]`."""
        ...


def reason_against(backend: Backend, call: Call) -> str | None:
    """Why `auto` does not choose the backend: it cannot run the call, or another one is faster."""
    return backend.unsupported_reason(call) or backend.slower_reason(call)
