"""What a reader can change in a step: each control has a name, a label and a start value, and checks what it is given.

The name of a control is the name of the argument of the step's `compute` that receives its value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import BadInput
from ..experiments.experiment import Bilingual

Value = float | int | str | np.ndarray
"""What `compute` receives: a number, the name of an option, a text, or an array."""
NestedNumbers = tuple[float, ...] | tuple[tuple[float, ...], ...]
"""A vector or a matrix."""


@dataclass(frozen=True)
class Slider:
    """A number between `low` and `high`, in steps of `step`; `whole` numbers arrive as `int`."""

    name: str
    label: Bilingual
    value: float
    low: float
    high: float
    step: float
    whole: bool = False

    def read(self, given: object) -> float | int:
        if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
            raise BadInput(f"{self.name} is {given!r:.40}; it must be a number from {self.low:g} to {self.high:g}.")
        if not self.low <= given <= self.high:
            raise BadInput(f"{self.name} is {given:g}; it must be from {self.low:g} to {self.high:g}.")
        return int(given) if self.whole else float(given)


@dataclass(frozen=True)
class Choice:
    """One of `options`, pairs of a name (what `compute` receives) and its text."""

    name: str
    label: Bilingual
    value: str
    options: tuple[tuple[str, Bilingual], ...]

    def read(self, given: object) -> str:
        names = [name for name, _ in self.options]
        if not isinstance(given, str) or given not in names:
            raise BadInput(f"{self.name} is {given!r:.40}; it must be one of {', '.join(names)}.")
        return given


@dataclass(frozen=True)
class Words:
    """A short text; `compute` receives the string. `most` is the largest number of words, split at blanks."""

    name: str
    label: Bilingual
    value: Bilingual
    most: int = 12

    def read(self, given: object) -> str:
        if not isinstance(given, str) or not given.split():
            raise BadInput(f"{self.name} is {given!r:.40}; it must be one to {self.most} words separated by blanks.")
        if len(given.split()) > self.most or len(given) > 200:
            raise BadInput(f"{self.name} has {len(given.split())} words; at most {self.most} fit here.")
        return given


@dataclass(frozen=True)
class Numbers:
    """A vector or a matrix of numbers that can be edited (and dragged, where a `Plane` draws it).

    `value` is a nested tuple; `rows` and `columns` label it. `compute` receives a float64 array of the same shape.
    """

    name: str
    label: Bilingual
    value: NestedNumbers
    low: float = -10.0
    high: float = 10.0
    step: float = 0.1
    rows: tuple[Bilingual, ...] = ()
    columns: tuple[Bilingual, ...] = ()

    def read(self, given: object) -> np.ndarray:
        wanted = np.asarray(self.value, dtype=np.float64)
        array = read_array(given, wanted.shape, self.name)
        if not np.isfinite(array).all() or (array < self.low).any() or (array > self.high).any():
            raise BadInput(f"Every number of {self.name} must be from {self.low:g} to {self.high:g}.")
        return array


@dataclass(frozen=True)
class MaskGrid:
    """A grid of allowed pairs that is painted with the mouse; `compute` receives a boolean array, True = may attend."""

    name: str
    label: Bilingual
    value: tuple[tuple[bool, ...], ...]
    rows: tuple[Bilingual, ...] = ()
    columns: tuple[Bilingual, ...] = ()

    def read(self, given: object) -> np.ndarray:
        return read_array(given, np.asarray(self.value).shape, self.name) != 0


Control = Slider | Choice | Words | Numbers | MaskGrid


def read_array(given: object, shape: tuple[int, ...], name: str) -> np.ndarray:
    """A nested list of numbers as a float64 array; raises `BadInput` unless it has that shape."""
    size = " × ".join(map(str, shape))
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name} must be {size} numbers.") from error
    if array.shape != shape:
        raise BadInput(f"{name} has the shape {list(array.shape)}; it must be {size} numbers.")
    return array
