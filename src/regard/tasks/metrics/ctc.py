"""CTC (Graves et al. 2006): loss, greedy decoding and prefix beam search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from math import exp, log1p

import torch
from torch import Tensor

BLANK = 0
"""The index of the blank label."""

NEVER = float("-inf")

Prefixes = dict[tuple[int, ...], tuple[float, float]]
"""Prefixes of labels, each with the log probabilities that it ended with a blank and with its last label."""


def greedy(logits: Tensor, lengths: Sequence[int]) -> list[list[int]]:
    """The most likely label of every frame, without repetitions and blanks. `logits [batch, frames, labels]`.

    >>> greedy(torch.eye(3)[torch.tensor([[1, 1, 0, 1, 2, 2]])], [6])
    [[1, 1, 2]]
    """
    best = logits.argmax(-1).tolist()
    rows = (row[:length] for row, length in zip(best, lengths, strict=True))
    return [[label for label, _ in groupby(row) if label != BLANK] for row in rows]


def prefix_beam_search(logits: Tensor, lengths: Sequence[int], beams: int = 8) -> list[list[int]]:
    """The most likely labels, summed over their alignments; `beams` prefixes are kept at each frame."""
    log_probs = logits.float().log_softmax(-1).cpu()
    return [prefix_search(row[:length], beams) for row, length in zip(log_probs, lengths, strict=True)]


def prefix_search(log_probs: Tensor, beams: int) -> list[int]:
    """The best labels of one row, `log_probs [frames, labels]`.

    A prefix has two probabilities, that it ended with a blank and that it ended with its last label: the same label
    again extends it only after a blank.
    """
    prefixes: Prefixes = {(): (0.0, NEVER)}
    few = min(beams + 1, log_probs.shape[1])  # other labels cannot be among the best `beams` prefixes
    values, labels = log_probs.topk(few, dim=-1)
    for row, names, blank in zip(values.tolist(), labels.tolist(), log_probs[:, BLANK].tolist(), strict=True):
        longer = extend_prefixes(prefixes, list(zip(names, row, strict=True)), blank)
        order = sorted(longer, key=lambda prefix: -logaddexp(*longer[prefix]))
        prefixes = {prefix: longer[prefix] for prefix in order[:beams]}
    return list(max(prefixes, key=lambda prefix: logaddexp(*prefixes[prefix])))


def extend_prefixes(prefixes: Prefixes, likely: list[tuple[int, float]], blank: float) -> Prefixes:
    """The prefixes after one more frame: each unchanged, and with each of the likely labels added."""
    longer: Prefixes = {}

    def add(prefix: tuple[int, ...], by_blank: float, by_label: float) -> None:
        before = longer.get(prefix, (NEVER, NEVER))
        longer[prefix] = logaddexp(before[0], by_blank), logaddexp(before[1], by_label)

    for prefix, (by_blank, by_label) in prefixes.items():
        add(prefix, logaddexp(by_blank, by_label) + blank, NEVER)
        for label, log_prob in likely:
            if label == BLANK:
                continue
            if prefix and label == prefix[-1]:
                add(prefix, NEVER, by_label + log_prob)
                add((*prefix, label), NEVER, by_blank + log_prob)
            else:
                add((*prefix, label), NEVER, logaddexp(by_blank, by_label) + log_prob)
    return longer


def logaddexp(a: float, b: float) -> float:
    """ln(eᵃ + eᵇ)."""
    high, low = (a, b) if a > b else (b, a)
    return high if low == NEVER else high + log1p(exp(low - high))


def min_frames(labels: Sequence[int]) -> int:
    """The number of frames that labels need: one each, and a blank between two equal ones.

    >>> min_frames([3, 3, 5])
    4
    """
    return len(labels) + sum(a == b for a, b in pairwise(labels))


def ctc_loss(logits: Tensor, lengths: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """−Σ ln of the probability of each row's labels, summed over their alignments; 0 for a row with too few frames.

    `logits [batch, frames, labels]`, `labels [batch, most]` of which row b has `counts[b]`.
    """
    log_probs = logits.float().log_softmax(-1).transpose(0, 1)  # [frames, batch, labels]
    return torch.nn.functional.ctc_loss(log_probs, labels, lengths, counts, BLANK, reduction="sum", zero_infinity=True)
