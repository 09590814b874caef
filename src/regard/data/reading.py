"""The result of reading data files: examples, and every place that could not be read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from .. import errors
from ..errors import BadInput

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
X = TypeVar("X")

MAX_LISTED = 5
"""Faults that an error message lists before it counts the rest."""


@dataclass(frozen=True)
class Fault:
    """A place in a file that could not be read, with a message: what was read, and what was expected.

    Lines and columns count from 1, columns in characters; None where a file has none. `place` says in words where a
    file without lines has it. `cause` is the class of an exception that no reader expected.

    >>> print(Fault("train.tsv", 3, 7, "the label is empty."))
    train.tsv:3:7: the label is empty.
    >>> print(Fault("cells.npz", None, None, "there is no array 'y'."))
    cells.npz: there is no array 'y'.
    >>> print(Fault("book.xlsx", 5, 3, "the label is empty.", "sheet 'May', cell C5"))
    book.xlsx: sheet 'May', cell C5: the label is empty.
    """

    file: str
    line: int | None
    column: int | None
    message: str
    place: str = ""
    cause: str = ""

    def __str__(self) -> str:
        if self.place:
            return f"{self.file}: {self.place}: {self.message}"
        position = ":".join(str(item) for item in (self.file, self.line, self.column) if item is not None)
        return f"{position}: {self.message}"


class MalformedData(Exception):
    """A line, a row or a whole file cannot be read. `ReadingBuilder` catches it and keeps its faults."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*map(str, faults))
        self.faults = faults


def raise_fault(
    file: str | Path, message: str, line: int | None = None, column: int | None = None, place: str = ""
) -> NoReturn:
    """Raise `MalformedData` with this fault."""
    raise MalformedData(Fault(str(file), line, column, message, place))


def is_foreign(error: BaseException) -> bool:
    """Whether an exception is neither ours nor a request to stop, such as an error of a library or its Rust panic."""
    return errors.is_foreign(error) and not isinstance(error, MalformedData)


def foreign_fault(error: BaseException, file: str, source: object = None) -> Fault:
    """The fault for an exception that no reader expected; `source` may be a row with its line."""
    line = getattr(source, "line", None)
    cause = type(error).__name__
    reason = f"{cause}: {error}"[:200].rstrip(".")
    message = f"cannot be read ({reason}). Get the file again, or save it in another format."
    return Fault(file, line if isinstance(line, int) else None, None, " ".join(message.split()), cause=cause)


_collector: ContextVar[FaultCollector | None] = ContextVar("fault_collector", default=None)


def add_note(text: str) -> None:
    """Add a note to the reading that is being built; outside of one it is dropped."""
    if (collector := _collector.get()) is not None:
        collector.note(text)


def raise_fault_from(
    error: Exception, file: str | Path, line: int | None = None, column: int | None = None
) -> NoReturn:
    """Raise `MalformedData` with the message of `error`, without the file's path at its start."""
    raise_fault(file, str(error).removeprefix(str(file)).lstrip(": "), line, column)


@dataclass(frozen=True)
class Reading(Generic[T_co]):
    """Examples in the order of the files, the faults, and what was guessed about the files (`notes`).

    `columns` are those of a table that were read, by their role.
    """

    examples: tuple[T_co, ...]
    faults: tuple[Fault, ...] = ()
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.examples)

    def __str__(self) -> str:
        lines = [
            f"{count_noun(len(self), 'example')} from {', '.join(self.files)}; {count_noun(len(self.faults), 'fault')}"
        ]
        return "\n".join(lines + [f"  {note}" for note in self.notes] + format_faults(self.faults))

    def strict(self) -> Reading[T_co]:
        """The reading itself if it has no faults; otherwise `BadInput` with the first faults and their number."""
        if self.faults:
            count = count_noun(len(self.faults), "fault")
            lines = "\n".join(format_faults(self.faults))
            raise BadInput(
                f"{count} in {', '.join(self.files)}, {count_noun(len(self), 'example')} read:\n{lines}\n"
                "Mend these places, or go on with what was read."
            )
        return self

    def require_examples(self) -> Reading[T_co]:
        """The reading itself if it has examples; otherwise `BadInput` with the first faults."""
        if not self.examples:
            why = " ".join(str(fault) for fault in self.faults[:MAX_LISTED])
            raise BadInput(f"No example was read from {', '.join(self.files)}. {why} `regard check` shows all of it.")
        return self

    def select(self, split: str) -> Reading[T_co]:
        """The examples that the files assign to a split: 'train', 'dev' or 'test'."""
        selected = tuple(example for example in self.examples if split_of(example) == split)
        if not selected:
            names = sorted({split_of(example) for example in self.examples} - {""})
            hint = f"The splits are {', '.join(names)}." if names else "The files define no splits: take split()."
            raise BadInput(f"{', '.join(self.files)}: no example belongs to {split!r}. {hint}")
        return replace(self, examples=selected)


def split_of(example: object) -> str:
    """The split that an example's file assigns it to; '' where there is none.

    >>> split_of("a text, which has a method split")
    ''
    """
    split = getattr(example, "split", "")
    return split if isinstance(split, str) else ""


