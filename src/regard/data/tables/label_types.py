"""What the labels of a column are: classes, several labels at once, or numbers."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

LabelType = Literal["class", "labels", "number"]

SEPARATORS = "|;"
"""Characters that separate the labels of an example."""
MANY_VALUES = 20
"""Different whole numbers above which they are numbers, unless they count classes."""
REPEATS = 5
"""Examples that whole numbers from 0 or 1 on have on average if they count classes."""


def infer_label_type(labels: Sequence[str]) -> LabelType:
    """Whether these labels are classes, several labels an example, or numbers.

    Labels are numbers if nine tenths of them are and some are fractions or more than 20 differ; whole numbers from 0 or
    1 on without gaps that repeat are the indices of classes. Lists in JSON are several labels, and so are labels with
    "|" or ";" between if one of these parts also occurs in another combination.

    >>> [infer_label_type(labels) for labels in (["1", "2", "1"], ["1.5", "2", "3"], ["a|b", "b", "a"], ["x", "y"])]
    ['class', 'number', 'labels', 'class']
    """
    filled = [label for label in labels if label]
    values = [value for label in filled if (value := parse_number(label)) is not None]
    if filled and len(values) >= 0.9 * len(filled):
        whole = all(value.is_integer() for value in values)
        return "class" if whole and (len(set(values)) <= MANY_VALUES or counts_classes(values)) else "number"
    return "labels" if has_label_sets(filled) else "class"


def counts_classes(values: Sequence[float]) -> bool:
    """Whether whole numbers are 0, 1, … or 1, 2, … without gaps, each several times."""
    different = set(values)
    low, high = min(different), max(different)
    return low in (0, 1) and high - low + 1 == len(different) and len(values) >= REPEATS * len(different)


def has_label_sets(labels: Sequence[str]) -> bool:
    """Whether labels are sets: JSON lists, or parts between separators that recombine."""
    if any(label.startswith("[") and parse_json_list(label) is not None for label in labels):
        return True
    separator = find_separator(labels)
    if separator is None:
        return False
    combinations = {frozenset(part.strip() for part in label.split(separator)) for label in labels}
    memberships = Counter(part for combination in combinations for part in combination)
    several = {part for combination in combinations if len(combination) > 1 for part in combination}
    return any(memberships[part] > 1 for part in several)


def find_separator(labels: Sequence[str]) -> str | None:
    """The character between labels, None if no label has one."""
    counts = Counter(character for label in labels for character in SEPARATORS if character in label)
    return counts.most_common(1)[0][0] if counts else None


def split_labels(label: str) -> tuple[str, ...]:
    """The labels in a cell, each once: a JSON list, or texts with "|" or ";" between; none in an empty cell.

    >>> split_labels('["a", "b"]'), split_labels("a; b;a"), split_labels("")
    (('a', 'b'), ('a', 'b'), ())
    """
    items = parse_json_list(label) if label.startswith("[") else None
    if items is None:
        separator = find_separator([label])
        items = label.split(separator) if separator else [label]
    return tuple(dict.fromkeys(item.strip() for item in items if item.strip()))


def parse_json_list(text: str) -> list[str] | None:
    """The texts and numbers of a JSON list as text; None if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list) or not all(isinstance(item, str | int | float) for item in value):
        return None
    return [str(item) for item in value]


def parse_number(text: str) -> float | None:
    """A finite number, None for other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
