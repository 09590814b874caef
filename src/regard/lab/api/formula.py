"""The page Formula: one query from q, k, v to its output, with every number on the way."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from ...attention.parts.edges import Edges
from ...errors import BadInput
from ..inspect.attention_fields import AttentionRow, OutputDifference
from ..inspect.captured_attention import CapturedAttention
from ..inspect.projections import run_projections
from ..lab import Lab
from ..protocol import Json, Request
from ..server.jobs import Job
from .heads import AttentionWithBackend, CaptureSummary, describe_with_backend, summarize_capture
from .request import check_index, find_head, read_region, read_span

MAX_KEYS, NEARBY = 512, 64
"""Keys whose vectors are sent with one query, and keys on either side of a requested position."""
MAX_CELLS = 1 << 20
MAX_NUMBERS = 1 << 18
"""Numbers of a matrix of weights or inputs that is sent."""
STAGES = ("raw", "scaled", "position", "score", "weight")


class FormulaRun(CaptureSummary):
    attentions: list[AttentionWithBackend]


class FormulaRow(AttentionRow):
    """The stages of one query; `places [keys]` are the keys' indices among the `of` keys."""

    places: Tensor
    of: int
    difference: OutputDifference


class FormulaCell(TypedDict):
    """One pair: q, k, v, the terms whose sum is the similarity, and the numbers from there to the weight."""

    q: Tensor
    k: Tensor
    v: Tensor
    terms: Tensor
    additive: Tensor | None
    activation: str | None
    scale: float
    lse: float | None
    place: int
    distance: int
    raw: float
    scaled: float
    position: float | None
    allowed: bool
    score: float
    weight: float


class StageMap(TypedDict):
    """A stage of the formula, and the pairs that are masked, `[rows, keys]`."""

    values: Tensor
    masked: Tensor
    stage: Json


class Projections(TypedDict):
    """See `projections`; all but `known` is left out where the layers are not known."""

    known: bool
    places: NotRequired[Tensor]
    x_query: NotRequired[Tensor]
    w_q: NotRequired[Tensor | None]
    b_q: NotRequired[Tensor | None]
    w_k: NotRequired[Tensor | None]
    b_k: NotRequired[Tensor | None]
    w_v: NotRequired[Tensor | None]
    b_v: NotRequired[Tensor | None]
    x: NotRequired[Tensor | None]
    q: NotRequired[Tensor]
    transformed: NotRequired[bool]
    concat: NotRequired[Tensor]
    w_o: NotRequired[Tensor | None]
    w_head: NotRequired[Tensor | None]
    b_o: NotRequired[Tensor | None]
    y: NotRequired[Tensor]


def run(lab: Lab, request: Request, job: Job) -> FormulaRun:
    """One forward pass: its tokens and its attentions, without statistics."""
    capture = lab.capture(request, job)
    attentions = [describe_with_backend(attention) for attention in capture.attentions]
    return {**summarize_capture(capture), "attentions": attentions}


def row(lab: Lab, request: Request, job: Job) -> FormulaRow:
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
    return {
        **attention.row(head, query, places),
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


def cell(lab: Lab, request: Request, job: Job) -> FormulaCell:
    """The terms of the score and the weight of one pair."""
    attention, head = find_head(lab, request, job)
    query = check_index(request.get("query", 0), attention.queries, "query")
    key = check_index(request.get("key", 0), attention.keys, "key")
    row = attention.row(head, query, (key, key + 1))
    q, k, additive = row["q"], row["k"][0], row["additive"]
    terms = q * k if additive is None else attention.scores.activate(q + k) * additive
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
        "raw": float(row["raw"][0]),
        "scaled": float(row["scaled"][0]),
        "position": None if row["position"] is None else float(row["position"][0]),
        "allowed": bool(row["allowed"][0]),
        "score": float(row["score"][0]),
        "weight": float(row["weight"][0]),
    }


def map(lab: Lab, request: Request, job: Job) -> StageMap:
    """One stage of a region, and which of its pairs are masked."""
    attention, head = find_head(lab, request, job)
    stage = request.get("stage", "weight")
    if stage not in STAGES:
        raise BadInput(f"stage is {stage!r:.40}; it must be one of {', '.join(STAGES)}.")
    rows, keys = read_region(request, attention)
    if (rows[1] - rows[0]) * (keys[1] - keys[0]) > MAX_CELLS:
        raise BadInput(f"The region has more than {MAX_CELLS:,} cells. Request fewer rows or keys, or a pooled map.")
    stages, weight = attention.stages(head, rows, keys)
    values = {"weight": weight, **stages._asdict()}[str(stage)]
    values = stages.score * 0.0 if values is None else values
    return {"values": values.masked_fill(~stages.allowed, 0.0), "masked": ~stages.allowed, "stage": stage}


def projections(lab: Lab, request: Request, job: Job) -> Projections:
    """The linear layers around one head for one query: x·W_q → q, x·W_k → k, x·W_v → v, and concat·W_o → y.

    `known` is False where the attention has no such layers. Weights are `[outputs, inputs]`; `x [keys, dim]` is the
    input of the keys in `places`, `concat` the outputs of all heads. A matrix of more than 262,144 numbers is None; of
    W_o the columns of this head, `w_head`, are sent apart from the whole.
    """
    attention, head = find_head(lab, request, job)
    query = check_index(request.get("query", 0), attention.queries, "query")
    loaded = lab.open(request.get("model"), job)
    with job.hold(loaded.lock):
        _, prepared = lab.prepare(request, job)
        calls = run_projections(loaded.model, prepared, attention.name)
    if calls is None or len(calls["q"].x) != attention.queries or len(calls["k"].x) != attention.keys:
        return {"known": False}
    width, value_dim, kv_head = attention.q.shape[2], attention.v.shape[2], head // attention.scores.group
    key = None if request.get("key") is None else check_index(request["key"], attention.keys, "key")
    places = choose_keys(attention, head, query, key)
    w_q, b_q = calls["q"].rows(head, width)
    w_k, b_k = calls["k"].rows(kv_head, width)
    w_v, b_v = calls["v"].rows(kv_head, value_dim)
    q = calls["q"].y[query, head * width : (head + 1) * width]
    own = slice(head * value_dim, (head + 1) * value_dim)
    return {
        "known": True,
        "places": places.to(torch.int32),
        "x_query": calls["q"].x[query],
        "w_q": limit_size(w_q),
        "b_q": b_q,
        "w_k": limit_size(w_k),
        "b_k": b_k,
        "w_v": limit_size(w_v),
        "b_v": b_v,
        "x": limit_size(calls["k"].x[places]),
        "q": q,
        "transformed": bool((q - attention.q[head, query].float()).abs().max() > 1e-4),
        "concat": calls["out"].x[query],
        "w_o": limit_size(calls["out"].weight),
        "w_head": limit_size(calls["out"].weight[:, own]),
        "b_o": calls["out"].bias,
        "y": calls["out"].y[query],
    }


def limit_size(matrix: Tensor) -> Tensor | None:
    return matrix if matrix.numel() <= MAX_NUMBERS else None


CALLS = {"run": run, "row": row, "cell": cell, "map": map, "projections": projections}
