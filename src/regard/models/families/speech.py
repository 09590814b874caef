"""Speech recognition by an encoder with CTC (Graves et al. 2006): a letter, or the blank, for every few frames."""

from __future__ import annotations

from typing import Any

from ...attention.parts.mask import Mask
from ...attention.parts.masks import Window
from ...attention.parts.positions import Position, Rotary
from ...nn.block import StackConfig
from ...nn.embeddings.sound_embedding import SoundEmbeddingConfig
from ..config import SpeechConfig
from ..heads import LMHeadConfig

ROTARY = Rotary()


def speech(
    *,
    vocabulary: int = 32,
    bins: int = 80,
    stack: int = 4,
    layers: int = 6,
    dim: int = 256,
    heads: int = 4,
    hidden: int | None = None,
    position: Position | str | None = ROTARY,
    mask: Mask | str | None = None,
    dropout: float = 0.1,
) -> SpeechConfig:
    """`stack` log-mel frames a token, a stack of blocks, and a logit for every letter; letter 0 is the blank.

    `labels [batch, letters]`, filled up with −100, give the CTC loss; `lengths` count frames.

    >>> import torch
    >>> model = speech(layers=1, dim=16).build()
    >>> sound, labels = torch.randn(2, 40, 80), torch.tensor([[5, 3, 3], [7, -100, -100]])
    >>> out = model(sound=sound, lengths=torch.tensor([40, 13]), labels=labels)
    >>> out.logits.shape, out.loss.isfinite().item()
    (torch.Size([2, 10, 32]), True)
    """
    return SpeechConfig(
        embed=SoundEmbeddingConfig(bins, dim, stack, norm=1e-5, dropout=dropout),
        stack=StackConfig(
            dim, layers, heads, hidden, position=position, mask=mask, dropout=dropout, attention_dropout=dropout
        ),
        head=LMHeadConfig(vocabulary, dim, tied=False, bias=True, blank=0),
    )  # fmt: skip


def truncated_speech(*, before: int = 16, after: int = 16, **changes: Any) -> SpeechConfig:
    """`speech` with a window in every layer: the cost grows with the length of the sound, not with its square.

    >>> truncated_speech(before=8, after=2).stack.mask
    Window(before=8, after=2)
    """
    return speech(mask=Window(before, after), **changes)
