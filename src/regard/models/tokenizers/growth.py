"""How much longer a tokenizer.json makes a text: steps that make several letters of one multiply, and fill memory."""

from __future__ import annotations

import base64
import json
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BadInput
from ...limits import TOKENIZER_GROWTH

if TYPE_CHECKING:
    import tokenizers

STEPS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "ByteLevel": 4, "BertNormalizer": 12}
"""The most letters that a step makes of one; 1 for those that are not listed."""
INNER = ("normalizers", "decoders", "processors")


def check_growth(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Raise `BadInput` for a tokenizer that makes very many letters or tokens out of one letter."""
    parts = {name: getattr(backend, name) for name in ("normalizer", "post_processor", "decoder")}
    growth = {name: 1 if part is None else grow(json.loads(part.__getstate__()), 1) for name, part in parts.items()}
    for most in (growth["normalizer"] * growth["post_processor"], growth["decoder"]):
        if message := TOKENIZER_GROWTH.excess(most):
            raise BadInput(f"{path}: {message}")


def grow(step: dict[str, Any], size: int) -> int:
    """The most letters, or tokens, that a step makes of `size`."""
    inner = next((step[name] for name in INNER if name in step), None)
    if inner is not None:
        for one in inner:
            size = grow(one, size)
        return size
    if step["type"] == "Replace":
        new, old = len(step["content"]), len(step["pattern"].get("String", ""))
        return size * max(1, ceil(new / old)) if old else size * (1 + new) + new  # an expression may match nothing
    if step["type"] == "TemplateProcessing":
        return max(size * template_size(step, name) for name in ("single", "pair"))
    if step["type"] == "Precompiled":
        return size * longest_replacement(base64.b64decode(step["precompiled_charsmap"]))
    return size * STEPS.get(step["type"], 1) + len(step.get("prepend", ""))


def template_size(step: dict[str, Any], name: str) -> int:
    """How many tokens a template makes of two texts of one token."""
    special = step["special_tokens"]
    names = [piece["SpecialToken"]["id"] for piece in step[name] if "SpecialToken" in piece]
    return len(step[name]) + sum(len(special[token]["ids"]) for token in names if token in special)


def longest_replacement(charsmap: bytes) -> int:
    """The letters of the longest text in a map of SentencePiece: the size of a trie, the trie, texts that end in 0."""
    texts = charsmap[4 + int.from_bytes(charsmap[:4], "little") :]
    return max(1, max(map(len, texts.split(b"\0"))))
