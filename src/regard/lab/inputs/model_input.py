"""The input of one forward pass: the model's arguments, tokens to draw, and limits on their number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypedDict, TypeGuard

from torch import Tensor

from ...errors import BadInput
from ...models.model import Output
from ..inspect.predictions import PredictionFields

if TYPE_CHECKING:
    from .notices import Notice


class Limits(NamedTuple):
    """The most characters and tokens of an input; with `whole` a text is not cut to the length that a model reads."""

    characters: int
    tokens: int
    whole: bool = False


SHORT, LONG, WINDOWED = Limits(20_000, 2_000), Limits(200_000, 32_768), Limits(200_000, 200_000, whole=True)
"""The limits of a text whose pairs are all drawn, of a long one, and of one that is read by windows."""


class TokenFields(TypedDict):
    """A `Token` as pages receive it."""

    text: str
    start: int
    end: int
    special: bool
    group: int | None
    unknown: bool


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

    def as_dict(self) -> TokenFields:
        return {
            "text": self.text,
            "start": self.start,
            "end": self.end,
            "special": self.special,
            "group": self.group,
            "unknown": self.unknown,
        }


class InputMetadata(TypedDict, total=False):
    """What is known of an input besides its tokens; images, recordings and graphs have more."""

    notices: list[Notice]
    labels: list[str] | None
    hand_made: bool
    target_tokens: list[TokenFields]
    """The tokens that a decoder predicts, of which `numbers` are the ids; `generated` where no target was given."""
    generated: bool
    numbers: list[int]


class ImageMetadata(InputMetadata):
    """An image as the model reads it: `grid` rows and columns of cells, `size` and `cell` in pixels."""

    grid: list[int]
    size: list[int]
    class_token: bool
    detects: bool
    cell: list[int]
    pixels: Tensor


class SoundMetadata(InputMetadata):
    """A recording: its loudness `wave`, and its `frames`; `heard` of the tokens are the recording, others padding."""

    seconds: float
    rate: int | None
    wave: Tensor
    seconds_per_token: float
    frames: Tensor
    frames_per_token: int
    heard: int
    quietest: int


class GraphMetadata(InputMetadata):
    """A graph's edges `[2, edges]`."""

    edges: Tensor


def is_image(metadata: InputMetadata) -> TypeGuard[ImageMetadata]:
    return "grid" in metadata


def is_sound(metadata: InputMetadata) -> TypeGuard[SoundMetadata]:
    return "heard" in metadata


def is_graph(metadata: InputMetadata) -> TypeGuard[GraphMetadata]:
    return "edges" in metadata


@dataclass(frozen=True)
class ModelInput:
    """The model's arguments, the tokens of each side, and how to read the output.

    A side is "source", "target", "image", "sound", "nodes" or "pool"; `side` is the one that the model reads.
    """

    arguments: dict[str, Tensor]
    tokens: dict[str, list[Token]]
    side: str = "source"
    metadata: InputMetadata = field(default_factory=InputMetadata)
    read_output: Callable[[Output], PredictionFields] = lambda output: {"type": "none", "items": []}


def check_token_count(tokens: int, name: str = "The text", limits: Limits = SHORT) -> None:
    """Raise `BadInput` for more tokens than the limit."""
    if tokens > limits.tokens:
        raise BadInput(f"{name} has {tokens:,} tokens; {limit_hint(limits.tokens, limits)}")


def limit_hint(most: int, limits: Limits) -> str:
    """What to do about a text that is too long; the page Long text is named only where it takes more."""
    if limits == SHORT:
        return f"this page takes at most {most:,}. Shorten it, or open it on the page Long text."
    if most == limits.characters or limits.whole:
        return f"the limit is {most:,}. Shorten it."
    return f"a model takes at most {most:,} at once. Shorten it, or let it be read by windows."
