"""The course: its chapters in order, and its steps by name."""

from __future__ import annotations

import difflib
from functools import cache

from ..errors import BadInput
from .step import Chapter, Step


@cache
def list_chapters() -> tuple[Chapter, ...]:
    """Every chapter, by number."""
    from .chapters import CHAPTERS

    return tuple(sorted(CHAPTERS, key=lambda chapter: chapter.number))


def list_steps() -> list[Step]:
    """Every step, in the order of the course."""
    return [step for chapter in list_chapters() for step in chapter.steps]


def find_step(name: str) -> Step:
    """The step of that name; raises `BadInput` that suggests the nearest name."""
    steps = {step.name: step for step in list_steps()}
    if name not in steps:
        nearest = difflib.get_close_matches(name, steps, n=1)
        raise BadInput(f"The course has no step {name!r:.40}." + (f" Did you mean {nearest[0]!r}?" if nearest else ""))
    return steps[name]
