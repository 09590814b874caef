"""A model over a text longer than those it was trained on: overlapping windows of its training length.

Every window is a forward pass of its own and overlaps its neighbours by half. A token's row is that of the window in
which it has the most context: of a causal model the first window that holds it, of others the one that holds it
nearest to the middle. A token attends to nothing outside that window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from ...attention.look import bucket_index
from ..inputs.model_input import ModelInput, Token
from ..server.jobs import Job
from .attention_fields import AttentionFields
from .capture import Capture
from .captured_attention import CapturedAttention
from .predictions import PredictionFields
from .region import RegionSummary, Span

CPU = torch.device("cpu")
PROGRESS = {"en": "windows computed", "zh": "已计算的窗口"}


@dataclass(frozen=True)
class TextWindow:
    """The tokens `first … last − 1` of one pass, and the rows that are taken from it; special tokens are added."""

    first: int
    last: int
    rows: Span


@dataclass(frozen=True)
class WindowPlan:
    """The windows of a text of `tokens`, of which the first `lead` and the last `tail` are special tokens."""

    tokens: int
    lead: int
    tail: int
    length: int
    windows: list[TextWindow]

    def positions(self, n: int) -> Tensor:
        """The token of each position of a window, `[positions]`: the special ones belong to every window."""
        window, end = self.windows[n], self.tokens
        parts = [(0, self.lead), (window.first, window.last), (end - self.tail, end)]
        return torch.cat([torch.arange(*part) for part in parts])

    def owner(self, row: int) -> int:
        """The number of the window that a row is taken from."""
        return next(n for n, window in enumerate(self.windows) if window.rows[0] <= row < window.rows[1])


def plan_windows(tokens: list[Token], length: int, causal: bool) -> WindowPlan:
    """Windows of `length` tokens, special ones included, that overlap by half.

    >>> [window.rows for window in plan_windows([Token("a")] * 10, 4, causal=True).windows]
    [(0, 4), (4, 6), (6, 8), (8, 10)]
    """
    count = len(tokens)
    lead = next((n for n, token in enumerate(tokens) if not token.special), count)
    tail = next((n for n, token in enumerate(reversed(tokens)) if not token.special), 0) if lead < count else 0
    size = max(2, length - lead - tail)
    step, end = max(1, size // 2), count - tail
    firsts = list(range(lead, max(lead + 1, end - size + step), step))
    spans = [(max(lead, min(first, end - size)), min(first + size, end)) for first in firsts]
    # the row after the last one that a window gives: its end, or the middle of the overlap with the next window
    ends = [last if causal else (after[0] + last) // 2 for (_, last), after in pairwise(spans)]
    edges = [0, *ends, count]
    windows = [TextWindow(*span, (edges[n], edges[n + 1])) for n, span in enumerate(spans)]
    return WindowPlan(count, lead, tail, length, windows)


def window_input(prepared: ModelInput, plan: WindowPlan, n: int) -> ModelInput:
    """The input of one window: the tokens of the whole input at its positions."""
    at, side = plan.positions(n), prepared.side
    arguments = {}
    for name, value in prepared.arguments.items():
        of_tokens = isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == plan.tokens
        arguments[name] = value[:, at] if of_tokens else torch.tensor([len(at)]) if name == "lengths" else value
    tokens = [prepared.tokens[side][i] for i in at.tolist()]
    empty: PredictionFields = {"type": "none", "items": []}
    return replace(prepared, arguments=arguments, tokens={side: tokens}, read_output=lambda output: empty)


def drop_values(capture: Capture) -> Capture:
    """The capture without values and outputs, which the map of a long text does not need."""
    for attention in capture.attentions:
        attention.v, attention.output = attention.v[:, :, :1].clone(), attention.output[:, :, :0].clone()
        attention.value_lengths = None
    return capture


class WindowedAttention:
    """One attention of the model over the whole text, row by row from the windows."""

    def __init__(self, plan: WindowPlan, n: int, read_window: Callable[[int], Capture], job: Job) -> None:
        self.plan, self.n, self.read_window, self.job = plan, n, read_window, job
        self.first = self.in_window(0)
        self.name, self.heads = self.first.name, self.first.heads
        self.queries = self.keys = plan.tokens

    def in_window(self, n: int) -> CapturedAttention:
        return self.read_window(n).attentions[self.n]

    def describe(self) -> AttentionFields:
        return {**self.first.describe(), "queries": self.queries, "keys": self.keys}

    def window_rows(self, n: int, head: int, rows: Span) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the rows that a window gives: their numbers, the tokens of its keys, weights and allowed pairs."""
        at = self.plan.positions(n)
        first, last = max(rows[0], self.plan.windows[n].rows[0]), min(rows[1], self.plan.windows[n].rows[1])
        local = ((at >= first) & (at < last)).nonzero().flatten()
        span = (int(local[0]), int(local[-1]) + 1)
        attention = self.in_window(n)
        weights = attention.weights(head, span)[local - span[0]]
        index = attention.scores.range(span)
        allowed = attention.scores.allowed_pairs(head, index, (0, attention.keys))[local - span[0]]
        return at[local], at, weights.double(), allowed

    def windows_of(self, rows: Span) -> list[int]:
        windows = self.plan.windows
        return [n for n, window in enumerate(windows) if window.rows[0] < rows[1] and rows[0] < window.rows[1]]

    def weights(self, head: int, rows: Span, keys: Span | None = None) -> Tensor:
        """Weights `[rows, keys]`; zero outside a row's window."""
        whole = torch.zeros(rows[1] - rows[0], self.keys, dtype=torch.float64)
        for n in self.windows_of(rows):
            numbers, at, weights, _ = self.window_rows(n, head, rows)
            whole[(numbers - rows[0])[:, None], at] = weights
        return whole if keys is None else whole[:, slice(*keys)]

    def summarize(
        self,
        head: int,
        shape: tuple[int, int],
        rows: Span,
        keys: Span,
        job: Job,
        *,
        max_queries: int | None = None,
        links: int = 64,
        min_distance: int = 0,
    ) -> RegionSummary:
        """The map of a region, its curves and its largest weights, as of one attention (`HeadScores.summarize`).

        With more than `max_queries` queries in the region, one window of each row of the map is computed.
        """
        sums = WindowSums(shape, rows, keys, links, min_distance)
        chosen = self.windows_of(rows)
        if max_queries is not None and rows[1] - rows[0] > max_queries:
            count = len(sums.map)
            middles = [rows[0] + (2 * k + 1) * (rows[1] - rows[0]) // (2 * count) for k in range(count)]
            chosen = sorted({self.plan.owner(row) for row in middles})
        for k, n in enumerate(chosen):
            job.report(k, len(chosen), PROGRESS)
            sums.add(*self.window_rows(n, head, rows))
        return sums.summary()


class WindowSums:
    """The sums of a region's statistics, window by window."""

    def __init__(self, shape: tuple[int, int], rows: Span, keys: Span, links: int, min_distance: int) -> None:
        self.rows, self.keys, self.links, self.min_distance = rows, keys, links, min_distance
        count, width = rows[1] - rows[0], keys[1] - keys[0]
        down, across = min(shape[0], count), min(shape[1], width)
        zeros = lambda *size: torch.zeros(size, dtype=torch.float64)  # noqa: E731
        self.map, self.received, self.allowed = zeros(down, across), zeros(width), zeros(down, across).bool()
        self.entropy, self.distance, self.visited = (zeros(down) for _ in range(3))
        self.top_weights, self.top_pairs = zeros(0), torch.zeros(0, 2, dtype=torch.int64)
        self.bucket, self.column = bucket_index(count, down, CPU), bucket_index(width, across, CPU)

    def add(self, rows: Tensor, keys: Tensor, weights: Tensor, allowed: Tensor) -> None:
        """Add the rows of a window, `weights` and `allowed [rows, keys]`; keys outside the region are left out."""
        inside = (keys >= self.keys[0]) & (keys < self.keys[1])
        keys, weights, allowed = keys[inside], weights[:, inside], allowed[:, inside]
        at, columns = self.bucket[rows - self.rows[0]], self.column[keys - self.keys[0]]
        self.visited.index_add_(0, at, torch.ones(len(rows), dtype=torch.float64))
        self.map.index_put_((at[:, None], columns[None]), weights, accumulate=True)
        i, j = allowed.nonzero(as_tuple=True)
        self.allowed[at[i], columns[j]] = True
        distance = (rows[:, None] - keys).abs()
        self.distance.index_add_(0, at, (weights * distance).sum(-1))
        self.entropy.index_add_(0, at, torch.special.entr(weights).sum(-1))
        self.received.index_add_(0, keys - self.keys[0], weights.sum(0))
        far = weights.masked_fill(distance < self.min_distance, 0.0)
        values, index = far.flatten().topk(min(self.links, far.numel()))
        values, index = values[values > 0], index[values > 0]
        pairs = torch.stack([rows[index // max(1, len(keys))], keys[index % max(1, len(keys))]], dim=1)
        weights, pairs = torch.cat([self.top_weights, values]), torch.cat([self.top_pairs, pairs])
        order = weights.argsort(descending=True, stable=True)[: self.links]
        self.top_weights, self.top_pairs = weights[order], pairs[order]

    def summary(self) -> RegionSummary:
        each = self.visited.clamp(min=1)
        curves = self.entropy / each, self.distance / each
        visited = int(self.visited.sum())
        return RegionSummary(
            self.map / each[:, None], *curves, self.received, self.top_pairs, self.top_weights, ~self.allowed, visited
        )
