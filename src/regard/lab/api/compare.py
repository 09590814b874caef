"""The page Compare: the maps of two texts, two models, or two heads, and their signed difference."""

from __future__ import annotations

from typing import TypedDict

import torch

from ...errors import BadInput
from ..inputs.model_input import TokenFields
from ..inspect.attention_fields import AttentionFields
from ..inspect.capture import Capture
from ..inspect.captured_attention import CapturedAttention
from ..inspect.compare import (
    ALIGNMENTS,
    AlignedTokens,
    Alignment,
    align_tokens,
    compare_maps,
    mean_distance,
    name_group,
    pool_weights,
)
from ..lab import Lab
from ..protocol import JsonObject, Request
from ..server.jobs import Job
from .heads import CaptureSummary, summarize_capture
from .request import check_index

MAX_TOKENS = 512
"""Tokens of a text that is compared."""


class Side(CaptureSummary):
    """A forward pass and the number of the attention that is compared."""

    attentions: list[AttentionFields]
    attention: int


class AlignedGroups(TypedDict):
    """The aligned tokens of both sides, where they are, and how many tokens of each have no partner."""

    a: list[TokenFields]
    b: list[TokenFields]
    places_a: list[int]
    places_b: list[int]
    alone_a: int
    alone_b: int


class MapComparison(TypedDict):
    """See `maps`."""

    a: Side
    b: Side
    alignment: Alignment
    rows: AlignedGroups
    columns: AlignedGroups
    masked_a: torch.Tensor
    masked_b: torch.Tensor
    aligned_a: torch.Tensor
    aligned_b: torch.Tensor
    difference: torch.Tensor
    distance: torch.Tensor
    mean: float
    same_head: bool
    grid: list[torch.Tensor | None]


def maps(lab: Lab, request: Request, job: Job) -> MapComparison:
    """Two maps, `a` and `b` (each a model, an input, an attention and a head), on their aligned tokens.

    `difference` is b − a `[rows, columns]`, `distance [rows]` the total variation distance of each row, and `grid` the
    mean distance of every head: of the same head on both inputs where both sides name the same one of the same model,
    and otherwise of every head of b from the head of a.
    """
    fields_a, fields_b = (read_fields(request, name) for name in ("a", "b"))
    capture_a, attention_a, head_a = read_side(lab, fields_a, job)
    capture_b, attention_b, head_b = read_side(lab, fields_b, job)
    alignment = read_alignment(request, fields_a.get("input") == fields_b.get("input"))
    rows = align(capture_a, capture_b, attention_a.query_side, attention_b.query_side, alignment)
    columns = align(capture_a, capture_b, attention_a.key_side, attention_b.key_side, alignment)
    if all(capture_a.tokens[attention_a.query_side][row.a[0]].special for row in rows) or not columns:
        raise BadInput("The two texts have no word in common. Compare them by place instead.")
    compared = compare_maps(attention_a.weights(head_a).cpu(), attention_b.weights(head_b).cpu(), rows, columns)
    same_head = fields_a["model"] == fields_b["model"] and (attention_a.name, head_a) == (attention_b.name, head_b)
    return {
        "a": describe_side(capture_a, attention_a),
        "b": describe_side(capture_b, attention_b),
        "alignment": alignment,
        "rows": describe_groups(capture_a, capture_b, attention_a.query_side, attention_b.query_side, rows),
        "columns": describe_groups(capture_a, capture_b, attention_a.key_side, attention_b.key_side, columns),
        "masked_a": masked_cells(attention_a, head_a, [row.a for row in rows], [column.a for column in columns]),
        "masked_b": masked_cells(attention_b, head_b, [row.b for row in rows], [column.b for column in columns]),
        "aligned_a": compared.a.float(),
        "aligned_b": compared.b.float(),
        "difference": compared.difference.float(),
        "distance": compared.distance.float(),
        "mean": float(mean_distance(compared)),
        "same_head": same_head,
        "grid": grid(capture_a, capture_b, attention_a, head_a, alignment, same_head),
    }


