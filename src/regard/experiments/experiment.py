"""What an experiment is: a claim, how it is tested, what was measured, and a verdict computed from the numbers.

A file of this folder is one experiment. It has

    CLAIM                           the claim in both languages, the set-up, and the threshold that decides
    measure(size, seed, tell)       numbers, as JSON has them; the same seed gives the same numbers
    verdict(numbers)                what they say of the claim, by the stated threshold
    draw(numbers, language)         the figure

and, where its claim is about time, `TIMED = True`: nothing else then runs while it measures. Every experiment computes on
one thread, so that the same seed gives the same numbers however many cores there are; several run side by side. Tensors are
made without a word about where: they are where the run is, on the processor or on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Tell = Callable[[float, str], None]
"""Hears how far an experiment is (0 to 1) and what it does."""

Language = Literal["en", "zh"]
Size = Literal["toy", "usual", "full"]
"""toy: seconds, for tests; usual: a minute or two on one core; full: more seeds and steps, many minutes each."""


@dataclass(frozen=True)
class Both:
    """A text in English and in Chinese."""

    en: str
    zh: str

    def __call__(self, language: Language) -> str:
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True)
class Claim:
    """A claim, how it is tested, and when it counts as true."""

    number: int
    name: str
    title: Both
    claim: Both
    setup: Both
    threshold: Both


@dataclass(frozen=True)
class Verdict:
    """holds, limited (holds with a limit that `why` names) or fails (does not hold).

    `key` is the one measurement to remember, short enough for a table; `why` has all the numbers that decided.
    """

    kind: Literal["holds", "limited", "fails"]
    key: Both
    why: Both


class Experiment(Protocol):
    """A module of this folder."""

    CLAIM: Claim

    def measure(self, size: Size, seed: int, tell: Tell) -> dict[str, Any]: ...
    def verdict(self, numbers: dict[str, Any]) -> Verdict: ...
    def draw(self, numbers: dict[str, Any], language: Language) -> Any: ...
