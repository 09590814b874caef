"""A sentence whose words have meanings given by hand, so that the first look needs no model."""

from pathlib import Path

import torch
from torch import Tensor

import regard as rg

#            living  place  moving  state  grammar
MEANINGS = {
    "The": (0.0, 0.0, 0.0, 0.0, 1.0),
    "animal": (1.0, 0.0, 0.3, 0.2, 0.0),
    "didn't": (0.0, 0.0, 0.4, 0.0, 0.8),
    "cross": (0.2, 0.5, 1.0, 0.0, 0.0),
    "the": (0.0, 0.0, 0.0, 0.0, 1.0),
    "street": (0.0, 1.0, 0.2, 0.0, 0.0),
    "because": (0.0, 0.0, 0.0, 0.2, 1.0),
    "it": (0.9, 0.1, 0.0, 0.4, 0.2),
    "was": (0.0, 0.0, 0.0, 0.6, 0.8),
    "too": (0.0, 0.0, 0.0, 0.7, 0.5),
    "tired": (0.6, 0.0, 0.1, 1.0, 0.0),
}


def vectors(heads: int = 2) -> Tensor:
    """The words' meanings, `[1, heads, tokens, head_dim]`."""
    meanings = torch.tensor(list(MEANINGS.values()))
    return meanings.expand(1, heads, *meanings.shape)


def save_sentence(path: Path) -> Path:
    """Writes the picture of the sentence looking at itself: alike words attend, the first head far, the second near."""
    k = vectors()
    view = rg.look(6.0 * k, k, position=rg.Alibi(torch.tensor([0.0, 1.0])), weights=True)
    words = list(MEANINGS)
    return view.save(path, queries=words, keys=words, title="Who looks at whom")