def read_fields(request: Request, side: str) -> JsonObject:
    """The fields of one side, `a` or `b`."""
    fields = request.get(side)
    if not isinstance(fields, dict):
        raise BadInput(f"{side} is {fields!r:.60}; it must be an object with model, input, attention and head.")
    return fields


def read_side(lab: Lab, fields: JsonObject, job: Job) -> tuple[Capture, CapturedAttention, int]:
    """The forward pass of one side, its attention and its head."""
    capture = lab.capture(fields, job)
    attention = capture.attention(fields.get("attention", 0))
    if max(attention.queries, attention.keys) > MAX_TOKENS:
        raise BadInput(f"A text has more than {MAX_TOKENS} tokens, the most that is compared. Shorten it.")
    return capture, attention, check_index(fields.get("head", 0), attention.heads, "head")


def read_alignment(request: Request, same_input: bool) -> Alignment:
    """How tokens are aligned: as requested, by default by characters for one text and by words for two."""
    requested = request.get("alignment")
    if requested is None:
        return "characters" if same_input else "words"
    for alignment in ALIGNMENTS:
        if alignment == requested:
            return alignment
    raise BadInput(f"alignment is {requested!r:.40}; it must be one of {', '.join(ALIGNMENTS)}.")


def align(first: Capture, second: Capture, side: str, other: str, alignment: Alignment) -> list[AlignedTokens]:
    return align_tokens(first.tokens[side], second.tokens[other], alignment)


def describe_side(capture: Capture, attention: CapturedAttention) -> Side:
    listed = [each.describe() for each in capture.attentions]
    return {
        **summarize_capture(capture),
        "attentions": listed,
        "attention": capture.attentions.index(attention),
    }


def describe_groups(
    first: Capture, second: Capture, side: str, other: str, groups: list[AlignedTokens]
) -> AlignedGroups:
    a, b = first.tokens[side], second.tokens[other]
    return {
        "a": [name_group(a, group.a).as_dict() for group in groups],
        "b": [name_group(b, group.b).as_dict() for group in groups],
        "places_a": [group.a[0] for group in groups],
        "places_b": [group.b[0] for group in groups],
        "alone_a": len(a) - sum(len(group.a) for group in groups),
        "alone_b": len(b) - sum(len(group.b) for group in groups),
    }


def masked_cells(
    attention: CapturedAttention, head: int, rows: list[list[int]], columns: list[list[int]]
) -> torch.Tensor:
    """Which cells of the aligned map have no allowed pair, `[rows, columns]`."""
    scores = attention.scores
    with attention.lock, torch.no_grad():
        allowed = scores.allowed_pairs(head, scores.range((0, attention.queries)), (0, attention.keys))
    return pool_weights(allowed.cpu().double(), rows, columns) == 0


def grid(
    capture_a: Capture,
    capture_b: Capture,
    attention_a: CapturedAttention,
    head: int,
    alignment: Alignment,
    same_head: bool,
) -> list[torch.Tensor | None]:
    """The mean distance of each head of each attention of b, `[heads]`; None where the sides are others."""
    distances: list[torch.Tensor | None] = []
    for n, attention in enumerate(capture_b.attentions):
        base = capture_a.attentions[n] if same_head else attention_a
        same_sides = (attention.query_side, attention.key_side) == (base.query_side, base.key_side)
        if max(attention.queries, attention.keys) > MAX_TOKENS or not same_sides:
            distances.append(None)
            continue
        rows = align(capture_a, capture_b, base.query_side, attention.query_side, alignment)
        columns = align(capture_a, capture_b, base.key_side, attention.key_side, alignment)
        weights = base.weights(None) if same_head else base.weights(head)[None].expand(attention.heads, -1, -1)
        distances.append(
            mean_distance(compare_maps(weights.cpu(), attention.weights(None).cpu(), rows, columns)).float()
        )
    return distances


CALLS = {"maps": maps}
