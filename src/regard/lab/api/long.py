"""The page Long: texts of up to 200,000 characters. Maps are pooled, and nothing is quadratic in memory."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import torch

from ...errors import BadInput
from ..builtin.recall import recall
from ..inputs.model_input import LONG
from ..inputs.text import check_text
from ..inspect.capture import Capture, CapturedAttention
from ..lab import Lab, fingerprint
from ..library import RECALL
from ..server.jobs import Job
from .request import check_index, read_region

MAX_CELLS = 512
MAX_EXACT, SAMPLE = 16_384, 4_096
"""Queries of a region that are all computed, and how many of more are sampled unless `exact` is requested."""


def capture(lab: Lab, request: dict[str, Any], job: Job) -> Capture:
    """The forward pass over a long text, or the built-in recall."""
    if request.get("model", RECALL) != RECALL:
        return lab.capture(request, job, LONG)
    key = fingerprint({"recall": request.get("input")})
    cached = lab.captures.get(key)
    if cached is None:
        fields = request.get("input")
        cached = recall(check_text(fields if isinstance(fields, dict) else {}, LONG))
        lab.captures.put(key, cached)
    return cached


def run(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The tokens' offsets in the text, and the attentions to choose from."""
    run = capture(lab, request, job)
    (side, tokens), *_ = run.tokens.items()
    offsets = torch.tensor([(token.start, token.end) for token in tokens], dtype=torch.int32)
    attentions = [attention.describe() for attention in run.attentions]
    unknown = torch.tensor([token.unknown for token in tokens])
    return {
        "side": side,
        "tokens": len(tokens),
        "offsets": offsets,
        "unknown": unknown,
        "notices": run.notices,
        "attentions": attentions,
        "metadata": run.metadata,
    }


def find_long_head(lab: Lab, request: dict[str, Any], job: Job) -> tuple[CapturedAttention, int]:
    attention = capture(lab, request, job).attention(request.get("attention", 0))
    return attention, check_index(request.get("head", 0), attention.heads, "head")


def map(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """A region pooled to at most 512 × 512 cells, with its curves and its largest weights.

    Of a region with more than 16,384 queries 4,096 evenly spaced ones are computed, unless `exact`; `visited` is their
    number. `received [columns]` is the mean weight that a column's keys get from a query.
    """
    attention, head = find_long_head(lab, request, job)
    rows, keys = read_region(request, attention)
    shape = read_shape(request.get("shape", [256, 256]))
    most = SAMPLE if rows[1] - rows[0] > MAX_EXACT and request.get("exact") is not True else None
    links = check_index(request.get("links", 32), 257, "links")
    apart = check_index(request.get("apart", 1), attention.keys + 1, "apart")
    summary = attention.summarize(head, shape, rows, keys, job, max_queries=most, links=links, min_distance=apart)
    received = torch.nn.functional.adaptive_avg_pool1d(summary.received[None], summary.map.shape[1])[0]
    return {
        "map": summary.map,
        "masked": summary.masked,
        "entropy": summary.entropy,
        "distance": summary.distance,
        "received": received / max(1, summary.visited),
        "links": summary.links.to(torch.int32),
        "link_weights": summary.link_weights,
        "visited": summary.visited,
        "of": rows[1] - rows[0],
        "rows": list(rows),
        "keys": list(keys),
    }


def read_shape(shape: Any) -> tuple[int, int]:
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and 1 <= n <= MAX_CELLS for n in shape):
        raise BadInput(f"shape is {shape!r:.40}; it must be [rows, columns], each 1 to {MAX_CELLS}.")
    return shape[0], shape[1]


def row(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The largest weights of one query with their keys, and its weights pooled along the whole text."""
    attention, head = find_long_head(lab, request, job)
    query = check_index(request.get("query", 0), attention.queries, "query")
    count = check_index(request.get("top", 32), 1025, "top")
    weights = attention.weights(head, (query, query + 1))[0]
    best = weights.topk(min(count, len(weights)))
    real = best.values > 0
    pooled = torch.nn.functional.adaptive_max_pool1d(weights[None], min(1024, len(weights)))[0]
    return {"keys": best.indices[real].to(torch.int32), "weights": best.values[real], "profile": pooled}


def sample(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """A long example text: this package's own source, file after file."""
    size = check_index(request.get("characters", 30_000), LONG.characters + 1, "characters")
    folder = files("regard.attention")
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".py"))
    return {"text": "\n".join(folder.joinpath(name).read_text("utf8") for name in names)[:size]}


CALLS = {"sample": sample, "run": run, "map": map, "row": row}
