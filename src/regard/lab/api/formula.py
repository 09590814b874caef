"""Formula: one query's way from Q, K, V to its output, with every number and how it came about."""

from __future__ import annotations

from typing import Any

from ...attention.errors import BadInput
from ..lab import Lab
from ..work import Job
from .heads import chosen, need_index, summary

KEYS = 512
"""Keys whose vectors are sent with one query."""
CELLS = 1 << 20
STAGES = ("raw", "scaled", "position", "score", "weight")


def run(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """One pass: its tokens and its attentions, without the statistics that this page does not show."""
    found = lab.capture(ask, job)
    attentions = [one.describe() | {"backend": one.backend} for one in found.attentions]
    return summary(found) | {"attentions": attentions}


def row(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The five stages of one query over all keys or a span of them, with their operands."""
    attention, head = chosen(lab, ask, job)
    query = need_index(ask.get("query", 0), attention.queries, "query")
    keys = read_span(ask.get("keys"), attention.keys, "keys") or (0, min(KEYS, attention.keys))
    if keys[1] - keys[0] > KEYS:
        raise BadInput(f"{keys[1] - keys[0]} keys were asked for with their vectors; {KEYS} at most. Ask for fewer.")
    return attention.row(head, query, keys) | {
        "keys": list(keys),
        "of": attention.keys,
        "difference": attention.difference(),
    }


def cell(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """Everything that the score and the weight of one pair were made of."""
    attention, head = chosen(lab, ask, job)
    query = need_index(ask.get("query", 0), attention.queries, "query")
    key = need_index(ask.get("key", 0), attention.keys, "key")
    found = attention.row(head, query, (key, key + 1))
    q, k = found["q"], found["k"][0]
    additive = found["additive"]
    terms = q * k if additive is None else attention.regions.bent(q + k) * additive
    numbers = {name: single(found[name]) for name in ("raw", "scaled", "position", "allowed", "score", "weight")}
    place = query + attention.keys - attention.queries
    return {
        "q": q,
        "k": k,
        "v": found["v"][0],
        "terms": terms,
        "additive": found["additive"],
        "activation": found["activation"],
        "scale": found["scale"],
        "lse": found["lse"],
        "place": place,
        "distance": place - key,
        **numbers,
    }


def single(value: Any) -> Any:
    """The one number of a tensor, None where there is none."""
    return None if value is None else value[0].item()


def map(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """One stage of a region as numbers, and which of its pairs are masked."""
    attention, head = chosen(lab, ask, job)
    stage = ask.get("stage", "weight")
    if stage not in STAGES:
        raise BadInput(f"stage is {stage!r:.40}; it must be one of {', '.join(STAGES)}.")
    rows = read_span(ask.get("rows"), attention.queries, "rows") or (0, attention.queries)
    keys = read_span(ask.get("keys"), attention.keys, "keys") or (0, attention.keys)
    if (rows[1] - rows[0]) * (keys[1] - keys[0]) > CELLS:
        raise BadInput(f"The region has more than {CELLS:,} cells. Ask for fewer rows or keys, or for a pooled map.")
    stages, weight = attention.stages(head, rows, keys)
    values = weight if stage == "weight" else getattr(stages, stage)
    values = stages.score * 0.0 if values is None else values
    return {"values": values.masked_fill(~stages.allowed, 0.0), "masked": ~stages.allowed, "stage": stage}


def read_span(span: Any, size: int, name: str) -> tuple[int, int] | None:
    """(first, after the last) of what was asked for; None where nothing was."""
    if span is None:
        return None
    whole = isinstance(span, list) and len(span) == 2 and all(type(one) is int for one in span)
    if not whole or not 0 <= span[0] < span[1] <= size:
        raise BadInput(f"{name} is {span!r:.40}; it must be [first, after the last] within 0 … {size}.")
    return span[0], span[1]


CALLS = {"run": run, "row": row, "cell": cell, "map": map}
