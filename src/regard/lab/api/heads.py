"""Heads: all layers and heads at a glance, one of them in detail."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...attention.plotting import empty_cells
from ...errors import BadInput
from ..inspect.capture import Attention, Capture
from ..lab import Lab
from ..server.jobs import Job

CELLS = 64
"""Rows and columns of a thumbnail."""
WHOLE, MOST = 1024, 2048
"""Tokens up to which a map has a cell for each pair, unless more are asked for; and the most."""


def run(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """One pass: its tokens, its attentions with their statistics, what the model says, and who ran it."""
    found = lab.capture(ask, job)
    described = []
    for n, attention in enumerate(found.attentions):
        job.tell(n, len(found.attentions), attention.label)
        stats = attention.stats(found.special(attention.key_side))
        described.append(attention.describe() | {"stats": stats, "backend": attention.backend})
    return summary(found) | {"attentions": described, "difference": worst(found, job)}


def summary(found: Capture) -> dict[str, Any]:
    """What every page shows of a pass beside its attentions."""
    tokens = {side: [token.as_dict() for token in listed] for side, listed in found.tokens.items()}
    return {"tokens": tokens, "prediction": found.prediction, "about": found.about}


def worst(found: Capture, job: Job) -> dict[str, Any]:
    """The largest difference between an output that ran and the one computed from what is shown."""
    every = []
    for n, attention in enumerate(found.attentions):
        job.tell(n, len(found.attentions), attention.label)
        every.append(attention.difference())
    return {"largest": max((one["largest"] for one in every), default=0.0), "each": every}


def overview(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """A thumbnail of every head for its colours: uint8, 255 for a weight of 1, pooled to at most 64 × 64.

    `masked` has for each the cells in which no pair is allowed.
    """
    found = lab.capture(ask, job)
    maps, masked = [], []
    for n, attention in enumerate(found.attentions):
        job.tell(n, len(found.attentions), attention.label)
        maps.append((thumbnails(attention, job).clamp(0, 1) * 255).round().to(torch.uint8))
        masked.append(masked_cells(attention, tuple(maps[-1].shape[1:])))
    return {"maps": maps, "masked": masked}


def masked_cells(attention: Attention, shape: tuple[int, ...]) -> Tensor | None:
    """Cells of a thumbnail without an allowed pair, `[heads, rows, columns]`; None where every pair is allowed."""
    region = attention.regions
    rows = region.range((0, attention.queries))
    every = torch.stack([region.allowed(head, rows, (0, attention.keys)) for head in range(attention.heads)])
    return None if bool(every.all()) else empty_cells(every, *shape)


def thumbnails(attention: Attention, job: Job) -> Tensor:
    """`[heads, rows, columns]`, each cell the mean weight of its queries on its keys."""
    if attention.queries <= CELLS and attention.keys <= CELLS:
        return attention.weights(None)
    return torch.stack([pooled(attention, head, (CELLS, CELLS), job) for head in range(attention.heads)])


def pooled(
    attention: Attention,
    head: int,
    shape: tuple[int, int],
    job: Job,
    rows: tuple[int, int] | None = None,
    keys: tuple[int, int] | None = None,
) -> Tensor:
    """A head's weights pooled, those of an edit too."""
    if head not in attention.edited:
        return attention.map(head, shape, rows, keys, job)
    weights = attention.weights(head, rows, keys)
    shape = min(shape[0], weights.shape[0]), min(shape[1], weights.shape[1])
    return torch.nn.functional.adaptive_avg_pool2d(weights[None, None], shape)[0, 0] * (weights.shape[1] / shape[1])


def map(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """One head's weights, and which pairs are masked; pooled beyond 1024 tokens, or beyond `most` that are asked for.

    `rows` and `keys` ask for a region; `outside [rows]` is then each query's weight on the other keys.
    """
    attention, head = chosen(lab, ask, job)
    rows = read_span(ask.get("rows"), attention.queries, "rows") or (0, attention.queries)
    keys = read_span(ask.get("keys"), attention.keys, "keys") or (0, attention.keys)
    most = need_index(ask.get("most", WHOLE), MOST + 1, "most")
    if max(rows[1] - rows[0], keys[1] - keys[0]) > most:
        return {"pooled": True, "masked": None, "outside": None} | {
            "weights": pooled(attention, head, (256, 256), job, rows, keys)
        }
    stages, weights = attention.stages(head, rows, keys)
    whole = attention.weights(head, rows).sum(-1) if keys != (0, attention.keys) else weights.sum(-1)
    answer: dict[str, Any] = {"pooled": False, "weights": weights, "masked": ~stages.allowed}
    answer["outside"] = (whole - weights.sum(-1)).clamp(min=0)
    if ask.get("scores"):
        answer["scores"] = stages.score.masked_fill(~stages.allowed, 0.0)
    if ask.get("norms"):
        answer["norms"] = None if attention.lengths is None else attention.value_norms(head, rows, keys)
    return answer


def row(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The stages of one query on every key, `[keys]`, with the length of what each key adds where that is known."""
    attention, head = chosen(lab, ask, job)
    query = need_index(ask.get("query", 0), attention.queries, "query")
    stages, weight = attention.stages(head, (query, query + 1), (0, attention.keys))
    found = {name: None if value is None else value[0] for name, value in stages._asdict().items()}
    norm = None if attention.lengths is None else attention.value_norms(head, (query, query + 1))[0]
    return {**found, "weight": weight[0], "norm": norm}


def tokens(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """For one query, each head's weights: which head looks at this token, `[heads, keys]`."""
    found = lab.capture(ask, job)
    attention = found.attention(ask.get("attention", 0))
    query = need_index(ask.get("query", 0), attention.queries, "query")
    return {"weights": attention.weights(None, (query, query + 1))[:, 0]}


def chosen(lab: Lab, ask: dict[str, Any], job: Job) -> tuple[Attention, int]:
    """The attention and the head that were asked for."""
    attention = lab.capture(ask, job).attention(ask.get("attention", 0))
    return attention, need_index(ask.get("head", 0), attention.heads, "head")


def need_index(value: Any, size: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
        raise BadInput(f"{name} is {value!r:.40}; there are {size}, so it must be a whole number from 0 to {size - 1}.")
    return value


def read_span(span: Any, size: int, name: str) -> tuple[int, int] | None:
    """(first, after the last) of what was asked for; None where nothing was."""
    if span is None:
        return None
    whole = isinstance(span, list) and len(span) == 2 and all(type(one) is int for one in span)
    if not whole or not 0 <= span[0] < span[1] <= size:
        raise BadInput(f"{name} is {span!r:.40}; it must be [first, after the last] within 0 … {size}.")
    return span[0], span[1]


CALLS = {"run": run, "overview": overview, "map": map, "row": row, "tokens": tokens}
