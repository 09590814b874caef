"""Fields of a request, checked: indices, spans, whole numbers."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor

from ...errors import BadInput
from ..inspect.captured_attention import CapturedAttention
from ..inspect.windows import WindowedAttention
from ..lab import Lab
from ..protocol import Json, Request
from ..server.jobs import Job


class QueryWeights(TypedDict):
    """The weights of one query in every head, `[heads, keys]` for each of the attentions."""

    weights: list[Tensor]


def check_index(value: Json, size: int, name: str) -> int:
    """The value; raises `BadInput` unless it is an index of `size`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
        raise BadInput(f"{name} is {value!r:.40}; there are {size}, so it must be a whole number from 0 to {size - 1}.")
    return value


def read_span(span: Json, size: int, name: str) -> tuple[int, int] | None:
    """(first, after the last) of a field; None where it is missing."""
    if span is None:
        return None
    first, end = span if isinstance(span, list) and len(span) == 2 else (None, None)
    if type(first) is not int or type(end) is not int or not 0 <= first < end <= size:
        raise BadInput(f"{name} is {span!r:.40}; it must be [first, after the last] within 0 … {size}.")
    return first, end


def read_region(
    request: Request, attention: CapturedAttention | WindowedAttention
) -> tuple[tuple[int, int], tuple[int, int]]:
    """The spans `rows` and `keys` of a request; the whole attention where they are missing."""
    rows = read_span(request.get("rows"), attention.queries, "rows") or (0, attention.queries)
    keys = read_span(request.get("keys"), attention.keys, "keys") or (0, attention.keys)
    return rows, keys


def read_count(request: Request, name: str, default: int) -> int:
    """A field that is a whole number of at least 0."""
    value = request.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadInput(f"{name} is {value!r:.40}; it must be a whole number of at least 0.")
    return value


def read_optional_int(request: Request, name: str) -> int | None:
    """A field that is a whole number or missing."""
    value = request.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise BadInput(f"{name} is {value!r:.40}; it must be a whole number, or left out.")


def find_head(lab: Lab, request: Request, job: Job) -> tuple[CapturedAttention, int]:
    """The attention and the head of a request."""
    attention = lab.capture(request, job).attention(request.get("attention", 0))
    return attention, check_index(request.get("head", 0), attention.heads, "head")


def weights_of_query(layers: list[CapturedAttention], request: Request) -> list[Tensor]:
    """The weights of the requested query in every head, `[heads, keys]` for each of the attentions."""
    n = check_index(request.get("query", 0), max((layer.queries for layer in layers), default=0), "query")
    return [layer.weights(None, (n, n + 1))[:, 0] for layer in layers]