def count_noun(number: int, noun: str) -> str:
    """A count and its noun, in the plural unless the count is 1.

    >>> count_noun(1, "fault"), count_noun(2000, "fault")
    ('1 fault', '2,000 faults')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_faults(faults: tuple[Fault, ...]) -> list[str]:
    """The first faults, one per line, and the number of the others."""
    lines = [f"  {fault}" for fault in faults[:MAX_LISTED]]
    return [*lines, f"  … and {len(faults) - MAX_LISTED:,} more"] if len(faults) > MAX_LISTED else lines


@dataclass
class FaultCollector:
    """Collects faults and notes while files are read."""

    faults: list[Fault] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """While open, reads this file: `MalformedData` becomes faults, and the next file can be read."""
        self.files.append(str(path))
        token = _collector.set(self)
        try:
            with self.catching():
                yield
        finally:
            _collector.reset(token)

    @contextmanager
    def catching(self, source: object = None) -> Iterator[None]:
        """While open, `MalformedData` and the exceptions of libraries become faults, at the line of `source`."""
        try:
            yield
        except BaseException as error:
            self.add_faults(error, source)

    def add_faults(self, error: BaseException, source: object = None) -> None:
        """The faults of an exception while a file is read; our own errors and requests to stop are raised again."""
        if isinstance(error, MalformedData):
            self.faults.extend(error.faults)
        elif is_foreign(error):
            self.faults.append(foreign_fault(error, self.files[-1] if self.files else "", source))
        else:
            raise error

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass
class ReadingBuilder(FaultCollector, Generic[T]):
    """Collects examples too; `build` returns the `Reading`."""

    examples: list[T] = field(default_factory=list)

    def each(self, sources: Iterable[X], make: Callable[[X], T]) -> None:
        """Add `make(source)` for each source; where it raises, add the faults."""
        for source in sources:
            try:
                self.examples.append(make(source))
            except BaseException as error:
                self.add_faults(error, source)

    def build(self) -> Reading[T]:
        """The reading; faults are sorted by file and line."""
        order = {name: n for n, name in enumerate(self.files)}
        faults = sorted(self.faults, key=lambda fault: (order.get(fault.file, len(order)), fault.line or 0))
        return Reading(tuple(self.examples), tuple(faults), tuple(self.files), tuple(self.notes), self.columns)


def stratum_quotas(sizes: Counter[Hashable], count: int) -> Counter[Hashable]:
    """How many of `count` held-out examples each stratum gives: by its size, but never all of it.

    The rounding gives what is left to the largest remainders.

    >>> stratum_quotas(Counter(common=95, rare=4, single=1), 10)
    Counter({'common': 10, 'rare': 0, 'single': 0})
    """
    exact = {stratum: count * size / sizes.total() for stratum, size in sizes.items()}
    quotas = Counter({stratum: min(int(share), sizes[stratum] - 1) for stratum, share in exact.items()})
    for stratum in sorted(exact, key=lambda stratum: int(exact[stratum]) - exact[stratum]):
        if quotas.total() < count and quotas[stratum] < sizes[stratum] - 1:
            quotas[stratum] += 1
    return quotas


def split(
    reading: Reading[T],
    share: float,
    seed: int = 0,
    *,
    by: Callable[[T], Hashable] | None = None,
    stratify: Callable[[T], Hashable] | None = None,
) -> tuple[Reading[T], Reading[T]]:
    """(the rest, the held-out examples): about `share` is held out, a function of examples and seed.

    Examples with the same value of `by` stay together, such as those of one speaker or image. Of the examples with each
    value of `stratify`, such as a class, about the same share is held out, and one at least stays. Both readings keep
    the order of the file, and neither is empty.

    >>> rest, held = split(Reading(tuple(range(10))), 0.2)
    >>> len(rest), len(held), sorted(rest.examples + held.examples) == list(range(10))
    (8, 2, True)
    >>> rest, held = split(Reading(("aa", "ab", "ba", "bb")), 0.5, by=lambda text: text[0])
    >>> {text[0] for text in rest.examples} & {text[0] for text in held.examples}
    set()
    """
    if not 0 < share < 1:
        raise BadInput(f"share is {share!r}; it must be more than 0 and less than 1.")
    groups: dict[Hashable, list[int]] = {}
    for n, example in enumerate(reading.examples):
        groups.setdefault(n if by is None else by(example), []).append(n)
    if len(groups) < 2:
        noun = "examples" if by is None else "groups"
        raise BadInput(f"{', '.join(reading.files) or 'The reading'} has {len(groups)} {noun}; a split needs two.")
    order, count = list(groups.values()), max(1, round(share * len(reading)))
    random.Random(seed).shuffle(order)
    held: set[int] = set()
    if stratify is not None:
        strata = [stratify(example) for example in reading.examples]
        quotas = stratum_quotas(Counter(strata), count)
        for group in order:
            if quotas[strata[group[0]]] > 0:
                quotas[strata[group[0]]] -= len(group)
                held.update(group)
    for group in order[:-1]:
        if len(held) >= (1 if stratify is not None else count):
            break
        held.update(group)
    rest = tuple(example for n, example in enumerate(reading.examples) if n not in held)
    out = tuple(example for n, example in enumerate(reading.examples) if n in held)
    return replace(reading, examples=rest), replace(reading, examples=out)
