"""The page Formula: one query from q, k, v to its output, with every number on the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...attention.parts.edges import Edges
from ...errors import BadInput
from ..inspect.capture import CapturedAttention
from ..lab import Lab
from ..server.jobs import Job
from .heads import summarize_capture
from .request import check_index, find_head, read_region, read_span

MAX_KEYS, NEARBY = 512, 64
"""Keys whose vectors are sent with one query, and keys on either side of a requested position."""
MAX_CELLS = 1 << 20
STAGES = ("raw", "scaled", "position", "score", "weight")


def run(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """One forward pass: its tokens and its attentions, without statistics."""
    capture = lab.capture(request, job)
    attentions = [attention.describe() | {"backend": attention.backend} for attention in capture.attentions]
    return summarize_capture(capture) | {"attentions": attentions}


def row(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The five stages of one query over its keys, with their operands; `places [keys]` are the keys' indices.

    Of more than 512 keys the span `keys` is sent; without it the keys near `key` and near the query, then those with
    the largest weights, so that all neighbours of a graph's node are among them.
    """
    attention, head = find_head(lab, request, job)
    query = check_index(request.get("query", 0), attention.queries, "query")
    span = read_span(request.get("keys"), attention.keys, "keys")
    if span is not None and span[1] - span[0] > MAX_KEYS:
        raise BadInput(
            f"{span[1] - span[0]} keys were requested with their vectors; the limit is {MAX_KEYS}. Request fewer."
        )
    key = None if request.get("key") is None else check_index(request["key"], attention.keys, "key")
    places = torch.arange(*span) if span is not None else choose_keys(attention, head, query, key)
    return attention.row(head, query, places) | {
        "places": places.to(torch.int32),
        "of": attention.keys,
        "difference": attention.difference,
    }


def choose_keys(attention: CapturedAttention, head: int, query: int, key: int | None) -> Tensor:
    """The keys whose vectors are sent, in order: all, or those near `key` and the query and the heaviest."""
    if attention.keys <= MAX_KEYS:
        return torch.arange(attention.keys)
    stages, weight = attention.stages(head, (query, query + 1), (0, attention.keys))
    priority = weight[0].double().masked_fill(~stages.allowed[0], -1.0)
    near = [key] if key is not None else []
    if attention.role == "self" and not isinstance(attention.parts.mask, Edges):
        near.append(query + attention.keys - attention.queries)
    for position in near:
        priority[max(0, position - NEARBY) : position + NEARBY + 1] += 2.0
    best = priority.topk(MAX_KEYS)
    return best.indices[best.values >= 0].sort().values


def cell(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The terms of the score and the weight of one pair."""
    attention, head = find_head(lab, request, job)
    query = check_index(request.get("query", 0), attention.queries, "query")
    key = check_index(request.get("key", 0), attention.keys, "key")
    row = attention.row(head, query, (key, key + 1))
    q, k, additive = row["q"], row["k"][0], row["additive"]
    terms = q * k if additive is None else attention.scores.activate(q + k) * additive
    numbers = {
        name: None if row[name] is None else row[name][0].item()
        for name in ("raw", "scaled", "position", "allowed", "score", "weight")
    }
    position = query + attention.keys - attention.queries
    return {
        "q": q,
        "k": k,
        "v": row["v"][0],
        "terms": terms,
        "additive": additive,
        "activation": row["activation"],
        "scale": row["scale"],
        "lse": row["lse"],
        "place": position,
        "distance": position - key,
        **numbers,
    }


def map(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """One stage of a region, and which of its pairs are masked."""
    attention, head = find_head(lab, request, job)
    stage = request.get("stage", "weight")
    if stage not in STAGES:
        raise BadInput(f"stage is {stage!r:.40}; it must be one of {', '.join(STAGES)}.")
    rows, keys = read_region(request, attention)
    if (rows[1] - rows[0]) * (keys[1] - keys[0]) > MAX_CELLS:
        raise BadInput(f"The region has more than {MAX_CELLS:,} cells. Request fewer rows or keys, or a pooled map.")
    stages, weight = attention.stages(head, rows, keys)
    values = weight if stage == "weight" else getattr(stages, stage)
    values = stages.score * 0.0 if values is None else values
    return {"values": values.masked_fill(~stages.allowed, 0.0), "masked": ~stages.allowed, "stage": stage}


CALLS = {"run": run, "row": row, "cell": cell, "map": map}
