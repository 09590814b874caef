"""The parts of an experiment: a claim, a measurement, a verdict computed from the numbers, and a figure.

Each module of `claims` is one experiment. It has

    CLAIM                               the claim in both languages, the set-up, and the threshold that decides
    measure(size, seed, progress)       numbers that JSON can hold; the same seed gives the same numbers
    verdict(numbers)                    the verdict on the claim, by the stated threshold
    draw(numbers, language)             the figure

A module with `TIMED = True` measures time: nothing else runs beside it. Every experiment computes on one thread, so that
the same seed gives the same numbers on any number of cores. Tensors are created on torch's default device, which the
runner sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .progress import ProgressCallback

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Language = Literal["en", "zh"]
Size = Literal["toy", "usual", "full"]
"""toy: seconds, for tests; usual: a minute or two on one core; full: more seeds and steps, many minutes each."""


@dataclass(frozen=True)
class Bilingual:
    """A text in English and in Chinese; calling it picks one.

    >>> Bilingual("head", "头")("zh")
    '头'
    """

    en: str
    zh: str

    def __call__(self, language: Language) -> str:
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True)
class Claim:
    """A claim, how it is tested, and the threshold of its verdict."""

    number: int
    name: str
    title: Bilingual
    claim: Bilingual
    setup: Bilingual
    threshold: Bilingual


@dataclass(frozen=True)
class Verdict:
    """`kind` is holds, limited (holds under a condition that `why` names) or fails.

    `key` is the main measurement, short enough for a table; `why` has all numbers that decided.
    """

    kind: Literal["holds", "limited", "fails"]
    key: Bilingual
    why: Bilingual


class Experiment(Protocol):
    """A module of `claims`."""

    CLAIM: Claim

    def measure(self, size: Size, seed: int, progress: ProgressCallback) -> dict[str, Any]: ...
    def verdict(self, numbers: dict[str, Any]) -> Verdict: ...
    def draw(self, numbers: dict[str, Any], language: Language) -> Figure: ...
