"""A step of the course: a claim, something to change, the numbers that follow, and the measured verdict.

A chapter is a module of `chapters` with a `CHAPTER`. The same steps make the lab's page, the pages `docs/course` and
the notebooks, so a step is data: texts in both languages, controls, two functions, pictures and verdicts.

    def compute(query, keys, values):           # 5 to 15 lines of NumPy; its source is shown and run
        scores = keys @ query
        weights = np.exp(scores) / np.exp(scores).sum()
        return dict(scores=scores, weights=weights, output=weights @ values)

    def attend(query, keys, values):            # the same in Regard; tensors of float64 in, a tensor out
        q, k, v = query[None, None, None], keys[None, None], values[None, None]
        return rg.attend(q, k, v, score=rg.Dot(scale=1.0))[0, 0, 0]

Both functions stand alone: they may use their arguments, `np`, `torch` and `rg`, and nothing else of their module.
`compute` ends with `return dict(name=…, …)`; `attend` must equal the entry `answer` of its result to 1e-6.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput
from ..experiments.experiment import Bilingual, Language
from .controls import Control, Value, Words
from .pictures import Picture

Result = dict[str, Any]
"""The names and values that `compute` returns: numbers, arrays, strings, lists of strings. Each step has its own."""


@dataclass(frozen=True)
class Finding:
    """What the numbers of a step say: `check(result)` decides, `text` states it, with fields of the result in braces.

    `text` is formatted with the result: `"the heaviest weight is {heaviest:.2f}"`. A finding holds for the start
    values of the controls (a test checks that); with other values the page shows whether it still does.
    """

    text: Bilingual
    check: Callable[[Result], bool]


@dataclass(frozen=True)
class Evidence:
    """The verdict of an experiment, or of some of its sub-claims, that settles the claim of the step."""

    experiment: str
    subclaims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One step: `task` says what to do and where to look.

    `link` opens a page of the lab with its state, for example `heads?model=tagger-zh`.
    """

    name: str
    title: Bilingual
    claim: Bilingual
    task: Bilingual
    controls: tuple[Control, ...]
    compute: Callable[..., Result]
    pictures: tuple[Picture, ...]
    findings: tuple[Finding, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    attend: Callable[..., Tensor] | None = None
    answer: str = "output"
    link: str = ""

    def start_values(self, language: Language) -> dict[str, object]:
        """The value of each control at the start, as JSON holds it."""
        return {
            control.name: control.value(language) if isinstance(control, Words) else as_json(control.value)
            for control in self.controls
        }

    def read(self, given: Mapping[str, object], language: Language) -> dict[str, Value]:
        """The checked value of each control; start values where none is given. Raises `BadInput`."""
        unknown = sorted(set(given) - {control.name for control in self.controls})
        if unknown:
            raise BadInput(f"The step {self.name} has no control {unknown[0]!r:.40}.")
        values = self.start_values(language) | dict(given)
        return {control.name: control.read(values[control.name]) for control in self.controls}

    def run(self, given: Mapping[str, object] | None = None, language: Language = "en") -> Result:
        """Run `compute` on the given values of controls; the others keep their start values."""
        with np.errstate(all="ignore"):
            return self.compute(**self.read(given or {}, language))

    def run_attend(self, given: Mapping[str, object] | None = None, language: Language = "en") -> np.ndarray:
        """Run `attend` on the same values, as float64 tensors."""
        if self.attend is None:
            raise BadInput(f"The step {self.name} has no line of Regard.")
        values = self.read(given or {}, language)
        tensors = {n: torch.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v for n, v in values.items()}
        return self.attend(**tensors).numpy()

    @cached_property
    def numpy_code(self) -> str:
        """The body of `compute` up to its return, and the answer's expression: what the page and the notebook show."""
        source = body(self.compute)
        last = ast.parse(source).body[-1]
        lines = source.splitlines()[: last.lineno - 1]
        keywords = last.value.keywords if isinstance(last, ast.Return) and isinstance(last.value, ast.Call) else []
        for keyword in keywords:
            if keyword.arg == self.answer and (written := ast.unparse(keyword.value)) != self.answer:
                lines.append(f"{self.answer} = {written}")
        return "\n".join(lines).rstrip()

    @cached_property
    def regard_code(self) -> str:
        """The body of `attend` with its return turned into `output = …`; empty where there is none."""
        return body(self.attend).replace("return ", "output = ") if self.attend else ""


@dataclass(frozen=True)
class Chapter:
    """A chapter: the steps of one of the five notes, in order."""

    number: int
    name: str
    title: Bilingual
    lead: Bilingual
    steps: tuple[Step, ...]


def body(function: Callable[..., object]) -> str:
    """The source of a function's body, dedented, without its docstring."""
    lines = inspect.getsource(function).splitlines()
    start = next(n for n, line in enumerate(lines) if line.rstrip().endswith(":")) + 1
    text = textwrap.dedent("\n".join(lines[start:]))
    doc = inspect.getdoc(function)
    return text.split('"""', 2)[2].lstrip("\n") if doc and text.lstrip().startswith('"""') else text


def as_json(value: object) -> object:
    """Nested tuples as lists."""
    return [as_json(item) for item in value] if isinstance(value, tuple) else value
