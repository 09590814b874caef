"""Fields of a request, checked: indices, spans, whole numbers."""

from __future__ import annotations

from typing import Any

from ...errors import BadInput
from ..inspect.capture import CapturedAttention
from ..lab import Lab
from ..server.jobs import Job


def check_index(value: Any, size: int, name: str) -> int:
    """The value; raises `BadInput` unless it is an index of `size`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
        raise BadInput(f"{name} is {value!r:.40}; there are {size}, so it must be a whole number from 0 to {size - 1}.")
    return value


def read_span(span: Any, size: int, name: str) -> tuple[int, int] | None:
    """(first, after the last) of a field; None where it is missing."""
    if span is None:
        return None
    whole = isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span)
    if not whole or not 0 <= span[0] < span[1] <= size:
        raise BadInput(f"{name} is {span!r:.40}; it must be [first, after the last] within 0 … {size}.")
    return span[0], span[1]


def read_region(request: dict[str, Any], attention: CapturedAttention) -> tuple[tuple[int, int], tuple[int, int]]:
    """The spans `rows` and `keys` of a request; the whole attention where they are missing."""
    rows = read_span(request.get("rows"), attention.queries, "rows") or (0, attention.queries)
    keys = read_span(request.get("keys"), attention.keys, "keys") or (0, attention.keys)
    return rows, keys


def read_count(request: dict[str, Any], name: str, default: int) -> int:
    """A field that is a whole number of at least 0."""
    value = request.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadInput(f"{name} is {value!r:.40}; it must be a whole number of at least 0.")
    return value


def read_optional_int(request: dict[str, Any], name: str) -> int | None:
    """A field that is a whole number or missing."""
    value = request.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise BadInput(f"{name} is {value!r:.40}; it must be a whole number, or left out.")
    return value


def find_head(lab: Lab, request: dict[str, Any], job: Job) -> tuple[CapturedAttention, int]:
    """The attention and the head of a request."""
    attention = lab.capture(request, job).attention(request.get("attention", 0))
    return attention, check_index(request.get("head", 0), attention.heads, "head")
