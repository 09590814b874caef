"""A user's input as a `ModelInput`; each modality has a module of its own."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from ...errors import BadInput
from ...tasks.tag import Tag
from ...tasks.task import Task
from ..builtin.meanings import Meanings
from .audio import audio_input
from .graphs import graph_input
from .images import image_input
from .model_input import SHORT, Limits, ModelInput
from .seq2seq import seq2seq_input
from .text import check_text, tag_input, text_input

FileReader = Callable[[dict[str, Any]], bytes]
"""Reads the bytes that an input names: an upload, an example, or base64 in the input itself."""


def prepare(
    model: Any,
    task: Task[Any] | None,
    modality: str,
    fields: dict[str, Any],
    read_file: FileReader,
    limits: Limits = SHORT,
) -> ModelInput:
    """The input of a model; `modality` is "text", "pair", "image", "sound" or "graph"."""
    if modality == "image":
        return image_input(model, task, read_file(fields))
    if modality == "sound":
        return audio_input(model, task, read_file(fields), fields.get("target"))
    if modality == "graph":
        return graph_input(model, task, fields, read_file)
    text = check_text(fields, limits)
    if isinstance(model, Meanings):
        return model.prepare(text, limits)
    if modality == "pair":
        return seq2seq_input(model, task, text, fields.get("target"))
    if isinstance(task, Tag):
        return tag_input(task, text, limits)
    return text_input(model, task, text, limits)


def decode_base64(text: Any) -> bytes:
    """The bytes of base64 text."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise BadInput("The input's base64 cannot be read. Upload the file instead.") from None
