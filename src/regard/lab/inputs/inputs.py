"""What a person types, draws or records, as a model's arguments and as tokens to be drawn.

A `Prepared` also knows how to read the model's answer. Each kind of input has its own module.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from ...errors import BadInput
from .audio import sound_input
from .graphs import graph_input
from .images import image_input
from .prepared import FEW, Limits, Prepared
from .seq2seq import pair_input
from .text import need_text, tag_input, text_input

Fetch = Callable[[dict[str, Any]], bytes]
"""The bytes that an input names: an upload, an example, or base64 in the input itself."""


def prepare(model: Any, task: Any, kind: str, given: dict[str, Any], fetch: Fetch, limits: Limits = FEW) -> Prepared:
    """The input for a model of some kind ("text", "pair", "image", "sound", "graph")."""
    if kind == "text" and hasattr(model, "prepare"):  # a model that is not learned reads its own input
        return model.prepare(need_text(given, limits))
    if kind == "image":
        return image_input(model, task, fetch(given))
    if kind == "sound":
        return sound_input(model, task, fetch(given), given.get("target"))
    if kind == "graph":
        return graph_input(model, task, given, fetch)
    text = need_text(given, limits)
    if kind == "pair":
        return pair_input(model, task, text, given.get("target"))
    name = getattr(task, "name", None)
    if name == "tag":
        return tag_input(task, text)
    return text_input(model, task, text, limits)


def from_base64(text: Any) -> bytes:
    """Bytes that an input carries itself."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise BadInput("The input's base64 cannot be read. Upload the file instead.") from None
