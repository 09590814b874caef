"""What a CTC model wrote (Graves et al. 2006): labels, from a chance of each label, or of none, at every place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from math import exp, log1p

import torch
from torch import Tensor

BLANK = 0
"""The label that means none."""

NEVER = float("-inf")

Beginnings = dict[tuple[int, ...], tuple[float, float]]
"""Rows of labels so far, each with its log chances of having ended with a blank and with its last label."""


def greedy(logits: Tensor, lengths: Sequence[int]) -> list[list[int]]:
    """The likeliest label at every place, repetitions once, blanks out. `logits [batch, places, labels]`.

    >>> greedy(torch.eye(3)[torch.tensor([[1, 1, 0, 1, 2, 2]])], [6])
    [[1, 1, 2]]
    """
    best = logits.argmax(-1).tolist()
    rows = (row[:length] for row, length in zip(best, lengths, strict=True))
    return [[label for label, _ in groupby(row) if label != BLANK] for row in rows]


def prefix_beam_search(logits: Tensor, lengths: Sequence[int], beams: int = 8) -> list[list[int]]:
    """The likeliest labels over all ways to lay them out, `beams` beginnings kept at each place."""
    chances = logits.float().log_softmax(-1).cpu()
    return [prefix_search(row[:length], beams) for row, length in zip(chances, lengths, strict=True)]


def prefix_search(chances: Tensor, beams: int) -> list[int]:
    """The best row of labels of `chances [places, labels]` (logarithms).

    A beginning is kept with two chances, that it ended with a blank and that it ended with its last label: the same
    label again makes a new one only after a blank.
    """
    kept: Beginnings = {(): (0.0, NEVER)}
    few = min(beams + 1, chances.shape[1])  # further labels could not survive the cut to `beams`
    values, labels = chances.topk(few, dim=-1)
    for row, names, blank in zip(values.tolist(), labels.tolist(), chances[:, BLANK].tolist(), strict=True):
        kept = best_of(extended(kept, list(zip(names, row, strict=True)), blank), beams)
    return list(max(kept, key=lambda prefix: either(*kept[prefix])))


def extended(kept: Beginnings, likely: list[tuple[int, float]], blank: float) -> Beginnings:
    """Every beginning as it is, and with each likely label after it, one place further on."""
    found: Beginnings = {}
    for prefix, (by_blank, by_label) in kept.items():
        add(found, prefix, either(by_blank, by_label) + blank, NEVER)
        for label, chance in likely:
            if label == BLANK:
                continue
            if prefix and label == prefix[-1]:
                add(found, prefix, NEVER, by_label + chance)
                add(found, (*prefix, label), NEVER, by_blank + chance)
            else:
                add(found, (*prefix, label), NEVER, either(by_blank, by_label) + chance)
    return found


def add(found: Beginnings, prefix: tuple[int, ...], by_blank: float, by_label: float) -> None:
    before = found.get(prefix, (NEVER, NEVER))
    found[prefix] = either(before[0], by_blank), either(before[1], by_label)


def best_of(found: Beginnings, beams: int) -> Beginnings:
    order = sorted(found, key=lambda prefix: -either(*found[prefix]))
    return {prefix: found[prefix] for prefix in order[:beams]}


def either(a: float, b: float) -> float:
    """ln(eᵃ + eᵇ)."""
    high, low = (a, b) if a > b else (b, a)
    return high if low == NEVER else high + log1p(exp(low - high))


def frames_needed(labels: Sequence[int]) -> int:
    """How many places a row of labels needs: one each, and a blank between two that are the same.

    >>> frames_needed([3, 3, 5])
    4
    """
    return len(labels) + sum(a == b for a, b in pairwise(labels))


def ctc_loss(logits: Tensor, lengths: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """−Σ ln of the summed chance of all ways to lay a row's labels over its places; 0 for a row that cannot be laid.

    `logits [batch, places, labels]`, `labels [batch, most]` of which row b has `counts[b]`.
    """
    chances = logits.float().log_softmax(-1).transpose(0, 1)  # [places, batch, labels]
    return torch.nn.functional.ctc_loss(chances, labels, lengths, counts, BLANK, reduction="sum", zero_infinity=True)
