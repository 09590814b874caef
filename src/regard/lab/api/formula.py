"""Formula: one query's way from Q, K, V to its output, with every number and how it came about."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...attention.parts.edges import Edges
from ...errors import BadInput
from ..inspect.capture import Attention
from ..lab import Lab
from ..server.jobs import Job
from .heads import chosen, need_index, read_span, summary

KEYS, AROUND = 512, 64
"""Keys whose vectors are sent with one query; and of these, on either side of a place that is asked for."""
CELLS = 1 << 20
STAGES = ("raw", "scaled", "position", "score", "weight")


def run(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """One pass: its tokens and its attentions, without the statistics that this page does not show."""
    found = lab.capture(ask, job)
    attentions = [one.describe() | {"backend": one.backend} for one in found.attentions]
    return summary(found) | {"attentions": attentions}


def row(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The five stages of one query over its keys, with their operands; `places [keys]` are the keys' numbers.

    Of more than 512 keys those are sent that are asked for as a span `keys`; or else those around `key` and around the
    query itself, and then the heaviest: so all whom a graph's node looks at are there.
    """
    attention, head = chosen(lab, ask, job)
    query = need_index(ask.get("query", 0), attention.queries, "query")
    span = read_span(ask.get("keys"), attention.keys, "keys")
    if span is not None and span[1] - span[0] > KEYS:
        raise BadInput(f"{span[1] - span[0]} keys were asked for with their vectors; {KEYS} at most. Ask for fewer.")
    key = None if ask.get("key") is None else need_index(ask["key"], attention.keys, "key")
    places = torch.arange(*span) if span is not None else sent(attention, head, query, key)
    return attention.row(head, query, places) | {
        "places": places.to(torch.int32),
        "of": attention.keys,
        "difference": attention.difference(),
    }


def sent(attention: Attention, head: int, query: int, key: int | None) -> Tensor:
    """The keys whose vectors are sent, in order: all, or the ones around `key` and the query and the heaviest."""
    if attention.keys <= KEYS:
        return torch.arange(attention.keys)
    stages, weight = attention.stages(head, (query, query + 1), (0, attention.keys))
    worth = weight[0].double().masked_fill(~stages.allowed[0], -1.0)
    near = [key] if key is not None else []
    if attention.role == "self" and not isinstance(attention.parts.get("mask"), Edges):
        near.append(query + attention.keys - attention.queries)
    for place in near:
        worth[max(0, place - AROUND) : place + AROUND + 1] += 2.0
    best = worth.topk(KEYS)
    return best.indices[best.values >= 0].sort().values


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


CALLS = {"run": run, "row": row, "cell": cell, "map": map}
