"""The page Heads: an overview of all layers and heads, and one head in detail."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from ...attention.plotting import empty_cells
from ...errors import BadInput
from ..inputs.model_input import InputMetadata, TokenFields
from ..inspect.attention_fields import AttentionFields, HeadStatistics, OutputDifference
from ..inspect.capture import Capture
from ..inspect.captured_attention import CapturedAttention
from ..inspect.head_roles import BROAD, MAX_TOKENS, MIN_QUERIES, ROLES, THRESHOLD, RoleScores, label_heads, pair_weights
from ..inspect.predictions import PredictionFields
from ..inspect.probe_texts import capture_probes, choose_language, is_countable, spoken_text, tag_words
from ..lab import Lab
from ..protocol import Json, Request
from ..server.jobs import Job
from .request import check_index, find_head, read_region

THUMBNAIL = 64
"""Rows and columns of a thumbnail."""
DEFAULT_CELLS, MAX_CELLS = 1024, 2048
"""Tokens up to which a map has a cell for each pair by default, and at most."""
MAX_PICKED = 64
"""Tokens of one end of a pair."""


class CaptureSummary(TypedDict):
    """A forward pass: the tokens of each side, the prediction, and what is known of the input."""

    tokens: dict[str, list[TokenFields]]
    prediction: PredictionFields
    metadata: InputMetadata


class AttentionWithBackend(AttentionFields):
    backend: str


class AttentionWithStatistics(AttentionFields):
    stats: HeadStatistics
    backend: str


class OutputDifferences(TypedDict):
    """The differences between outputs and Σ weight · v: the largest, and that of each attention."""

    largest: float
    each: list[OutputDifference]


class HeadsRun(CaptureSummary):
    attentions: list[AttentionWithStatistics]
    difference: OutputDifferences


class Thumbnails(TypedDict):
    """`[heads, rows, columns]` of each attention."""

    maps: list[Tensor]
    masked: list[Tensor | None]


class HeadMap(TypedDict):
    """A head's weights `[rows, keys]`; `outside [rows]` is the weight on keys that are not shown."""

    pooled: bool
    weights: Tensor
    masked: Tensor | None
    outside: Tensor | None
    scores: NotRequired[Tensor]
    norms: NotRequired[Tensor | None]


class HeadStages(TypedDict):
    """The stages of one query, `[keys]`."""

    raw: Tensor
    scaled: Tensor
    position: Tensor | None
    allowed: Tensor
    score: Tensor
    weight: Tensor
    norm: Tensor | None


class TokenWeights(TypedDict):
    weights: Tensor


class RoleFields(TypedDict):
    """The role of each head, and the numbers behind it, `[heads, roles]`."""

    labels: list[str]
    queries: Tensor
    score: Tensor
    chance: Tensor
    share: Tensor
    evenness: Tensor


class Roles(TypedDict):
    """See `roles`."""

    roles: list[str]
    threshold: float
    broad: float
    least: int
    texts: int
    counted: bool
    attentions: list[RoleFields]


class RankedHead(TypedDict):
    attention: int
    head: int
    weight: float


class PairHeads(TypedDict):
    """The weight of each attention's heads on a pair, `[heads]`, and the heads by weight."""

    weights: list[Tensor | None]
    order: list[RankedHead]


def run(lab: Lab, request: Request, job: Job) -> HeadsRun:
    """One forward pass: its tokens, its attentions with statistics and backend, and the prediction."""
    capture = lab.capture(request, job)
    described: list[AttentionWithStatistics] = []
    for n, attention in enumerate(capture.attentions):
        job.report(n, len(capture.attentions), attention.label)
        stats = attention.stats(capture.special(attention.key_side))
        described.append({**attention.describe(), "stats": stats, "backend": attention.backend})
    difference = output_differences(capture, job)
    return {**summarize_capture(capture), "attentions": described, "difference": difference}


def describe_with_backend(attention: CapturedAttention) -> AttentionWithBackend:
    return {**attention.describe(), "backend": attention.backend}


def summarize_capture(capture: Capture) -> CaptureSummary:
    """Tokens, prediction and metadata of a forward pass."""
    tokens = {side: [token.as_dict() for token in listed] for side, listed in capture.tokens.items()}
    return {"tokens": tokens, "prediction": capture.prediction, "metadata": capture.metadata}


def output_differences(capture: Capture, job: Job) -> OutputDifferences:
    """The difference between each attention's output and Σ weight · v of the weights shown, and the largest."""
    differences = []
    for n, attention in enumerate(capture.attentions):
        job.report(n, len(capture.attentions), attention.label)
        differences.append(attention.difference)
    largest = max((difference["largest"] for difference in differences), default=0.0)
    return {"largest": largest, "each": differences}


def overview(lab: Lab, request: Request, job: Job) -> Thumbnails:
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


