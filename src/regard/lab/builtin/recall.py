"""Attention over characters set by hand: each character attends to earlier occurrences of the same context.

It needs no training and reads any text in any script, up to 200,000 characters. A character is encoded by the last 1
to 4 characters up to it; each such run is a fixed random vector of signs, so that the products of equal runs are large
and those of others near zero.

    head 0, what came next:  q_i = runs that end at i,   k_j = runs that end at j − 1
    head 1, the same again:  q_i = runs that end at i,   k_j = runs that end at j,   with a bias for near positions
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...attention.parts.masks import Causal
from ...attention.parts.parts import Parts
from ...attention.parts.positions import Alibi
from ...attention.parts.scores import Dot
from ...errors import BadInput
from ..inputs.model_input import Token
from ..inspect.capture import Capture
from ..inspect.captured_attention import CapturedAttention

RUN_WEIGHTS = (0.6, 0.8, 1.0, 1.2)
"""The weight of a run of 1, 2, … characters."""
DIM = 32
SHARP = 8.0
NEAR = 1 / 256
LABEL = {"en": "recall · earlier occurrences", "zh": "回忆 · 此前出现的位置"}


def recall(text: str) -> Capture:
    """The attention of a text to its own past; no model has run, so it has no output."""
    if len(text) < 2:
        raise BadInput("The text has one character; give at least two.")
    here = encode_runs(text)
    before = torch.cat([torch.zeros(1, DIM), here[:-1]])
    q, k = torch.stack([here, here]), torch.stack([before, here])
    parts = Parts(Dot(scale=SHARP), Alibi(torch.tensor([0.0, NEAR])), Causal())
    attention = CapturedAttention(
        "recall", LABEL, 0, "self", "source", "source", q, k, k[:, :, :1], k[:, :, :0], parts, {}
    )
    tokens = [Token(letter, n, n + 1) for n, letter in enumerate(text)]
    return Capture({"source": tokens}, [attention], {"type": "none", "items": []}, {"hand_made": True}, None)


def encode_runs(text: str) -> Tensor:
    """The encoding of the runs that end at each character, `[characters, DIM]`."""
    letters = torch.tensor([ord(letter) for letter in text], dtype=torch.int64)
    total = torch.zeros(len(text), DIM)
    code = torch.zeros_like(letters)
    for length, run_weight in enumerate(RUN_WEIGHTS):
        earlier = torch.cat([torch.full((length,), -1), letters])[: len(letters)]
        code = mix_bits(code * 1_000_003 + earlier)
        real = torch.arange(len(text)) >= length
        total += signs(code) * (run_weight * real)[:, None]
    return total / DIM**0.5 / sum(run_weight**2 for run_weight in RUN_WEIGHTS) ** 0.5


def mix_bits(x: Tensor) -> Tensor:
    """A hash of each number, the same on every machine (splitmix64)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def signs(code: Tensor) -> Tensor:
    """±1 for each of the first bits of a number, `[n, DIM]`."""
    return ((code[:, None] >> torch.arange(DIM)) & 1).float() * 2 - 1
