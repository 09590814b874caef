"""The parts of an experiment: a claim, a measurement, a verdict computed from the numbers, and a figure.

Each module of `claims` is one experiment. It has

    CLAIM                               the claim in both languages, the set-up, and the thresholds that decide
    PARAMETERS                          what a user can change
    measure(size, seed, progress, settings)
                                        numbers that JSON can hold; the same seed gives the same numbers
    verdict(numbers)                    the verdict on each sub-claim by its stated threshold, and on the claim
    draw(numbers, language)             the figure

A module with `TIMED = True` measures time: nothing else runs beside it. Every experiment computes on one thread, so that
the same seed gives the same numbers on any number of cores. Tensors are created on torch's default device, which the
runner sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .parameters import Bilingual, Language, Parameter, Settings, Size
from .progress import ProgressCallback

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VerdictKind = Literal["holds", "limited", "fails"]
Measurements = dict[str, Any]
"""The numbers of an experiment as JSON holds them: `measure` returns them, a saved result has them under `numbers`."""


@dataclass(frozen=True)
class Criterion:
    """The threshold of one sub-claim: its value must be at least `bound`, or at most, as `compare` says.

    `text` states the sub-claim with its threshold. Without a `core` sub-claim the whole claim fails.
    """

    name: str
    text: Bilingual
    compare: Literal[">=", "<="]
    bound: float
    core: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim, how it is tested, and the thresholds of its sub-claims."""

    number: int
    name: str
    title: Bilingual
    claim: Bilingual
    setup: Bilingual
    criteria: tuple[Criterion, ...]


@dataclass(frozen=True)
class Subclaim:
    """The verdict on one part of a claim: `figures` are the numbers that decide, `value` the one that is compared."""

    name: str
    text: Bilingual
    holds: bool
    figures: Bilingual
    value: float
    bound: float
    core: bool = False


@dataclass(frozen=True)
class Verdict:
    """`kind` follows from the sub-claims as `judge` states; `key` is the main measurement, short enough for a table.

    `why` has all numbers that decided.
    """

    kind: VerdictKind
    key: Bilingual
    why: Bilingual
    subclaims: tuple[Subclaim, ...] = ()


RULE = Bilingual(
    "A claim holds if all its sub-claims hold, fails if a core sub-claim or all of them fail, and otherwise holds with a limit.",
    "所有分项都成立，则说法成立；核心分项不成立或全部不成立，则说法不成立；其余情况为有条件成立。",
)
"""The rule of `judge`."""


def judge(claim: Claim, measured: Mapping[str, tuple[float, Bilingual]], key: Bilingual, why: Bilingual) -> Verdict:
    """The verdict on a claim from the value and the figures of each of its criteria, by name.

    The claim holds if all sub-claims hold; it fails if a core one fails or none holds; otherwise it is limited.
    """
    subclaims = tuple(judge_criterion(criterion, *measured[criterion.name]) for criterion in claim.criteria)
    held = [subclaim.holds for subclaim in subclaims]
    lost = not any(held) or any(subclaim.core and not subclaim.holds for subclaim in subclaims)
    return Verdict("holds" if all(held) else "fails" if lost else "limited", key, why, subclaims)


def judge_criterion(criterion: Criterion, value: float, figures: Bilingual) -> Subclaim:
    """The verdict on one sub-claim; a value that is not a number does not hold."""
    holds = value >= criterion.bound if criterion.compare == ">=" else value <= criterion.bound
    return Subclaim(criterion.name, criterion.text, bool(holds), figures, float(value), criterion.bound, criterion.core)


class Experiment(Protocol):
    """A module of `claims`."""

    CLAIM: Claim
    PARAMETERS: tuple[Parameter, ...]

    def measure(self, size: Size, seed: int, progress: ProgressCallback, settings: Settings = ...) -> Measurements: ...
    def verdict(self, numbers: Measurements) -> Verdict: ...
    def draw(self, numbers: Measurements, language: Language) -> Figure: ...
