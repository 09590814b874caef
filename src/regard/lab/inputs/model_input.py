"""The input of one forward pass: the model's arguments, tokens to draw, and limits on their number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ...errors import BadInput


class Limits(NamedTuple):
    """The most characters and tokens of an input."""

    characters: int
    tokens: int


SHORT, LONG = Limits(20_000, 2_000), Limits(200_000, 32_768)
"""The limits of a text whose pairs are all drawn, and of a long one."""


@dataclass(frozen=True)
class Token:
    """A token as it is drawn: its text and the characters of the input that it covers.

    Tokens of one `group` are pieces of the same character; `special` ones were added by the model's own template. The
    model cannot tell an `unknown` token from another unknown one.
    """

    text: str
    start: int = 0
    end: int = 0
    special: bool = False
    group: int | None = None
    unknown: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ModelInput:
    """The model's arguments, the tokens of each side, and how to read the output.

    A side is "source", "target", "image", "sound", "nodes" or "pool"; `side` is the one that the model reads.
    """

    arguments: dict[str, Any]
    tokens: dict[str, list[Token]]
    side: str = "source"
    metadata: dict[str, Any] = field(default_factory=dict)
    read_output: Callable[[Any], dict[str, Any]] = lambda output: {"type": "none", "items": []}


def check_token_count(tokens: int, name: str = "The text", limits: Limits = SHORT) -> None:
    """Raise `BadInput` for more tokens than the limit."""
    if tokens > limits.tokens:
        raise BadInput(f"{name} has {tokens:,} tokens; {limit_hint(limits.tokens, limits)}")


def limit_hint(most: int, limits: Limits) -> str:
    """What to do about a text that is too long; the page Long text is named only where it takes more."""
    if limits == SHORT:
        return f"this page takes at most {most:,}. Shorten it, or open it on the page Long text."
    if most == limits.characters:
        return f"the limit is {most:,}. Shorten it."
    return f"a model takes at most {most:,}, because every layer computes all pairs. Shorten it, or choose recall."
