"""Parameters of an experiment: what a user can change, with range, defaults and text, declared once per experiment.

The command line (`--set grey=0.02`), the lab's form and sweeps are made from these declarations.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import BadInput

Language = Literal["en", "zh"]
Size = Literal["toy", "usual", "full"]
"""toy: seconds, for tests; usual: a minute or two on one core; full: more seeds and steps, many minutes each."""
Settings = Mapping[str, float]
"""Values of parameters by name; those that are missing have their defaults."""
NO_SETTINGS: Settings = {}


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

    @classmethod
    def same(cls, text: str) -> Bilingual:
        """A text, such as a number, that reads the same in both languages."""
        return cls(text, text)


@dataclass(frozen=True)
class Parameter:
    """A number that a user can change: from `low` to `high`, by default as each size has it.

    With a `multiple` it takes whole multiples of that number only; 0: any number.
    """

    name: str
    text: Bilingual
    low: float
    high: float
    defaults: Mapping[Size, float]
    multiple: int = 0


def constant(value: float) -> dict[Size, float]:
    """The same default at every size."""
    return {"toy": value, "usual": value, "full": value}


def count(
    name: str, text: Bilingual, low: int, high: int, defaults: Mapping[Size, int] | int, multiple: int = 1
) -> Parameter:
    """A parameter that takes whole numbers; one default serves every size."""
    by_size = constant(defaults) if isinstance(defaults, int) else defaults
    return Parameter(name, text, low, high, by_size, multiple)


def from_sizes(
    sizes: Mapping[Size, Mapping[str, int]], name: str, text: Bilingual, low: int, high: int, multiple: int = 1
) -> Parameter:
    """A parameter that takes whole numbers, with defaults from a table of settings by size."""
    return count(name, text, low, high, {size: sizes[size][name] for size in sizes}, multiple)


STEPS_TEXT = Bilingual("training steps", "训练步数")
SEEDS_TEXT = Bilingual("seeds", "随机种子数")
DIM_TEXT = Bilingual("dim", "维度")
TOKENS_TEXT = Bilingual("tokens", "词元数")


def resolve_settings(parameters: tuple[Parameter, ...], size: Size, settings: Settings) -> dict[str, float]:
    """The value of every parameter; raises `BadInput` for an unknown name and for a value outside the range.

    >>> steps = count("steps", STEPS_TEXT, 1, 100, 20)
    >>> resolve_settings((steps,), "toy", {"steps": 7})
    {'steps': 7}
    """
    known = {parameter.name: parameter for parameter in parameters}
    for name, value in settings.items():
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
            raise BadInput(f"There is no parameter {name!r}. {hint}There are: {', '.join(known) or 'none'}.")
        check_value(known[name], value)
    values = {name: settings.get(name, parameter.defaults[size]) for name, parameter in known.items()}
    return {name: int(value) if known[name].multiple else float(value) for name, value in values.items()}


def resolve_counts(parameters: tuple[Parameter, ...], size: Size, settings: Settings) -> dict[str, int]:
    """The values of the parameters that take whole numbers; raises `BadInput` as `resolve_settings` does."""
    values = resolve_settings(parameters, size, settings)
    return {parameter.name: int(values[parameter.name]) for parameter in parameters if parameter.multiple}


def check_value(parameter: Parameter, value: float) -> None:
    """Raises `BadInput` unless the value is a number in the parameter's range."""
    if not isinstance(value, int | float) or not parameter.low <= value <= parameter.high:
        raise BadInput(f"{parameter.name} is {value!r}; wanted: {parameter.low:g} to {parameter.high:g}.")
    if parameter.multiple and value % parameter.multiple:
        wanted = "a whole number" if parameter.multiple == 1 else f"a multiple of {parameter.multiple}"
        raise BadInput(f"{parameter.name} is {value!r}; wanted: {wanted}.")