def map(lab: Lab, request: Request, job: Job) -> HeadMap:
    """One head's weights, and which pairs are masked; pooled beyond `most` tokens, 1024 by default.

    `rows` and `keys` select a region; `outside [rows]` is then each query's weight on the other keys.
    """
    attention, head = find_head(lab, request, job)
    rows, keys = read_region(request, attention)
    most = check_index(request.get("most", DEFAULT_CELLS), MAX_CELLS + 1, "most")
    if max(rows[1] - rows[0], keys[1] - keys[0]) > most:
        pooled = pool_head(attention, head, (256, 256), job, rows, keys)
        return {"pooled": True, "masked": None, "outside": None, "weights": pooled}
    stages, weights = attention.stages(head, rows, keys)
    whole = attention.weights(head, rows).sum(-1) if keys != (0, attention.keys) else weights.sum(-1)
    outside = (whole - weights.sum(-1)).clamp(min=0)
    answer: HeadMap = {"pooled": False, "weights": weights, "masked": ~stages.allowed, "outside": outside}
    if request.get("scores"):
        answer["scores"] = stages.score.masked_fill(~stages.allowed, 0.0)
    if request.get("norms"):
        answer["norms"] = None if attention.value_lengths is None else attention.value_norms(head, rows, keys)
    return answer


def row(lab: Lab, request: Request, job: Job) -> HeadStages:
    """The stages of one query on every key, `[keys]`, with the value norms where they are known."""
    attention, head = find_head(lab, request, job)
    query = check_index(request.get("query", 0), attention.queries, "query")
    stages, weight = attention.stages(head, (query, query + 1), (0, attention.keys))
    return {
        "raw": stages.raw[0],
        "scaled": stages.scaled[0],
        "position": None if stages.position is None else stages.position[0],
        "allowed": stages.allowed[0],
        "score": stages.score[0],
        "weight": weight[0],
        "norm": None if attention.value_lengths is None else attention.value_norms(head, (query, query + 1))[0],
    }


def tokens(lab: Lab, request: Request, job: Job) -> TokenWeights:
    """Each head's weights of one query, `[heads, keys]`."""
    attention = lab.capture(request, job).attention(request.get("attention", 0))
    query = check_index(request.get("query", 0), attention.queries, "query")
    return {"weights": attention.weights(None, (query, query + 1))[:, 0]}


def roles(lab: Lab, request: Request, job: Job) -> Roles:
    """The role of every head over the text and, with `examples`, over sentences of the model's language too.

    Of each attention: `labels [heads]`, and `score`, `chance`, `share` of each head and role, `[heads, roles]`. A text
    of more than 512 tokens is not counted itself.
    """
    own = lab.capture({name: request.get(name) for name in ("model", "input", "edits")}, job)
    entry, fields = lab.library.entry(request.get("model")), request.get("input")
    text = fields.get("text") if isinstance(fields, dict) else None
    language = choose_language(lab, entry.name, text if isinstance(text, str) else "")
    captures = [own] if is_countable(own) else []
    if request.get("examples", True):
        captures += capture_probes(lab, entry.name, language, job)
    if not captures:
        raise BadInput(f"The input has more than {MAX_TOKENS} tokens. Give a shorter one, or let examples be counted.")
    words = [{"source": tag_words(lab, spoken_text(each), language, job)} for each in captures]
    return {
        "roles": list(ROLES),
        "threshold": THRESHOLD,
        "broad": BROAD,
        "least": MIN_QUERIES,
        "texts": len(captures),
        "counted": own is captures[0],
        "attentions": [describe_roles(scores) for scores in label_heads(captures, words)],
    }


def describe_roles(scores: RoleScores) -> RoleFields:
    return {
        "labels": scores.labels(),
        "queries": scores.queries.int(),
        "score": scores.score.float(),
        "chance": scores.chance.float(),
        "share": scores.share.float(),
        "evenness": scores.evenness.float(),
    }


def pair(lab: Lab, request: Request, job: Job) -> PairHeads:
    """The heads that send `queries` to `keys` (indices of tokens), by weight.

    The weight is the mean over the queries of the sum over the keys.
    `sides` are those of the attentions that count, such as ["source", "source"]; of others the weights are None.
    """
    capture = lab.capture(request, job)
    sides = request.get("sides") or [capture.attentions[0].query_side, capture.attentions[0].key_side]
    if not isinstance(sides, list):
        raise BadInput(f'sides is {sides!r:.40}; it must be a list of two, such as ["source", "source"].')
    weights: list[Tensor | None] = []
    ranked: list[tuple[float, int, int]] = []
    for n, attention in enumerate(capture.attentions):
        if [attention.query_side, attention.key_side] != sides:
            weights.append(None)
            continue
        queries = read_indices(request.get("queries"), attention.queries, "queries")
        keys = read_indices(request.get("keys"), attention.keys, "keys")
        of_heads = pair_weights(attention, queries, keys).float()
        weights.append(of_heads)
        ranked += [(float(weight), n, head) for head, weight in enumerate(of_heads)]
    if not ranked:
        raise BadInput(f"No attention of this model leads from {sides[0]!r} to {sides[-1]!r}.")
    ranked.sort(key=lambda row: (-row[0], row[1], row[2]))
    order: list[RankedHead] = [{"attention": n, "head": head, "weight": weight} for weight, n, head in ranked]
    return {"weights": weights, "order": order}


def read_indices(given: Json, size: int, name: str) -> list[int]:
    """A list of different indices of `size`, at least one."""
    if (
        not isinstance(given, list)
        or not 1 <= len(given) <= MAX_PICKED
        or len({str(each) for each in given}) != len(given)
    ):
        raise BadInput(f"{name} is {given!r:.40}; it must be a list of 1 to {MAX_PICKED} different tokens.")
    return [check_index(index, size, name) for index in given]


CALLS = {"run": run, "overview": overview, "map": map, "row": row, "tokens": tokens, "roles": roles, "pair": pair}
