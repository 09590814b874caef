"""Which examples are learned from, chosen by and scored on, where a file itself says it of each."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from ..data.reading import Reading, split


def of_part(reading: Reading[Any], *names: str) -> Reading[Any]:
    """The examples of the first of these parts that the files name; all of them where they name none of these."""
    there = {getattr(example, "part", "") for example in reading.examples}
    name = next((name for name in names if name in there), None)
    return reading if name is None else reading.part(name)


def learned_and_chosen(
    reading: Reading[Any], held: Reading[Any] | None, seed: int, by: Callable[[Any], Hashable] | None = None
) -> tuple[Reading[Any], Reading[Any]]:
    """What is learned from and what weights are chosen by: other files, the part called dev, or a tenth of the first.

    >>> from types import SimpleNamespace as Example
    >>> whole = Reading(tuple(Example(part=part) for part in ("train", "train", "dev", "test")))
    >>> [len(part) for part in learned_and_chosen(whole, None, seed=0)]
    [2, 1]
    """
    learned = of_part(reading, "train")
    if held is not None:
        return learned, of_part(held, "dev", "test")
    if any(getattr(example, "part", "") == "dev" for example in reading.examples):
        return learned, reading.part("dev")
    return split(learned, 0.1, seed, by=by)
