"""What came of reading a person's files: examples, and every place that could not be read."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from ..errors import BadInput

T = TypeVar("T")
X = TypeVar("X")

MAX_LISTED = 5
"""Faults that an error message lists before it counts the rest."""


@dataclass(frozen=True)
class Fault:
    """A place in a file that could not be read: what stands there, and what was wanted.

    Lines and columns count from 1, columns in characters; None where a file has none.

    >>> print(Fault("train.tsv", 3, 7, "the label is empty."))
    train.tsv:3:7: the label is empty.
    >>> print(Fault("cells.npz", None, None, "there is no array 'y'."))
    cells.npz: there is no array 'y'.
    """

    file: str
    line: int | None
    column: int | None
    message: str

    def __str__(self) -> str:
        place = [str(one) for one in (self.file, self.line, self.column) if one is not None]
        return f"{':'.join(place)}: {self.message}"


class MalformedData(Exception):
    """A line, a row or a whole file cannot be read; whoever gathers the examples keeps the faults."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*map(str, faults))
        self.faults = faults


def raise_fault(file: str | Path, message: str, line: int | None = None, column: int | None = None) -> NoReturn:
    """Raise `MalformedData` with that fault."""
    raise MalformedData(Fault(str(file), line, column, message))


def raise_fault_from(
    error: Exception, file: str | Path, line: int | None = None, column: int | None = None
) -> NoReturn:
    """Raise `MalformedData` there with an error's message, whose own mention of that file is left out."""
    raise_fault(file, str(error).removeprefix(str(file)).lstrip(": "), line, column)


@dataclass(frozen=True)
class Reading(Generic[T]):
    """Examples in the files' order, the faults beside them, and what was guessed about the files (`notes`)."""

    examples: tuple[T, ...]
    faults: tuple[Fault, ...] = ()
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.examples)

    def __str__(self) -> str:
        lines = [
            f"{count_noun(len(self), 'example')} from {', '.join(self.files)}; {count_noun(len(self.faults), 'fault')}"
        ]
        return "\n".join(lines + [f"  {note}" for note in self.notes] + format_faults(self.faults))

    def strict(self) -> Reading[T]:
        """Itself if nothing was wrong; otherwise `BadInput` with the first faults and their number."""
        if self.faults:
            found = count_noun(len(self.faults), "fault")
            lines = "\n".join(format_faults(self.faults))
            raise BadInput(
                f"{found} in {', '.join(self.files)}, {count_noun(len(self), 'example')} read:\n{lines}\n"
                "Mend these places, or go on with what was read."
            )
        return self

    def require_examples(self) -> Reading[T]:
        """Itself if anything was read; otherwise `BadInput` with the first faults."""
        if not self.examples:
            why = " ".join(str(fault) for fault in self.faults[:MAX_LISTED])
            raise BadInput(f"No example was read from {', '.join(self.files)}. {why} `regard check` shows all of it.")
        return self

    def part(self, name: str) -> Reading[T]:
        """The examples that the file itself puts into 'train', 'dev' or 'test'."""
        kept = tuple(one for one in self.examples if getattr(one, "part", "") == name)
        if not kept:
            there = sorted({getattr(one, "part", "") for one in self.examples} - {""})
            names = f"The parts are {', '.join(there)}." if there else "The files name no parts: take split()."
            raise BadInput(f"{', '.join(self.files)}: no example belongs to {name!r}. {names}")
        return replace(self, examples=kept)


def count_noun(number: int, noun: str) -> str:
    """
    >>> count_noun(1, "fault"), count_noun(2000, "fault")
    ('1 fault', '2,000 faults')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_faults(faults: tuple[Fault, ...]) -> list[str]:
    """The first faults, a line each, and how many follow."""
    lines = [f"  {fault}" for fault in faults[:MAX_LISTED]]
    return [*lines, f"  … and {len(faults) - MAX_LISTED:,} more"] if len(faults) > MAX_LISTED else lines


@dataclass
class ReadingBuilder(Generic[T]):
    """A reading in the making."""

    examples: list[T] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """While a file is read: if it is refused as a whole, that is one fault and the next file is read."""
        self.files.append(str(path))
        with self.catching():
            yield

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Keep as a fault what is refused inside."""
        try:
            yield
        except MalformedData as refused:
            self.faults.extend(refused.faults)

    def each(self, sources: Iterable[X], make: Callable[[X], T]) -> None:
        """An example of each source, or its fault."""
        for source in sources:
            try:
                self.examples.append(make(source))
            except MalformedData as refused:
                self.faults.extend(refused.faults)

    def note(self, text: str) -> None:
        """Say once what was guessed."""
        if text not in self.notes:
            self.notes.append(text)

    def build(self) -> Reading[T]:
        """What was gathered; faults of a file in the order of its lines."""
        order = {name: n for n, name in enumerate(self.files)}
        faults = sorted(self.faults, key=lambda one: (order.get(one.file, len(order)), one.line or 0))
        return Reading(tuple(self.examples), tuple(faults), tuple(self.files), tuple(self.notes))


def split(
    reading: Reading[T], share: float, seed: int = 0, *, by: Callable[[T], Hashable] | None = None
) -> tuple[Reading[T], Reading[T]]:
    """(the rest, about `share` of the examples held out), the same for the same examples and seed.

    With `by`, examples with the same value stay together: a speaker, an image, a twin sentence. Both sides keep the
    order of the file and neither is empty.

    >>> rest, held = split(Reading(tuple(range(10))), 0.2)
    >>> len(rest), len(held), sorted(rest.examples + held.examples) == list(range(10))
    (8, 2, True)
    >>> rest, held = split(Reading(("aa", "ab", "ba", "bb")), 0.5, by=lambda text: text[0])
    >>> {text[0] for text in rest.examples} & {text[0] for text in held.examples}
    set()
    """
    if not 0 < share < 1:
        raise BadInput(f"share is {share!r}; it must be more than 0 and less than 1.")
    groups: dict[Any, list[int]] = {}
    for n, example in enumerate(reading.examples):
        groups.setdefault(n if by is None else by(example), []).append(n)
    if len(groups) < 2:
        what = "examples" if by is None else "groups"
        raise BadInput(f"{', '.join(reading.files) or 'The reading'} has {len(groups)} {what}; a split needs two.")
    held = hold_out(list(groups.values()), share, seed)
    rest = tuple(example for n, example in enumerate(reading.examples) if n not in held)
    out = tuple(example for n, example in enumerate(reading.examples) if n in held)
    return replace(reading, examples=rest), replace(reading, examples=out)


def hold_out(groups: list[list[int]], share: float, seed: int) -> set[int]:
    """The numbers of shuffled groups until they are `share` of all, one group at least left on each side."""
    wanted = max(1, round(share * sum(map(len, groups))))
    random.Random(seed).shuffle(groups)
    held: set[int] = set()
    for group in groups[:-1]:
        if len(held) >= wanted:
            break
        held.update(group)
    return held
