"""A memory for characters, made by hand: where did what stands here stand before, and what came next?

It needs no training and reads any text in any script, so that a hundred thousand characters can be looked at. Every
character is described by the last 1 to 4 characters up to it; each such run of characters is a fixed random vector of
signs, so that equal runs meet and others hardly do.

    head 0, what came next:  q_i = runs that end at i,   k_j = runs that end at j − 1
    head 1, the same again:  q_i = runs that end at i,   k_j = runs that end at j,   and nearer places count more
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...attention.parts.masks import Causal
from ...attention.parts.positions import Alibi
from ...attention.parts.scores import Dot
from ...errors import BadInput
from ..inputs.prepared import Token
from ..inspect.capture import Attention, Capture

RUNS = (0.6, 0.8, 1.0, 1.2)
"""How much a run of 1, 2, … characters counts."""
DIM = 32
SHARP = 8.0
NEAR = 1 / 256
LABEL = {"en": "recall · what stood here before", "zh": "回忆 · 这里的内容以前在哪里出现过"}


def recall(text: str) -> Capture:
    """The attention of a text to its own past; nothing has run, so it has no output."""
    if len(text) < 2:
        raise BadInput("The text is one character long; there is no past to look at. Give a longer one.")
    here = described(text)
    before = torch.cat([torch.zeros(1, DIM), here[:-1]])
    q, k = torch.stack([here, here]), torch.stack([before, here])
    parts = {"score": Dot(scale=SHARP), "position": Alibi(torch.tensor([0.0, NEAR])), "mask": Causal()}
    attention = Attention("recall", LABEL, 0, "self", "source", "source", q, k, k[:, :, :1], k[:, :, :0], parts, {})
    tokens = [Token(letter, n, n + 1) for n, letter in enumerate(text)]
    return Capture({"source": tokens}, [attention], {"kind": "none", "items": []}, {"hand_made": True}, None)


def described(text: str) -> Tensor:
    """What ends at each character, `[characters, DIM]`."""
    letters = torch.tensor([ord(letter) for letter in text], dtype=torch.int64)
    total = torch.zeros(len(text), DIM)
    code = torch.zeros_like(letters)
    for length, much in enumerate(RUNS):
        earlier = torch.cat([torch.full((length,), -1), letters[: len(letters) - length]])
        code = mixed(code * 1_000_003 + earlier)
        real = torch.arange(len(text)) >= length
        total += signs(code) * (much * real)[:, None]
    return total / DIM**0.5 / sum(much**2 for much in RUNS) ** 0.5


def mixed(x: Tensor) -> Tensor:
    """A well-mixed number for each, the same everywhere (splitmix64)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def signs(code: Tensor) -> Tensor:
    """±1 for each of the first bits of a number, `[n, DIM]`."""
    return ((code[:, None] >> torch.arange(DIM)) & 1).float() * 2 - 1
