"""Which examples are learned from, chosen by and scored on, where a file itself says it of each."""

from __future__ import annotations

from typing import Any

from ..data.reading import Reading
from ..tasks.task import Task


def select_split(reading: Reading[Any], *names: str) -> Reading[Any]:
    """The examples of the first of these parts that the files name; all of them where they name none of these."""
    there = {getattr(example, "part", "") for example in reading.examples}
    name = next((name for name in names if name in there), None)
    return reading if name is None else reading.part(name)


def split_data(
    reading: Reading[Any], held: Reading[Any] | None, task: type[Task[Any]], seed: int
) -> tuple[Reading[Any], Reading[Any]]:
    """(training data, validation data): other files, the split called dev, or a tenth that the task holds out.

    >>> from types import SimpleNamespace as Example
    >>> whole = Reading(tuple(Example(part=part) for part in ("train", "train", "dev", "test")))
    >>> [len(part) for part in split_data(whole, None, Task, seed=0)]
    [2, 1]
    """
    learned = select_split(reading, "train")
    if held is not None:
        return learned, select_split(held, "dev", "test")
    if any(getattr(example, "part", "") == "dev" for example in reading.examples):
        return learned, reading.part("dev")
    return task.split(learned, 0.1, seed)
