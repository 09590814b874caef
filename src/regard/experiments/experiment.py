"""The parts of an experiment: a claim, a measurement, a verdict computed from the numbers, and a figure.

Each module of `claims` is one experiment. It has

    CLAIM                               the claim in both languages, the set-up, and the threshold that decides
    measure(size, seed, progress)       numbers that JSON can hold; the same seed gives the same numbers
    verdict(numbers)                    the verdict on each sub-claim by its stated threshold, and on the claim
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
VerdictKind = Literal["holds", "limited", "fails"]


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
class Subclaim:
    """One part of a claim with its own threshold: it holds if `value` is at least (or at most) `bound`.

    `text` states the part with its threshold, `figures` the numbers that decide. Without a `core` sub-claim the claim
    is lost.
    """

    name: str
    text: Bilingual
    holds: bool
    figures: Bilingual
    value: float
    bound: float
    core: bool = False


@dataclass(frozen=True)
class Verdict:
    """`kind` is holds, limited (some sub-claims hold and none of the core fails) or fails.

    `key` is the main measurement, short enough for a table; `why` has all numbers that decided.
    """

    kind: VerdictKind
    key: Bilingual
    why: Bilingual
    subclaims: tuple[Subclaim, ...] = ()


class Experiment(Protocol):
    """A module of `claims`."""

    CLAIM: Claim

    def measure(self, size: Size, seed: int, progress: ProgressCallback) -> dict[str, Any]: ...
    def verdict(self, numbers: dict[str, Any]) -> Verdict: ...
    def draw(self, numbers: dict[str, Any], language: Language) -> Figure: ...
