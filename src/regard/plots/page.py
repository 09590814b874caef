"""Attention heads as one HTML page that works offline.

The page holds the arrays' own bytes (base64, little-endian), so every number on it is the number that was computed.
Its text, in English and Chinese, and its drawing code are in `view.html`.
"""

from __future__ import annotations

import base64
import ctypes
import json
import re
from html import escape
from importlib.resources import files

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import TooLarge
from .arrays import HeadArrays

PALETTE = ["#fdfae7", "#e5f3c9", "#b8e1ba", "#79c9bd", "#3fa9c0", "#2b80b6", "#2a58a1", "#26357d", "#14184a"]
"""The colours of the weights from 0 to 1, evenly spaced; colours between are interpolated."""
PAGE_NUMBERS, NOTEBOOK_NUMBERS = 2**24, 2**22
"""The most numbers in a file and in a notebook's cell."""


def heads_html(arrays: HeadArrays, title: str | None = None) -> str:
    """A whole HTML document that needs nothing else; raises `TooLarge` when it would hold too many numbers."""
    if arrays.numbers > PAGE_NUMBERS:
        raise TooLarge(
            f"The page would hold {arrays.numbers:,} numbers; it can hold {PAGE_NUMBERS:,}. Give head= to show one "
            "head, or look with map=(256, 256) in place of weights=True."
        )
    values = {"title": escape(title or arrays.description), "data": script_json(page_data(arrays, title))}
    template = files("regard.plots").joinpath("view.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def notebook_html(arrays: HeadArrays | None, summary: str) -> str:
    """The page in an iframe for a notebook's cell; the summary alone when there are no arrays or too many numbers."""
    text = f"<code>{escape(summary)}</code>"
    if arrays is None:
        return f"<p>{text}</p>"
    if arrays.numbers > NOTEBOOK_NUMBERS:
        save, plot = '<code>view.save("view.html")</code>', "<code>view.plot(head=0)</code>"
        return (
            f"<p>{text}<br>{arrays.numbers:,} numbers are too many for a cell: {save} writes them, {plot} draws one "
            "head.</p>"
        )
    style = "width:100%;height:760px;border:1px solid #ddd;border-radius:8px"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(heads_html(arrays))}"></iframe>'


def page_data(arrays: HeadArrays, title: str | None) -> dict[str, object]:
    """Everything that the page's script reads."""
    top = None
    if arrays.content == "curves" and arrays.top_weights is not None and arrays.top_keys is not None:
        top = {"weights": encode(arrays.top_weights), "keys": encode(arrays.top_keys)}
    return {
        "content": arrays.content,
        "title": title,
        "description": arrays.description,
        "sizes": dict(zip(("batch", "heads", "queries", "keys"), arrays.shape, strict=True)),
        "batch": arrays.batch,
        "heads": arrays.heads,
        "words": {"queries": arrays.query_labels, "keys": arrays.key_labels},
        "palette": PALETTE,
        "cells": None if arrays.cells is None else encode(arrays.cells),
        "masked": None if arrays.masked is None else encode_bits(arrays.masked),
        "entropy": encode(arrays.entropy),
        "distance": encode(arrays.distance),
        "peak": encode(arrays.peak),
        "received": encode(arrays.received) if arrays.content != "map" else None,
        "dead": arrays.dead.tolist(),
        "top": top,
    }


def encode(x: Tensor) -> dict[str, object]:
    """A tensor's shape, type and bytes (base64, little-endian)."""
    x = x.contiguous()
    # numpy, the usual way to the bytes, need not be installed
    data = ctypes.string_at(x.data_ptr(), x.numel() * x.element_size()) if x.numel() else b""
    dtype = str(x.dtype).removeprefix("torch.")
    return {"shape": list(x.shape), "type": dtype, "bytes": base64.b64encode(data).decode()}


def encode_bits(x: Tensor) -> dict[str, object]:
    """A boolean tensor, eight values a byte, the first in the lowest bit."""
    flat = x.flatten()
    eights = pad(flat, (0, -flat.numel() % 8)).view(-1, 8).to(torch.uint8)
    data = (eights << torch.arange(8, dtype=torch.uint8)).sum(-1).to(torch.uint8)
    return encode(data) | {"shape": list(x.shape), "type": "bits"}


def script_json(value: object) -> str:
    """JSON that may stand inside a script element, whatever its texts are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)
