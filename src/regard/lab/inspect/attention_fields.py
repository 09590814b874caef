"""The fields of an attention as pages receive them."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor

from ..protocol import Translated


class PartFields(TypedDict):
    """A part: the line that makes it, and its formula."""

    line: str
    formula: str


class ScoreFields(PartFields):
    scale: float


class PositionFields(PartFields):
    """`in_q_and_k` where the position changes q and k instead of adding to the scores."""

    in_q_and_k: bool


class AttentionFields(TypedDict):
    """Names, sizes and parts of an attention; `edited` is the change of each edited head."""

    name: str
    label: Translated
    layer: int
    role: str
    query_side: str
    key_side: str
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    score: ScoreFields
    position: PositionFields | None
    mask: PartFields | None
    method: str
    edited: dict[str, str]


class AttentionRow(TypedDict):
    """One query from q and k to its output: `[keys, …]`, of the scores and weights `[keys]`."""

    q: Tensor
    k: Tensor
    v: Tensor
    kv_head: int
    additive: Tensor | None
    activation: str | None
    slope: float | None
    scale: float
    raw: Tensor
    scaled: Tensor
    position: Tensor | None
    allowed: Tensor
    score: Tensor
    weight: Tensor
    lse: float | None
    sum: float
    mixed: Tensor
    output: Tensor


class HeadStatistics(TypedDict):
    """Means over queries, `[heads]`; `received [heads, keys]` is each key's total weight."""

    entropy: Tensor
    entropy_share: Tensor
    distance: Tensor
    peak: Tensor
    special: Tensor
    received: Tensor


class DistanceFields(AttentionFields):
    """An attention with the mean distance, the weight on special tokens and the evenness of each head, `[heads]`.

    `links [heads, 2]` is the far pair of query and key with the largest weight, `link_weights [heads]` that weight.
    """

    distance: Tensor
    special: Tensor
    entropy: Tensor
    entropy_share: Tensor
    peak: Tensor
    links: Tensor
    link_weights: Tensor


class OutputDifference(TypedDict):
    """The largest difference between the output that ran and Σ weight · v, over `rows` of the `of` queries."""

    largest: float
    rows: int
    of: int
