"""Long: a text of up to 200,000 characters. Maps are pooled, tiles computed when asked for, and nothing is n²."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import torch

from ...errors import BadInput
from ..builtin.recall import recall
from ..inputs.prepared import MANY
from ..inputs.text import need_text
from ..inspect.capture import Attention, Capture
from ..lab import Lab, fingerprint
from ..library import RECALL
from ..server.jobs import Job
from .heads import need_index, read_span

CELLS = 512
VISITED, SAMPLE = 16_384, 4_096
"""Queries of a region that are all visited; of more, so many stand for the others unless `exact` is asked for."""


def capture(lab: Lab, ask: dict[str, Any], job: Job) -> Capture:
    """The pass over a long text, or its recall."""
    if ask.get("model", RECALL) != RECALL:
        return lab.capture(ask, job, MANY)
    key = fingerprint({"recall": ask.get("input")})
    found = lab.captures.get(key)
    if found is None:
        given = ask.get("input")
        found = recall(need_text(given if isinstance(given, dict) else {}, MANY))
        lab.captures.put(key, found)
    return found


def run(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """How the text is cut into tokens, and the attentions that can be looked at."""
    found = capture(lab, ask, job)
    (side, tokens), *_ = found.tokens.items()
    offsets = torch.tensor([(token.start, token.end) for token in tokens], dtype=torch.int32)
    attentions = [one.describe() for one in found.attentions]
    return {"side": side, "tokens": len(tokens), "offsets": offsets, "attentions": attentions, "about": found.about}


def chosen(lab: Lab, ask: dict[str, Any], job: Job) -> tuple[Attention, int]:
    attention = capture(lab, ask, job).attention(ask.get("attention", 0))
    return attention, need_index(ask.get("head", 0), attention.heads, "head")


def map(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """A region pooled to at most 512 × 512 cells, with its curves and its strongest links.

    Of a region with more than 16,384 queries 4,096 are visited, spread evenly, unless `exact`; `visited` says how many
    were. `received [columns]` is the weight that the keys of a column get from a visited query, on average.
    """
    attention, head = chosen(lab, ask, job)
    rows = read_span(ask.get("rows"), attention.queries, "rows") or (0, attention.queries)
    keys = read_span(ask.get("keys"), attention.keys, "keys") or (0, attention.keys)
    shape = read_shape(ask.get("shape", [256, 256]))
    most = SAMPLE if rows[1] - rows[0] > VISITED and ask.get("exact") is not True else None
    links = need_index(ask.get("links", 32), 257, "links")
    apart = need_index(ask.get("apart", 1), attention.keys + 1, "apart")
    found = attention.survey(head, shape, rows, keys, job, most=most, links=links, apart=apart)
    received = torch.nn.functional.adaptive_avg_pool1d(found.received[None], found.map.shape[1])[0]
    return {
        "map": found.map,
        "masked": found.masked,
        "entropy": found.entropy,
        "distance": found.distance,
        "received": received / max(1, found.visited),
        "links": found.links.to(torch.int32),
        "link_weights": found.link_weights,
        "visited": found.visited,
        "of": rows[1] - rows[0],
        "rows": list(rows),
        "keys": list(keys),
    }


def read_shape(shape: Any) -> tuple[int, int]:
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and 1 <= n <= CELLS for n in shape):
        raise BadInput(f"shape is {shape!r:.40}; it must be [rows, columns], each 1 to {CELLS}.")
    return shape[0], shape[1]


def row(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The keys that one query looks at most, with their weights, and its weights pooled along the whole text."""
    attention, head = chosen(lab, ask, job)
    query = need_index(ask.get("query", 0), attention.queries, "query")
    count = need_index(ask.get("top", 32), 1025, "top")
    weights = attention.weights(head, (query, query + 1))[0]
    best = weights.topk(min(count, len(weights)))
    real = best.values > 0
    pooled = torch.nn.functional.adaptive_max_pool1d(weights[None], min(1024, len(weights)))[0]
    return {"keys": best.indices[real].to(torch.int32), "weights": best.values[real], "profile": pooled}


def sample(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """A long text that stands ready everywhere: this package's own source, file after file."""
    size = need_index(ask.get("characters", 30_000), MANY.characters + 1, "characters")
    folder = files("regard.attention")
    names = sorted(one.name for one in folder.iterdir() if one.name.endswith(".py"))
    return {"text": "\n".join(folder.joinpath(name).read_text("utf8") for name in names)[:size]}


CALLS = {"sample": sample, "run": run, "map": map, "row": row}
