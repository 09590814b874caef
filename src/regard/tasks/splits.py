"""Selection of training, validation and test data, also by the splits that the files define."""

from __future__ import annotations

from typing import TypeVar

from ..data.reading import Reading, split_of
from .task import AnyTask

E = TypeVar("E")


def select_split(reading: Reading[E], *names: str) -> Reading[E]:
    """The examples of the first of these splits that the files define; all examples if they define none of them."""
    splits = {split_of(example) for example in reading.examples}
    name = next((name for name in names if name in splits), None)
    return reading if name is None else reading.select(name)


def split_data(
    reading: Reading[E], held: Reading[E] | None, task: type[AnyTask], seed: int
) -> tuple[Reading[E], Reading[E]]:
    """(training data, validation data): other files, the split called dev, or a tenth that the task holds out.

    >>> from types import SimpleNamespace as Example
    >>> from regard.tasks.classify import Classify
    >>> whole = Reading(tuple(Example(split=name) for name in ("train", "train", "dev", "test")))
    >>> [len(reading) for reading in split_data(whole, None, Classify, seed=0)]
    [2, 1]
    """
    train = select_split(reading, "train")
    if held is not None:
        return train, select_split(held, "dev", "test")
    if any(split_of(example) == "dev" for example in reading.examples):
        return train, reading.select("dev")
    return task.split(train, 0.1, seed)
