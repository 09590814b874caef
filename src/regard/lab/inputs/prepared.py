"""What a model is given and how it is drawn: the call's arguments, tokens with the places they cover, the limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ...errors import BadInput


class Limits(NamedTuple):
    """The most characters and tokens that are taken."""

    characters: int
    tokens: int


FEW, MANY = Limits(20_000, 2_000), Limits(200_000, 32_768)
"""Of a text whose every pair may be drawn, and of a long one."""


@dataclass(frozen=True)
class Token:
    """A token as it is drawn: its text and which characters of the input it covers.

    Tokens of one `group` are pieces of the same character; `special` ones were added by the model's own template.
    """

    text: str
    start: int = 0
    end: int = 0
    special: bool = False
    group: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Prepared:
    """What the model is called with, its tokens by side, and how its answer is read."""

    arguments: dict[str, Any]
    tokens: dict[str, list[Token]]
    side: str = "source"
    about: dict[str, Any] = field(default_factory=dict)
    answer: Callable[[Any], dict[str, Any]] = lambda output: {"kind": "none", "items": []}


def need_few(tokens: int, given: str = "The text", limits: Limits = FEW) -> None:
    """Raise for more tokens than are taken."""
    if tokens > limits.tokens:
        raise BadInput(f"{given} has {tokens:,} tokens; {too_many(limits.tokens, limits)}")


def too_many(most: int, limits: Limits) -> str:
    if limits == FEW:
        return f"this page takes {most:,}. Shorten it, or open it on Long."
    return f"{most:,} are the most: every layer compares every pair. Shorten it, or choose the model recall."
