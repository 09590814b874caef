"""Notices about an input that a model was not trained for: unknown tokens, another language, its length, its looks."""

from __future__ import annotations

from typing import Literal, TypedDict

from ...data.languages import language_name, script_name, unread_script
from ...errors import RegardError
from ..library import LoadedModel, ModelEntry
from ..protocol import Translated
from .model_input import ModelInput


class HandMade(TypedDict):
    """The model was set by hand, not trained."""

    type: Literal["hand_made"]


class OtherLanguage(TypedDict):
    """Most letters are in a `script` that the model does not read; `offer` is a model that reads the text."""

    type: Literal["language"]
    script: Translated
    reads: list[Translated]
    offer: str | None


class UnknownTokens(TypedDict):
    """The model does not know `count` of the `total` tokens."""

    type: Literal["unknown"]
    count: int
    total: int


class TooLong(TypedDict):
    """Tokens from number `training_length` on are beyond the longest training input; there are `total`."""

    type: Literal["length"]
    training_length: int
    total: int


class Unlike(TypedDict):
    """The image or sound is unlike the training data: `distance` is above 1, in units of the threshold."""

    type: Literal["unlike"]
    distance: float


Notice = HandMade | OtherLanguage | UnknownTokens | TooLong | Unlike


def find_notices(loaded: LoadedModel, entries: dict[str, ModelEntry], text: str, prepared: ModelInput) -> list[Notice]:
    """What must be said of a model and this input."""
    entry = loaded.entry
    notices: list[Notice] = [{"type": "hand_made"}] if entry.hand_made else []
    script = unread_script(text, entry.languages)
    if script is not None:
        reads = [language_name(language) for language in entry.languages]
        offer = offer_model(entry, entries, text)
        notices.append({"type": "language", "script": script_name(script), "reads": reads, "offer": offer})
    tokens = [token for token in prepared.tokens[prepared.side] if not token.special]
    unknown = sum(token.unknown for token in tokens)
    if unknown:
        notices.append({"type": "unknown", "count": unknown, "total": len(tokens)})
    total = len(prepared.tokens[prepared.side])
    if entry.training_length is not None and total > entry.training_length:
        notices.append({"type": "length", "training_length": entry.training_length, "total": total})
    distance = measure_distance(loaded, prepared)
    if distance is not None and distance > 1:
        notices.append({"type": "unlike", "distance": distance})
    return notices


def offer_model(entry: ModelEntry, entries: dict[str, ModelEntry], text: str) -> str | None:
    """A model that reads this text: one of the same task before others, trained ones before those set by hand."""
    fitting = [
        other
        for other in entries.values()
        if other.modality in ("text", "pair") and other.languages and unread_script(text, other.languages) is None
    ]
    fitting.sort(key=lambda other: (other.modality != entry.modality, other.task != entry.task, other.hand_made))
    return fitting[0].name if fitting else None


def measure_distance(loaded: LoadedModel, prepared: ModelInput) -> float | None:
    """The largest distance of an input to the training data, in units of its threshold; None without a reference."""
    if loaded.reference is None:
        return None
    try:
        return max(loaded.reference.distances(loaded.model, prepared.arguments).values())
    except RegardError:  # the model cannot have such a reference
        return None
