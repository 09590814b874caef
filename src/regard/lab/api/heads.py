"""The page Heads: an overview of all layers and heads, and one head in detail."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...attention.plotting import empty_cells
from ..inspect.capture import Capture, CapturedAttention
from ..lab import Lab
from ..server.jobs import Job
from .request import check_index, find_head, read_region

THUMBNAIL = 64
"""Rows and columns of a thumbnail."""
DEFAULT_CELLS, MAX_CELLS = 1024, 2048
"""Tokens up to which a map has a cell for each pair by default, and at most."""


def run(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """One forward pass: its tokens, its attentions with statistics and backend, and the prediction."""
    capture = lab.capture(request, job)
    described = []
    for n, attention in enumerate(capture.attentions):
        job.report(n, len(capture.attentions), attention.label)
        stats = attention.stats(capture.special(attention.key_side))
        described.append(attention.describe() | {"stats": stats, "backend": attention.backend})
    return summarize_capture(capture) | {"attentions": described, "difference": output_differences(capture, job)}


def summarize_capture(capture: Capture) -> dict[str, Any]:
    """Tokens, prediction and metadata of a forward pass."""
    tokens = {side: [token.as_dict() for token in listed] for side, listed in capture.tokens.items()}
    return {"tokens": tokens, "prediction": capture.prediction, "metadata": capture.metadata}


def output_differences(capture: Capture, job: Job) -> dict[str, Any]:
    """The difference between each attention's output and Σ weight · v of the weights shown, and the largest."""
    differences = []
    for n, attention in enumerate(capture.attentions):
        job.report(n, len(capture.attentions), attention.label)
        differences.append(attention.difference)
    largest = max((difference["largest"] for difference in differences), default=0.0)
    return {"largest": largest, "each": differences}


def overview(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """A thumbnail of every head: uint8, 255 for a weight of 1, pooled to at most 64 × 64.

    `masked` has the cells of each without an allowed pair.
    """
    capture = lab.capture(request, job)
    maps, masked = [], []
    for n, attention in enumerate(capture.attentions):
        job.report(n, len(capture.attentions), attention.label)
        maps.append((thumbnails(attention, job).clamp(0, 1) * 255).round().to(torch.uint8))
        masked.append(masked_cells(attention, tuple(maps[-1].shape[1:])))
    return {"maps": maps, "masked": masked}


def masked_cells(attention: CapturedAttention, shape: tuple[int, ...]) -> Tensor | None:
    """Cells of a thumbnail without an allowed pair, `[heads, rows, columns]`; None where every pair is allowed."""
    scores = attention.scores
    rows = scores.range((0, attention.queries))
    allowed = torch.stack([scores.allowed_pairs(head, rows, (0, attention.keys)) for head in range(attention.heads)])
    return None if bool(allowed.all()) else empty_cells(allowed, *shape)


def thumbnails(attention: CapturedAttention, job: Job) -> Tensor:
    """`[heads, rows, columns]`, each cell the mean weight of its queries on its keys."""
    if attention.queries <= THUMBNAIL and attention.keys <= THUMBNAIL:
        return attention.weights(None)
    return torch.stack([pool_head(attention, head, (THUMBNAIL, THUMBNAIL), job) for head in range(attention.heads)])


def pool_head(
    attention: CapturedAttention,
    head: int,
    shape: tuple[int, int],
    job: Job,
    rows: tuple[int, int] | None = None,
    keys: tuple[int, int] | None = None,
) -> Tensor:
    """A head's effective weights, pooled."""
    if head not in attention.edits:
        return attention.map(head, shape, rows, keys, job)
    weights = attention.weights(head, rows, keys)
    shape = min(shape[0], weights.shape[0]), min(shape[1], weights.shape[1])
    return torch.nn.functional.adaptive_avg_pool2d(weights[None, None], shape)[0, 0] * (weights.shape[1] / shape[1])


def map(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """One head's weights, and which pairs are masked; pooled beyond `most` tokens, 1024 by default.

    `rows` and `keys` select a region; `outside [rows]` is then each query's weight on the other keys.
    """
    attention, head = find_head(lab, request, job)
    rows, keys = read_region(request, attention)
    most = check_index(request.get("most", DEFAULT_CELLS), MAX_CELLS + 1, "most")
    if max(rows[1] - rows[0], keys[1] - keys[0]) > most:
        return {"pooled": True, "masked": None, "outside": None} | {
            "weights": pool_head(attention, head, (256, 256), job, rows, keys)
        }
    stages, weights = attention.stages(head, rows, keys)
    whole = attention.weights(head, rows).sum(-1) if keys != (0, attention.keys) else weights.sum(-1)
    answer: dict[str, Any] = {"pooled": False, "weights": weights, "masked": ~stages.allowed}
    answer["outside"] = (whole - weights.sum(-1)).clamp(min=0)
    if request.get("scores"):
        answer["scores"] = stages.score.masked_fill(~stages.allowed, 0.0)
    if request.get("norms"):
        answer["norms"] = None if attention.value_lengths is None else attention.value_norms(head, rows, keys)
    return answer


def row(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The stages of one query on every key, `[keys]`, with the value norms where they are known."""
    attention, head = find_head(lab, request, job)
    query = check_index(request.get("query", 0), attention.queries, "query")
    stages, weight = attention.stages(head, (query, query + 1), (0, attention.keys))
    row = {name: None if value is None else value[0] for name, value in stages._asdict().items()}
    norm = None if attention.value_lengths is None else attention.value_norms(head, (query, query + 1))[0]
    return {**row, "weight": weight[0], "norm": norm}


def tokens(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """Each head's weights of one query, `[heads, keys]`."""
    attention = lab.capture(request, job).attention(request.get("attention", 0))
    query = check_index(request.get("query", 0), attention.queries, "query")
    return {"weights": attention.weights(None, (query, query + 1))[:, 0]}


CALLS = {"run": run, "overview": overview, "map": map, "row": row, "tokens": tokens}
