"""A user's input as a `ModelInput`; each modality has a module of its own."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from torch import nn

from ...errors import BadInput, Unsupported
from ...models.model import EncoderDecoderModel, Model
from ...tasks.tables.table import Tabular
from ...tasks.task import AnyTask
from ...tasks.texts.token_tagger import TokenTagger
from ..builtin.meanings import Meanings
from ..protocol import Json, Request
from .audio import audio_input
from .graphs import graph_input
from .images import image_input
from .model_input import SHORT, Limits, ModelInput
from .rows import row_input
from .seq2seq import seq2seq_input
from .text import check_text, tag_input, text_input

FileReader = Callable[[Request], bytes]
"""Reads the bytes that an input names: an upload, an example, or base64 in the input itself."""


def prepare(
    model: nn.Module,
    task: AnyTask | None,
    modality: str,
    fields: Request,
    read_file: FileReader,
    limits: Limits = SHORT,
) -> ModelInput:
    """The input of a model; `modality` is "text", "pair", "image", "sound" or "graph"."""
    if isinstance(model, Meanings):
        return model.prepare(check_text(fields, limits), limits)
    if not isinstance(model, Model):
        raise Unsupported(f"The lab reads models of Regard; this one is a {type(model).__name__}.")
    if modality == "image":
        return image_input(model, task, read_file(fields))
    if modality == "sound":
        return audio_input(model, task, read_file(fields), fields.get("target"))
    if modality == "graph":
        return graph_input(model, task, fields, read_file)
    text = check_text(fields, limits)
    if modality == "pair" and isinstance(model, EncoderDecoderModel):
        return seq2seq_input(model, task, text, fields.get("target"))
    if isinstance(task, TokenTagger):
        return tag_input(task, text, limits)
    if isinstance(task, Tabular):
        return row_input(task, text)
    return text_input(model, task, text, limits)


def decode_base64(text: Json) -> bytes:
    """The bytes of base64 text."""
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("The input's base64 cannot be read. Upload the file instead.") from None
