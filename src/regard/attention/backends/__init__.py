"""The backends. Each computes the same attention; `auto` takes the first that has no reason against the call."""

from __future__ import annotations

from ...errors import BadInput, Unsupported
from ..call import Call
from . import dense, edges, reference, sdpa, triton
from .backend import Backend, reason_against
from .blockwise import blockwise as blockwise_backend

__all__ = ["BACKENDS", "Backend", "choose_backend", "reason_against"]

ORDER: tuple[Backend, ...] = (edges, sdpa, triton, dense, blockwise_backend, reference)
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in ORDER}
"""The backends by name, in the order in which `auto` tries them."""


def choose_backend(call: Call, name: str) -> Backend:
    """The backend of that name, or for `auto` the first that has no reason against the call."""
    if name == "auto":
        return next(backend for backend in BACKENDS.values() if reason_against(backend, call) is None)
    if name not in BACKENDS:
        raise BadInput(f"backend is {name!r}; it must be 'auto' or one of {', '.join(BACKENDS)}.")
    why = BACKENDS[name].unsupported_reason(call)
    if why is not None:
        raise Unsupported(f"backend {name!r} cannot run this: {why}. Use backend='auto', or see regard.plan(...).")
    return BACKENDS[name]
