"""Token labels: the text on the axes of figures, made visible, checked and thinned to what fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ..errors import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LABELS = 64
CJK = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
INVISIBLE = {"\n": "↵", "\r": "↵", "\t": "⇥"}
GREY = "#5c6378"


def visible(word: str) -> str:
    """The word with a sign in place of each invisible character.

    >>> visible("\\n"), visible("  "), visible(" cat")
    ('↵', '␣␣', ' cat')
    """
    text = "".join(INVISIBLE.get(letter, letter if letter.isprintable() else "\ufffd") for letter in word)
    return text if text.strip() else text.replace(" ", "␣")


def check_labels(words: Sequence[object], size: int, name: str) -> list[str]:
    """The words as they are drawn; raises `BadInput` unless there is one for each of `size` tokens."""
    if isinstance(words, str):
        raise BadInput(f"{name} is the text {words!r:.40}; it must be a list of {size} words. Split it into them.")
    if len(words) != size:
        raise BadInput(f"{name} has {len(words)} words; there are {size} {name}. Give one word for each.")
    return [visible(str(word)) for word in words]


def bucket_labels(words: list[str], starts: list[int]) -> list[str]:
    """The label of the tokens from each start to the next: a word, or the first and the last.

    >>> bucket_labels(["a", "b", "c"], [0, 1, 3])
    ['a', 'b–c']
    """
    buckets = [words[first:last] for first, last in pairwise(starts)]
    return ["" if not bucket else bucket[0] if len(bucket) == 1 else f"{bucket[0]}–{bucket[-1]}" for bucket in buckets]


def label_rows(axes: Axes, labels: list[str], inches: float, name: str) -> None:
    """Write the labels on the left, as many as can be read."""
    ticks, size = choose_ticks(len(labels), inches)
    axes.set_yticks(ticks, [shorten(labels[n]) for n in ticks], fontsize=size, parse_math=False)
    axes.set_ylabel(name if labels else "", fontsize=8, color=GREY)


def label_columns(axes: Axes, labels: list[str], inches: float, name: str) -> None:
    """Write the labels below, as many as can be read; long Latin words are rotated, long Chinese ones stacked."""
    ticks, size = choose_ticks(len(labels), inches)
    words = [shorten(labels[n]) for n in ticks]
    widths = [sum(1.7 if CJK.match(letter) else 1.0 for letter in word) for word in words]  # in Latin letters
    horizontal = all(width * size * 0.6 < 72 * inches / max(len(words), 1) - 2 for width in widths)
    stacked = [word if horizontal or not CJK.search(word) else "\n".join(word) for word in words]
    axes.set_xticks(ticks, stacked, fontsize=size, parse_math=False, linespacing=1.0)
    for label, word in zip(axes.get_xticklabels(), words, strict=True):
        label.set_rotation(0 if horizontal or CJK.search(word) else 90)
    axes.set_xlabel(name if labels else "", fontsize=8, color=GREY)


def choose_ticks(count: int, inches: float) -> tuple[list[int], float]:
    """Which of `count` labels to write in this many inches, and their font size."""
    most = min(MAX_LABELS, max(int(inches / 0.12), 1))
    most = most if count <= most else max(most // 2, 1)
    steps = (step * ten for ten in (1, 10, 100, 1000, 10000, 100000) for step in (1, 2, 5))
    step = next(step for step in steps if count <= step * most)
    ticks = list(range(0, count, step))
    return ticks, max(6.0, min(9.0, 72 * inches / max(len(ticks), 1) * 0.62))


def shorten(word: str) -> str:
    """The word, cut after 17 characters."""
    return word if len(word) <= 18 else word[:17] + "…"
